"""Hooks in a conftest.py and in a module of -p: wherever pytest itself would find them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchsuite.tests.gate_rig import FAILED, OK, USAGE, Suite, refused
from benchsuite.tests.rig import QUICK, SHORT, Run
from specdec import Registry

MINE = """
from specdec import Draft, Window

class Mine(Draft):
    \"\"\"Repeats the pending token.\"\"\"

    def __init__(self, env, times=4):
        self.times = times

    def propose(self, context):
        k = min(int(context.max_proposals_host.max()), self.times)
        proposed = context.pending[:, None].expand(-1, k)
        return Window.chain(context.pending, proposed, context.max_proposals.clamp(max=k))

def specdec_register_drafts(register):
    register("mine", Mine)
"""
"""A draft and its hook, without a package."""

KNOWING = """
from specdec_plugins.drafts.oracle import Oracle

class Mine(Oracle):
    def __init__(self, env):
        super().__init__(env, rate=1.0)

def specdec_register_drafts(register):
    register("mine", Mine)
"""

ROW = "def test_row(specdec_row):\n    assert specdec_row.failure is None\n"
WHO = "    import os\n    print(os.environ['PYTEST_XDIST_WORKER'], file=open('who.txt', 'a'))\n"


def write_project(folder: Path, **texts: str) -> None:
    """Write files by their names, ``__`` for a slash, below a folder that is pytest's root."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in texts.items():
        file = folder / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        ({"conftest": MINE}, ()),
        ({"conftest": MINE, "deep__below__empty": ""}, ("--rootdir=.", "deep/below")),
        ({"tests__conftest": MINE}, ()),
        ({"other__conftest": MINE}, ("other",)),
        ({"mine": MINE}, ("-p", "mine")),
        ({"mine": MINE, "conftest": "pytest_plugins = ['mine']"}, ()),
        ({"mine": MINE, "conftest": "from mine import specdec_register_drafts"}, ()),
    ],
    ids=["root", "above", "tests", "named", "p", "pytest_plugins", "imported"],
)
def test_a_listing_has_what_pytest_has_read(
    files: dict[str, str], arguments: tuple[str, ...], inside: Run, tmp_path: Path
) -> None:
    write_project(tmp_path, **files)
    done = inside("-m", "pytest", "-p", "benchsuite.plugin", "--specdec-list", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  mine\n    Repeats the pending token.\n      times=4" in done.stdout
    assert f"source: {tmp_path}" in done.stdout, "its file"
    assert "mine" not in Registry().names("draft"), "the run has ended"


@pytest.mark.parametrize(
    ("files", "arguments"),
    [({"other__conftest": MINE}, ()), ({"mine": MINE}, ()), ({"conftest": MINE}, ("--noconftest",))],
    ids=["elsewhere", "no-p", "noconftest"],
)
def test_a_listing_has_nothing_else(
    files: dict[str, str], arguments: tuple[str, ...], inside: Run, tmp_path: Path
) -> None:
    write_project(tmp_path, **files)
    done = inside("-m", "pytest", "-p", "benchsuite.plugin", "--specdec-list", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  mine\n" not in done.stdout


def test_two_files_with_one_name_are_refused_with_both(inside: Run, tmp_path: Path) -> None:
    write_project(tmp_path, conftest=MINE, tests__conftest=MINE)
    done = inside("-m", "pytest", "-p", "benchsuite.plugin", "--specdec-list")
    files = tmp_path / "conftest.py", tmp_path / "tests" / "conftest.py"
    refused(done, USAGE, f"'mine' is registered twice, by {files[0]} and by {files[1]}; rename one")


def test_an_unknown_name_is_refused_with_where_plugins_are_found(inside: Run, tmp_path: Path) -> None:
    write_project(tmp_path, conftest=MINE, test_rows=ROW)
    done = inside("-m", "pytest", "-p", "benchsuite.plugin", "test_rows.py", "--specdec-draft", "mien")
    refused(done, USAGE, "unknown draft 'mien'; did you mean 'mine'?", "each conftest.py that it reads at its start")


@pytest.mark.slow
def test_the_main_job_runs_it_and_the_kit_certifies_it(run: Run, tmp_path: Path) -> None:
    kit = "from benchsuite import conformance\n\nTestMine = conformance.draft('mine')\n"
    write_project(tmp_path, conftest=MINE, deep__test_mine=kit)
    done = run("-m", "pytest", *QUICK, "--specdec-draft", "mine(times=2)", "--specdec-peer", "none")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("mine(times=2) ") and "exact: 1/1" in line]
    done = run("-m", "pytest", "deep/test_mine.py", "-k", "claims or well_formed or changes_no_output")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_workers_run_it_and_measure_a_cell_in_one_of_them(run: Run, tmp_path: Path) -> None:
    """The controller has not read the file beside the tests, and knows no matrix."""
    write_project(tmp_path, deep__below__conftest=MINE, deep__below__test_rows=ROW + WHO)
    options = ("--specdec-draft", "mine", "--specdec-peer", "none", "--specdec-max-new-tokens", "4", *SHORT[2:])
    done = run("-m", "pytest", "deep", "-n", "2", "--specdec-prompts", "1", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "who.txt").read_text().split()
    assert (len(lines), len({*lines})) == (3, 1)


@pytest.mark.slow
def test_a_merge_of_it_is_gated_against_the_bases_own_file(inside: Run, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("launches\n")
    suite = Suite(tmp_path, inside)
    job = (*SHORT, "--specdec-max-new-tokens=30", "--specdec-prompts=1", "--specdec-peer=none", "--specdec-draft=mine")
    gated = (*job, "--gate=fail", "--gate-against=HEAD~1", "--gate-level=0", "--gate-pairs=1")
    for text, code, said in (
        (KNOWING, None, ""),
        (f"# In other words.\n{KNOWING}", OK, "PASS: "),
        (KNOWING.replace("rate=1.0", "rate=0.5"), FAILED, "REGRESSED at level 0, tiny-chat-mine-match-k4"),
    ):
        write_project(tmp_path, conftest=text)
        suite.commit()
        if code is not None:
            refused(suite.run(*gated), code, said)
    assert subprocess.run(["git", "status", "--short"], cwd=tmp_path, capture_output=True, check=True).stdout == b""
