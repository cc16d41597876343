"""Mutants one after another, each against the tests that reach it; every result is kept as soon as it is known."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from benchsuite.machine.files import write_file
from benchsuite.workshop.mutation.copied import Copied
from benchsuite.workshop.mutation.forks import ForkLimits, run_pytest
from benchsuite.workshop.mutation.mutants import Mutation
from benchsuite.workshop.mutation.reach import Reach

KILLED, LATE, SURVIVED, MISSED, EXCUSED = "killed", "out of time", "survived", "not reached", "equivalent"
VERDICTS = (KILLED, LATE, SURVIVED, MISSED, EXCUSED)

MOST = 60.0
"""Recorded seconds of the tests that a mutant must survive; the cheapest come first."""

COMPILED = (".cpp", ".h", ".cu")
COMPILING = 600.0
"""Seconds more for a mutant whose sources are compiled first."""


@dataclass(frozen=True)
class Tried:
    """What became of a mutant.

    ``by`` is the test that failed, "import" where our code could not be imported. ``tests`` were begun, of ``reach``
    that reach it. ``seconds`` on the clock.
    """

    group: str
    mutant: Mutation
    verdict: str
    by: str = ""
    tests: int = 0
    reach: int = 0
    seconds: float = 0.0
    reason: str = ""


class OutOfBudget(Exception):
    """The time given to all mutants together ended while one was tried: nothing is known of it."""


class Chosen:
    """A plugin of pytest that runs the given tests in the given order, and says which failed first."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self.said: dict[str, Any] = {"by": "", "tests": 0}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the given tests alone."""
        items[:] = sorted((i for i in items if i.nodeid in self._order), key=lambda item: self._order[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a test file that cannot be imported."""
        if report.failed:
            self.said["by"] = self.said["by"] or f"{report.nodeid} (import)"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count, and note the first failure."""
        self.said["tests"] += report.when == "setup"
        if report.failed:
            self.said["by"] = self.said["by"] or report.nodeid


def drawn_mutants(mutants: Mapping[str, Sequence[Mutation]], count: int, seed: int) -> dict[str, list[Mutation]]:
    """Draw ``count`` mutants, as many of each group as of any other as far as they have so many.

    A group's mutants come in an order that seed and group decide alone, so that a larger count draws the same and more.

    Example: ``drawn_mutants({"engine": mutants}, 20, seed=7)``
    """
    orders = {group: sorted(all_of, key=lambda mutant: mutant.key) for group, all_of in mutants.items()}
    for group, order in orders.items():
        random.Random(f"{seed} {group}").shuffle(order)
    sizes = dict.fromkeys(orders, 0)
    while sum(sizes.values()) < count:
        free = [group for group, size in sizes.items() if size < len(orders[group])]
        if not free:
            break
        for group in free[: count - sum(sizes.values())]:
            sizes[group] += 1
    return {group: order[: sizes[group]] for group, order in orders.items()}


def group_by_group(sample: Mapping[str, Sequence[Mutation]]) -> list[tuple[str, Mutation]]:
    """Return pairs of group and mutant, the groups in turn, so that a run that is cut short has some of each."""
    longest = max(map(len, sample.values()), default=0)
    return [(group, order[i]) for i in range(longest) for group, order in sample.items() if i < len(order)]


class MutationResults:
    """Results in a file of JSON lines; half a line that a kill left is cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        self._known = {value["key"]: value for value in map(json.loads, whole.splitlines())}

    def of(self, group: str, mutant: Mutation) -> Tried | None:
        """Return what became of a mutant in an earlier run, if it was tried."""
        if (value := self._known.get(mutant.key)) is None:
            return None
        return Tried(group, mutant, **{name: value[name] for name in ("verdict", "by", "tests", "reach", "seconds")})

    def add(self, tried: Tried) -> None:
        """Append a result."""
        value = {"key": tried.mutant.key, **asdict(tried)}
        self._known[tried.mutant.key] = value
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")


class MutantRunner:
    """Tries mutants over a copy of the checkout.

    ``kept`` is a folder for what is known of these sources: which tests pass alone. ``most``: see
    ``MOST``. ``until``: the time (``time.monotonic``) at which what runs is ended.
    """

    def __init__(self, copy: Copied, reach: Reach, kept: Path, most: float = MOST, until: float = float("inf")) -> None:
        self._copy, self._reach, self._most, self._until = copy, reach, most, until
        self._alone_file = kept / "alone.json"
        self._alone: dict[str, bool] = json.loads(self._alone_file.read_text()) if self._alone_file.exists() else {}

    def try_out(self, group: str, mutant: Mutation) -> Tried:
        """Run the tests that reach a mutant, until one fails. Raises OutOfBudget.

        A test that fails under a mutant and also alone without it, because it needs what an earlier test left, judges
        nothing: it is left out, and the mutant is tried again.
        """
        start = time.monotonic()
        source = (self._copy.folder / mutant.file).read_bytes()
        while True:
            reaching = [test for test in self._reach.tests(mutant) if self._alone.get(test, True)]
            tests = self._affordable(reaching)
            if not tests:
                return Tried(group, mutant, MISSED)
            with self._copy.changed(mutant.file, mutant.applied(source)):
                verdict, by, began = self._run(tests, compiled=mutant.file.endswith(COMPILED))
            if verdict != KILLED or by not in self._reach.seconds or self._passes_alone(by):
                seconds = round(time.monotonic() - start, 1)
                return Tried(group, mutant, verdict, by, began, len(reaching), seconds)

    def _affordable(self, tests: Sequence[str]) -> list[str]:
        chosen, spent = list[str](), 0.0
        for test in tests:
            spent += self._reach.seconds[test]
            if chosen and spent > self._most:
                break
            chosen.append(test)
        return chosen

    def _run(self, tests: Sequence[str], compiled: bool = False) -> tuple[str, str, int]:
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        compiling = COMPILING if compiled else 0
        recorded = [self._reach.seconds[test] for test in tests]
        # Our caches are not the place for kernels of mutants.
        variables = {"SPECDEC_CACHE": str(self._copy.folder / ".kernels")} if compiled else {}
        if (left := self._until - time.monotonic()) <= 0:
            raise OutOfBudget
        # A test that waits for ever, as threads do at a broken barrier, is not to use up the time of all.
        still = 180 + 20 * max(recorded) + compiling
        limits = ForkLimits(min(60 + 5 * sum(recorded) + compiling, left), left, still)
        ended = run_pytest(self._copy, ["-x", *files], lambda: Chosen(tests), limits, variables)
        by, began = ended.said.get("by", ""), ended.said.get("tests", 0)
        if ended.code is None and ended.seconds >= left:
            raise OutOfBudget
        if ended.code is None:
            return LATE, "", began
        if ended.code in (0, 5):
            return SURVIVED, "", began
        return KILLED, by or "import", began

    def _passes_alone(self, test: str) -> bool:
        if test not in self._alone:
            self._alone[test] = self._run([test])[0] == SURVIVED
            write_file(self._alone_file, json.dumps(self._alone).encode())
        return self._alone[test]


def tried_out(
    runner: MutantRunner, mutants: Iterable[tuple[str, Mutation]], reasons: Mapping[str, str], results: MutationResults
) -> Iterator[Tried]:
    """Yield what became of each mutant; those in ``results`` are not run again, those with a reason not at all.

    When the runner's time is over, only what is known already is yielded.
    """
    over = False
    for group, mutant in mutants:
        if mutant.key in reasons:
            yield Tried(group, mutant, EXCUSED, reason=reasons[mutant.key])
        elif (known := results.of(group, mutant)) is not None:
            yield known
        elif not over:
            try:
                tried = runner.try_out(group, mutant)
            except OutOfBudget:
                over = True
                continue
            if tried.verdict != MISSED:  # more may have been traced the next time
                results.add(tried)
            yield tried
