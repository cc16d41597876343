"""Exact mode: windows of every width give the same bits, and what cannot promise or prove it is refused by name."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import prompts, registry
from benchsuite.measure import workloads
from benchsuite.measure.arms import Arm
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.tests.rig import SETTING, loaded_smollm2, slow_after, some_of
from specdec import Request, SamplingParams, SpecdecError, catalog
from specdec.arena import Arena
from specdec.assembly import Assembly
from specdec.exact import require_exact
from specdec.interfaces import OPS, Backend
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.packed import Weight
from specdec_kernels.reference import Reference

KINDS = (("float32", None), ("bfloat16", None), ("bfloat16", 8))
"""A dtype and the bits of quantised weights."""

EACH = pytest.mark.parametrize(("name", "bits"), KINDS, ids=[f"{name}-{bits or 'float'}" for name, bits in KINDS])


def _chain(*first: Backend) -> Ops:
    """``first``, then the backends of ``cpu``; skips without a compiler."""
    ops = registry().backend("cpu")
    if ops.chain[0].name != "cpu":
        pytest.skip("no C++ compiler")
    return Ops([*first, *ops.chain])


class Wavering(Reference):
    """A planted fault: a product whose last bits depend on the number of its rows."""

    name = "wavering"
    row_invariant = frozenset(("linear",))

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        single = x.numel() == x.shape[-1]
        return super().linear(x, weight, bias, wide) * (1.0 if single else 1.0 + 2.0**-20)


class Modest(Reference):
    """The same products as the reference's, of which it promises nothing."""

    name = "modest"
    row_invariant = frozenset()

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        return super().linear(x, weight, bias, wide)


def test_a_backend_that_promises_equal_rows_and_gives_others_is_refused_by_the_width() -> None:
    target = ArenaModel(families.build_model("llama"), _chain(Wavering()))
    said = r"llama model on wavering, cpu, .*is not exact: a window of 2 in 1 rows .* by \d\.\de-0[5-7], although"
    with pytest.raises(SpecdecError, match=said):  # of logits about 1 the last bits differ
        require_exact(target)


def test_four_rows_of_an_exact_target_are_the_bits_of_one() -> None:
    """Every second row is one token ahead."""
    require_exact(ArenaModel(families.build_model("llama"), _chain()), rows=4)


class Crowded(Reference):
    """A planted fault: the last bits of a token alone in its window depend on the rows beside it."""

    name = "crowded"
    row_invariant = frozenset(("linear",))

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        beside = x.dim() == 3 and x.shape[1] == 1 < x.shape[0]
        return super().linear(x, weight, bias, wide) * (1.0 + 2.0**-20 if beside else 1.0)


def test_single_tokens_of_several_rows_are_compared_too() -> None:
    target = ArenaModel(families.build_model("llama"), _chain(Crowded()))
    with pytest.raises(SpecdecError, match=r"is not exact: a window of 1 in 2 rows"):
        require_exact(target, rows=2)


class OneRow(Reference):
    """A planted fault: exact products, but for the last bits of one row's slot in windows of one shape."""

    name = "one_row"
    row_invariant = frozenset(("linear",))

    def __init__(self) -> None:
        self._exact = _chain()
        self.shape, self.wrong = (0, 0), (0, 0)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        out = self._exact.linear(x, weight, bias, wide)
        if x.shape[:-1] == self.shape:
            out[self.wrong] *= 1.0 + 2.0**-20
        return out


@pytest.mark.slow
@pytest.mark.parametrize("rows", slow_after(1, [3, 2, 4, 5]))
def test_a_backend_that_is_wrong_in_a_single_row_of_a_batch_is_refused_whichever_row_it_is(rows: int) -> None:
    """In one slot of windows of one width, for each width that is tried; batches of another size are not looked at."""
    planted = OneRow()
    target = ArenaModel(families.build_model("llama"), _chain(planted))
    for slots, row in itertools.product((1, 2, 5, 7, 16), range(rows)):
        planted.shape, planted.wrong = (rows, slots), (row, (slots - 1 - row) % slots)
        with pytest.raises(SpecdecError, match=rf"is not exact: a window of {slots} in {rows} rows differs"):
            require_exact(target, rows, width=7)
    planted.shape = (rows + 1, 5)
    require_exact(target, rows, width=7)


