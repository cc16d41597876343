"""Which functions a recording calls, records and replays, in which order and with what, and what it counts."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec.messages import Window
from specdec.runtime import CudaGraphs, Eager, Graphed, Recording


class _Counting:
    """Counts the calls of ops as a chain of backends does."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def ran(self) -> Counter[tuple[str, str]]:
        return Counter(self.calls)

    def add(self, calls: Counter[tuple[str, str]]) -> None:
        self.calls.update(calls)


class _Recorder:
    """Calls what it records, and tells what it was given; refuses functions named ``refused``."""

    name = "told"

    def __init__(self, runs: bool) -> None:
        self.runs, self.told = runs, []  # type: tuple[bool, list[tuple[str, tuple[object, ...]]]]

    def __call__(self, function: Any, given: Sequence[object]) -> tuple[Any, Callable[[], None]]:
        self.told.append((function.__name__, tuple(given)))
        result = function(*given)
        if function.__name__ == "refused":
            raise RuntimeError("not this one")
        return result, lambda: self.told.append((f"replay {function.__name__}", ()))


def _window(token: int) -> Window:
    return Window.chain(torch.tensor([token]), torch.tensor([[token + 1, token + 2]]), torch.tensor([2]))


def _parts(ops: _Counting, names: Sequence[str]) -> list[Any]:
    """Functions of these names, each of which counts one call and returns a new object."""

    def named(name: str) -> Any:
        def part(*given: object) -> object:
            ops.calls[name, "here"] += 1
            return SimpleNamespace(name=name, given=given)

        part.__name__ = name
        return part

    return [named(name) for name in names]


@pytest.mark.parametrize("runs", [True, False])
def test_all_parts_are_recorded_in_the_first_step_and_replayed_in_their_order_in_every_other(runs: bool) -> None:
    ops, recorder = _Counting(), _Recorder(runs)
    graphed = Graphed(recorder, ops)  # type: ignore[arg-type]
    parts = _parts(ops, ["a", "b", "c", "d"])
    assert (graphed.name, graphed.whole, graphed.recorded, graphed.longest(3, 8)) == ("told", True, 0, 8)
    steps = graphed.steps("kind")
    given = _window(3)
    held = steps.hold(given)
    recorded = steps._window  # type: ignore[attr-defined]
    assert held is not given
    assert (held is recorded) is runs
    assert held.tokens.tolist() == recorded.tokens.tolist() == [[3, 4, 5]]
    # Kernels are specialised on strides and alignment: those of the first step are those of the recording.
    for first, stays in zip(
        (held.tokens, held.parents, held.width), (recorded.tokens, recorded.parents, recorded.width), strict=True
    ):
        assert (first.data_ptr(), first.stride()) == (stays.data_ptr(), stays.stride())
    results: list[Any] = [steps.part(parts[0], held)]
    for part in parts[1:]:
        results.append(steps.part(part, held, results[-1]))
    assert [name for name, _ in recorder.told] == ["a", "b", "c", "d"]
    # The functions are recorded over the window that stays and over what was recorded before them.
    assert all(values[0] is recorded for _, values in recorder.told)
    kept: list[Any] = [values[1] for _, values in recorder.told[1:]]
    assert [one.name for one in kept] == ["a", "b", "c"]

    assert all((one is mine) is runs for one, mine in zip(kept, results, strict=False))
    assert ops.ran() == {(name, "here"): 1 for name in "abcd"}
    for count in (2, 3):
        recorder.told.clear()
        again = graphed.steps("kind")
        assert again is steps
        assert again.hold(_window(10 * count)) is recorded
        assert recorded.tokens.tolist() == [[10 * count, 10 * count + 1, 10 * count + 2]]
        found: list[Any] = [again.part(part, recorded) for part in parts]
        assert [name for name, _ in recorder.told] == ["replay a", "replay b", "replay c", "replay d"]
        assert [one.name for one in found] == ["a", "b", "c", "d"]
        assert all(one is mine for one, mine in zip(found[:3], kept, strict=True))
        assert ops.ran() == {(name, "here"): count for name in "abcd"}
    assert graphed.steps("other") is not steps
    assert (graphed.recorded, graphed.notes) == (2, ())


