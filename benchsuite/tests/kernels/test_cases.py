"""The kit's cases of ops: each is what docs/cases.md says, and gives its op what the interface promises."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from benchsuite.conformance.guards.tape import result_tensors
from benchsuite.conformance.models import families
from benchsuite.conformance.ops import cases
from benchsuite.conformance.ops.agreement import to
from benchsuite.conformance.ops.cases import CASES, EVERY, FLOAT16_CASES, LAUNCHED, SMALL, TAILS, every_tail
from benchsuite.tests.kernels.described_cases import (
    ALL,
    all_parameters,
    branches,
    case_lines,
    given_to,
    kind_of_q,
    weight_kind,
    words_of,
)
from specdec.decoder import Cells, DecoderWeights
from specdec.interfaces import OPS
from specdec.messages import Verdict, Window
from specdec.processors import StackedParams
from specdec.quantised import Quantised
from specdec.request import SamplingParams
from specdec.sampling import gumbel

PAGE = (Path(__file__).parents[3] / "docs" / "cases.md").read_text(encoding="utf-8")
SETS = {
    **{"CASES": lambda: CASES, "SMALL": lambda: SMALL, "LAUNCHED": lambda: LAUNCHED, "TAILS": lambda: TAILS},
    "every_tail": every_tail,
}
OURS = [*CASES, *SMALL, *LAUNCHED, *TAILS]
NEVER = float("-inf")


def section(name: str) -> list[str]:
    """The items of a section of the page, each as one line."""
    text = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    return [f"- {' '.join(item.split())}" for item in text.split("\n- ")[1:]]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", SETS)
def test_the_page_of_cases_says_what_each_of_them_is(name: str, op: str) -> None:
    lines = case_lines(case for case in SETS[name]() if case.op == op)
    print("\n".join(["", *lines]))
    assert [line for line in section(name) if line.startswith(f"- `{op}` ")] == lines


def test_the_page_of_cases_has_a_section_for_each_set_and_says_what_all_parameters_are() -> None:
    assert re.findall(r"\n## (.*)\n", PAGE) == [*SETS]
    for name in SETS:
        ops = [line.split("`")[1] for line in section(name)]
        assert ops == sorted(ops)
        assert {*ops} <= {*OPS}
    assert f"{ALL[0].upper()}{ALL[1:]}: {all_parameters()}." in " ".join(PAGE.split())


def test_a_case_of_an_op_has_a_name_of_its_own_in_small_letters() -> None:
    for name, made in SETS.items():
        found = made()
        counts = Counter((case.op, case.name) for case in found)
        assert {key for key, count in counts.items() if count > 1} == set(), name
        assert {case.op for case in found} <= {*OPS}
        assert not [case.name for case in found if not re.fullmatch(r"[a-z0-9]+([-.x][a-z0-9]+)*", case.name)]


def test_cases_in_float16_are_those_in_both_other_dtypes() -> None:
    assert {case.dtypes for case in FLOAT16_CASES} == {(torch.float16,)}
    again = [(case.op, case.name, case.make) for case in CASES if len(case.dtypes) == 2]
    assert [(case.op, case.name, case.make) for case in FLOAT16_CASES] == again
    assert {case.dtypes for case in CASES} == {(torch.float32,), (torch.float32, torch.bfloat16)}


def test_every_parameter_is_on_in_one_row_of_a_case_and_off_in_another() -> None:
    assert {*EVERY} == {*vars(SamplingParams())} - {"seed", "max_new_tokens", "stop", "logprobs"}
    for name, values in EVERY.items():
        on = [getattr(SamplingParams(**{name: value}), name) != getattr(SamplingParams(), name) for value in values]
        assert any(on), name
        assert not all(on) or name == "eos", name


@pytest.mark.parametrize("op", OPS)
def test_a_cases_numbers_follow_from_its_generator_alone(op: str) -> None:
    """The same seed gives the same arguments, whatever was drawn before; another seed gives others."""
    for case in (case for case in (*CASES, *SMALL) if case.op == op and "empty" not in case.name):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            again = [*result_tensors(case.make(Generator().manual_seed(7), case.dtypes[0]))]
        for one, other in zip(result_tensors(given_to(case)), again, strict=True):
            assert one.dtype == other.dtype
            assert one.stride() == other.stride()
            assert torch.allclose(one.double(), other.double(), rtol=0, atol=0, equal_nan=True), case.name
        others = result_tensors(case.make(Generator().manual_seed(8), case.dtypes[0]))
        drawn = [one for one, other in zip(again, others, strict=True) if not one.equal(other)]
        few = sum(one.numel() for one in again) < 16 or "equal-noise" in case.name
        assert drawn or few or case.name == "tie", case.name


def check_floats(*tensors: Tensor, dtype: torch.dtype) -> None:
    """Finite numbers in the dtype that was asked for."""
    for tensor in tensors:
        assert tensor.dtype == dtype
        assert bool(tensor.isfinite().all())


def check_normal(*tensors: Tensor) -> None:
    """Numbers about zero of both signs, none far from the others."""
    for tensor in tensors:
        if tensor.numel() >= 1000:
            assert abs(float(tensor.double().mean())) < 0.3 * float(tensor.double().std())


def check_keys(*keys: Tensor) -> None:
    """Keys of both signs, over most of 64 bits, each with noise of its own."""
    for key in keys:
        assert key.dtype == torch.int64
        if key.numel() > 100:
            assert -(2**62) <= int(key.min()) < -(2**61)
            assert 2**61 < int(key.max()) < 2**62
            assert len({*key.flatten().tolist()}) == key.numel()


def check_window(window: Window, vocabulary: int) -> None:
    """What ``Window`` says of its tensors; rows end at different widths."""
    rows, width = window.tokens.shape
    assert window.tokens.dtype == window.parents.dtype == window.width.dtype == torch.int64
    assert bool(((window.tokens >= 0) & (window.tokens < vocabulary)).all())
    assert window.parents.shape == window.tokens.shape
    assert set(window.parents[:, 0].tolist()) == {-1}
    slots = torch.arange(width).expand(rows, width)
    assert bool(((window.parents >= 0) & (window.parents < slots))[:, 1:].all())
    assert window.width.shape == (rows,)
    assert bool(((window.width >= 1) & (window.width <= width)).all())
    if rows >= 24:
        assert {*window.width.tolist()} >= {1, width} or width > 9
        assert rows * width < 200 or len({*window.tokens.flatten().tolist()}) >= min(vocabulary, 30) - 1


def check_inside(*tensors: Tensor) -> None:
    """Views of larger tensors: they begin after the start of their memory and end before its end."""
    for tensor in tensors:
        if tensor.numel():
            reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            numbers = tensor.untyped_storage().nbytes() // tensor.element_size()
            assert 0 < tensor.storage_offset() < tensor.storage_offset() + reach < numbers


def check_linear(dtype: torch.dtype, x: Tensor, weight: Tensor | Quantised, bias: Tensor | None, wide: bool) -> None:
    """x and bias in the dtype; rows of a strided x lie apart."""
    outputs, inputs = weight.shape
    assert x.shape[-1] == inputs
    check_floats(x, *([] if bias is None else [bias]), dtype=dtype)
    check_normal(x)
    assert bias is None or bias.shape == (outputs,)
    assert x.dim() == (2 if x.stride(-1) == 2 else 3)
    assert x.dim() == 2 or len(x) == 1
    whole = weight.dequantise() if isinstance(weight, Quantised) else weight.float()
    if whole.numel() >= 1000:
        assert float(whole.std()) == pytest.approx(1, abs=0.1)


def check_rms_norm(dtype: torch.dtype, x: Tensor, weight: Tensor, eps: float, offset: float) -> None:
    """An epsilon that changes no sum of ordinary numbers by much, and is not nothing."""
    check_floats(x, weight, dtype=dtype)
    check_normal(x)
    assert weight.shape == x.shape[-1:]
    assert 0 < eps < 1e-3
    assert x.dim() == (2 if x.stride(-1) == 2 else 3)
    assert x.dim() == 2 or len(x) == 1


def check_turn(cos: Tensor, sin: Tensor) -> None:
    """The cosine and the sine of angles all around."""
    torch.testing.assert_close(cos.double() ** 2 + sin.double() ** 2, torch.ones_like(cos).double(), rtol=0.02, atol=0)
    if cos.numel() >= 300:
        assert float(cos.min()) < -0.95 < 0.95 < float(cos.max())
        assert float(sin.min()) < -0.95 < 0.95 < float(sin.max())


def check_rotary(dtype: torch.dtype, query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Queries and keys are views of one tensor, as after one product, and no number is in both; turns are turns."""
    batch, heads, width, size = query.shape
    check_floats(query, keys, cos, sin, dtype=dtype)
    assert keys.shape == (batch, heads // 2, width, size)
    assert cos.shape == sin.shape == (len(cos), width, size)
    assert len(cos) in (1, batch)
    torch.testing.assert_close(
        (cos.double() ** 2 + sin.double() ** 2), torch.ones(cos.shape).double(), rtol=0.02, atol=0
    )
    if cos.numel() >= 100:
        assert float(cos.min()) < -0.95 < 0.95 < float(cos.max())
        assert float(sin.min()) < -0.95 < 0.95 < float(sin.max())


def check_silu_mul(dtype: torch.dtype, gate: Tensor, up: Tensor) -> None:
    """Halves of one tensor, as after one product."""
    check_floats(gate, up, dtype=dtype)
    check_normal(gate, up)
    assert gate.shape == up.shape
    assert gate.stride() == up.stride()
    assert gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr()
    assert up.storage_offset() - gate.storage_offset() == gate.shape[-1]
    assert gate.untyped_storage().nbytes() >= 2 * gate.numel() * gate.element_size()


def check_ring_cells(cells: Tensor, capacity: int) -> None:
    """Each row's cells are in the arena, and none comes twice; no two rows have the same."""
    assert cells.dtype == torch.int64
    assert bool(((cells >= 0) & (cells < capacity)).all())
    for row in cells.tolist():
        assert len({*row}) == len(row)
    if cells.numel() and cells.shape[1] < capacity:
        assert len({tuple(row) for row in cells.tolist()}) == len(cells)


def check_kv_append(dtype: torch.dtype, keys: Tensor, values: Tensor, new: Tensor, more: Tensor, cells: Tensor) -> None:
    """Rows of an arena with others around them, cells one after the other on a ring; new keys come from a product."""
    rows, heads, width, size = new.shape
    check_floats(keys, values, new, more, dtype=dtype)
    assert keys.shape == values.shape == (rows, heads, 20, size)
    assert more.shape == new.shape
    assert new[0].transpose(0, 1).is_contiguous() or new.stride(0) > new[0].numel(), "but for gaps"
    check_ring_cells(cells, keys.shape[2])
    assert cells.shape == (rows, width)
    assert bool(((cells[:, 1:] - cells[:, :-1]) % 20 == 1).all())


def check_kv_compact(dtype: torch.dtype, keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> None:
    """Cells to move, in every row the same steps from where the row begins."""
    check_floats(keys, values, dtype=dtype)
    assert keys.shape == values.shape == (2, 3, 20, 8)
    assert source.shape == target.shape
    for cells in (source, target):
        check_ring_cells(cells, keys.shape[2])
        assert {*((cells[1] - cells[0]) % 20).tolist()} == {5}


def check_emit(dtype: torch.dtype, window: Window, verdict: Verdict, tokens: Tensor, length: Tensor) -> None:
    """A verdict is a path of its window; what it emits fits behind every row's text."""
    check_window(window, 99)
    rows, width = window.tokens.shape
    assert tokens.shape[0] == rows
    check_inside(*([tokens] if tokens.stride(-1) == 1 else []))
    for row in range(rows):
        kept, path = int(verdict.num_accepted[row]), verdict.path[row].tolist()
        assert path[0] == 0
        assert all(int(window.parents[row, slot]) == above for above, slot in itertools.pairwise(path[: kept + 1]))
        assert {*path[kept + 1 :]} <= {-1}
        assert max(path) < int(window.width[row])
        assert int(length[row]) >= 1
        assert int(length[row]) + kept + 1 <= tokens.shape[1]
        assert 0 <= int(verdict.next[row]) < 99
    if rows >= 9 and width > 4:
        assert len({*verdict.num_accepted.tolist()}) > 2
        assert int(length.max()) > width


def check_kv_plan(
    dtype: torch.dtype,
    window: Window,
    committed: Tensor,
    span: int | None,
    capacity: int,
    look: int,
    limit: int | None,
    asked: torch.dtype,
) -> None:
    """Rows that are empty, as full as can be, and half full; a ring has been filled several times."""
    check_window(window, 9)
    rows, width = window.tokens.shape
    longest = look - width if span is None else 3 * capacity
    assert committed.tolist() == [0, longest, longest // 2]
    assert rows == 3
    assert asked == dtype
    assert look <= capacity
    assert span is None or capacity >= span + width - 1


def check_tree_attention(
    dtype: torch.dtype,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
    used: Tensor | None,
    sinks: Tensor | None = None,
) -> None:
    """Rows of an arena; a slot sees a random part of the cells, some cell is seen by all, none past the used ones."""
    batch, heads, width, size = query.shape
    assert sinks is None or (sinks.shape, sinks.dtype) == ((heads,), dtype)
    length = keys.shape[2]
    check_floats(query, keys, values, dtype=dtype)
    assert values.shape == keys.shape == (batch, keys.shape[1], length, size)
    assert heads % keys.shape[1] == 0
    assert query[0].transpose(0, 1).is_contiguous() or query.stride(0) > query[0].numel(), "but for gaps"
    assert scaling == pytest.approx(1 / size**0.5)
    assert mask.shape == (batch, 1, width, length)
    assert mask.dtype == dtype
    assert {*mask.unique().tolist()} <= {0.0, NEVER}
    ends = torch.full((batch,), length) if used is None else used
    for row in range(batch):
        assert not bool((mask[row, :, :, int(ends[row]) :] == 0).any())
    assert used is not None or bool((mask == 0).flatten(0, 2).all(dim=0).any())
    largest = keys.abs().amax(dim=(1, 3)).float()
    seen = (mask[:, 0] == 0).any(dim=1)
    if float(largest.max()) > 100:
        assert float(largest[seen].max()) < 10 < 1e3 < float(largest[~seen].min()) or dtype == torch.float16
    if length > 100:
        assert not (mask[:, :, :1] == mask[:, :, 1:2]).all() or width == 1


def check_decoder_layers(
    dtype: torch.dtype,
    x: Tensor,
    layers: tuple[DecoderWeights, ...],
    turn: tuple[Tensor, Tensor],
    at: tuple[Cells, ...],
) -> None:
    """Layers of Llama's kind whose numbers stay near one; a slot sees all cells up to its own."""
    batch, width, hidden = x.shape
    check_floats(x, *turn, dtype=dtype)
    assert len(layers) == len(at)
    for layer, cells in zip(layers, at, strict=True):
        heads, size = layer.heads, layer.head_dim
        assert layer.qkv.shape == ((heads + 2 * layer.heads_kv) * size, hidden)
        assert layer.out.shape == (hidden, heads * size)
        assert layer.gate_up.shape == (2 * layer.down.shape[1], hidden)
        assert layer.down.shape[0] == hidden
        assert layer.scaling == pytest.approx(size**-0.5)
        biases = (layer.qkv_bias, layer.out_bias, layer.gate_up_bias, layer.down_bias)
        assert layer.norm_offset == (0.0 if biases[0] is None else 1.0)
        assert len({bias is None for bias in biases}) == 1
        assert 0 < layer.eps_before < 1e-3 < 0.1 < layer.eps_after < 1, "they cannot change places"
        for norm in (layer.norm_before, layer.norm_after):
            check_floats(norm, dtype=norm.dtype)
            assert norm.shape == (hidden,)
            assert 0.5 <= float(norm.min()) < float(norm.max()) <= 1.5
        for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
            whole = matrix.float() if isinstance(matrix, Tensor) else matrix.dequantise()
            assert float(whole.std()) == pytest.approx(matrix.shape[1] ** -0.5, rel=0.15)
            assert weight_kind(matrix) == weight_kind(layer.qkv)
        assert cells.keys.shape == cells.values.shape == (batch, layer.heads_kv, 70, size)
        check_inside(cells.keys, cells.values)
        check_floats(cells.keys, cells.values, dtype=dtype)
        assert cells.cells.shape == (batch, width)
        assert int(cells.cells[:, 0].min()) >= 20
        assert bool((cells.cells[:, 1:] - cells.cells[:, :-1] == 1).all())
        assert int(cells.cells.max()) < cells.keys.shape[2]
        assert cells.mask.dtype == dtype
        assert cells.mask.shape == (batch, 1, width, 64)
        sees = (cells.mask[:, 0] == 0).sum(dim=-1)
        assert sees.equal((cells.cells + 1).clamp(max=64))
        assert bool((cells.mask.cumsum(dim=-1).isfinite() == (cells.mask == 0)).all())
    assert len({cells.keys.data_ptr() for cells in at} | {cells.values.data_ptr() for cells in at}) == 2 * len(at)
    check_turn(*turn)


def check_process(dtype: torch.dtype, logits: Tensor, params: StackedParams, paths: Tensor) -> None:
    """Logits after a binary tree; each row has a text of nine tokens, four of them emitted."""
    rows, slots, vocabulary = logits.shape
    check_floats(logits, dtype=dtype)
    check_normal(logits)
    assert paths.shape[:2] == (rows, slots)
    depths = [int((path >= 0).sum()) for path in paths[0]]
    assert depths == [(slot + 1).bit_length() - 1 for slot in range(slots)]
    assert bool((paths < vocabulary).all())
    if params.adjustments is not None:
        assert params.adjustments.length.tolist() == [9] * rows
        penalties = params.adjustments.penalties
        assert penalties is not None
        assert penalties.emitted.sum(dim=1).tolist() == [4] * rows


def check_sample(dtype: torch.dtype, logits: Tensor, key: Tensor | None) -> None:
    """Some token is possible in every slot; keys differ and are of both signs."""
    assert logits.dtype == dtype
    assert bool((logits > NEVER).any(dim=-1).all())
    assert not bool(logits.isnan().any())
    check_normal(logits[logits.isfinite()])
    assert key is None or key.shape == logits.shape[:2]
    check_keys(*([] if key is None else [key]))


def check_accept(dtype: torch.dtype, probability: Tensor, key: Tensor) -> None:
    """Probabilities from 0 to 1."""
    check_keys(key)
    assert key.shape == probability.shape
    assert bool(((probability >= 0) & (probability < 1)).all())
    if probability.numel() > 100:
        assert float(probability.mean()) == pytest.approx(0.5, abs=0.1)


def check_verify_prefix(dtype: torch.dtype, window: Window, choices: Tensor) -> None:
    """Two tokens, so that proposals are right as often as wrong."""
    check_window(window, 2)
    assert choices.shape == window.tokens.shape
    assert {*choices.flatten().tolist()} <= {0, 1}
    if choices.numel() > 100:
        assert float((choices == window.tokens).double().mean()) == pytest.approx(0.5, abs=0.15)


def check_rule(dtype: torch.dtype, distribution: Tensor, window: Window, *keys: Tensor) -> None:
    """p and q are distributions, proposals are possible under the q they were drawn from, and each purpose has keys."""
    rows, width, vocabulary = distribution.shape
    check_window(window, vocabulary)
    check_distribution(distribution)
    assert len(keys) == 3
    kind = kind_of_q(distribution, window)
    if window.q is not None:
        assert window.q.shape == (rows, width - 1, vocabulary)
        if kind != "broken q":
            check_distribution(window.q)
            told = window.q.gather(2, window.tokens[:, 1:, None])[..., 0]
            assert bool((told > 0).all())
            # Proposals that are drawn from q are likelier under it than a token at random.
            assert told.numel() < 100 or vocabulary < 30 or float(told.mean()) > 2 / vocabulary
    check_keys(*keys)
    for key in keys:
        assert key.shape == window.tokens.shape
    if width > 1 and vocabulary > 100 and bool((distribution > 0).all()):
        assert float(distribution.log().std(dim=-1).mean()) == pytest.approx(1.5, rel=0.05)
        if kind == "near q":
            assert window.q is not None
            apart = (window.q.log() - distribution[:, :-1].log()).std(dim=-1)
            assert float(apart.mean()) == pytest.approx(1, rel=0.05)


def check_distribution(shares: Tensor) -> None:
    """Shares of one."""
    assert bool((shares >= 0).all())
    torch.testing.assert_close(shares.sum(dim=-1), torch.ones(shares.shape[:-1]))


def check_noise_keys(dtype: torch.dtype, stream: Tensor, position: Tensor, draw: int | Tensor) -> None:
    """Positions up to the largest of 31 bits, the same in every row, which lie apart in memory."""
    rows, width = position.shape
    assert stream.shape == (rows,)
    assert int(position.min()) >= 0
    assert 2**30 < int(position.max()) < 2**31
    assert position.stride() in ((0, 2), (2 * width, 2))
    assert isinstance(draw, int) or torch.broadcast_shapes(draw.shape, position.shape) == position.shape
    assert isinstance(draw, int) or draw.numel() in (rows, width)


CHECKS: dict[str, Callable[..., None]] = {
    **{"linear": check_linear, "rms_norm": check_rms_norm, "rotary": check_rotary, "silu_mul": check_silu_mul},
    **{"kv_append": check_kv_append, "kv_compact": check_kv_compact, "kv_plan": check_kv_plan, "emit": check_emit},
    **{"tree_attention": check_tree_attention, "decoder_layers": check_decoder_layers, "process": check_process},
    **{"sample": check_sample, "accept": check_accept, "verify_prefix": check_verify_prefix},
    **{"noise_keys": check_noise_keys, "rejection_sample": check_rule, "block_sample": check_rule},
    "tree_sample": check_rule,
}


@pytest.mark.parametrize("op", OPS)
def test_a_case_gives_its_op_what_the_interface_says(op: str) -> None:
    for case in (case for case in OURS if case.op == op):
        for dtype in case.dtypes:
            given = given_to(case) if dtype == case.dtypes[0] else case.make(Generator().manual_seed(7), dtype)
            try:
                CHECKS[op](dtype, *given)
            except AssertionError as error:
                raise AssertionError(f"{case.name} in {dtype}") from error


@pytest.mark.parametrize("rows", [24, 6])
def test_of_the_rows_of_a_broken_q_all_kinds_of_faults_are_met_and_every_sixth_row_is_sound(rows: int) -> None:
    """NaN or infinity in every third place, or everywhere, or minus infinity; no two neighbours have the same fault."""
    found = [case for case in OURS if "broken" in case.name and given_to(case)[0].shape[0] == rows]
    assert {case.op for case in found} == {"rejection_sample", "block_sample", "tree_sample"}
    for case in found:
        q = given_to(case)[1].q
        third = [place % 3 == 0 for place in range(q.shape[2])]
        faults = {
            "nan": q.isnan(),
            "infinite": q == float("inf"),
            "minus infinite": q == NEVER,
        }
        kinds = [["sound"] * q.shape[1] for _ in range(rows)]
        for name, at in faults.items():
            for row in range(rows):
                for slot in range(q.shape[1]):
                    places = at[row, slot].tolist()
                    if any(places):
                        assert kinds[row][slot] == "sound", "one kind of fault in a row"
                        assert places in (third, [True] * len(third))
                        kinds[row][slot] = f"{name} {'everywhere' if all(places) else 'in every third place'}"
        counts = Counter(kind for row in kinds for kind in row)
        assert {*counts} == {"sound", "minus infinite in every third place"} | {
            f"{name} {where}" for name in ("nan", "infinite") for where in ("everywhere", "in every third place")
        }
        assert max(counts.values()) - min(counts.values()) <= 1
        for row in range(1, rows):
            assert all(kinds[row][slot] != kinds[row - 1][slot] for slot in range(q.shape[1]))
        assert all(row[slot] != row[slot - 1] for row in kinds for slot in range(1, q.shape[1]))
        sound = q[torch.tensor([[kind == "sound" for kind in row] for row in kinds])]
        check_distribution(sound)


def test_equal_noise_is_that_of_two_tokens_of_the_same_probability_and_of_no_other_case() -> None:
    key, pair = cases.EQUAL_NOISE
    noise = gumbel(torch.tensor(key), 64)
    assert len({float(noise[token]) for token in pair}) == 1
    for case in (case for case in CASES if "equal-noise" in case.name):
        first, *more = given_to(case)
        shares = first.exp() if case.op == "sample" else first
        assert {*shares.sum(dim=-1).flatten().tolist()} == {1.0}
        keys = more[-3:] if case.op != "sample" else more
        assert all({*one.flatten().tolist()} == {key} for one in keys)
        if case.op == "sample":
            assert [int(token) for token in shares[0, 0].nonzero()] == [*pair]
            continue
        p, window = shares, more[0]
        left = (p[:, :1] - window.q).clamp(min=0) if int(window.width[0]) > 1 else p[:, :1]
        assert [int(token) for token in left[0, 0].nonzero()] == [*pair]
        assert int(window.width[0]) == (2 if "residual" in case.name else 1)
        proposed = int(window.tokens[0, 1])
        assert float(p[0, 0, proposed]) == 0 < float(window.q[0, 0, proposed]), "it is certainly rejected"
        assert p[0, 0].equal(p[0, 1])
        assert window.q.sum(dim=-1).tolist() == [[1.0]]


def test_ties_are_three_places_of_a_slot_that_no_noise_parts() -> None:
    """2**30 is so large that noise is lost in rounding; two tokens are two places."""
    for case in (case for case in CASES if case.op == "sample" and "tied" in case.name):
        logits, key = given_to(case)
        top = logits.amax(dim=-1, keepdim=True)
        assert {*(logits == top).sum(dim=-1).flatten().tolist()} == {min(3, logits.shape[-1])}
        assert (key is not None) == ("noisy" in case.name)
        assert len({*top.flatten().tolist()}) == 1
        assert float(top.max()) > 5
        if key is not None:
            assert bool(((top + 30) == top).all())
        places = {tuple(slot.nonzero().flatten().tolist()) for slot in (logits == top).flatten(0, 1)}
        assert len(places) > 1 or logits.shape[-1] == 2
    first, _ = given_to(next(case for case in CASES if (case.op, case.name) == ("sample", "tie")))
    assert {int(place) for place in first[:, 0].argmax(dim=-1)} == {4000}, "the first of both is in another block"


def test_a_case_of_gaps_has_the_numbers_of_a_whole_one_and_other_strides() -> None:
    """Between integers there is one more, between the first axis' parts of floats too."""
    gaps = [case for case in CASES if case.name == "gaps"]
    assert {case.op for case in gaps} == {*OPS} - {
        "linear",
        "rms_norm",
        "silu_mul",
        "process",
        "decoder_layers",
        "noise_keys",
    }
    for case in gaps:
        for tensor in result_tensors(given_to(case)):
            if tensor.numel() and tensor.is_floating_point():
                assert tensor.stride(0) == 2 * tensor[0].numel() or tensor.shape[0] == 1
                assert tensor[0].is_contiguous()
            elif tensor.numel():
                assert tensor.stride(-1) == 2


def test_numbers_in_float16_are_finite_as_in_the_other_dtypes() -> None:
    """Also those in cells that nobody sees, which are as large as a dtype has them."""
    for case in FLOAT16_CASES:
        for tensor in result_tensors(case.make(Generator().manual_seed(7), torch.float16)):
            assert tensor.dtype in (torch.float16, torch.bfloat16, torch.int64) or case.op in (
                "linear",
                "decoder_layers",
            )
            if case.op not in ("kv_plan", "decoder_layers") and tensor.is_floating_point():
                assert bool(((tensor.abs() < torch.inf) | (tensor == NEVER)).all()), case.name
    garbage = next(case for case in FLOAT16_CASES if case.name == "garbage")
    assert float(garbage.make(Generator().manual_seed(7), torch.float16)[1].abs().max()) > 1000


def test_sizes_lie_around_whole_vectors_and_around_the_parts_of_a_sum() -> None:
    """For each width of a vector, and for each sum of 64 of them: one number less, as many, and one more."""
    vectors = (4, 8, 16, 32)
    assert {*cases.AROUND_VECTORS} == {size + more for size in vectors for more in (-1, 0, 1)}
    assert {*cases.AROUND_SUMS} == {64 * size + more for size in vectors[:3] for more in (-1, 0, 1)}
    assert len(cases.AROUND_VECTORS) == len({*cases.AROUND_VECTORS})
    assert list(cases.AROUND_SUMS) == sorted({*cases.AROUND_SUMS})


def test_every_kind_of_weight_meets_every_option_and_every_number_of_rows() -> None:
    met = {(weight_kind(weight), bias is not None, wide) for _, weight, bias, wide in of_op("linear")}
    kinds = ["", "bfloat16", "int8", "int4"]
    assert met >= {(kind, *options) for kind in kinds for options in ((False, False), (True, False), (True, True))}
    for kind in kinds:
        rows = {x.shape[-2] for x, weight, _, _ in of_op("linear") if weight_kind(weight) == kind}
        assert rows >= {*range(1, 14), 33, 77, 256}


def of_op(op: str) -> Iterator[tuple[Any, ...]]:
    """The arguments of all cases of an op that the kit runs."""
    return (given_to(case) for case in CASES if case.op == op)


def test_the_ops_on_vocabularies_meet_one_token_the_tiny_targets_and_more_than_a_block() -> None:
    tiny = families.CONFIGS["llama"]().vocab_size
    for op, slot in (("process", 0), ("sample", 0), ("rejection_sample", 0), ("block_sample", 0)):
        sizes = {given[slot].shape[-1] for given in of_op(op)}
        assert tiny in sizes
        assert max(sizes) > 4096
        assert min(sizes) < 8
        assert any(size % 2 for size in sizes if size > 4096), "no whole vector"


@pytest.mark.slow
def test_a_window_of_every_width_is_a_chain_or_a_tree_as_the_case_says() -> None:
    ops = {"emit", "kv_plan", "verify_prefix", "rejection_sample", "block_sample", "tree_sample"}
    for case in (case for case in OURS if case.op in ops):
        windows = [one for one in given_to(case) if isinstance(one, Window)]
        assert windows
        for window in windows:
            assert branches(window) == ("tree" in words_of(case))
            if not branches(window):
                assert window.depth[0].tolist() == [*range(window.tokens.shape[1])]


def test_arguments_on_another_device_or_in_another_dtype_lie_in_memory_as_they_did() -> None:
    """The numbers and their gaps; integers stay integers, and a copy shares nothing."""
    for case in (case for case in CASES if case.name in ("gaps", "strided", "ring", "odd", "int8", "three")):
        given = given_to(case)
        for dtype in (None, torch.float64):
            moved = to(given, device="cpu", dtype=dtype)
            for one, other in zip(result_tensors(given), result_tensors(moved), strict=True):
                assert other.stride() == one.stride() or not one.numel()
                assert other.dtype == (one.dtype if dtype is None or not one.is_floating_point() else dtype)
                assert one.to(other.dtype).equal(other)
                assert not one.numel() or one.data_ptr() != other.data_ptr()
