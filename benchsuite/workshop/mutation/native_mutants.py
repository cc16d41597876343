"""Mutants of C++ and CUDA: a small table of exchanges in the lines of code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchsuite.workshop.mutation.mutants import Mutation, mutation

TABLE: tuple[tuple[str, str, str], ...] = (
    ("comparison", r"(?<= )<(?= )", "<="),
    ("comparison", r"(?<= )<=(?= )", "<"),
    ("comparison", r"(?<= )>(?= )", ">="),
    ("comparison", r"(?<= )>=(?= )", ">"),
    ("comparison", r"(?<= )==(?= )", "!="),
    ("comparison", r"(?<= )!=(?= )", "=="),
    ("logic", r"(?<= )&&(?= )", "||"),
    ("logic", r"(?<= )\|\|(?= )", "&&"),
    ("sum", r"(?<= )\+(?= )", "-"),
    ("sum", r"(?<= )-(?= )", "+"),
    ("sum", r"(?<= )\+=(?= )", "-="),
    ("sum", r"(?<= )-=(?= )", "+="),
    ("dropped factor", r" \* (?:[\w.]+(?:->\w+)*)(?![\w(\[])", ""),
    ("dropped factor", r"(?<= )\*=(?= )", "="),
    ("off by one", r"(?<= [<>+-] )1\b(?!\.)", "2"),
    ("off by one", r"(?<= = )0(?=;)", "1"),
    ("min for max", r"\bmax\b(?=\()|\bfmaxf\b(?=\()", "min"),
    ("max for min", r"\bmin\b(?=\()|\bfminf\b(?=\()", "max"),
)
"""Operator, what is found, what stands in its place. Operators of two operands have a space on each side in our
sources, so that the angle brackets of templates, pointers and negative numbers are left alone."""

FULL = {"fmaxf": "fminf", "fminf": "fmaxf"}

SILENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'", re.DOTALL)
"""Comments and literals of text."""


def native_mutants(file: str, source: bytes) -> list[Mutation]:
    """Return the mutants of a C++ or CUDA file, in the order of the text.

    Comments, texts, lines of the preprocessor and static assertions are left alone. ``function`` is the last name that
    a line at the left margin defines.

    Example: ``native_mutants("a.cpp", b"bool f(int a) { return a < 1; }\\n")`` has ``a <= 1`` and ``a < 2``
    """
    text = source.decode()
    quiet = SILENT.sub(lambda match: "".join(c if c == "\n" else "\0" for c in match.group()), text)
    return sorted(_of_lines(file, source, quiet), key=lambda mutant: mutant.start)


def _of_lines(file: str, source: bytes, quiet: str) -> Iterator[Mutation]:
    function, at, continued = "", 0, False
    for number, line in enumerate(quiet.splitlines(keepends=True), 1):
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.rstrip().endswith("\\")
        if (defined := re.match(r"[A-Za-z_].*?(\w+)\(", line)) and not line.startswith("static_assert"):
            function = defined.group(1)
        if not directive and not line.lstrip().startswith(("static_assert", "template", "using")):
            for operator, pattern, new in TABLE:
                for match in re.finditer(pattern, line):
                    start = len(quiet[: at + match.start()].encode())
                    end = start + len(match.group().encode())
                    text = FULL.get(match.group(), new)
                    yield mutation(file, source, function, operator, (start, end), text, (number, number))
        at += len(line)
