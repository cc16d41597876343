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
    """The error for a name that is not registered.

    Example: ``unknown("draft", "ngrm", ["ngram", "oracle"])`` reads ``unknown draft 'ngrm'; did you
    mean 'ngram'? choices: ngram, oracle``.
    """
    import difflib

    names = sorted(choices)
    close = difflib.get_close_matches(got, names, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    text = f"unknown {kind} {got!r}{guess} choices: {', '.join(names) or 'none'}"
    return SpecdecError(f"{text}. {hint}" if hint else text)
