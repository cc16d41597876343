"""What the C++ functions of the cpu backend are called with, written out by hand; none of them runs."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec import Request, SamplingParams
from specdec.ledger import stacked
from specdec.packed import Packed
from specdec.quantised import Quantised
from specdec_kernels import build, cpu
from specdec_kernels.cpu import Cpu, Processors

THREADS = 3
_address = ctypes.addressof


class _Calls:
    """A library whose functions note their arguments; an address is written as the name of its tensor."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[Any]]] = []
        self.known: dict[int, tuple[str, Tensor]] = {}

    def name(self, **tensors: Tensor) -> None:
        """Name tensors; they are kept, so that no other gets the memory of one."""
        self.known.update((tensor.data_ptr(), (name, tensor)) for name, tensor in tensors.items())

    def __getattr__(self, op: str) -> Any:
        def called(*given: Any) -> None:
            self.seen.append((op, [self.known[value][0] if value in self.known else value for value in given]))

        return called


@pytest.fixture
def cpu_calls(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A backend and what it calls."""
    made = _Calls()
    monkeypatch.setattr(cpu, "load_cpu_library", lambda level: made)
    monkeypatch.setattr(cpu, "kernel_threads", lambda: THREADS)
    monkeypatch.setattr(build, "forbidden", lambda: None)
    return SimpleNamespace(backend=Cpu(), made=made)


def _only(cpu_calls: SimpleNamespace) -> tuple[str, list[Any]]:
    [(op, given)] = cpu_calls.made.seen
    cpu_calls.made.seen.clear()
    return op, given


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_a_product_is_called_with_kinds_addresses_and_sizes(
    cpu_calls: SimpleNamespace, bits: int | None, wide: bool
) -> None:
    whole = torch.randn(20, 64, generator=torch.Generator().manual_seed(1))
    weight = Packed.of(whole if bits is None else Quantised.of(whole, bits))
    for dtype, code in ((torch.float32, 0), (torch.bfloat16, 1)):
        x, bias = torch.zeros(2, 3, 64, dtype=dtype), torch.zeros(20)
        for given_bias in (None, bias):
            cpu_calls.made.name(x=x, bias=bias, weight=weight.data)
            if weight.scale is not None:
                cpu_calls.made.name(scale=weight.scale)
            y = cpu_calls.backend.linear(x, weight, given_bias, wide)
            assert (y.shape, y.dtype) == ((2, 3, 20), torch.float32 if wide else dtype)
            scale = None if weight.scale is None else "scale"
            start = [{None: 0, 8: 2, 4: 3}[bits], "weight", scale, None if given_bias is None else "bias"]
            rest = [code, 0 if wide else code, "x", y.data_ptr(), 6, 64, 20, THREADS]
            assert _only(cpu_calls) == ("specdec_linear", start + rest)


def test_rotary_has_its_operands_strides_and_a_step_between_angles_of_rows(
    cpu_calls: SimpleNamespace,
) -> None:
    query, keys = torch.zeros(2, 5, 6, 8)[:, :, ::2], torch.zeros(2, 3, 2, 8).transpose(1, 2)
    for rows, step in ((1, 0), (2, 24)):
        cos, sin = torch.zeros(rows, 3, 8), torch.zeros(rows, 3, 8)
        cpu_calls.made.name(query=query, keys=keys, cos=cos, sin=sin)
        turned = cpu_calls.backend.rotary(query, keys, cos, sin)
        assert [t.shape for t in turned] == [(2, 5, 3, 8), (2, 2, 3, 8)]
        where = ["query", "keys", "cos", "sin", *(t.data_ptr() for t in turned)]
        assert _only(cpu_calls) == ("specdec_rotary", [0, *where, 2, 5, 2, 3, 8, 240, 48, 16, 48, 8, 16, step])


def test_gates_of_any_number_of_axes_are_rows_a_stride_apart(cpu_calls: SimpleNamespace) -> None:
    for gate, up, numbers in (
        (torch.zeros(12), torch.zeros(12), [1, 12, 12, 12]),
        (torch.zeros(3, 20)[:, :12], torch.zeros(3, 15)[:, :12], [3, 12, 20, 15]),
        (torch.zeros(1, 3, 20)[..., :12], torch.zeros(1, 3, 15)[..., :12], [3, 12, 20, 15]),
        (torch.zeros(2, 3, 20)[..., :12], torch.zeros(2, 3, 15)[..., :12], [6, 12, 20, 15]),
        (torch.zeros(2, 1, 3, 12), torch.zeros(2, 1, 3, 12), [6, 12, 12, 12]),
    ):
        cpu_calls.made.name(gate=gate, up=up)
        y = cpu_calls.backend.silu_mul(gate, up)
        assert y.shape == gate.shape
        assert _only(cpu_calls) == ("specdec_silu_mul", [0, "gate", "up", y.data_ptr(), *numbers, THREADS])


def test_attention_has_the_strides_of_all_and_no_cap_as_zero(cpu_calls: SimpleNamespace) -> None:
    query, (keys, values) = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 2, 9, 8)
    keys = keys[:, :, :7]
    for mask, steps in (
        (torch.zeros(2, 1, 3, 7), [21, 7]),
        (torch.zeros(1, 1, 3, 7).expand(2, -1, -1, -1), [0, 7]),
        (torch.zeros(2, 1, 3, 9)[..., :7], [27, 9]),
    ):
        for cap, told in ((None, 0.0), (5.0, 5.0)):
            cpu_calls.made.name(query=query, keys=keys, values=values, mask=mask)
            out = cpu_calls.backend.tree_attention(query, keys, values[:, :, :7], mask, 0.5, cap)
            assert out.shape == (2, 3, 4, 8)
            where = ["query", "keys", "values", "mask", out.data_ptr()]
            strides = [96, 24, 8, 144, 72, 8, 144, 72, 8]
            numbers = [2, 4, 2, 3, 7, 8, *strides, *steps, 0.5, told, THREADS]
            assert _only(cpu_calls) == ("specdec_tree_attention", [0, *where, *numbers])


def _told(address: int) -> dict[str, Any]:
    given = Processors.from_address(address)
    return {name: getattr(given, name) for name, *_ in given._fields_}


def test_logits_without_adjustments_are_processed_with_four_numbers_a_row_and_nothing_else(
    cpu_calls: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [Request(row, (1,), SamplingParams(temperature=0.7, top_k=3 + row)) for row in range(2)]
    given, told = stacked(asked, 40, torch.device("cpu")), list[dict[str, Any]]()

    def addressed(made: Any) -> int:
        told.append(_told(_address(made)))
        return 7

    monkeypatch.setattr(ctypes, "addressof", addressed)
    logits = torch.zeros(2, 3, 40)
    cpu_calls.made.name(logits=logits)
    for paths in (None, torch.zeros(2, 3, 2, dtype=torch.int64)):
        out = cpu_calls.backend.process(logits, replace(given, adjustments=None), paths)
        assert _only(cpu_calls) == ("specdec_process", [7, "logits", out.data_ptr(), 2, 3, 40, THREADS])
        of_paths = {"paths": None, "depth": 0} if paths is None else {"paths": paths.data_ptr(), "depth": 2}
        four = {name: getattr(given, name).data_ptr() for name in ("temperature", "top_p", "min_p", "top_k")}
        none = dict.fromkeys(("bias", "seen", "emitted", "repetition", "frequency", "presence", "banned"))
        zero = dict.fromkeys(("bans", "bias_stride", "seen_stride", "emitted_stride"), 0)
        assert told.pop() == {**four, **none, **zero, **of_paths}
