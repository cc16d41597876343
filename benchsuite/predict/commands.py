"""Advice as it is asked for on the command line, and as it is shown."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from math import exp
from typing import Any

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.measure.workloads import workload_names
from benchsuite.predict.advisor import Advice, Advisor, TriedArm
from benchsuite.predict.breakeven import MapCheck, MapPoint, break_even_map, checked_map, oracle_arms
from benchsuite.predict.costs import Costs
from specdec.errors import SpecdecError
from specdec.registry import split_list
from specdec.request import SamplingParams


def advice_asked(given: argparse.Namespace) -> list[Advice]:
    """Load, build and advise, by the arguments of ``python -m benchsuite advise``. Raises SpecdecError for a wrong
    one."""
    if not given.minutes > 0:
        raise SpecdecError(f"--minutes is {given.minutes}; expected more than 0")
    ks, batches = (whole_numbers(f"--{name}", getattr(given, name)) for name in ("k", "batch"))
    settings = _settings(given, batches)
    arms = [
        Arm(setting, draft, policy, controller, k)
        for setting in settings
        for draft in split_list(given.drafts)
        for policy in split_list(given.policy)
        for controller, k in [*[("fixed", k) for k in ks], ("goodput", max(ks))]
    ]
    bench = Bench(MeasuringPlan(prompts=given.prompts))
    bench.prepare(arms)
    found, began = list[Advice](), time.perf_counter()
    texts = list(dict.fromkeys(setting.workload for setting in settings))
    for place, text in enumerate(texts):
        left = 60 * given.minutes - (time.perf_counter() - began)
        mine = [arm for arm in arms if arm.setting.workload == text]
        found += Advisor(bench, mine, left / (len(texts) - place)).advise()
    return found


def map_asked(given: argparse.Namespace) -> tuple[Costs, list[MapPoint], list[MapCheck]]:
    """Load, build, probe and measure, by the arguments of ``python -m benchsuite breakeven``. Raises SpecdecError for a
    wrong one."""
    if not given.drafting >= 0:
        raise SpecdecError(f"--drafting is {given.drafting}; expected 0 or more, in forwards of one token")
    settings = _settings(given, whole_numbers("--batch", given.batch))
    if len({setting.workload for setting in settings}) != 1:
        raise SpecdecError(f"--workload {given.workload!r} names several kinds of text; expected one")
    arms = oracle_arms(settings)
    bench = Bench(MeasuringPlan(prompts=given.prompts))
    bench.prepare(arms)
    costs, checks = checked_map(bench, arms)
    return costs, break_even_map(costs, given.drafting), checks


def _settings(given: argparse.Namespace, batches: Sequence[int]) -> list[Setting]:
    names = [name for text in split_list(given.workload) for name in workload_names(text)]
    if not names:
        raise SpecdecError("--workload is empty; name kinds of text, or .jsonl files of prompts")
    sampling = SamplingParams(temperature=given.temperature, seed=given.seed, max_new_tokens=given.max_new_tokens)
    return [
        Setting(given.target, given.backend, given.device, given.dtype, batch, name, sampling)
        for name in names
        for batch in batches
    ]


def whole_numbers(option: str, text: str) -> list[int]:
    """Return the numbers of an option that is a comma list of whole numbers from 1. SpecdecError for anything else.

    Example: ``whole_numbers("--batch", "1,4")``
    """
    found = [int(part) for part in split_list(text) if part.isdecimal() and int(part)]
    if not found or len(found) != len(split_list(text)):
        raise SpecdecError(f"{option} is {text!r}; expected whole numbers from 1, as a comma list: 1,4")
    return found


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