@pytest.mark.slow
def test_an_engine_of_more_rows_is_proved_anew_and_refused_for_its_last_row() -> None:
    planted = OneRow()
    build = _assembly(families.build_model("llama"), _chain(planted), 1, None)
    planted.shape, planted.wrong = (3, 2), (2, 1)
    assert all(build.engine(None, k=0, max_rows=rows).exact for rows in (1, 2))
    with pytest.raises(SpecdecError, match="is not exact: a window of 2 in 3 rows differs"):
        build.engine(None, k=0, max_rows=3)


def test_an_op_of_which_its_backend_promises_nothing_is_refused_by_both_names() -> None:
    target = ArenaModel(families.build_model("llama"), _chain(Modest()))
    with pytest.raises(SpecdecError, match=r"the op linear on the backend modest may depend.*leave out exact"):
        require_exact(target)


@pytest.mark.parametrize(
    ("family", "backend", "reason"),
    [
        ("llama", "reference", r"the op tree_attention on the backend reference, torch's own product in model\.layers"),
        ("gpt2", "auto", r"torch's own product in transformer\.h\.0\.attn\.c_attn"),
    ],
)
def test_products_of_torch_are_refused_by_the_names_of_their_modules(family: str, backend: str, reason: str) -> None:
    target = ArenaModel(families.build_model(family), registry().backend(backend))
    with pytest.raises(SpecdecError, match=reason):
        require_exact(target)


def test_four_parts_that_promise_nothing_are_named_and_the_others_counted() -> None:
    model = families.build_model("gpt2")
    products = [name for name, part in model.named_modules() if name.rpartition(".")[2] in ("c_attn", "c_proj", "c_fc")]
    with pytest.raises(SpecdecError, match=r"the result of (.*) and (\d+) more may depend on the width") as refused:
        require_exact(ArenaModel(model, registry().backend("reference")))
    named, more = re.findall(r"the result of (.*) and (\d+) more may", str(refused.value))[0]
    ops = Ops([Reference()]).chain[0].name
    assert len(named.split(", ")) == 4
    assert int(more) + 4 >= len(products) > 4
    assert ops in named or "torch's own product in" in named


class SilentBackend(Reference):
    """The reference's ops under a name of its own; of those in ``about`` it promises nothing."""

    name = "silent"

    def __init__(self, about: Sequence[str]) -> None:
        self.row_invariant = frozenset(OPS) - frozenset(about)

    def takes(self, op: str, *tensors: Weight) -> bool:
        return True


@pytest.mark.parametrize(("count", "more"), [(4, ""), (5, " and 1 more")])
def test_parts_beyond_the_fourth_that_promise_nothing_are_counted(count: int, more: str) -> None:
    about = ["kv_append", "kv_plan", "linear", "rms_norm", "rotary", "silu_mul"][:count]
    named = ", ".join(f"the op {op} on the backend silent" for op in about[:4])
    with pytest.raises(SpecdecError, match=rf"^the result of {named}{more} may depend on the width"):
        require_exact(ArenaModel(families.build_model("llama"), Ops([SilentBackend(about)])))


def test_a_draft_that_proposes_trees_is_refused_by_name() -> None:
    build = _assembly(families.build_model("llama"), _chain(), 1, None)
    with pytest.raises(SpecdecError, match=r"'ngram\(branches=2\)' proposes trees.*choose a draft that proposes them"):
        build.engine("ngram(branches=2)", k=4)


def test_ops_that_are_not_counted_are_refused_by_name() -> None:
    with pytest.raises(SpecdecError, match=r"Reference alone does not count; give the target specdec\.ops\.Ops"):
        require_exact(ArenaModel(families.build_model("llama"), Reference()))


def test_an_engine_says_whether_it_is_exact_and_a_proof_leaves_its_counters_alone() -> None:
    build = _assembly(families.build_model("llama"), _chain(), 1, None)
    engine = build.engine(None, k=0)
    assert engine.exact
    assert build.target.forwards == 0
    assert not engine.stats.ops


def _assembly(model: PreTrainedModel, ops: Ops, rows: int, bits: int | None) -> Assembly:
    """Exact engines over a model with the tokens of bytes."""
    target = ArenaModel(model, ops, bits)
    return Assembly(registry(), target, catalog.byte_tokenizer(), max_rows=rows, max_length=192, exact=True)


def _same_tokens(build: Assembly, work: Sequence[Request], ks: Sequence[int]) -> None:
    """Assert that all widths emit the tokens of plain decoding, which the oracle asks for too."""
    expected = [build.plain(request) for request in work]
    for k in ks:
        engine = build.engine("oracle(0.8)", k=k)
        assert [done.tokens for done in engine.run(work)] == expected
        assert engine.stats.counts["num_accepted_tokens"], "no window had more than one good token"


