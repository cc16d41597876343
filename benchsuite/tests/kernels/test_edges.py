"""C++ at single values where a comparison, a rounding or a block decides: by hand, or as the reference has them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.ops.agreement import disagreement
from benchsuite.conformance.ops.cases import Case, _attention, _layers, _process, every_tail
from specdec import Request, SamplingParams, Window
from specdec.ledger import stacked
from specdec.ops import Ops
from specdec_kernels import cpu
from specdec_kernels.reference import Reference

LEVELS = ["auto", *(pytest.param(level, marks=pytest.mark.slow) for level in cpu.levels()[1:])]
BOTH = (torch.float32, torch.bfloat16)
NEVER = float("-inf")


def _edge_ops(level: str = "auto") -> Ops:
    ops = registry().backend("cpu" if level == "auto" else f"cpu(level={level})")
    if ops.chain[0].name != "cpu":
        pytest.skip("no C++ compiler")
    return ops


@pytest.mark.parametrize("level", LEVELS)
def test_a_result_in_bfloat16_is_rounded_to_the_nearest_and_between_two_to_the_even_one(level: str) -> None:
    """Sums of two numbers that float32 holds exactly: below, at and above the middle of two neighbours."""
    ops = _edge_ops(level)
    first = 1 + torch.arange(128) / 128
    second = torch.tensor([-1.0, 0.0, 1.0]) * 2.0**-15 + torch.tensor([[0.0], [2.0**-9], [2.0**-8], [2.0**-8 * 1.5]])
    second = second.flatten().bfloat16().float()
    pairs = torch.cartesian_prod(first, second)
    pairs = torch.cat([pairs, -pairs]).bfloat16()
    expected = pairs.float().sum(dim=1, keepdim=True).bfloat16()
    weight = ops.pack(torch.ones(1, 2, dtype=torch.bfloat16))
    assert torch.equal(ops.linear(pairs, weight, None), expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [64, 3])
def test_silu_of_very_negative_numbers_errs_in_the_last_places_alone(level: str, size: int) -> None:
    """There it is x times exp(x), so that an error of the exponential is not hidden by a larger summand."""
    backend = _edge_ops(level).chain[0]
    gate = -torch.linspace(1, 86, 192 * 64).view(-1, size)
    truth = gate.double() / (1 + (-gate.double()).exp())
    got = backend.silu_mul(gate, torch.ones_like(gate))
    assert float(((got - truth) / truth).abs().max()) < 3.5e-7


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("length", [2, 5, 16, 37])
def test_a_finite_mask_is_added_to_the_scores(level: str, length: int) -> None:
    """With queries of zeros the weights are the softmax of the mask; the values show them."""
    ops = _edge_ops(level)
    mask = torch.linspace(-3, 2, length).roll(length // 2).view(1, 1, 1, length)
    values = torch.eye(length).view(1, 1, length, length)
    query = torch.zeros(1, 1, 1, length)
    got = ops.tree_attention(query, torch.ones_like(values), values, mask, 1.0, None)
    torch.testing.assert_close(got[0, 0, 0], mask[0, 0, 0].softmax(dim=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("level", LEVELS)
def test_a_weight_of_exp_of_minus_87_counts_and_one_below_is_zero(level: str) -> None:
    least = torch.tensor(-87.0)
    mask = torch.stack([torch.tensor(0.0), least, least.nextafter(torch.tensor(-88.0))]).expand(1, 1, 1, 3)
    values = torch.zeros(1, 1, 3, 16)
    values[0, 0, 1, 0] = values[0, 0, 2, 1] = 1e38
    got = _edge_ops(level).tree_attention(torch.zeros(1, 1, 1, 16), values * 0, values, mask.contiguous(), 1.0, None)
    assert float(got[0, 0, 0, 0]) == pytest.approx(1.6458114, rel=1e-5)
    assert got[0, 0, 0, 1:].tolist() == [0.0] * 15


AT_BLOCKS = [
    # More than 256 cells beside a last part of a value that is no whole tile: values are copied block by block.
    *(Case("tree_attention", f"{n}-cells-of-{d}", _attention(1, 2, n, d)) for n, d in ((300, 10), (600, 20), (256, 9))),
    *(Case("tree_attention", f"{w}-wide-{d}", _attention(1, w, 300, d, (2, 2))) for w, d in ((1, 64), (3, 40))),
    # More than 192 rows enter a product in parts, each with what is added to it.
    Case("decoder_layers", "rows-200", _layers(20, 10, hidden=48, inner=32)),
    # More than 256 numbers of a row are shared by threads part by part.
    *(Case("decoder_layers", f"inner-{n}", _layers(1, 3, hidden=32, inner=n)) for n in (255, 256, 257, 300, 513)),
    *(case for case in every_tail() if case.op == "decoder_layers" and case.name in ("tail-1", "tail-7", "tail-15")),
    # Minus infinity beside few logits: top-k of more tokens than are possible.
    *(Case("process", f"top-k-{k}", _process(2, 2, 40, {"top_k": (k,), "temperature": (1.0,)})) for k in (39, 40, 41)),
]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_sizes_past_a_block_agree_with_the_reference(level: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = _edge_ops(level)
    monkeypatch.setattr(cpu, "kernel_threads", lambda: threads)
    for case in AT_BLOCKS:
        for dtype in BOTH if case.op != "process" else BOTH[:1]:
            assert (wrong := disagreement(ops, case, dtype)) is None, f"{case.name}, {dtype}: {wrong}"
    assert {name for _, name in ops.ran()} == {"cpu"}


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize(
    ("heads", "width", "length"),
    [((1, 1), 1, 700), ((9, 3), 1, 600), ((9, 3), 8, 2100), ((4, 2), 30, 300), ((3, 3), 9, 90)],
)
def test_attention_is_the_same_on_any_number_of_threads(
    heads: tuple[int, int], width: int, length: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that are idle, that share the queries of a head, and that share its cells."""
    ops = _edge_ops()
    given = _attention(1, width, length, 64, heads)(torch.Generator().manual_seed(7), torch.float32)
    results = []
    for count in (1, threads):
        monkeypatch.setattr(cpu, "kernel_threads", lambda count=count: count)
        results.append(ops.tree_attention(*given))
    assert torch.equal(*results)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seen", [(0,), (599,), (255, 256), (3, 400), (64, 320, 511)])
