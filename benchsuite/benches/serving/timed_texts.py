"""Texts that were timed, beside those that a certificate is of: a server may answer otherwise when it is not watched.

Requests for certified answers are sent one at a time, not streamed, with log-probabilities; timed requests are
streamed, several at once, without. A server may be lossless in the first way alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchsuite.judge.logprob_ties import Bound, Kind
from specdec_plugins.endpoints.replies import Reply, Token

LONGEST = 16
"""Characters of the longest token that is thought of."""

MILD: tuple[Kind, ...] = ("tie", "not judged", "bug")
"""From what excuses a difference to what proves it."""


@dataclass(frozen=True)
class AskedFor:
    """How certified outputs are asked for: ``known`` prompts, which the server has read before, and ``new`` ones, which
    it has not; ``most``: tokens of an answer."""

    most: int
    known: int = 0
    new: int = 0

    @property
    def text(self) -> str:
        """The conditions under which a certificate holds."""
        new = f" and {self.new} new" if self.new else ""
        return (
            f"asked for one at a time, whole and with log-probabilities, at most {self.most} tokens each, with "
            f"{self.known} known{new} prompts"
        )


@dataclass(frozen=True)
class TimedText:
    """What an endpoint answered to the prompt at a place, under a load (``4 at once``), while it was timed."""

    prompt: int
    load: str
    reply: Reply


@dataclass(frozen=True)
class TimedEvidence:
    """How many ``texts`` were timed under ``loads``, and how many of them are no certified text of the same server.

    ``ties``: texts that part from the certified one where two tokens may change places; ``wrong``: where they may not;
    ``unjudged``: where nothing is known. ``miscounted``: texts that are certified ones and have another number of
    tokens, by more than an end token.
    """

    loads: tuple[str, ...] = ()
    texts: int = 0
    ties: int = 0
    wrong: int = 0
    unjudged: int = 0
    miscounted: int = 0

    @property
    def equal(self) -> int:
        """Texts that are certified ones to the letter."""
        return self.texts - self.ties - self.wrong - self.unjudged

    @property
    def text(self) -> str:
        """The numbers, and how the texts were asked for."""
        if not self.texts:
            return "no timed text was compared"
        ties = f", {self.ties} part from them at a tie" if self.ties else ""
        ways = f"{', '.join(self.loads)}; streamed, without log-probabilities, known prompts"
        return f"{self.equal} of {self.texts} timed texts ({ways}) are the same{ties}"


def timed_evidence(
    timed: Sequence[TimedText], certified: Mapping[int, tuple[Reply, Sequence[Token]]], bound: Bound | None
) -> tuple[TimedEvidence, list[str]]:
    """Compare timed texts with the certified ones of the same server; return the numbers, and a line for each kind.

    ``certified``: by the places of prompts, the reply and its tokens with the lists that judge them; ``bound``: how far
    apart two tokens of a list may be that change places, None where no list judges.
    """
    kinds, miscounted = Counter[Kind | None](), 0
    first: dict[Kind, TimedText] = {}
    for one in timed:
        kind = _kind_of(one, certified, bound)
        kinds[kind] += 1
        miscounted += kind is None and _miscounted(one.reply, certified[one.prompt][0])
        if kind in ("bug", "not judged"):
            first.setdefault(kind, one)
    loads = tuple(dict.fromkeys(one.load for one in timed))
    found = TimedEvidence(loads, len(timed), kinds["tie"], kinds["bug"], kinds["not judged"], miscounted)
    lines = [
        f"prompt {one.prompt}, timed with {one.load}: {one.reply.text[:60]!r}, certified: "
        f"{certified[one.prompt][0].text[:60]!r}"
        for one in first.values()
        if one.prompt in certified
    ]
    return found, lines


def _kind_of(
    one: TimedText, certified: Mapping[int, tuple[Reply, Sequence[Token]]], bound: Bound | None
) -> Kind | None:
    """What a text is beside the certified one; None for the same."""
    if one.prompt not in certified:
        return "not judged"
    reply, tokens = certified[one.prompt]
    if _bare(one.reply.text) == _bare(reply.text):
        return None
    return "not judged" if bound is None else compare_text(tokens, reply.text, one.reply.text, bound)


def _miscounted(timed: Reply, certified: Reply) -> bool:
    """Whether two replies of one text have numbers of tokens that an end token does not explain."""
    counts = timed.counted, certified.counted
    return counts[0] is not None and counts[1] is not None and abs(counts[0] - counts[1]) > 1


def _bare(text: str) -> str:
    """A text without what one way of asking has at its ends and another has not: blanks, a part of a character."""
    return text.rstrip("\N{REPLACEMENT CHARACTER}").strip()


def compare_text(tokens: Sequence[Token], own: str, text: str, bound: Bound) -> Kind:
    """Return how a text, of unknown tokens, parts from an output of the text ``own``, whose ``tokens`` have lists.

    A tie: another token of a list, within the bound, begins what follows instead, at the place where the texts part or
    at one so little before it that a token may reach over it. A bug: no token that could is nearer than ``bound.sure``.
    Not judged otherwise, and where the tokens do not spell their text.

    Example: ``compare_text([Token("a", top=(("a", -0.6), ("b", -0.7)))], "a", "b", bound)`` is ``"tie"``.
    """
    pieces = [_shown(token.text) for token in tokens]
    spelt = "".join(pieces)
    begin = spelt[: len(spelt) - len(spelt.lstrip())]
    if not spelt.startswith(begin + _bare(own)):
        return "not judged"
    # One way of asking may have the blanks at the beginning, and another not.
    return _mildest(_parting(tokens, pieces, one, bound) for one in (text, begin + text.lstrip()))


def _mildest(kinds: Iterable[Kind]) -> Kind:
    return min(kinds, key=MILD.index)


def _parting(tokens: Sequence[Token], pieces: Sequence[str], text: str, bound: Bound) -> Kind:
    """What the lists say at the place where a text parts from the pieces, and at those little before it."""
    at, places = 0, list[tuple[int, Token, str]]()
    for token, piece in zip(tokens, pieces, strict=True):
        places.append((at, token, piece))
        if not text.startswith(piece, at):
            break
        at += len(piece)
    else:
        return "not judged"  # it goes on where the other ended, and nothing says how near that was
    near = [place for place in places if at - place[0] <= LONGEST]
    return _mildest(_otherwise(token, piece, text[start:], bound) for start, token, piece in near)


def _otherwise(token: Token, piece: str, rest: str, bound: Bound) -> Kind:
    """Whether a list allows that another token than its own begins the ``rest`` of a text: ``bug`` if it does not."""
    if len(token.top) < 2 or "\N{REPLACEMENT CHARACTER}" in piece:
        return "not judged"
    best = token.top[0][1]
    others = [(name, best - chance) for listed, chance in token.top if (name := _shown(listed)) and name != piece]
    fitting = [gap for name, gap in others if rest.startswith(name)]
    if any(gap <= bound.nats for gap in fitting):
        return "tie"
    below = best - token.top[-1][1]  # a token that the list lacks is as far at least
    near = [*(fitting if rest else (gap for _, gap in others)), below]  # an end token has no text
    return "not judged" if min(near) <= bound.sure else "bug"


def _shown(name: str) -> str:
    """The text of a token that may be given by its name in a vocabulary."""
    return name.replace("\u0120", " ").replace("\u2581", " ").replace("\u010a", "\n")
