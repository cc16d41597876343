"""A server whose acceptance is chosen, as vLLM's ``synthetic``, is asked until enough steps are counted, and judged."""

from __future__ import annotations

from collections.abc import Sequence

from benchsuite.benches.serving.self_reported import counts_now
from benchsuite.engines.record import REPEATED
from benchsuite.judge.acceptance_check import (
    MOST_STEPS,
    AcceptanceCheck,
    acceptance_check,
    planted_schedules,
    steps_needed,
    whole_steps,
)
from specdec.draft_counts import DraftCounts
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply
from specdec_plugins.endpoints.server_metrics import Speculation, added, between, read_body
from specdec_plugins.schedule import Schedule

ANSWER = 128
"""Tokens of an answer: of shorter ones more of the steps would be cut off by their ends."""


def enough_steps(schedule: Schedule) -> int:
    """Return the steps that find every one of ``planted_schedules``, by position, with the probability ``SURE``."""
    needed = (steps_needed(schedule, other) for other in planted_schedules(schedule).values())
    return min(MOST_STEPS, max((one for one in needed if one is not None), default=1))


async def check_server(endpoint: Endpoint, schedule: Schedule, steps: int) -> AcceptanceCheck:
    """Return the check of at least ``steps`` steps of a server, which is asked one greedy request at a time.

    What its answers say of their own steps is read where they have every count, else the difference of its
    ``/metrics``, which counts what others ask meanwhile too. SpecdecError where neither counts steps,
    PageError for counts that contradict each other, and EndpointFailure where a request fails.
    """
    replies, counts, k = list[Reply](), DraftCounts(0, 0, 0), len(schedule.rates)
    async with Client(endpoint) as client:
        before = await counts_now(client)
        while (counts.drafts or 0) < steps:
            earlier = counts.drafts
            replies.append(await client.complete(Ask(f"{len(replies)}: {REPEATED}", ANSWER, stream=False)))
            counts = _counted(before, await counts_now(client), replies, k)
            if counts.drafts == earlier:
                raise SpecdecError(
                    f"{endpoint.url} counted no step of {k} proposals in an answer of {replies[-1].counted} tokens; "
                    f"start it with a speculation that proposes K = {k} tokens for every text, or name its own K"
                )
    return acceptance_check(schedule, counts)


def _counted(before: Speculation | None, after: Speculation | None, replies: Sequence[Reply], k: int) -> DraftCounts:
    """The counts of the answers, else those of the page; with each step's own counts, of the steps of K proposals."""
    told = [said for reply in replies if (said := read_body(reply.body)) is not None]
    bodies = added(told) if len(told) == len(replies) else None
    if bodies is not None and bodies.proposed_by_step:
        return whole_steps(k, bodies.proposed_by_step, bodies.accepted_by_step)
    page = between(before, after) if before and after else None
    for said in (bodies, page):
        if said is not None and None not in (said.drafts, said.proposed, said.accepted):
            return said.counts
    raise SpecdecError(
        "the server counts its steps, proposals and accepted proposals neither in its answers nor on /metrics: a mean "
        "without counts cannot be tested; use a server that counts them (docs/metrics.md)"
    )