def test_a_kind_with_a_part_that_cannot_be_recorded_runs_op_by_op_from_there_on_and_says_why() -> None:
    ops, recorder = _Counting(), _Recorder(False)
    graphed = Graphed(recorder, ops)  # type: ignore[arg-type]
    first, refused, last = _parts(ops, ["first", "refused", "last"])
    for kind in ("one", "two"):
        recorder.told.clear()
        steps = graphed.steps(kind)
        held = steps.hold(_window(1))
        found: list[Any] = [steps.part(part, held) for part in (first, refused, last)]
        assert [one.name for one in found] == ["first", "refused", "last"]
        assert [name for name, _ in recorder.told] == ["first", "refused"]
    assert ops.ran() == {(name, "here"): 2 for name in ("first", "refused", "last")}
    assert graphed.notes == ("refused cannot be recorded: not this one",)
    again, window = graphed.steps("one"), _window(7)
    held = again.hold(window)
    assert (held is window, held.tokens is window.tokens) == (False, True)
    found = [again.part(part, held) for part in (first, refused, last)]
    assert all(one.given == (held,) for one in found)
    assert ops.ran() == {(name, "here"): 3 for name in ("first", "refused", "last")}
    assert len(recorder.told) == 2


def test_a_recorder_that_runs_what_it_records_fails_with_the_part() -> None:
    ops = _Counting()
    [refused] = _parts(ops, ["refused"])
    with pytest.raises(RuntimeError, match="^not this one$"):
        Graphed(_Recorder(True), ops).steps(0).part(refused)  # type: ignore[arg-type]


def test_a_recording_begins_with_its_first_part() -> None:
    ops = _Counting()
    recording = Recording(_Recorder(True), ops)  # type: ignore[arg-type]
    result: Any = recording.part(_parts(ops, ["a"])[0], 1)
    assert (result.name, result.given, recording.failure) == ("a", (1,), None)


def test_an_eager_runtime_keeps_nothing() -> None:
    eager, window = Eager(), _window(1)
    assert (eager.name, eager.whole, eager.recorded, eager.notes, eager.longest(3, 8)) == ("eager", False, 0, (), 3)
    assert eager.steps("a") is eager
    assert eager.hold(window) is window
    assert eager.part(divmod, 7, 2) == (3, 1)


