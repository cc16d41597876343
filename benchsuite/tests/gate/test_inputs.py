"""Digests of what a run reads, against a computation of their own, so that a file of last year can be compared."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchsuite.gate.inputs import prompts_digest, tokenizer_digest, weights_digest
from benchsuite.measure.workloads import Question

SAMPLED = 4096
"""Numbers of a tensor that are digested; a file of last year has as many."""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_prompts_are_digested_as_a_list_of_their_turns() -> None:
    assert prompts_digest([Question(("a", "b")), Question(("ç",))]) == _hash('[["a", "b"], ["\\u00e7"]]')
    assert prompts_digest([]) == _hash("[]")


def test_a_tokenizer_is_digested_with_its_special_tokens_in_order_and_its_template() -> None:
    given: dict[str, Any] = {"special_tokens_map": {"z": "<z>", "a": 1j}, "chat_template": "{{ m }}"}
    special = '{"a": "1j", "z": "<z>"}\n{{ m }}'
    own = SimpleNamespace(backend_tokenizer=SimpleNamespace(to_str=lambda: "whole"), **given)
    assert tokenizer_digest(own) == _hash(f"whole\n{special}")
    words = SimpleNamespace(get_vocab=lambda: {"y": 1, "b": 0}, **given)
    assert tokenizer_digest(words) == _hash(f'{{"b": 0, "y": 1}}\n{special}')


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_weights_are_digested_by_name_shape_sum_and_every_so_manyth_number(dtype: torch.dtype) -> None:
    class Numbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, count in (("few", 3), ("many", 3 * SAMPLED + 7)):
                values = torch.arange(count).remainder(101).to(dtype)
                self.register_parameter(name, nn.Parameter(values.reshape(1, -1), requires_grad=False))

    model = Numbers()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    expected = hashlib.sha256()
    for name, count, step in (("few", 3, 1), ("many", 3 * SAMPLED + 7, 3)):
        bits = getattr(model, name).view(integers[dtype.itemsize])[0]
        total = (sum(bits.tolist()) + 2**63) % 2**64 - 2**63  # eight bytes, which the sum of doubles' bits leaves
        expected.update(f"{name} (1, {count}) {dtype} {total} ".encode())
        expected.update(bits.numpy()[::step].tobytes())
    assert weights_digest(model) == expected.hexdigest()[:16]


def test_weights_that_do_not_lie_side_by_side_are_digested_in_order() -> None:
    model, moved = nn.Linear(5, 7), nn.Linear(5, 7)
    model.load_state_dict(moved.state_dict())
    with torch.no_grad():
        moved.weight.set_(moved.weight.t().contiguous().t())  # type: ignore[call-overload]
    assert moved.weight.stride() != model.weight.stride()
    assert weights_digest(moved) == weights_digest(model)
