"""Pins of test_ranks_alone.py: tests that read what is private."""

from __future__ import annotations

import io
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models import families
from benchsuite.tests.rig import plan_embeddings
from specdec import Request, SpecdecError, Window, ranks, sharding
from specdec.ranks import GRACE, SILENCE, Life, Lockstep, Place, Ranks, RankZeroDecides, Watch, join_ranks, on_all_ranks

ELSEWHERE = {"beat": 0, "machine": "elsewhere", "process": 7}


class EndedHere(BaseException):
    """In place of the end of the process."""


class StoreError(Exception):
    """In place of torch's error of a store that does not answer."""


class RanksWorld:
    """``torch.distributed`` as a rank sees it, with the other ranks' parts of every collective call prepared."""

    DistStoreError = type("DistStoreError", (StoreError,), {})
    DistError = StoreError

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.kept: dict[str, Any] = {"rank/1": json.dumps(ELSEWHERE)}
        self.others: Callable[[Tensor], list[Tensor]] = lambda mine: [mine]
        self.late: list[Callable[[], None]] = []  # what happens at each wait that is not over at once
        self.size = 2

    def TCPStore(self, *given: Any, **more: Any) -> RanksWorld:
        self.calls.append(("store", *given, more))
        return self

    def PrefixStore(self, prefix: str, store: RanksWorld) -> tuple[str, RanksWorld]:
        return prefix, store

    def init_process_group(self, *given: Any, **more: Any) -> None:
        self.calls.append(("group", *given, more))

    def destroy_process_group(self) -> None:
        self.calls.append(("destroyed",))

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value

    def multi_get(self, keys: Sequence[str]) -> list[str]:
        return [self.kept[key] for key in keys]

    def wait(self, keys: list[str], time: timedelta) -> None:
        assert time == timedelta(seconds=10)
        if not all(key in self.kept for key in keys):
            self.late.pop(0)()
            raise self.DistStoreError

    def broadcast(self, tensor: Tensor, source: int) -> None:
        assert source == 0
        assert tensor.dtype == torch.int64
        tensor.copy_(self.others(tensor)[0])

    def all_gather(self, into: list[Tensor], mine: Tensor) -> None:
        for place, part in zip(into, [mine, *self.others(mine)], strict=True):
            place.copy_(part)

    def all_reduce(self, mine: Tensor) -> None:
        assert mine.is_contiguous()
        for part in self.others(mine.clone()):
            mine += part

    def get_world_size(self) -> int:
        return self.size


class SignalsAsked:
    """What is asked of ``signal``."""

    SIGTERM, SIG_IGN = signal.SIGTERM, signal.SIG_IGN

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def signal(self, number: int, handler: Any) -> None:
        self.calls.append(("signal", number, handler))

    def set_wakeup_fd(self, number: int, **more: Any) -> None:
        self.calls.append(("wakeup", number, more))


