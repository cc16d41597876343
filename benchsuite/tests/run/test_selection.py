"""Which items run where: parts of a run, rows without their device, marks of rows, and what several ranks cannot do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.run.devices import DevicePlugin
from benchsuite.run.matrix import build_matrix
from benchsuite.run.ranks import RankedPlugin
from benchsuite.run.shards import ShardPlugin
from benchsuite.tests.rig import Run, requested
from benchsuite.tests.run.shown import Shown
from specdec import SpecdecError
from specdec.devices import why_absent

TINY = ("--specdec-target=tiny", "--specdec-workload=chat", "--specdec-arm=garbage", "--specdec-peer=none")
"""Three rows: plain decoding, plain decoding again, and a strategy."""

NO_GPU = pytest.mark.skipif(
    not (why_absent("cuda") and why_absent("mps")), reason="this machine has a GPU, whose rows run"
)


@dataclass(frozen=True, eq=False)
class Item:
    """What a part knows of an item: its id, and the cell of its row, if it has one."""

    nodeid: str
    cell: str | None


def cell_of(item: Any) -> str | None:
    found: str | None = item.cell
    return found


@settings(max_examples=40)
@given(st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=12), st.integers(1, 5))
def test_parts_are_the_whole_without_overlap_and_rows_of_a_cell_stay_together(
    cells: list[str | None], parts: int
) -> None:
    """Other items are dealt one by one; each part keeps the order, and says what it leaves out."""
    items: list[Any] = [Item(f"test_{number}", cell) for number, cell in enumerate(cells)]
    units = list(dict.fromkeys(item.cell or item.nodeid for item in items))
    mine = list[list[Any]]()
    for part in range(1, parts + 1):
        left = list[Any]()

        def deselected(items: list[Any], left: list[Any] = left) -> None:
            left += items

        config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=deselected))
        kept: list[Any] = [*items]
        ShardPlugin(config, (part, parts), cell_of).pytest_collection_modifyitems(kept)
        assert kept == [item for item in items if units.index(item.cell or item.nodeid) % parts == part - 1]
        assert [item for item in items if item not in kept] == left
        mine.append(kept)
    assert sum(map(len, mine)) == len(items)


def items_of(inside: Run, *arguments: str) -> list[str]:
    """The items that a run with these arguments would run."""
    done = inside("-m", "pytest", "-p", "no:randomly", "--collect-only", "-q", *arguments)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


ROWS = "def test_row(specdec_row): pass\ndef test_other(): pass\n"


@pytest.mark.slow
def test_a_part_has_whole_settings_and_where_a_precision_chooses_all_their_kinds_of_text(
    inside: Run, tmp_path: Path
) -> None:
    (tmp_path / "test_rows.py").write_text(ROWS)
    words = ("test_rows.py", *TINY, "--specdec-workload=chat,reasoning", "--specdec-batch=1,2")
    whole = items_of(inside, *words)
    assert len(whole) == 3 * 2 * 2 + 1
    odd = items_of(inside, *words, "--specdec-shard=1/2")
    assert {*odd} < {*whole}
    assert {("batch2" in name, "reasoning" in name) for name in odd if "row" in name} == {(False, False), (True, False)}
    odd = items_of(inside, *words, "--specdec-precision=2%", "--specdec-shard=1/3")
    assert len(odd) == 6
    assert {("batch2" in name, "reasoning" in name) for name in odd} == {(False, False), (False, True)}


MARKED = """
def pytest_collection_finish(session):
    for item in session.items:
        mark = item.get_closest_marker("benchmark")
        timed = mark and f"{mark.kwargs['group']}, {mark.kwargs['timer'].__name__}"
        print(item.name, timed, sorted({one.name for one in item.iter_markers()} & {"slow", "cuda", "mps", "gpu"}))
