"""Timings of kernels beside a planted clock: every figure of every op, curve and cache, worked out from its samples."""

from __future__ import annotations

import copy
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchsuite.benches.kernels import caches, depths
from benchsuite.benches.kernels.caches import ArenaCache, Cache, Meter, TransformersCache, measure_caches
from benchsuite.benches.kernels.timing import Curve, KernelBench
from benchsuite.machine import clock, roofline
from specdec.arena import Arena
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.packed import Weight
from specdec_kernels.reference import Reference

DOCUMENTED = Path(__file__).parents[3] / "docs" / "kernels.md"
SAMPLES = (1.0, 2.0, 9.0)
"""The reference's seconds, round by round, in units of its own; those of others are in another order."""


class Partial(Reference):
    """The reference under another name, which takes some ops alone, and products with matrices of floats alone."""

    def __init__(self, name: str, *ops: str) -> None:
        self.name, self.ops, self.products = name, ops, 0

    def takes(self, op: str, *tensors: Weight) -> bool:
        """Whether it was told so."""
        return op in self.ops and all(isinstance(one, Tensor) and one.dtype == torch.float32 for one in tensors)

    def linear(self, *given: Any) -> Tensor:
        """Count it."""
        self.products += 1
        return super().linear(*given)


def small(ops: Ops, layers: int = 2) -> ArenaModel:
    """A model whose vocabulary is shorter than the text over which its forwards are timed."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    return ArenaModel(LlamaForCausalLM(config), ops)


FAST, ODD = Partial("fast", "linear", "silu_mul"), Partial("odd", "silu_mul")


@dataclass
class PlantedClock:
    """In place of the device's clock: ``seconds`` says how long a call took, by the number of times it was timed."""

    seconds: Callable[[Callable[[], object], int], float]
    runs: int = 1
    said: list[Any] = field(default_factory=list)
    seen: Counter[Callable[[], object]] = field(default_factory=Counter)

    def __call__(self, call: Callable[[], object], device: torch.device, times: int = 1) -> float:
        """Note it."""
        self.said.append((call, times))
        self.seen[call] += 1
        return self.seconds(call, self.seen[call] - 1)

    def rest(self, seconds: float) -> None:
        """In place of a pause."""
        self.said.append(seconds)


@pytest.fixture
def put_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PlantedClock]:
    """Puts a planted clock in the place of the device's; nothing rests, and the machine's limits are brief to find."""
    monkeypatch.setitem(roofline.SIDE, "cpu", 16)
    monkeypatch.setitem(roofline.PROBE_BYTES, "cpu", 1024)

    def planted(seconds: Callable[[Callable[[], object], int], float]) -> PlantedClock:
        made = PlantedClock(seconds)
        monkeypatch.setattr(clock, "device_seconds", made)
        monkeypatch.setattr(time, "sleep", made.rest)
        return made

    return planted


def bench_of(*backends: Reference, rounds: int = 3, settle_s: float = 0.25) -> KernelBench:
    """The kernels of a small model on these backends and the reference."""
    return KernelBench("small", small(Ops([*backends, Reference()]), layers=1), rounds, settle_s)


def op_seconds(call: Any, number: int) -> float:
    """The reference's samples, or the others' in another order and twice or a third as fast; the first is a probe."""
    work, name = call.func.__self__, call.args[0].name
    unit = 1e-3 * (1 + len(work.shape) + int(work.calls[0][0].shape[-2]))
    if number == 0:
        return {"reference": 0.0007, "fast": 0.5, "odd": 0.0}[name]
    samples = {"reference": SAMPLES, "fast": (0.5, 2.0, 1.0), "odd": (3.0, 1.0, 2.0)}[name]
    return unit * samples[number - 1]


def test_each_backend_is_timed_at_every_shape_it_takes_beside_the_reference(
    put_clock: Callable[..., PlantedClock],
) -> None:
    put_clock(lambda call, number: 1.0)
    bench = bench_of(FAST, ODD)
    assert [ops.name for ops in bench.backends] == ["fast", "odd", "reference"]
    assert all(ops.chain[-1].name == "reference" for ops in bench.backends)
    takers: dict[str, set[str]] = {"silu_mul": {"fast", "odd"}, "rms_norm": set(), "decoder_layers": set()}
    for op, names in takers.items():
        found = bench.time(op)
        shapes = {(work.kind, work.shape) for work in bench.shapes.work(op)}
        expected = {(name, *one) for name in (*names, "reference") for one in shapes}
        assert {(timing.backend, timing.kind, timing.shape) for timing in found} == expected
        assert len(found) == len(expected)
        assert {timing.op for timing in found} == {op}
    assert Counter(timing.op for timing in bench.timings).keys() == takers.keys()
    assert bench.curves == []