class Rig:
    """A world, this process's signals, what was printed and written, and a rank in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.signals, self.reasons = RanksWorld(), SignalsAsked(), list[str]()
        self.copied: list[tuple[int, int]] = []
        self.made: list[Ranks] = []
        self.out, self.err = io.StringIO(), io.StringIO()

        def left(code: int) -> None:
            raise EndedHere(code)

        monkeypatch.setattr(ranks, "dist", self.world)
        monkeypatch.setattr(ranks, "signal", self.signals)
        # pytest itself uses os: only the module's own name is replaced.
        system = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
        system._exit, system.dup2 = left, lambda source, target: self.copied.append((source, target))
        monkeypatch.setattr(ranks, "os", system)
        monkeypatch.setattr(
            Watch, "start", lambda watch: self.world.calls.append(("started", watch.name, watch.daemon))
        )
        monkeypatch.setattr(Watch, "join", lambda watch: self.world.calls.append(("joined",)))
        for name, stream in (("stdout", self.out), ("stderr", self.err)):
            monkeypatch.setattr(sys, f"__{name}__", stream)
            monkeypatch.setattr(sys, name, getattr(sys, name))
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
        monkeypatch.setattr(ranks, "_joined", None)

    def meet(self, rank: int = 0, kind: str = "cpu", count: int = 2) -> Ranks:
        self.made.append(join_ranks(Place(rank, count, 3, "host", 29500), kind, self.reasons.append))
        return self.made[-1]

    def close(self) -> None:
        """Close the files that the ranks have opened."""
        for made in self.made:
            for number in (*made._streams, *made._watch._pipe):
                os.close(number)

    def ends(self, call: Callable[[], object]) -> str:
        """The reason for which a call ends the process."""
        with pytest.raises(EndedHere) as ended:
            call()
        assert ended.value.args == (1,)
        return self.reasons[-1]

    def said(self, rank: int = 0) -> Any:
        return json.loads(self.world.kept[f"rank/{rank}"])


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("rank", "kind", "agent", "master", "backend"),
    [
        (0, "cpu", "", True, "gloo"),
        (0, "cuda", "True", False, "cpu:gloo,cuda:nccl"),
        (0, "mps", "", True, "gloo"),
        (1, "cuda", "", False, "cpu:gloo,cuda:nccl"),
    ],
)
def test_a_rank_meets_the_others_in_the_store_that_torchrun_or_rank_0_holds(
    rank: int, kind: str, agent: str, master: bool, backend: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    rig.world.kept = {f"rank/{other}": json.dumps(ELSEWHERE) for other in range(3) if other != rank}
    made = rig.meet(rank, kind, 3)
    wait = timedelta(minutes=30)
    store = ("store", "host", 29500, 3)
    group = {"store": ("group", rig.world), "rank": rank, "world_size": 3, "timeout": wait}
    assert rig.world.calls == [
        (*store, master, wait, {"wait_for_workers": False}),
        ("group", backend, group),
        (*store, False, wait, {"wait_for_workers": False}),
        ("started", "specdec-ranks", True),
    ]
    assert (made.first, str(made), deepcopy(made) is made) == (rank == 0, f"3 ranks over {backend}", True)
    assert (made.points, made.waiting) == (0, False)
    assert ranks.joined_ranks() is made
    assert rig.said(rank) == {"beat": 0, "machine": platform.node(), "process": os.getpid()}
    assert sorted(made._watch._lives) == [other for other in range(3) if other != rank]
    [(_, number, handler), (_, pipe, more)] = rig.signals.calls
    assert number == signal.SIGTERM
    assert handler(15, None) is None
    assert (pipe, more) == (made._watch._pipe[1], {"warn_on_full_buffer": False})
    assert os.get_blocking(made._watch._pipe[0])
    assert not os.get_blocking(pipe), "a signal must not wait for the thread"


def test_a_process_of_this_machine_is_watched_and_one_that_is_gone_was_lost_before(rig: Rig) -> None:
    here = {"beat": 0, "machine": platform.node()}
    rig.world.kept = {
        "rank/1": json.dumps({**here, "process": os.getppid()}),
        "rank/2": json.dumps({**here, "process": 2**22 - 1}),  # the largest number of a process, and not in use
        "rank/3": json.dumps({**ELSEWHERE, "process": 2**22 - 1}),
    }
    watch = rig.meet(count=4)._watch
    watched = [key.data for key in watch._selector.get_map().values()]
    assert watched == [None, 1]
    assert {rank: life.gone for rank, life in watch._lives.items()} == {1: False, 2: True, 3: False}


def test_rank_0_decides_numbers_for_all(rig: Rig) -> None:
    made = rig.meet()
    rig.world.others = lambda mine: [mine]
    assert made.decided([5, 2]) == [5, 2]
    rig.world.others = lambda mine: [torch.tensor([2**40, 1])]
    assert made.decided([5, 2]) == [2**40, 1]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_k_of_each_row_is_chosen_on_rank_0_alone(rank: int, rig: Rig) -> None:
    forgot: list[bool] = []
    inner: Any = SimpleNamespace(
        k_option="k",
        max_k=9,
        reads_confidence=False,
        next_k=lambda stats: [3] * stats.batch,
        forget=lambda: forgot.append(True),
    )
    rig.world.kept["rank/0"] = rig.world.kept["rank/1"]
    controller = RankZeroDecides(inner, rig.meet(rank))
    sent: list[list[int]] = []
    rig.world.others = lambda mine: [sent.append(mine.tolist()) or torch.tensor([4, 1])]  # type: ignore[func-returns-value]
    stats: Any = SimpleNamespace(batch=2)
    assert controller.next_k(stats) == [4, 1]
    assert sent == [[3, 3] if rank == 0 else [0, 0]]
    assert (controller.max_k, controller.k_option, controller.deterministic) == (9, "k", False)
    controller.forget()
    assert forgot == [True]


def test_ranks_that_are_at_one_place_with_equal_numbers_go_on_and_others_end(rig: Rig) -> None:
    made = rig.meet()
    place = crc32(b"a step")
    made.compare("a step", 3, 2**40)
    for other in ([place, 3, 5], [place, 4, 4], [place + 1, 3, 4]):
        rig.world.others = lambda mine, other=other: [torch.tensor(other)]  # type: ignore[misc]
        reason = rig.ends(lambda: made.compare("a step", 3, 4))
        made._ending.release()
        assert reason == f"rank 1 diverged from rank 0, found at a step (rank 0: [3, 4]; rank 1: {other[1:]})"


def other_ends(rig: Rig, point: int, what: str, failure: str) -> None:
    """Rank 1 is at the end of a block."""
    rig.world.kept[f"end/{point}/1"] = json.dumps([what, failure])


def test_a_block_that_ends_well_on_all_ranks_is_counted_and_waited_for(rig: Rig) -> None:
    made, seen = rig.meet(), list[Any]()
    rig.world.late = [
        lambda: seen.append((made.waiting, made.points)),
        lambda: other_ends(rig, 0, "ngram", ""),
    ]
    with on_all_ranks("ngram"):
        assert not made.waiting
    assert seen == [(True, 0)]
    assert (made.points, made.waiting) == (1, False)
    assert json.loads(rig.world.kept["end/0/0"]) == ["ngram", ""]
    assert "failed" not in rig.said()
    other_ends(rig, 1, "tree", "")
    with made.together("tree"):
        pass
    assert made.points == 2


@pytest.mark.parametrize(
    ("error", "told", "other", "reason"),
    [
        (SpecdecError("no"), "no", "no", ""),
        (SpecdecError("no"), "no", "yes", "rank 0 failed: ngram: no; rank 1 failed: ngram: yes"),
        (SpecdecError("no"), "no", "", "rank 0 failed: ngram: no; rank 1 did not fail"),
        (
            ValueError(3),
            "ValueError: 3",
            "ValueError: 3",
            "rank 0 failed: ngram: ValueError: 3; rank 1 failed: ngram: ValueError: 3",
        ),
        (None, "", "no", "rank 1 failed: ngram: no; rank 0 did not fail"),
    ],
)
def test_a_refusal_that_all_meet_is_gone_on_from_and_any_other_failure_ends_all(
    error: BaseException | None, told: str, other: str, reason: str, rig: Rig
) -> None:
    made = rig.meet()
    other_ends(rig, 0, "ngram", other)

    def block() -> None:
        with made.together("ngram"):
            if error:
                raise error

    if reason:
        assert rig.ends(block) == reason
        assert rig.said()["ended"] == reason
    else:
        with pytest.raises(SpecdecError, match="^no$"):
            block()
        assert made.points == 1
    if told:
        assert (rig.said()["failed"], rig.said()["point"]) == (f"ngram: {told}", 0)


def test_a_refusal_of_each_process_alone_ends_the_run_and_so_do_ranks_at_different_blocks(rig: Rig) -> None:
    made, error = rig.meet(), SpecdecError("too long")
    error.alone = True  # type: ignore[attr-defined]
    other_ends(rig, 0, "ngram", "too long")

    def block() -> None:
        with made.together("ngram"):
            raise error

    assert rig.ends(block) == "rank 0 failed: ngram: too long; rank 1 failed: ngram: too long"
    made._ending.release()
    other_ends(rig, 0, "tree", "")
    assert rig.ends(lambda: made._meet("ngram", "")) == (
        "the ranks went apart: rank 0 was at ngram; rank 1 was at tree"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_ends_tells_the_others_gives_the_streams_back_and_leaves_with_1(rank: int, rig: Rig) -> None:
    rig.world.kept["rank/0"] = rig.world.kept["rank/1"]
    made = rig.meet(rank)
    assert rig.ends(lambda: made.end("a reason")) == "a reason"
    assert rig.said(rank)["ended"] == "a reason"
    assert rig.copied == [(made._streams[0], 1), (made._streams[1], 2)]
    assert (sys.stdout, sys.stderr) == (rig.out, rig.err)
    assert rig.err.getvalue() == ("" if rank == 0 else "\nspecdec-bench, rank 1: a reason\n")
    assert rig.out.getvalue() == ""
    assert not made._ending.acquire(blocking=False), "a second end waits for the first"


def test_a_rank_that_cannot_even_tell_the_others_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig.meet()
    monkeypatch.setattr(rig.world, "set", lambda key, value: 1 / 0)
    with pytest.raises(EndedHere):
        made.end("a reason")


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_leaves_when_all_are_done_with_the_same_code(code: int, rig: Rig) -> None:
    made = rig.meet()
    other_ends(rig, 0, "the end of the run", f"exit status {code}" if code else "")
    rig.signals.calls.clear()
    made.leave(code)
    assert rig.said()["done"] is True
    assert rig.world.calls[-2:] == [("joined",), ("destroyed",)]
    assert rig.signals.calls == [("wakeup", -1, {}), ("signal", signal.SIGTERM, signal.SIG_IGN)]
    assert made._watch._over
    assert os.read(made._watch._pipe[0], 9) == b"\0"
    made._watch.run()  # ends at once


def test_a_rank_with_another_code_ends_the_run(rig: Rig) -> None:
    made = rig.meet()
    other_ends(rig, 0, "the end of the run", "")
    assert rig.ends(lambda: made.leave(3)) == ("rank 0 failed: the end of the run: exit status 3; rank 1 did not fail")


@pytest.mark.parametrize("name", ["mps", "cuda:1", "cpu:0"])
def test_a_device_that_ranks_cannot_share_is_refused(name: str, rig: Rig) -> None:
    with pytest.raises(SpecdecError, match=f"^the device '{name}' cannot be shared by 2 ranks; choose cpu, or cuda"):
        rig.meet().device(name)


def test_a_rank_takes_the_gpu_of_its_number_on_its_machine(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig.meet()
    assert made.device("cpu") == torch.device("cpu")
    monkeypatch.setattr(ranks, "pick_device", lambda name: name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    taken: list[Any] = [made.device(name) for name in ("cuda", "cpu")]
    assert taken == ["cuda:3", "cpu"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(SpecdecError, match="^rank 0 is the process 3 of its machine, which has 3 GPUs; start as many"):
        made.device("cuda")


class Looks:
    """In place of a watch's selector: what it finds at each look, and after the last one the watch is over."""

    def __init__(self, watch: Watch, looks: list[list[Any]]) -> None:
        self.watch, self.looks, self.waited, self.left = watch, looks, list[float](), list[Any]()

    def select(self, seconds: float) -> list[tuple[Any, int]]:
        self.waited.append(seconds)
        if not self.looks:
            self.watch._over = True
            return []
        return [(key, 1) for key in self.looks.pop(0)]

    def unregister(self, file: Any) -> None:
        self.left.append(file)


