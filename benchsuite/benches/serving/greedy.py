"""Greedy outputs beside the plain server's: token by token, by its own lists or by those of a local judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from benchsuite.benches.serving.asked import Connect, Read, ServedAnswers, ask_all
from benchsuite.benches.serving.certificate import Certificate, GreedyEvidence, Reader
from benchsuite.benches.serving.echoes import echoed
from benchsuite.benches.serving.kept_answers import KeptAnswers, known_over_new
from benchsuite.benches.serving.timed_texts import AskedFor, TimedEvidence, TimedText, timed_evidence
from benchsuite.judge import logprob_ties
from benchsuite.judge.logprob_ties import Bound, ServedDifference
from benchsuite.judge.tie_gaps import Near, gap_changes, ties_p
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply, Token

OTHER_BATCH = 4
"""Requests at once in plain's second run, whose batches are others than those of one at a time."""

FURTHEST = Bound(logprob_ties.MOST, 0.0, 0, 0.0)
"""What rounding does not exceed between a server's log-probabilities of a text that it wrote and read."""

Outputs = tuple[Sequence[Token], Sequence[Token]]
"""The tokens of one text in two runs of a server."""


@dataclass(frozen=True)
class Greedy:
    """The plain ``server``'s greedy answers to ``asks``, and certificates by them.

    ``dtype``: the servers' precision, or "unknown".
    """

    connect: Connect
    server: Endpoint
    asks: Sequence[Ask]
    asked_for: AskedFor
    dtype: str

    @cached_property
    def plain(self) -> ServedAnswers:
        """The answers, one at a time."""
        return ask_all(self.connect, self.server, self.asks)

    @cached_property
    def _twice(self) -> list[Outputs]:
        """Each answer beside a second one, several at a time."""
        first, second = self.plain, ask_all(self.connect, self.server, self.asks, OTHER_BATCH)
        both = zip(first.replies, second.replies, strict=True)
        return [(one.tokens, two.tokens) for one, two in both if one and two]

    @cached_property
    def _read(self) -> list[Outputs]:
        """Each answer beside the same text as the server reads it, all of it at once, as a wide window is."""
        return [
            (reply.tokens, found)
            for ask, reply in zip(self.asks, self.plain.replies, strict=True)
            if reply and (found := echoed(self.connect, self.server, ask, reply))
        ]

    @cached_property
    def bound(self) -> Bound:
        """How far apart two tokens may be that change places."""
        return logprob_ties.bound_of([*self._twice, *self._read], self.dtype)

    @cached_property
    def _changes(self) -> list[float]:
        return gap_changes([*self._twice, *self._read])

    def unlike_itself(self, timed: Sequence[TimedText]) -> tuple[str, ...]:
        """Return a line for each answer, and each timed text, of the plain server that rounding does not explain."""
        bound = logprob_ties.bound_of(self._twice, self.dtype)
        own = [logprob_ties.compare_outputs(n, *pair, bound) for n, pair in enumerate(self._twice)]
        known = {n: (reply, reply.tokens) for n, reply in enumerate(self.plain.replies) if reply}
        of_plain, lines = timed_evidence(timed, known, bound)
        otherwise = [
            f"prompt {n}, token {place}: it reads its own text {nats:.3g} nats otherwise than it wrote it"
            for n, pair in enumerate(self._read)
            for place, nats in logprob_ties.drifts(*pair, FURTHEST)
        ]
        return (
            *(str(one) for one in own if one and one.kind == "bug"),
            *(lines if of_plain.wrong else ()),
            *otherwise,
        )

    def certificate(self, name: str, other: ServedAnswers, timed: Sequence[TimedText]) -> Certificate:
        """Return the certificate of an endpoint's answers and timed texts."""
        both, bound = self._both(other), self.bound
        known = {n: (b, b.tokens) for n, _, b in both}
        if not any(a.tokens for _, a, _ in both) or not any(b.tokens for _, _, b in both):
            return self._texts_alone(name, other, timed_evidence(timed, known, None))
        of_timed, apart = timed_evidence(timed, known, bound)
        differences = [found for n, a, b in both if (found := _compared(n, a, b, bound))]
        scored = list[ServedDifference]()
        judged = dict[int, Sequence[Token]]()
        for n, a, b in both:
            read = echoed(self.connect, self.server, self.asks[n], b) if b.tokens else None
            if read is not None:
                scored += logprob_ties.score_outputs(n, read, b.tokens, bound)
            # What follows a first difference is judged only where plain reads it.
            shared = 0 if _silent(b) else logprob_ties.parting(a.tokens, b.tokens) + 1
            judged[n] = a.tokens[:shared] if read is None else read
        drifted = [(n, *one) for n, a, b in both for one in logprob_ties.drifts(a.tokens, b.tokens, bound)]
        # A first difference that was scored is the same difference.
        places = {(one.prompt, one.place) for one in differences}
        every = [*differences, *(one for one in scored if (one.prompt, one.place) not in places)]
        kinds = {kind: [one for one in every if one.kind == kind] for kind in ("bug", "not judged", "tie")}
        near = _near(judged, kinds["tie"], bound)
        lists = [*judged.values()]
        close, relaxed = logprob_ties.relaxed_share(lists, bound)
        evidence = replace(
            self._evidence("plain", other, len(both) - len(differences)),
            tokens=sum(map(len, lists)),
            wrong=len(kinds["bug"]),
            ties=len(kinds["tie"]),
            near=len(near),
            ties_p=ties_p(near, self._changes),
            unjudged=len(kinds["not judged"]),
            one_in=logprob_ties.smallest_rate(lists, bound),
            close=close,
            relaxed=relaxed,
            timed=of_timed,
        )
        prompts = [str(ask.prompt) for ask in self.asks]
        details = [
            f"{one}; the prompt: {prompts[one.prompt][-60:]!r}" for of_kind in kinds.values() for one in of_kind[:3]
        ]
        if drifted:
            prompt, place, nats = max(drifted, key=lambda one: one[2])
            details.append(
                f"{len(drifted)} lists of equal texts are further apart than the bound, by up to {nats:.3g} nats at "
                f"prompt {prompt}, token {place}: the tokens agree and the probabilities do not; see the cache after a "
                "rollback"
            )
        return Certificate(name, evidence, (str(bound), *details, *apart))

    def read_by(self, read: Read, endpoint: Endpoint, other: ServedAnswers, timed: Sequence[TimedText]) -> Certificate:
        """Return the certificate by a reader: honest tokens lie as far from its likeliest as plain's own."""
        both = self._both(other)
        of_plain = [tokens for n, a, _ in both if (tokens := read(self.asks[n], a))]
        of_other = {n: tokens for n, _, b in both if (tokens := read(self.asks[n], b))}
        evidence = self._evidence("judge", other, sum(a.text == b.text for _, a, b in both))
        if not of_plain or not of_other:
            unread = (endpoint if of_plain else self.server).name
            return Certificate(endpoint.name, replace(evidence, unreadable=unread))
        apart = [token.top[0][1] - (token.logprob or 0.0) for tokens in of_plain for token in tokens]
        bound = logprob_ties.bound_from(max(apart) / 2, len(apart), self.dtype)
        every = [one for n, tokens in of_other.items() for one in logprob_ties.score_outputs(n, tokens, tokens, bound)]
        bugs, doubtful = ([one for one in every if one.kind == kind] for kind in ("bug", "not judged"))
        of_timed, lines = timed_evidence(timed, {n: (b, of_other.get(n, ())) for n, _, b in both}, bound)
        lists = [*of_other.values()]
        close, relaxed = logprob_ties.relaxed_share(lists, bound)
        evidence = replace(
            evidence,
            timed=of_timed,
            tokens=sum(map(len, lists)),
            wrong=len(bugs),
            unjudged=len(doubtful),
            one_in=logprob_ties.smallest_rate(lists, bound),
            close=close,
            relaxed=relaxed,
            unread=len(both) - len(of_other),
        )
        near = (
            f"a token within {bound.nats:.3g} nats of the judge's likeliest may be chosen: plain's own lie up to "
            f"{max(apart):.2g} from it"
        )
        return Certificate(endpoint.name, evidence, (near, *map(str, [*bugs, *doubtful][:3]), *lines))

    def _texts_alone(self, name: str, other: ServedAnswers, timed: tuple[TimedEvidence, list[str]]) -> Certificate:
        both = self._both(other)
        differ = [n for n, a, b in both if a.text != b.text]
        evidence = self._evidence("none", other, len(both) - len(differ))
        which = f"the texts of prompts {', '.join(map(str, differ))} are not plain's"
        lines = (*((which,) if differ else ()), *timed[1])
        return Certificate(name, replace(evidence, unjudged=len(differ), timed=timed[0]), lines)

    def _evidence(self, reader: Reader, other: ServedAnswers, equal: int) -> GreedyEvidence:
        failures = (*self.plain.failures, *other.failures)
        both = len(self._both(other))
        kept = KeptAnswers(*(known_over_new(answers, self.asked_for) for answers in (other, self.plain)))
        return GreedyEvidence(reader, len(self.asks), both, equal, failures, asked_for=self.asked_for, kept=kept)

    def _both(self, other: ServedAnswers) -> list[tuple[int, Reply, Reply]]:
        """The prompts that both answered, by their places."""
        pairs = enumerate(zip(self.plain.replies, other.replies, strict=True))
        return [(n, a, b) for n, (a, b) in pairs if a and b]


