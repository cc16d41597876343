"""What a newcomer meets first: wrong options, the card, the answer, a log file, two runs into one folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchsuite.machine.files import FolderLock, new_folder
from benchsuite.measure.arms import Arm
from benchsuite.measure.peers import PeerRunner
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.runners import EngineRunner, Outcome
from benchsuite.measure.session import Bench
from benchsuite.run.names import refuse_unknown_names
from benchsuite.run.request import RunRequest, texts_of
from benchsuite.tests.rig import QUICK, SETTING, SHORT, Run, slow_after
from specdec import Request
from specdec.errors import SpecdecError

WRONG = {
    "draft": "ngrm",
    "policy": "mtch",
    "controller": "fixd",
    "arm": "ngram/mtch/fixed/4",
    "peer": "transformrs",
    "backend": "referense",
    "target": "tinny",
    "judge": "tinny",
    "workload": "chatt",
    "device": "cuba",
    "dtype": "flot32",
    "across": "dtyp",
}
"""A misspelled name of each kind."""


@pytest.mark.parametrize("option", slow_after(3, WRONG))
def test_a_misspelled_name_is_refused_with_the_nearest(option: str) -> None:
    request = RunRequest.of(texts_of({option: WRONG[option]}))
    with pytest.raises(SpecdecError, match="^unknown .*; did you mean '"):
        refuse_unknown_names(request)


@pytest.mark.slow
@pytest.mark.parametrize(("option", "mixed"), [("target", "tinny,tiny"), ("device", "cuba,cpu"), ("backend", "x,cpu")])
def test_a_matrix_with_one_name_that_can_be_measured_goes_on(option: str, mixed: str) -> None:
    refuse_unknown_names(RunRequest.of(texts_of({option: mixed})))


def test_what_is_right_is_not_refused() -> None:
    refuse_unknown_names(RunRequest.of(texts_of({})))
    strategies = "ngram, fast=hybrid(sources='suffix, ngram')/match/goodput/15, draft_model(model=a/b)/rejection"
    refuse_unknown_names(RunRequest.of(texts_of({"arm": strategies, "peer": "none", "target": "owner/name"})))


@pytest.mark.slow
def test_wrong_options_are_refused_before_torch_is_imported(cold: Run, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemError('torch was imported')")
    (tmp_path / "transformers.py").write_text("raise SystemError('transformers was imported')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = (
        "import sys; from benchsuite.run.names import refuse_unknown_names as refuse;"
        "from benchsuite.run.request import RunRequest, texts_of; from specdec.errors import SpecdecError\n"
        f"for option, text in {WRONG!r}.items():\n"
        "    try: refuse(RunRequest.of(texts_of({option: text})))\n"
        "    except SpecdecError as error: print(error)\n"
    )
    done = cold("-c", code, path=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("did you mean") == len(WRONG)
    plugin = ("-m", "pytest", "--pyargs", "benchsuite.test_speculation")
    for wrong in (
        *("--specdec-draft=ngrm", "--specdec-batch=x", "--specdec-drafts=ngram", "--specdec-repeat=nowhere"),
        *("--specdec-predict=nowhere", "--gate=fial", "--gate-tolernce=0.1"),
    ):
        done = cold(*plugin, wrong, path=path)
        assert done.returncode == 4, done.stdout + done.stderr
        assert "imported" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_refusal_has_lines_of_the_terminals_width(run: Run) -> None:
    words = ("-m", "pytest", *SHORT, "--specdec-draft=ngrm")
    wide, narrow = (run(*words, COLUMNS=str(width)).stderr for width in (1000, 60))
    assert wide.startswith("ERROR: unknown draft 'ngrm'; did you mean 'ngram'? choices: ")
    assert len(wide.splitlines()[0]) > 300
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.split() == wide.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistyped", "nearest"),
    [
        ("--specdec-drafts=x", "--specdec-draft"),
        ("--gate-agianst", "--gate-against"),
        ("--specdec-wrkload", "--specdec-workload"),
        ("--specdec-lst", "--specdec-list"),
        ("--specdec-dep", "--specdec-deep"),
        ("--gates=fail", "--gate"),
    ],
)
def test_a_mistyped_option_gets_the_nearest_name(mistyped: str, nearest: str, inside: Run) -> None:
    done = inside("-m", "pytest", mistyped)
    assert done.returncode == 4
    name = mistyped.partition("=")[0]
    assert f"there is no option {name}; the nearest is {nearest} (" in done.stderr


@pytest.mark.parametrize("unlike", ["--specdec-threads=4", "--gate-zzz"])
def test_an_option_like_none_of_ours_is_refused_without_a_guess(unlike: str, inside: Run) -> None:
    done = inside("-m", "pytest", unlike)
    assert done.returncode == 4
    assert f"there is no option {unlike.partition('=')[0]} (pytest --help lists all)" in done.stderr


def test_an_option_of_another_plugin_that_begins_like_ours_is_its_own(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--specdec-theirs')")
    (tmp_path / "test_theirs.py").write_text(
        "def test_theirs(request): assert request.config.getoption('--specdec-theirs') == '3'"
    )
    done = inside("-m", "pytest", "--specdec-theirs=3", "-q")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_log_begins_with_the_answer_and_a_quiet_one_says_where_the_rest_is(run: Run) -> None:
    words = ("-m", "pytest", *QUICK, "--specdec-draft", "ngram,garbage", "--specdec-peer", "none", "--benchmark-quiet")
    log, quiet = run(*words), run(*words, "-q")
    for done in (log, quiet):
        assert done.returncode == 0, done.stdout + done.stderr
        assert "\r" not in done.stdout + done.stderr
        ours = done.stdout.partition(" Speculative decoding ")[2]
        assert next(line for line in ours.splitlines()[1:] if line).startswith("On this machine ")
        assert [line for line in ours.splitlines()[1:-1] if len(line) > 100] == []
    assert "Speed:" in log.stdout
    assert "Speed:" not in quiet.stdout
    assert "tables: without -q, or in the report of --specdec-results FOLDER" in quiet.stdout
    found = run(*words, "-q", "--specdec-results", "kept")
    assert re.search(r"^report: .*/kept/.*/report\.html$", found.stdout, re.MULTILINE)


@pytest.mark.slow
def test_the_estimate_on_the_card_has_the_peers_and_every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token takes a tenth of a second here: a run of 64 takes 6.4 seconds, of the peer too."""
    for runner in (EngineRunner, PeerRunner):

        def paced(self: Any, requests: Sequence[Request], run: Any = runner.run) -> Outcome:
            found: Outcome = run(self, requests)
            return replace(found, emissions=[[(n / 10, 1) for n in range(1, len(one) + 1)] for one in found.tokens])

        monkeypatch.setattr(runner, "run", paced)

    def expected(pairs: int, *more: Arm) -> float:
        bench = Bench(MeasuringPlan(prompts=3, pairs=pairs))
        bench.prepare([Arm(SETTING.replaced(max_new_tokens=64)), *more])
        [said] = [line for line in bench.card if " arms x " in line]
        found = re.search(r"about (\d+) (s|min)(?:, without (.*))?$", said)
        assert found is not None, said
        return int(found[1]) * (60 if found[2] == "min" else 1)

    setting = SETTING.replaced(max_new_tokens=64)
    assert expected(400) > 50 * max(1.0, expected(1))
    peers = expected(400, Arm(setting, peer="transformers")) - expected(400)
    assert peers == pytest.approx(400 * 3 * 6.4, abs=60), "of 400 pairs of three prompts, in whole minutes"