def looking(rig: Rig, looks: list[list[Any]], count: int = 2) -> Watch:
    """The watch of rank 0, which will find this."""
    watch = rig.meet(count=count)._watch
    watch._selector = Looks(watch, looks)  # type: ignore[assignment]
    return watch


def test_a_watch_gives_a_sign_of_life_each_second_until_it_is_over(rig: Rig) -> None:
    watch = looking(rig, [[], [], []])
    watch.run()
    assert rig.said()["beat"] == 3
    assert watch._selector.waited == [1.0] * 4  # type: ignore[attr-defined]
    assert not rig.reasons


def test_a_watch_ends_the_process_when_it_was_told_to_and_not_at_another_signal(rig: Rig) -> None:
    watch = looking(rig, [])
    key = SimpleNamespace(data=None, fd=watch._pipe[0])
    watch._selector.looks = [[key], [], [key]]  # type: ignore[attr-defined]
    os.write(watch._pipe[1], bytes([signal.SIGUSR1]))
    tell = watch.tell

    def told(**said: Any) -> None:
        tell(**said)
        if said.get("beat") == 2:
            os.write(watch._pipe[1], bytes([signal.SIGUSR1, signal.SIGTERM]))

    watch.tell = told  # type: ignore[method-assign]
    assert rig.ends(watch.run) == "rank 0 was told to end (SIGTERM), by torchrun or you"
    assert rig.said()["beat"] == 3


