"""No planted fault is certified, and an honest pair is: the table of docs/proof.md.

``pytest benchsuite/tests/benches/test_serving_planted.py -s --specdec-deep`` prints it.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from benchsuite.benches.serving.bench import ServingBench, ServingPlan
from benchsuite.benches.serving.certificate import Certificate
from benchsuite.benches.serving.load import Traffic
from benchsuite.tests import planted_servers
from benchsuite.tests.made_up_servers import MadeUpServers
from benchsuite.tests.planted_servers import HonestServer
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

PROMPTS = tuple(("chat", f"question {n} of the words {' '.join(f'w{n * 6 + k}' for k in range(6))}") for n in range(18))
LENGTH = 64

BOTH, GREEDY, SAMPLED = (0.0, 1.0), (0.0,), (1.0,)
FAULTS = {
    "ChangesSome": BOTH,
    "WrongLate": BOTH,
    "WrongInABatch": BOTH,
    "WrongInAStream": BOTH,
    "WrongWithoutLogprobs": BOTH,
    "WrongWhenCold": BOTH,
    "Relaxed": BOTH,
    "LossyWhenSampled": SAMPLED,
    "Hotter": SAMPLED,
    "OwnDefaults": SAMPLED,
    "WrongUsage": GREEDY,
    "KeepsAnswers": BOTH,
    "ConfusesAnswers": BOTH,
}
"""Twelve faults and one in two ways, each with the temperatures at which it is one."""

CASES = [(name, heat) for name, heats in FAULTS.items() for heat in heats]


def certificate(plain: HonestServer, spec: HonestServer, heat: float, seed: int) -> Certificate:
    """What a run of two loads says of a server."""
    names = ("plain", "spec")
    endpoints = tuple(Endpoint(name, f"http://{name}") for name in names)
    loads = (Traffic(concurrency=1), Traffic(concurrency=4))
    ask = Ask("", LENGTH, heat, seed=seed if heat else None)
    plan = ServingPlan(endpoints, PROMPTS, ask, seed=seed, loads=loads, before_new=f"new{seed}: ")
    bench = ServingBench(plan, servers=MadeUpServers(dict(zip(names, (plain, spec), strict=True))))
    for load in loads:
        bench.measure(load)
    [found] = bench.certify("unknown")
    return found


def certificate_of_run(name: str, heat: float, seed: int) -> Certificate:
    """A planted server beside a plain one; both round, by as much as float32 does."""
    plain = HonestServer(2 * seed, rounding=1e-4)
    return certificate(plain, getattr(planted_servers, name)(2 * seed + 1, rounding=1e-4), heat, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "heat"), [(name, heats[0]) for name, heats in FAULTS.items()])
def test_a_planted_fault_is_not_certified(name: str, heat: float) -> None:
    found = certificate_of_run(name, heat, 1)
    assert found.state != "certified", found.lines


@pytest.mark.slow
@pytest.mark.parametrize("heat", BOTH)
def test_an_honest_pair_is_certified(heat: float) -> None:
    found = certificate_of_run("HonestServer", heat, 1)
    assert found.state == "certified", found.lines


RUNS = 20


@pytest.mark.deep
def test_of_twenty_runs_each_none_with_a_fault_is_certified_and_nearly_all_honest_ones_are() -> None:
    """Prints the table of docs/proof.md: of each fault the states, and what the last certificate says it would find."""
    rows, certified = list[str](), dict[tuple[str, float], int]()
    for name, heat in [*CASES, *(("HonestServer", heat) for heat in BOTH)]:
        found = [certificate_of_run(name, heat, seed) for seed in range(RUNS)]
        states = Counter(one.state for one in found)
        certified[name, heat] = states["certified"]
        [power] = re.findall(r"(?:one changed token|a temperature)[^;]*", found[-1].lines[0])
        said = ", ".join(f"{count} {state}" for state, count in states.most_common())
        rows.append(f"| `{name}` | {heat:g} | {said} | {power} |")
    print("\n".join(rows))
    assert not [case for case in CASES if certified[case]]
    assert all(certified["HonestServer", heat] >= RUNS - 1 for heat in BOTH)
