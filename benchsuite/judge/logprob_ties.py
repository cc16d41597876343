"""Greedy outputs of two servers compared by their log-probabilities alone: equal, a certified tie, or a bug.

Nobody sees a server's logits. What can be seen is how far the plain server disagrees with itself: the same prompts,
asked twice (in other batches, with other caches), give log-probabilities that differ by rounding. A difference between
plain and speculative output is rounding's only if, at its place, plain's own list has both tokens so close that such
disagreements can turn them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Literal

from benchsuite.judge.fidelity import SURE
from specdec_plugins.endpoints.replies import Token

FLOORS = {"float32": 0.01, "bfloat16": 0.5, "float16": 0.1, "unknown": 0.01}
"""Nats within which two tokens may change places though plain agrees with itself to the bit: a window of another width
is another sum. A logit from 32 to 64 has steps of 0.25 in bfloat16 and 0.03 in float16, and two may err by one each."""

HALF_A_NAT = 0.5
"""Nats within which servers that relax acceptance take a draft's token for as good as the likeliest."""

DOUBT = {"unknown": HALF_A_NAT}
"""Nats up to which a difference is not judged where the servers' precision is not known: it may be rounding, and it may
be a server that takes the second likeliest token on purpose."""

MOST = 1.0
"""Nats that the bound never exceeds, however much plain disagrees with itself: a factor of e between two tokens."""

OWN = 1e-3
"""Nats by which a greedy server's token may be less likely than another in the server's own list: rounding of text."""

Kind = Literal["tie", "bug", "not judged"]


@dataclass(frozen=True)
class Bound:
    """``nats``: how far apart two tokens may be for a tie. ``seen``: the largest disagreement of plain with itself,
    over ``compared`` log-probabilities; ``floor``: what is allowed without any; ``doubt``: what is not judged."""

    nats: float
    seen: float
    compared: int
    floor: float
    doubt: float = 0.0

    @property
    def sure(self) -> float:
        """How far apart two tokens are that rounding cannot turn, in nats: beyond it is a bug.

        It is more than ``nats`` where these are cut to ``MOST``, and where the precision is not known: what lies
        between is neither excused nor accused.
        """
        return max(self.nats, 2 * self.seen, self.doubt)

    def __str__(self) -> str:
        cut = f", cut to {MOST:g}" if 2 * self.seen > self.nats else ""
        cut += f"; up to {self.sure:.3g} is not judged" if self.sure > self.nats else ""
        cut += ": name the servers' precision (--specdec-certify)" if self.sure == self.doubt > self.nats else ""
        return (
            f"two tokens within {self.nats:.3g} nats may change places: twice the largest disagreement of plain with "
            f"itself, {self.seen:.2g} over {self.compared:,} log-probabilities, and at least {self.floor:g}{cut}"
        )


@dataclass(frozen=True)
class ServedDifference:
    """The first place where two outputs differ, and what the log-probabilities say of it.

    ``place``: tokens before it; ``gap``: how much likelier plain's list finds its own token, at least, in nats; None
    where it has no list. ``lists``: both servers' lists. ``before``: the end of the text before that place.
    """

    prompt: int
    place: int
    plain: str
    other: str
    kind: Kind
    gap: float | None
    lists: tuple[tuple[tuple[str, float], ...], tuple[tuple[str, float], ...]]
    before: str = ""

    def __str__(self) -> str:
        gap = "no list" if self.gap is None else f"{self.gap:.3g} nats"
        found = (
            f"prompt {self.prompt}, token {self.place}: plain {self.plain!r}, here {self.other!r}: {self.kind}, {gap}"
        )
        if self.kind == "tie":
            return found
        plain, other = (", ".join(f"{text!r} {chance:.3f}" for text, chance in one) or "none" for one in self.lists)
        return f"{found}; after {self.before!r}; plain's list: {plain}; the other's: {other}"


def same_token(one: Token, other: Token) -> bool:
    """Whether two tokens are the same: by their numbers where both have one, else by their texts."""
    return one.id == other.id if one.id is not None and other.id is not None else one.text == other.text


def parting(one: Sequence[Token], other: Sequence[Token]) -> int:
    """Return the number of tokens that two outputs have in common from their beginning."""
    shared = min(len(one), len(other))
    return next((place for place in range(shared) if not same_token(one[place], other[place])), shared)


