"""Devices, ranks and calibrations at their edges: coarse clocks, devices that fail, variables that are missing."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec import SpecdecError, devices
from specdec.calibration import SHORTEST, Calibration, Point, interpolated
from specdec.ranks import Life, Place, _told, diverged, failed_alone

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:1", "cpu"])
def test_a_device_on_which_nothing_can_be_put_is_refused_with_the_reason(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def fails(size: int, device: torch.device) -> Any:
        asked.append(device)
        raise RuntimeError("it is busy")

    monkeypatch.setattr(devices, "why_absent", lambda kind: None)
    monkeypatch.setattr(torch, "empty", fails)
    with pytest.raises(SpecdecError) as refused:
        devices.pick_device(name)
    assert str(refused.value) == (
        f"the device {name!r} cannot be used: it is busy; leave its number out, or name another"
    )
    assert asked == [torch.device(name)]


def test_a_dtype_is_tried_in_itself_and_each_name_gives_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[torch.dtype] = []
    product = torch.Tensor.__matmul__

    def noted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        tried.extend((a.dtype, b.dtype))
        return product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", noted)
    names = ("float32", "bfloat16", "float16", "float64")
    for name in names:
        tried.clear()
        dtype = getattr(torch, name)
        assert devices.pick_dtype(name, CPU) == dtype
        assert tried == [dtype, dtype]
    with pytest.raises(SpecdecError) as refused:
        devices.pick_dtype("amp", CPU)
    assert str(refused.value) == (
        "unknown dtype 'amp'; choices: auto, bfloat16, float16, float32, float64, int4, int8. Autocast (amp) keeps "
        "float32 weights: name the dtype of the weights"
    )


def test_the_other_workspace_with_which_cublas_repeats_itself_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    for name in ("manual_seed", "use_deterministic_algorithms", "set_float32_matmul_precision"):
        monkeypatch.setattr(torch, name, lambda value, name=name: asked.append((name, value)))
    assert devices.be_deterministic(3) == (
        "deterministic: seed 3, deterministic algorithms only, no TF32, CUBLAS_WORKSPACE_CONFIG=:16:8"
    )
    assert asked == [
        ("manual_seed", 3),
        ("use_deterministic_algorithms", True),
        ("set_float32_matmul_precision", "highest"),
    ]
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == (False, False)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_a_copy_to_the_host_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    copies: list[dict[str, Any]] = []
    copy_ = torch.Tensor.copy_

    def copied(tensor: torch.Tensor, source: torch.Tensor, **more: Any) -> torch.Tensor:
        copies.append(more)
        return copy_(tensor, source)

    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    copy, numbers = devices.HostCopy(torch.device("cuda")), torch.tensor([2**60 + 1, -5])
    found = copy.of(numbers)
    assert (found.dtype, found.tolist()) == (torch.int64, [2**60 + 1, -5])
    assert copies == [{"non_blocking": True}]


class ZeroTime:
    """A target whose forwards take no time that the clock shows."""

    device, vocabulary = CPU, 5

    def __init__(self) -> None:
        self.windows: list[Any] = []

    def arena(self, rows: int, *sizes: int) -> Any:
        return SimpleNamespace(committed=torch.zeros(rows, dtype=torch.int64))

    def forward(self, arena: Any, window: Any, rows: slice, longest: int) -> None:
        self.windows.append((window.tokens.tolist(), window.tokens.dtype, window.parents.tolist()))


def test_a_forward_that_no_clock_shows_takes_a_nanosecond_over_chains_of_many_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specdec.devices.time", SimpleNamespace(perf_counter=lambda: 5.0))
    target: Any = ZeroTime()
    found = Calibration(target)
    found.measure([2], [4], [3])
    assert SHORTEST == 1e-9
    assert found.seconds == {Point(2, 4, 3): pytest.approx(1e-9)}
    assert found.forward(3, 2, 4) == found.forward(width=3, rows=2, length=4) == pytest.approx(1e-9)
    assert [(dtype, parents) for _, dtype, parents in target.windows] == [(torch.int64, [[-1, 0, 1]] * 2)] * 8
    assert {token for tokens, _, _ in target.windows for row in tokens for token in row} == set(range(5))


@pytest.mark.parametrize(
    ("key", "value"),
    [(0, 0.0), (1, 0.0), (2, 3.0), (4, 6.0), (5, 7.0), (6, 8.0), (7, 7.5), (8, 7.0), (9, 8.0), (12, 11.0)],
)
def test_a_line_joins_the_nearest_known_keys_and_the_first_and_the_last_beyond_them(key: int, value: float) -> None:
    assert interpolated({8: 7.0, 1: 0.0, 6: 8.0, 3: 5.0, 2: 3.0}, key) == pytest.approx(value)


def test_a_run_of_one_process_has_no_place_and_a_number_that_is_none_is_refused() -> None:
    for environment in ({}, {"RANK": "0"}, {"WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "1"}):
        assert Place.of(environment) is None
    whole = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "port"}
    with pytest.raises(SpecdecError) as refused:
        Place.of(whole)
    assert str(refused.value) == (
        "RANK and WORLD_SIZE say that this is one of several processes, and invalid literal for int() with base 10: "
        "'port' is missing or no number; start them with torchrun --nproc-per-node, or unset RANK and WORLD_SIZE"
    )


def test_a_failure_without_a_place_is_no_failure_of_a_rank_that_was_killed() -> None:
    state = {"beat": 0, "machine": "here", "process": 7, "failed": "x"}
    said = Life(0.0, gone=True).lost(1, state, 0, 0.0)
    assert said == (
        "rank 1 was killed: its process 7 on here ended without a word; look for a signal or the system's memory killer"
    )
    assert Life(0.0, gone=True).lost(1, {**state, "point": 0}, 0, 0.0) == "rank 1 failed: x"
    assert Life(0.0).lost(2, {**state, "beat": 0}, 0, 25.0) == (
        "rank 2 was lost: its process 7 on here has given no sign of life for 25 s; is it stopped, or is its network "
        "down?"
    )


def test_ranks_are_named_in_words() -> None:
    assert diverged("a step", [[1, 4, 5], [1, 4, 5], [2, 4, 6]]) == (
        "rank 2 diverged from rank 0, found at a step (rank 0: [4, 5]; rank 2: [4, 6])"
    )
    assert diverged("x", [[9, 1], [3, 2], [3, 2], [5, 0]]) == (
        "ranks 0, 3 diverged from rank 1, found at x (rank 1: [2]; rank 0: [1]; rank 3: [0])"
    )
    assert failed_alone([("a", "no"), ("b", "yes")]) == "rank 0 failed: a: no; rank 1 failed: b: yes"
    assert failed_alone([("a", "no"), ("b", "")]) == "rank 0 failed: a: no; rank 1 did not fail"
    assert [_told(SpecdecError("no")), _told(KeyError(3))] == ["no", "KeyError: 3"]


def test_no_memory_is_missing_where_exactly_that_much_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_bytes", lambda device: 2**30)
    devices.require_memory(2**30, CPU, "it")
    with pytest.raises(SpecdecError) as refused:
        devices.require_memory(2**30 + 1, CPU, "it")
    assert str(refused.value) == (
        "it needs about 1.00 GiB and cpu has 1.00 GiB free; choose a smaller model, a smaller batch, fewer tokens or "
        "another dtype"
    )