def test_a_timing_is_the_median_of_its_rounds_and_its_ratio_that_of_the_pairs(
    put_clock: Callable[..., PlantedClock],
) -> None:
    bench = bench_of(FAST, ODD)
    put_clock(op_seconds)
    found = bench.time("silu_mul")
    works = {work.shape: work for work in bench.shapes.work("silu_mul")}
    middles = {"reference": (2.0, 1.0), "fast": (1.0, 2.0), "odd": (2.0, 2.0)}  # of 1/.5 2/2 9/1, of 1/3 2/1 9/2
    for timing in found:
        work, (middle, ratio) = works[timing.shape], middles[timing.backend]
        seconds = 1e-3 * (1 + len(timing.shape) + work.calls[0][0].shape[-2]) * middle
        assert (timing.seconds, timing.ratio) == pytest.approx((seconds, ratio))
        assert (timing.moved, timing.operations) == (work.moved, 0)
        assert timing.fraction == pytest.approx(work.moved / seconds / bench.peak.bandwidth)
    for timing in bench.time("tree_attention"):
        limits = timing.moved / bench.peak.bandwidth, timing.operations / bench.peak.arithmetic
        assert timing.fraction == pytest.approx(max(limits) / timing.seconds)


def test_alone_the_reference_has_no_ratio(put_clock: Callable[..., PlantedClock]) -> None:
    alone, beside = bench_of(), bench_of(ODD)
    put_clock(op_seconds)
    assert {timing.ratio for timing in alone.time("silu_mul")} == {None}
    assert {timing.ratio for timing in beside.time("rms_norm")} == {1.0}


def test_samples_rest_before_they_begin_and_last_two_milliseconds(put_clock: Callable[..., PlantedClock]) -> None:
    bench, planted = bench_of(FAST, ODD), put_clock(op_seconds)
    bench.time("silu_mul")
    probes, rounds = planted.said[:6], planted.said[6:]
    assert [times for _, times in probes] == [1] * 6
    assert rounds[::2] == [0.25] * 18, "a rest before each sample"
    times = {call.args[0].name: count for call, count in rounds[1::2]}
    assert times == {"reference": 3, "fast": 1, "odd": 2_000_000}, "of 0.7 ms, half a second, and nothing at all"
    turns = [[call for call, _ in rounds[1::2][at : at + 6]] for at in (0, 6, 12)]
    assert all(len(set(turn)) == 6 for turn in turns)
    assert turns[0] != turns[1] or turns[1] != turns[2], "the same order each round"