def bound_of(pairs: Sequence[tuple[Sequence[Token], Sequence[Token]]], dtype: str = "unknown") -> Bound:
    """Return the bound that two runs of the plain server set: for each prompt, its tokens in both.

    Compared are the log-probabilities of the same text at the same place, after equal tokens. Each of two tokens may
    err as much as the worst that was seen, hence twice; never above ``MOST``.
    """
    worst, compared = 0.0, 0
    for one, other in pairs:
        for place in range(min(parting(one, other) + 1, len(one), len(other))):
            apart = _apart(one[place], other[place])
            compared += len(apart)
            worst = max([worst, *apart])
    return bound_from(worst, compared, dtype)


def bound_from(seen: float, compared: int, dtype: str) -> Bound:
    """Return the bound of a disagreement of ``seen`` nats over ``compared`` log-probabilities.

    Example: ``bound_from(0.25, 9, "float32").nats`` is 0.5
    """
    floor = FLOORS[dtype]
    return Bound(min(MOST, max(2 * seen, floor)), seen, compared, floor, DOUBT.get(dtype, 0.0))


def _apart(one: Token, other: Token) -> list[float]:
    """How far two lists are apart, in nats, at each text that names one token of each."""
    theirs = dict(other.top)
    clear = [(text, chance) for text, chance in one.top if text in theirs and not unclear(one.top, text)]
    return [abs(chance - theirs[text]) for text, chance in clear if not unclear(other.top, text)]


def unclear(top: Sequence[tuple[str, float]], text: str) -> bool:
    """Whether a text may be several tokens: one that a list has twice, or a part of a character (U+FFFD)."""
    return "\ufffd" in text or sum(listed == text for listed, _ in top) > 1


def unclear_list(top: Sequence[tuple[str, float]]) -> bool:
    """Whether any text of a list may be several tokens."""
    texts = [text for text, _ in top]
    return len({*texts}) < len(texts) or any("\ufffd" in text for text in texts)


def drifts(plain: Sequence[Token], other: Sequence[Token], bound: Bound) -> list[tuple[int, float]]:
    """Return the places, up to the first different token, whose lists are further apart than the bound, and how far.

    The tokens before are equal, so the lists should be: a cache that is wrong after a rollback shows here first.
    """
    shared = range(min(parting(plain, other) + 1, len(plain), len(other)))
    found = [(place, max([0.0, *_apart(plain[place], other[place])])) for place in shared]
    return [(place, nats) for place, nats in found if nats > bound.sure]


def compare_outputs(
    prompt: int, plain: Sequence[Token], other: Sequence[Token], bound: Bound
) -> ServedDifference | None:
    """Return the first difference of two outputs; None if they are equal.

    A tie: plain's list at that place has the other token, and within the bound; so has the other's own list, if it has
    both, and it finds none likelier than its own. A bug: one of the lists has them further apart than ``bound.sure``; a
    token that plain's list lacks is as far as the list's last one at least. Not judged: plain has no list there, the
    other token could be just below its end, a text may be several tokens of which only some are within the bound, plain
    disagrees with itself as much, or one of both did not choose the likeliest of its own list (penalties, relaxed
    acceptance). An output that ends earlier is a bug if even the second likeliest token is beyond: then no end token
    can be nearer.
    """
    place = parting(plain, other)
    if place == len(plain) == len(other):
        return None
    if place >= len(plain) or place >= len(other):
        return _ended(prompt, plain, other, place, bound)
    mine, its = plain[place], other[place]
    kind, gap = _judged(mine, its.text, bound)
    if _chose_otherwise(mine, bound.nats):
        kind = "not judged"
    own = dict(its.top)
    if (
        kind == "tie"
        and not (unclear(its.top, mine.text) or unclear(its.top, its.text))
        and {mine.text, its.text} <= own.keys()
    ):
        gap = max(gap or 0.0, abs(own[mine.text] - own[its.text]))
        kind = _kind(gap, bound)
    if kind == "tie" and _chose_otherwise(its, OWN):
        kind = "not judged"
    return ServedDifference(prompt, place, mine.text, its.text, kind, gap, (mine.top, its.top), _before(plain, place))