def test_a_watch_ends_the_process_when_anothers_is_gone_or_says_so_or_the_store_is_silent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = looking(rig, [[SimpleNamespace(data=1, fileobj=5)]])
    assert rig.ends(watch.run).startswith("rank 1 was killed: its process 7 on elsewhere ended without a word")
    assert watch._selector.left == [5]  # type: ignore[attr-defined]
    rig.world.kept |= {"rank/1": json.dumps(ELSEWHERE), "rank/2": json.dumps({**ELSEWHERE, "ended": "a reason"})}
    assert rig.ends(looking(rig, [[]], count=3).run) == "a reason"
    for error in (StoreError("no answer"), RuntimeError("no answer")):
        watch = looking(rig, [[]])

        def silent(keys: Sequence[str], error: Exception = error) -> list[str]:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(rig.world, "multi_get", silent)
            assert rig.ends(watch.run) == (
                "the store of the ranks, which torchrun or rank 0 holds, does not answer: no answer"
            )


def test_a_failure_counts_from_the_block_that_this_rank_has_not_reached(rig: Rig) -> None:
    """Which are the blocks whose ends it has compared, and the one at whose end it waits."""
    watch = rig.meet()._watch
    state = {1: {**ELSEWHERE, "failed": "ngram: no", "point": 2}}
    for points, waiting, found in ((2, False, True), (1, True, True), (2, True, False), (3, False, False)):
        watch._ranks.points, watch._ranks.waiting = points, waiting
        watch._lives = {1: Life(0.0, gone=True)}
        reason = watch._reason(state, 1.0)
        assert str(reason).startswith("rank 1 failed: ngram: no" if found else "rank 1 was killed")
    watch._lives = {1: Life(1.0)}
    assert watch._reason({1: ELSEWHERE}, 1.0) is None


