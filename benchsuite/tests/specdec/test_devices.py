"""What is asked of a device: free memory, and to repeat itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specdec import SpecdecError, devices


def test_on_cuda_what_torchs_cache_holds_and_no_tensor_uses_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 40)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10)
    assert devices.available_bytes(torch.device("cuda")) == 35


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's own settings, again after the test."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is removed again after the test
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.usefixtures("usual")
def test_a_deterministic_run_has_no_tf32_and_a_fixed_workspace_and_says_so() -> None:
    with torch.random.fork_rng():
        said = devices.be_deterministic(7)
        assert torch.initial_seed() == 7
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    assert said == ("deterministic: seed 7, deterministic algorithms only, no TF32, CUBLAS_WORKSPACE_CONFIG=:4096:8")


@pytest.mark.usefixtures("usual")
def test_a_workspace_with_which_cublas_does_not_repeat_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(SpecdecError, match="CUBLAS_WORKSPACE_CONFIG is ':0:0'; .* expects :4096:8 or :16:8: unset it"):
        devices.be_deterministic(0)
    assert not torch.are_deterministic_algorithms_enabled()


class Event:
    """A CUDA event of a clock that ticks at each record, 1 ms a tick; what is done with it is noted in ``calls``."""

    ticks = 0
    calls: list[str]

    def __init__(self, **given: bool) -> None:
        self.given, self.at = given, -1

    def record(self) -> None:
        Event.ticks += 1
        self.at = Event.ticks
        Event.calls.append("recorded")

    def synchronize(self) -> None:
        Event.calls.append("waited")

    def elapsed_time(self, later: Event) -> float:
        return float(later.at - self.at)


@pytest.fixture
def gpu_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Events in place of CUDA's, and pinned memory that is ordinary; returns what was called."""
    Event.calls, Event.ticks = [], 0
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: Event.calls.append(f"synchronized {device.type}"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: Event.calls.append("synchronized mps"))

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        Event.calls.append("pinned")
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    return Event.calls


CUDA, MPS, CPU = (torch.device(kind) for kind in ("cuda", "mps", "cpu"))


def test_a_stopwatch_on_cuda_records_events_and_waits_for_the_later_one_alone(gpu_calls: list[str]) -> None:
    watch = devices.Stopwatch(CUDA)
    assert [watch.mark(), watch.mark(), watch.mark()] == [0, 1, 2]
    events: Any = watch.marks
    assert all(event.given == {"enable_timing": True} for event in events)
    assert gpu_calls == ["recorded"] * 3
    assert watch.seconds(0, 2) == 0.002
    assert gpu_calls[3:] == ["waited"]
    assert watch.times() == [0.0, 0.001, 0.002]


@pytest.mark.parametrize(("device", "calls"), [(CPU, []), (MPS, ["synchronized mps"] * 2)])
def test_a_stopwatch_elsewhere_reads_the_hosts_clock_when_the_device_is_done(
    device: torch.device, calls: list[str], gpu_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "time", SimpleNamespace(perf_counter=iter([5.0, 7.5]).__next__))
    watch = devices.Stopwatch(device)
    assert watch.seconds(watch.mark(), watch.mark()) == 2.5
    assert gpu_calls == calls
    told = devices.Stopwatch.recorded([1.0, 2.0, 4.0])
    assert (told.times(), told.device) == ([0.0, 1.0, 3.0], CPU)


def test_a_device_is_waited_for_by_its_own_means(gpu_calls: list[str]) -> None:
    for device in (CPU, CUDA, MPS):
        devices.synchronize(device)
    assert gpu_calls == ["synchronized cuda", "synchronized mps"]


def test_a_copy_to_the_host_begins_at_once_waits_for_its_event_and_reuses_its_buffer(gpu_calls: list[str]) -> None:
    copy, first, second = devices.HostCopy(CUDA), torch.arange(6).view(2, 3), torch.arange(10, 16).view(3, 2)
    copy.start(first)
    assert gpu_calls == ["pinned", "recorded"]
    found = copy.of(first)
    assert gpu_calls == ["pinned", "recorded", "waited"]
    assert torch.equal(found, first)
    assert copy._buffer is not None
    assert copy._buffer.numel() == 4096
    gpu_calls.clear()
    again = copy.of(second)  # was not started
    assert gpu_calls == ["recorded", "waited"]
    assert torch.equal(again, second)
    assert again.data_ptr() == found.data_ptr(), "the next copy overwrites the last"
    gpu_calls.clear()
    copy.start(first)
    assert torch.equal(copy.of(second), second), "another tensor was started"
    assert torch.equal(copy.of(first), first), "a copy is used once"
    assert gpu_calls == ["recorded", "recorded", "waited", "recorded", "waited"]
    gpu_calls.clear()
    exact, large = torch.arange(4096), torch.arange(4097)
    assert torch.equal(copy.of(exact), exact)
    assert "pinned" not in gpu_calls
    assert torch.equal(copy.of(large), large)
    assert (gpu_calls.count("pinned"), copy._buffer.numel()) == (1, 8194)


