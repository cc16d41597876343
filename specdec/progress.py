"""Progress of work that is counted: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TextIO

EVERY = 30.0
"""Seconds between two lines of a log."""


class Progress(AbstractContextManager["Progress"]):
    """Shows on stderr how much of some work is done.

    A terminal has a bar, which is removed at the end. Anything else is a log: it gets a line every half minute, and no
    carriage return. ``total``: how many steps there are, None if nobody knows; ``unit``: what is counted; ``what``: the
    work's name, if that stays the same.

    Example:

        with Progress(len(files), "file", "reading") as progress:
            for file in files:
                read(file)
                progress.step()
    """

    def __init__(
        self,
        total: int | None,
        unit: str,
        what: str = "",
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._unit, self._what, self._clock = total, unit, what, clock
        self._file = file or sys.stderr
        self._done, self._next, self._bar = 0, clock() + EVERY, None
        if self._file.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, unit=unit, desc=what, file=self._file, mininterval=0.2, leave=False, dynamic_ncols=True
            )

    def step(self, what: str = "", count: int = 1) -> None:
        """Count steps that are done; ``what``: what is done next, if it changes."""
        self._done += count
        if self._bar is not None:
            if what:
                self._bar.set_description_str(what, refresh=False)
            self._bar.update(count)
        elif self._clock() >= self._next:
            self._next = self._clock() + EVERY
            of = "" if self._total is None else f" of {self._total:,}"
            said = ": ".join(filter(None, (what or self._what, f"{self._done:,}{of} {self._unit}")))
            print(said, file=self._file, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def __exit__(self, *raised: object) -> None:
        self.close()
