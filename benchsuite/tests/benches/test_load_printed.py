"""Every cell of every table of a report on load is made anew from the records in its JSON, by formulas of this file."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from math import exp, lgamma, log, pi, sqrt
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import pytest
import torch

from benchsuite.benches.load.bench import LoadBench, LoadPlan
from benchsuite.benches.load.queue_block import QueueBlock, QueueStep
from benchsuite.benches.load.served_queue import TOKEN_IDS
from benchsuite.benches.serving.figures import Slo
from benchsuite.benches.serving.load import Sent, Traffic
from benchsuite.conformance.models.tiny import registry
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.workloads import load_workload
from benchsuite.report.document import Document, Table
from benchsuite.report.load import load_document
from specdec import SamplingParams, catalog
from specdec.model import ArenaModel
from specdec_plugins.endpoints.replies import Chunk, Reply

Record = Mapping[str, Any]

ROUNDS = {Traffic(concurrency=1): 2, Traffic(concurrency=2): 9, Traffic(concurrency=3): 5, Traffic(rate=3.0): 6}
"""Loads, and how often each of six groups is served: of the first there are too few requests for a 99th percentile."""

SPEED = {"plain": 1.0, "plain again": 1.0, "ngram/match/fixed/2": 1.02, "ngram/match/fixed/4": 1.4}
SLOWER = {1: 1.0, 2: 0.85, 3: 0.6}
"""How many times as fast an arm is, times that at so many requests at once."""

LIMITS = Slo(ttft=0.7, tpot=0.2, e2e=2.5)


def recorded_request(place: int, begun: float, late: float, speed: float, loops: bool, dice: random.Random) -> Sent:
    """A request whose tokens come one to three at a time, after random times; ``loops``: it repeats one word."""
    at, chunks, ids = 0.0, list[Chunk](), list[int]()
    for number in range(6 + place % 7):
        at += dice.uniform(0.1, 0.9 if number == 0 else 0.3) / speed
        chunks.append(Chunk(at, "", dice.choice([1, 1, 2, 3])))
        ids += [place, number] * 2
    count = sum(chunk.tokens or 0 for chunk in chunks)
    count, chunks = (40, [*chunks, Chunk(at + 0.1, "", 40 - count)]) if loops else (count, chunks)
    text = " ".join("so" if loops else f"{place}.{number}" for number in range(count))
    said = {TOKEN_IDS: ids if dice.random() < 0.9 else ids[1:]}
    reply = Reply(text, (), tuple(chunks), chunks[-1].seconds, 3, count, "length", 1, said)
    return Sent(place, begun, begun + reply.seconds, reply, late_s=late)


def made_up_steps(sent: Sequence[Sent], dice: random.Random) -> list[QueueStep]:
    """A step to each moment at which tokens come, most of the time since the one before, with a slot to three a row."""
    found, before = list[QueueStep](), 0.0
    came = [(one.sent_s + chunk.seconds, chunk.tokens or 0) for one in sent if one.reply for chunk in one.reply.chunks]
    for at in sorted({at for at, _ in came}):
        rows = sum(one.sent_s <= before < one.ended_s for one in sent)
        emitted = sum(tokens for other, tokens in came if other == at)
        begun = at - dice.uniform(0.6, 1.0) * (at - before)
        found.append(QueueStep(rows, dice.randint(rows, 3 * rows), emitted, begun, at))
        before = at
    return found


def recorded_block(arm: str, load: Traffic, turn: int, group: int, dice: random.Random) -> QueueBlock:
    """Twice as many requests as a closed load has at once, or five that are due at random times."""
    pace, sent = exp(dice.gauss(0, 0.03)), list[Sent]()
    free, at = [0.0] * (load.concurrency or 0), 0.0
    count = 2 * load.concurrency if load.concurrency else 5
    for place in range(count * group, count * (group + 1)):
        speed = SPEED[arm] * pace
        if load.concurrency:
            speed *= SLOWER[load.concurrency] if "/" in arm else 1.0
            begun, late = free.pop(free.index(min(free))), 0.0
        else:
            at += dice.expovariate(load.rate or 1.0)
            late = dice.choice([0.0, 0.05, 0.4])
            begun = at + late
        sent.append(recorded_request(place, begun, late, speed, turn + place == 0, dice))
        free.append(sent[-1].ended_s)
    steps = tuple(made_up_steps(sent, dice))
    return QueueBlock(arm, turn, tuple(sorted(sent, key=lambda one: one.ended_s)), group, steps=steps)


@pytest.fixture(scope="module")
def made_up_report() -> tuple[Document, dict[str, Any]]:
    """The report on made-up blocks, and its JSON."""
    setting = Setting("tiny", "auto", "cpu", "auto", 1, "chat", SamplingParams(max_new_tokens=40))
    arms = [Arm(setting), Arm(setting, again=True), Arm(setting, "ngram", k=2), Arm(setting, "ngram", k=4)]
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    texts = tuple(load_workload(name).first(9) for name in ("chat", "code_editing", "json", "reasoning"))
    plan = LoadPlan(tuple(ROUNDS), texts, setting.sampling, 3, slo=LIMITS)
    bench = LoadBench("tiny", loaded, ArenaModel(loaded.model, registry().backend()), arms, plan)
    assert bench.names == [*SPEED]
    dice = random.Random(11)
    for load, rounds in ROUNDS.items():
        bench.blocks[load] = [
            recorded_block(arm, load, turn, group, dice)
            for turn in range(rounds)
            for group in range(6)
            for arm in SPEED
        ]
    return load_document(bench, []), json.loads(json.dumps(bench.as_json()))


def in_ms(seconds: Sequence[float]) -> list[str]:
    """The median and two percentiles as a table has them: the 90th of ten values or more, the 99th of a hundred."""
    ordered = sorted(seconds)
    ranked = [
        next(one for count, one in enumerate(ordered, 1) if 100 * count >= share * len(ordered))
        if len(seconds) * (100 - share) >= 100
        else None
        for share in (90, 99)
    ]
    shown = [None if one is None else 1000 * one for one in (median(seconds), *ranked)]
    return ["-" if one is None else f"{one:.0f}" if one >= 100 else f"{one:.1f}" for one in shown]


def requests_of(blocks: Sequence[Record]) -> list[Record]:
    return [request for block in blocks for request in block["sent"]]


def seconds_of(block: Record) -> float:
    return float(max(r["ended_s"] for r in block["sent"]) - min(r["sent_s"] for r in block["sent"]))


def split_steps(block: Record, at_once: int) -> tuple[list[list[float]], list[list[float]]]:
    """The steps until a place stays empty, and those after them; a step has rows, slots, tokens, begin and end."""
    last = max(n for n, (rows, *_) in enumerate(block["steps"]) if rows == at_once)
    return block["steps"][: last + 1], block["steps"][last + 1 :]


def full_seconds(block: Record, at_once: int) -> float:
    """What is in no step until a place stays empty, and what the steps of all rows take on the line through those with
    all places taken, a slot of which costs 0 at least, and its part of the time at most."""
    busy, tail = split_steps(block, at_once)
    rows, slots = (sum(step[place] for step in (*busy, *tail)) for place in (0, 1))
    widths, times = [step[1] for step in busy], [step[4] - step[3] for step in busy]
    slope = float(np.polyfit(widths, times, 1)[0]) if len({*widths}) > 1 else 0.0
    slope = sorted((0.0, slope, fmean(times) / fmean(widths)))[1]
    each = fmean(times) + slope * (slots / rows * at_once - fmean(widths))
    end = tail[0][3] if tail else busy[-1][4]
    return float(end - sum(times) + rows / at_once * each)


def log_speed(block: Record, at_once: int | None) -> float:
    """Of a block: tokens a second while all places are taken; under a rate the mean over requests, from when due."""
    if at_once:
        return log(sum(r["usage"][1] for r in block["sent"]) / full_seconds(block, at_once))
    return fmean(log(r["usage"][1] / (r["seconds"] + r["late_s"])) for r in block["sent"])


def group_ratios(blocks: Mapping[str, Sequence[Record]], arm: str, at_once: int | None) -> list[float]:
    """The mean log of each group's ratio to plain, over its rounds."""
    logs: dict[int, list[float]] = {}
    for mine in blocks[arm]:
        [base] = [b for b in blocks["plain"] if (b["group"], b["round"]) == (mine["group"], mine["round"])]
        logs.setdefault(mine["group"], []).append(log_speed(mine, at_once) - log_speed(base, at_once))
    return [fmean(some) for some in logs.values()]


