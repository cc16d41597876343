"""Heads in 8 and 4 bits: the codes are what is read, counted as such, and the head is that of the rounded matrices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchsuite.conformance.models.tiny import registry, requests
from benchsuite.tests.recorded_heads import Led, recorded_assembly, recorded_head, recorded_steps
from benchsuite.tests.rig import HEAD_IDS, Make, saved_head, slow_after
from specdec import SamplingParams, SpecdecError
from specdec.decoder import Cells
from specdec.quantised import Quantised
from specdec_kernels.reference import Reference
from specdec_plugins.heads import files
from specdec_plugins.heads.eagle_head import EagleHead, EagleShape
from specdec_plugins.heads.rounding import bits_named, matrix_for, stored_bytes

SHAPE = EagleShape(hidden=64, intermediate=96, heads=4, heads_kv=2, head_dim=16, eps=1e-5, theta=1e4)


def rounded_head() -> EagleHead:
    torch.manual_seed(0)
    head = EagleHead(SHAPE).requires_grad_(False)
    for parameter in head.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.1 + (parameter.dim() == 1))
    return head


def after(head: EagleHead, ops: Any, bits: int | None) -> Tensor:
    """The states after three tokens."""
    torch.manual_seed(1)
    embedded, hidden, place = torch.randn(1, 3, 64), torch.randn(1, 3, 64), torch.arange(3)[None]
    mask = torch.zeros(1, 1, 3, 3).masked_fill_(torch.ones(3, 3).triu(1).bool(), -torch.inf)
    cells = Cells(torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3, 16), place, mask)
    state: Tensor = head(ops, embedded, hidden, head.turn(place, torch.float32), cells, head.weights(ops, bits))
    return state


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_a_head_in_codes_is_the_head_of_the_rounded_matrices(bits: int, backend: str) -> None:
    ops, head = registry().backend(backend), rounded_head()
    found, exact = after(head, ops, bits), after(head, Reference(), None)
    for parameter in head.parameters():
        if parameter.dim() == 2:
            parameter.copy_(Quantised.of(parameter, bits).dequantise())
    expected = after(head, Reference(), None)
    error = float((expected - exact).abs().max())
    assert error > 1e-3
    assert float((found - expected).abs().max()) < 0.01 * error


def test_bytes_are_those_of_codes_and_scales() -> None:
    head = rounded_head()
    matrices = [p for p in head.parameters() if p.dim() == 2]
    vectors = 4 * sum(p.numel() for p in head.parameters() if p.dim() == 1)
    numbers, outputs = sum(p.numel() for p in matrices), sum(len(p) for p in matrices)
    assert stored_bytes(head, None) == vectors + 4 * numbers
    assert stored_bytes(head, 8) == vectors + numbers + 4 * outputs
    assert stored_bytes(head, 4) == vectors + numbers // 2 + 8 * numbers // 32


def test_the_option_names_the_bits() -> None:
    assert [bits_named(text) for text in ("float", "int8", "int4")] == [None, 8, 4]
    with pytest.raises(SpecdecError, match="weights is 'int7'; expected float, int8 or int4"):
        bits_named("int7")
    matrix = torch.randn(4, 32)
    assert matrix_for(Reference(), matrix, None) is matrix


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_draft_in_codes_proposes_what_its_rounded_head_does_and_the_text_is_plain(
    weights: str, assemble: Make, tmp_path: Path
) -> None:
    build = assemble(max_rows=2)
    path = saved_head("eagle", build, tmp_path)
    params = SamplingParams(max_new_tokens=16)
    plain = build.engine(None).run(requests(params))
    engine = build.engine(f"eagle(head={path!r}, weights={weights})", k=3)
    found = engine.run(requests(params))
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    head, ids = files.load_eagle(path, build.target)
    assert torch.equal(ids, HEAD_IDS)
    assert engine.draft is not None
    rows = build.target.model.get_output_embeddings().weight[ids]
    bits = bits_named(weights)
    assert engine.draft.weight_bytes == stored_bytes(head, bits) + Quantised.of(rows, bits or 8).nbytes


def proposed_and_bytes(path: str, name: str, options: str) -> tuple[Tensor, int]:
    """The distributions of all proposals along a recorded text, and the bytes that a forward reads."""
    steps, form = recorded_steps(name), name.partition("/")[0]
    if form == "peagle":
        steps = {**steps, "tokens": torch.cat([torch.tensor([9]), steps["tokens"]])}
    led = Led(
        recorded_assembly().engine(f"{form}(head={path!r}{options})", "rejection", k=3),
        steps,
        SamplingParams(temperature=1.0),
    )
    found = [window.q for _, _, window in led.places(3, 2)]
    return torch.stack([q for q in found if q is not None]), led.draft.weight_bytes


LOOKED_UP = ("embed_tokens.weight", "markov_head.markov_w1.weight", "confidence_head.proj.weight")
"""Matrices of published heads of which rows are read, and one of a single row: they are not rounded."""


@pytest.mark.parametrize("name", slow_after(3, ["dflash/windows", "dspark/gated", "peagle/llama", "dspark/rnn"]))
def test_a_published_block_in_codes_proposes_what_the_head_of_its_rounded_matrices_does(
    name: str, tmp_path: Path
) -> None:
    path, rounded = recorded_head(name), tmp_path / "rounded"
    shutil.copytree(path, rounded)
    tensors = load_file(rounded / "model.safetensors")
    for key, tensor in tensors.items():
        if tensor.dim() == 2 and key not in LOOKED_UP:
            tensors[key] = Quantised.of(tensor, 8).dequantise()
    save_file(tensors, rounded / "model.safetensors")
    exact, stored = proposed_and_bytes(path, name, "")
    found, read = proposed_and_bytes(path, name, ", weights=int8")
    expected, _ = proposed_and_bytes(str(rounded), name, "")
    assert float((expected - exact).abs().max()) > 1e-4
    assert float((found - expected).abs().max()) < 1e-5, "sums in another order"
    assert read < 0.8 * stored
    with pytest.raises(SpecdecError, match="weights is 'int7'; expected float, int8 or int4"):
        proposed_and_bytes(path, name, ", weights=int7")
