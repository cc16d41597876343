"""The answer of a run in a sentence: which strategy to use on this machine, what it gains, and what it promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchsuite.measure.results import Results, SettingResults
from benchsuite.measure.rows import Row
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.report import tables

PROMISES = {"exact": "lossless", "distribution": "of the target's own distribution"}
"""Each contract that keeps the target's outputs, in words."""


def answers(results: Results) -> list[str]:
    """Return a sentence for each measured setting, apart from its workload; it says which if there are several.

    A strategy is chosen by its speedup from prompt to last token over all workloads, among those that are measurably
    faster both so and while decoding (work that is moved into the prefill gains nothing), whose outputs kept an exact
    contract or the target's distribution, whose speeds can be compared, and that do not replay plain's own output.
    """
    if results.dry:
        return ["This was a dry run: every model was a tiny one with random weights, and no figure means anything."]
    told = []
    for one in results.settings:
        where = "On this machine" if len(results.settings) == 1 else f"With {tables.section_title(one.pooled[0])}"
        told.append(f"{where} {_answer(one)}")
    return told


def _answer(one: SettingResults) -> str:
    drafted, fit = [row for row in one.pooled if row.arm.draft], [row for row in one.pooled if usable(row)]
    workloads = max(len(row.ratios) for row in one.pooled)
    over = "over one workload" if workloads == 1 else f"over {workloads} workloads"
    if not drafted:
        return "nothing can be recommended: no strategy that drafts was measured."
    if not fit:
        reasons = Counter(map(_unfit, drafted))
        return "nothing can be recommended: " + ", ".join(f"{n} {why}" for why, n in reasons.items()) + f", {over}."
    best = max(fit, key=lambda row: _ratio(row.whole))
    if best.figures.speedup_low is None:
        few = f"one prompt {over} is" if best.n == 1 else f"{best.n} prompts {over} are"
        return f"no strategy can be recommended yet: {few} too few for an interval; measure more."
    good = [row for row in fit if row.verdict.label == row.whole.label == "faster"]
    if not good:
        return f"use plain decoding: {_not_faster(fit)} {over}."
    best = max(good, key=lambda row: _ratio(row.whole))
    each = [
        row.figures.speedup
        for row in one.rows
        if row.arm.strategy == best.arm.strategy and row.figures.speedup is not None
    ]
    slowest = f", {min(each):.2f}x on the workload that suits it least" if len(each) > 1 else ""
    return (
        f"use {tables.full_name(best)}: {_with_interval(best.verdict)} as fast as {best.figures.baseline} {over}"
        f"{slowest}, {_with_interval(best.whole)} from prompt to last token, {_promise(best)}"
        f"{_learnt(best)}{_level_with(best, fit, one)}."
    )


def _ratio(verdict: SpeedVerdict) -> float:
    """The speedup; a strategy that may be recommended has one."""
    assert verdict.speed
    return verdict.speed.ratio


def _with_interval(verdict: SpeedVerdict) -> str:
    """Example: ``1.50x (1.36 to 1.65)``"""
    assert verdict.speed
    assert verdict.interval
    return "{:.2f}x ({:.2f} to {:.2f})".format(verdict.speed.ratio, *verdict.interval)


def _not_faster(fit: Sequence[Row]) -> str:
    """What no strategy does; where one decodes faster and takes as long all the same, which one."""
    best = max(fit, key=lambda row: _ratio(row.verdict))
    if best.verdict.label != "faster":
        return "no strategy was measurably faster"
    return (
        f"no strategy was measurably faster from prompt to last token ({tables.full_name(best)}: "
        f"{_with_interval(best.whole)}, {_with_interval(best.verdict)} without its prefill)"
    )


def _promise(best: Row) -> str:
    """What a row promises, and over how many tokens it was seen to keep that."""
    tokens = (best.figures.counters or {}).get("num_emitted_tokens")
    return PROMISES[best.figures.contract] + (f" over {tokens:,} tokens" if tokens else "")


def _learnt(best: Row) -> str:
    """From how many prompts a draft had learnt at most when it was timed: it forgets before every workload."""
    if "learns" not in (best.figures.marks or ()):
        return ""
    most = (max(map(len, best.ratios.values())) - 1) * best.figures.batch
    return f"; it learns from ended requests, here from up to {most} before the one that was timed"


def usable(row: Row) -> bool:
    """Whether a row over all workloads may be recommended."""
    return row.arm.draft is not None and not _unfit(row)


def _unfit(row: Row) -> str:
    """Why a strategy cannot be recommended, empty if it can; to be read after a number of strategies."""
    figures = row.figures
    if row.failure is not None:
        return "broke its contract" if figures.failed in (None, "contract") else "could not be measured"
    if "replays" in (figures.marks or ()):
        return "replayed plain's own output"
    if figures.contract not in PROMISES:
        return "promised no contract that keeps the target's outputs"
    if figures.speedup is None or figures.not_comparable is not None:
        return "could not be compared with plain"
    if row.whole.speed is None:
        return "could not be compared with the baseline from prompt to last token"
    return ""


def _level_with(best: Row, fit: Sequence[Row], one: SettingResults) -> str:
    """The strategies that cannot be distinguished from the best one: the largest of several speedups is partly luck."""
    others = [(row, one.whole_contrasts.get((best.arm, row.arm))) for row in fit if row is not best]
    level = [tables.full_name(row) for row, over in others if over and over.label not in ("faster", None)]
    if not level:
        return ""
    shown = ", ".join(level[:2]) + (f" and {len(level) - 2} more" if len(level) > 2 else "")
    return f"; not distinguishable from {shown}"
