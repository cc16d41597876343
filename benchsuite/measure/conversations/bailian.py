"""Traces of Alibaba's Bailian: the lengths of chats' requests, and the blocks of tokens that they share.

Source: ai-dynamo/aiperf, src/aiperf/dataset/loader/bailian_trace.py and models.py (BailianTrace) (2026). Times are in
seconds. A request has the chat before it among its own tokens, so that no answer of the replay stands between turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchsuite.measure.conversations.filler import hashed_text
from benchsuite.measure.conversations.form import Conversation, ConversationTurn
from benchsuite.measure.conversations.line import TraceLine

BAILIAN_BLOCK = 16
"""Tokens that one of Bailian's hash ids stands for."""

NO_PARENT = -1
"""The parent of a chat's first request."""


@dataclass(frozen=True)
class _Request:
    """The request of a line: its id and its parent's, its turn and its time, and what it sends."""

    line: TraceLine
    chat: int
    parent: int
    turn: int | None
    at_s: float
    asked: ConversationTurn


def bailian_conversations(lines: Sequence[TraceLine]) -> list[Conversation]:
    """Return a conversation for each first request, with all that follow it, in the order of their times.

    A request whose parent is in no line begins a conversation. Raises SpecdecError, with the line, for what the form
    has not, for an id that stands twice, and for a request that is not later than its parent.
    """
    requests: dict[int, _Request] = {}
    for line in lines:
        one = _request(line)
        if one.chat in requests:
            line.refuse(
                f"chat_id is {one.chat}, as in {requests[one.chat].line.place}", "an id of its own in every line"
            )
        requests[one.chat] = one
    roots: dict[int, int] = {}
    chats: dict[int, list[ConversationTurn]] = {}
    for one in sorted(requests.values(), key=lambda one: one.at_s):
        if one.parent in requests:
            _refuse_before(one, requests[one.parent])
        roots[one.chat] = roots.get(one.parent, one.chat)
        chats.setdefault(roots[one.chat], []).append(one.asked)
    return [Conversation(f"chat {root}", "bailian_trace", tuple(turns)) for root, turns in chats.items()]


def _request(line: TraceLine) -> _Request:
    line.text("type")  # what was asked for: text, search, image or file; lengths alone are replayed
    chat, parent, turn = line.integer("chat_id"), line.integer("parent_chat_id"), line.count("turn")
    at, size, most = line.number("timestamp"), line.count("input_length"), line.count("output_length")
    if chat is None or at is None or size is None or most is None:
        line.refuse("it lacks one of chat_id, timestamp, input_length and output_length", "all four")
    if chat == NO_PARENT:
        line.refuse(f"chat_id is {chat}", "another number: it is the parent of first requests")
    ids = line.hash_ids(size, BAILIAN_BLOCK, prefix=True) or ()
    line.end()
    text = hashed_text(ids, size, BAILIAN_BLOCK, rest=line.where)
    asked = ConversationTurn(({"role": "user", "content": text},), at, max_tokens=most, whole=True)
    return _Request(line, chat, NO_PARENT if parent is None else parent, turn, at, asked)


def _refuse_before(one: _Request, parent: _Request) -> None:
    if parent.at_s >= one.at_s:
        one.line.refuse(
            f"its timestamp is {one.at_s} and its parent's, {parent.line.place}, {parent.at_s}", "a later one"
        )
    if one.turn is not None and parent.turn is not None and one.turn <= parent.turn:
        one.line.refuse(f"its turn is {one.turn} and its parent's, {parent.line.place}, {parent.turn}", "a higher one")
