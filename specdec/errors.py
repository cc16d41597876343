"""The one exception that is meant for the person at the keyboard."""

from __future__ import annotations

from collections.abc import Iterable


class SpecdecError(Exception):
    """A refusal: what was got, what was expected, which choices exist, what to do next.

    The command line and the pytest plugin print its text without a traceback. Anything else that
    escapes the engine is a bug and keeps its traceback.
    """


def unknown(kind: str, got: str, choices: Iterable[str], hint: str = "") -> SpecdecError:
    """The refusal of a name that nobody registered.

    Example: ``unknown("draft", "ngrm", ["ngram", "oracle"])`` reads ``unknown draft 'ngrm'; did you
    mean 'ngram'? choices: ngram, oracle``.
    """
    import difflib

    names = sorted(choices)
    close = difflib.get_close_matches(got, names, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    text = f"unknown {kind} {got!r}{guess} choices: {', '.join(names) or 'none'}"
    return SpecdecError(f"{text}. {hint}" if hint else text)
