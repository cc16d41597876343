"""What watches steps on a CPU: reads of the host, recorded parts, compiled stand-ins, and launches on fake tensors."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conformance.guards import fake_cuda, snippet
from benchsuite.conformance.guards.fake_cuda import FakeRun, LaunchLog
from benchsuite.conformance.guards.read_guard import NoReads, only_engine_reads
from benchsuite.conformance.guards.snippet import compiled_snippet
from benchsuite.conformance.guards.tape import SharedPool, Tape
from specdec import Engine
from specdec_kernels.build import BuildError
from specdec_kernels.cpu import cpu_compiler

READS: dict[str, Callable[[Tensor], object]] = {
    "tolist": lambda one: one.tolist(),
    "item": lambda one: one.item(),
    "cpu": lambda one: one.cpu(),
    "numpy": lambda one: one.numpy(),
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__index__": lambda one: [0, 1, 2][one],
    "__array__": np.asarray,
    "nonzero": lambda one: one.nonzero(),
}
"""Every way in which a number of a tensor gets to the host."""


@pytest.mark.parametrize("name", READS)
def test_a_read_of_the_host_is_refused_or_counted_by_its_name(name: str) -> None:
    one = torch.tensor(1)
    with NoReads() as mode:
        assert float((one + one).sum().detach().as_subclass(Tensor).shape.numel()) == 1, "no read, no refusal"
        with pytest.raises(AssertionError, match=f"a step read the device through {name}(\n|$)"):
            READS[name](one)
        assert mode.seen == 0
        mode.allowed = True
        for _ in range(2):
            READS[name](one)
    assert mode.seen == 2


def read_engine(device: str) -> Any:
    """An engine whose read is one list."""
    return SimpleNamespace(read=lambda packed: packed.tolist(), target=SimpleNamespace(device=torch.device(device)))


def test_only_an_engines_own_read_reads_and_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA whatever waits is an error meanwhile, and afterwards none."""
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    for device in ("cpu", "cuda"):
        engine, packed = read_engine(device), torch.tensor([1, 2])
        before = engine.read
        with only_engine_reads(cast(Engine, engine)) as mode:
            assert engine.read(packed) == [1, 2]
            assert mode.seen == 1
            with pytest.raises(AssertionError, match="through item"):
                packed[0].item()
        assert engine.read is before
        assert modes == ([] if device == "cpu" else ["error", "default", "error", "default"])
        assert packed[0].item() == 1


def test_a_read_that_fails_leaves_the_guard_up() -> None:
    engine = read_engine("cpu")
    engine.read = lambda packed: 1 // 0
    with only_engine_reads(cast(Engine, engine)) as mode:
        with pytest.raises(ZeroDivisionError):
            engine.read(torch.tensor([1]))
        with pytest.raises(AssertionError, match="through tolist"):
            torch.tensor([1]).tolist()
        assert mode.seen == 0