STATE = {"beat": 1, "machine": "here", "process": 7}


def test_lives_end_at_their_limits_and_not_a_moment_before() -> None:
    life, failed = Life(0.0, beat=1), {**STATE, "failed": "x", "point": 0}
    assert life.lost(1, STATE, 0, SILENCE - 0.001) is None
    assert life.lost(1, STATE, 0, SILENCE)
    assert life.lost(1, {**STATE, "done": True}, 0, SILENCE) is None
    life = Life(0.0)
    assert life.lost(1, failed, 0, 9.0) is None
    assert life.lost(1, failed, 0, 9.0 + GRACE - 0.001) is None
    assert life.lost(1, failed, 0, 9.0 + GRACE) == "rank 1 failed: x"
    assert life.lost(1, STATE, 0, 9.0 + GRACE) is None
    assert life.failing is None, "what is no failure any more gets its grace anew"
    assert life.lost(1, failed, 0, 20.0) is None
    assert life.lost(1, {**failed, "point": None} | {"point": -1}, 0, 20.0 + GRACE) is None
    assert Life(0.0).lost(1, {**STATE, "failed": "x"}, 0, 0.0) is None
    assert Life(0.0, gone=True).lost(1, {**failed, "point": -1}, -1, 0.0) == "rank 1 failed: x"
    assert (SILENCE, GRACE, ranks.BEAT) == (25.0, 5.0, 1.0)