def _noted_cuda(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Streams and graphs that note what is asked of them, in order."""
    told: list[object] = []

    class _Stream:
        def __init__(self, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: Any) -> None:
            told.append(f"{self.name} waits for {other.name}")

    class _Graph:
        def capture_begin(self, pool: object) -> None:
            told.append(("begin", pool, gc.isenabled()))

        def capture_end(self) -> None:
            told.append("end")

        def replay(self) -> None:
            told.append("replay")

    @contextmanager
    def entered(stream: Any) -> Any:
        told.append(f"enter {stream.name}")
        yield
        told.append("leave")

    for name, value in {
        "graph_pool_handle": lambda: "pool",
        "Stream": _Stream,
        "CUDAGraph": _Graph,
        "current_stream": lambda: _Stream("main"),
        "stream": entered,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return told


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_waits_for_what_was_launched_and_nothing_is_collected_in_it(
    collecting: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _noted_cuda(monkeypatch)
    graphs = CudaGraphs()
    assert (graphs.name, graphs.runs) == ("graphed", False)

    def function(a: int, b: int) -> int:
        told.append("run")
        if fails:
            raise RuntimeError("refused")
        return a + b

    before = gc.isenabled()
    captured = ["side waits for main", "enter side", ("begin", "pool", False), "run", "end"]
    try:
        (gc.enable if collecting else gc.disable)()
        if fails:
            with pytest.raises(RuntimeError, match="refused"):
                graphs(function, (1, 2))
            assert told == captured
        else:
            result, replay = graphs(function, (1, 2))
            assert result == 3
            assert told == [*captured, "leave", "main waits for side"]
            replay()
            assert told[-1] == "replay"
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if before else gc.disable)()


class Allocator:
    """Graphs, streams and pools of torch 2.11, as its sources have them (CUDAGraph.cpp, CUDACachingAllocator.cpp).

    A capture opens its pool. Its end closes it, unless the capture was broken: then the end raises, and the pool stays
    open. No capture can begin in a pool that is open.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: set[int] = set()
        self.used: list[int] = []
        self.streams = 0
        self.broken = False
        for name, value in {
            "graph_pool_handle": itertools.count(1).__next__,
            "Stream": self._stream,
            "CUDAGraph": lambda: self,
            "current_stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
            "current_device": lambda: 0,
            "stream": lambda stream: nullcontext(),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._close, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: None, raising=False)

    def _stream(self) -> SimpleNamespace:
        self.streams += 1
        return SimpleNamespace(wait_stream=lambda other: None)

    def _close(self, device: int, pool: int) -> None:
        if pool not in self.open:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.open.remove(pool)

    def capture_begin(self, pool: int) -> None:
        if pool in self.open:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.open.add(pool)
        self.used.append(pool)
        self.broken = False

    def capture_end(self) -> None:
        if self.broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.open.remove(self.used[-1])

    def replay(self) -> None:
        pass

    def reads(self) -> int:
        """A function that waits for the device, which breaks a capture."""
        self.broken = True
        raise RuntimeError("operation not permitted when stream is capturing")

    def frees(self) -> int:
        """A function that breaks its capture without an error of its own."""
        self.broken = True
        return 0


def test_after_a_capture_that_failed_the_next_one_works_and_the_first_error_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Allocator(monkeypatch)
    graphs = CudaGraphs()
    assert graphs(lambda: 5, ())[0] == 5
    with pytest.raises(RuntimeError, match="^operation not permitted when stream is capturing") as failed:
        graphs(device.reads, ())
    assert failed.value.__notes__ == [
        "The end of the capture then raised: operation failed due to a previous error during capture"
    ]
    assert graphs(lambda: 6, ())[0] == 6
    with pytest.raises(RuntimeError, match="^operation failed due to a previous error during capture$"):
        graphs(device.frees, ())
    assert graphs(lambda: 7, ())[0] == 7
    assert not device.open, "torch.cuda.empty_cache would fail while a pool is open"
    assert device.used[0] == device.used[1] != device.used[2] == device.used[3] != device.used[4]
    assert device.streams == 3


def test_an_error_of_python_in_a_capture_keeps_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Allocator(monkeypatch)
    graphs = CudaGraphs()
    with pytest.raises(ZeroDivisionError) as failed:
        graphs(lambda: 1 // 0, ())
    assert not hasattr(failed.value, "__notes__")
    assert graphs(lambda: 6, ())[0] == 6
    assert (len(set(device.used)), device.open) == (1, set())


@pytest.mark.parametrize("refused", [False, True])
def test_a_kernel_that_is_loaded_in_a_capture_fails_its_kind_by_name(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = pytest.importorskip("triton").knobs
    device = Allocator(monkeypatch)

    def launch() -> int:
        """As CompiledKernel._init_handles: the hook, then cuModuleLoadData, which a capture refuses."""
        knobs.runtime.kernel_load_start_hook(None, None, "rms_norm", {}, "hash")
        if refused and device.open:
            raise RuntimeError("Triton Error [CUDA]: operation not permitted when stream is capturing")
        return 3

    launch()  # outside a capture nobody minds
    with pytest.raises(RuntimeError, match="^Triton loaded rms_norm during the capture") as failed:
        CudaGraphs()(launch, ())
    assert ("operation not permitted when stream is capturing" in str(failed.value)) is refused
    assert not knobs.runtime.kernel_load_start_hook.calls
    ops = _Counting()
    graphed, known = Graphed(CudaGraphs(), ops), [1]  # type: ignore[arg-type]

    def part() -> int:
        if not known:
            return launch()
        known.pop()
        return 3

    assert graphed.steps("kind").part(part) == 3
    assert [note.split(".")[0].partition(": ")[2] for note in graphed.notes] == [
        "Triton loaded rms_norm during the capture"
        + ": Triton Error [CUDA]: operation not permitted when stream is capturing" * refused
    ]
