"""Advice as it is asked for on the command line, and as it is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import exp
from typing import Any

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.predict.advisor import Advice, Advisor, TriedArm
from benchsuite.predict.breakeven import MapCheck, MapPoint, break_even_map, checked_map, oracle_arms
from benchsuite.predict.costs import Costs
from specdec.errors import SpecdecError


def advice_on(
    settings: Sequence[Setting],
    drafts: Sequence[str],
    policies: Sequence[str],
    ks: Sequence[int],
    prompts: int | None,
    minutes: float,
) -> list[Advice]:
    """Load, build and advise: the fastest of the drafts, under ``fixed`` with each K and ``goodput`` with the largest.

    ``prompts``: the most of each text (None: all). Raises SpecdecError for what cannot be built.
    """
    arms = [
        Arm(setting, draft, policy, controller, k)
        for setting in settings
        for draft in drafts
        for policy in policies
        for controller, k in [*[("fixed", k) for k in ks], ("goodput", max(ks))]
    ]
    bench = Bench(MeasuringPlan(prompts=prompts))
    bench.prepare(arms)
    found, began = list[Advice](), time.perf_counter()
    texts = list(dict.fromkeys(setting.workload for setting in settings))
    for place, text in enumerate(texts):
        left = 60 * minutes - (time.perf_counter() - began)
        mine = [arm for arm in arms if arm.setting.workload == text]
        found += Advisor(bench, mine, left / (len(texts) - place)).advise()
    return found


def map_of(
    settings: Sequence[Setting], prompts: int | None, drafting: float
) -> tuple[Costs, list[MapPoint], list[MapCheck]]:
    """Load, build, probe and measure the break-even map of settings over one text.

    ``drafting``: the cost of a proposal, in forwards of one token. SpecdecError for several texts.
    """
    texts = list(dict.fromkeys(setting.workload for setting in settings))
    if len(texts) != 1:
        raise SpecdecError(f"--workload names {len(texts)} kinds of text, {', '.join(texts)}; expected one")
    arms = oracle_arms(settings)
    bench = Bench(MeasuringPlan(prompts=prompts))
    bench.prepare(arms)
    costs, checks = checked_map(bench, arms)
    return costs, break_even_map(costs, drafting), checks


def advice_json(advices: Sequence[Advice]) -> list[dict[str, Any]]:
    """Return the advice for each batch, with everything that was tried, as JSON has it."""

    def tried(one: TriedArm) -> dict[str, Any]:
        return {
            "strategy": one.arm.strategy,
            "predicted": exp(one.predicted),
            "expected": exp(one.expected),
            "runs": one.runs,
        }

    return [
        {
            "target": advice.best.setting.target,
            "workload": advice.best.setting.workload,
            "batch": advice.best.setting.batch,
            "context": advice.context,
            "strategy": advice.best.strategy,
            "speedup": advice.speedup,
            "low": advice.low,
            "high": advice.high,
            "sure": advice.sure,
            "seconds": advice.seconds,
            "command": advice.command,
            "tried": [tried(one) for one in advice.tried],
        }
        for advice in advices
    ]
