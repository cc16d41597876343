"""Which tests reach which lines, and what each costs: collected once for each state of the code and of a test file.

coverage.py traces lines, and its context is switched at every test. Processes that the fixtures ``python`` and ``run``
fork are traced too, others are not; what a fixture or a cache makes once counts for the first test that asked for it.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchsuite.machine.files import write_file
from benchsuite.workshop.mutation.copied import ROOTS, Copied, sources_digest
from benchsuite.workshop.mutation.forks import ForkLimits, run_pytest
from benchsuite.workshop.mutation.mutants import Mutation

TRACED_INTO = "TRACED_INTO"
"""The variable that a forked process of a test reads (``benchsuite/tests/warm.py``)."""

CUDA_ON_HOST = (
    "benchsuite/workshop/native/cuda_on_host.py",
    "benchsuite/workshop/native/ahead_cuda.py",
    "benchsuite/conformance/guards/snippet.py",
)

STANDS_FOR = {
    "kernels/specdec_kernels/csrc/*.cu": CUDA_ON_HOST,
    "kernels/specdec_kernels/csrc/*_cuda.h": CUDA_ON_HOST,
    "kernels/specdec_kernels/csrc/*": ("kernels/specdec_kernels/cpu.py",),
}
"""Compiled sources cannot be traced: the tests that run a function of these files reach all of them. CUDA's run on the
host where there is no GPU."""

PLUGINS, DECLARED = "plugins/specdec_plugins/", "benchsuite/tests/plugins/test_declared.py"
"""A folder, and the tests that read what its classes declare and which defaults its functions have, for which no line
of either runs: they judge every mutant of the folder."""

APART = {"cold"}
"""Fixtures of tests whose work is done in processes that are not traced: they are left out, and judge nothing."""

FORKING = {"python", "run", "suite"}
"""Fixtures of tests that fork processes, whose time is not this one's."""

TRACED, AWAY = (
    ("specdec/*", "plugins/*", "kernels/*", "benchsuite/*"),
    ("benchsuite/tests", "benchsuite/workshop/mutation"),
)


LONGEST_FILE = 3600.0
"""Seconds after which a test file is given up."""

NOTHING: dict[str, Any] = {"tests": [], "seconds": {}, "failed": [], "lines": {}}