@pytest.mark.slow
def test_two_runs_do_not_write_into_one_folder_at_once(run: Run, tmp_path: Path) -> None:
    words = ("-m", "pytest", *SHORT, "--specdec-draft", "ngram", "--specdec-peer", "none", "--specdec-prompts", "1")
    kept = ("--specdec-results", "kept")
    assert run(*words, *kept).returncode == 0
    [folder] = (tmp_path / "kept").iterdir()
    lock = FolderLock(folder)
    second = run(*words, *kept, "--specdec-resume")
    assert second.returncode == 4
    assert f"is writing its results into {folder}" in second.stdout + second.stderr
    lock.release()
    assert run(*words, *kept, "--specdec-resume").returncode == 0
    assert not (folder / ".running").exists()


def test_a_lock_ends_with_its_process_and_names_it(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    with pytest.raises(
        SpecdecError, match=rf"^process \d+ of .* is writing its results into {re.escape(str(tmp_path))}:"
    ):
        FolderLock(tmp_path)
    del first
    FolderLock(tmp_path).release()


def test_folders_that_are_made_in_one_second_have_names_of_their_own(tmp_path: Path) -> None:
    made = [new_folder(tmp_path / "results", "tiny") for _ in range(12)]
    assert len(set(made)) == 12
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        new_folder(tmp_path / "file", "tiny")
