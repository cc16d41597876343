"""Every figure of a row, once more from the records in its JSON, by a formula that shares no code with the suite."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchsuite.machine.files import strict_json
from benchsuite.measure.arms import Arm
from benchsuite.measure.figures import KEYS
from benchsuite.measure.paired import Series
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.rows import Machine, make_rows
from benchsuite.measure.runners import Outcome
from benchsuite.measure.session import Bench
from benchsuite.measure.units import Unit
from benchsuite.report import files
from benchsuite.tests.rig import SETTING
from specdec.devices import Stopwatch
from specdec.stats import Call, Marks, RowStep, Stats, Step

STUDENT_95 = {5: 2.570582}
"""Student's t by degrees of freedom: tables of any textbook."""

STRATEGIES: list[dict[str, Any]] = [
    {"draft": "oracle(0.8)", "k": 4},
    {"draft": "tree", "policy": "match", "k": 6},
    {"draft": "suffix", "k": 4},
    {"draft": "draft_model", "policy": "rejection", "k": 3},
]

NOT_RECOMPUTED = {
    *("setting", *SETTING.values),  # given, not measured
    *("draft", "policy", "controller", "num_speculative_tokens", "baseline"),
    *("contract", "contract_checked", "emitted_digest", "marks", "not_comparable", "verdict", "failed"),  # words
    *("peak_memory_bytes", "memory", "set_up_s"),  # read once
    *("judged_perplexity", "judged_tokens"),  # of a model that is not here: tests/judge/test_judgement.py
}


@pytest.fixture(scope="module", params=[1, 4], ids=["batch1", "batch4"])
def measured_twice(request: pytest.FixtureRequest) -> Any:
    """The rows of the JSON, over one workload and over all, with the machine that they ran on."""
    short = SETTING.replaced(batch=request.param, max_new_tokens=7)
    settings = [replace(short, workload=name) for name in ("chat", "reasoning")]
    peers: list[dict[str, Any]] = [{"peer": "transformers"}] if request.param == 1 else []
    bench = Bench(MeasuringPlan(prompts=6 if request.param == 1 else 8, pairs=2))
    bench.prepare([Arm(setting, **strategy) for setting in settings for strategy in (*STRATEGIES, *peers)])
    for arm in bench.arms:
        bench.row(arm, lambda what: None)
    found = files.comparison_files(bench.results())
    return json.loads(found["benchmark.json"]), next(iter(bench._stages.values())).machine


@pytest.mark.slow
def test_every_figure_of_every_row_follows_from_its_records(measured_twice: tuple[Any, Machine]) -> None:
    found, machine = measured_twice
    for kind in ("rows", "pooled"):
        for workload in dict.fromkeys(row["workload"] for row in found[kind]):
            rows = [row for row in found[kind] if row["workload"] == workload]
            assert len(rows) == 6 + (rows[0]["batch"] == 1)
            for row in rows:
                assert row["failure"] is None
                recomputed = figures(row, rows[0], machine)
                assert {*recomputed, *NOT_RECOMPUTED} - {"target"} == {*KEYS}, "a figure that nobody recomputes"
                for name, value in recomputed.items():
                    same = (
                        value
                        if value is None or name in ("counters", "acceptance_histogram")
                        else pytest.approx(value, rel=1e-6, abs=1e-12)
                    )
                    assert row[name] == same, (row["draft"], workload, name)


def made_up(dice: random.Random, watch: Stopwatch, batch: int, number: int, proposes: bool) -> Outcome:
    """A run of a batch in which nothing is as another thing is: no mean is a median, and no sum another sum."""
    stats, now = Stats(watch), itertools.accumulate(iter(lambda: dice.uniform(0.001, 1), None))
    start = watch.marks[-1] if watch.marks else 0.0
    assert isinstance(start, float)

    def mark() -> int:
        watch.marks.append(start + next(now))
        return len(watch.marks) - 1

    for name in ("admit", "prefilled", "move", "release", "keep"):
        stats.calls.append(Call(name, mark(), mark()))
    for number_of_step in range(dice.randint(3, 6)):
        each = []
        for _ in range(dice.randint(1, batch)):
            proposed = dice.randint(0, 4) * (proposes and number_of_step > 0)
            deepest = dice.randint(min(proposed, 1), proposed)
            accepted = dice.randint(0, deepest)
            each.append(RowStep(proposed, deepest, accepted, dice.randint(1, accepted + 1)))
            stats.proposed(proposed, deepest)
            stats.accepted(accepted)
            stats.counts["num_emitted_tokens"] += each[-1].emitted
        stats.counts["target_forwards"] += 1
        stats.steps.append(
            Step.of(tuple(each), 1 + max(row.proposed for row in each), Marks(*(mark() for _ in range(10))))
        )
    stats.counts["allocations"] = dice.randint(1, 99)
    tokens = [tuple(dice.randrange(258) for _ in range(6)) for _ in range(batch)]
    parts = [dice.sample([1, 2, 3], 3) for _ in range(batch)]
    return Outcome(
        tokens,
        wall_s=dice.uniform(9, 30),
        decode_s=dice.uniform(1, 3) * (0.5 if proposes else 1),
        decoded=dice.randint(5, 20),
        emissions=[[(next(now), count) for count in sizes] for sizes in parts],
        forwards=len(stats.steps),
        mean_length=dice.uniform(10, 90),
        stats=stats,
        draft_bytes=dice.randint(1, 10**6),
        replays=int(proposes and number == 0),
        memory={"process": dice.randint(1, 99), "device": dice.randint(1, 99)},
    )