def test_values_of_few_cells_far_apart_have_their_softmax_beside_pieces_of_which_nothing_is_seen(
    level: str, seen: tuple[int, ...]
) -> None:
    """Two slots: the other one sees every cell, and one that is as far from any other score as float32 goes."""
    ops, cells = _edge_ops(level), torch.tensor(seen)
    g = torch.Generator().manual_seed(1)
    query, keys, values = (torch.randn(1, 1, n, 16, generator=g) for n in (2, 600, 600))
    keys[0, 0, seen[0]] *= 40
    mask = torch.full((1, 1, 2, 600), NEVER)
    mask[0, 0, 0, cells] = mask[0, 0, 1] = 0.0
    got = ops.tree_attention(query, keys, values, mask, 1.0, None)[0, :, 0].double()
    for slot, own in enumerate((cells, torch.arange(600))):
        weights = (query[0, 0, slot].double() @ keys[0, 0, own].double().T).softmax(dim=0)
        torch.testing.assert_close(got[slot], weights @ values[0, 0, own].double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("place", [slice(1), slice(256, 512), slice(599, 600)])
def test_keys_that_are_not_numbers_are_seen_in_the_result_wherever_they_lie(level: str, place: slice) -> None:
    make = _attention(1, 2, 600, 16, (2, 1), seen=1.0)
    query, keys, values, mask, *rest = make(torch.Generator().manual_seed(2), torch.float32)
    mask[:, :, 1] = NEVER
    mask[:, :, 1, place.stop % 600] = 0.0  # a cell that is none of them
    keys[:, :, place] = float("nan")
    got = _edge_ops(level).tree_attention(query, keys, values, mask, *rest)
    assert got[:, 0].isnan().all()
    assert got[:, 1].isfinite().all()


def _kept_logits(logits: list[float], **params: float) -> list[float]:
    """One slot's logits after the parameters, at temperature 1; asserts that the reference keeps the same tokens."""
    asked = Request(0, (1,), SamplingParams(temperature=1.0, **params))  # type: ignore[arg-type]
    stack = stacked([asked], len(logits), torch.device("cpu"))
    given = torch.tensor(logits).view(1, 1, -1)
    got = _edge_ops().process(given, stack, None)
    assert torch.equal(got > NEVER, Reference().process(given, stack, None) > NEVER)
    found: list[float] = got.flatten().tolist()
    return found


def test_top_p_ends_at_the_token_that_reaches_it_exactly() -> None:
    assert _kept_logits([0.0] * 4, top_p=0.5) == [0.0, 0.0, NEVER, NEVER]
    assert _kept_logits([0.0] * 4, top_p=0.25) == [0.0, NEVER, NEVER, NEVER]
    assert _kept_logits([0.0] * 64, top_p=0.5) == [0.0] * 32 + [NEVER] * 32
    assert _kept_logits([0.0] * 512, top_p=0.75) == [0.0] * 384 + [NEVER] * 128


def test_top_k_keeps_possible_tokens_however_unlikely_and_is_content_with_fewer() -> None:
    assert _kept_logits([-200.0, 0.0, -100.0], top_k=2) == [NEVER, 0.0, -100.0]
    few = [NEVER] * 40
    few[3], few[21], few[39] = 1.0, 2.0, -90.0
    for top_k in (3, 5, 39):
        assert _kept_logits(few, top_k=top_k) == few
    assert _kept_logits(few, top_k=2) == [one if one > 0 else NEVER for one in few]
    assert _kept_logits([3.0, 2.0, 2.0, 1.0], top_k=2) == [3.0, 2.0, 2.0, NEVER]


def test_min_p_keeps_what_is_barely_as_likely() -> None:
    """The logarithm of 1/4 is -1.38629: a little above it a token stays, a little below it goes."""
    assert _kept_logits([0.0, -1.3858, -1.3868, -9.0], min_p=0.25) == [0.0, pytest.approx(-1.3858), NEVER, NEVER]
    assert _kept_logits([0.0, -4.5, -4.7], min_p=0.01) == [0.0, -4.5, NEVER]
    assert _kept_logits([0.0, 1.0, 1.0], min_p=1.0) == [NEVER, 1.0, 1.0]


def test_a_proposed_token_0_is_penalised_and_forbidden_as_any_other() -> None:
    """The window proposes 0, then 0 and 2: what a slot's path holds counts once for each time."""
    asked = Request(0, (3,), SamplingParams(temperature=1.0, frequency_penalty=0.5, presence_penalty=0.25))
    window = Window.chain(torch.tensor([1]), torch.tensor([[0, 0, 2]]), torch.tensor([3]))
    stack = stacked([asked], 6, torch.device("cpu"))
    logits = torch.ones(1, 4, 6)
    got = _edge_ops().process(logits, stack, window.paths)
    assert torch.equal(got, Reference().process(logits, stack, window.paths))
    assert got[0, :, 0].tolist() == [1.0, 0.25, -0.25, -0.25]
    assert got[0, :, 2].tolist() == [1.0, 1.0, 1.0, 0.25]
    banned = stacked(
        [replace(asked, params=SamplingParams(temperature=1.0, bad_words=((0,),)))], 6, torch.device("cpu")
    )
    assert _edge_ops().process(logits, banned, window.paths)[0].tolist() == [[NEVER, *[1.0] * 5]] * 4


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1, 3, 8, 37])
def test_the_largest_logit_is_found_at_every_place(level: str, size: int) -> None:
    """Of single rows: as a token, and as the one that greedy processing keeps."""
    ops = _edge_ops(level)
    logits = torch.zeros(1, size, size) + torch.eye(size)
    assert ops.sample(logits, None).tolist() == [list(range(size))]
    assert ops.sample(logits - 9.0, None).tolist() == [list(range(size))]
    assert ops.sample(logits * 2.0**30, torch.arange(size)[None]).tolist() == [list(range(size))]
    greedy = stacked([Request(0, (0,), SamplingParams())], size, torch.device("cpu"))
    assert torch.equal(ops.process(logits, greedy, None)[0] == 0, torch.eye(size) == 1)


