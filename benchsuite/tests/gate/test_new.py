"""Rows that the base lacks: new, compared with nothing, and beside them everything else compared as ever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from benchsuite.gate import launcher
from benchsuite.gate.launcher import Launcher, reason_in
from benchsuite.gate.record import GateError, Record
from benchsuite.tests.gate_rig import FAILED, GATED, OK, Done, Suite, refused, save_baselines

LIVE = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+3")


def _add(theirs: Suite, name: str) -> None:
    """Write a test file that the last commit lacks, with a benchmark of the same name as the suite's."""
    file = theirs.folder / name
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").touch()
    file.write_text((theirs.folder / "test_theirs.py").read_text())


@pytest.mark.slow
def test_beside_a_new_file_all_other_rows_are_compared(theirs: Suite) -> None:
    _add(theirs, "more/test_new.py")
    refused(
        theirs.run(*LIVE, "test_theirs.py", "more/test_new.py"),
        FAILED,
        "ERROR at level 0, more/test_new.py::test_work: the baseline has no such row",
        "test_theirs.py::test_work 2 seconds PASS",
        "the base lacks more/test_new.py",
        "1 failed",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ("more/test_new.py",),
        ("test_theirs.py::test_added",),
        ("--pyargs", "more.test_new"),
        ("--pyargs", "more.test_new", "test_theirs.py::test_added[1]"),
        ("-k", "test_added"),
    ],
    ids=lambda names: names[-1],
)
def test_a_run_of_new_rows_alone_says_that_every_row_is_new(theirs: Suite, names: Sequence[str]) -> None:
    _add(theirs, "more/test_new.py")
    file = theirs.folder / "test_theirs.py"
    added = "@pytest.mark.parametrize('n', [1])\ndef test_added(benchmark, n): benchmark.pedantic(work, rounds=5)\n"
    file.write_text(file.read_text() + added)
    done = theirs.run(*LIVE, *names)
    refused(done, FAILED, "the baseline has no such row", "every row is new")
    assert "a launch of the base" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "names", "message"),
    [
        ("more/test_new.py", ("more/test_new.py::test_work",), "found no collectors for"),
        ("more/__init__.py", ("--pyargs", "more.test_new"), "module or package not found: more.test_new"),
    ],
)
def test_what_the_base_has_and_cannot_import_is_not_new(
    theirs: Suite, broken: str, names: Sequence[str], message: str
) -> None:
    _add(theirs, "more/test_new.py")
    whole = (theirs.folder / broken).read_text()
    (theirs.folder / broken).write_text("import no_such_module\n" + whole)
    theirs.commit()
    (theirs.folder / broken).write_text(whole)
    refused(theirs.run(*LIVE, *names, "--gate-on-missing=new"), FAILED, "a launch of the base was refused", message)


@pytest.mark.slow
def test_new_rows_pass_on_request_and_are_named_but_alone_they_are_no_pass(theirs: Suite) -> None:
    """A run of which nothing was compared was "PASS: nothing got worse"."""
    _add(theirs, "more/test_new.py")
    new = "1 row is new, and compared with nothing: more/test_new.py::test_work"
    alone = theirs.run(*LIVE, "more/test_new.py", "--gate-on-missing=new")
    refused(alone, FAILED, "every row is new", new, "nothing was judged, which is no pass")
    beside = theirs.run(*LIVE, "test_theirs.py", "more/test_new.py", "--gate-on-missing=new")
    refused(beside, OK, "of what was gated; not gated (new): more/test_new.py::test_work")


@pytest.mark.slow
def test_new_rows_pass_on_request_without_letting_vanished_ones_through(theirs: Suite) -> None:
    def write(*names: str) -> None:
        end, timed = "\n    benchmark.pedantic(work, rounds=5)\n", "@pytest.mark.benchmark(timer=clock)\n"
        more = "".join(f"{end}{timed}def test_{name}(benchmark):\n    pass" for name in names)
        theirs.write(body=f"pass{more}")

    write("old")
    save_baselines(theirs, 5)
    before = (theirs.folder / "gate.json").read_text()
    told = "1 row is new, and compared with nothing: test_theirs.py::test_new"
    gone = "1 row of the baseline is gone: test_theirs.py::test_old"
    write("new")
    refused(theirs.run(*GATED), FAILED, "let new rows pass with --gate-on-missing=new", gone)
    for update in ((), ("--gate-update",)):
        done = theirs.run(*GATED, "--gate-on-missing=new", *update)
        refused(done, FAILED, told, gone, "test_theirs.py::test_work 3 seconds PASS", "1 failed")
        assert (theirs.folder / "gate.json").read_text() == before
    write("old", "new")
    refused(theirs.run(*GATED, "--gate-on-missing=new"), OK, told, "test_theirs.py::test_old 3 seconds PASS")


