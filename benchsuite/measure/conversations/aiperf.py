"""Traces in the forms that AIPerf reads: single turns, conversations of several turns, and traces of servers.

Source: ai-dynamo/aiperf, src/aiperf/dataset/loader/models.py (SingleTurn, MultiTurn, MooncakeTrace), multi_turn.py,
single_turn.py, composer/custom.py (how a file's type is found), docs/benchmark-modes/trace-replay.md and
docs/reference/conversation-context-mode.md (2026). Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from benchsuite.measure.conversations.bailian import bailian_conversations
from benchsuite.measure.conversations.burstgpt import burstgpt_conversations, is_burstgpt
from benchsuite.measure.conversations.filler import hashed_text
from benchsuite.measure.conversations.form import ChatMessage, Conversation, ConversationTurn
from benchsuite.measure.conversations.line import TraceLine
from benchsuite.measure.conversations.records import csv_rows, json_lines

MS = 1e-3

SYNTHETIC, REPLACED = "deltas_without_responses", "message_array_with_responses"
"""Context modes of AIPerf: live answers stand between turns; each turn is all that is sent."""

KINDS = {
    "multi_turn": ("turns",),
    "mooncake_trace": ("input_length", "text_input", "messages", "payload"),
    "single_turn": ("text", "texts"),
}
"""Kinds of lines, in the order in which they are looked for, by the keys of which a line of the kind has one."""

BAILIAN, BURSTGPT = "bailian_trace", "burst_gpt_trace"
"""Kinds of traces of servers, which have readers of their own."""

REASONS = {
    "extra": "fields of single requests are not sent",
    "payload": "requests are not sent as they were recorded: give messages",
    "image_uuids": "texts alone are replayed",
    "texts": "a batch of texts is several requests",
}


@dataclass(frozen=True)
class _Entry:
    """One request: the session that it belongs to, its turn, and whether it is only a system message."""

    session: str | None
    turn: ConversationTurn
    system: bool = False


def aiperf_conversations(path: str, text: str, kind: str = "") -> list[Conversation]:
    """Return the conversations of a file's records, all of one ``kind``: what is in the file says of which, if none is
    named. Lines that share a ``session_id`` are one conversation.

    Raises SpecdecError, with the line, for what the kind has not, for what is not replayed, and for what may be of two.
    """
    if kind == BURSTGPT or (not kind and is_burstgpt(text)):
        return burstgpt_conversations(csv_rows(path, text))
    lines = json_lines(path, text)
    kinds = [kind or _kind(line) for line in lines]
    other = next((line for line, kind in zip(lines, kinds, strict=True) if kind != kinds[0]), None)
    if other is not None:
        other.refuse("it is of another kind than the first line", f"all lines to be {kinds[0]}")
    if kinds[0] == BAILIAN:
        return bailian_conversations(lines)
    sessions: dict[str, list[_Entry]] = {}
    places: dict[str, TraceLine] = {}
    for line in lines:
        line.choice("type", (kinds[0],))
        entries = {"multi_turn": _multi_turn, "mooncake_trace": _mooncake, "single_turn": _single_line}[kinds[0]](line)
        name = entries[0].session or line.place
        sessions.setdefault(name, []).extend(entries)
        places.setdefault(name, line)
    return [_conversation(name, entries, kinds[0], places[name]) for name, entries in sessions.items()]


AIPERF: Mapping[str, Callable[[str, str], list[Conversation]]] = MappingProxyType(
    {
        "aiperf": aiperf_conversations,
        **{f"aiperf/{kind}": partial(aiperf_conversations, kind=kind) for kind in (*KINDS, BAILIAN, BURSTGPT)},
    }
)
"""Readers of files that say their kind themselves, and of files whose kind is named."""


def _kind(line: TraceLine) -> str:
    said = line.fields.get("type")
    if "chat_id" in line.fields and "input_length" in line.fields:
        if said is None:
            line.refuse(
                f"it has chat_id, as lines of {BAILIAN}, and no type, as lines of mooncake_trace",
                f'a type in every line, as in "type": "text", or aiperf/{BAILIAN}:FILE',
            )
        if said not in tuple(KINDS):
            return BAILIAN
    found = next((kind for kind, keys in KINDS.items() if any(key in line.fields for key in keys)), None)
    if found is None:
        keys = ", ".join(line.fields) or "no keys"
        line.refuse(f"it has {keys}", f"one of {', '.join(key for keys in KINDS.values() for key in keys)}")
    return found


def _conversation(name: str, entries: Sequence[_Entry], kind: str, line: TraceLine) -> Conversation:
    head: tuple[ChatMessage, ...] = ()
    if entries[0].system and len(entries) > 1:  # it stands before every turn, and is no request of its own
        head, entries = entries[0].turn.messages, entries[1:]
    turns = [one.turn for one in entries]
    if any(one.system for one in entries):
        line.refuse(f"{name} has a turn of the system that is not its first, or has times", "user's turns")
    if len({turn.whole for turn in turns}) > 1:
        line.refuse(f"{name} has turns with all messages and turns with new ones", "one message_mode in all its lines")
    if kind == "single_turn":  # entries of one session follow each other, each by itself
        turns = [ConversationTurn(t.messages, t.at_s, t.delay_s, t.max_tokens, whole=True) for t in turns]
    times = [turn.at_s for turn in turns if turn.at_s is not None]
    if times != sorted(times):
        line.refuse(f"the turns of {name} have the times {times}", "rising ones: sort the lines")
    if times and turns[0].at_s is None:
        line.refuse(f"{name} has times, and none of its first turn", "one of the first turn")
    tools = turns[0].tools
    kept = []
    for place, turn in enumerate(turns):
        tools = turn.tools or (() if turn.whole else tools)  # new messages go on with the tools that were there
        messages = turn.messages if place else (*head, *turn.messages)
        kept.append(ConversationTurn(messages, turn.at_s, turn.delay_s, turn.max_tokens, turn.whole, tools))
    return Conversation(name, kind, tuple(kept))


def _multi_turn(line: TraceLine) -> list[_Entry]:
    session = line.text("session_id")
    entries = [_single(one, session) for one in line.parts("turns") or ()]
    line.end(reasons=REASONS)
    return entries


def _single_line(line: TraceLine) -> list[_Entry]:
    return [_single(line, line.text("session_id"))]


def _single(line: TraceLine, session: str | None) -> _Entry:
    """A turn of ``text`` or of one text in ``texts``."""
    line.choice("type", ("single_turn",))
    text, texts = line.text("text"), line.fields.get("texts")
    if text is None and isinstance(texts, list) and len(texts) == 1 and isinstance(texts[0], str):
        text = texts[0]
        del line.fields["texts"]
    role = line.choice("role", ("user", "system")) or "user"
    timed = bool({"timestamp", "delay", "output_length"} & line.fields.keys())
    at_s, delay_s, most = _times(line)
    line.end(reasons=REASONS)
    if text is None:
        line.refuse("it has no text", "text, or one text in texts")
    turn = ConversationTurn(({"role": role, "content": text},), at_s, delay_s, most)
    if role == "system" and timed:
        line.refuse("a turn of the system has times or a length", "these of users' turns")
    return _Entry(session, turn, role == "system")


def _mooncake(line: TraceLine) -> list[_Entry]:
    session = line.text("session_id")
    keys = KINDS["mooncake_trace"]
    given = [key for key in keys if key in line.fields]
    if len(given) > 1:
        line.refuse(f"it has {' and '.join(given)}", f"one of {', '.join(keys)}")
    mode = line.choice("message_mode", ("history", "delta"))
    context = line.choice("context_mode", (SYNTHETIC, REPLACED))
    messages, text, size = line.messages(), line.text("text_input"), line.count("input_length")
    ids, tools = line.hash_ids(size, prefix=True), line.tools()
    if messages is None and (tools or mode):
        line.refuse("it has tools or a message_mode without messages", "messages")
    whole = context == REPLACED or (messages is not None and mode != "delta")
    if messages is not None and context and context != (SYNTHETIC if mode == "delta" else REPLACED):
        line.refuse(f"message_mode {mode or 'history'} and context_mode {context}", "two that mean the same")
    at_s, delay_s, most = _times(line)
    line.end(reasons=REASONS)
    if size is not None:
        text = hashed_text(ids or (), size, rest=line.where)
    if messages is None:
        messages = ({"role": "user", "content": text},)
    return [_Entry(session, ConversationTurn(messages, at_s, delay_s, most, whole, tools))]


def _times(line: TraceLine) -> tuple[float | None, float, int | None]:
    """When a turn is due, how long after the answer before it, and the most tokens of its own."""
    at, delay, most = line.number("timestamp"), line.number("delay"), line.count("output_length")
    if at and delay:
        line.refuse("it has timestamp and delay", "one of the two")
    return None if at is None else at * MS, (delay or 0.0) * MS, most