T_5 = 2.570582
"""Student's t of 95 % with 5 degrees of freedom."""


def interval_of(logs: Sequence[float]) -> tuple[float, float, float]:
    half = T_5 * stdev(logs) / len(logs) ** 0.5
    return exp(fmean(logs)), exp(fmean(logs) - half), exp(fmean(logs) + half)


def marked(found: tuple[float, float, float], again: tuple[float, float, float]) -> str:
    ratio, low, high = found
    noise = max(abs(log(one)) for one in again)
    return f"{ratio:.2f}x" + ("~" if low <= 1 <= high or abs(log(ratio)) <= noise else "")


def by_arm(load: Record) -> dict[str, list[Record]]:
    return {arm: [block for block in load["blocks"] if block["arm"] == arm] for arm in SPEED}


def is_loop(request: Record) -> bool:
    return len({*request["text"].split()}) == 1


def keeps_limits(request: Record) -> bool:
    first, *rest = request["chunks"]
    each = (request["chunks"][-1][0] - first[0]) / sum(count for _, _, count in rest)
    late = request["late_s"]
    return not is_loop(request) and first[0] + late <= 0.7 and each <= 0.2 and request["seconds"] + late <= 2.5


def speed_cells(arm: str, load: Record) -> list[str]:
    """A row of the table of speeds."""
    blocks, at_once = by_arm(load), load["load"]["concurrency"]
    mine, sent = blocks[arm], requests_of(blocks[arm])
    whole = sum(map(seconds_of, mine))
    all_tokens = sum(r["usage"][1] for r in sent)
    cells = ["-"] * 3
    if at_once:
        parts = [split_steps(block, at_once) for block in mine]
        tail_s = sum(rest[-1][4] - rest[0][3] for _, rest in parts if rest)
        left = sum(step[2] for _, rest in parts for step in rest)
        tail = "-" if tail_s < 0.005 * whole else f"{left / tail_s:.1f}"
        busy = all_tokens / sum(full_seconds(block, at_once) for block in mine)
        cells = [f"{busy:.1f}", tail, f"{100 * tail_s / whole:.0f}"]
    found, again = (interval_of(group_ratios(blocks, one, at_once)) for one in (arm, "plain again"))
    expected = {(b["round"], r["prompt"]): r["body"]["token_ids"] for b in blocks["plain"] for r in b["sent"]}
    equal = sum(r["body"]["token_ids"] == expected[b["round"], r["prompt"]] for b in mine for r in b["sent"])
    kept = sum(map(keeps_limits, sent))
    return [
        arm,
        f"{all_tokens / whole:.1f}",
        *cells,
        "1.00x" if arm == "plain" else marked(found, again),
        "-" if arm == "plain" else f"{found[1]:.2f}-{found[2]:.2f}",
        f"{len(sent) / whole:.2f}",
        f"{kept / whole:.2f}/s, {100 * kept / len(sent):.0f}%",
        f"{equal}/{len(sent)}",
    ]


