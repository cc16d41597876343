"""``python -m benchsuite.workshop.mutation``: mutants of our code against the tests that reach them (docs/proof.md)."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchsuite.workshop.mutation import copied, reach, runner
from benchsuite.workshop.mutation.changes import changed_lines, touches
from benchsuite.workshop.mutation.equivalent import StaleEntry, excused, read_equivalents
from benchsuite.workshop.mutation.forks import import_foreign
from benchsuite.workshop.mutation.groups import grouped
from benchsuite.workshop.mutation.mutants import Mutation
from benchsuite.workshop.mutation.workers import first_taken, in_processes
from specdec.cache import cache_root

ROOT = Path(__file__).parents[3]
QUICK, ALL = "not slow and not museum", "not museum"
OF_TEXT = ("test_house.py", "test_mutation.py", "test_museum_edits.py")
"""Tests of how the code is written. Like the museum, which changes lines by their text, they would see any mutant."""

SHARE = 0.45
"""The part of a budget in which tests are traced; the rest is for mutants."""


def options() -> argparse.ArgumentParser:
    """Return the command's options."""
    parser = argparse.ArgumentParser(prog="python -m benchsuite.workshop.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=400, help="how many to draw, of each group as many (400)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw; the same seed draws the same, and more (0)")
    parser.add_argument("--modules", default="", help="groups or files, with commas: engine, specdec/stops.py, gate")
    parser.add_argument("--changed", metavar="BASE", help="only mutants of lines that differ from this revision")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="end after so long; the same command goes on")
    parser.add_argument("--most", type=float, default=runner.MOST, help="recorded seconds of tests for one mutant (60)")
    parser.add_argument("--tests", default="test_*.py", help="files that judge, with commas (all)")
    parser.add_argument("--slow", action="store_true", help="the tests marked slow judge too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (one a core)")
    parser.add_argument("--fail-under", type=float, metavar="PERCENT", help="exit with 1 below this share of kills")
    parser.add_argument("--report", type=Path, default=Path("results/mutation"), help="folder for the report")
    parser.add_argument("--list", action="store_true", help="count the mutants of every group, and run none")
    return parser


def all_mutants(root: Path, files: Sequence[str]) -> list[Mutation]:
    """Return every mutant of these files. Raises ImportError, with what to install, without mutmut."""
    try:
        from benchsuite.workshop.mutation.native_mutants import native_mutants
        from benchsuite.workshop.mutation.python_mutants import python_mutants
    except ImportError as error:
        raise ImportError(f"{error}: mutants need the extra: pip install -e '.[mutate]'") from error
    made: list[Mutation] = []
    for file in files:
        source = (root / file).read_bytes()
        made += (python_mutants if file.endswith(".py") else native_mutants)(file, source)
    return made