"""
"""A conftest that prints how each item is timed and marked."""


@pytest.mark.slow
def test_rows_are_marked_wherever_they_stand_and_nothing_is_loaded_to_list_or_to_skip_them(
    inside: Run, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(MARKED)
    (tmp_path / "test_rows.py").write_text("def test_first(): pass\ndef test_row(specdec_benchmark): pass\n")
    words = ("-m", "pytest", "-p", "no:randomly", "test_rows.py", *TINY, "--specdec-target=tiny,smollm2-135m", "-s")
    listed = inside(*words, "--specdec-device=cpu,cuda", "--specdec-graphs=off", "--collect-only")
    found = [line for line in listed.stdout.splitlines() if line.startswith("test_")]
    arms = ("plain", "plain-again", "garbage-match-k4")
    assert found == [
        "test_first None []",
        *(
            f"test_row[{target}-chat-{arm}{device}] {target} chat, replayed_seconds {sorted({*slow, *gpu})}"
            for target, slow in (("tiny", ()), ("smollm2-135m", ("slow",)))
            for device, gpu in (("-devicecpu", ()), ("-devicecuda", ("cuda", "gpu")))
            for arm in arms
        ),
    ]
    skipped = inside(*words, "--specdec-target=tiny", "--benchmark-skip")
    assert "1 passed, 3 skipped" in skipped.stdout
    assert all("- specdec-bench -" not in done.stdout for done in (listed, skipped)), "a card: something was loaded"


@pytest.mark.slow
def test_rows_are_dealt_to_parts_and_a_device_selects_none_where_none_is_left(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "test_rows.py").write_text(ROWS)
    words = ("test_rows.py", *TINY)
    assert items_of(inside, *words, "--specdec-shard=2/2") == ["test_other"]
    done = inside("-m", "pytest", *words, "-m", "cuda", "-k", "nothing")
    assert done.returncode == 1
    assert "-m 'cuda' selected by device and none of specdec-bench's tests ran: " in done.stdout


@pytest.mark.slow
def test_rows_are_marked_by_their_device_and_slow_unless_their_target_is_tiny(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "test_rows.py").write_text(ROWS)
    words = ("test_rows.py", *TINY, "--specdec-graphs=off")
    quick = items_of(inside, *words, "--specdec-target=tiny,smollm2-135m", "-m", "not slow")
    assert len(quick) == 4
    assert [name for name in quick if "row" in name and "[tiny-chat-" not in name] == []
    for mark, kinds in (("cuda", {"cuda"}), ("mps", {"mps"}), ("gpu", {"cuda", "mps"})):
        found = items_of(inside, *words, "--specdec-device=cpu,cuda,mps", "-m", mark)
        assert len(found) == 3 * len(kinds)
        assert {kind for kind in ("cpu", "cuda", "mps") if any(f"device{kind}" in name for name in found)} == kinds


THEIRS = """
import pytest
@pytest.mark.cuda
def test_cuda(specdec_row): pass
@pytest.mark.mps
def test_mps(specdec_row): pass
@pytest.mark.gpu
def test_gpu(specdec_row): pass
@pytest.mark.cuda
def test_theirs(): pass
@pytest.mark.cuda
def test_skipped(): pytest.skip("theirs")
"""


@NO_GPU
@pytest.mark.slow
def test_rows_without_their_device_are_skipped_and_a_selection_of_nothing_else_fails(
    inside: Run, tmp_path: Path
) -> None:
    cuda, mps = why_absent("cuda"), why_absent("mps")
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    words = ("-m", "pytest", "-p", "no:randomly", "test_theirs.py", *TINY, "-rs")
    done = inside(*words, "-m", "cuda or mps or gpu")
    assert done.returncode == 1
    assert "1 passed, 10 skipped" in done.stdout
    skipped = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("SKIPPED [3]")]
    assert skipped == [cuda, mps, f"{cuda}; {mps}"]
    before = done.stdout.split(f"none of specdec-bench's tests ran: {cuda}; {mps}")[0]
    heading, said = [line for line in before.splitlines() if line][-2:]
    assert heading.strip("-") == " specdec-bench "
    assert said == "-m 'cuda or mps or gpu' selected by device and "
    done = inside(*words, "-m", "cuda and not mps", "--color=yes")
    assert done.returncode == 1
    red = f"\x1b[31m-m 'cuda and not mps' selected by device and none of specdec-bench's tests ran: {cuda}\x1b[0m\n"
    assert red in done.stdout
    for more, code in ((("-m", "cuda", "--collect-only"), 0), (("-m", "not cuda", "-k", "nothing"), 5)):
        done = inside(*words, *more)
        assert (done.returncode, "selected by device" in done.stdout) == (code, False)
    (tmp_path / "test_theirs.py").write_text("def test_theirs(): pass\n")
    none = inside("-m", "pytest", "test_theirs.py", "-m", "cuda")
    assert none.returncode == 5
    assert "specdec-bench" not in none.stdout.replace("specdec-bench-", ""), "a project without our tests is its own"


EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "": (),
    "slow": (),
    "not cuda": (),
    "kernels and not mps and not  gpu": (),
    "cuda": ("cuda",),
    "slow or mps": ("mps",),
    "gpu and not cuda": ("cuda", "mps"),
    "mps and cuda": ("cuda", "mps"),
}
"""Selections by marker, and the devices by which they select."""

ITEMS = {
    "our row": SimpleNamespace(callspec=SimpleNamespace(params={"specdec_row": "a row"})),
    "our test": SimpleNamespace(module=SimpleNamespace(__name__="benchsuite.tests.run")),
    "their test": SimpleNamespace(module=SimpleNamespace(__name__="benchsuites.tests"), callspec=SimpleNamespace()),
    "their file": SimpleNamespace(module=None),
    "their item": SimpleNamespace(),
}
"""Items of ours and of others."""


@pytest.mark.slow
@given(
    st.sampled_from([*EXPRESSIONS]),
    st.lists(st.tuples(st.sampled_from([*ITEMS]), st.booleans()), max_size=4),
    st.sampled_from([False, False, True]),
    st.integers(0, 5),
)
def test_a_selection_by_device_fails_where_our_items_were_collected_and_none_of_them_ran(
    expression: str, items: list[tuple[str, bool]], listed: bool, status: int
) -> None:
    """Each item is ours or another's, and ran or did not, one after the other; a run that has failed stays as it is."""
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression, collectonly=listed))
    plugin = DevicePlugin(config)
    made: list[Any] = [ITEMS[kind] for kind, _ in items]
    next(plugin.pytest_collection_modifyitems(made))
    for item, (_, ran) in zip(made, items, strict=True):
        if ran:
            plugin.pytest_runtest_call(item)
    session: Any = SimpleNamespace(exitstatus=status)
    plugin.pytest_sessionfinish(session, status)
    ours = [ran for kind, ran in items if kind.startswith("our")]
    nothing = bool(EXPRESSIONS[expression]) and bool(ours) and not any(ours) and not listed
    assert session.exitstatus == (1 if nothing and status in (0, 5) else status)
    shown: Any = Shown()
    plugin.pytest_terminal_summary(shown)
    absent = "; ".join(filter(None, map(why_absent, EXPRESSIONS[expression]))) or "none of those collected carries the "
    said = f"-m {expression!r} selected by device and none of specdec-bench's tests ran: {absent}"
    assert [line[: len(said)] for line in shown.lines] == (["- specdec-bench", said] if nothing else [])
    assert [*shown.marked.values()] == ([{"red": True}] if nothing else [])


