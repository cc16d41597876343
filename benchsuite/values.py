"""Values of options as people write them: numbers, shares, times, choices and lists of these. Imports no torch.

A reader takes the text of an option and the option's name, ``--specdec-batch``, and returns the value. It raises
SpecdecError for any other text, with what was written and what is expected.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from specdec.errors import SpecdecError
from specdec.lists import split_list
from specdec.request import RANGES, SamplingParams

T = TypeVar("T")
Reader = Callable[[str, str], T]

DEFAULTS = SamplingParams()
LEAST_DEPTH = 256
"""The fewest tokens before a question: of less, a turn's own tokens would be more than one per cent."""
YES, NO = ("true", "1", "yes", "on"), ("", "false", "0", "no", "off")


def refused_value(option: str, text: str, expected: str) -> SpecdecError:
    """Return the error for a text that an option does not take."""
    return SpecdecError(f"{option} is {text!r}; expected {expected}")


def as_written(text: str, option: str) -> str:
    """Return the text itself."""
    return text


def with_paths(text: str, option: str) -> str:
    """Return the text, with each path in it that exists in its one form: a folder is one row, however it is written.

    Example: ``draft_model(model=./m/)`` becomes ``draft_model(model=m)`` where there is a folder m.
    """
    return re.sub(r"[^\s,()='\"]+", lambda found: plain_path(found[0]), text)


def plain_path(text: str) -> str:
    """Return a path that exists as it is written from here: without ``./``, a slash at its end, or the way from the
    root; any other text as it is."""
    if "/" not in text or not os.path.lexists(text):
        return text
    path = Path(text).resolve() if ".." in Path(text).parts else Path(text).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def flag(text: str, option: str) -> bool:
    """Return whether a text says yes: ``true``, ``1``, ``yes``, ``on``; their opposites and nothing say no."""
    if text.lower() not in (*YES, *NO):
        raise refused_value(option, text, "true or false")
    return text.lower() in YES


def names(text: str, option: str) -> tuple[str, ...]:
    """Return the parts of a comma list, at least one. Commas in brackets and quotes separate nothing; paths in the
    parts have their one form."""
    found = tuple(with_paths(part, option) for part in split_list(text))
    if not found:
        raise SpecdecError(f"{option} is empty; leave it out for its default")
    return found


def some_names(text: str, option: str) -> tuple[str, ...]:
    """Return the parts of a comma list that may be empty."""
    return tuple(split_list(text))


def one_of(*choices: str) -> Reader[str]:
    """Return the reader of one of some words."""

    def read(text: str, option: str) -> str:
        if text not in choices:
            raise refused_value(option, text, f"one of {', '.join(choices)}")
        return text

    return read


COSTS_FROM = ("off", "cached", "fresh")
"""Where the costs of a prediction come from, if not from a file."""


def costs_source(text: str, option: str) -> str:
    """Return one of ``COSTS_FROM``, or the path of a file that is there."""
    if text not in COSTS_FROM and not Path(text).is_file():
        file = "or the file of an earlier calibration: there is no such file"
        raise refused_value(option, text, f"{', '.join(COSTS_FROM)}, {file}")
    return text


def whole_number(text: str, option: str) -> int:
    """Return a whole number, 1 or more."""
    found = _whole(text)
    if not found >= 1:
        raise refused_value(option, text, "a whole number, 1 or more")
    return int(found)


def wholes(least: int) -> Reader[tuple[int, ...]]:
    """Return the reader of a comma list of whole numbers from ``least``."""

    def read(text: str, option: str) -> tuple[int, ...]:
        for part in names(text, option):
            if not _whole(part) >= least:
                raise refused_value(option, part, f"whole numbers, {least} or more, separated by commas")
        return tuple(map(int, names(text, option)))

    return read


def spans(least: int) -> Reader[tuple[int, ...]]:
    """Return the reader of a comma list of whole numbers from ``least`` and of spans of them: ``1-8,16``."""

    def read(text: str, option: str) -> tuple[int, ...]:
        found = list[int]()
        for part in names(text, option):
            first, dash, last = part.partition("-")
            low, high = _whole(first), _whole(last if dash else first)
            if not least <= low <= high:
                expected = f"whole numbers, {least} or more, or spans of them, separated by commas: 1-8,16"
                raise refused_value(option, part, expected)
            found += range(low, high + 1)
        return tuple(dict.fromkeys(found))

    return read


