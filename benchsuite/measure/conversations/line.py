"""A line of a trace: each key is taken as what it must be, or refused by name."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from benchsuite.measure.conversations.filler import BLOCK
from benchsuite.measure.conversations.form import ChatMessage, trace_refusal

ROLES = ("system", "developer", "user", "assistant", "tool")
ENDS = ("user", "tool")
"""Who says the last message before an answer."""

MEDIA = tuple(f"{kind}{end}" for kind in ("image", "audio", "video") for end in ("", "s"))
"""Keys of what is no text."""

MOST = 10_000_000
"""Tokens that no prompt and no answer has: a slip of the pen would fill the memory with words."""


class TraceLine:
    """The object of one line, or a part of it; ``where`` begins every refusal.

    Keys are taken out one after the other. ``end`` refuses what is left. Every method raises SpecdecError for a value
    of another kind; a key that is missing or null is None.

    Example: ``TraceLine("trace.jsonl, line 1", {"timestamp": 3}).number("timestamp")`` is 3.0.
    """

    def __init__(self, where: str, value: object) -> None:
        self.where = where
        if not isinstance(value, dict):
            self.refuse(f"it is {value!r}"[:80], "an object")
        self.fields: dict[str, Any] = {name: one for name, one in value.items() if one is not None}

    def refuse(self, found: str, expected: str) -> NoReturn:
        """Raise the refusal of what was found, with what was expected."""
        raise trace_refusal(f"{self.where}: {found}; expected {expected}")

    @property
    def place(self) -> str:
        """Where it stands in its file: ``line 3``."""
        return self.where.rpartition(", ")[2]

    def value(self, name: str) -> Any:
        """What a key has that is no text."""
        return self.fields.pop(name, None)

    def text(self, name: str) -> str | None:
        """A text that is not blank."""
        value: str | None = self.fields.pop(name, None)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            self.refuse(f"{name} is {value!r}", "some text")
        return value

    def number(self, name: str) -> float | None:
        """A number of 0 or more."""
        value = self.value(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max
        ):
            self.refuse(f"{name} is {value!r}"[:80], "a number of 0 or more")
        return None if value is None else float(value)

    def count(self, name: str) -> int | None:
        """A whole number of 1 or more, of tokens or of turns; no more than ``MOST``."""
        value: int | None = self.value(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST):
            self.refuse(f"{name} is {value!r}"[:80], f"a whole number from 1 to {MOST:,}")
        return value

    def integer(self, name: str) -> int | None:
        """A whole number, also below 0."""
        value: int | None = self.value(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            self.refuse(f"{name} is {value!r}"[:80], "a whole number")
        return value

    def parts(self, name: str) -> list[TraceLine] | None:
        """A list of objects, at least one."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or not value:
            self.refuse(f"{name} is {value!r}"[:80], "a list of objects, at least one")
        return [TraceLine(f"{self.where}, {name} {number}", one) for number, one in enumerate(value, 1)]

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        """One of some words."""
        value: str | None = self.fields.pop(name, None)
        if value is not None and value not in choices:
            self.refuse(f"{name} is {value!r}", " or ".join(choices))
        return value

    def tools(self, name: str = "tools") -> tuple[Mapping[str, Any], ...]:
        """Definitions of tools in OpenAI's form, ``{"type": "function", "function": {"name": …}}``; none: ()."""
        found = []
        for one in self.parts(name) or ():
            function = one.fields.get("function")
            if one.fields.get("type") != "function" or not isinstance(function, dict) or "name" not in function:
                one.refuse(f"it is {one.fields!r}"[:80], 'a function: {"type": "function", "function": {"name": …}}')
            found.append(one.fields)
        return tuple(found)

    def hash_ids(self, size: int | None, block: int = BLOCK, prefix: bool = False) -> tuple[int, ...] | None:
        """The ids of blocks of a prompt of ``size`` tokens: whole numbers, one for ``block`` tokens.

        There are ids of all its blocks, or, of a ``prefix``, of the first ones.
        """
        name = "hash_ids"
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in value):
            self.refuse(f"{name} are {value!r}"[:80], "a list of whole numbers")
        if size is None:
            self.refuse(f"it has {name} without input_length", "input_length, whose blocks they are")
        blocks = -(-size // block)
        if len(value) > blocks or (len(value) < blocks and not prefix):
            self.refuse(
                f"input_length is {size} and there are {len(value)} {name}",
                f"{'at most ' if prefix else ''}{blocks}: one for {block} tokens",
            )
        return tuple(value)

    def messages(self, name: str = "messages") -> tuple[ChatMessage, ...] | None:
        """Chat messages, of which the last is a user's or a tool's; parts of text become one text."""
        rows = self.parts(name)
        if rows is None:
            return None
        found = tuple(one.message() for one in rows)
        if found[-1]["role"] not in ENDS:
            rows[-1].refuse(
                f"the last message is the {found[-1]['role']}'s", "a user's or a tool's, after which the model answers"
            )
        return found

    def message(self) -> ChatMessage:
        """The line itself as one chat message."""
        role = self.choice("role", ROLES)
        if role is None:
            self.refuse("it has no role", ", ".join(ROLES))
        found: dict[str, Any] = {"role": role, "content": self._content()}
        calls = self.parts("tool_calls")
        if calls:
            if role != "assistant":
                self.refuse(f"the {role} has tool_calls", "these of the assistant alone")
            found["tool_calls"] = [one.tool_call() for one in calls]
        if found["content"] is None and not calls:
            self.refuse("it has neither content nor tool_calls", "one of the two")
        found |= {name: value for name in ("tool_call_id", "name") if (value := self.text(name)) is not None}
        self.end()
        return found

    def tool_call(self) -> dict[str, Any]:
        """The line itself as a call of a tool: an id, and a function's name and arguments, a text of JSON."""
        number, kind, function = self.text("id"), self.choice("type", ("function",)), self.fields.pop("function", None)
        part = TraceLine(f"{self.where}, function", function)
        name, arguments = part.text("name"), part.fields.pop("arguments", "{}")
        if name is None or not isinstance(arguments, str):
            part.refuse(f"name is {name!r}, arguments are {arguments!r}"[:80], "a name, and a text of JSON")
        part.end()
        self.end()
        found: dict[str, Any] = {"type": kind or "function", "function": {"name": name, "arguments": arguments}}
        return found | ({"id": number} if number else {})

    def end(self, harmless: Collection[str] = (), reasons: Mapping[str, str] | None = None) -> None:
        """Refuse what is left but keys that change nothing; ``reasons`` has what to do about keys that are known."""
        left = [name for name in self.fields if name not in harmless]
        if left:
            known = (reasons or {}).get(left[0]) or ("texts alone are replayed" if left[0] in MEDIA else "")
            raise trace_refusal(
                f"{self.where}: the key {left[0]!r} is not read{f': {known}' if known else ''}; remove it, if what is "
                "left is what you mean to replay"
            )

    def _content(self) -> str | None:
        value = self.fields.pop("content", None)
        if isinstance(value, list):
            wrong = next((one for one in value if not _is_text(one)), None)
            if wrong is not None:
                self.refuse(f"content has the part {wrong!r}"[:80], 'texts: {"type": "text", "text": …}')
            value = "".join(one["text"] for one in value)
        if value is not None and not isinstance(value, str):
            self.refuse(f"content is {value!r}"[:80], "a text, or a list of texts")
        content: str | None = value
        return content


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
