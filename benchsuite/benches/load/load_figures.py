"""Figures of strategies under one load: those of servers, the busy part of closed blocks, and ratios to plain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean

from benchsuite.benches.load.busy import BusyPart
from benchsuite.benches.load.queue_block import QueueBlock
from benchsuite.benches.load.served_queue import TOKEN_IDS
from benchsuite.benches.serving.figures import EndpointFigures, Slo, endpoint_figures
from benchsuite.benches.serving.load import Sent, Traffic
from benchsuite.benches.serving.speed import PairedLog, mean_of_groups
from benchsuite.measure.interval import FEWEST, NONE, Estimate, LogMean, mean_of_strata, student

GROUPS = "Student's t over groups of prompts"
REPEATS = "Student's t over rounds within groups of prompts"

SHORT = 0.005
"""A tail of a smaller share of the time has no speed: of rows that end together it lasts no time."""


@dataclass(frozen=True)
class LoadFigures:
    """One arm under one load.

    ``served``: latencies, throughput and goodput, as of a server. ``busy_per_s`` and ``tail_per_s``: tokens a second
    of a closed load with as many requests as it has (``BusyPart.full_s``), and when fewer run; ``tail``: the share of
    its time that the tail is, which below ``SHORT`` has no speed. ``log``: the mean log of its ratio to plain, block by
    block, None of too few blocks for an error; ``ratio``: the same as a ratio with its interval. Of a closed load it is
    the ratio of ``busy_per_s``; of a rate, that of seconds per token from when a request was due to its end.
    ``equal``: outputs that are plain's, token by token, of ``of``.
    """

    arm: str
    served: EndpointFigures
    busy_per_s: float | None
    tail_per_s: float | None
    tail: float | None
    log: LogMean | None
    ratio: Estimate | None
    equal: int
    of: int


def load_figures(
    blocks: Sequence[QueueBlock],
    names: Sequence[str],
    workloads: Sequence[str],
    load: Traffic,
    slo: Slo | None,
    draftless: Collection[str] = (),
) -> list[LoadFigures]:
    """Return the figures of every arm in ``names``, of which the first is plain; ``workloads``: that of each prompt.

    ``draftless``: arms that have nothing which could learn, however slow the machine was in their first round.
    """
    served = endpoint_figures(blocks, names, workloads, slo)
    served = [replace(one, learns=None) if one.endpoint in draftless else one for one in served]
    by_arm = {name: [block for block in blocks if block.endpoint == name] for name in names}
    base = by_arm[names[0]]
    return [_figures(one, by_arm[one.endpoint], base, load) for one in served]


def _figures(
    served: EndpointFigures, mine: Sequence[QueueBlock], base: Sequence[QueueBlock], load: Traffic
) -> LoadFigures:
    logs = block_logs(mine, base, load)
    busy = tail = share = None
    if load.concurrency and mine:
        parts = [BusyPart(block.steps, load.concurrency) for block in mine]
        whole_s, tail_s = sum(block.seconds for block in mine), sum(part.tail_s for part in parts)
        full = [(part.tokens, seconds) for part in parts if (seconds := part.full_s)]
        busy = sum(tokens for tokens, _ in full) / sum(seconds for _, seconds in full) if full else None
        share = tail_s / whole_s if whole_s else None
        tail = sum(step.emitted for part in parts for step in part.tail) / tail_s if share and share >= SHORT else None
    pairs = list(_outputs(mine, base))
    equal = sum(ours == its for ours, its in pairs)
    return LoadFigures(
        served.endpoint, served, busy, tail, share, mean_of_blocks(logs), ratio_of(logs), equal, len(pairs)
    )


def _outputs(mine: Sequence[QueueBlock], base: Sequence[QueueBlock]) -> list[tuple[list[int], list[int]]]:
    """The token ids of both answers to each prompt of a round."""
    theirs = token_ids_of(base)
    return [(ids, theirs[key]) for key, ids in token_ids_of(mine).items() if key in theirs]


def token_ids_of(blocks: Sequence[QueueBlock]) -> dict[tuple[int, int], list[int]]:
    """Return the token ids of every answer, by its round and the place of its prompt."""
    return {(block.round, one.prompt): one.reply.body[TOKEN_IDS] for block in blocks for one in block.sent if one.reply}


def block_logs(mine: Sequence[QueueBlock], base: Sequence[QueueBlock], load: Traffic) -> list[PairedLog]:
    """Return the log of how many times as fast each block was as plain's of the same prompts in the same round."""
    theirs = {(block.group, block.round): block for block in base}
    found = []
    for block in mine:
        other = theirs.get((block.group, block.round))
        if other is None:
            continue
        ours, its = _slowness(block, load), _slowness(other, load)
        if ours is not None and its is not None:
            found.append(PairedLog("", block.group, block.group, block.round, its - ours))
    return found


def _slowness(block: QueueBlock, load: Traffic) -> float | None:
    """The log of what a block costs: seconds per token with all places taken, or of its requests from when they were
    due."""
    if load.concurrency:
        part = BusyPart(block.steps, load.concurrency)
        return log(part.full_s / part.tokens) if part.full_s else None
    each = [_due_to_end(one) for one in block.sent]
    known = [log(seconds) for seconds in each if seconds]
    return fmean(known) if known else None


def _due_to_end(one: Sent) -> float | None:
    """Seconds per token of a request, waiting included."""
    counted = one.reply.counted if one.reply else None
    return (one.reply.seconds + one.late_s) / counted if one.reply and counted else None


def mean_of_blocks(logs: Sequence[PairedLog]) -> LogMean | None:
    """Return the mean over groups of the means over rounds, and how far it may be off; None of too few blocks.

    From ``FEWEST`` groups on they are the units, and what is said is of further prompts like these. Of fewer groups
    with two rounds or more, and ``FEWEST`` blocks in all, the rounds within each are the units: of repeats with these
    prompts.
    """
    by_group: dict[int, list[float]] = {}
    for one in logs:
        by_group.setdefault(one.group, []).append(one.log)
    if len(by_group) >= FEWEST:
        return mean_of_groups(logs)
    if len(logs) < FEWEST or min(map(len, by_group.values())) < 2:
        return None
    return mean_of_strata([*by_group.values()])


def ratio_of(logs: Sequence[PairedLog]) -> Estimate | None:
    """Return the ratio of an arm's blocks to plain's, with its interval where ``mean_of_blocks`` has one."""
    if not logs:
        return None
    groups, found = {one.group for one in logs}, mean_of_blocks(logs)
    if found is None:
        middle = fmean(fmean(one.log for one in logs if one.group == group) for group in groups)
        return Estimate(exp(middle), None, None, len(logs), NONE)
    half = student(0.95, found.degrees) * found.error if found.error else 0.0
    method = GROUPS if len(groups) >= FEWEST else REPEATS
    return Estimate(exp(found.mean), exp(found.mean - half), exp(found.mean + half), found.units, method)


def curves(points: Mapping[Traffic, Sequence[LoadFigures]], arm: str) -> dict[str, list[tuple[float, LoadFigures]]]:
    """Return an arm's figures along the loads, each kind of load a curve by its unit, in the order of rising loads."""
    found: dict[str, list[tuple[float, LoadFigures]]] = {}
    for load, rows in points.items():
        unit = "at once" if load.concurrency else "a second"
        found.setdefault(unit, []).extend((load.concurrency or load.rate or 0.0, row) for row in rows if row.arm == arm)
    return {unit: sorted(some, key=lambda point: point[0]) for unit, some in found.items()}
