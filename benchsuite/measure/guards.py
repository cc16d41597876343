"""Guards: conditions under which an arm's speed cannot be compared with another's, whatever the clock says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import sqrt
from statistics import fmean

from benchsuite.judge.sources import Tokens
from benchsuite.measure.paired import Series
from benchsuite.measure.runners import Guessed, Outcome

UNLIKE = 0.25
"""The largest share of tokens by which the lengths of two arms' outputs may differ."""

KNOWN = 1.0
"""By how much more of n prompts than of their twins a draft may guess on average, as a share of what is possible: so
much over the square root of n. Of an honest draft one difference has a standard deviation of 0.25 or less, so that this
is four of their mean."""

FEWEST_TWINS = 4
"""Fewer decide nothing: of three answers that edit code a lookup copied all, and next to nothing of their twins'."""

SHORTEST_LOOP = 12
"""Tokens of the shortest half of an output in which a loop is looked for."""


def why_not(ours: Sequence[Series], base: Sequence[Series], across: Collection[str] = ()) -> str | None:
    """Return why the speeds of two arms, over the same workloads, cannot be compared; None if they can.

    ``across``: conditions in which they may differ.
    """
    for name, said in (("machine", "machines: measured on"), ("threads", "threads: measured with")):
        found = sorted({series.conditions[name] for series in ours if name in series.conditions})
        if len(found) > 1:
            return f"{said} {', '.join(found)}"
    mine, theirs = ours[0].conditions, base[0].conditions
    for name in sorted((mine.keys() & theirs.keys()) - set(across)):
        if mine[name] != theirs[name]:
            return f"{name}: {mine[name]}, the baseline's is {theirs[name]}"
    outcomes, others = ([o for series in every for o in series.outcomes] for every in (ours, base))
    proposals = remembered(ours) or _proposals(ours, outcomes)
    return _backend(outcomes, others) or proposals or _lengths(ours, base) or _loops(others)


def remembered(every: Sequence[Series]) -> str | None:
    """Return how it shows that a draft knew its prompts from elsewhere than from this pass over them; None if it does
    not. The twins are set beside the first runs of their prompts."""
    if any(series.learnt for series in every):
        return "learnt: it guessed more of a prompt when it was asked again, although it was told to forget"
    pairs = [pair for series in every for pair in _beside_twins(series)]
    if len(pairs) < FEWEST_TWINS:
        return None
    own, twins = (fmean(shares) for shares in zip(*pairs, strict=True))
    if own - twins > KNOWN / sqrt(len(pairs)):
        return (
            f"known: it guessed {own:.0%} of what can be guessed of the prompts, and {twins:.0%} of twins that no run "
            "can have seen: it had met the prompts before this run"
        )
    return None


def _beside_twins(series: Series) -> list[tuple[float, float]]:
    """The shares that a draft guessed of its prompts, at their first runs, and of their twins."""
    found = []
    for place, twin in series.twins.items():
        runs = zip(series.units, series.outcomes, strict=True)
        first = next((outcome for unit, outcome in runs if unit.requests[0].id == place), None)
        if first and first.stats:
            own = Guessed(first.stats.counts["num_accepted_tokens"], first.emitted, twin.most)
            found.append((own.share, twin.share))
    return found


def loops(tokens: Tokens) -> bool:
    """Whether the second half of an output repeats one piece, of any length, at least three times.

    Example: ``loops((7,) * 10 + (1, 2) * 6)`` is true; an output of fewer than 23 tokens is never called a loop.
    """
    return len(tokens) - len(tokens) // 2 >= SHORTEST_LOOP and repeats_a_piece(tokens)


def repeats_a_piece(output: Sequence[object]) -> bool:
    """Whether the second half of an output, its tokens or its text, repeats one piece at least three times, however
    short it is.

    Example: ``repeats_a_piece("no: " + "ab" * 4)`` is true.
    """
    half = output[len(output) // 2 :]
    return any(half[p:] == half[:-p] for p in range(1, len(half) // 3 + 1))


def unlike(lengths: Sequence[tuple[int, int]]) -> str | None:
    """Return by how much the lengths of pairs of outputs differ, in a clause, if it is too much; else None."""
    apart = sum(abs(a - b) for a, b in lengths) / max(sum(map(max, lengths)), 1)
    return f"lengths: its outputs and the baseline's differ by {apart:.0%} of their tokens" if apart > UNLIKE else None


def _backend(ours: Sequence[Outcome], base: Sequence[Outcome]) -> str | None:
    """An op that both ran, on backends that have none in common."""
    ran, other = ({key for o in every if o.stats for key in o.stats.ops} for every in (ours, base))
    for op in sorted({name for name, _ in ran} & {name for name, _ in other}):
        mine, theirs = ({backend for name, backend in keys if name == op} for keys in (ran, other))
        if not mine & theirs:
            return f"backend: {op} ran on {', '.join(sorted(mine))}, the baseline's on {', '.join(sorted(theirs))}"
    return None


def _proposals(ours: Sequence[Series], outcomes: Sequence[Outcome]) -> str | None:
    if ours[0].arm.draft and outcomes and not any(o.stats and o.stats.counts["num_draft_tokens"] for o in outcomes):
        return "no proposals: its draft never proposed a token, so this is the speed of plain decoding"
    return None


def _lengths(ours: Sequence[Series], base: Sequence[Series]) -> str | None:
    """Text by text; of a workload that ended early, those that both have."""
    pairs = [
        (len(a), len(b))
        for mine, theirs in zip(ours, base, strict=False)
        for o, p in zip(mine.outcomes, theirs.outcomes, strict=False)
        for a, b in zip(o.tokens, p.tokens, strict=False)
    ]
    return unlike(pairs)


def _loops(base: Sequence[Outcome]) -> str | None:
    outputs = [tokens for outcome in base for tokens in outcome.tokens]
    looping = sum(map(loops, outputs))
    if outputs and 2 * looping >= len(outputs):
        return f"loops: {looping} of {len(outputs)} outputs repeat one piece to their end, which any lookup guesses"
    return None
