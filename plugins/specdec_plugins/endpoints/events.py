"""Server-sent events: bytes in, the data of whole events out.

Source: WHATWG HTML, section 9.2.6 (interpreting an event stream).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

LONGEST_LINE = 2**20
"""Bytes of a line of a stream, at most."""

MARK = b"\xef\xbb\xbf"
"""The byte-order mark, with which a stream may begin."""


@dataclass(frozen=True)
class ServerEvent:
    """One event. ``error``: the server sent it as an error (``event: error``, or llama.cpp's field ``error:``)."""

    data: str
    error: bool = False


class EventStream:
    """Splits a stream into events, wherever its pieces are cut.

    Lines end with LF, CR or CRLF. Beyond the standard, a JSON object without ``data:`` is an event (some servers write
    an error so into a stream that they have begun), and so is each of several whole objects that no empty line divides.
    Raises UnicodeDecodeError for a line that is not UTF-8, and OverflowError for one above ``LONGEST_LINE`` bytes.

    Example: ``EventStream().feed(b"data: [DONE]\\n\\n")`` is ``[ServerEvent("[DONE]")]``.
    """

    def __init__(self) -> None:
        self._left = b""
        self._data: list[str] = []
        self._error = self._begun = self._cr = False

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Return the events that are whole with this piece."""
        found: list[ServerEvent] = []
        data = self._left + piece
        if not self._begun:
            if len(data) < len(MARK) and MARK.startswith(data):
                self._left = data
                return []
            data, self._begun = data.removeprefix(MARK), True
        if self._cr:  # the CR of a CRLF has ended its line; the LF came with this piece
            data = data.removeprefix(b"\n")
        self._cr = data.endswith(b"\r") if piece else self._cr
        *lines, self._left = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            found += self._line(line)
        if len(self._left) > LONGEST_LINE:
            raise OverflowError(f"a line of the stream is longer than {LONGEST_LINE >> 20} MiB")
        return found

    def end(self) -> list[ServerEvent]:
        """Return what the end of the stream leaves: an event whose empty line did not come."""
        left, self._left = self._left, b""
        return [*(self._line(left) if left else []), *self._whole()]

    def _line(self, line: bytes) -> list[ServerEvent]:
        text = line.decode("utf-8")
        if not text.strip():
            return self._whole()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        found: list[ServerEvent] = []
        if text.startswith("{"):
            found = [*self._whole(), ServerEvent(text)]
        elif name == "data":
            found = self._whole() if self._data and _is_whole("\n".join(self._data)) else []
            self._data.append(value)
        elif name == "error":
            found = [*self._whole(), ServerEvent(value, error=True)]
        elif name == "event":
            self._error = value.strip() == "error"
        return found

    def _whole(self) -> list[ServerEvent]:
        found = [ServerEvent("\n".join(self._data).strip(), self._error)] if self._data else []
        self._data, self._error = [], False
        return found


def _is_whole(data: str) -> bool:
    """Whether the lines so far are one JSON value, or the mark of the end."""
    if data.strip() == "[DONE]":
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