@EACH
def test_tokens_of_a_tiny_model_are_the_same_at_every_width(name: str, bits: int | None) -> None:
    build = _assembly(families.build_model("llama", 0, getattr(torch, name)), _chain(), 3, bits)
    work = [Request(i, prompt, SamplingParams(max_new_tokens=24)) for i, prompt in enumerate(prompts(3))]
    _same_tokens(build, work, (1, 4, 15))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), some_of(2, KINDS))
def test_tokens_of_smollm2_are_the_same_at_every_width(name: str, bits: int | None) -> None:
    loaded, shared = loaded_smollm2(getattr(torch, name))
    model = deepcopy(shared.twin()) if bits else shared.twin()  # weights are rounded in place
    target = ArenaModel(model, _chain(), bits)
    build = Assembly(registry(), target, loaded.tokenizer, max_rows=1, max_length=64, exact=True)
    text = workloads.load_workload("chat").encode(loaded.tokenizer)[0][-24:]
    work = [Request(0, text, SamplingParams(max_new_tokens=16))]
    _same_tokens(build, work, (4, 15))


EXACT_ARM = Arm(SETTING.replaced(dtype="bfloat16", max_new_tokens=12), draft="oracle(0.8)", k=4)


@pytest.mark.slow
def test_a_run_refuses_what_is_not_exact_before_anything_is_measured() -> None:
    bench = Bench(MeasuringPlan(prompts=1, exact=True))
    with pytest.raises(SpecdecError, match="on the backend reference.*leave out exact"):
        bench.prepare([replace(EXACT_ARM, setting=replace(EXACT_ARM.setting, backend="reference"))])


