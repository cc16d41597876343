"""Mutants: which are made, which are drawn, who judges them, and what is said of those that nobody kills."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchsuite.workshop.mutation import __main__ as command
from benchsuite.workshop.mutation import forks, runner
from benchsuite.workshop.mutation.changes import changed_lines
from benchsuite.workshop.mutation.copied import Copied, checkout_files, sources_digest
from benchsuite.workshop.mutation.equivalent import LIST, Equivalent, StaleEntry, excused, read_equivalents
from benchsuite.workshop.mutation.groups import GROUPS, ROOMS, group_of, grouped
from benchsuite.workshop.mutation.mutants import Mutation
from benchsuite.workshop.mutation.native_mutants import native_mutants
from benchsuite.workshop.mutation.python_mutants import python_mutants
from benchsuite.workshop.mutation.rates import kill_rate, rates_table
from benchsuite.workshop.mutation.reach import Reach, imported_by, likely, traced
from benchsuite.workshop.mutation.runner import (
    EXCUSED,
    KILLED,
    MISSED,
    SURVIVED,
    MutantRunner,
    MutationResults,
    Tried,
    drawn_mutants,
    group_by_group,
)
from benchsuite.workshop.mutation.workers import first_taken, in_processes

ROOT = Path(__file__).parents[3]

TOY = """\
def clipped(x, top):
    return top if x > top else x


def doubled(x):
    return 2 * x


def unused(x):
    return x + 1
"""

WEAK = """\
from specdec.toy import clipped, doubled

SEEN = []


def test_clipped():
    assert clipped(1, 3) == 1


def test_doubled():
    assert doubled(0) == 0
    SEEN.append(1)


def test_that_needs_the_one_before():
    assert SEEN
    assert doubled(0) == 0
