"""Rows that are measured at once are measured once, by one worker of pytest-xdist, however it distributes tests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.run.workers import split_cells
from benchsuite.tests.rig import Run

ROWS = ("--specdec-target", "tiny", "--specdec-workload", "chat", "--specdec-prompts", "1", "--specdec-peer", "none")

WHO = """
import os

import pytest

def test_row(specdec_row):
    with open("who.txt", "a") as file:
        file.write(f"{specdec_row.arm.setting.id} {os.environ['PYTEST_XDIST_WORKER']}\\n")

@pytest.mark.parametrize("n", range(8))
def test_other(n):
    pass
"""
"""A user's own tests: rows, and others."""


@pytest.mark.slow
@pytest.mark.parametrize("dist", ["load", "worksteal", "loadgroup", "loadfile", "loadscope"])
def test_a_cell_is_measured_by_one_worker(dist: str, run: Run, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if dist not in ("load", "worksteal") and not pytestconfig.getoption("specdec_deep"):
        pytest.skip("a further way to distribute tests: --specdec-deep")
    (tmp_path / "test_who.py").write_text(WHO)
    done = run(
        *("-m", "pytest", "test_who.py", "-n", "2", "--dist", dist, *ROWS, "--specdec-draft", "ngram,garbage"),
        *("--specdec-max-new-tokens", "3,4,5", "--benchmark-quiet"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers = defaultdict[str, set[str]](set)
    lines = (tmp_path / "who.txt").read_text().splitlines()
    for line in lines:
        workers[line.split()[0]].add(line.split()[1])
    assert (len(lines), len(workers)) == (12, 3)
    assert all(len(found) == 1 for found in workers.values()), workers


@pytest.mark.slow
def test_a_way_that_measures_every_cell_twice_is_refused_and_other_tests_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_who.py").write_text(WHO)
    done = run(
        *("-m", "pytest", "test_who.py", "-n", "2", "--dist", "each", *ROWS, "--specdec-draft", "ngram"),
        "--benchmark-quiet",
    )
    assert done.returncode == 1
    assert "use --dist load, or leave out -n" in done.stdout
    assert "16 passed, 6 errors" in done.stdout, "three rows and eight others, by each of two workers"


NODES = st.builds("{}::{}::test[{}]".format, st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 3))


@given(st.lists(st.tuples(NODES, st.sampled_from(["one", "two"]))))
def test_a_cell_is_split_where_its_tests_are_in_several_files_or_scopes(items: list[tuple[str, str]]) -> None:
    for cell in ("one", "two"):
        mine = [nodeid for nodeid, name in items if name == cell]
        files, scopes = ({nodeid.split("::")[0] for nodeid in mine}, {nodeid.rsplit("::", 1)[0] for nodeid in mine})
        for dist, split in (("loadfile", len(files) > 1), ("loadscope", len(scopes) > 1), ("each", bool(mine))):
            assert (cell in split_cells(dist, items)) == split
        assert cell not in split_cells("no", items)