def mutation_main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Draw, run, print and write. Returns the exit code: 1 below ``--fail-under``, 2 for what cannot be done."""
    parser = options()
    given = parser.parse_args(arguments)
    try:
        return _run(given, root)
    except (ValueError, ImportError) as error:
        kind = "stale: " if isinstance(error, StaleEntry) else ""
        print(f"python -m benchsuite.workshop.mutation: {kind}{error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace, root: Path) -> int:
    start = time.monotonic()
    until = start + given.budget if given.budget else float("inf")
    files = copied.checkout_files(root)
    groups = grouped(files, [name for name in given.modules.split(",") if name])
    wanted = [file for names in groups.values() for file in names]
    lines = changed_lines(root, given.changed) if given.changed else None
    if lines is not None:
        groups = {group: [name for name in names if name in lines] for group, names in groups.items()}
        groups = {group: names for group, names in groups.items() if names}
        wanted = [file for names in groups.values() for file in names]
    mutants = {group: all_mutants(root, names) for group, names in groups.items()}
    reasons = excused([each for some in mutants.values() for each in some], read_equivalents(), wanted)
    if lines is not None:
        mutants = {g: [each for each in some if touches(each, lines, root)] for g, some in mutants.items()}
    population = {group: len(some) for group, some in mutants.items()}
    if given.list or not sum(population.values()):
        for group, size in population.items():
            print(f"{group:12} {size:6} mutants in {len(groups[group])} files")
        print(f"{sum(population.values())} mutants")
        return 0
    sample = runner.group_by_group(runner.drawn_mutants(mutants, given.mutants, given.seed))
    if given.budget:  # what must be compiled takes most of it
        sample.sort(key=lambda pair: pair[1].file.endswith(runner.COMPILED))
    known = copied.sources_digest(root, files)
    kept = cache_root() / "mutation" / known
    kept.mkdir(parents=True, exist_ok=True)
    traces = cache_root() / "mutation" / f"reach-{copied.sources_digest(root, copied.sources(files))}"
    import_foreign()
    with tempfile.TemporaryDirectory() as folder:
        work = Errand(given, root, files, Path(folder))
        found = _reach(work, wanted, traces, start)
        tried = _tried(work, found, kept, sample, reasons, until)
    return _report(given, root, tried, population, len(sample), known)


@dataclass(frozen=True)
class Errand:
    """What was asked for, of which checkout with which files, and a folder for copies of it."""

    given: argparse.Namespace
    root: Path
    files: list[str]
    folder: Path

    def copy(self, name: str) -> copied.Copied:
        """Return a new copy of the checkout."""
        return copied.Copied(self.root, self.files, self.folder / name)


def _reach(work: Errand, wanted: Sequence[str], traces: Path, start: float) -> reach.Reach:
    """Which tests reach what, of all test files or, within a budget, of those that fit in."""
    given, copy = work.given, work.copy("traced")
    tests = [name for name in work.files if any(map(Path(name).match, given.tests.split(",")))]
    tests = [name for name in tests if Path(name).name not in OF_TEXT]
    end = float("inf")
    if given.budget:
        tests, end = reach.likely(tests, wanted, work.root), start + SHARE * given.budget
    marks = ALL if given.slow else QUICK

    def trace(worker: int) -> None:
        for name, _ in reach.traced(copy, first_taken(tests, work.folder / "taken-tests"), traces, marks, end):
            print(f"traced {name}, one of {len(tests)} files", flush=True)

    in_processes(given.jobs, trace)
    known = [so_far for _, so_far in reach.traced(copy, tests, traces, marks, 0.0)]  # and runs none
    found = known[-1] if known else reach.Reach()
    found.importers = reach.imported_by(copy.folder, tests)
    if found.failed:
        print(f"{len(found.failed)} tests fail in a copy of the checkout and judge nothing: {', '.join(found.failed)}")
    return found


def _tried(
    work: Errand,
    found: reach.Reach,
    kept: Path,
    sample: Sequence[tuple[str, Mutation]],
    reasons: dict[str, str],
    until: float,
) -> list[runner.Tried]:
    from benchsuite.workshop.mutation.rates import one_line

    given = work.given
    # Other judges may say otherwise: their results are kept apart.
    judges = [given.tests, given.slow, given.most, bool(given.budget)]
    name = hashlib.sha256(json.dumps(judges).encode()).hexdigest()[:8]
    file = kept / f"results-{given.seed}-{name}.jsonl"
    before = runner.MutationResults(file)

    def runner_of(copy: copied.Copied) -> runner.MutantRunner:
        return runner.MutantRunner(copy, found, kept, given.most, until)

    def trial(worker: int) -> None:
        pairs = first_taken(sample, work.folder / "taken-mutants")
        for each in runner.tried_out(runner_of(work.copy(f"changed-{worker}")), pairs, reasons, before):
            print(one_line(each), flush=True)

    in_processes(given.jobs, trial)
    # All that could be tried is in the file now, but for mutants that no test reaches.
    return list(runner.tried_out(runner_of(work.copy("read")), sample, reasons, runner.MutationResults(file)))


def _report(
    given: argparse.Namespace, root: Path, tried: list[runner.Tried], population: dict[str, int], size: int, known: str
) -> int:
    from benchsuite.report.document import Section
    from benchsuite.report.renderers import section_lines
    from benchsuite.workshop.mutation.rates import kills, mutation_report, rates_table, survivors

    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    command = " ".join(["python -m benchsuite.workshop.mutation", *sys.argv[1:]])
    origin = f"`{command}`, commit {done.stdout.strip() or 'unknown'}, sources {known}, seed {given.seed}"
    given.report.mkdir(parents=True, exist_ok=True)
    (given.report / "report.md").write_text(mutation_report(tried, population, origin, root), encoding="utf-8")
    content = {"origin": origin, "population": population, "tried": [asdict(each) for each in tried]}
    (given.report / "report.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    for each in survivors(tried):
        print(f"\n{each.verdict}: {each.mutant.diff((root / each.mutant.file).read_bytes())}", end="")
    tables = [rates_table(tried, population, rooms=True), rates_table(tried, population)]
    print("\n".join(["", *section_lines(Section(parts=tables)), ""]))
    if len(tried) < size:
        print(f"{size - len(tried)} of {size} drawn mutants were left for lack of time; the same command goes on")
    print(f"report: {given.report / 'report.md'}")
    killed, of = kills(tried)
    if given.fail_under is not None and of and 100 * killed / of < given.fail_under:
        print(f"{100 * killed / of:.1f} % killed, expected at least {given.fail_under:g} %")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(mutation_main())