@pytest.mark.parametrize("kind", [*ITEMS])
@pytest.mark.parametrize(
    "marks", [(), ("slow",), ("cuda",), ("mps", "slow"), ("gpu",), ("gpu", "cuda"), ("cuda", "mps")]
)
def test_an_item_of_ours_is_skipped_where_all_devices_are_missing_that_it_may_run_on(
    kind: str, marks: tuple[str, ...]
) -> None:
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=""))
    made: Any = SimpleNamespace(**vars(ITEMS[kind]), iter_markers=lambda: [SimpleNamespace(name=one) for one in marks])
    devices = [name for name in ("cuda", "mps") if name in marks] or (["cuda", "mps"] if "gpu" in marks else [])
    absent = [why_absent(device) for device in devices]
    if kind.startswith("our") and absent and all(absent):
        with pytest.raises(pytest.skip.Exception) as skipped:
            DevicePlugin(config).pytest_runtest_setup(made)
        assert skipped.value.msg == "; ".join(map(str, absent))
    else:
        DevicePlugin(config).pytest_runtest_setup(made)


RANKED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--specdec-profile", "--specdec-results=out"), "--specdec-profile with 2 ranks: a trace is made on rank 0 "),
        (("--specdec-resume", "--specdec-results=out"), "--specdec-resume with 2 ranks: rank 0 alone reads the folder"),
        (("--specdec-precision=2%",), "--specdec-precision with 2 ranks: it goes by the clock"),
        (("--specdec-device=mps",), "--specdec-device mps with 2 ranks: one kind of cpu and cuda joins the ranks"),
        (
            ("--specdec-device=cuda:1,cpu:0,cuda:0",),
            "--specdec-device cpu,cuda with 2 ranks: one kind of cpu and cuda ",
        ),
        (("--specdec-dtype=float32,int4",), "--specdec-dtype int4 with 2 ranks: weights are rounded in groups"),
        (
            ("--specdec-endpoint=a=http://localhost:1",),
            "--specdec-peer endpoint with 2 ranks: only transformers and transformers_prompt_lookup run on a cut model",
        ),
    ],
    ids=lambda case: case[0] if isinstance(case, tuple) else "",
)
def test_what_several_ranks_cannot_do_is_refused_before_any_model_is_loaded(
    arguments: tuple[str, ...], said: str, inside: Run
) -> None:
    """Peers that run on a cut model, with their options, are not what is refused."""
    peers = "--specdec-peer=transformers,transformers_prompt_lookup(k=2)"
    done = inside("-m", "pytest", "--pyargs", "benchsuite.test_speculation", *TINY, peers, *arguments, **RANKED)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {said}" in done.stderr
    assert done.stderr.rstrip().endswith("leave it out, or run without torchrun")