def depths(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers of tokens of a comma list: ``0,2k,8192``, k being 1,024."""
    found = []
    for part in names(text, option):
        thousands = part.endswith("k")
        value = _whole(part.removesuffix("k")) * (1024 if thousands else 1)
        if not (value == 0 or value >= LEAST_DEPTH):
            expected = f"numbers of tokens, each 0 or {LEAST_DEPTH} and more, separated by commas: 0,2k,8k"
            raise refused_value(option, part, expected)
        found.append(int(value))
    return tuple(dict.fromkeys(found))


def sampled(name: str) -> Reader[tuple[float, ...]]:
    """Return the reader of a comma list of values of one parameter of sampling, in the range that requests have."""
    fits, expected = RANGES[name]

    def read(text: str, option: str) -> tuple[float, ...]:
        found = []
        for part in names(text, option):
            value = _whole(part) if isinstance(getattr(DEFAULTS, name), int) else number(part)
            if not fits(value):
                raise refused_value(option, part, f"numbers, each {expected}, separated by commas")
            found.append(value)
        return tuple(found)

    return read


def seed(text: str, option: str) -> int:
    """Return a seed: a whole number of 63 bits."""
    fits, expected = RANGES["seed"]
    if not fits(_whole(text)):
        raise refused_value(option, text, expected)
    return int(text)


def above_zero(text: str, option: str) -> tuple[float, ...]:
    """Return the numbers above 0 of a comma list that may be empty."""
    for part in split_list(text):
        if not 0 < number(part) < math.inf:
            raise refused_value(option, part, "numbers above 0, separated by commas: 0.5,2")
    return tuple(map(float, split_list(text)))


def fraction(text: str, option: str) -> float:
    """Return a number between 0 and 1."""
    if not 0 < number(text) < 1:
        raise refused_value(option, text, "a fraction between 0 and 1: 0.03 is 3 %")
    return float(text)


_NUMBER = r"([0-9]*\.?[0-9]+)"
_SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600}


def share(text: str, option: str) -> float:
    """Return the share, above 0 and below 1, that a text means: ``2%``, ``0.02``.

    ``N%`` is exactly the number that N/100 written as a decimal is.
    """
    found = re.fullmatch(_NUMBER + r"\s*(%?)", text.strip())
    value = float(found[1] + ("e-2" if found[2] else "")) if found else math.nan
    if not 0 < value < 1:
        raise refused_value(option, text, "a share above 0 and below 1, for example 2% or 0.02")
    return value


def duration(text: str, option: str) -> float | None:
    """Return the seconds that a text means, None if it is empty or 0: ``90``, ``90s``, ``10min``, ``1.5h``."""
    found = re.fullmatch(_NUMBER + r"\s*(s|min|h|)", text.strip() or "0")
    seconds = float(found[1]) * _SECONDS[found[2]] if found else math.nan
    if not math.isfinite(seconds):
        raise refused_value(option, text, "a time, for example 90, 90s, 10min or 1.5h, or 0 for none")
    return seconds or None


def part_of(text: str, option: str) -> tuple[int, int]:
    """Return i and n of ``i/n``; an empty text is the whole, 1 of 1."""
    found = re.fullmatch(r"(\d+)/(\d+)", text.replace(" ", "") or "1/1")
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise refused_value(option, text, "i/n with i from 1 to n, as in 2/3")
    return int(found[1]), int(found[2])


def limits(keys: Sequence[str]) -> Reader[Mapping[str, float]]:
    """Return the reader of limits in seconds by their names, ``ttft=0.5,e2e=10``, of which there may be none."""

    def read(text: str, option: str) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for part in split_list(text):
            name, _, value = part.partition("=")
            if name not in keys or not 0 < number(value) < math.inf:
                raise refused_value(option, part, f"{', '.join(keys)} in seconds above 0, as in {keys[0]}=0.5")
            found[name] = float(value)
        return found

    return read


def unless_empty(read: Reader[T]) -> Reader[T | None]:
    """Return a reader that takes an empty text too, as None."""
    return lambda text, option: read(text, option) if text else None


def number(text: str) -> float:
    """Return the number that a text is; NaN for any other, and for one with the underscores of Python's own code."""
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def _whole(text: str) -> Any:
    """The whole number that a text is; a NaN for any other, also for a digit that is no decimal, such as ²."""
    return int(text) if text.strip().isdecimal() else math.nan
