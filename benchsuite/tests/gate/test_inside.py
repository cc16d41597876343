"""The gate as users run it, in this process: verdicts, baselines, two checkouts, and what the plugin refuses."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from benchsuite.tests.gate_rig import FAILED, GATED, OK, USAGE, Done, Suite, refused

LIVE = ("--gate=fail", "--gate-launches=5+2", "--gate-against", "HEAD")
ROW = "test_theirs.py::test_work"


def after_heading(done: Done) -> list[str]:
    """The lines after the gate's heading, without pytest's own, and those of progress."""
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    after = lines[next(i for i, line in enumerate(lines) if line.strip("-") == " gate ") + 1 :]
    own = [line for line in after if not line.startswith(("=", "FAILED ")) and " in " not in line[-12:]]
    return [*(line for line in lines if line.startswith("gate: ")), *filter(None, own)]


def saved(theirs: Suite, launches: int = 5) -> None:
    """A baseline of so many launches, made by one."""
    done = theirs.run("--gate-save", "gate.json")
    file = theirs.folder / "gate.json"
    assert (done.returncode, after_heading(done)) == (
        OK,
        [
            "saved gate.json: 1 row, 1 launch",
            "1 row has times and no counters (pytest-benchmark's): this file gates them once it holds 5 launches; save "
            "it with --gate-launches 13, gate with --gate-dedicated",
        ],
    ), done.stdout
    content = json.loads(file.read_text())
    for row in content["rows"].values():
        row["launches"] *= launches
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


@pytest.mark.slow
def test_a_slowdown_fails_with_what_and_how_much_and_is_accepted_if_asked(theirs: Suite) -> None:
    saved(theirs)
    file = theirs.folder / "gate.json"
    theirs.write(seconds=1.06)
    found = theirs.run(*GATED, "--gate-json=v.json", "--gate-export=markdown=c.md")
    table = [
        "row                        level  of       verdict    change  bounds",
        "-------------------------  -----  -------  ---------  ------  --------------",
        "test_theirs.py::test_work  3      seconds  REGRESSED  +6.0%   +6.0% to +6.0%",
    ]
    sentence = (
        f"REGRESSED at level 3, {ROW}: +6.0% seconds a call (+6.0% to +6.0%, each bound at",
        "  0.01; 5 and 7 launches), beyond the tolerance of 3.0%",
    )
    assert found.returncode == FAILED
    assert (
        after_heading(found)[-7:]
        == [
            *table,
            *sentence,
            f"REGRESSED: 1 row at level 3 against {file}: something got worse; if it is meant, accept it with "
            "--gate-update",
            f"verdicts: {theirs.folder / 'v.json'}",
            f"markdown: {theirs.folder / 'c.md'}",
        ][-7:]
    )
    assert f"FAILED gate::{ROW}" in found.stdout
    assert "gate: launch 7 of 7" in found.stdout
    assert json.loads((theirs.folder / "v.json").read_text())["verdict"] == "REGRESSED"
    reported = theirs.run("--gate=report", *GATED[1:])
    assert reported.returncode == OK
    assert after_heading(reported)[-1].endswith("(--gate=report: nothing fails)")
    before = file.read_text()
    accepted = theirs.run(*GATED, "--gate-update")
    assert accepted.returncode == OK
    assert after_heading(accepted)[-2:] == [
        f"REGRESSED: 1 row at level 3 against {file}: accepted by --gate-update",
        f"the baseline is now this run: {file}",
    ]
    after = json.loads(file.read_text())
    assert before != file.read_text()
    assert len(after["rows"][ROW]["launches"]) >= 5
    assert after_heading(theirs.run(*GATED))[-1] == f"PASS: 1 row at level 3 against {file}: nothing got worse"


@pytest.mark.slow
def test_a_revision_is_measured_beside_the_working_tree_in_an_order_kept_with_its_seed(theirs: Suite) -> None:
    def order(*options: str) -> dict[str, Any]:
        refused(theirs.run(*LIVE, "--gate-json=v.json", *options), OK, "PASS", "nothing got worse")
        kept: dict[str, Any] = json.loads((theirs.folder / "v.json").read_text())["order"]
        return kept

    first = order()
    assert len(first["ran"]) == 10
    assert order(f"--gate-order-seed={first['seed']}") == first
    theirs.write(seconds=1.06)
    found = theirs.run(*LIVE, "--gate-json=v.json", f"--gate-order-seed={first['seed']}")
    refused(found, FAILED, "REGRESSED at level 2", "+6.0% seconds a call", "7 and 7 launches")
    ran = json.loads((theirs.folder / "v.json").read_text())["order"]["ran"]
    assert (ran[:10], len(ran)) == (first["ran"], 14)
    left = subprocess.run(["git", "worktree", "list"], cwd=theirs.folder, capture_output=True, text=True, check=True)
    assert len(left.stdout.splitlines()) == 1, "a worktree was left behind"


@pytest.mark.slow
def test_a_baseline_has_as_many_launches_as_are_asked_for(theirs: Suite) -> None:
    made = theirs.run("--gate-save=five.json", "--gate-launches=5")
    refused(made, OK, "gate: launch 5 of 5", "1 row, 5 launches")
    assert "no counters" not in made.stdout, "five launches are enough"
    [row] = json.loads((theirs.folder / "five.json").read_text())["rows"].values()
    assert len(row["launches"]) == 5


@pytest.mark.slow
def test_a_baseline_that_is_not_there_is_made_of_this_run_if_asked(theirs: Suite) -> None:
    theirs.write(noise=0.1)  # a second launch would take 0.9 seconds
    made = theirs.run("--gate=fail", "--gate-against=new.json", "--gate-on-missing=save")
    file = theirs.folder / "new.json"
    assert made.returncode == OK
    assert after_heading(made)[-2:] == [
        f"PASS: 1 row at level 0 against {file}: nothing was compared, the baseline is this run",
        f"made the baseline that was not there: {file}",
    ]
    assert after_heading(made)[2].split() == [ROW, "0", "PASS"]
    rows = json.loads(file.read_text())["rows"]
    assert list(rows) == [ROW]
    [launch] = rows[ROW]["launches"]
    assert launch["times"]["seconds"]["seconds"] == [1.1]


@pytest.mark.slow
def test_no_baseline_is_made_of_a_run_that_lacks_a_row(theirs: Suite) -> None:
    theirs.write(body="pass\n    benchmark.pedantic(work, rounds=5)\ndef test_other(benchmark):\n    assert 0")
    done = theirs.run("--gate=fail", "--gate-against=new.json", "--gate-on-missing=save")
    said = "ERROR at level 0, test_theirs.py::test_other: no baseline was made: its test failed"
    refused(done, FAILED, said, "it was not compared: see what is said of the others and of the suite")
    assert not (theirs.folder / "new.json").exists()


BROKEN = """
def pytest_runtest_teardown(item):
    benchmarks = item.config._benchmarksession.benchmarks
    if item.nodeid == "gate::suite":
        del benchmarks[1:]
    else:
        benchmarks.append("no benchmark")
