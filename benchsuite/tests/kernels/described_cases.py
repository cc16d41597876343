"""Cases of ops in words: what a case's arguments are, read from the arguments themselves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from benchsuite.conformance.ops.cases import CASES, Case
from specdec.decoder import Cells, DecoderWeights
from specdec.messages import Verdict, Window
from specdec.packed import Packed, Weight
from specdec.processors import StackedParams
from specdec.quantised import Quantised

Words = list[str]

MANY = 500
"""Numbers of which a spread or a share is told."""


def given_to(case: Case) -> tuple[Any, ...]:
    """A case's arguments in its first dtype; nothing may write to them."""
    return case.make(Generator().manual_seed(7), case.dtypes[0])


def _sizes(*sizes: int) -> str:
    return "×".join(map(str, sizes))


def _flags(**flags: bool) -> Words:
    return [name.replace("_", " ") for name, there in flags.items() if there]


def _values(name: str, values: Iterable[float], usual: float | None = None) -> Words:
    """Each value once, in the order of rows; nothing if all are as usual."""
    found = [*dict.fromkeys(values)]
    return [] if found == [usual] else [f"{name} {' '.join(f'{value:.6g}' for value in found)}"]


def _spread(logits: Tensor, usual: float) -> Words:
    """The standard deviation of many finite numbers, if it is not the usual one."""
    finite = logits[logits.isfinite()]
    told = float(f"{float(finite.std()):.1g}") if finite.numel() >= MANY else usual
    return [] if told == usual else [f"spread {told:g}"]


def _left(logits: Tensor) -> Words:
    share = float(logits.isfinite().double().mean())
    return [] if share == 1 else [f"{share:.1g} possible"]


def weight_kind(weight: Weight) -> str:
    """The kind of a weight in a case in float32; none that is packed."""
    assert not isinstance(weight, Packed)
    if isinstance(weight, Quantised):
        return f"int{weight.bits}"
    return "" if weight.dtype == torch.float32 else str(weight.dtype).removeprefix("torch.")


def branches(window: Window) -> bool:
    """Whether a window is no chain in some row."""
    return not window.parents.equal(torch.arange(-1, window.parents.shape[1] - 1).expand_as(window.parents))


def _linear(x: Tensor, weight: Tensor | Quantised, bias: Tensor | None, wide: bool) -> Words:
    flags = _flags(bias=bias is not None, strided=not x.is_contiguous(), wide=wide)
    return [_sizes(x.shape[-2], *weight.shape), weight_kind(weight), *flags]


def _rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Words:
    return [_sizes(x.shape[-2], len(weight)), *_values("offset", [offset], 0.0), *_flags(strided=x.stride(-1) > 1)]


