"""pytest's side of a run over several ranks, which are made up: what they compare, show, write and leave."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.measure.arms import Arm
from benchsuite.run.matrix import build_matrix
from benchsuite.run.ranks import RankedPlugin
from benchsuite.tests.rig import SHORT, Run, requested
from specdec import SpecdecError, ranks
from specdec.ranks import Place

PLACE = {"WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}


@dataclass
class MadeUpRanks:
    """A rank that is alone: it keeps what it is asked to compare with the others, and how it ends."""

    place: Place
    kind: str
    abandon: Callable[[str], None]
    compared: list[tuple[object, ...]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.place.rank == 0

    def compare(self, what: str, *numbers: int) -> None:
        """Keep what is compared."""
        self.compared.append((what, *numbers))

    def leave(self, code: int) -> None:
        """Keep the code."""
        self.left.append(code)


class LogXML:
    """Has the name of what pytest registers for --junitxml."""

    logfile = "out.xml"


@pytest.fixture
def ranked_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Begin and end a run as one of three ranks; returns what it has joined, its files, and why it is abandoned."""
    monkeypatch.setattr(ranks, "join_ranks", MadeUpRanks)

    def call(arms: list[Arm], rank: int = 0, benchmarks: bool = True) -> Any:
        for name, text in {**PLACE, "RANK": str(rank)}.items():
            monkeypatch.setenv(name, text)
        plugins: list[Any] = [LogXML(), SimpleNamespace(logfile="out.xml")]
        session = SimpleNamespace(json="a", save="b", autosave="c")
        config: Any = SimpleNamespace(
            option=SimpleNamespace(),
            pluginmanager=SimpleNamespace(get_plugin=lambda name: None, get_plugins=lambda: plugins),
            **({"_benchmarksession": session} if benchmarks else {}),
        )
        plugin, reasons = RankedPlugin(config, requested()), list[str]()
        run: Any = SimpleNamespace(exitstatus=3)
        plugin.pytest_sessionstart(run)
        plugin.begin(arms, False, reasons.append)
        joined: Any = plugin.ranks
        joined.abandon("a reason")
        plugin.pytest_unconfigure()
        files = [vars(session), [plugin.logfile for plugin in plugins]]
        return SimpleNamespace(joined=joined, plugin=plugin, reasons=reasons, files=files)

    return call


def arms_of(**given: str) -> list[Arm]:
    """The arms of one strategy on the tiny target, with these options."""
    return build_matrix(requested(**{"target": "tiny", "workload": "chat", "peer": "none", "arm": "garbage", **given}))


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("benchmarks", [True, False])
def test_the_first_rank_alone_writes_files_and_abandons_a_run_and_all_leave_together(
    rank: int, benchmarks: bool, ranked_run: Callable[..., Any]
) -> None:
    found = ranked_run(arms_of(device="cpu"), rank, benchmarks)
    assert (found.joined.place.rank, found.joined.place.ranks) == (rank, 3)
    assert found.plugin.first == (rank == 0)
    assert found.reasons == (["a reason"] if rank == 0 else [])
    kept, logs = found.files
    none = rank > 0 and benchmarks
    assert kept == (
        {"json": None, "save": None, "autosave": None} if none else {"json": "a", "save": "b", "autosave": "c"}
    )
    assert logs == ["out.xml" if rank == 0 else os.devnull, "out.xml"]
    assert found.joined.left == [3]


def test_ranks_are_joined_for_the_kind_of_device_and_compare_how_many_rows_there_are_and_in_which_order(
    ranked_run: Callable[..., Any],
) -> None:
    arms = arms_of(device="cpu", batch="1,2")
    other = [*arms[::-1]]
    [[same], [again], [turned], [fewer]] = [ranked_run(one).joined.compared for one in (arms, [*arms], other, arms[1:])]
    assert same[0].startswith("the order of the rows: if a plugin such as pytest-randomly shuffles them, add ")
    assert same == again
    assert len({same, turned, fewer}) == 3
    assert len({len(one) for one in (same, turned, fewer)}) == 1, "every call has as many numbers"
    assert len(arms) in same
    for device, kind in (("cpu", "cpu"), ("cuda:1,cuda", "cuda")):
        assert ranked_run(arms_of(device=device)).joined.kind == kind