def latency_cells(arm: str, load: Record) -> list[str]:
    """A row of the table of latencies: TTFT, TPOT, end to end."""
    sent = requests_of(by_arm(load)[arm])
    first = [r["chunks"][0][0] + r["late_s"] for r in sent]
    each = [
        (r["chunks"][-1][0] - r["chunks"][0][0]) / (r["usage"][1] - r["chunks"][0][2]) for r in sent if r["chunks"][1:]
    ]
    return [arm, *in_ms(first), *in_ms(each), *in_ms([r["seconds"] + r["late_s"] for r in sent])]


def gap_cells(arm: str, load: Record) -> list[str]:
    """A row of the table of gaps: between emissions, and per token."""
    gaps, tokens = list[float](), list[float]()
    for request in requests_of(by_arm(load)[arm]):
        before = request["chunks"][0][0]
        for at, _, count in request["chunks"][1:]:
            gaps.append(at - before)
            tokens += [(at - before) / count] * count
            before = at
    return [arm, *in_ms(gaps), *in_ms(tokens)]


def texts_of_tables(document: Document, title: str) -> list[list[list[str]]]:
    """The texts of all tables of the section whose title begins so."""
    [section] = [one for one in document.sections if (one.title or "").startswith(title)]
    return [[[cell.text for cell in row] for row in part.cells] for part in section.parts if isinstance(part, Table)]


