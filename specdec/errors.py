"""The one exception whose text is meant for the user, and those of others that cost themselves alone."""

from __future__ import annotations

from collections.abc import Iterable


class SpecdecError(Exception):
    """A refusal; its text says what was given, what was expected, which choices exist and what to do next.

    The command line and the pytest plugin print the text without a traceback. Any other exception that leaves
    the engine is a bug and keeps its traceback.
    """


RAISED = (Exception, SystemExit)
"""What a peer, a draft, another plugin or a judge may raise that costs it alone. An interrupt still ends the run."""


def unknown(kind: str, got: str, choices: Iterable[str], hint: str = "") -> SpecdecError:
    """The error for a name that is not registered: up to three names like it, the nearest first, then all.

    Example: ``unknown("draft", "ngrm", ["ngram", "oracle"])`` reads ``unknown draft 'ngrm'; did you
    mean 'ngram'? choices: ngram, oracle``.
    """
    import difflib

    names = sorted(choices)
    *others, last = [*map(repr, difflib.get_close_matches(got, names))] or [""]
    near = f"{', '.join(others)} or {last}" if others else last
    guess = f"; did you mean {near}?" if near else ";"
    text = f"unknown {kind} {got!r}{guess} choices: {', '.join(names) or 'none'}"
    return SpecdecError(f"{text}. {hint}" if hint else text)


def folded(text: str, width: int | None = None) -> str:
    """Return a text in lines of at most ``width`` characters, cut at blanks; the rest of a longer line is indented.

    ``width``: by default the terminal's, or 100 where there is none. A word that is longer keeps a line of its own.

    Example: ``folded("unknown draft 'ngrm'", 15)`` is ``"unknown draft\\n  'ngrm'"``.
    """
    import shutil
    import textwrap

    most = width or shutil.get_terminal_size((100, 24)).columns
    lines = [
        textwrap.fill(line, most, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    ]
    return "\n".join(lines)