def test_an_engines_steps_are_compared_by_everything_that_decides_them() -> None:
    asked: list[tuple[Any, ...]] = []
    meeting: Any = SimpleNamespace(compare=lambda what, *numbers: asked.append((what.partition(":")[0], *numbers)))
    step = Lockstep(meeting)
    window = Window(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[-1, 0, 1]] * 2), torch.tensor([3, 3]))
    step.step(window)
    step.begin([Request(4, (5, 6)), Request(7, (8,))])
    digest = crc32(np.array([7, 8]).tobytes(), crc32(np.array([4, 5, 6]).tobytes(), 0))
    step.over()
    assert asked == [
        ("a step", 2, 3, 0),
        ("new requests", 2, 0, digest),
        ("the end of the requests", 0, 0, digest),
    ]
    # Three places of tokens, accepted, proposed, deepest, moved, column.
    packed = np.array([[11, 12, 13, 2, 2, 2, 0, 90], [21, 22, 23, 0, 2, 2, 1, 91]], dtype=np.int64)
    assert step.read(packed, 3).tolist() == packed[:, :-1].tolist()
    read = np.array([[11, 12, 13, 2, 2, 2, 90], [21, 0, 0, 0, 2, 2, 91]], dtype=np.int64)
    step.step(Window(window.tokens[:, :1], window.parents[:, :1], window.width))
    assert asked[-1] == ("a step", 2, 1, crc32(read.tobytes(), digest))


def test_a_windows_column_tells_tokens_and_their_places_apart() -> None:
    def column(tokens: list[int]) -> list[int]:
        row = torch.tensor([tokens])
        found = Lockstep.column(Window(row, row, row[:, 0]))
        assert found.shape == (1, 1)
        return found[0].tolist()

    assert column([3, 0, 5]) == [4 * 1 + 1 * 4 + 6 * 9]
    assert column([0]) == [1]


def test_parts_of_the_ranks_are_put_side_by_side_or_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of two, the other's part being ten more."""
    world = RanksWorld()
    world.others = lambda mine: [mine + 10]
    monkeypatch.setattr(sharding, "dist", world)
    part = torch.arange(12.0).view(2, 3, 2)
    head = torch.nn.Linear(4, 2, bias=False)
    head.__class__ = sharding.GatheredLinear
    assert torch.equal(sharding.joined_output(head, part), torch.cat([part, part + 10], dim=2))
    assert torch.equal(sharding.whole_weight(head), torch.cat([head.weight, head.weight + 10]).detach())
    summed = torch.nn.Linear(4, 2)
    assert torch.equal(sharding.whole_weight(summed), summed.weight)
    assert torch.equal(sharding.joined_output(summed, part), part)
    summed.__class__ = sharding.SummedLinear
    assert torch.equal(sharding.joined_output(summed, part.transpose(0, 1)), 2 * part.transpose(0, 1) + 10)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_embedding_that_is_cut_gives_zeros_for_tokens_of_other_ranks(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_embeddings(monkeypatch)
    model: Any = families.build_model("llama")
    whole, size = model.get_input_embeddings().weight.detach().clone(), model.config.vocab_size // 2
    sharding.shard_model(model, rank, 2)
    world, embedding = RanksWorld(), model.get_input_embeddings()
    world.others = lambda mine: [torch.zeros_like(mine)]
    monkeypatch.setattr(sharding, "dist", world)
    ids = torch.tensor([[0, size - 1, size], [2 * size - 1, 1, size + 1]])
    mine = (ids >= rank * size) & (ids < (rank + 1) * size)
    assert torch.equal(embedding(ids), whole[ids] * mine[..., None])
    assert (embedding.num_embeddings, embedding.first, embedding.padding_idx) == (size, rank * size, None)
    head = model.get_output_embeddings()
    assert (head.out_features, *head.weight.shape) == (size, size, model.config.hidden_size)


def test_a_rank_keeps_the_streams_that_were_there_and_a_failure_that_all_have_can_be_gone_on_from(
    rig: Rig,
) -> None:
    made = rig.meet()
    for stream, number in zip(made._streams, (1, 2), strict=True):
        assert os.path.sameopenfile(stream, number)
    other_ends(rig, 0, "x", "no")
    made._meet("x", "no")
    assert (made.points, made.waiting) == (1, False)
    assert rig.said()["point"] == 0


def test_a_rank_with_one_vector_looks_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    world = RanksWorld()
    world.others = lambda mine: [torch.zeros_like(mine)]
    monkeypatch.setattr(sharding, "dist", world)
    table: Any = torch.nn.Embedding(1, 3)
    table.__class__, table.first = sharding.SummedEmbedding, 4
    found = table(torch.tensor([3, 4, 5]))
    zeros = [0.0] * 3
    assert found.tolist() == [zeros, table.weight[0].tolist(), zeros]