@pytest.mark.parametrize("place", range(len(ROUNDS)), ids=[load.id for load in ROUNDS])
def test_every_cell_under_a_load_follows_from_the_records(place: int, made_up_report: tuple[Document, Record]) -> None:
    document, told = made_up_report
    load, title = told["loads"][place], [*ROUNDS][place].label
    speeds, latencies, gaps = texts_of_tables(document, f"{title}, ")
    assert speeds == [speed_cells(arm, load) for arm in SPEED]
    assert latencies == [latency_cells(arm, load) for arm in SPEED]
    assert gaps == [gap_cells(arm, load) for arm in SPEED]
    assert any(map(is_loop, requests_of(load["blocks"])))


def rarity(logs: tuple[Sequence[float], Sequence[float]], share: float) -> tuple[float, float]:
    """The mean log ratio at a share of the way between two loads, and Student's probability of one as far from 0.

    Its degrees of freedom are Welch's for the sum of both variances, which have 5 each.
    """
    weights = (1 - share, share)
    mean = sum(weight * fmean(some) for weight, some in zip(weights, logs, strict=True))
    parts = [(weight * stdev(some)) ** 2 / len(some) for weight, some in zip(weights, logs, strict=True)]
    degrees = sum(parts) ** 2 / sum(part**2 / 5 for part in parts)
    return mean, student_tails(abs(mean) / sqrt(sum(parts)), degrees)


def student_tails(t: float, degrees: float) -> float:
    """The probability beyond -t and t, by Simpson's rule over the density of Student's distribution."""
    density: list[float] = [(1 + (t * n / 400) ** 2 / degrees) ** (-(degrees + 1) / 2) for n in range(401)]
    inside = (density[0] + density[-1] + 4 * sum(density[1::2]) + 2 * sum(density[2:-1:2])) * t / 1200
    return 1 - 2 * inside * exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / sqrt(degrees * pi)


def test_the_crossover_and_every_ratio_of_the_curves_follow_from_the_records(
    made_up_report: tuple[Document, Record],
) -> None:
    """Its place is where the line between two loads is 0; its ends are where the probability passes 5 %."""
    document, told = made_up_report
    loads = {one["load"]["concurrency"]: by_arm(one) for one in told["loads"] if one["load"]["concurrency"]}
    logs = {arm: {at: group_ratios(blocks, arm, at) for at, blocks in loads.items()} for arm in SPEED}
    [cells] = texts_of_tables(document, "Ratio to plain, requests at once")
    again = {at: interval_of(some) for at, some in logs["plain again"].items()}
    for arm, row in zip(SPEED, cells, strict=True):
        shown = ["1.00x"] * 3 if arm == "plain" else [marked(interval_of(logs[arm][at]), again[at]) for at in (1, 2, 3)]
        assert row[:4] == [arm, *shown]
    arm = "ngram/match/fixed/4"
    found, means = told["crossovers"]["at once"][arm], [fmean(logs[arm][at]) for at in (1, 2, 3)]
    assert means[0] > means[1] > 0 > means[2]
    assert found["state"] == "falls"
    assert found["at"] == pytest.approx(2 * 1.5 ** (means[1] / (means[1] - means[2])), rel=0.01)
    for end, outwards in (("low", -0.01), ("high", 0.01)):
        below = 1 if found[end] < 2 else 2
        assert below < found[end] < below + 1
        share, both = log(found[end] / below) / log((below + 1) / below), (logs[arm][below], logs[arm][below + 1])
        assert rarity(both, share)[1] >= 0.05 - 1e-6
        mean, chance = rarity(both, share + outwards)
        assert chance <= 0.05
        assert (mean > 0) == (end == "low")
    assert f"from {found['at']:.3g} at once on ({found['low']:.3g} to {found['high']:.3g})" in cells[3][-1]
