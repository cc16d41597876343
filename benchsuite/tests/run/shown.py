"""A terminal that keeps what is written to it."""

from __future__ import annotations

from typing import Any


class Shown:
    """Stands for pytest's terminal reporter. ``lines``: what was written, and of a section how it is drawn and its
    title; empty lines are left out. ``marked``: the lines that are written in another way, with how."""

    def __init__(self, isatty: bool = False) -> None:
        self.isatty = isatty
        self.lines: list[str] = []
        self.marked: dict[str, dict[str, Any]] = {}

    def section(self, title: str, sep: str = "?") -> None:
        """Keep a title."""
        self.lines.append(f"{sep} {title}")

    def write_line(self, line: str, **how: Any) -> None:
        """Keep a line."""
        self.lines += [line] if line else []
        if how:
            self.marked[line] = how
