"""Conversations to be replayed: from workloads, and from traces in the files of other benchmarks. Imports no torch.

A trace is a file that says who sends what and when. ``aiperf:FILE`` and ``guidellm:FILE`` name the benchmark whose form
the file has: both have lines with ``timestamp`` and ``input_length``, one in milliseconds and the other in seconds, so
that a file alone does not say which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from benchsuite.machine.user_files import UserFileError, user_text
from benchsuite.measure.conversations.aiperf import AIPERF
from benchsuite.measure.conversations.form import Conversation, ConversationTurn, trace_refusal
from benchsuite.measure.conversations.guidellm import guidellm_conversations
from benchsuite.measure.workloads import Workload

FORMATS: Mapping[str, Callable[[str, str], list[Conversation]]] = MappingProxyType(
    {**AIPERF, "guidellm": guidellm_conversations}
)
"""Readers of a file, its path and its text, by the benchmark whose form it has, and by its kind."""


def read_trace(name: str) -> list[Conversation]:
    """Return the conversations of a trace, ``aiperf:FILE`` or ``guidellm:FILE``, in the order in which they begin.

    ``aiperf/KIND:FILE`` names the kind of AIPerf's where a file does not say it. Times begin with the first
    conversation. Raises SpecdecError for another format, for a file that cannot be read, and, with its line, for what
    is not of the format or cannot be replayed: every key is used, known to change nothing, or refused by its name.

    Example: ``read_trace("aiperf:trace.jsonl")``
    """
    form, colon, path = name.partition(":")
    if not colon or form not in FORMATS or not path:
        raise trace_refusal(
            f"the trace is {name!r}; expected aiperf:FILE or guidellm:FILE, as the benchmark's name says how FILE is "
            f"read, or a kind's name: {', '.join(f'{one}:FILE' for one in FORMATS if '/' in one)}"
        )
    try:
        text = user_text(Path(path))
    except UserFileError as error:
        raise trace_refusal(f"the trace {error}") from error
    return _from_zero(path, FORMATS[form](path, text))


def workload_conversations(workloads: Sequence[Workload]) -> list[Conversation]:
    """Return the questions of workloads as conversations without times: each turn follows the answer before it.

    Raises SpecdecError for questions with text before them: it is measured out in a tokenizer's tokens.
    """
    found = []
    for workload in workloads:
        for place, (question, _) in enumerate(zip(workload.questions, workload.prompts, strict=True)):
            turns = tuple(ConversationTurn(({"role": "user", "content": text},)) for text in question.turns)
            found.append(Conversation(f"{workload.label} {place}", workload.label, turns))
    return found


def _from_zero(path: str, conversations: Sequence[Conversation]) -> list[Conversation]:
    """The conversations by when they begin, the first of them at 0; all have times, or none has."""
    timed = [one for one in conversations if one.begins is not None]
    if timed and len(timed) < len(conversations):
        lacks = next(one for one in conversations if one.begins is None)
        raise trace_refusal(
            f"{path}: {timed[0].name} begins at a time of the trace and {lacks.name} does not; give every conversation "
            "a time, or none"
        )
    first = min((one.begins for one in timed if one.begins is not None), default=0.0)
    moved = [
        replace(
            one,
            turns=tuple(turn if turn.at_s is None else replace(turn, at_s=turn.at_s - first) for turn in one.turns),
        )
        for one in conversations
    ]
    return sorted(moved, key=lambda one: one.begins or 0.0)
