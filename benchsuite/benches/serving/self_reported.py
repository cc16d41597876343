"""What servers report of their own speculation while they are measured: their pages before and after, their answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specdec_plugins.endpoints.client import Client
from specdec_plugins.endpoints.exposition import PageError
from specdec_plugins.endpoints.replies import EndpointFailure, Reply
from specdec_plugins.endpoints.server_metrics import Speculation, added, between, read_body, read_page


@dataclass(frozen=True)
class SelfReported:
    """What one endpoint reports of all its requests under one load; None where it reports nothing.

    ``page``: the difference of its ``/metrics`` before and after, which counts whatever else it was asked meanwhile;
    ``bodies``: the sum of what its answers say of themselves. ``wrong``: why something could not be read.
    """

    page: Speculation | None
    bodies: Speculation | None
    wrong: str = ""

    def lines(self, name: str) -> list[str]:
        """Return a line for each source, and one for what could not be read."""
        found = [_line(name, said) for said in (self.page, self.bodies) if said is not None and said.speculates]
        return [*found, *([f"{name}: what it reports of itself could not be read: {self.wrong}"] if self.wrong else [])]


async def page_now(opened: Client) -> str | None:
    """Return the text of an endpoint's ``/metrics``, and close its client; None if it has none."""
    async with opened as client:
        try:
            return await client.page("/metrics")
        except EndpointFailure:
            return None


async def counts_now(client: Client) -> Speculation | None:
    """Return what an endpoint's ``/metrics`` counts; None if it has none, or that of another program."""
    try:
        return read_page(await client.page("/metrics"))
    except (EndpointFailure, PageError):
        return None


@dataclass(frozen=True)
class GroupCounts:
    """What a page counted while the prompts at these places were answered, and whatever else was asked meanwhile."""

    prompts: tuple[int, ...]
    said: Speculation


def group_counts(pages: Sequence[Speculation | None], groups: Sequence[Sequence[int]]) -> tuple[GroupCounts, ...]:
    """Return the differences of a page before and behind each of these ``groups`` of prompts, where they are known."""
    found = []
    for before, after, prompts in zip(pages, pages[1:], groups, strict=False):
        if before and after:
            with contextlib.suppress(PageError):  # a server that was started anew in between
                found.append(GroupCounts(tuple(prompts), between(before, after)))
    return tuple(found)


def self_reported_of(before: str | None, after: str | None, replies: Iterable[Reply]) -> SelfReported:
    """Return what two pages and the answers between them say; a page of another program is none."""
    page = bodies = None
    wrong = []
    try:
        if before is not None and after is not None:
            page = between(read_page(before), read_page(after))
    except PageError as error:
        wrong.append(str(error))
    try:
        bodies = added(said for reply in replies if (said := read_body(reply.body)) is not None)
    except PageError as error:
        wrong.append(str(error))
    return SelfReported(page, bodies, "; ".join(wrong))


def _line(name: str, said: Speculation) -> str:
    parts = [
        f"{said.drafts:,} drafts" if said.drafts is not None else "",
        f"{said.accepted:,} of {said.proposed:,} accepted" if said.accepted is not None and said.proposed else "",
        f"acceptance rate {said.acceptance_rate:.2f}" if said.acceptance_rate is not None else "",
        f"mean acceptance length {said.mean_acceptance_length:.2f}" if said.mean_acceptance_length is not None else "",
    ]
    return f"{name} says of itself ({said.source}): {', '.join(part for part in parts if part)}"