"""
"""A conftest of which the gate finds something that it cannot read."""


@pytest.mark.slow
def test_a_gate_that_breaks_fails_every_item_and_shows_where_once(theirs: Suite) -> None:
    saved(theirs)
    (theirs.folder / "conftest.py").write_text(BROKEN)
    done = theirs.run(*GATED)
    refused(done, FAILED, "ERROR at level 0, suite: the gate broke; its first item shows where", "2 failed")
    assert len(re.findall("^E +AttributeError: ", done.stdout, re.MULTILINE)) == 1


WAYS = ((), ("--gate-inconclusive=report",), ("--gate-update",), ("--gate=report",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "verdict", "ends"),
    [
        ([0.9] * 5, "REGRESSED", (FAILED, FAILED, OK, OK)),
        pytest.param([1.0, 0.1, 9.0, 0.2, 8.0], "INCONCLUSIVE", (FAILED, OK, OK, OK), marks=pytest.mark.slow),
        pytest.param(None, "ERROR", (FAILED, FAILED, FAILED, OK), marks=pytest.mark.slow),  # a row of another name
        pytest.param([1.1] * 5, "IMPROVED", (OK, OK, OK, OK), marks=pytest.mark.slow),
    ],
)
def test_what_ends_a_run_follows_from_its_verdict_the_mode_and_what_is_let_through(
    theirs: Suite, base: list[float] | None, verdict: str, ends: tuple[int, ...]
) -> None:
    saved(theirs)
    file = theirs.folder / "gate.json"
    content = json.loads(file.read_text())
    [row] = content["rows"].values()
    if base is None:
        content["rows"] = {"another": row}
    else:
        row["launches"] = [
            {**row["launches"][0], "times": {"seconds": {"relative": None, "seconds": [s]}}} for s in base
        ]
    for way, end in zip(WAYS, ends, strict=True):
        file.write_text(json.dumps(content))
        refused(theirs.run(*GATED, *way), end, f"\n{verdict}: ".strip())


@pytest.mark.slow
def test_a_file_that_cannot_be_written_in_the_end_is_a_usage_error(theirs: Suite) -> None:
    saved(theirs)
    (theirs.folder / "more").mkdir()
    theirs.write(body="import os\n    if os.path.exists('more'): os.rmdir('more')")
    done = theirs.run(*GATED, "--gate-json=more/v.json")
    refused(done, USAGE, "ERROR: ", "No such file or directory", "v.json")


@pytest.mark.slow
def test_a_benchmark_that_no_test_declares_is_an_error_by_name(theirs: Suite) -> None:
    saved(theirs)
    hidden = "def test_{}(request):\n    request.getfixturevalue('benchmark').pedantic(print, rounds=3)\n"
    (theirs.folder / "test_hidden.py").write_text(hidden.format("z") + hidden.format("a"))
    names = "test_hidden.py::test_a, test_hidden.py::test_z"
    said = f"ERROR at level 0, suite: measured, but not by a test that the gate knows: {names}"
    refused(theirs.run(*GATED), FAILED, said)


@pytest.mark.slow
def test_what_was_not_measured_is_an_error_with_its_reason(theirs: Suite) -> None:
    saved(theirs)
    file = theirs.folder / "gate.json"
    for body, mark, why in (
        ("assert 0", "", "its test failed"),
        ("raise OSError", "@pytest.mark.xfail", "its test was skipped: test_theirs.py:16: OSError"),
        ("pytest.skip('no disk')", "", "its test was skipped: Skipped: no disk"),
    ):
        theirs.write(body=body, mark=mark)
        found = theirs.run(*GATED, "--gate-update")
        refused(found, FAILED, f"nothing was measured, so nothing is shown: {why}")
        assert after_heading(found)[-1] == f"not written: {file}, because of the errors above"
    missing = theirs.run("--gate=fail", "--gate-against=new.json", "--gate-on-missing=save")
    refused(missing, FAILED, "nothing was measured, so nothing is shown: its test was skipped: Skipped: no disk")
    assert not (theirs.folder / "new.json").exists()
    none = theirs.run("--gate-save=new.json")
    refused(none, USAGE, "no row was measured, so nothing is written")
    theirs.write(body="assert 0")
    bad = theirs.run("--gate-save=new.json")
    refused(bad, FAILED, "--gate-save", "new.json: some test failed, so nothing is written")


@pytest.mark.parametrize(
    ("mark", "sentence"),
    [
        ("tolerence=0.1", "takes tolerance=… (a fraction) and level=… (0, 1, 2 or 3), got {'tolerence': 0.1}"),
        ("0.1, level=1", "takes tolerance=… (a fraction) and level=… (0, 1, 2 or 3), got (0.1,){'level': 1}"),
        *((f"tolerance={one}", f"'s tolerance is {one}; 0.03 is 3 %") for one in (0, 1, -0.1, 1.5)),
        *((f"level={one!r}", f"'s level is {one!r}; expected 0, 1, 2 or 3") for one in (-1, 4, "1")),
    ],
)
def test_a_marker_that_cannot_be_meant_is_refused(theirs: Suite, mark: str, sentence: str) -> None:
    theirs.write(mark=f"@pytest.mark.gate({mark})")
    refused(theirs.run("--gate=fail", "--gate-against=HEAD", "--collect-only"), USAGE, f"{ROW}: the marker", sentence)


@pytest.mark.parametrize(
    "mark", ["level=0", "level=1", "level=None, tolerance=1e-9", "tolerance=0.999", "level=2, tolerance=0.5", ""]
)
def test_a_marker_that_can_be_meant_is_taken(theirs: Suite, mark: str) -> None:
    theirs.write(mark=f"@pytest.mark.gate({mark})")
    assert theirs.run("--gate=fail", "--gate-against=HEAD", "--collect-only").returncode == OK


@pytest.mark.slow
def test_a_marker_gives_a_row_its_tolerance_and_its_only_level(theirs: Suite) -> None:
    saved(theirs)
    theirs.write(seconds=1.06, mark="@pytest.mark.gate(tolerance=0.1, level=3)")
    refused(theirs.run(*GATED), OK, "PASS", "+6.0%")
    theirs.write(seconds=1.06, mark="@pytest.mark.gate(level=2)")
    refused(
        theirs.run(*GATED), FAILED, "nothing of it can be compared at levels 0, 1, 3: a plain benchmark has no counters"
    )


@pytest.mark.slow
def test_a_run_that_gates_nothing_is_refused(theirs: Suite) -> None:
    refused(
        theirs.run("--gate=fail", "--gate-against=HEAD", "-k", "nothing"),
        USAGE,
        "--gate: this run has no benchmarks, so nothing would be gated; select some",
    )
    refused(
        theirs.run("--gate=fail", "--gate-against=HEAD", "--gate-launches=4"),
        USAGE,
        "--gate-launches 4+0 can show nothing of 1 row at --gate-alpha 0.01",
    )
    saved(theirs, 4)
    refused(theirs.run(*GATED), USAGE, f"--gate-against {theirs.folder / 'gate.json'}: the baseline holds 4 launches")