@pytest.fixture
def launch_commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of launches, each of which finds nothing of ``new``, and otherwise writes a record without rows."""
    made: list[list[str]] = []

    def run_group(command: list[str], folder: Path, variables: object, seconds: float) -> Done:
        made.append(command)
        for option, name in pairwise(command):
            if option == "-k":
                continue
            path, _, test = name.partition("::")
            if "new" in path:
                return Done(command, 4, "", f"ERROR: file or directory not found: {name}\n")
            if "new" in test:
                told = f"{folder / path}::{test.partition('[')[0]}"
                return Done(command, 4, "", f"ERROR: not found: {told}\n(no match in any of [<Dir base>])\n")
        [file] = [word.partition("=")[2] for word in command if word.startswith("--gate-save=")]
        Record({}, {}).save(Path(file))
        return Done(command, 0, "", "")

    monkeypatch.setattr(launcher, "run_group", run_group)
    return made


def _launcher(folder: Path, *arguments: str, names: Sequence[str]) -> Launcher:
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / "base").mkdir()
    return Launcher(arguments, folder, 1, names=names)


def test_what_the_base_lacks_is_tried_once_and_left_out_afterwards(
    launch_commands: list[list[str]], tmp_path: Path
) -> None:
    names = ["test_a.py", "test_new.py", "test_a.py::test_new[1-x]"]
    made = _launcher(tmp_path, "-k", "test_new.py", *names, names=names)
    for _ in range(3):
        made.measure(tmp_path / "base")
    assert made.lacking == names[1:]
    assert len(launch_commands) == 2 + 3
    for command in launch_commands[2:]:
        assert command[3:6] == ["-k", "test_new.py", "test_a.py"], "an option's value was left out, not the file"
        assert command[6] == "-q"


@pytest.mark.parametrize(
    ("name", "said", "lacks"),
    [
        ("new.py", "file or directory not found: new.py", True),
        ("new.py", "file or directory not found: other.py", False),
        ("new.py", "found no collectors for new.py", False),
        # Of a test in a file that is there, pytest tells no parametrisation, whose name may hold brackets.
        ("sub/a.py::test_x", "not found: {base}/sub/a.py::test_x", True),
        ("sub/a.py::test_x[x[1]]", "not found: {base}/sub/a.py::test_x", True),
        ("sub/a.py::test_x[x[1]]", "not found: {base}/sub/a.py::test_x[x[1]]", True),
        ("sub/a.py::test_x[x[1]]", "not found: {base}/sub/a.py::test_x[x", False),
        ("sub/a.py::test_x[x[1]]", "not found: {base}/sub/a.py::test_y", False),
        ("sub/a.py::test_x", "not found: {base}/other/a.py::test_x", False),
        ("sub.mod::test_x", "not found: {base}/sub/mod.py::test_x", True),
        ("sub.bare::test_x", "not found: {base}/sub/bare/__init__.py::test_x", True),
        ("sub.gone", "module or package not found: sub.gone (missing __init__.py?)", True),
        ("sub.bare", "module or package not found: sub.bare (missing __init__.py?)", True),
        # A module whose package fails to import is there.
        ("sub.mod", "module or package not found: sub.mod (missing __init__.py?)", False),
        ("sub.pack", "module or package not found: sub.pack", False),
        ("sub.mod::test_x[a.b]", "module or package not found: sub.mod::test_x[a.b]", False),
    ],
)
def test_pytests_words_for_what_is_not_there_mean_the_one_name_that_was_asked_for(
    name: str, said: str, lacks: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_group(command: list[str], folder: Path, variables: object, seconds: float) -> Done:
        if name in command:
            return Done(command, 4, "", f"E  ERROR: x not found: {name}\nERROR: {said.format(base=folder)}\n" * 2)
        [file] = [word.partition("=")[2] for word in command if word.startswith("--gate-save=")]
        Record({}, {}).save(Path(file))
        return Done(command, 0, "", "")

    monkeypatch.setattr(launcher, "run_group", run_group)
    made = _launcher(tmp_path, "kept.py", name, names=["kept.py", name])
    for file in ("sub/mod.py", "sub/pack/__init__.py", "sub/bare/three.txt"):
        (tmp_path / "base" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "base" / file).touch()
    if lacks:
        made.measure(tmp_path / "base")
        assert made.lacking == [name]
    else:
        with pytest.raises(GateError, match="a launch of the base was refused: "):
            made.measure(tmp_path / "base")


def test_without_anything_left_the_base_is_not_launched(launch_commands: list[list[str]], tmp_path: Path) -> None:
    made = _launcher(tmp_path, "test_new.py", names=["test_new.py"])
    records = [made.measure(tmp_path / "base") for _ in range(3)]
    assert [record.rows for record in records] == [{}] * 3
    assert records[0].made["versions"]["pytest"]
    assert records[0].joined(records[1:]).rows == {}
    assert len(launch_commands) == 1


def test_what_this_checkout_lacks_fails_its_launch(launch_commands: list[list[str]], tmp_path: Path) -> None:
    made = _launcher(tmp_path, "test_new.py", names=["test_new.py"])
    with pytest.raises(GateError, match="a launch of this checkout was refused: "):
        made.measure()


def test_a_name_that_cannot_be_told_from_another_fails_the_launch(
    launch_commands: list[list[str]], tmp_path: Path
) -> None:
    names = ["test_a.py::test_new[1]", "test_a.py::test_new[2]"]
    with pytest.raises(GateError, match="not found: .*test_a.py::test_new"):
        _launcher(tmp_path, *names, names=names).measure(tmp_path / "base")


@pytest.mark.parametrize("launched", [True, False])
def test_a_launchs_own_folders_come_first_again_whatever_pytest_put_before_them(
    launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/base/src", "/layer"]))
    monkeypatch.setenv(launcher.OWN, "/base/src" if launched else "")
    monkeypatch.setattr(sys, "path", ["/site-packages", "/layer", "/base/src", "/stdlib"])
    launcher.own_folders_first()
    first = ["/base/src", "/layer", "/site-packages", "/stdlib"]
    assert sys.path == (first if launched else ["/site-packages", "/layer", "/base/src", "/stdlib"])


PRINTED = """
collected 2 items
E   ModuleNotFoundError: No module named 'no_such_module'
E   another line of it
FAILED test_a.py::test_work - RuntimeError: no
ERROR test_b.py
2 failed in 0.1s
ERROR: not found: test_b.py
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (PRINTED, "not found: test_b.py; ModuleNotFoundError: No module named 'no_such_module'"),
        (PRINTED.replace("ERROR: ", "nothing "), "ModuleNotFoundError: No module named 'no_such_module'"),
        (PRINTED.replace("E  ", "nothing"), "not found: test_b.py"),
        ("ERROR: a reason\n  that goes\n  on\n\n  other\n", "a reason that goes on"),
        (PRINTED.replace("E  ", "").replace("ERROR: ", ""), "test_a.py::test_work - RuntimeError: no"),
        ("E   \nE   ValueError: x\n", "ValueError: x"),
        ("Segmentation fault\n\n", "Segmentation fault"),
        ("", "no output"),
    ],
)
def test_the_reason_of_a_launch_that_failed_is_its_refusal_and_its_first_exception(output: str, reason: str) -> None:
    assert reason_in(output) == reason


@pytest.mark.parametrize(("code", "writes"), [(0, False), (1, True), (1, False)])
def test_a_launch_that_fails_or_leaves_no_record_is_an_error_of_one_line(
    code: int, writes: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_group(command: list[str], folder: Path, variables: object, seconds: float) -> Done:
        [file] = [word.partition("=")[2] for word in command if word.startswith("--gate-save=")]
        if writes:
            Record({}, {}).save(Path(file))
        return Done(command, code, PRINTED, "")

    monkeypatch.setattr(launcher, "run_group", run_group)
    made = _launcher(tmp_path, names=[])
    for checkout, which in ((None, "this checkout"), (tmp_path / "base", "the base")):
        with pytest.raises(GateError) as failed:
            made.measure(checkout)
        assert str(failed.value).startswith(f"a launch of {which} ended with {code}: {reason_in(PRINTED)}; to see all")
        assert "\n" not in str(failed.value)
