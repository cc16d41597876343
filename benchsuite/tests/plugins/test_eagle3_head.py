"""EAGLE-3's network: equal to its formula, written out in plain torch for one token at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchsuite.tests.plugins.eagle3_heads import INVERSE, SHAPE, SHAPES, head_of
from specdec.decoder import Cells
from specdec_kernels.reference import Reference
from specdec_plugins.heads import training
from specdec_plugins.heads.eagle3_head import Eagle3Head, Eagle3Layer

OPS = Reference()
LENGTH = 5


def normed(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + SHAPE.eps).sqrt() * gain


def turned(x: Tensor, position: int) -> Tensor:
    """Each pair (i, i + d / 2) of [heads, d], turned in its plane as a complex number, and made 1.25 times as long."""
    pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.full_like(INVERSE, 1.25), position * INVERSE)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def layer_by_hand(layer: Eagle3Layer, given: list[Tensor], residual: list[Tensor]) -> list[Tensor]:
    """The results for all tokens of one text, of what is projected and of the residual, [inputs] and [H] each."""
    queries, keys, values = [], [], []
    for position, x in enumerate(given):
        row = layer.qkv @ x + (0 if layer.qkv_bias is None else layer.qkv_bias)
        query, key, value = (part.view(-1, 6) for part in row.split([24, 12, 12]))
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = normed(query, layer.query_norm), normed(key, layer.key_norm)
        queries.append(turned(query, position))
        keys.append(turned(key, position))
        values.append(value)
    out = []
    for position, x in enumerate(residual):
        seen = []
        for h in range(4):
            scores = torch.stack([queries[position][h] @ keys[at][h // 2] / math.sqrt(6) for at in range(position + 1)])
            shares = scores.softmax(0)
            seen.append(sum(share * values[at][h // 2] for at, share in enumerate(shares)))
        h_after = x + layer.out @ torch.cat(seen) + (0 if layer.out_bias is None else layer.out_bias)
        wide = layer.gate_up @ normed(h_after, layer.norm_after)
        gate, up = (wide if layer.gate_up_bias is None else wide + layer.gate_up_bias).chunk(2)
        down = layer.down @ (F.silu(gate) * up)
        out.append(h_after + (down if layer.down_bias is None else down + layer.down_bias))
    return out


def by_hand(head: Eagle3Head, embedded: Tensor, features: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Own features and logits after each of the tokens, embeddings and features [T, H]."""
    first, *further = [*head.layers]
    assert isinstance(first, Eagle3Layer)
    states = [normed(feature, first.norm_before) for feature in features]
    given = [torch.cat([normed(e, head.token_norm), s]) for e, s in zip(embedded, states, strict=True)]
    x = layer_by_hand(first, given, states if head.shape.norm_before_residual else [*features])
    for layer in further:
        assert isinstance(layer, Eagle3Layer)
        x = layer_by_hand(layer, [normed(one, layer.norm_before) for one in x], x)
    last = [normed(one, head.norm) for one in x]
    return last if head.shape.norm_output else x, [head.output @ one for one in last]


@pytest.mark.parametrize("name", SHAPES)
def test_tokens_one_by_one_and_together_are_the_formula_of_the_paper(name: str) -> None:
    head = head_of(SHAPES[name])
    states, embedded = torch.randn(1, LENGTH, 3, 10).double(), torch.randn(1, LENGTH, 16).double()
    weights = head.weights(OPS)
    fused = head.fused(OPS, states, weights)
    one = states[0].flatten(1)
    if head.fusion_norm is not None:
        parts = states[0] if head.shape.fusion_norm == "each" else one
        one = normed(parts, head.fusion_norm).flatten(1)
    assert torch.allclose(fused[0], one @ head.fusion.T)
    # The last two tokens read what the head itself made of the token before them, as in drafting.
    features = fused[0]
    for own in (3, 4):
        made, _ = by_hand(head, embedded[0, :own], features[:own])
        features = torch.cat([features[:own], made[-1][None], features[own + 1 :]])
    expected, logits = by_hand(head, embedded[0], features)
    empty = [torch.zeros(1, 2, LENGTH, 6).double() for _ in range(2 * head.shape.layers)]
    feature = fused[:, :0]
    for start, end in ((0, 3), (3, 4), (4, 5)):
        place = torch.arange(start, end)[None]
        sees = torch.arange(LENGTH)[None, None] <= place[:, :, None]
        mask = torch.zeros(1, 1, end - start, LENGTH).double().masked_fill_(~sees[:, None], -torch.inf)
        at = [Cells(empty[2 * i], empty[2 * i + 1], place, mask) for i in range(head.shape.layers)]
        given = fused[:, :3] if start == 0 else feature[:, -1:]
        turn = head.turn(place, torch.float64)
        feature = head(OPS, embedded[:, start:end], given, turn, at, weights)
        found = head.logits(OPS, feature, weights)
        assert torch.allclose(feature[0], torch.stack(expected[start:end])), (start, end)
        assert torch.allclose(found[0], torch.stack(logits[start:end]).float(), atol=1e-5), (start, end)


def test_training_unrolls_what_drafting_computes_over_the_states_of_the_layers_alone() -> None:
    head = head_of(SHAPE)
    hidden, embedded = torch.randn(1, LENGTH, 4, 10).double(), torch.randn(1, LENGTH, 16).double()
    hidden[:, :, 3] = torch.nan  # the input of the target's head, which gives labels and is not read
    first, second = training.unrolled(head, OPS, embedded, hidden, 2)
    fused = head.fused(OPS, hidden[:, :, :3], head.weights(OPS))[0]
    made, _ = by_hand(head, embedded[0], fused)
    assert torch.allclose(first[0], torch.stack(made))
    for last in range(1, LENGTH):
        again, _ = by_hand(head, embedded[0, : last + 1], torch.cat([fused[:last], made[last - 1][None]]))
        assert torch.allclose(second[0, last], again[-1])


def test_in_8_bits_every_matrix_is_read_in_codes_and_counted_as_such() -> None:
    head = head_of(replace(SHAPE, layers=2)).float()
    matrices = [p for p in head.parameters() if p.dim() == 2]
    assert head.weights(OPS).nbytes == 4 * sum(p.numel() for p in matrices)
    assert head.weights(OPS, 8).nbytes == sum(p.numel() + 4 * len(p) for p in matrices)
    states = torch.randn(1, 3, 3, 10)
    exact, rounded = (head.fused(OPS, states, head.weights(OPS, bits)) for bits in (None, 8))
    assert 0 < float((exact - rounded).abs().max()) < 0.02 * float(exact.abs().max())
