"""What a head computes, by the formulas of its paper in float64: training and drafting share the code under test."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.decoder import Cells
from specdec_kernels.reference import Reference
from specdec_plugins.heads import training
from specdec_plugins.heads.eagle_head import EagleHead, EagleShape
from specdec_plugins.heads.medusa_heads import MedusaHeads

OPS = Reference()
EPS = 0.3  # large enough to be seen, and to be missed


def _numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _filled(head: torch.nn.Module) -> dict[str, Tensor]:
    """Give every weight of a head values of its own; returns them in float64."""
    for seed, weight in enumerate(head.parameters()):
        weight.data.copy_(_numbers(seed, *weight.shape))
    return {name: weight.detach().double() for name, weight in head.named_parameters()}


def _normed(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + EPS).sqrt() * gain


def _silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


@torch.no_grad()
def test_an_eagle_head_is_a_decoder_layer_over_the_normed_pair_of_a_token_and_the_state_before_it() -> None:
    """Four heads of queries, two of keys and values; EAGLE, Li et al. 2401.15077, with a norm for each of the pair."""
    size, heads, heads_kv, dim, theta, length = 12, 4, 2, 6, 100.0, 5
    head = EagleHead(EagleShape(size, 10, heads, heads_kv, dim, EPS, theta))
    w, embedded, hidden = _filled(head), _numbers(20, 1, length, size), _numbers(21, 1, length, size)
    token, state = embedded[0].double(), hidden[0].double()

    x = torch.cat([_normed(token, w["token_norm"]), _normed(state, w["hidden_norm"])], dim=1) @ w["enter"].T
    query, keys, values = (_normed(x, w["norm_before"]) @ w["qkv"].T).split(
        [heads * dim, heads_kv * dim, heads_kv * dim], dim=1
    )
    angle = torch.arange(length)[:, None] / theta ** (torch.arange(0, dim, 2).double() / dim)

    def turned(vectors: Tensor) -> Tensor:
        left, right = vectors.view(length, -1, dim).chunk(2, dim=2)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=2)

    query, keys, values = turned(query), turned(keys), values.view(length, heads_kv, dim)
    mixed = torch.zeros(length, heads, dim, dtype=torch.float64)
    for place in range(length):
        for one in range(heads):
            shared = one // (heads // heads_kv)
            seen = keys[: place + 1, shared] @ query[place, one] / dim**0.5
            mixed[place, one] = seen.softmax(dim=0) @ values[: place + 1, shared]
    x = x + mixed.view(length, -1) @ w["out"].T
    gate, up = (_normed(x, w["norm_after"]) @ w["gate_up"].T).chunk(2, dim=1)
    x = x + (_silu(gate) * up) @ w["down"].T

    [found] = training.unrolled_eagle(head, OPS, embedded, hidden, 1)
    torch.testing.assert_close(found[0].double(), _normed(x, w["norm"]), rtol=1e-4, atol=1e-4)
    first, empty = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, heads_kv, 1, dim)
    cells = Cells(empty, empty.clone(), first, torch.zeros(1, 1, 1, 1))
    alone = head(OPS, embedded[:, :1], hidden[:, :1], head.turn(first, torch.float32), cells)
    torch.testing.assert_close(alone, found[:, :1], msg="without its weights in another form")


@torch.no_grad()
def test_a_medusa_head_adds_to_the_normed_state_what_its_block_makes_of_the_normed_pair() -> None:
    """Medusa, Cai et al. 2401.10774, here with the last token as a second input."""
    size, wide, count, rows = 6, 4, 3, 5
    head = MedusaHeads(size, wide, count, EPS)
    w, embedded, hidden = _filled(head), _numbers(20, rows, size), _numbers(21, rows, size)
    state = _normed(hidden.double(), w["hidden_norm"])
    inner = _silu(torch.cat([_normed(embedded.double(), w["token_norm"]), state], dim=1) @ w["up"].T)
    found = head(OPS, embedded, hidden)
    assert found.shape == (rows, count, size)
    for one in range(count):
        block = inner[:, one * wide : (one + 1) * wide] @ w["down"][one * size : (one + 1) * size].T
        torch.testing.assert_close(found[:, one].double(), _normed(state + block, w["norm"]), rtol=1e-4, atol=1e-4)