@dataclass
class Reach:
    """``seconds``: of every test that passed, by its id. ``lines``: of every file, the tests that run each line.

    ``failed``: the ids of tests that failed in the copy without any change; they judge nothing. ``importers``: of every
    file, the test files that import it.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    importers: dict[str, set[str]] = field(default_factory=dict)

    def add(self, said: dict[str, Any]) -> None:
        """Add what one test file said."""
        tests = said["tests"]
        self.seconds.update({tests[int(index)]: seconds for index, seconds in said["seconds"].items()})
        self.failed += [tests[index] for index in said["failed"]]
        for file, lines in said["lines"].items():
            found = self.lines.setdefault(file, {})
            for line, indices in lines.items():
                found.setdefault(int(line), []).extend(tests[index] for index in indices)

    def tests(self, mutant: Mutation) -> list[str]:
        """Return the ids of the tests that reach a mutant, the cheapest first."""
        stands = next((names for pattern, names in STANDS_FOR.items() if Path(mutant.file).match(pattern)), None)
        if stands:
            found = {test for name in stands for tests in self.lines.get(name, {}).values() for test in tests}
            # Every test of a tiny model runs some kernel; those of kernels look at all of what it returns.
            return sorted(
                found & self.seconds.keys(), key=lambda test: ("kernels" not in test, self.seconds[test], test)
            )
        lines = self.lines.get(mutant.file, {})
        first, last = mutant.lines
        found = {test for line in range(first, last + 1) for test in lines.get(line, ())}
        if not found:
            # coverage.py's tracer loses its place after a loop of events, or a run of pytest, within a test, and tells
            # the next lines by wrong numbers: who runs other lines of the function may run these.
            first, last = mutant.body
            found = {test for line in range(first, last + 1) for test in lines.get(line, ())}
        if mutant.lines == mutant.body:  # a constant or a default value: who reads it need not run a line of its file
            near = self.importers.get(mutant.file, set())
            found |= {test for test in self.seconds if test.partition("::")[0] in near}
        if mutant.file.startswith(PLUGINS):
            found |= {test for test in self.seconds if test.startswith(f"{DECLARED}::")}
        return sorted(found & self.seconds.keys(), key=lambda test: (self.seconds[test], test))


def imported_by(root: Path, test_files: Iterable[str]) -> dict[str, set[str]]:
    """Return, of every file of the checkout that test files import by its name, which of them do.

    Example: ``imported_by(root, ["benchsuite/tests/gate/test_gate.py"])["benchsuite/gate/rules.py"]``
    """
    found: dict[str, set[str]] = {}
    for test in test_files:
        for node in ast.walk(ast.parse((root / test).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name, source in product(names, ROOTS):
                file = Path(source, *name.split(".")).with_suffix(".py")
                if (root / file).is_file():
                    found.setdefault(str(file), set()).add(test)
    return found


class Traced:
    """A plugin of pytest that traces each test, for one test file. ``said`` is what ``Reach.add`` takes."""

    def __init__(self, folder: Path) -> None:
        import coverage

        self._folder = folder
        where = [str(folder / pattern) for pattern in TRACED]
        away = [str(folder / name / "*") for name in AWAY]
        self._coverage = coverage.Coverage(data_file=None, include=where, omit=away, config_file=False)
        self._coverage.start()
        self._seconds: dict[str, float] = {}
        self._bad: set[str] = set()
        self._ran: set[str] = set()
        self._from = self._since = 0.0
        self._forking: set[str] = set()
        self._forked: dict[str, dict[int, set[str]]] = {}
        self._written = tempfile.TemporaryDirectory()
        os.environ[TRACED_INTO] = self._written.name
        self.said: dict[str, Any] = {"tests": [], "seconds": {}, "failed": [], "lines": {}}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests whose work is done where it is not traced."""
        items[:] = [item for item in items if APART.isdisjoint(getattr(item, "fixturenames", ()))]
        self._forking = {item.nodeid for item in items if FORKING & {*getattr(item, "fixturenames", ())}}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Lines belong to this test from here on."""
        self._coverage.switch_context(nodeid)
        self._from, self._since = sum(os.times()[:4]), time.monotonic()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note whether it passed."""
        if report.when == "call" and report.passed:
            self._ran.add(report.nodeid)
        if report.failed:
            self._bad.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Lines belong to no test from here on."""
        spent = time.monotonic() - self._since if nodeid in self._forking else sum(os.times()[:4]) - self._from
        self._seconds[nodeid] = round(spent, 3)
        for file in Path(self._written.name).glob("*.json"):
            for source, lines in json.loads(file.read_text()).items():
                for line in lines:
                    self._forked.setdefault(source, {}).setdefault(line, set()).add(nodeid)
            file.unlink()
        self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        """Stop tracing. No property: pluggy of pytest 8.3 reads every attribute when a plugin is registered."""
        self._coverage.stop()
        self.said = self._found()
        self._written.cleanup()

    def _is_traced(self, file: Path) -> bool:
        return not any(file.is_relative_to(self._folder / away) for away in AWAY)

    def _found(self) -> dict[str, Any]:
        data = self._coverage.get_data()
        tests = sorted(self._seconds)
        index = {test: number for number, test in enumerate(tests)}
        lines: dict[str, dict[int, list[int]]] = {}
        inside = [Path(file) for file in {*data.measured_files(), *self._forked}]
        for file in [file for file in inside if file.is_relative_to(self._folder) and self._is_traced(file)]:
            by_line = {line: {*by} for line, by in data.contexts_by_lineno(str(file)).items()}
            for line, by in self._forked.get(str(file), {}).items():
                by_line.setdefault(line, set()).update(by)
            found = {line: sorted(index[test] for test in by if test in index) for line, by in by_line.items()}
            lines[str(file.relative_to(self._folder))] = {line: by for line, by in found.items() if by}
        passed = self._ran - self._bad
        seconds = {index[test]: self._seconds[test] for test in sorted(passed)}
        return {"tests": tests, "seconds": seconds, "failed": sorted(index[test] for test in self._bad), "lines": lines}


def traced(
    copy: Copied, test_files: Iterable[str], kept: Path, marks: str, until: float = float("inf")
) -> Iterator[tuple[str, Reach]]:
    """Yield each test file's name and the reach so far; a file that ``kept`` has in this state is not run again.

    ``kept`` is a folder of these sources (``copied.sources``): it need not change with the tests.

    ``marks`` is pytest's expression of the marks of tests to run. After the time ``until`` (``time.monotonic``) none is
    run, and those that are known are still read. Raises ValueError if a file cannot be collected at all.
    """
    reach = Reach()
    folder = kept / marks.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for name in test_files:
        file = folder / f"{Path(name).stem}-{sources_digest(copy.folder, [name])}.json"
        if not file.exists():
            left = until - time.monotonic()
            if left <= 0:
                continue
            limits = ForkLimits(min(left, LONGEST_FILE), min(left, LONGEST_FILE))
            ended = run_pytest(copy, [name, "-m", marks], lambda: Traced(copy.folder), limits)
            said = ended.said
            if ended.code is None:
                print(f"{name} was ended after {ended.seconds:.0f} s: none of its tests judges", flush=True)
                if left < LONGEST_FILE:
                    continue
                said = NOTHING
            elif ended.code not in (0, 1, 5) or not said:
                raise ValueError(f"{name} cannot be run in the copy of the checkout:\n{ended.output[-3000:]}")
            write_file(file, json.dumps(said).encode())
        reach.add(json.loads(file.read_text()))
        yield name, reach


def likely(test_files: Sequence[str], changed: Sequence[str], root: Path) -> list[str]:
    """Return test files in the order in which they are likely to reach changed files: those that name them first.

    A test file that was changed itself comes first of all, then those that import a changed module, then those whose
    name says the room or the module.
    """
    modules = [str(Path(name).with_suffix("")).replace("/", ".") for name in changed]
    modules = [module.removeprefix("kernels.").removeprefix("plugins.") for module in modules]

    def rank(name: str) -> tuple[int, int, str]:
        text = (root / name).read_text(encoding="utf-8")
        named = any(module in text or module.rpartition(".")[2] in name for module in modules)
        room = any(module.split(".")[-2:][0] in Path(name).stem for module in modules)
        return (0 if name in changed else 1 if named else 2 if room else 3, len(text), name)

    return sorted(test_files, key=rank)