PEERS = "transformers, transformers_prompt_lookup(k=2)"

REFUSED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "--specdec-exact": ({"exact": "true"}, {}),
    "--specdec-profile": ({"profile": "true", "results": "kept"}, {}),
    "--specdec-resume": ({"resume": "true", "results": "kept"}, {}),
    "--specdec-precision": ({"precision": "2%"}, {}),
    "--specdec-budget": ({"budget": "9"}, {}),
    "--gate": ({}, {}),
    "--specdec-device mps": ({}, {"device": "mps"}),
    "--specdec-device cpu,cuda": ({}, {"device": "cuda:1,cpu:0"}),
    "--specdec-dtype int8": ({}, {"dtype": "float32,int8"}),
    "--specdec-peer transformers_compiled": ({}, {"peer": f"{PEERS}, transformers_compiled"}),
}
"""What is refused, of an option of the run and of the arms that a text names."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_several_ranks_cannot_do_is_refused_before_they_are_joined(
    what: str, ranked_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ranked_run(arms_of(device="cpu:0,cpu:1", peer=PEERS)).joined.compared, "the peers that run on a cut model"
    monkeypatch.setattr(ranks, "join_ranks", lambda *given: pytest.fail("it was joined"))
    (run, arms), config = REFUSED[what], SimpleNamespace(option=SimpleNamespace(numprocesses=0))
    asked: Any = config
    with pytest.raises(SpecdecError, match=f"^{what} with 3 ranks: .*; leave it out, or run without torchrun$"):
        RankedPlugin(asked, requested(**run)).begin(arms_of(**{"device": "cpu", **arms}), what == "--gate", print)


ALONE = """
import shutil
from types import SimpleNamespace

from benchsuite.run.capture import uncaptured
from specdec import ranks

def join_ranks(place, kind, abandon):
    global ended
    ended = abandon
    return SimpleNamespace(
        place=place, first=place.rank == 0, compare=lambda *given: None, leave=lambda code: print("left with", code)
    )

real, done = ranks.join_ranks, []

def pytest_configure():
    ranks.join_ranks = join_ranks

def pytest_runtest_teardown(item):
    done.append(item)
    if len(done) == 3:
        with uncaptured(item.config):
            ended("it hangs")
        shutil.copytree("kept", "then") if shutil.os.path.exists("kept") else None

def pytest_unconfigure():
    ranks.join_ranks = real
"""
"""A plugin of which each run is the only one of its ranks; after its third row it is abandoned, and lives on."""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_that_is_abandoned_writes_and_shows_what_is_finished_and_other_ranks_are_quiet(
    rank: int, inside: Run, tmp_path: Path
) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    few = ("--specdec-arm=garbage", "--specdec-peer=none", "--specdec-prompts=1", "--specdec-max-new-tokens=3")
    words = ("-m", "pytest", "-p", "alone", "-p", "no:randomly", "--color=no", *SHORT, *few, "--specdec-results=kept")
    done = inside(*words, **{**PLACE, "RANK": str(rank)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left with 0" in done.stdout
    if rank:
        assert not re.search("passed|Speculative decoding", done.stdout)
        assert "rows were finished" not in done.stderr
        assert not (tmp_path / "kept").exists()
        return
    [folder] = (tmp_path / "kept").iterdir()
    assert f"\nspecdec-bench: it hangs\n3 rows were finished; results: {folder}\n" in done.stderr
    assert len(re.findall("=+ Speculative decoding =+$", done.stdout, re.MULTILINE)) == 2
    then, now = (
        json.loads((root / folder.name / "MANIFEST.json").read_text()) for root in (tmp_path / "then", folder.parent)
    )
    assert (then["complete"], now["complete"]) == (False, True)
    assert "ended early: it hangs" in then["card"]