def _near(judged: Mapping[int, Sequence[Token]], ties: Sequence[ServedDifference], bound: Bound) -> list[Near]:
    """Every place at which two tokens may change places, and whether they did."""
    changed = {(one.prompt, one.place): one.gap or 0.0 for one in ties}
    gaps = {
        (n, place): token.top[0][1] - token.top[1][1]
        for n, tokens in judged.items()
        for place, token in enumerate(tokens)
        if len(token.top) > 1
    }
    kept = [(gap, False) for at, gap in gaps.items() if gap <= bound.nats and at not in changed]
    return [*kept, *((gap, True) for gap in changed.values())]


def _silent(reply: Reply) -> bool:
    """Whether a reply has a text and no log-probabilities, so that its tokens are unknown."""
    return bool(reply.text) and not reply.tokens


def _compared(prompt: int, plain: Reply, other: Reply, bound: Bound) -> ServedDifference | None:
    """The first difference of two replies; of texts alone where one has no log-probabilities."""
    if not (_silent(plain) or _silent(other)):
        found = logprob_ties.compare_outputs(prompt, plain.tokens, other.tokens, bound)
        if found or plain.text == other.text:
            return found
        # Tokens of the same numbers may be written otherwise, and the text is what a user gets.
        pairs = zip(plain.tokens, other.tokens, strict=True)
        place, (one, two) = next(
            ((n, pair) for n, pair in enumerate(pairs) if pair[0].text != pair[1].text), (0, (plain, other))
        )
        return ServedDifference(prompt, place, one.text[:60], two.text[:60], "not judged", None, ((), ()))
    if plain.text == other.text:
        return None
    return ServedDifference(prompt, 0, plain.text[:60], other.text[:60], "not judged", None, ((), ()))
