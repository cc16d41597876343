"""A conversation on its way: what its next request says, when that is due, and what of it no cache may know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from benchsuite.benches.serving.load import Sent
from benchsuite.measure.conversations.filler import nonce_text
from benchsuite.measure.conversations.form import ChatMessage, Conversation, ConversationTurn
from specdec import DraftCounts


class Prefix(Enum):
    """How often what a request begins with is new, so that no cache of prompts knows the rest.

    ``WARM``: in every conversation, which goes on behind it. ``COLD``: in every request. ``RECORDED``: in every replay
    of a trace, whose conversations share what they shared when it was recorded.
    """

    WARM = "warm"
    COLD = "cold"
    RECORDED = "as recorded"


@dataclass(frozen=True)
class AnsweredTurn:
    """A turn that was asked. ``sent.prompt`` is the place of its conversation, and its times begin with the block.

    ``counts``: what was counted of speculation for this request alone, where that is known. ``prompt``: the token ids
    that were read, of the engine's own requests.
    """

    turn: int
    sent: Sent
    counts: DraftCounts | None = None
    prompt: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReplayedBlock:
    """What one row answered of the conversations of one group in one round. ``counts``: of all requests together."""

    row: str
    prefix: Prefix
    round: int
    group: int
    turns: tuple[AnsweredTurn, ...]
    counts: DraftCounts | None = None


def with_nonce(messages: Sequence[ChatMessage], nonce: str) -> tuple[ChatMessage, ...]:
    """Return messages of which the first one begins with a nonce.

    Example: ``with_nonce([{"role": "user", "content": "Hello"}], "one two\\n")``
    """
    first, *others = messages
    return ({**first, "content": nonce + (first["content"] or "")}, *others)


class ConversationProgress:
    """Walks through one conversation; a failed turn ends it.

    ``place`` is that of the conversation, ``draw`` returns the nonce of a turn. Times are seconds since the block
    began.

    Example: ``while (turn := progress.turn): …; progress.answered(sent)``
    """

    def __init__(self, place: int, conversation: Conversation, draw: Callable[[int], str]) -> None:
        self.place, self.conversation, self._draw = place, conversation, draw
        self.number = 0
        self._said: list[ChatMessage] = []
        self._ended_s = 0.0
        self._failed = False

    @property
    def turn(self) -> ConversationTurn | None:
        """The next turn; None if there is none."""
        left = self.number < len(self.conversation.turns) and not self._failed
        return self.conversation.turns[self.number] if left else None

    @property
    def due_s(self) -> float:
        """When the next turn is due: at its time in the trace, but no sooner than its delay after the answer before."""
        turn = self.conversation.turns[self.number]
        after = self._ended_s + (turn.delay_s if self.number else 0.0)
        return after if turn.at_s is None else max(turn.at_s, after)

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """All messages of the next request, behind its nonce: with the answers of the replay, or the recorded ones."""
        turn = self.conversation.turns[self.number]
        said = turn.messages if turn.whole else (*self._said, *turn.messages)
        return with_nonce(said, self._draw(self.number))

    def answered(self, sent: Sent) -> None:
        """Go on to the turn behind an answer; behind a failure there is none."""
        turn = self.conversation.turns[self.number]
        if sent.reply is None:
            self._failed = True
            return
        self._said += [*turn.messages, {"role": "assistant", "content": sent.reply.text}]
        self._ended_s = sent.ended_s
        self.number += 1


class Nonces:
    """Draws what requests begin with; all of them have equally many tokens.

    Rows of one ``family`` get the same in a round, so that their outputs can be compared. ``dice`` should be seeded
    anew in every run: a server may still know the prompts of the last one.
    """

    def __init__(self, dice: Random) -> None:
        self._salt = dice.getrandbits(64)

    def of(self, prefix: Prefix, family: str, turns: tuple[int, int, int]) -> str:
        """Return the nonce of one request. ``turns``: its round, the place of its conversation, its turn in this."""
        said = turns[: {Prefix.RECORDED: 1, Prefix.WARM: 2, Prefix.COLD: 3}[prefix]]
        return nonce_text(Random(f"{self._salt} {prefix.value} {family} {said}"))
