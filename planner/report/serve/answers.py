"""The inputs of `planner serve` and the searches that answer them: one at a time for each session,
with answers kept in memory."""

from __future__ import annotations

import secrets
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from planner.job.errors import UsageError, unknown_name
from planner.job.models.catalog import catalog_name, model_names
from planner.job.pool import SeveralTypes
from planner.job.quantities import parse_length, parse_tokens, plural
from planner.job.request import Request
from planner.job.written import picked
from planner.launch.plans import find_plans
from planner.launch.registry import targets
from planner.report.fit import nothing_fits_report
from planner.report.pages.page import Page, Section, render, render_answer
from planner.report.pages.plans import first_page, plan_page, result_page
from planner.search.infeasibility import DoesNotFitError, WhyNothingFits
from planner.search.plan_file import to_json
from planner.search.result import SearchResult

# Larger clusters, and models that need them, are left to the command line, because a single costing
# pass of a search cannot be interrupted.
MOST_GPUS = 16_384
PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
FRAMEWORKS = tuple(dict.fromkeys(target.profile for target in targets().values()))

Word = Annotated[str, Field(max_length=80)]


class Inputs(BaseModel):
    """The fields of the form as people write them; a field that is left out takes its default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: Word = Field("8b", title="Model", examples=["70b"])
    gpus: Word = Field("8xH100", title="GPUs", examples=["64xH100"])
    batch: Word = Field("1M", title="Global batch, tokens", examples=["4M"])
    seq: Word = Field("", title="Sequence, tokens", examples=["the model's"])
    framework: Word = Field("megatron-core", title="Framework")
    precision: Word = Field("bf16", title="Precision")
    sure: Word = Field("80%", title="Must fit with", examples=["80%"])
    reserve: Word = Field("0", title="HBM to keep free", examples=["5% or 4GiB"])
    conditions: str = Field(
        "", title="Conditions, separated by ;", examples=["tp <= 4; mbs == 1"], max_length=400
    )

    def request(self) -> Request:
        """The request. Raises UsageError, or the errors of `Request`, for wrong inputs."""
        if catalog_name(self.model) is None:
            hint = "planner models lists them; model files are for planner search"
            raise unknown_name("model", self.model, model_names(), hint)
        if self.framework not in FRAMEWORKS:
            raise unknown_name("framework", self.framework, FRAMEWORKS, ", ".join(FRAMEWORKS))
        if "/" in self.gpus or "\\" in self.gpus:
            raise UsageError(f"{self.gpus!r}: a cluster file must lie where planner serve runs")
        conditions = tuple(text.strip() for text in self.conditions.split(";") if text.strip())
        request = Request(
            model=self.model,
            gpus=self.gpus,
            gbs_tokens=parse_tokens(self.batch),
            seq=parse_length(self.seq) if self.seq else None,
            framework=self.framework,
            precision=self.precision,
            fit_probability=_probability(self.sure),
            hbm_reserve=self.reserve or "0",
            require=conditions,
        )
        if isinstance(request.gpu_words, SeveralTypes):
            raise UsageError(
                f"{self.gpus}: GPUs of several types are for planner search; give one type here"
            )
        count = request.find_cluster().num_gpus
        if count > MOST_GPUS:
            raise UsageError(
                f"{count:,} GPUs: give {MOST_GPUS:,} at most here; planner search takes more"
            )
        return request


def wrong_field(given: dict[str, Any]) -> str:
    """The name of the first field whose value is wrong even if all others have their defaults.
    Empty if each value is right alone and only the combination is wrong."""
    for name in Inputs.model_fields:
        if name in given and _is_wrong({name: given[name]}):
            return name
    return ""


def _is_wrong(given: dict[str, Any]) -> bool:
    try:
        Inputs(**given).request().resolve()
    except (ValueError, HardwareError, ConstraintError):
        return True
    return False


def _probability(text: str) -> float:
    try:
        return float(text.strip().removesuffix("%")) / (100.0 if "%" in text else 1.0)
    except ValueError:
        raise UsageError(f"{text!r}: write a probability as 80% or 0.8") from None


MOST_SESSIONS = 64
MOST_ANSWERS = 64
PLAN_FILE = Path("plans.json")

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BusyError(Exception):
    """The session's last search is still running."""