def _rotary(query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> Words:
    batch, heads, width, size = query.shape
    turns = [] if len(cos) == batch else ["one turn for all"]
    return [_sizes(batch, width, size), *([] if (heads, keys.shape[1]) == (4, 2) else [f"{heads} heads"]), *turns]


def _silu_mul(gate: Tensor, up: Tensor) -> Words:
    return [_sizes(*gate.shape), *_spread(gate, 1.0)]


def _places(cells: Tensor) -> str:
    return " ".join(map(str, cells[0].tolist()))


def _kv_append(keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, cells: Tensor) -> Words:
    first = f"from cells {_places(cells[None, :, 0])}" if cells.numel() else "nothing"
    return [_sizes(*new_keys.shape), f"into {keys.shape[2]}", first]


def _kv_compact(keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> Words:
    return [f"{_places(source)} to {_places(target)} of {keys.shape[2]}"]


def _emit(window: Window, verdict: Verdict, tokens: Tensor, length: Tensor) -> Words:
    flags = _flags(tree=branches(window), cut=verdict.path.shape[1] < window.tokens.shape[1])
    return [_sizes(*window.tokens.shape), f"into {tokens.shape[1]}", *flags]


def _kv_plan(
    window: Window, committed: Tensor, span: int | None, capacity: int, look: int, limit: int | None, dtype: torch.dtype
) -> Words:
    named = {"span": span, "limit": limit}
    given = [f"{name} {value}" for name, value in named.items() if value is not None]
    given = [f"{look} of {capacity} cells", *given, *_flags(tree=branches(window))]
    return [_sizes(*window.tokens.shape), *given, f"after {_places(committed[None])}"]


def _tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
    used: Any,
    sinks: Tensor | None = None,
) -> Words:
    batch, heads, width, size = query.shape
    words = [_sizes(batch, width, keys.shape[2], size), f"{heads} heads of {keys.shape[1]}"]
    words += [f"softcap {softcap:g}"] if softcap is not None else []
    words += [f"used {_places(used[None])}"] if used is not None else []
    words += _flags(sinks=sinks is not None)
    share = f"{float((mask == 0).double().mean()):.1g}" if mask.numel() >= MANY else "0.6"
    words += [f"{share} seen"] if share != "0.6" else []
    largest = float(keys.abs().max())
    return [*words, *([f"hidden keys to {largest:.0e}"] if largest > 100 else [])]


def _decoder_layers(x: Tensor, layers: Sequence[DecoderWeights], turn: Any, at: Sequence[Cells]) -> Words:
    layer = layers[0]
    sizes = _sizes(*x.shape, layer.down.shape[1])
    heads = f"{layer.heads} heads of {layer.heads_kv} of {layer.head_dim}"
    bias = _flags(bias=layer.qkv_bias is not None)
    several = [f"{len(layers)} layers"] if len(layers) > 1 else []
    counts = [] if at[0].width is None else [f"of which {_places(at[0].width[None])} count"]
    norms = [f"norms in {str(layer.norm_before.dtype).removeprefix('torch.')}"] * (layer.norm_before.dtype != x.dtype)
    return [sizes, heads, weight_kind(layer.qkv), *bias, *several, *counts, *norms]


def _process(logits: Tensor, params: StackedParams, paths: Tensor) -> Words:
    words = [_sizes(*logits.shape), *_values("temperature", params.temperature.tolist(), 1.0)]
    for name, usual in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
        words += _values(name.replace("_", "-"), getattr(params, name).tolist(), usual)
    more = params.adjustments
    if more is not None and more.penalties is not None:
        for name, usual in (("repetition", 1.0), ("frequency", 0.0), ("presence", 0.0)):
            words += _values(name, getattr(more.penalties, name).tolist(), usual)
    if more is not None and more.bias is not None:
        found = [f"{int(token)}:{float(row[token]):g}" for row in more.bias for token in row.nonzero().flatten()]
        words.append(f"bias {' '.join(dict.fromkeys(found))}")
    if more is not None and more.words is not None:
        forbidden = [
            "-".join(str(token) for token in [*before.tolist(), int(last)] if token >= 0)
            for row, ends in zip(more.words.prefix, more.words.last, strict=True)
            for before, last in zip(row, ends, strict=True)
        ]
        words.append(f"bad words {' '.join(filter(None, dict.fromkeys(forbidden)))}")
    if more is not None and more.least is not None and more.ends is not None:
        words += _values("tokens before an end", (more.least - more.length).tolist())
        words += _values("ends", [end for end in more.ends.flatten().tolist() if end >= 0])
    return [*words, *_spread(logits, 3.0), *_flags(whole_numbers=logits.equal(logits.round()))]


def _sample(logits: Tensor, key: Tensor | None) -> Words:
    ties = int((logits == logits.amax(dim=-1, keepdim=True)).sum(dim=-1).min())
    tied = [f"{ties} tied"] if 1 < ties < logits.shape[-1] or (ties > 1 and logits.shape[-1] == 2) else []
    return [
        _sizes(*logits.shape),
        *_flags(no_noise=key is None),
        *tied,
        *_left(logits),
        *([] if tied else _spread(logits, 4.0)),
    ]


def _accept(probability: Tensor, key: Tensor) -> Words:
    return [_sizes(*probability.shape)]


def _verify_prefix(window: Window, choices: Tensor) -> Words:
    return [_sizes(*window.tokens.shape), *_flags(tree=branches(window))]


def kind_of_q(distribution: Tensor, window: Window) -> str:
    """What a window's q is beside the target's distribution."""
    if window.q is None:
        return "certain"
    if not bool(window.q.isfinite().all()):
        return "broken q"
    same = window.q.equal(distribution[:, : window.q.shape[1]])
    return "q = p" if same and distribution.shape[-1] > 1 else "near q"


def _sampled_by_a_rule(distribution: Tensor, window: Window, *keys: Tensor) -> Words:
    possible = float((distribution > 0).double().mean())
    left = [f"{possible:.1g} possible"] if possible < 1 else []
    return [_sizes(*distribution.shape), kind_of_q(distribution, window), *left, *_flags(tree=branches(window))]


def _noise_keys(stream: Tensor, position: Tensor, draw: int | Tensor) -> Words:
    drawn = f"draw {draw}" if isinstance(draw, int) else f"draws {_places(draw.flatten()[None])}"
    return [_sizes(*position.shape), drawn]


WORDS: dict[str, Callable[..., Words]] = {
    **{"linear": _linear, "rms_norm": _rms_norm, "rotary": _rotary, "silu_mul": _silu_mul, "emit": _emit},
    **{"kv_append": _kv_append, "kv_compact": _kv_compact, "kv_plan": _kv_plan, "tree_attention": _tree_attention},
    **{"decoder_layers": _decoder_layers, "process": _process, "sample": _sample, "accept": _accept},
    **{"verify_prefix": _verify_prefix, "noise_keys": _noise_keys, "rejection_sample": _sampled_by_a_rule},
    **{"block_sample": _sampled_by_a_rule, "tree_sample": _sampled_by_a_rule},
}
"""For each op what tells its arguments."""


def words_of(case: Case) -> str:
    """A case's arguments in words. Example: ``5×37×83, int8, bias``."""
    return ", ".join(word for word in WORDS[case.op](*given_to(case)) if word)


ALL = "all other parameters"


def all_parameters() -> str:
    """The parameters beside temperature of the cases that have every one, in words."""
    case = next(case for case in CASES if (case.op, case.name) == ("process", "every-258"))
    return words_of(case).split(", ", 2)[2]


def _told(case: Case) -> str:
    words = words_of(case)
    return f"`{case.name}`" if words.replace("×", "x") == case.name else f"`{case.name}` {words}"


def case_lines(cases: Iterable[Case]) -> list[str]:
    """A line for each op and its dtypes: every case by its name and in words.

    Three or more cases whose names differ in a number n at their end are told together, if their words follow n.
    """
    found = defaultdict[tuple[str, str], dict[str, list[Case]]](dict)
    for case in cases:
        dtypes = " and ".join(str(dtype).removeprefix("torch.") for dtype in case.dtypes)
        family, _, number = case.name.rpartition("-")
        found[case.op, dtypes].setdefault(family if family and number.isdigit() else case.name, []).append(case)
    lines = []
    for (op, dtypes), families in sorted(found.items()):
        told = [one for family, members in families.items() for one in _family(family, members)]
        words = "; ".join(told).replace(all_parameters(), ALL)
        lines.append(f"- `{op}` in {dtypes}: {words}")
    return lines


def _family(family: str, cases: Sequence[Case]) -> Words:
    if len(cases) > 2 and (together := _in_terms(cases)):
        return [f"`{family}-n` {together} for n = {_runs([_number(case) for case in cases])}"]
    return [_told(case) for case in cases]


def _number(case: Case) -> int:
    return int(case.name.rpartition("-")[2])


def _runs(numbers: Sequence[int]) -> str:
    """Numbers, of four or more in a row the first and the last alone."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}…{run[-1]}" if len(run) > 3 else " ".join(map(str, run)) for run in runs)


TERMS: dict[str, Callable[[int], int]] = {
    **{"n": lambda n: n, "(n+1)": lambda n: n + 1, "2n": lambda n: 2 * n, "(n+32)": lambda n: n + 32},
    **{"(n+48)": lambda n: n + 48, "(12288/n+1)": lambda n: 12_288 // max(n, 1) + 1},
}
"""Sizes that follow a number n."""


def _in_terms(cases: Sequence[Case]) -> str:
    """The words that all have, with a term of n for each number that differs; empty if some follows no term."""
    numbers = [_number(case) for case in cases]
    split = [re.split(r"(\d+)", words_of(case)) for case in cases]
    if len({len(parts) for parts in split}) > 1:
        return ""
    terms = []
    for parts in zip(*split, strict=True):
        fits = [term for term, of in TERMS.items() if [str(of(n)) for n in numbers] == [*parts]]
        if len({*parts}) > 1 and not fits:
            return ""
        terms.append(parts[0] if len({*parts}) == 1 else fits[0])
    return "".join(terms)