@pytest.mark.slow
def test_a_row_of_an_exact_run_says_so_and_a_difference_in_it_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    _chain()
    bench = Bench(MeasuringPlan(prompts=1, exact=True))
    bench.prepare([EXACT_ARM])
    forward = ArenaModel.forward

    def uneven(*given: Any) -> tuple[Tensor, Tensor]:
        logits, hidden = forward(*given)
        return logits.roll(logits.shape[1] // 2, dims=-1), hidden

    monkeypatch.setattr(ArenaModel, "forward", uneven)
    row = bench.row(EXACT_ARM, lambda what: None)
    [cell] = bench.cells.values()
    assert {arm.draft: one.conditions.get("exact") for arm, one in cell.series.items()} == dict.fromkeys(
        (EXACT_ARM.draft, None), "yes"
    )
    assert "both are exact" in str(row.failure)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@torch.inference_mode()
def test_logits_of_half_precision_are_the_heads_sums_before_they_are_rounded(family: str, backend: str) -> None:
    model = families.build_model(family, 0, torch.bfloat16)
    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.linspace(-1, 1, len(head.weight), dtype=torch.bfloat16))
    target = ArenaModel(model, registry().backend(backend))
    tokens = torch.arange(5)[None]
    window = Window.chain(tokens[:, 0], tokens[:, 1:], torch.tensor([4]))
    logits, hidden = target.forward(target.arena(1, 16, 5), window, slice(0, 1), 0)
    sums = hidden.double() @ head.weight.double().t() + head.bias.double()
    cap = getattr(model.config, "final_logit_softcapping", None)
    assert logits.dtype == torch.float32
    assert hidden.dtype == torch.bfloat16
    torch.testing.assert_close(logits.double(), sums if cap is None else cap * (sums / cap).tanh(), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("backend", ["auto", "reference"])
@torch.inference_mode()
def test_exact_ops_choose_the_same_tokens_at_two_widths_with_float32_logits_and_with_rounded_ones(
    backend: str,
) -> None:
    """With ``-s`` it prints a row of the table in docs/proof.md: a measurement, of what the tests above hold."""
    loaded = catalog.load("smollm2-135m", torch.device("cpu"), torch.bfloat16)
    target = ArenaModel(loaded.model, registry().backend(backend))
    differ, levels, tokens = [0, 0], [0, 0], 0
    kinds = [workloads.load_workload(kind) for kind in ("chat", "question_answering", "summarisation", "reasoning")]
    for prompt in (text[-100:] for kind in kinds for text in kind.first(5).encode(loaded.tokenizer)):
        single = _greedy(target, target.arena(1, 200, 5), tuple(prompt), 60)
        wide = _again(target, target.arena(1, 200, 5), (*prompt, *single.argmax(dim=1).tolist()), len(prompt))
        tokens += len(single)
        for place, (one, five) in enumerate(((single.bfloat16(), wide.bfloat16()), (single, wide))):
            differ[place] += int((one.argmax(dim=1) != five.argmax(dim=1)).sum())
            top = one.topk(2, dim=1).values
            levels[place] += int((top[:, 0] == top[:, 1]).sum())
    seconds = _least_seconds(target)
    print(
        f"{backend}: of {tokens} tokens {differ[0]} differ between W = 1 and 5 with rounded logits, {differ[1]} with "
        f"float32 ones; two equal largest logits at {levels[0]} and {levels[1]}; the head takes "
        f"{1e3 * seconds[0]:.2f} ms rounded and {1e3 * seconds[1]:.2f} ms in float32, a forward {1e3 * seconds[2]:.2f}"
    )
    assert levels[1] <= levels[0]
    assert backend == "reference" or differ == [0, 0]


def _greedy(target: ArenaModel, arena: Arena, prompt: tuple[int, ...], count: int) -> Tensor:
    """Logits [count, V] of the tokens that single-token windows choose after a prompt."""
    for _ in target.prefill(arena, 0, prompt):
        pass
    rows, token, length = [], prompt[-1], len(prompt)
    for place in range(count):
        rows.append(_forward(target, arena, [token], length - 1 + place))
        token = int(rows[-1].argmax())
    return torch.cat(rows)


def _again(target: ArenaModel, arena: Arena, text: tuple[int, ...], start: int) -> Tensor:
    """Logits of the same tokens in windows of five."""
    for _ in target.prefill(arena, 0, text[:start]):
        pass
    windows = range(start - 1, len(text) - 1, 5)
    return torch.cat([_forward(target, arena, list(text[at : min(at + 5, len(text) - 1)]), at) for at in windows])


def _forward(target: ArenaModel, arena: Arena, tokens: list[int], committed: int) -> Tensor:
    whole = torch.tensor([tokens])
    window = Window.chain(whole[:, 0], whole[:, 1:], torch.tensor([len(tokens) - 1]))
    logits = target.forward(arena, window, slice(0, 1), committed)[0][0]
    arena.committed += len(tokens)
    return logits


def _least_seconds(target: ArenaModel) -> list[float]:
    """Of the head's product for one row, rounded and in float32, and of a forward of one token; measured in turns."""
    head = target.model.get_output_embeddings()
    weight, x = target.ops.pack(head.weight), torch.randn(1, 1, head.weight.shape[1], dtype=torch.bfloat16)
    arena, linear = target.arena(1, 64, 1), target.ops.linear
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: linear(x, weight, None, False),
        lambda: linear(x, weight, None, True),
        lambda: _forward(target, arena, [7], 40),
    )
    times: list[list[float]] = [[], [], []]
    for _ in range(25):
        for call, seen in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            seen.append(time.perf_counter() - start)
    return [min(seen) for seen in times]


@pytest.mark.slow
def test_a_proof_tries_single_tokens_and_windows_of_2_5_16_and_its_own_width_in_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every token past the first twelve goes through each kind of windows; every second row is one token ahead."""
    target = ArenaModel(families.build_model("llama"), _chain())
    tried = list[tuple[int, int]]()
    forward = target.forward

    def noted(arena: Arena, window: Window, rows: slice, most: int) -> Any:
        tried.append((len(window.tokens), window.tokens.shape[1]))
        return forward(arena, window, rows, most)

    extend, read = target.extend, list[tuple[int, int]]()

    def extended(arena: Arena, tokens: Tensor, row: int, start: int) -> Any:
        read.append((tokens.shape[1], row))
        return extend(arena, tokens, row, start)

    monkeypatch.setattr(target, "extend", extended)
    monkeypatch.setattr(target, "forward", noted)
    require_exact(target, rows=2, width=3)
    prefix = [(12, 0), (12, 1), (1, 1)]  # of both rows, and the token that the second is ahead
    assert read == [(12, 0), *prefix * 5]
    alone, together = [slots for rows, slots in tried if rows == 1], [slots for rows, slots in tried if rows == 2]
    assert alone == [1] * 20
    assert together == [*[1] * 19, *[2] * 9, 1, *[3] * 6, 1, *[5] * 3, 4, 16, 3]
    tried.clear()
    require_exact(target)
    assert {slots for _, slots in tried} == {1, 2, 5, 16, 4}
    tried.clear()
    require_exact(target, width=30)
    assert tried.count((1, 1)) == 2 * 31 + 3  # windows of 2, 5 and 30 leave one token of 31