def made_up_rows(
    batch: int, kinds: Sequence[str], baseline: str
) -> tuple[list[dict[str, Any]], Machine, dict[Arm, Any]]:
    """Rows of four arms and a peer over made-up runs, six units in all and two runs of each; and what they are of."""
    setting, machine = SETTING.replaced(batch=batch), Machine("tiny", "reference", "cpu", "float32", 999, 77, 1e6, 5)
    arms = {"plain": Arm(setting), "again": Arm(setting, again=True), "peer": Arm(setting, peer="transformers")}
    arms |= {"chain": Arm(setting, draft="ngram", k=4), "tree": Arm(setting, draft="tree", k=4)}
    dice, watch = random.Random(batch), Stopwatch(torch.device("cpu"))
    units = [Unit((), number) for number in [*range(6 // len(kinds))] * 2]
    pools: dict[Arm, Any] = {arm: {} for arm in arms.values()}
    for name, arm in arms.items():
        for kind in kinds:
            runs = [made_up(dice, watch, batch, unit.number, name in ("chain", "tree")) for unit in units]
            if name == "peer":
                runs = [replace(run, stats=None) for run in runs]
            pools[arm][kind] = Series(arm, "exact", units, runs, runs)
    rows = make_rows(pools, arms[baseline], machine, "all", None, {})
    records = [{**row.info, "runs": row.measured, "steps": row.steps, "rounds": row.rounds} for row in rows.values()]
    return json.loads(strict_json(records)), machine, pools


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["plain", "chain"])
@pytest.mark.parametrize("kinds", [("one",), ("one", "other")], ids=["one workload", "two"])
@pytest.mark.parametrize("batch", [1, 4])
def test_every_figure_of_made_up_runs_follows_from_their_records(
    batch: int, kinds: tuple[str, ...], baseline: str
) -> None:
    rows, machine, pools = made_up_rows(batch, kinds, baseline)
    plain, again, _, chain, _ = rows
    base = chain if baseline == "chain" else plain
    ends = speeds(again, plain, plain, machine)
    noise = max(abs(np.log(ends["speedup_low"])), abs(np.log(ends["speedup_high"])))
    for row, (arm, pool) in zip(rows, pools.items(), strict=True):
        outcomes = [outcome for series in pool.values() for outcome in series.outcomes]
        recomputed = figures(row, plain, machine, base)
        if arm.draft:
            recomputed["counters"] |= {"allocations": max(o.stats.counts["allocations"] for o in outcomes)}
        for name, value in recomputed.items():
            assert row[name] == (value if isinstance(value, dict | None) else pytest.approx(value, rel=1e-6)), name
        assert row["verdict"] == ("baseline" if row is base else verdict_of_row(recomputed, noise)), arm.label
        assert row["marks"] == (["replays"] if arm.draft else []) + ["one prompt"] * ("one prompt" in row["marks"])
        assert row["memory"] == {
            kind: max(outcome.memory[kind] for outcome in outcomes) for kind in ("process", "device")
        }
        ids = ";".join(",".join(map(str, tokens)) for outcome in outcomes for tokens in outcome.tokens)
        assert row["emitted_digest"] == hashlib.sha256(ids.encode()).hexdigest()[:16]
        assert row["set_up_s"] is None
        # The first half of each workload's runs is its first pass.
        half = len(outcomes) // len(kinds) // 2
        passes = [[o for series in pool.values() for o in series.outcomes[at : at + half]] for at in (0, half)]
        expected = [sum(o.decode_s for o in runs) / sum(o.decoded for o in runs) for runs in passes]
        assert row["rounds"] == pytest.approx(expected)


def verdict_of_row(recomputed: dict[str, Any], noise: float) -> str:
    """What may be said of a speedup with an interval."""
    if recomputed["speedup_low"] <= 1 <= recomputed["speedup_high"] or abs(np.log(recomputed["speedup"])) <= noise:
        return "~"
    return "faster" if recomputed["speedup"] > 1 else "slower"


def figures(
    row: dict[str, Any], plain: dict[str, Any], machine: Machine, base: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Every figure of a row, from its runs and steps, plain's, and those of the baseline if that is not plain."""
    return speeds(row, plain, base or plain, machine) | latencies(row) | acceptance(row) | shares(row, plain)


def total(records: list[dict[str, Any]], key: str) -> float:
    return float(sum(record[key] for record in records))


def speeds(row: dict[str, Any], plain: dict[str, Any], base: dict[str, Any], machine: Machine) -> dict[str, Any]:
    logs: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for mine, theirs in zip(row["runs"], base["runs"], strict=True):
        assert (mine["workload"], mine["unit"]) == (theirs["workload"], theirs["unit"]), "not a pair"
        tokens = [sum(count for request in run["emissions"] for _, count in request) for run in (mine, theirs)]
        decoding = (theirs["decode_s"] / theirs["decoded"]) / (mine["decode_s"] / mine["decoded"])
        whole = (theirs["wall_s"] / tokens[1]) / (mine["wall_s"] / tokens[0])
        logs.setdefault(mine["workload"], {}).setdefault(mine["unit"], []).append((np.log(decoding), np.log(whole)))
    units = {name: np.array([np.mean(pairs, axis=0) for pairs in by.values()]) for name, by in logs.items()}
    middle, whole = np.mean([values.mean(axis=0) for values in units.values()], axis=0)
    moved = sum(
        run["forwards"] * (machine.weight_bytes + machine.bytes_per_cell * row["batch"] * run["mean_length"])
        + run["draft_bytes"]
        for run in row["runs"]
    )
    (low, high), (whole_low, whole_high) = (
        ends_of_interval([values[:, n] for values in units.values()]) for n in (0, 1)
    )
    return {
        "tokens_per_s": total(row["runs"], "decoded") / total(row["runs"], "decode_s"),
        "plain_tokens_per_s": total(plain["runs"], "decoded") / total(plain["runs"], "decode_s"),
        "speedup": np.exp(middle),
        "speedup_low": low,
        "speedup_high": high,
        "units": sum(map(len, units.values())),
        "e2e_s": np.median([run["wall_s"] for run in row["runs"]]),
        "e2e_speedup": np.exp(whole),
        "e2e_low": whole_low,
        "e2e_high": whole_high,
        "mbu": moved / total(row["runs"], "decode_s") / machine.bandwidth,
    }


def ends_of_interval(units: list[NDArray[np.float64]]) -> tuple[float | None, float | None]:
    """Both ends of the interval of a mean over workloads: docs/measuring.md has the formula."""
    count, middle = sum(map(len, units)), np.mean([values.mean() for values in units])
    if count < 6:
        return None, None
    if len(units) == 1:
        half = STUDENT_95[count - 1] * units[0].std(ddof=1) / np.sqrt(count)
        return np.exp(middle - half), np.exp(middle + half)
    parts = [values.var(ddof=1) / len(values) for values in units]
    even = [1 / len(values) for values in units]
    freedom = [len(values) - 1 for values in units]
    degrees = 2 / sum(
        ((p / (sum(parts) or 1)) ** 2 + (e / sum(even)) ** 2) / f for p, e, f in zip(parts, even, freedom, strict=True)
    )
    half = student_by_search(degrees) * np.sqrt(sum(parts)) / len(units)
    return np.exp(middle - half), np.exp(middle + half)


@cache
def student_by_search(degrees: float) -> float:
    """The 97.5 % point of Student's t, by summing its density on a fine grid."""
    grid = np.linspace(0, 60, 300_001)
    density = (1 + grid**2 / degrees) ** (-(degrees + 1) / 2)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    tail = 60 ** (-degrees) * degrees ** ((degrees + 1) / 2) / degrees / (grid[1] - grid[0])  # beyond the grid
    return float(np.interp(0.95, below / (below[-1] + tail), grid))


def latencies(row: dict[str, Any]) -> dict[str, Any]:
    requests = [request for run in row["runs"] for request in run["emissions"]]
    gaps = [b[0] - a[0] for request in requests for a, b in itertools.pairwise(request)]
    later = [(r[-1][0] - r[0][0]) / (sum(n for _, n in r) - r[0][1]) for r in requests if len(r) > 1]
    return {
        "ttft_ms": 1e3 * np.median([request[0][0] for request in requests]),
        "ttft_draft_ms": 1e3 * np.median([run["draft_prefill_s"] for run in row["runs"]]),
        "tpot_ms": 1e3 * np.median(later),
        **{f"itl_p{p}_ms": 1e3 * np.percentile(gaps, p) for p in (50, 90, 99)},
    }


def acceptance(row: dict[str, Any]) -> dict[str, Any]:
    names = ("tau", "mean_acceptance_length", "acceptance_rate", "acceptance_by_position", "acceptance_histogram")
    if not row["steps"]:
        peers = total(row["runs"], "decoded") / total(row["runs"], "forwards")
        return dict.fromkeys(names) | {"tau": peers, "counters": None}
    each = [tuple(one) for step in row["steps"] for one in step["each"]]
    proposed, accepted, emitted = (sum(one[i] for one in each) for i in (0, 2, 3))
    asked = [one for one in each if one[0]]
    deepest = max((one[1] for one in asked), default=0)
    reached = [sum(one[1] > i for one in asked) for i in range(deepest)]
    kept = [sum(one[2] > i for one in asked) for i in range(deepest)]
    counted = {"num_draft_tokens": proposed, "num_accepted_tokens": accepted, "num_drafts": len(asked)}
    counted |= {"num_emitted_tokens": emitted, "target_forwards": len(row["steps"])}
    assert {name: row["counters"][name] for name in counted} == counted
    return {
        "tau": emitted / len(each),
        "mean_acceptance_length": 1 + accepted / len(asked) if asked else None,
        "acceptance_rate": accepted / proposed if proposed else None,
        "acceptance_by_position": [k / r for k, r in zip(kept, reached, strict=True)] or None,
        "acceptance_histogram": {str(n): [one[2] for one in asked].count(n) for n in sorted({one[2] for one in asked})}
        or None,
        "counters": row["counters"],
    }


def shares(row: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    parts = ("control", "draft", "target", "accept", "commit")
    names = [*(f"{part}_share" for part in parts), "overhead", "draft_cost", "verify_cost", "sum_of_parts"]
    steps = row["steps"]
    if not steps:
        return dict.fromkeys(names)
    clock = total(row["runs"], "decode_s")
    spent = {part: total(steps, "verify_ms" if part == "target" else f"{part}_ms") / 1e3 for part in parts}
    spent["draft"] += total(row["runs"], "draft_between_s")
    single = np.mean([step["verify_ms"] for step in plain["steps"] if step["width"] == 1]) / 1e3
    wide = [np.mean([s["verify_ms"] for s in steps if s["width"] == step["width"]]) for step in steps if step["k_used"]]
    proposals = total(steps, "k_used")
    emitted = sum(step["emitted"] / step["rows"] for step in steps)
    return {
        **{f"{part}_share": seconds / clock for part, seconds in spent.items()},
        "overhead": 1 - sum(spent.values()) / clock,
        "draft_cost": spent["draft"] / proposals / single if proposals else None,
        "verify_cost": np.mean(wide) / 1e3 / single if wide else None,
        "sum_of_parts": emitted * single / (spent["target"] + spent["draft"]),
    }


@pytest.mark.slow
def test_the_compressed_ratios_are_those_of_the_rows() -> None:
    bench = Bench(MeasuringPlan(prompts=2))
    bench.prepare([Arm(SETTING, draft="garbage", k=2)])
    for arm in bench.arms:
        bench.row(arm, lambda what: None)
    found = files.comparison_files(bench.results())
    kept = json.loads(found["ratios.json.gz"])
    rows = json.loads(found["benchmark.json"])["rows"]
    assert [one["arm"] for one in kept] == ["plain", "plain again", "garbage/match/fixed/2"]
    for one, row in zip(kept, rows, strict=True):
        assert one["ratios"] == row["ratios"]["chat"]
        speeds = [decoded / seconds for _, seconds, decoded, _ in one["runs"]]
        base = [decoded / seconds for _, seconds, decoded, _ in kept[0]["runs"]]
        assert one["ratios"] == pytest.approx([a / b for a, b in zip(speeds, base, strict=True)])
