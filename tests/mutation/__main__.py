"""`python -m tests.mutation [PART ...]`: how many mutants of a part do the tests notice?

Each mutant is one small change (a number, an operator, a comparison, a loop that never runs) in a
copy of the tree. First all tests of the part run on the copy, without a compiler, to see which
lines each of them runs; then, for each mutant, those that run the changed line, until one fails.
Mutants that pass survive and are listed: they are equivalent, or a test is missing. Only the
quickest `_BUDGET_S` of tests judge a mutant, one of each function first: the share that is killed
is at least as large as told.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.mutation.mutants import Mutant, draw, mutant, mutations_of
from tests.mutation.report import section, write

ROOT = Path(__file__).parents[2]
# Seconds of the processor, as measured with coverage, of the tests that judge one mutant.
_BUDGET_S = 30.0


@dataclass(frozen=True)
class Part:
    """A folder of code, and the tests that are to notice a change in it: its own ones first."""

    code: str
    tests: tuple[str, ...]
    # Whether it is compiled: its mutants run as plain Python.
    is_compiled: bool = False


PARTS = {
    "constraints": Part(
        "constraints",
        (
            "tests/constraints",
            "tests/cost/test_context_exchange.py",
            "tests/predict/test_layout_wording.py",
            "tests/predict/test_space.py",
            "tests/predict/memory/test_offload_share.py",
            "tests/search/test_batch_ramp.py",
            "tests/search/test_layout_model.py",
            "tests/search/test_layout_rules.py",
            "tests/search/test_offload_share.py",
            "tests/search/test_schedules.py",
        ),
    ),
    "cost": Part(
        "planner/cost",
        (
            "tests/cost",
            "tests/truth",
            "tests/predict/memory",
            "tests/predict/ops",
            "tests/search/test_tight_bounds.py",
            "tests/search/test_bound_ladder.py",
            "tests/search/test_layout_model.py",
            "tests/search/test_trial.py",
        ),
        is_compiled=True,
    ),
    "memory": Part(
        "planner/predict/memory",
        (
            "tests/predict/memory",
            "tests/cli/test_memory.py",
            "tests/cli/test_memory_inference.py",
        ),
    ),
}
# They start other processes, compile, or compare compiled code with plain code, of which there is
# none here.
_LEFT_OUT = (
    "tests/cost/test_kernel_cache.py", "tests/cost/test_plain.py",
    "tests/predict/memory/test_commands.py",
)  # fmt: skip


class Tree:
    """A copy of the repository whose files may be changed."""

    def __init__(self, folder: Path, part: Part) -> None:
        self.folder, self.part = folder.resolve(), part
        names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
        for name in filter(None, names.split("\0")):
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        self.tests_of_line, self.seconds = self._covered()

    def _covered(self) -> tuple[dict[str, set[str]], dict[str, float]]:
        """(tests of each line of the part, seconds of each) of those that pass without a mutant."""
        out = self.folder / "covered.json"
        print("tests without a mutant", file=sys.stderr, flush=True)
        code = {"MUTATION_COVERED": str(out), "MUTATION_CODE": str(self.folder / self.part.code)}
        left_out = [word for name in _LEFT_OUT for word in ("--deselect", name)]
        self._pytest([*self.part.tests, *left_out], code)
        passed: dict[str, dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
        tests: dict[str, set[str]] = {}
        for name, found in passed.items():
            for line in found["lines"]:
                tests.setdefault(line, set()).add(name)
        return tests, {name: found["seconds"] for name, found in passed.items()}

    def notices(self, changed: Mutant) -> bool:
        """Whether a test fails, or none ends, with the mutant in place."""
        path = changed.mutation.path.relative_to(ROOT)
        judges = self._judges(self.folder / path, changed.mutation.line)
        if not judges:
            return False
        plain, kept = self.folder / path, self.folder / "plain.py"
        shutil.copy2(plain, kept)
        plain.write_text(changed.code, encoding="utf-8")
        (self.folder / "judges.txt").write_text("\n".join(judges), encoding="utf-8")
        try:
            nothing_kept = {"PYTHONDONTWRITEBYTECODE": "1"}
            ended = self._pytest(["-x", "@judges.txt"], nothing_kept, 10.0 * _BUDGET_S)
            # 2 and 4: a file of tests, or a test of a table that the mutant changes, is not there.
            if ended.returncode not in (0, 1, 2, 4):
                raise RuntimeError(f"pytest did not run the tests: {ended.stdout}{ended.stderr}")
            return ended.returncode != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            # With its old time, for the byte code that is kept of it.
            shutil.copy2(kept, plain)

    def _judges(self, path: Path, line: int) -> list[str]:
        """Tests that run a line, within the budget: the part's own before those of others, one of
        each function, quick ones first; then others of their files, for which the first may have
        run it (fixtures, caches)."""
        running = {
            test
            for place in self._run_with(path, line)
            for test in self.tests_of_line.get(place, ())
        }
        files = {test.split("::")[0] for test in running}
        ranks: Counter[str] = Counter()
        ordered = []
        for test in sorted(self.seconds, key=lambda name: (self.seconds[name], name)):
            function = test.split("[")[0]
            if not files or function.split("::")[0] in files:
                foreign = not test.startswith(f"{self.part.tests[0]}/")
                ordered.append(
                    (test not in running, foreign, ranks[function], self.seconds[test], test)
                )
                ranks[function] += 1
        chosen, left = [], _BUDGET_S
        for *_, seconds, test in sorted(ordered):
            if seconds <= left:
                chosen.append(test)
                left -= seconds
        return chosen

    def _run_with(self, path: Path, line: int) -> list[str]:
        """Lines whose running runs a line's statement; of a name that a module or a class gives a
        value, the lines of the part that read it; of a function's head, its body; of a decorator,
        itself."""
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        around = [node for node in nodes if node.lineno <= line <= (node.end_lineno or 0)]
        for decorator in (each for node in nodes for each in getattr(node, "decorator_list", ())):
            if decorator.lineno <= line <= decorator.end_lineno:
                return [f"{path}:{at}" for at in range(decorator.lineno, decorator.end_lineno + 1)]
        inner = max(around, key=lambda node: node.lineno)
        if not any(isinstance(node, ast.FunctionDef) for node in around):
            named = (node for node in ast.walk(inner) if isinstance(node, ast.Name))
            return self._reading({node.id for node in named if isinstance(node.ctx, ast.Store)})
        last = inner.end_lineno or 0
        if not isinstance(inner, ast.FunctionDef) and hasattr(inner, "body"):
            last = max(line, inner.body[0].lineno - 1)
        return [f"{path}:{each}" for each in range(inner.lineno, last + 1)]

    def _reading(self, names: set[str]) -> list[str]:
        word = re.compile(rf"\b({'|'.join(names)})\b")
        return [
            f"{path}:{number}"
            for path in (self.folder / self.part.code).rglob("*.py")
            for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if word.search(text)
        ]

    def _pytest(
        self, arguments: list[str], variables: dict[str, str], seconds: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "--tb=no", *arguments]
        environment = os.environ | {"PYTHONPATH": str(self.folder)} | variables
        environment |= {"MUTATION_PLAIN": "1"} if self.part.is_compiled else {}
        return subprocess.run(
            [*command, "-p", "no:cacheprovider", "-p", "tests.mutation.plain"],
            cwd=self.folder, env=environment, text=True, check=False,
            capture_output=True, timeout=seconds,
        )  # fmt: skip


def survivors(part: Part, mutants: list[Mutant]) -> Iterator[Mutant]:
    """The mutants that no test notices."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), part)
        for number, changed in enumerate(mutants, 1):
            start_s = perf_counter()
            noticed = tree.notices(changed)
            said = "" if noticed else f"  survives: {changed.before} -> {changed.after}"
            place = f"{number}/{len(mutants)} {_place(changed)}"
            print(f"{place} {perf_counter() - start_s:.0f} s{said}", file=sys.stderr, flush=True)
            if not noticed:
                yield changed


def _place(changed: Mutant) -> str:
    return f"{changed.mutation.path.relative_to(ROOT)}:{changed.mutation.line}"


def main() -> None:
    """Print a section for each part asked for, and put it into the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--sample", type=int, default=100, help="mutants of each part")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in options.part or PARTS:
        part = PARTS[name]
        # Modules with an underscore hold no arithmetic: in the cost core they compile and cache.
        files = sorted((ROOT / part.code).rglob("[!_]*.py"))
        every = [one for path in files for one in mutations_of(path)]
        drawn = [mutant(one) for one in draw(every, options.sample, options.seed)]
        left = [(_place(one), one.before, one.after) for one in survivors(part, drawn)]
        heading = f"{name}, seed {options.seed}, sample {options.sample}"
        found = section(heading, len(drawn), len(every), left)
        print(found, flush=True)
        write(found)


if __name__ == "__main__":
    main()