class Remembered(Generic[Key, Value]):
    """A cache of the `most` most recently used values."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        """The value, which becomes the most recently used; None if there is none."""
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Store a value, and drop the oldest ones if there are too many."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            for oldest in list(self._values)[: -self._most]:
                del self._values[oldest]


@dataclass(frozen=True)
class Answer:
    """The answer to a search, for the browser: `state` in one line, `html`, and the `data` of its
    charts. `result`: the plans, None if nothing fits."""

    result: SearchResult | None
    state: str
    html: str
    data: dict[str, Any]

    @property
    def document(self) -> dict[str, Any]:
        """The answer as JSON for the browser."""
        return picked(self, "state html data") | {"has_plans": self.result is not None}


@dataclass
class Session:
    """One browser: the progress of its search, and its last inputs and result."""

    state: str = ""
    inputs: Inputs | None = None
    result: SearchResult | None = None
    lock: Lock = field(default_factory=Lock)

    def watch(self, what: str, done: int, total: int) -> None:
        """Record the progress of the search."""
        self.state = f"searching: {what}, {done} of {total}"


class Desk:
    """Answers the requests of sessions."""

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._sessions: Remembered[str, Session] = Remembered(MOST_SESSIONS)
        self._found: Remembered[Inputs, SearchResult | WhyNothingFits] = Remembered(MOST_ANSWERS)
        self._answers: Remembered[tuple[Inputs, Inputs | None], Answer] = Remembered(MOST_ANSWERS)

    def session(self, token: str) -> tuple[str, Session]:
        """The session of a token; or, for an unknown token, a new session with a token that cannot
        be guessed."""
        known = self._sessions.get(token)
        if known is not None:
            return token, known
        token, session = secrets.token_urlsafe(24), Session()
        self._sessions.put(token, session)
        return token, session

    def answer(self, session: Session, inputs: Inputs) -> Answer:
        """The answer to the inputs, from a new search or from memory. Raises BusyError while the
        session's last search is running. Errors of the search are raised, too, except that no plan
        fits (DoesNotFitError), which becomes an answer."""
        if not session.lock.acquire(blocking=False):
            raise BusyError
        try:
            session.state = "searching …"
            return self._answer(session, inputs)
        finally:
            session.state = ""
            session.lock.release()

    def _answer(self, session: Session, inputs: Inputs) -> Answer:
        before = session.inputs if session.inputs != inputs else None
        answer = self._answers.get((inputs, before))
        if answer is None:
            found = self._found.get(inputs) or self._search(session, inputs)
            session.state = "drawing …"
            answer = _answer(found, session.result if before else None)
            self._answers.put((inputs, before), answer)
        if answer.result is not None:
            session.inputs, session.result = inputs, answer.result
        return answer

    def _search(self, session: Session, inputs: Inputs) -> SearchResult | WhyNothingFits:
        found: SearchResult | WhyNothingFits
        request, limit_s = inputs.request(), self._time_limit_s
        try:
            found = find_plans(request, time_limit_s=limit_s, progress=session.watch)
        except DoesNotFitError as error:
            found = error.why
        self._found.put(inputs, found)
        return found


def _answer(found: SearchResult | WhyNothingFits, before: SearchResult | None) -> Answer:
    if isinstance(found, SearchResult):
        page = first_page(found, PLAN_FILE, () if before is None else before.plans)
        return Answer(found, _state(found), render_answer(page), page.data)
    blocks = nothing_fits_report(found).blocks
    page = Page("", "", [Section("Nothing fits", blocks=blocks)])
    return Answer(None, "nothing fits", render_answer(page), page.data)


def _state(result: SearchResult) -> str:
    counts = result.counts
    proven = "proven" if result.proven else "not proven to the end: the time limit came first"
    return (
        f"{plural(len(result.plans), 'plan')} of {counts.legal:,} legal configurations, {proven}, "
        f"in {counts.seconds:.1f} s"
    )


def plan_in_full(session: Session, number: int) -> dict[str, Any]:
    """The sections of one of the session's last plans. UsageError if there is none."""
    result = _last(session)
    if not 1 <= number <= len(result.plans):
        raise UsageError(f"plan {number}: there are plans 1 to {len(result.plans)}")
    page = plan_page(result, PLAN_FILE, number)
    return {"html": render_answer(page), "data": page.data}


def plan_file(session: Session) -> str:
    """The session's last plans as a plan file. UsageError if there are none."""
    return to_json(_last(session))


def report_file(session: Session) -> str:
    """The session's last plans as one self-contained page. UsageError if there are none."""
    return render(result_page(_last(session), PLAN_FILE))


def _last(session: Session) -> SearchResult:
    if session.result is None:
        raise UsageError("search first: this session has no plans yet")
    return session.result
