"""Servers of a made-up model that draft, by a clock of their own; planted changes are classes of what they do.

Every forward verifies up to four proposals. How many it accepts follows from the prompt, so that two servers accept the
same; an answer says what was proposed and accepted, as llama.cpp's do.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from benchsuite.tests.planted_servers import HonestServer, Ids, WrongLate
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.replies import Chunk, Reply

PROPOSED, RATE = 4, 0.6
"""Proposals of a forward, and how likely each is accepted if those before it are."""


class DraftingServer(HonestServer):
    """Drafts, and takes a time of its own for every answer: ``spread`` is that of its logarithm, by the ``seed``."""

    first_s, forward_s, spread = 0.2, 0.05, 0.03

    def drafts(self) -> bool:
        """Whether the next answer is drafted."""
        return True

    def accepted(self, dice: random.Random) -> int:
        """Proposals that a forward accepts; ``dice`` are the prompt's."""
        return next((n for n in range(PROPOSED) if dice.random() > RATE), PROPOSED)

    def reply(self, ask: Ask, prompt: Ids) -> Reply:
        """The words of the model, a piece for each forward."""
        reply = super().reply(ask, prompt)
        if not ask.stream or ask.max_tokens == 1:
            return reply
        words = [f" {word}" for word in reply.text.split()]
        drafts, dice, sizes = self.drafts(), random.Random(repr(prompt)), [1]
        while sum(sizes) < len(words):
            sizes.append(min(1 + self.accepted(dice) if drafts else 1, len(words) - sum(sizes)))
        slow = 2.718 ** self.dice.gauss(0, self.spread), 2.718 ** self.dice.gauss(0, self.spread)
        at, chunks = 0, list[Chunk]()
        for forward, size in enumerate(sizes):
            seconds = self.first_s * slow[0] + self.forward_s * slow[1] * forward
            chunks.append(Chunk(seconds, "".join(words[at : at + size]), size))
            at += size
        timings = {"predicted_n": len(words)}
        if drafts:
            timings |= {"draft_n": PROPOSED * (len(sizes) - 1), "draft_n_accepted": len(words) - len(sizes)}
        other: dict[str, Any] = {"chunks": tuple(chunks), "seconds": chunks[-1].seconds, "body": {"timings": timings}}
        return replace(reply, **other)


class SlowForwards(DraftingServer):
    """Every forward takes a tenth longer."""

    forward_s = 1.1 * DraftingServer.forward_s


class SlowPrefill(DraftingServer):
    """The first token takes a quarter longer."""

    first_s = 1.25 * DraftingServer.first_s


class AcceptsLess(DraftingServer):
    """One proposal in five that would be accepted last is not: it loses some 5 % of its acceptance length."""

    share = 0.2

    def accepted(self, dice: random.Random) -> int:
        """See the class."""
        found = super().accepted(dice)
        return found - 1 if found and self.dice.random() < self.share else found


class NeverDrafts(DraftingServer):
    """Does not speculate, and takes as long for a token as if it did."""

    forward_s = DraftingServer.forward_s / 2

    def drafts(self) -> bool:
        """See the class."""
        return False


class StopsDrafting(DraftingServer):
    """Drafts the first answers and no more, as fast as before: a draft that was turned off by an error."""

    left = 40

    def drafts(self) -> bool:
        """See the class."""
        self.left -= 1
        return self.left >= 0


class DraftsOtherwiseLate(DraftingServer, WrongLate):
    """Half of the tokens from the 33rd on are others."""


class GivesUp(DraftingServer):
    """Has no text for one prompt in four."""

    def reply(self, ask: Ask, prompt: Ids) -> Reply:
        """See the class."""
        found = super().reply(ask, prompt)
        empty = ask.stream and ask.max_tokens > 1 and random.Random(repr(prompt)).random() < 0.25
        return replace(found, text="", chunks=()) if empty else found
