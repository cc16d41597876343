"""A mutant: one small change of one file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """In ``file``, the bytes from ``start`` to ``end`` become ``new``.

    ``function`` is the qualified name of what holds them, empty at the top of a file. ``lines`` are the first and the
    last line of which one must run for the change to matter; ``body`` those of the function, of a Python file.
    ``before`` and ``after`` are the changed lines with their white space collapsed: they say what a mutant is when
    lines have moved.
    """

    file: str
    function: str
    operator: str
    start: int
    end: int
    new: str
    lines: tuple[int, int]
    before: str
    after: str
    body: tuple[int, int] = (0, -1)

    @property
    def key(self) -> str:
        """What tells it from all other mutants of the same sources."""
        return f"{self.file}:{self.start}-{self.end}:{self.operator}:{self.new}"

    def applied(self, source: bytes) -> bytes:
        """Return the file's bytes with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """Return the change as a unified diff with a line around it."""
        old, new = (text.decode().splitlines(keepends=True) for text in (source, self.applied(source)))
        return "".join(difflib.unified_diff(old, new, fromfile=self.file, tofile=self.file, n=1))


def mutation(
    file: str,
    source: bytes,
    function: str,
    operator: str,
    span: tuple[int, int],
    new: str,
    lines: tuple[int, int],
    body: tuple[int, int] = (0, -1),
) -> Mutation:
    """Return the mutant that puts ``new`` in place of the bytes of ``span``."""
    start, end = span
    first = source.rfind(b"\n", 0, start) + 1
    last = source.find(b"\n", end)
    last = len(source) if last < 0 else last
    old_lines = source[first:last].decode().splitlines()
    new_lines = (source[first:start].decode() + new + source[end:last].decode()).splitlines()
    while old_lines and new_lines and old_lines[0] == new_lines[0]:
        del old_lines[0], new_lines[0]
    while old_lines and new_lines and old_lines[-1] == new_lines[-1]:
        del old_lines[-1], new_lines[-1]
    before, after = (" ".join(" ".join(each).split()) for each in (old_lines, new_lines))
    return Mutation(file, function, operator, start, end, new, lines, before, after, body)