def test_a_replay_makes_a_part_again_from_what_its_arguments_hold_now_into_its_first_result() -> None:
    given, calls = torch.tensor([1.0, 2.0]), list[int]()

    def part(one: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        doubled = one * 2
        return doubled, doubled.view(2, 1)[:, 0].add(torch.tensor([1.0, 1.0]), alpha=2)

    (doubled, more), replay = Tape()(part, [given])
    assert (doubled.tolist(), more.tolist()) == ([2.0, 4.0], [4.0, 6.0])
    given.copy_(torch.tensor([5.0, 7.0]))
    replay()
    assert (doubled.tolist(), more.tolist()) == ([10.0, 14.0], [12.0, 16.0])
    assert calls == [1], "no Python of the part is called again"
    assert Tape.runs, "its results are those of the recording run"


def test_a_part_that_reads_or_changes_its_shapes_cannot_be_recorded() -> None:
    with pytest.raises(RuntimeError, match="to the host: a part that reads cannot be recorded"):
        Tape()(lambda one: one.sum().item(), [torch.ones(2)])
    given = torch.tensor([1, 0, 1])
    found, replay = Tape()(lambda one: one.nonzero(), [given])
    assert len(found) == 2
    given.fill_(1)
    with pytest.raises(RuntimeError, match=r"made \(3, 1\) and was recorded with \(2, 1\)"):
        replay()


@pytest.mark.parametrize("later_alone", [True, False])
def test_a_replay_in_a_shared_pool_overwrites_the_results_of_the_parts_that_were_recorded_after_it(
    later_alone: bool,
) -> None:
    """Or of all parts; never arguments, what persists, or a row that is expanded."""
    pool, kept, given = SharedPool(later_alone), torch.ones(1), torch.ones(2)
    pool.persistent.append(kept)
    parts: list[Callable[[Tensor], Any]] = [
        lambda one: (one + 1, one),
        lambda one: [one * 3, (one * 3).long(), kept.view(1), (one[:1] * 4).expand(5)],
        lambda one: one * 5,
    ]
    made = [pool(part, [given]) for part in parts]
    assert pool.overwritten == 0
    made[1][1]()
    first, (second, whole, persisted, expanded), third = (result for result, _ in made)
    assert pool.overwritten == (3 if later_alone else 4)
    assert bool(third.isnan().all()), "a later part's result is nobody's"
    assert (second.tolist(), whole.tolist()) == ([3.0, 3.0], [3, 3]), "its own is made again"
    assert bool(first[0].isnan().all()) == (not later_alone)
    assert (persisted.tolist(), expanded.tolist(), given.tolist()) == ([1.0], [4.0] * 5, [1.0, 1.0])
    made[0][1]()
    assert bool(second.isnan().all())
    assert whole.tolist() == [1, 1], "integers become a number that none of these was"
    assert SharedPool().later_alone


SOURCE = 'extern "C" int number() { return NUMBER; }'


@pytest.fixture
def compiler_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands of compilers, with an empty cache."""
    if cpu_compiler() is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    commands: list[list[str]] = []
    run = subprocess.run

    def noted(command: list[str], **named: Any) -> Any:
        commands.append(command)
        return run(command, **named)

    monkeypatch.setattr(subprocess, "run", noted)
    return commands


@pytest.mark.slow
def test_a_snippet_is_compiled_once_for_its_text_and_what_it_is_made_for(
    compiler_calls: list[list[str]], tmp_path: Path
) -> None:
    flags = ["-O0", "-DNUMBER=7"]
    first = compiled_snippet("a number", SOURCE, "one/number-{}.so", flags)
    assert ctypes.CDLL(str(first)).number() == 7
    assert first.parent == tmp_path / "cache" / "kernels" / "one"
    assert [*first.parent.iterdir()] == [first], "nothing of the work is left"
    assert compiled_snippet("a number", SOURCE, "one/number-{}.so", flags) == first
    assert len(compiler_calls) == 1
    made = {
        first,
        compiled_snippet("a number", f"{SOURCE}\n", "one/number-{}.so", flags),
        compiled_snippet("a number", SOURCE, "one/number-{}.so", flags, made_for="another torch"),
    }
    assert len(made) == 3
    assert len(compiler_calls) == 3
    assert all("-shared" in command and "-fPIC" in command for command in compiler_calls)


def test_a_snippet_that_cannot_be_compiled_is_refused_with_what_the_compiler_says(
    compiler_calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=r"(?s)^compiling a number failed: .*NUMBER.*[^\n]$"):
        compiled_snippet("a number", SOURCE, "number-{}.so", [])
    assert not [*(tmp_path / "cache" / "kernels").iterdir()]
    monkeypatch.setattr(snippet, "cpu_compiler", lambda: None)
    with pytest.raises(BuildError, match="no C\\+\\+ compiler for a number; install one or set CXX"):
        compiled_snippet("a number", SOURCE, "number-{}.so", [])


@contextlib.contextmanager
def logged(device: str = "cuda") -> Iterator[tuple[LaunchLog, Tensor]]:
    """A log that is on, and two fake numbers on the device."""
    with fake_cuda.fake_cuda(device=device) as log:
        there = torch.zeros(2, device=device)
        log.on = True
        log.stream, log.launches = [], Counter()
        yield log, there


def faults(log: LaunchLog) -> dict[str, int]:
    """What was found, without the line that asked."""
    return {fault.partition(", at ")[0]: count for fault, count in log.faults.items()}


@pytest.mark.fake_gpu
def test_an_op_that_makes_or_writes_a_tensor_on_the_gpu_is_a_launch_and_a_view_is_none() -> None:
    with logged() as (log, there):
        before = log.total
        made = there + 1
        there.add_(1)
        there.add_(made)
        assert dict(log.launches) == {"aten::add": 1, "aten::add_": 2}
        assert log.total - before == 3
        there.view(1, 2), there[:1], there.detach(), torch.empty(3, device="cuda"), torch.empty_like(there)
        there.new_empty(3), torch.empty_strided((2,), (1,), device="cuda"), torch.zeros(3) + 1, there[:0] + 1
        assert sum(log.launches.values()) == 3
        log.on = False
        there.add_(1)
        assert sum(log.launches.values()) == 3
        assert log.total - before == 4, "the clock goes on"
        name, *described = log.stream[-1]
        assert name == "aten.add_.Tensor"
        assert described == [((2,), (1,), 0, "cuda:0")] * 2
        log.on = True
        there[1:].mul_(3.0)
        assert log.stream[-1] == ("aten.mul_.Tensor", ((1,), (1,), 1, "cuda:0"), "3.0")
    assert not log.faults
    with LaunchLog(device="cuda") as fresh:
        torch.zeros(2)
    assert (fresh.on, fresh.total, fresh.stream) == (False, 0, [])


@pytest.mark.fake_gpu
def test_tensors_of_host_and_gpu_in_one_op_are_a_fault_but_a_number_of_the_host_is_none() -> None:
    with logged() as (log, there):
        there + torch.tensor(2.0)
        assert not log.faults
        for _ in range(2):
            there[torch.tensor([0])]
        assert faults(log) == {"aten::index of tensors on cpu and cuda": 2}
        [fault] = log.faults
        assert "test_guards.py" in fault
        assert fault.endswith(": there[torch.tensor([0])]"), "the line that asked"
        log.on = False
        there[torch.tensor([1])]
        assert sum(log.faults.values()) == 2


@pytest.mark.fake_gpu
def test_a_copy_between_host_and_gpu_waits_unless_its_memory_is_pinned() -> None:
    with logged() as (log, there):
        here = torch.zeros(2)
        here.to("cuda", non_blocking=True), there.copy_(here), here.copy_(there), there.to("cpu")
        found = faults(log)
        assert found == {"a copy from cpu to cuda that waits": 2, "a copy from cuda to cpu that waits": 2}
        pinned = here.pin_memory()
        pinned.to("cuda", non_blocking=True), there.copy_(pinned), pinned.copy_(there), pinned[1:].to("cuda")
        there.to(torch.float64), here.to(torch.float64), there.copy_(there + 1), here.copy_(here + 1)
        assert faults(log) == found
        torch.cuda.synchronize()
        assert faults(log) == {**found, "a synchronisation": 1}


@pytest.mark.fake_gpu
def test_on_mps_a_copy_waits_unless_it_is_asked_not_to_and_no_tensor_has_64_bits_a_float() -> None:
    with logged("mps") as (log, there):
        here = torch.zeros(2)
        here.to("mps", non_blocking=True), there.copy_(here, True), there.copy_(here, non_blocking=True)
        assert not log.faults
        here.pin_memory().to("mps"), there.copy_(here), there.copy_(here, False)
        assert faults(log) == {"a copy from cpu to mps that waits": 2}
        for wrong in (torch.float64, torch.complex128):
            with pytest.raises(TypeError, match=f"makes a tensor of {wrong}, which MPS does not have"):
                there.to(wrong)
        assert here.double().dtype == torch.float64
        torch.mps.synchronize()
        assert faults(log)["a synchronisation"] == 1
        assert torch.nn.functional.scaled_dot_product_attention(there[None, None], there[None, None], there).shape


@pytest.mark.fake_gpu
def test_a_kernel_of_ours_is_a_launch_and_its_tensors_are_on_the_gpu() -> None:
    with logged() as (log, there):
        before = log.total
        log.kernel("ours", there, (1, [there]), {"size": 4})
        log.kernel("ours", there)
        assert log.launches == {"ours": 2}
        assert log.total - before == 2
        assert [call[0] for call in log.stream] == ["ours"] * 2
        assert log.stream[0][1:] == (((2,), (1,), 0, "cuda:0"), "1", ((2,), (1,), 0, "cuda:0"), "4")
        assert not log.faults
        log.kernel("ours", there, torch.zeros(1))
        assert faults(log) == {"the kernel ours is given a tensor on the CPU": 1}
        log.on = False
        log.kernel("ours", torch.zeros(1))
        assert (sum(log.faults.values()), log.launches["ours"]) == (1, 3)
        assert log.total - before == 4


@pytest.mark.fake_gpu
def test_inside_fake_cuda_numbers_of_the_host_become_tensors_of_the_gpu_without_values() -> None:
    with fake_cuda.fake_cuda():
        given = torch.from_numpy(np.zeros((2, 3), dtype=np.int32))
        assert (tuple(given.shape), given.dtype, given.device.type) == ((2, 3), torch.int32, "cpu")
        assert torch.cuda.get_device_properties(0).multi_processor_count > 100, "of a GPU as it is rented"
        assert not torch.cuda.is_current_stream_capturing()
        assert torch.cuda.current_stream().cuda_stream == 0
        with torch.cuda.device(0), torch.cuda.device_of(given):
            event = torch.cuda.Event()
            event.record()
            event.synchronize()
    assert torch.from_numpy(np.ones(2)).tolist() == [1.0, 1.0], "outside it all is as before"


@pytest.mark.fake_gpu
@pytest.mark.parametrize(
    ("name", "launched"), [("reference", ["aten"] * 2), ("triton", ["silu_mul"]), ("gpu", ["silu_mul"])]
)
def test_an_op_of_the_backends_of_a_name_is_their_own_kernel_on_the_fake_gpu(name: str, launched: list[str]) -> None:
    with logged() as (log, there):
        fake_cuda.fake_backends(name).silu_mul(there[None], there[None])
    assert [str(call[0]).partition(".")[0] for call in log.stream] == launched
    assert not log.faults


@pytest.mark.slow
@pytest.mark.fake_gpu
def test_a_fake_run_says_of_each_step_its_requests_its_k_and_width_and_its_launches_by_part() -> None:
    """The first of two requests ends after three tokens; the other then has its row, and all the steps that follow."""
    run = fake_cuda.fake_run("garbage", k=3, steps=5, enters=True, backends="gpu")
    assert run.kinds == [((0,), 3, 3), ((0,), 3, 1), *[((1,), 3, 4)] * 3]
    assert [*run.twins()] == [(3, 4)]
    assert run.wrong() is None
    assert len(run.streams) == len(run.parts) == 5
    assert run.streams[3] == run.streams[4]
    assert 0 < len(run.streams[1]) < len(run.streams[4]), "one slot alone makes fewer launches"
    assert sum(run.launches.values()) > sum(map(len, run.streams)), "ends and admissions are counted too"
    for stream, part in zip(run.streams[3:], run.parts[3:], strict=True):
        assert part["draft"] > 0
        assert part["target"] > part["accept"] > part["commit"] > 0
        assert sum(part.values()) == len(stream), "each launch is a microsecond of some part"


@pytest.mark.slow
@pytest.mark.fake_gpu
def test_a_fake_run_that_is_told_nothing_more_is_of_one_request_in_four_equal_steps() -> None:
    run = fake_cuda.fake_run(None, backends="gpu")
    assert run.kinds == [((0,), 0, 1)] * 4
    assert [part["draft"] for part in run.parts] == [0] * 4
    assert len({*map(tuple, run.streams)}) == 1


STEP = ((0,), 4, 5)
NEXT = ((0, 1), 4, 5)


def launches_of_run(kinds: list[Any], streams: Sequence[Sequence[tuple[object, ...]]], **wrong: int) -> FakeRun:
    """What some steps did."""
    return FakeRun(kinds, streams, [], {}, wrong)


@pytest.mark.parametrize(
    ("kinds", "twins"),
    [
        ([STEP] * 2, []),
        ([STEP] * 3, [(1, 2)]),
        ([STEP] * 4, [(1, 2), (2, 3)]),
        ([NEXT, STEP, STEP, NEXT, NEXT, NEXT], [(4, 5)]),
        ([STEP, NEXT, STEP, NEXT, STEP], []),
        ([NEXT, NEXT, STEP, STEP], []),
    ],
)
def test_twins_are_the_last_two_of_three_equal_steps(kinds: list[Any], twins: list[tuple[int, int]]) -> None:
    assert [*launches_of_run(kinds, []).twins()] == twins


def test_what_is_wrong_with_a_run_is_its_first_fault_or_where_two_twins_part() -> None:
    one, other = [("a",), ("b",), ("c",)], [("a",), ("x",), ("c",)]
    assert launches_of_run([STEP] * 3, [other, one, one]).wrong() is None
    parting = "two steps of 5 slots launch {} and {} ops, which part at op {}, so that neither can be recorded"
    for streams, told in (([other, one], (3, 3, 2)), ([one, one[:2]], (3, 2, 3)), ([[], one], (0, 3, 1))):
        said = launches_of_run([STEP] * 3, [one, *streams]).wrong()
        assert said == f"{parting.format(*told)} for the other"
    faulty = launches_of_run([STEP] * 3, [one, other, one], waits=2, mixes=1)
    assert faulty.wrong() == "waits (2 times, 2 such places)"
