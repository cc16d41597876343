"""A conversation as it is replayed: the messages that each turn adds, and when it is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.errors import SpecdecError

ChatMessage = Mapping[str, Any]
"""A message of OpenAI's chat completions: ``role``, ``content`` (a text), perhaps ``tool_calls``, ``tool_call_id`` and
``name``."""


@dataclass(frozen=True)
class ConversationTurn:
    """One request of a conversation, whose last message is a user's or a tool's.

    ``messages``: what is said since the answer before it, or, if it is ``whole``, all that is sent: recorded answers
    stand in it, and no answer of the replay does. ``at_s``: when it is due, in seconds since the trace began; None:
    ``delay_s`` after the end of the answer before it, for which every turn waits. ``max_tokens``: of its answer; None:
    the run's own limit. ``tools``: their definitions, as OpenAI's chat completions have them.
    """

    messages: tuple[ChatMessage, ...]
    at_s: float | None = None
    delay_s: float = 0.0
    max_tokens: int | None = None
    whole: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Conversation:
    """Turns that follow each other, under a ``name`` of its own and the ``label`` of its workload."""

    name: str
    label: str
    turns: tuple[ConversationTurn, ...]

    @property
    def begins(self) -> float | None:
        """When the first turn is due, in seconds since the trace began; None without times."""
        return self.turns[0].at_s


def trace_refusal(text: str) -> SpecdecError:
    """Return the error of a trace. It imports torch, which reading a trace does without."""
    from specdec.errors import SpecdecError

    return SpecdecError(text)
