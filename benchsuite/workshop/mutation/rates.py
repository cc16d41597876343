"""How many mutants were killed, with exact intervals, and those that were not, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchsuite.judge.ties import upper_limit
from benchsuite.report.document import Code, Document, Lines, Part, Section, Table
from benchsuite.report.renderers import markdown
from benchsuite.workshop.mutation.groups import ROOMS
from benchsuite.workshop.mutation.runner import EXCUSED, KILLED, LATE, MISSED, SURVIVED, Tried

SIDE = 0.975
"""The confidence of each end of a two-sided 95 % interval."""

COLUMNS = (EXCUSED, KILLED, LATE, SURVIVED, MISSED)
HEADERS = ("mutants", "drawn", *COLUMNS, "killed of those")


def kill_rate(killed: int, of: int) -> tuple[float, float, float]:
    """Return the share of mutants that were killed, and the ends of its exact 95 % interval (Clopper and Pearson's).

    Raises ValueError for none at all. Example: ``kill_rate(9, 10)`` is 0.9, from 0.55 to 0.997
    """
    if not of:
        raise ValueError("got no mutant, expected one or more: a share of none is no number")
    low = 1 - upper_limit(of - killed, of, SIDE) if killed else 0.0
    high = upper_limit(killed, of, SIDE) if killed < of else 1.0
    return killed / of, low, high


def shown_rate(killed: int, of: int) -> str:
    """Return "90 % (55 to 100)"; "none" of no mutants."""
    if not of:
        return "none"
    rate, low, high = kill_rate(killed, of)
    return f"{rate:.0%} ({low * 100:.0f} to {high * 100:.0f})".replace("%", " %")


def kills(tried: Sequence[Tried]) -> tuple[int, int]:
    """Return how many of these were killed, in time or not, and of how many that are not equivalent."""
    judged = [each for each in tried if each.verdict != EXCUSED]
    return sum(each.verdict in (KILLED, LATE) for each in judged), len(judged)


def rates_table(tried: Sequence[Tried], population: Mapping[str, int], rooms: bool = False) -> Table:
    """Return a line for every group, or every room, and one for all: they count what was drawn, whatever the sizes."""
    parts: dict[str, tuple[str, ...]] = {group: (group,) for group in population}
    if rooms:
        parts = {room: groups for room, groups in ROOMS.items() if population.keys() & {*groups}}
    rows: list[tuple[Any, ...]] = []
    for name, groups in [*parts.items(), ("all", tuple(population))]:
        mine = [each for each in tried if each.group in groups]
        counts = [sum(each.verdict == verdict for each in mine) for verdict in COLUMNS]
        size = sum(population.get(group, 0) for group in groups)
        rows.append((name, size, len(mine), *counts, shown_rate(*kills(mine))))
    return Table(("room" if rooms else "group", *HEADERS), rows)


def survivors(tried: Sequence[Tried]) -> list[Tried]:
    """Return those that no test killed."""
    return [each for each in tried if each.verdict in (SURVIVED, MISSED)]


def one_line(tried: Tried) -> str:
    """Return a result in a line."""
    mutant = tried.mutant
    what = {
        KILLED: f"by {tried.by}",
        SURVIVED: f"{tried.tests} of {tried.reach} tests that reach it",
    }.get(tried.verdict, tried.reason)
    place = f"{mutant.file}:{mutant.lines[0]} {mutant.function or 'top'}"
    return f"{tried.verdict:11} {place} [{mutant.operator}] {what} ({tried.seconds:.0f} s)"


def mutation_report(tried: Sequence[Tried], population: Mapping[str, int], origin: str, sources: Path) -> str:
    """Return the report as Markdown: the table, survivors as diffs, and the equivalent ones with their reasons."""
    lived: list[Part] = []
    for each in survivors(tried):
        diff = each.mutant.diff((sources / each.mutant.file).read_bytes()).rstrip()
        lived += [Lines([one_line(each)]), Code(diff, "diff")]
    excused = [
        f"{each.mutant.file}, {each.mutant.function}: `{each.mutant.before}` → `{each.mutant.after}`: {each.reason}"
        for each in tried
        if each.verdict == EXCUSED
    ]
    sections = [
        Section(parts=[Lines([origin]), rates_table(tried, population, rooms=True), rates_table(tried, population)]),
        Section("Survivors", lived),
        Section("Equivalent", [Lines(excused)] if excused else []),
    ]
    return markdown(Document("Mutants", sections))