@pytest.mark.parametrize("device", [CPU, MPS])
def test_a_copy_from_another_device_is_made_when_it_is_asked_for(device: torch.device, gpu_calls: list[str]) -> None:
    copy, tensor = devices.HostCopy(device), torch.arange(3)
    copy.start(tensor)
    assert torch.equal(copy.of(tensor), tensor)
    assert gpu_calls == []


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps"])
def test_arrays_of_the_host_are_the_same_numbers_on_a_device_after_one_copy(
    kind: str, gpu_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = SimpleNamespace(type=kind)
    to, copies = torch.Tensor.to, list[dict[str, Any]]()

    def copied(tensor: torch.Tensor, *given: Any, **more: Any) -> torch.Tensor:
        if given[0] is device:
            copies.append(more)
            return tensor
        return to(tensor, *given, **more)

    monkeypatch.setattr(torch.Tensor, "to", copied)
    arrays = np.array([[5, -(2**40)], [7, 0]]), np.array([0.5, -2.0, 1e-30], dtype=np.float32), np.array([3])
    for tensor, array in zip(devices.uploaded(device, *arrays), arrays, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert np.array_equal(tensor.numpy(), array)
    assert copies == ([] if kind == "cpu" else [{"non_blocking": True}])
    assert gpu_calls == (["pinned"] if kind == "cuda" else [])


def test_memory_is_asked_of_the_device_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 100)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 30)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 50)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=7))
    assert (devices.available_bytes(MPS), devices.available_bytes(CPU)) == (70, 7)
    assert (devices.peak_memory(MPS), devices.peak_memory(CUDA)) == (30, 50)
    used = SimpleNamespace(ru_maxrss=3)
    monkeypatch.setattr("resource.getrusage", lambda who: used)
    for system, peak in (("linux", 3072), ("darwin", 3)):
        monkeypatch.setattr("sys.platform", system)
        assert devices.peak_memory(CPU) == peak
    devices.require_memory(7, CPU, "it")
    gib = 2**30
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=gib))
    with pytest.raises(SpecdecError, match=r"^it needs about 1\.50 GiB and cpu has 1\.00 GiB free; choose a"):
        devices.require_memory(3 * gib // 2, CPU, "it")


def test_a_dtype_that_stands_for_the_devices_own_is_the_fastest_that_it_can_multiply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    able = {torch.float32, torch.float16}
    monkeypatch.setattr(devices, "_multiplies", lambda dtype, device: dtype in able)
    for name in ("auto", "int8", "int4"):
        assert devices.pick_dtype(name, CPU) == torch.float32
        assert devices.pick_dtype(name, CUDA) == torch.float16
    with pytest.raises(
        SpecdecError, match="^the device cuda cannot multiply in bfloat16; dtypes it can: float32, float1"
    ):
        devices.pick_dtype("bfloat16", CUDA)
    able.add(torch.bfloat16)
    assert devices.pick_dtype("auto", CUDA) == torch.bfloat16
    with pytest.raises(SpecdecError, match=r"unknown dtype 'amp'.* Autocast \(amp\) keeps float32 weights"):
        devices.pick_dtype("amp", CPU)
    with pytest.raises(SpecdecError, match="unknown dtype 'f32'") as refused:
        devices.pick_dtype("f32", CPU)
    assert "Autocast" not in str(refused.value)


def test_a_device_multiplies_in_a_dtype_if_a_product_of_ones_is_two() -> None:
    assert devices._multiplies(torch.float32, CPU)
    assert not devices._multiplies(torch.float32, torch.device("meta")), "it gives no number"
    with monkeypatched_matmul(torch.tensor([[3.0]])):
        assert not devices._multiplies(torch.float32, CPU)
    assert [devices.is_half(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)] == [True, True, False]


@contextmanager
def monkeypatched_matmul(result: torch.Tensor) -> Iterator[None]:
    """Every product is ``result``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", lambda a, b: result)
        yield


def test_the_first_device_that_is_there_is_taken_and_a_named_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"cpu"}
    monkeypatch.setattr(devices, "why_absent", lambda kind: None if kind in there else f"no {kind}")
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch, "empty", lambda size, device: None)
    assert (devices.kind_of("auto"), devices.kind_of("cuda:1"), devices.kind_of("x")) == ("cpu", "cuda", "x")
    assert devices.pick_device() == CPU
    with pytest.raises(SpecdecError, match=r"^the device 'mps' is not here: no mps\. Devices here: cpu$"):
        devices.pick_device("mps")
    with pytest.raises(SpecdecError, match=r"^unknown device 'gpu'; .*choices: auto, cpu, cuda, mps"):
        devices.pick_device("gpu")
    there.add("mps")
    assert devices.pick_device("auto") == MPS
    there.add("cuda")
    assert (devices.pick_device("auto"), devices.pick_device("cuda")) == (CUDA, CUDA)
    assert current == []
    assert devices.pick_device("cuda:1") == torch.device("cuda:1")
    assert current == [torch.device("cuda:1")]
    assert devices.pick_device("cpu") == CPU
    with pytest.raises(SpecdecError, match="^the device 'cuda:x' cannot be used: .*; leave its number out, or name"):
        devices.pick_device("cuda:x")
    assert [devices.records(kind) for kind in ("cuda", "mps", "cpu")] == [True, False, False]


@pytest.mark.parametrize("there", [True, False])
def test_what_is_absent_says_why(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there)
    version = f"torch {torch.__version__}"
    for built, said in (("13.0", f"{version} sees no NVIDIA GPU"), (None, f"{version} has no CUDA")):
        monkeypatch.setattr(torch.version, "cuda", built)
        assert devices.why_absent("cuda") == (None if there else f"no CUDA device: {said}")
    assert devices.why_absent("mps") == (None if there else f"no MPS device: {version} sees no Apple GPU")
    assert devices.why_absent("cpu") is None
