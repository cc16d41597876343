"""Peers as arms: how one is named, and how any registered engine is run and timed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

from torch import Tensor

from benchsuite.judge.sources import Tokens
from benchsuite.measure.arms import PeerName
from benchsuite.measure.runners import Emission, Outcome, mean_length
from specdec.draft_counts import DraftCounts
from specdec.errors import SpecdecError, unknown
from specdec.installed import how_found
from specdec.peer import Generation, Peer
from specdec.registry import Registry
from specdec.request import Request
from specdec.unpackaged import unpackaged_plugins

if TYPE_CHECKING:
    from benchsuite.measure.arms import Arm


def _registry() -> Registry:
    return _registry_of(unpackaged_plugins())


@cache
def _registry_of(unpackaged: tuple[tuple[str, object], ...]) -> Registry:
    """The registry of all plugins; one for as long as those without a package are the same."""
    return Registry()


@cache
def parse_peer(text: str) -> PeerName:
    """Return the peer that ``name`` or ``name(option=value)`` names, the same however it was written.

    Raises SpecdecError with the choices for an unknown peer, option or value, and for an engine that cannot run here.

    Example: ``parse_peer("transformers_prompt_lookup(4)").text`` is ``transformers_prompt_lookup(k=4)``.
    """
    registry, name = _registry(), text.partition("(")[0].strip()
    if name not in registry.names("peer"):
        raise unknown("peer", name, (*registry.names("peer"), "auto", "none"), how_found())
    entry, options = registry.parse_peer(text)
    shown = ", ".join(f"{n}={_written(value)}" for n, value in options.items() if n == "k" or value != entry.options[n])
    return PeerName(f"{name}({shown})" if shown else name)


def _written(value: object) -> str:
    """A value as ``parse_peer`` reads it again: a text in quotes, if it could be taken apart."""
    return repr(value) if isinstance(value, str) and not re.fullmatch(r"[\w./:+-]+", value) else str(value)


def peer_batches(text: str) -> bool:
    """Whether a peer decodes several requests at once."""
    factory = _registry().entry("peer", PeerName(text).name).factory
    return bool(getattr(factory, "batches", False))


def peer_needs_gguf(text: str) -> bool:
    """Whether a peer reads the target's GGUF file."""
    factory = _registry().entry("peer", PeerName(text).name).factory
    return bool(getattr(factory, "needs_gguf", False))


class PeerRunner:
    """Any registered engine, run request by request, or all at once where it batches.

    Example: ``PeerRunner(arm, Registry().peer("transformers_prompt_lookup(k=4)", env)).run(requests)``
    """

    learns = False

    def __init__(self, arm: Arm, peer: Peer) -> None:
        self.arm, self.peer = arm, peer

    @property
    def set_up_seconds(self) -> Mapping[str, float]:
        """The seconds of what was loaded or compiled outside timed runs."""
        return self.peer.set_up_seconds

    def warm_up(self, first: Request) -> None:
        """Have the engine load or compile what requests like ``first`` need."""
        self.peer.warm_up(first)

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Decode requests; decoding begins when every request of a call has its first emission."""
        calls = [requests] if self.peer.batches else [[request] for request in requests]
        made: list[Generation] = []
        arrived: list[list[Emission]] = []
        wall, decoding, decoded = 0.0, 0.0, 0
        for call in calls:
            done = self.peer.generate(call)
            self._check(call, done)
            emissions = [_together(one.emissions) for one in done]
            begin = max(request[0][0] for request in emissions)
            after = sum(count for request in emissions for at, count in request[1:] if at >= begin)
            seconds = max(one.seconds for one in done)
            wall += seconds
            if seconds > begin:  # else nothing was waited for
                decoding += seconds - begin if after else 0.0
                decoded += after
            made += done
            arrived += emissions
        tokens = [one.tokens for one in made]
        forwards = [one.forwards for one in made]
        return Outcome(
            tokens,
            wall,
            decoding,
            decoded,
            arrived,
            None if None in forwards else sum(count or 0 for count in forwards),
            mean_length(requests, tokens),
            warm=any(one.warm for one in made),
            counts=DraftCounts.total([one.counts for one in made]),
        )

    def _check(self, requests: Sequence[Request], done: Sequence[Generation]) -> None:
        """Refuse generations of which no time could be told."""
        said = [(len(one.tokens), sum(count for _, count in one.emissions)) for one in done]
        if len(done) != len(requests) or any(tokens != counted or not tokens for tokens, counted in said):
            raise SpecdecError(
                f"the peer {self.arm.peer} returned {said} (tokens, tokens of its emissions) for {len(requests)} "
                "requests; expected equal numbers of at least 1 for each request"
            )

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        """Decode requests; return the outputs in request order."""
        return self.run(requests).tokens

    def forget(self) -> None:
        """Do nothing: no state is kept between prompts."""

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """Decode again and return the logits [V] of output token ``index``; None if the engine gives none."""
        return self.peer.logits_at(next(r for r in requests if r.id == request), index)

    def conditions(self) -> dict[str, str]:
        """What two arms must have in common for their times to be compared: ``dtype`` and ``compile``."""
        return self.peer.conditions()

    def described(self) -> str:
        """The line of the card."""
        return self.peer.described()


def _together(emissions: Sequence[Emission]) -> list[Emission]:
    """The emissions with those of one time as one: what was read at once arrived together."""
    return [(at, sum(count for _, count in same)) for at, same in groupby(emissions, key=lambda one: one[0])]