OTHERS = """
import pytest
pytestmark = pytest.mark.skip
def test_kernels(specdec_kernels): pass
def test_decoding(specdec_decoding): pass
def test_loaded(specdec_load): pass
def test_said(specdec_conversations): pass
def test_served(specdec_served): pass
def test_certified(specdec_certificates): pass
"""
"""A test of each benchmark that knows no ranks; none would do anything."""


@pytest.mark.parametrize(
    ("name", "rank", "command"),
    [
        ("kernels", "0", "pytest -m kernels"),
        ("decoding", "1", "pytest -m decoding"),
        ("loaded", "1", "pytest -m load"),
        ("said", "0", "pytest -m conversations"),
        ("served", "2", "pytest -m serving"),
        ("certified", "0", "pytest -m serving"),
        pytest.param("served or decoding", "0", "pytest -m decoding and pytest -m serving", id="several"),
    ],
)
def test_benchmarks_that_know_no_ranks_are_refused_by_their_command(
    name: str, rank: str, command: str, inside: Run, tmp_path: Path
) -> None:
    """Each rank says so; the first alone says what pytest does."""
    (tmp_path / "test_others.py").write_text(OTHERS)
    done = inside("-m", "pytest", "test_others.py", "-k", name, **{**RANKED, "RANK": rank})
    assert ("= test session starts =" in done.stdout) == (rank == "0")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    said = f"ERROR: {command} measures one process, and torchrun has started 2: run it without torchrun, or name "
    assert said in done.stderr


@pytest.mark.parametrize("place", [{"WORLD_SIZE": "2"}, {"RANK": "0"}, {**RANKED, "WORLD_SIZE": "1"}, {}])
def test_benchmarks_that_know_no_ranks_run_where_a_process_is_alone(
    place: dict[str, str], inside: Run, tmp_path: Path
) -> None:
    """Half of torchrun's variables, or a run of one rank, are no run of several; what is only listed needs none."""
    (tmp_path / "test_others.py").write_text(OTHERS)
    listed = () if place else ("--collect-only",)
    done = inside("-m", "pytest", "test_others.py", *listed, **(place or RANKED))
    assert done.returncode == 0, done.stderr
    assert ("10 skipped" in done.stdout) == (not listed), "kernels, decoding, load and conversations of both targets"


@pytest.mark.parametrize(
    ("failed", "text", "said"),
    [
        (True, "E  one\n\nE  two\n\n", "rank 3 failed: a.py::b: E  two\n"),
        (True, " \n", "rank 3 failed: a.py::b: setup\n"),
        (False, "E  one", ""),
    ],
)
def test_a_rank_that_nobody_sees_says_what_failed_on_it(
    failed: bool, text: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first rank leaves it to pytest."""
    config: Any = SimpleNamespace()
    plugin = RankedPlugin(config, requested())
    report: Any = SimpleNamespace(failed=failed, longreprtext=text, when="setup", nodeid="a.py::b")
    for first in (True, False):
        ranks: Any = SimpleNamespace(first=first, place=SimpleNamespace(rank=3))
        plugin.ranks = ranks
        plugin.pytest_runtest_logreport(report)
        assert capfd.readouterr() == ("", "" if first else said)


@pytest.mark.parametrize("config", [{"numprocesses": 2}, {"workerinput": {}}], ids=["controller", "worker"])
def test_the_workers_of_xdist_are_no_ranks(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller and a worker refuse it each; a run of one process begins, and is the first and only one."""
    arms = build_matrix(requested(target="tiny", workload="chat", arm="garbage", peer="none"))
    option = SimpleNamespace(numprocesses=config.get("numprocesses"))
    given: Any = SimpleNamespace(option=option, **({} if option.numprocesses else config))
    plugin = RankedPlugin(given, requested())
    plugin.begin(arms, gated=False, abandon=print)
    assert (plugin.ranks, plugin.first) == (None, True)
    for name, text in RANKED.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(SpecdecError, match="^-n of pytest-xdist with 2 ranks: its workers would be ranks of the same "):
        plugin.begin(arms, gated=False, abandon=print)


@pytest.mark.slow
def test_ranks_print_what_pytest_prints_where_a_run_has_no_rows(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text("def test_theirs(): pass\n")
    for rank in ("0", "1"):
        done = inside("-m", "pytest", "test_theirs.py", **{**RANKED, "RANK": rank})
        assert done.returncode == 0
        assert "collected 1 item\n" in done.stdout
        assert "1 passed" in done.stdout