def _chose_otherwise(token: Token, nats: float) -> bool:
    """Whether a greedy server's own token is less likely than another of its list, by more than ``nats``.

    With penalties it chooses by other numbers, which its list does not show; a relaxed one does so on purpose.
    """
    own = [chance for text, chance in token.top if text == token.text]
    own += [token.logprob] if token.logprob is not None else []
    return bool(own) and bool(token.top) and token.top[0][1] - max(own) > nats


def _before(tokens: Sequence[Token], place: int) -> str:
    return "".join(token.text for token in tokens[:place])[-60:]


def _kind(gap: float, bound: Bound) -> Kind:
    """What two tokens so far apart in a list are to each other."""
    return "tie" if gap <= bound.nats else "bug" if gap > bound.sure else "not judged"


def _judged(mine: Token, text: str, bound: Bound, chance: float | None = None) -> tuple[Kind, float | None]:
    """What plain's list at a place says of another token's text; ``chance``: its log-probability if known."""
    if not mine.top:
        return "not judged", None
    best = mine.top[0][1]
    gaps = [best - value for listed, value in mine.top if listed == text] if chance is None else [best - chance]
    if gaps:
        kind = _kind(max(gaps), bound)
        several = chance is None and unclear(mine.top, text)
        return ("not judged" if kind == "bug" and several else kind), max(gaps)
    gap = best - mine.top[-1][1]
    return ("bug" if gap > bound.sure else "not judged"), gap


def _ended(prompt: int, plain: Sequence[Token], other: Sequence[Token], place: int, bound: Bound) -> ServedDifference:
    """One output goes on where the other has ended; whose token it is does not matter to how far the next one is."""
    longer = plain if len(plain) > place else other
    going = longer[place]
    texts = (going.text, "(end)") if longer is plain else ("(end)", going.text)
    gap = going.top[0][1] - going.top[1][1] if len(going.top) > 1 else None
    kind: Kind = "bug" if gap is not None and gap > bound.sure else "not judged"
    lists = (going.top, ()) if longer is plain else ((), going.top)
    return ServedDifference(prompt, place, *texts, kind, gap, lists, _before(longer, place))


def score_outputs(prompt: int, scored: Sequence[Token], other: Sequence[Token], bound: Bound) -> list[ServedDifference]:
    """Return every token of an output that plain, reading this very text, would not have chosen.

    ``scored``: the output's tokens with plain's lists after each's own beginning (``echo``), so that what follows a
    first difference is judged too.
    """
    found = []
    for place, (mine, its) in enumerate(zip(scored, other, strict=False)):
        if mine.top and mine.top[0][0] != mine.text:
            kind, gap = _judged(mine, mine.text, bound, mine.logprob)
            likeliest, lists = mine.top[0][0], (mine.top, its.top)
            found.append(ServedDifference(prompt, place, likeliest, its.text, kind, gap, lists, _before(scored, place)))
    return found


def smallest_rate(outputs: Sequence[Sequence[Token]], bound: Bound) -> float | None:
    """Return the N for which one changed token in N is found with the probability ``SURE``; None if none is.

    A change to the second likeliest token, or to a less likely one, is found where those two are apart for sure.

    Example: over 1,000 such places it is 218.
    """
    lists = [token.top for output in outputs for token in output if len(token.top) > 1]
    judged = sum(top[0][1] - top[1][1] > bound.sure for top in lists)
    # 1 - (1 - 1/N)^judged = SURE
    return 1 / (1 - (1 - SURE) ** (1 / judged)) if judged else None


def relaxed_share(outputs: Sequence[Sequence[Token]], bound: Bound) -> tuple[int, float | None]:
    """Return how many places have their two likeliest tokens within ``HALF_A_NAT``, and the share of them at which a
    server that takes the second one is found with ``SURE``; None if none is: all of them may be ties.

    Example: where 100 of them are beyond the bound it is 0.045.
    """
    gaps = [token.top[0][1] - token.top[1][1] for output in outputs for token in output if len(token.top) > 1]
    close = [gap for gap in gaps if gap <= HALF_A_NAT]
    seen = sum(gap > bound.nats for gap in close)
    # 1 - (1 - share)^seen = SURE
    return len(close), 1 - (1 - SURE) ** (1 / seen) if seen else None


def tokens_needed(one_in: float, share: float) -> float:
    """Return how many tokens find one changed token in ``one_in`` with ``SURE``, if ``share`` of places are judged.

    Example: ``tokens_needed(200, 1.0)`` is 919.
    """
    return log(1 - SURE) / log(1 - share / one_in)
