"""The order of a load's requests: prompts in small groups, each of which goes to every endpoint before the next one.

The speed of a machine drifts. What is compared must have met the same machine, and what met it together is one unit of
an interval: both are decided here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchsuite.benches.serving.load import Traffic
from benchsuite.measure.interval import FEWEST

AMPLE = 12
"""Groups beyond which they become larger: more narrow an interval little, and in larger ones more requests are sent at
the full load."""

ARRIVALS = 10
"""Requests of a group under a rate, at most."""


@dataclass(frozen=True)
class BlockPlan:
    """A block to be sent: the prompts at ``places``, in this order, to one endpoint.

    ``group``: equal for all blocks of the same prompts, in whatever ``round``. ``seed``: of arrivals, equal for all
    endpoints of a group in a round.
    """

    endpoint: str
    round: int
    group: int
    places: tuple[int, ...]
    seed: int


def group_size(load: Traffic, prompts: int) -> int:
    """Return how many prompts of so many go to an endpoint at a time, the last groups apart, which may have more.

    One, where one request is sent at once. So many as are at the server at once, or up to twice as many if that leaves
    ``AMPLE`` groups. Under a rate what leaves ``FEWEST`` groups, up to ``ARRIVALS``.
    """
    at_once = load.concurrency
    if at_once is None:
        return max(1, min(ARRIVALS, prompts // FEWEST))
    return at_once if at_once == 1 else max(at_once, min(2 * at_once, prompts // AMPLE))


def plan_blocks(
    names: Sequence[str],
    prompts: Sequence[tuple[int, str]],
    load: Traffic,
    rounds: int,
    seed: int,
    size: int | None = None,
) -> Iterator[BlockPlan]:
    """Yield the blocks in which endpoints of these names get all prompts in each round.

    ``prompts``: the place of each, and its workload. Groups are the same in each round, of as many workloads as they
    can, and come in random order; so do the prompts of a group, in one order for all endpoints of a round. The order of
    endpoints is random for each group, and reversed in every second round. ``size``: how many prompts a group has, if
    not as many as ``group_size`` says: all of them for servers that must be started before they are asked.
    """
    dice = random.Random(seed)
    groups = _groups(prompts, size or group_size(load, len(prompts)), dice)
    orders = {number: list(names) for number in range(len(groups))}
    for turn in range(rounds):
        for number in dice.sample(range(len(groups)), len(groups)):
            if turn % 2:
                orders[number].reverse()
            else:
                dice.shuffle(orders[number])
            places, arrivals = tuple(dice.sample(groups[number], len(groups[number]))), dice.getrandbits(32)
            for name in orders[number]:
                yield BlockPlan(name, turn, number, places, arrivals)


def _groups(prompts: Sequence[tuple[int, str]], size: int, dice: random.Random) -> list[list[int]]:
    """The places of each group: workload by workload, dealt to all groups in turn."""
    workloads = list(dict.fromkeys(workload for _, workload in prompts))
    mixed = dice.sample(prompts, len(prompts))
    dealt = [place for place, _ in sorted(mixed, key=lambda prompt: workloads.index(prompt[1]))]
    count = max(1, len(prompts) // max(1, size))
    return [dealt[number::count] for number in range(count)]