"""

EXPECTED = {
    ("clipped", "return top if x >= top else x"): SURVIVED,
    ("clipped", "return top if (x > top) and False else x"): SURVIVED,
    ("clipped", "return top if (x > top) or True else x"): KILLED,
    ("doubled", "return 3 * x"): SURVIVED,
    ("doubled", "return 2 / x"): KILLED,
    ("unused", "return x - 1"): MISSED,
    ("unused", "return x + 2"): MISSED,
}
"""What becomes of every mutant of the toy."""


def _shown(mutants: list[Mutation]) -> set[tuple[str, str]]:
    """Mutants as pairs of function and changed line."""
    return {(mutant.function, mutant.after) for mutant in mutants}


def _toys(count: int, name: str = "a.py") -> list[Mutation]:
    """So many different mutants."""
    return [Mutation(name, "f", "number", i, i + 1, "1", (1, 1), f"{i}", "1") for i in range(count)]


def _git(folder: Path, *arguments: str) -> None:
    """Run git as somebody."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a package with one module and weak tests, committed; this process is the one that forks."""
    root = tmp_path / "checkout"
    texts = {
        "specdec/__init__.py": "",
        "specdec/toy.py": TOY,
        "benchsuite/tests/test_toy.py": WEAK,
        ".gitignore": "results\n",
        "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["slow", "museum"]\npythonpath = ["."]\n',
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    _git(root, "init", "-q")
    _git(root, "add", "-A")
    _git(root, "commit", "-qm", "toy")
    monkeypatch.setattr(forks, "ARGUMENTS", ("-q", "-p", "no:cacheprovider"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # its tests need none, and loading takes a second
    monkeypatch.setattr(command, "import_foreign", lambda: None)
    monkeypatch.setattr(command, "read_equivalents", list)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(root)
    return root


def _kept_results(root: Path) -> list[str]:
    """The lines of the only file of results."""
    [file] = (root.parent / "cache" / "mutation").glob("*/results-*.jsonl")
    return file.read_text().splitlines()


@pytest.mark.slow
def test_the_survivors_of_weak_tests_are_known_and_nothing_runs_twice(
    toy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sources_digest(toy, checkout_files(toy))
    assert command.mutation_main(["--mutants", "20"], toy) == 0
    assert sources_digest(toy, checkout_files(toy)) == before
    said = capsys.readouterr().out
    first = _kept_results(toy)
    ended = MutationResults(next((toy.parent / "cache" / "mutation").glob("*/results-*.jsonl")))
    made = python_mutants("specdec/toy.py", TOY.encode())
    tried = {(m.function, m.after): ended.of("", m) for m in made}
    assert {name: MISSED if found is None else found.verdict for name, found in tried.items()} == EXPECTED
    assert said.count("not reached: --- specdec/toy.py") == 2
    assert "+    return 3 * x" in said
    assert "29 % (4 to 71)" in said  # 2 of 7

    def never(*arguments: object) -> None:
        raise AssertionError("a known mutant was run again")

    monkeypatch.setattr(runner, "run_pytest", never)
    assert command.mutation_main(["--mutants", "20", "--fail-under", "29"], toy) == 1
    assert command.mutation_main(["--mutants", "20", "--fail-under", "28"], toy) == 0
    assert _kept_results(toy) == first


@pytest.mark.slow
def test_a_test_that_fails_alone_without_a_mutant_judges_nothing(toy: Path, tmp_path: Path) -> None:
    copy = Copied(toy, checkout_files(toy), tmp_path / "copy")
    test = "benchsuite/tests/test_toy.py::test_that_needs_the_one_before"
    reach = Reach(seconds={test: 0.1}, lines={"specdec/toy.py": {6: [test]}})
    mutant = next(m for m in python_mutants("specdec/toy.py", TOY.encode()) if m.after == "return 3 * x")
    assert MutantRunner(copy, reach, tmp_path).try_out("engine", mutant).verdict == MISSED


def test_only_changed_lines_are_mutated_against_a_base(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / "specdec" / "toy.py").write_text(TOY.replace("x + 1", "x + 3"))
    assert changed_lines(toy, "HEAD") == {"specdec/toy.py": {10}}
    assert command.mutation_main(["--changed", "HEAD", "--list"], toy) == 0
    assert "2 mutants in 1 files" in capsys.readouterr().out
    assert command.mutation_main(["--changed", "nowhere"], toy) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_hangs_is_ended(toy: Path, tmp_path: Path) -> None:
    forever = "import threading\n\ndef test_for_ever():\n    threading.Event().wait()\n"
    (toy / "benchsuite" / "tests" / "test_toy.py").write_text(forever)
    copy, name = Copied(toy, checkout_files(toy), tmp_path / "copy"), "benchsuite/tests/test_toy.py"
    none = forks.run_pytest(copy, [name], lambda: runner.Chosen([]), forks.ForkLimits(60, 600))
    assert none.code == 5, "no test is chosen, so that none runs"
    for limits in (forks.ForkLimits(60, 1), forks.ForkLimits(60, 600, still=1)):
        hung = forks.run_pytest(copy, [name], lambda: runner.Chosen([f"{name}::test_for_ever"]), limits)
        assert hung.code is None


def test_a_file_is_as_it_was_after_its_mutant(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    copy = Copied(tmp_path, ["a.py"], tmp_path / "copy")
    changed = copy.folder / "a.py"
    times = [changed.stat().st_mtime]
    for text in (b"x = 2\n", b"x = 3\n"):
        with copy.changed("a.py", text):
            assert changed.read_bytes() == text
            times.append(changed.stat().st_mtime)
        times.append(changed.stat().st_mtime)
    assert changed.read_bytes() == b"x = 1\n"
    assert len(set(times)) == len(times), "bytecode of a text of the same length would be run again"


def test_python_is_changed_where_it_decides() -> None:
    source = """\
def f(a, b, c=2):
    if a < b:
        c.fill(0, dim=1)
    while c:
        c -= 1
    return not (a and b)
"""
    expected = {
        *("def f(a, b, c=3):", "if a <= b:", "if not (a < b):", "while not (c):", "c += 1", "c = 1", "c -= 2", "pass"),
        *("c.fill(1, dim=1)", "c.fill(0, dim=2)", "c.fill(0, )", "return (a and b)", "return not ((a or b))"),
    }
    assert _shown(python_mutants("a.py", source.encode())) == {("f", text) for text in expected}


def test_what_cannot_matter_is_left_alone() -> None:
    source = '''"""A page of 1 + 1."""
from typing import TYPE_CHECKING, Annotated, Literal

if TYPE_CHECKING:
    LIMIT = 1
Kind = Literal["a", "b"]


@wrapped(1)
def f(a: Annotated[int, "of 1"]) -> "int":
    """Return 1 + 1."""
    assert a > 1, "no"
    print("a", 1 + 1)
    if_none = None
    pairs = zip(a, a, strict=True)
    raise ValueError("a" + str(1))
    return f"{a + 1}", "a word or two"


class C:
    def __repr__(self):
        return "a" * 2


if __name__ == "__main__":
    main(1)
'''
    assert python_mutants("a.py", source.encode()) == []


def test_a_text_of_an_option_is_not_left_out() -> None:
    made = python_mutants("a.py", b"parser.add_argument('--number', type=int, help='how many')\n")
    assert [mutant.new for mutant in made if mutant.operator == "arg_removal"] == [
        "parser.add_argument('--number', help='how many')"
    ]


def test_a_zip_that_may_end_early_is_changed() -> None:
    made = python_mutants("a.py", b"pairs = zip(a, b, strict=False)\nnames = zip(a, b, key=True)\n")
    assert [mutant.after for mutant in made] == [
        "pairs = zip(a, b, strict=True)",  # without the argument it may end early as before
        "names = zip(a, b, )",
        "names = zip(a, b, key=False)",
    ]


def test_the_top_of_a_file_is_reached_by_all_that_reach_the_file() -> None:
    source = b"LIMIT = 1\n\n\ndef f(a=2):\n    b = (\n        a,\n        3,\n    )\n    return b\n"
    lines = {mutant.before: mutant.lines for mutant in python_mutants("a.py", source)}
    assert lines == {"LIMIT = 1": (1, 10), "def f(a=2):": (4, 9), "3,": (5, 8)}
    reach = Reach({"t": 1.0, "u": 0.5, "failed": 0.1}, {"a.py": {6: ["t"], 9: ["u"]}})
    tests = {mutant.before: reach.tests(mutant) for mutant in python_mutants("a.py", source)}
    assert tests == {"LIMIT = 1": ["u", "t"], "def f(a=2):": ["u", "t"], "3,": ["t"]}


def test_a_statement_that_was_not_seen_to_run_is_judged_by_the_tests_of_its_function() -> None:
    near, far = "benchsuite/tests/test_a.py::test_near", "benchsuite/tests/test_a.py::test_far"
    reach = Reach(seconds={near: 0.1, far: 0.1}, lines={"specdec/toy.py": {1: [far], 3: [near], 5: [far]}})
    source = b"import os\ndef toy(a):\n    one()\n    return a + 1\ndef other(a):\n    return a + 1\n"
    made = [m for m in python_mutants("specdec/toy.py", source) if m.after == "return a - 1"]
    assert [(m.lines, m.body, reach.tests(m)) for m in made] == [((4, 4), (2, 4), [near]), ((6, 6), (5, 6), [far])]


def test_what_a_plugin_declares_is_read_by_tests_that_run_none_of_its_lines() -> None:
    test = "benchsuite/tests/plugins/test_declared.py::test_flags"
    reach = Reach(seconds={test: 0.1, "benchsuite/tests/test_other.py::test_it": 0.1})
    for file, judges in (("plugins/specdec_plugins/drafts/toy.py", [test]), ("specdec/toy.py", [])):
        assert reach.tests(python_mutants(file, b"class Toy:\n    coupled = True\n")[0]) == judges


def test_a_constant_is_judged_by_the_tests_of_files_that_import_its_module(tmp_path: Path) -> None:
    """They read it without running a line of its file."""
    for name, text in {
        "specdec/toy.py": "LIMIT = 1",
        "plugins/toys/toy.py": "",
        "test_a.py": "from specdec.toy import LIMIT",
        "test_b.py": "from specdec import other, toy\nimport toys.toy as it",
        "test_c.py": "import specdec.tools\nimport json\nfrom . import toy",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    importers = imported_by(tmp_path, ["test_a.py", "test_b.py", "test_c.py"])
    assert importers == {"specdec/toy.py": {"test_a.py", "test_b.py"}, "plugins/toys/toy.py": {"test_b.py"}}
    reach = Reach({"test_a.py::t": 0.2, "test_b.py::u": 0.1, "test_c.py::v": 0.1, "w": 0.3}, importers=importers)
    reach.lines = {"specdec/toy.py": {3: ["w"]}}
    source = b"LIMIT = 1\ndef f(a):\n    return a + 1\n"
    tests = {mutant.before: reach.tests(mutant) for mutant in python_mutants("specdec/toy.py", source)}
    assert tests == {"LIMIT = 1": ["test_b.py::u", "test_a.py::t", "w"], "return a + 1": ["w"]}


def test_cpp_is_changed_by_the_table() -> None:
    source = """\
#include <vector>  // a < b
#if N < 1 && \\
    N > 2
#endif
template <int N> struct S {};
static_assert(N > 1 && N < 9);
long f(const std::vector<int>& v, int n) {
    /* n < 2 */
    for (long i = 0; i < n && v[i] != '<'; i++) total += scale * v[i] - 1;
    return std::max(n * width, 0);  // n + 1
}
"""
    line = "for (long i = 0; i < n && v[i] != '<'; i++) total += scale * v[i] - 1;"
    expected = {
        *(line.replace(old, new, 1) for old, new in (("= 0", "= 1"), ("i < n", "i <= n"), ("&&", "||"), ("!=", "=="))),
        *(line.replace(old, new, 1) for old, new in (("+= ", "-= "), ("] - 1", "] + 1"), ("- 1", "- 2"))),
        *("return std::min(n * width, 0); // n + 1", "return std::max(n, 0); // n + 1"),
    }
    assert _shown(native_mutants("a.cpp", source.encode())) == {("f", text) for text in expected}


@pytest.mark.slow
def test_every_group_has_files_and_every_file_one_group() -> None:
    files = checkout_files(ROOT) if (ROOT / ".git").exists() else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py")]
    assert grouped(files).keys() >= GROUPS.keys() - {"c++", "cuda"}
    assert group_of("specdec/engine.py") == "engine"
    assert group_of("specdec/devices.py") == "specdec"
    assert group_of("kernels/specdec_kernels/csrc/noise_cuda.h") == "cuda"
    shipped = ("specdec", "kernels/specdec_kernels", "plugins/specdec_plugins", "benchsuite")
    every = [path.relative_to(ROOT) for room in shipped for path in (ROOT / room).rglob("*.py")]
    ours = [file for file in every if not {"tests", "workshop"} & {*file.parts}]
    assert len(ours) > 200
    assert not [file for file in ours if group_of(str(file)) is None], "code that ships is drawn from"
    rooms = ("benchsuite/tests", "benchsuite/workshop", "plugins/example_repeat")
    inside = [str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py")]
    assert len(inside) > 300
    assert not [file for file in inside if group_of(file)], "what does not ship, also below a folder named as a group's"
    assert list(grouped(files, ["specdec/stops.py"]).values()) == [["specdec/stops.py"]]
    with pytest.raises(ValueError, match="got .'speculation'., expected files or groups of engine, specdec"):
        grouped(files, ["speculation"])


def test_draws_are_even_over_groups_and_larger_ones_hold_smaller_ones() -> None:
    mutants = {"engine": _toys(50), "ties": _toys(3, "b.py"), "gate": _toys(40, "c.py")}
    small, large = drawn_mutants(mutants, 9, seed=7), drawn_mutants(mutants, 31, seed=7)
    assert {group: len(some) for group, some in small.items()} == {"engine": 3, "ties": 3, "gate": 3}
    assert {group: len(some) for group, some in large.items()} == {"engine": 14, "ties": 3, "gate": 14}
    assert all(large[group][:3] == some for group, some in small.items())
    assert drawn_mutants(mutants, 31, seed=8)["engine"] != large["engine"]
    assert sum(map(len, drawn_mutants(mutants, 1000, seed=7).values())) == 93
    assert [group for group, _ in group_by_group(small)] == ["engine", "ties", "gate"] * 3


def test_an_equivalent_mutant_is_counted_apart_and_a_stale_one_is_refused() -> None:
    made = python_mutants("specdec/toy.py", TOY.encode())
    entry = Equivalent(
        "specdec/toy.py", "clipped", "return top if x > top else x", "return top if x >= top else x", "the same at top"
    )
    [(key, reason)] = excused(made, [entry], ["specdec/toy.py"]).items()
    [same] = [mutant.key for mutant in made if mutant.after == "return top if x >= top else x"]
    assert (key, reason) == (same, "the same at top")
    moved = python_mutants("specdec/toy.py", b"\n\n" + TOY.encode())
    assert excused(moved, [entry], ["specdec/toy.py"]), "lines may move"
    other = python_mutants("specdec/toy.py", TOY.replace("x > top", "x > top + 0").encode())
    with pytest.raises(
        StaleEntry, match="lists a mutant of specdec/toy.py, clipped, that is none any more: 'return top"
    ):
        excused(other, [entry], ["specdec/toy.py"])
    assert excused([], [entry], ["another.py"]) == {}
    table = rates_table([Tried("engine", made[0], EXCUSED), Tried("engine", made[2], KILLED)], {"engine": 2})
    assert [cell.text for cell in table.cells[0]][:5] == ["engine", "2", "2", "1", "1"]
    assert table.cells[0][-1].text == "100 % (2 to 100)", "one of one: the equivalent one is not among them"


def test_rooms_count_what_was_drawn_from_all_their_groups_and_every_group_has_one_room() -> None:
    assert sorted(group for groups in ROOMS.values() for group in groups) == sorted(GROUPS)
    made = _toys(6)
    tried = [Tried(group, made[n], KILLED) for n, group in enumerate(("engine", "engine", "specdec", "gate"))]
    table = rates_table(
        [*tried, Tried("specdec", made[4], SURVIVED)], {"engine": 7, "specdec": 5, "gate": 3}, rooms=True
    )
    assert [[cell.text for cell in row][:3] for row in table.cells] == [
        ["specdec", "12", "4"],
        ["gate", "3", "1"],
        ["all", "15", "5"],
    ]
    assert [row[-1].text.partition(" (")[0] for row in table.cells] == ["75 %", "100 %", "80 %"]


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    text = '[[mutant]]\nfile = "a.py"\nfunction = "f"\nbefore = "a"\nafter = "b"\nreason = ""\n'
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(StaleEntry, match="expected after, before, file, function, reason, none empty"):
        read_equivalents(tmp_path / "list.toml")


@pytest.mark.slow
def test_every_entry_of_our_list_is_of_lines_that_the_code_has() -> None:
    """That each fits a mutant takes half a minute: the command looks at it, and ``--specdec-deep``."""
    entries = read_equivalents(LIST)
    texts = {entry.file: " ".join((ROOT / entry.file).read_text(encoding="utf-8").split()) for entry in entries}
    assert [entry for entry in entries if " ".join(entry.before.split()) not in texts[entry.file]] == []
    listed = [(entry.file, entry.function, entry.before, entry.after) for entry in entries]
    assert len(set(listed)) == len(listed)


@pytest.mark.deep
def test_every_entry_of_our_list_fits_a_mutant_of_the_code_as_it_is() -> None:
    entries = read_equivalents(LIST)
    files = sorted({entry.file for entry in entries})
    assert len(excused(command.all_mutants(ROOT, files), entries, files)) >= len(entries)


def test_half_a_line_of_results_is_cut_off(tmp_path: Path) -> None:
    first, second = _toys(2)
    results = MutationResults(tmp_path / "results.jsonl")
    results.add(Tried("engine", first, KILLED, "a test", 3, 5, 1.5))
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"key": "half')
    again = MutationResults(tmp_path / "results.jsonl")
    again.add(Tried("engine", second, SURVIVED))
    whole = MutationResults(tmp_path / "results.jsonl")
    assert whole.of("engine", first) == Tried("engine", first, KILLED, "a test", 3, 5, 1.5)
    assert whole.of("engine", second) == Tried("engine", second, SURVIVED)


@pytest.mark.parametrize(
    ("killed", "of", "low", "high"),
    [
        (0, 10, 0.0, 0.3085),
        (9, 10, 0.5550, 0.9975),
        (10, 10, 0.6915, 1.0),
        (0, 1, 0.0, 0.975),
        (70, 100, 0.6002, 0.7876),
    ],
)
def test_a_rate_has_clopper_and_pearsons_interval(killed: int, of: int, low: float, high: float) -> None:
    assert kill_rate(killed, of) == pytest.approx((killed / of, low, high), abs=1e-4)


def test_a_rate_of_no_mutants_is_refused() -> None:
    with pytest.raises(ValueError, match="got no mutant"):
        kill_rate(0, 0)


def test_a_test_file_that_names_a_changed_module_is_traced_first(tmp_path: Path) -> None:
    texts = {"test_a.py": "x" * 9, "test_b.py": "from specdec.stops import StopWatcher", "test_c_stops.py": "y" * 50}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert likely(sorted(texts), ["specdec/stops.py"], tmp_path) == ["test_b.py", "test_c_stops.py", "test_a.py"]
    assert likely(sorted(texts), ["specdec/stops.py", "test_a.py"], tmp_path)[0] == "test_a.py"


def test_each_thing_is_taken_by_one_process_and_all_are_waited_for(tmp_path: Path) -> None:
    def work(worker: int) -> None:
        for thing in first_taken("abcdefgh", tmp_path / "taken"):
            with (tmp_path / "done").open("a") as done:
                done.write(thing)

    in_processes(3, work)
    assert sorted((tmp_path / "done").read_text()) == list("abcdefgh")


def test_a_process_that_fails_says_why_and_fails_the_whole(capfd: pytest.CaptureFixture[str]) -> None:
    def work(worker: int) -> None:
        if worker == 1:
            raise ValueError("planted")

    with pytest.raises(RuntimeError, match="1 of 3 processes failed"):
        in_processes(3, work)
    assert "ValueError: planted" in capfd.readouterr().err


@pytest.mark.slow
def test_what_is_known_of_tests_is_read_when_the_time_is_over(toy: Path, tmp_path: Path) -> None:
    """Also after a file of which nothing is known."""
    copy, known = Copied(toy, checkout_files(toy), tmp_path / "copy"), "benchsuite/tests/test_toy.py"
    other = "benchsuite/tests/test_other.py"
    (copy.folder / other).write_text("def test_other():\n    pass\n")
    assert [name for name, _ in traced(copy, [known], tmp_path / "kept", "not slow")] == [known]
    assert [name for name, _ in traced(copy, [other, known], tmp_path / "kept", "not slow", 0.0)] == [known]