def _drawn_after_a_proposal(ops: Ops, p: Tensor, q: Tensor | None, token: int, rows: int = 64) -> tuple[Tensor, Tensor]:
    """Which of many rows keep a proposal, and what is drawn next; asserts that the reference does the same."""
    keys = [torch.randint(2**62, (rows, 2), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    proposed = torch.full((rows,), token)
    told = None if q is None else q.expand(rows, 1, -1)
    window = Window.chain(proposed, proposed[:, None], torch.ones_like(proposed), told)
    target = p.expand(rows, 2, -1)
    got, expected = (of.rejection_sample(target, window, *keys) for of in (ops, Reference()))
    assert torch.equal(got.num_accepted, expected.num_accepted)
    assert torch.equal(got.next, expected.next)
    return got.num_accepted == 1, got.next


def test_a_proposal_that_the_draft_never_makes_is_rejected() -> None:
    p = torch.tensor([0.25, 0.75])
    kept, _ = _drawn_after_a_proposal(_edge_ops(), p, torch.tensor([0.0, 1.0]), 0)
    assert not kept.any()


@pytest.mark.parametrize("only", [0, 5, 36])
def test_what_is_left_at_one_token_alone_is_drawn_wherever_it_is(only: int) -> None:
    """The first, one in the middle and the last; the proposal has all of q."""
    p = torch.zeros(37)
    p[7], p[only] = 0.5, 0.5
    q = torch.zeros(37)
    q[7] = 1.0
    for draft in (q, None):
        kept, following = _drawn_after_a_proposal(_edge_ops(), p, draft, 7)
        assert {bool(one) for one in kept} == {True, False}
        assert set(following[~kept].tolist()) == {only}


@pytest.mark.parametrize("size", [2, 37])
def test_after_a_rejection_that_leaves_nothing_the_draw_is_from_p(size: int) -> None:
    """q is twice p, as no distribution is: half of the proposals are rejected, and no token has more than q."""
    p = torch.zeros(size)
    p[0], p[1] = 0.5, 0.5
    kept, following = _drawn_after_a_proposal(_edge_ops(), p, p * 2, 0)
    assert {bool(one) for one in kept} == {True, False}
    assert set(following[~kept].tolist()) == {0, 1}