def test_rests_and_rounds_are_the_documented_ones(put_clock: Callable[..., PlantedClock]) -> None:
    text = " ".join(DOCUMENTED.read_text().split())
    said = re.search(r"rounds \((\d+)\), each for (\d+) ms at least after a rest of (\d+) ms", text)
    assert said
    bench = KernelBench("small", small(Ops([Reference()])))
    planted = put_clock(lambda call, number: 0.0011)
    bench.time("rms_norm")
    rests = [one for one in planted.said if isinstance(one, float)]
    assert rests == [int(said[3]) / 1e3] * (2 * int(said[1]))
    assert {one[1] for one in planted.said[2:] if isinstance(one, tuple)} == {-(-int(said[2]) // 1.1)}


def test_a_curve_is_in_units_of_its_first_row_and_of_torchs(put_clock: Callable[..., PlantedClock]) -> None:
    bench = bench_of(FAST, ODD)
    put_clock(op_seconds)
    found = bench.time("linear")
    kinds = dict.fromkeys(work.kind for work in bench.shapes.work("linear"))
    rows = [(kind, name) for kind in kinds for name in ("fast", "reference") if name != "fast" or kind == "float32"]
    assert [curve.what for curve in bench.curves] == [f"linear {kind}, {name}" for kind, name in rows]
    seconds = {(t.kind, t.backend, int(t.shape[2:])): t.seconds for t in found}
    for curve in bench.curves:
        kind, name = curve.what.removeprefix("linear ").split(", ")
        assert curve.seconds == {w: s for (k, n, w), s in seconds.items() if (k, n) == (kind, name)}
        assert curve.of_torch == pytest.approx(curve.seconds[1] / seconds["float32", "reference", 1])
        assert curve.v == {width: s / curve.seconds[1] for width, s in curve.seconds.items()}


def test_the_whole_model_is_timed_over_the_same_tokens_everywhere(put_clock: Callable[..., PlantedClock]) -> None:
    fast, next_best = Partial("fast", "linear"), Partial("next", "linear")
    said = list[tuple[list[int], int]]()
    target = small(Ops([fast, next_best, Reference()]), layers=1)
    ids = torch.arange(128 + 100)[None] % target.vocabulary
    expected = target.twin()(ids).logits

    def seen(module: object, given: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        """What a model is called with: its tokens, and how many it has in its cache."""
        cache = named.get("cache", named.get("past_key_values"))
        if cache is not None:
            said.append((given[0][0].tolist(), int(cache.get_seq_length())))

    target.model.register_forward_pre_hook(seen, with_kwargs=True)  # the twins have it too
    bench, alone = KernelBench("small", target, 3, 0.0), bench_of()
    units = {"model, fast": 1.0, "model, transformers": 2.0, "model, reference": 3.0}
    known: dict[object, tuple[str, int]] = {}

    def measured(call: Callable[[], Any], number: int) -> float:
        """Make the call, and say by what it did which model ran on how many rows."""
        before, calls = fast.products, len(said)
        out = call()
        if out is None:
            [(tokens, past)] = said[calls:]
            width = len(tokens)
            assert (tokens, past) == (ids[0, 128 : 128 + width].tolist(), 128)
            what = "model, transformers"
        else:
            assert len(said) == calls
            width = out[0].shape[1]
            assert torch.allclose(out[0], expected[:, 128 : 128 + width], atol=1e-4)
            what = "model, fast" if fast.products > before else "model, reference"
        assert known.setdefault(call, (what, width)) == (what, width)
        return units[what] * (width + 1) * ((3.0, 1.0, 2.0, 9.0)[number])

    put_clock(measured)
    plan, widths = Arena.plan, list[tuple[list[int], int]]()

    def planned(self: Arena, window: Window, *given: Any) -> Any:
        if len(self.committed) == 1:  # two rows are those of the trial of a model that is wrapped
            widths.append((window.width.tolist(), window.tokens.shape[1]))
        return plan(self, window, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arena, "plan", planned)
        found = bench.model_curves((1, 100))  # more rows than the documented curve has
    assert all(width == [slots] for width, slots in widths), "every slot is a token"
    assert {slots for _, slots in widths} >= {1, 100}
    middles = {what: {width: unit * (width + 1) * 2.0 for width in (1, 100)} for what, unit in units.items()}
    assert {curve.what: curve.seconds for curve in found} == middles
    assert {curve.what: curve.of_torch for curve in found} == {what: unit / 2 for what, unit in units.items()}
    assert said[0] == (ids[0, :128].tolist(), 0)
    assert next_best.products == 0, "a fallback that has no turn of its own"
    assert bench.curves == found
    bench.model_curves((1,))
    assert len(bench.curves) == 2 * len(found)
    put_clock(lambda call, number: 1.0)
    assert [curve.what for curve in alone.model_curves((1, 2))] == ["model, reference", "model, transformers"]


def test_on_cuda_flex_attention_is_set_beside_the_chain(put_clock: Callable[..., PlantedClock]) -> None:
    put_clock(lambda call, number: 1.0)
    target = copy.copy(small(Ops([FAST, ODD, Reference()])))
    bench = KernelBench("small", target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roofline.Peak, "of", lambda device, dtype: bench.peak)
        target.device = torch.device("cuda")
        found = KernelBench("small", target).backends
    assert [[backend.name for backend in ops.chain] for ops in found] == [
        ["fast", "reference"],
        ["odd", "reference"],
        ["flex", "reference"],
        ["reference"],
    ]


def test_the_json_has_all_that_was_timed(put_clock: Callable[..., PlantedClock]) -> None:
    bench = bench_of(FAST)
    put_clock(op_seconds)
    bench.time("silu_mul")
    bench.curves.append(Curve("mine", {1: 2.0, 3: 5.0}, 0.5))
    assert bench.as_json() == {
        "target": "small",
        "device": "cpu",
        "peak": {"bandwidth": bench.peak.bandwidth, "arithmetic": bench.peak.arithmetic},
        "timings": [asdict(timing) for timing in bench.timings],
        "curves": [{"what": "mine", "seconds": {1: 2.0, 3: 5.0}, "of_torch": 0.5, "v": {1: 1.0, 3: 2.5}}],
        "depths": [],
    }


def test_a_meter_counts_the_storages_that_are_new_and_not_empty() -> None:
    one, other = torch.ones(3), torch.ones(3, dtype=torch.float64)
    with Meter() as meter:
        one.add_(1)
        one[1:].mul_(2)
        torch.add(one, one, out=one)
        one.view(3, 1)
        one[:0].clone()
    assert (meter.allocations, meter.bytes) == (0, 0)
    with meter:
        made = one + one
        torch.cat([other, other])
        made.sort()  # values and indices
    assert (meter.allocations, meter.bytes) == (4, 12 + 48 + 12 + 24)


def cached_states(cache: Any, layer: int) -> tuple[Tensor, Tensor]:
    """A layer's keys and values."""
    if isinstance(cache, ArenaCache):
        return cache.arena.keys[layer], cache.arena.values[layer]
    return cache.cache.layers[layer].keys, cache.cache.layers[layer].values


def length_of(cache: Any) -> int:
    """The tokens that a cache holds."""
    return int(cache.arena.committed[0]) if isinstance(cache, ArenaCache) else int(cache.cache.get_seq_length())


MAKERS: dict[str, Callable[[ArenaModel, int, int], Cache]] = {
    "arena": lambda target, length, width: ArenaCache(target, length, width),
    "transformers dynamic": lambda target, length, width: TransformersCache(target, length, width, False),
    "transformers static": lambda target, length, width: TransformersCache(target, length, width, True),
}


@pytest.mark.parametrize(("dtype", "layers", "width"), [(torch.float32, 1, 1), (torch.bfloat16, 2, 5)])
@pytest.mark.parametrize("name", MAKERS)
def test_a_cache_appends_attends_to_and_forgets_a_window(
    name: str, dtype: torch.dtype, layers: int, width: int
) -> None:
    length = 9
    target = ArenaModel(small(Ops([Reference()]), layers).twin().to(dtype), Ops([Reference()]))
    cache: Any = MAKERS[name](target, length, width)
    assert cache.name == name
    assert [tuple(one.shape) for one in (cache.query, cache.keys, cache.values)] == [
        (1, 4, width, 8),
        *[(1, 2, width, 8)] * 2,
    ]
    assert {one.dtype for one in (cache.query, cache.keys, cache.values)} == {dtype}
    for _ in range(2):
        assert length_of(cache) == length
        cache.append()
        seen = cache.attend()
        assert len(seen) == layers
        for layer, got in enumerate(seen):
            keys, values = (one[:, :, : length + width].float() for one in cached_states(cache, layer))
            assert torch.equal(keys[:, :, length:], cache.keys.float())
            assert torch.equal(values[:, :, length:], cache.values.float())
            keys, values = (one.repeat_interleave(2, dim=1) for one in (keys, values))
            scores = cache.query.float() @ keys.transpose(2, 3) / 8**0.5
            sees = torch.arange(length + width)[None] <= length + torch.arange(width)[:, None]
            expected = scores.masked_fill(~sees, -torch.inf).softmax(-1) @ values
            assert torch.allclose(got.float(), expected.transpose(1, 2), atol=1e-5 if dtype == torch.float32 else 0.05)
        cache.roll_back()
    assert length_of(cache) == length


@pytest.mark.parametrize("width", [1, 5])
def test_steps_over_the_same_keys_and_values_have_the_same_logits_and_leave_the_caches_as_long(width: int) -> None:
    length, target = 9, small(Ops([Reference()]))
    ours, theirs = ArenaCache(target, length, width), TransformersCache(target, length, width, static=False)
    for layer, cells in enumerate(theirs.cache.layers):
        stored = [kept[layer][:, :, :length] for kept in (ours.arena.keys, ours.arena.values)]
        assert all(len(cell.unique()) == cell.numel() for cell in stored), "zeros may share memory"
        cells.keys, cells.values = (cell.clone() for cell in stored)
    with torch.inference_mode():
        for _ in range(2):
            assert torch.allclose(ours.step(), theirs.step(), atol=1e-5)
            assert length_of(ours) == length_of(theirs) == length


def part_seconds(call: Any, number: int) -> float:
    """The first sample is far off, the others have a middle of their own for each part of each cache."""
    place = ("append", "roll_back").index(call.__name__)
    unit = {"arena": 1.0, "transformers dynamic": 10.0, "transformers static": 100.0}[call.__self__.name]
    return (1e9, 5.0, 1.0, 9.0, 2.0, 4.0, 8.0, 3.0, 7.0, 6.0)[number] * (1 + place) * unit


@pytest.mark.parametrize("layers", [1, 3])
def test_the_costs_of_caches_are_medians_in_milliseconds_and_the_bytes_of_a_window(
    layers: int, put_clock: Callable[..., PlantedClock]
) -> None:
    planted = put_clock(part_seconds)
    found = measure_caches(small(Ops([Reference()]), layers), (64, 7))
    names = sorted(MAKERS)
    assert [(cost.length, cost.cache) for cost in found] == list(itertools.product((64, 7), names))
    window = layers * 2 * 5 * (2 * 8) * 4  # keys and values of five slots: two heads of eight numbers
    for cost in found:
        unit = 5e3 * {"arena": 1.0, "transformers dynamic": 10.0, "transformers static": 100.0}[cost.cache]
        assert (cost.append_ms, cost.roll_back_ms) == pytest.approx((unit, 2 * unit))
        if cost.cache == "transformers dynamic":
            assert (cost.moved, cost.allocations) == (window * (cost.length + 5) // 5, 2 * layers)
        else:
            assert cost.moved == window
    arena = [cost for cost in found if cost.cache == "arena"]
    assert [cost.allocations for cost in arena] == [1, 1]
    rounds = [call.__self__.name for call, _ in planted.said[:60:2]]
    turns = [tuple(rounds[at : at + 3]) for at in range(0, 30, 3)]
    assert {frozenset(turn) for turn in turns} == {frozenset(names)}
    assert len(set(turns)) > 1, "the same order each round"


def test_caches_are_measured_at_the_documented_lengths_and_sizes(put_clock: Callable[..., PlantedClock]) -> None:
    bench, planted = bench_of(), put_clock(lambda call, number: 1.0)
    costs = bench.caches()
    assert bench.costs is costs
    text = " ".join(DOCUMENTED.read_text().split())
    said = re.search(r"caches after ([\d, and]+) tokens: (\d+) slots appended.*? in (\d+) rounds", text)
    assert said
    lengths = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d", said[1])]
    assert list(dict.fromkeys(cost.length for cost in costs)) == lengths == list(caches.LENGTHS)
    assert int(said[2]) == caches.WIDTH
    assert len(planted.said) == len(costs) * 2 * (int(said[3]) + 1)


def test_what_is_behind_much_text_is_paired_with_transformers_round_by_round(
    put_clock: Callable[..., PlantedClock],
) -> None:
    """The gain is the geometric mean of the pairs, and figures are medians; the first sample of a call is a probe."""
    bench = bench_of(rounds=6)
    ours, theirs = (3.0, 1.0, 2.0, 8.0, 5.0, 4.0), (3.0, 2.0, 6.0, 8.0, 5.0, 16.0)

    def seconds(call: Any, number: int) -> float:
        unit = {"attend": 1e-3, "step": 0.02}[call.__name__] * int(call.__self__.query.shape[2])
        return unit * (9e9, *(ours if call.__self__.name == "arena" else theirs))[number]

    put_clock(seconds)
    found = bench.depth(64)
    assert bench.depths == found
    assert [(cost.context, cost.width, cost.what) for cost in found] == [
        (64, width, what) for width in (1, 4, 8) for what in ("attention", "step")
    ]
    for cost in found:
        unit = {"attention": 1e-3, "step": 0.02}[cost.what] * cost.width
        assert (cost.seconds, cost.transformers_seconds) == pytest.approx((3.5 * unit, 5.5 * unit))
        assert cost.gain.ratio == pytest.approx((2 * 3 * 4) ** (1 / 6))
        assert cost.gain.low
        assert cost.gain.high
        assert cost.gain.low < cost.gain.ratio < cost.gain.high


def test_the_documented_depths_are_measured() -> None:
    text = " ".join(DOCUMENTED.read_text().split())
    said = re.search(r"dynamic cache after ([\d, and]+) tokens, for windows of ([\d, and]+) slots", text)
    assert said
    contexts, windows = (
        [int(one.replace(",", "")) for one in re.findall(r"\d(?:[\d,]*\d)?", each)] for each in said.groups()
    )
    assert (tuple(contexts), tuple(windows)) == (depths.CONTEXTS, depths.WINDOWS)
