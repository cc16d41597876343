"""Traces in the forms that GuideLLM reads: columns of a data set, by turn, and rows of lengths with a time.

Source: vllm-project/guidellm, src/guidellm/data/preprocessors/mappers.py (the names of columns),
src/guidellm/data/deserializers/file.py and docs/guides/datasets.md (the kinds of files),
docs/guides/multiturn.md (columns of turns), docs/guides/trace_replay.md (``trace_synthetic`` and ``mooncake``),
src/guidellm/schemas/info.py (``relative_timestamp``, ``requeue_delay``) (2026). Times are in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchsuite.measure.conversations.filler import hashed_text
from benchsuite.measure.conversations.form import ChatMessage, Conversation, ConversationTurn, trace_refusal
from benchsuite.measure.conversations.line import TraceLine
from benchsuite.measure.conversations.records import csv_rows, json_lines, json_values, text_lines

FILES: Mapping[str, Callable[[str, str], list[TraceLine]]] = MappingProxyType(
    {".jsonl": json_lines, ".json": json_values, ".csv": csv_rows, ".txt": text_lines, ".text": text_lines}
)
"""Readers of a file's records by the end of its name, which GuideLLM holds to the kind of file."""

COLUMNS = {
    "text": ("prompt", "instruction", "question", "input", "context", "content", "conversation", "turn", "text"),
    "prefix": ("system_prompt", "system", "prefix"),
    "messages": ("messages", "chat_messages"),
    "tools": ("tools", "functions", "tool_definitions"),
    "most": ("output_tokens_count", "completion_tokens_count"),
    "at": ("relative_timestamp",),
    "delay": ("requeue_delay",),
}
"""What a column is, by its names; each may end in a plural's s, and in the number of its turn: ``prompt_0``."""

HARMLESS = ("prompt_tokens_count", "input_tokens_count", "duration", "request_duration")
"""Columns that say what was measured once, and change no request."""

REASONS = {
    "tool_response": "the model would have to call a tool; give the recorded call and its result in messages",
    "tool_choice": "a replayed answer is a text; give the recorded calls in messages",
    "conversation_turns": "graphs of conversations are not replayed",
    "model": "one model answers all requests",
}
"""Columns that are refused, and what to do about each."""


def guidellm_conversations(path: str, text: str) -> list[Conversation]:
    """Return a conversation for each record of a file: of lengths, if the first has ``input_length``, else of columns.

    Raises SpecdecError for another kind of file and, with the line, for what the form has not, and for what is not
    replayed.
    """
    end = Path(path).suffix.lower()
    if end not in FILES:
        raise trace_refusal(f"the trace {path} ends in {end!r}; of GuideLLM's files {', '.join(FILES)} are read")
    lines = FILES[end](path, text)
    read = _row if "input_length" in lines[0].fields else _columns
    return [read(line) for line in lines]


def _row(line: TraceLine) -> Conversation:
    at, size, most = line.number("timestamp"), line.count("input_length"), line.count("output_length")
    ids = line.hash_ids(size)
    if at is None or size is None or most is None:
        line.refuse("it lacks one of timestamp, input_length and output_length", "all three")
    line.end()
    text = hashed_text(ids or (), size, rest=line.where)
    return Conversation(
        line.place, "trace", (ConversationTurn(({"role": "user", "content": text},), at, max_tokens=most),)
    )


def _columns(line: TraceLine) -> Conversation:
    turns: dict[int, dict[str, str]] = {}
    used: dict[str, str] = {}
    for key in [*line.fields]:
        if (placed := _column(key)) is None:
            continue
        kind, alias, turn = placed
        if used.setdefault(kind, alias) != alias:
            line.refuse(f"{used[kind]} and {alias} are two columns of one kind", "one of them")
        number = len([1 for one in turns.values() if kind in one]) if turn is None else turn
        if kind in turns.setdefault(number, {}):
            line.refuse(f"{turns[number][kind]} and {key} are one column of turn {number}", "one of them")
        turns[number][kind] = key
    line.end(_harmless(line), _reasons(line))
    found: list[ConversationTurn] = []
    wait = 0.0
    for number in sorted(turns):
        keys = turns[number]
        found.append(_turn(line, keys, wait))
        wait = (line.number(keys["delay"]) if "delay" in keys else None) or 0.0  # behind the answer of its turn
    if not found:
        line.refuse(f"it has the columns {', '.join(line.fields) or 'none'}", "prompt, or prompt_0, prompt_1, …")
    times = [turn.at_s for turn in found if turn.at_s is not None]
    if times and (found[0].at_s is None or times != sorted(times)):
        line.refuse(f"its turns have the times {times}", "rising ones, the first turn's among them")
    return Conversation(line.place, "trace", tuple(found))


def _turn(line: TraceLine, keys: dict[str, str], delay_s: float) -> ConversationTurn:
    """The turn of these columns. GuideLLM's own answers stand between turns, also of ``messages``."""
    messages: list[ChatMessage] = []
    if "prefix" in keys and (text := line.text(keys["prefix"])) is not None:
        messages.append({"role": "system", "content": text})
    if "messages" in keys:
        messages += line.messages(keys["messages"]) or ()
    if "text" in keys and (text := line.text(keys["text"])) is not None:
        messages.append({"role": "user", "content": text})
    if not messages or messages[-1]["role"] == "system":
        line.refuse(f"the turn of {', '.join(keys.values())} has no text", "a prompt in every turn")
    at = line.number(keys["at"]) if "at" in keys else None
    most = line.count(keys["most"]) if "most" in keys else None
    tools: tuple[Any, ...] = line.tools(keys["tools"]) if "tools" in keys else ()
    return ConversationTurn(tuple(messages), at, delay_s, most, tools=tools)


def _column(key: str) -> tuple[str, str, int | None] | None:
    """What a column is: its kind, its name without the turn, and the turn's number."""
    for kind, names in COLUMNS.items():
        for name in names:
            found = re.fullmatch(rf"({name}(?:es|s)?)(?:[-_](\d+))?", key, re.IGNORECASE)
            if found:
                return kind, found[1].lower(), None if found[2] is None else int(found[2])
    return None


def _is(key: str, name: str) -> bool:
    """Whether a column has this name, of whatever turn."""
    return re.fullmatch(rf"{name}(?:es|s)?(?:[-_]\d+)?", key, re.IGNORECASE) is not None


def _harmless(line: TraceLine) -> list[str]:
    """Columns of the line that are read, or change nothing."""
    return [key for key in line.fields if _column(key) or any(_is(key, name) for name in HARMLESS)]


def _reasons(line: TraceLine) -> dict[str, str]:
    """What is said of the line's columns that are known and not replayed."""
    return {key: text for key in line.fields for name, text in REASONS.items() if _is(key, name)}
