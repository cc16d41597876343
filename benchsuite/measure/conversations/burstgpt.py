"""BurstGPT's traces: when requests came, and the lengths of their prompts and answers, in rows of CSV.

Source: ai-dynamo/aiperf, src/aiperf/dataset/loader/burst_gpt.py; HPMLL/BurstGPT, README.md (the columns) (2026). Times
are in seconds. Every row is a request by itself.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

from benchsuite.measure.conversations.filler import new_text
from benchsuite.measure.conversations.form import Conversation, ConversationTurn
from benchsuite.measure.conversations.line import TraceLine

BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
"""Columns by which a file is known for BurstGPT's; all are needed."""

BURSTGPT_HARMLESS = ("Session ID", "Elapsed time", "Model", "Total tokens", "Log Type")
"""Columns that say what was measured once, and change no request: AIPerf asks each row by itself."""


def is_burstgpt(text: str) -> bool:
    """Whether the first line of a file names BurstGPT's columns.

    Example: ``is_burstgpt("Timestamp,Model,Request tokens,Response tokens\\n")`` is true.
    """
    try:
        header = next(csv.reader(text.split("\n", 1)[:1]), [])
    except csv.Error:  # a line of JSON with a long text
        return False
    return set(BURSTGPT_COLUMNS) <= set(header)


def burstgpt_conversations(lines: Sequence[TraceLine]) -> list[Conversation]:
    """Return a conversation of one turn for each row.

    Raises SpecdecError, with the line, for a column that the form has not, for a cell without its number, and for a
    request that failed.
    """
    return [_row_asked(line) for line in lines]


def _row_asked(line: TraceLine) -> Conversation:
    if line.fields.get("Response tokens") == "0":
        line.refuse("Response tokens is 0: the request failed", "answered ones, as in BurstGPT_without_fails_1.csv")
    at, size, most = line.number("Timestamp"), line.count("Request tokens"), line.count("Response tokens")
    if at is None or size is None or most is None:
        line.refuse(f"it lacks one of {', '.join(BURSTGPT_COLUMNS)}", "all three")
    line.end(BURSTGPT_HARMLESS)
    asked = ConversationTurn(({"role": "user", "content": new_text(line.where, size)},), at, max_tokens=most)
    return Conversation(line.place, "burst_gpt_trace", (asked,))
