"""`planner tune`: short runs on the cluster, chosen by their expected benefit."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from planner._version import __version__
from planner.cli.errors import ExitStatus
from planner.cli.options import given, output_format
from planner.cli.output import compile_if_first_run, show, watched
from planner.job.errors import UsageError, demand_installed
from planner.job.written import csv_text
from planner.job.written_folder import write_folder
from planner.launch.contract import NodesAs
from planner.launch.plans import usual_target
from planner.report.tune import dry_run_report, tune_report
from planner.search.plan_file import is_rl_file, read_plan_file
from planner.search.result import SearchResult
from planner.search.rl.plan_file import read_rl_plan
from planner.search.rl.result import RlResult
from planner.tune.choosing import ChosenByWorth
from planner.tune.journal import TELLING, Journal, TrialRecord, opened, study_name
from planner.tune.judge import Limits
from planner.tune.loop import GOES_ON, Budget, Driver, Ending, Next, counted
from planner.tune.outcome import (
    PLANS,
    TriedPlan,
    TunedStudy,
    write_study,
)
from planner.tune.rl.work import RL_SHORT, USUAL_RL_STEPS, RlStudyWork
from planner.tune.runners.command import CommandRunner, LocalRunner
from planner.tune.runners.contract import Runner
from planner.tune.runners.kubernetes import KubernetesRunner
from planner.tune.runners.slurm import SlurmRunner
from planner.tune.trial import ShortRun
from planner.tune.work import StudyWork

_RUNNERS: Mapping[str, type[Any]] = {
    "local": LocalRunner, "slurm": SlurmRunner, "kubernetes": KubernetesRunner,
}  # fmt: skip
# Seconds between two checks of a trial. A scheduler is asked less often than a process.
_POLL_S = {"local": 1.0, "slurm": 10.0, "kubernetes": 10.0, "run": 1.0}
# Limits that --resume may change.
_LIMITS = ("trials", "max_gpu_hours")
# Tokens per parameter, if --tokens is not given.
_USUAL_TOKENS = 20


@dataclass(frozen=True)
class _Begun:
    """A study: the text of its plan file, the search result in it, and the facts that its journal
    keeps (`header`), such as its options."""

    folder: Path
    text: str
    result: SearchResult | RlResult
    header: Mapping[str, Any]

    @property
    def short(self) -> ShortRun:
        return ShortRun(int(self.header["steps"]), float(self.header["trial_limit"]))

    @property
    def work(self) -> ChosenByWorth:
        tokens = float(self.header["tokens"])
        if isinstance(self.result, RlResult):
            return RlStudyWork(self.result, self.short, tokens, str(self.header["on"]))
        # The same launcher that `planner launch` uses for these plans.
        target = usual_target(self.result.plans[0], self.result.request)
        nodes_as: NodesAs = self.runner.nodes_as
        return StudyWork(self.result, target, nodes_as, self.short, tokens)

    @property
    def runner(self) -> Runner:
        if self.header["run"]:
            return CommandRunner(str(self.header["run"]))
        made: Runner = _RUNNERS[str(self.header["on"])]()
        return made


def run(paths: tuple[str, ...], **options: Any) -> None:
    style = output_format(options["as_json"], options["as_csv"])
    if options["replay"]:
        _replay([Path(path) for path in paths], options, style)
        return
    if len(paths) > 1:
        raise UsageError(f"one plan file is tuned at a time; {paths[1]} is a second one")
    plan_file = next(iter(paths), None)
    if options["dry_run"] and options["resume"]:
        raise UsageError("--dry-run tells of a new study; leave --resume out, or --dry-run")
    if options["dry_run"]:
        _dry_run(plan_file, options, style)
        return
    if options["resume"]:
        _resume(plan_file, Path(options["resume"]), options, style)
    else:
        _begin(plan_file, options, style)


# --- a new study ------------------------------------------------------------------------------


def _begin(plan_file: str | None, options: dict[str, Any], style: str) -> None:
    text, result = _planned(plan_file)
    if options["output"] is None:
        raise UsageError(
            "give the folder of the study: -o study/ (or --dry-run, which writes none)"
        )
    folder = Path(options["output"])
    begun = _Begun(folder, text, result, _header(folder, text, result, options))
    work = begun.work
    _demand_processes(begun)
    work.demand_startable(str(begun.header["on"]))
    demand_installed("planner tune needs", "tune", "optuna", "filelock")
    compile_if_first_run(options["quiet"])
    with opened(folder, anew=True) as journal:
        write_folder(folder, {PLANS: text}, force=True)
        journal.begin(begun.header)
        _drive(begun, work, journal, options, style)


def _planned(plan_file: str | None) -> tuple[str, SearchResult | RlResult]:
    if plan_file is None:
        raise UsageError("give the plans to try: planner tune plans.json -o study/")
    result = _read_plans(Path(plan_file))
    if not result.plans:
        raise UsageError(f"{plan_file} holds no plan; search again")
    return Path(plan_file).read_text(encoding="utf-8"), result


def _read_plans(path: Path) -> SearchResult | RlResult:
    return read_rl_plan(path)[0] if is_rl_file(path) else read_plan_file(path)


def _header(
    folder: Path, text: str, result: SearchResult | RlResult, options: dict[str, Any]
) -> dict[str, Any]:
    """The facts about a study that its journal keeps."""
    if options["run_command"] and options["runs_on"]:
        raise UsageError("give --on or --run COMMAND, not both: each of them starts trials")
    return {
        "planner": __version__,
        "name": study_name(folder, secrets.token_hex(3)),
        "model": _model_of(result),
        "framework": result.request.framework,
        "plans": _digest(text),
        "on": "run" if options["run_command"] else options["runs_on"] or "local",
        "run": options["run_command"] or "",
        "tokens": options["tokens"] or _usual_tokens(result),
        **_short_of(result, options),
        **{name: options[name] for name in _LIMITS},
    }


def _model_of(result: SearchResult | RlResult) -> str:
    if isinstance(result, RlResult):
        return result.job.model
    return result.request.resolve().model.name


def _usual_tokens(result: SearchResult | RlResult) -> float:
    if isinstance(result, RlResult):
        return USUAL_RL_STEPS * result.job.tokens
    return float(_USUAL_TOKENS * result.job.parameters)


def _short_of(result: SearchResult | RlResult, options: dict[str, Any]) -> dict[str, Any]:
    """Number of steps and time limit in seconds of a trial. The defaults differ for reinforcement
    learning, because a step takes minutes."""
    usual = RL_SHORT if isinstance(result, RlResult) else ShortRun()
    shipped = {"steps": usual.steps, "trial_limit": usual.limit_s}
    return {name: options[name] if given(name) else value for name, value in shipped.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _demand_processes(begun: _Begun) -> None:
    """Raise UsageError if trials run on this machine and the system has no /proc to find their
    processes."""
    if begun.header["on"] in ("local", "run") and not Path("/proc/self/environ").exists():
        raise UsageError(
            "--on local and --run find their processes through /proc, which this system lacks: run "
            "the driver on Linux, or give --on slurm or --on kubernetes"
        )


# --- a study that goes on ---------------------------------------------------------------------


def _resume(plan_file: str | None, folder: Path, options: dict[str, Any], style: str) -> None:
    context = click.get_current_context()
    for name in ("output", "runs_on", "run_command", "tokens", "steps", "trial_limit"):
        if given(name):
            spelled = next(one for one in context.command.params if one.name == name).opts[0]
            raise UsageError(f"--resume goes on as the study began; leave {spelled} out")
    with opened(folder, anew=False) as journal:
        begun = _read_study(plan_file, folder, journal)
        options = {**options, **_limits_as_begun(begun.header)}
        work = begun.work
        compile_if_first_run(options["quiet"])
        _drive(begun, work, journal, options, style)


def _limits_as_begun(header: Mapping[str, Any]) -> dict[str, Any]:
    """The limits with which the study began, for those that are not given again."""
    return {name: header[name] for name in _LIMITS if not given(name)}


def _read_study(plan_file: str | None, folder: Path, journal: Journal) -> _Begun:
    """The study. Raises UsageError if another version of the planner or other plans began it."""
    header = journal.header
    if not header:
        raise UsageError(f"{folder}: the study was never begun; remove the folder and start again")
    if header["planner"] != __version__:
        raise UsageError(
            f"{folder} was begun with planner {header['planner']}, this is {__version__}: they may "
            "predict differently; go on with that one, or begin another study"
        )
    path = folder / PLANS
    result = _read_plans(path)
    text = path.read_text(encoding="utf-8")
    if _digest(text) != header["plans"]:
        raise UsageError(f"{path} was changed since the study began; put the earlier one back")
    if plan_file is not None and _digest(_planned(plan_file)[0]) != header["plans"]:
        other = _model_of(_planned(plan_file)[1])
        raise UsageError(
            f"{folder} is a study of {header['model']} by its own plans, {plan_file} holds others, "
            f"of {other}: leave {plan_file} out, or begin another study"
        )
    return _Begun(folder, text, result, header)


# --- the driver -------------------------------------------------------------------------------


def _drive(
    begun: _Begun, work: ChosenByWorth, journal: Journal, options: dict[str, Any], style: str
) -> None:
    """Run trials until another one does not pay; write and show the results."""
    quiet = options["quiet"]

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    driver = Driver(
        journal,
        begun.runner,
        work,
        str(begun.header["name"]),
        Limits(begun.short.limit_s, options["pending_limit"] or math.inf, work.sure_sd),
        Budget(
            options["trials"], options["max_gpu_hours"] or math.inf,
            options["time_limit"] or math.inf,
        ),
        say=say,
        poll_s=_POLL_S[str(begun.header["on"])],
        # So that `planner report` can draw a study that is still running.
        after=lambda: _keep(begun, work, journal),
        follow=work.follow,
    )  # fmt: skip
    try:
        ending = driver.run()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; the study is kept: {journal.resume} goes on"
        ) from None
    study = _written(begun, work, journal.records, ending)
    _show(study, begun.folder, style)
    status = _status(study, journal.records)
    if status != ExitStatus.DONE:
        click.get_current_context().exit(status)


def _keep(begun: _Begun, work: ChosenByWorth, journal: Journal) -> None:
    _written(begun, work, journal.records, GOES_ON)


def _written(
    begun: _Begun, work: ChosenByWorth, records: Sequence[TrialRecord], ending: Ending
) -> TunedStudy:
    found = work.written(begun.header, records, ending)
    write_study(begun.folder, begun.text, found.study, found.rows, found.cluster)
    return found.study


def _show(study: TunedStudy, folder: Path, style: str) -> None:
    if style == "csv":
        rows = (one.model_dump() for one in study.trials)
        click.echo(csv_text(list(TriedPlan.model_fields), rows), nl=False)
        return
    show(style == "json", lambda: study.model_dump(mode="json"), lambda: tune_report(study, folder))


def _status(study: TunedStudy, records: Sequence[TrialRecord]) -> ExitStatus:
    """The exit status of a study. CANNOT_TELL (3): trouble ended it, or no trial gave a result;
    NOTHING_FITS (1): every trial ran out of memory and another would not pay; DONE otherwise."""
    kinds = {one.ended.kind for one in counted(records) if one.ended}
    if study.reason in ("setup", "failures") or (kinds and not kinds & {*TELLING}):
        return ExitStatus.CANNOT_TELL
    nothing_fits = kinds == {"out-of-memory"} and study.reason == "no trial pays"
    return ExitStatus.NOTHING_FITS if nothing_fits else ExitStatus.DONE


# --- what would run ---------------------------------------------------------------------------


def _dry_run(plan_file: str | None, options: dict[str, Any], style: str) -> None:
    folder = Path(options["output"] or "study")
    text, result = _planned(plan_file)
    begun = _Begun(folder, text, result, _header(folder, text, result, options))
    work = begun.work
    compile_if_first_run(options["quiet"])
    trials = [*_would_run(work, options["trials"])]
    plain = [_plain(one, work.names) for one in trials]
    if style == "csv":
        rows = (row for row in plain if row["configuration"] is not None)
        click.echo(csv_text(list(plain[0]), rows), nl=False)
        return
    note = "Nothing was started. Without --dry-run each trial is chosen by those before it."
    show(style == "json", lambda: plain, lambda: dry_run_report(trials, work.names, note))


def _plain(one: Next, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "plan": names.get(one.key or ""), "configuration": one.key,
        "saves_gpu_hours": one.saves_gpu_s / 3600.0, "costs_gpu_hours": one.costs_gpu_s / 3600.0,
        "why": one.sentence,
    }  # fmt: skip


def _would_run(work: ChosenByWorth, most: int) -> Iterator[Next]:
    """The next trials of a study, in order, if each takes its expected time; at most `most`. If no
    further trial pays, the last item says why the study would end."""
    records: list[TrialRecord] = []
    while len(records) < most:
        choice = work.choice(records)
        yield choice
        if choice.key is None:
            return
        records.append(work.as_expected(choice, len(records), records))


# --- recorded sweeps --------------------------------------------------------------------------


def _replay(paths: Sequence[Path], options: dict[str, Any], style: str) -> None:
    """Run the loop on recorded runs."""
    for name, spelled in (("resume", "--resume"), ("output", "-o"), ("dry_run", "--dry-run")):
        if options[name]:
            raise UsageError(f"--replay starts nothing and writes nothing; leave {spelled} out")
    if style == "csv":
        raise UsageError("--replay prints tables, or JSON with --json")
    demand_installed("planner tune --replay needs", "tune", "optuna")
    compile_if_first_run(options["quiet"])
    from planner.report.replay import replay_report
    from planner.tune.replay import replay

    with watched(options["quiet"], "nothing is written") as progress:
        progress("recorded sweeps are replayed", 0, 1)
        found = replay(paths)
    show(style == "json", found.document, lambda: replay_report(found))
