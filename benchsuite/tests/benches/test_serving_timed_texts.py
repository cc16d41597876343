"""What was timed is what was certified: servers that answer otherwise when they are not watched are not certified.

Each planted server is right when it is asked as certificates ask, one at a time, whole and with log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from string import ascii_lowercase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.benches.serving.bench import ServingBench, ServingPlan
from benchsuite.benches.serving.certificate import Certificate, GreedyEvidence
from benchsuite.benches.serving.load import Traffic
from benchsuite.benches.serving.timed_texts import TimedEvidence, TimedText, compare_text, timed_evidence
from benchsuite.judge.logprob_ties import Bound
from benchsuite.tests.made_up_servers import MadeUpServer, MadeUpServers, made_up_reply
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply, Token

BOUND = Bound(0.01, 0.0, 100, 0.01)
PROMPTS = tuple(f"question {n}" for n in range(6))
LENGTH = 24
ONE, FOUR = Traffic(concurrency=1), Traffic(concurrency=4)


class Letters:
    """A server of letters: after a text of n letters the n-th is the likeliest, 3 nats before Y and 8 before Z.

    ``wrong``: which requests have Y at ``place``, which is ``gap`` nats behind there; it sees the request and how many
    are being answered.
    """

    def __init__(
        self, wrong: Callable[[Ask, int], bool] = lambda ask, now: False, place: int = 5, gap: float = 3.0
    ) -> None:
        self.wrong, self.place, self.gap = wrong, place, gap
        self.server = MadeUpServer(self.answer)

    def answer(self, ask: Ask) -> Reply:
        start = len(str(ask.prompt))
        tokens = []
        for n in range(ask.max_tokens):
            best = ascii_lowercase[(start + n) % 26]
            second = -0.1 - (self.gap if n == self.place else 3.0)
            tokens.append(Token(best, ord(best), -0.1, ((best, -0.1), ("Y", second), ("Z", -8.1))))
        if ask.max_tokens > self.place and self.wrong(ask, self.server.now):
            tokens[self.place] = replace(tokens[self.place], text="Y", id=ord("Y"), logprob=-0.1 - self.gap)
        text = "".join(token.text for token in tokens)
        return made_up_reply(text, tokens if ask.logprobs else (), len(text))


def certificate_of(plain: Letters, spec: Letters, *loads: Traffic, **ask: Any) -> Certificate:
    """The certificate of a server after it was timed under these loads."""
    names = ("plain", "spec")
    endpoints = tuple(Endpoint(name, f"http://{name}") for name in names)
    plan = ServingPlan(endpoints, tuple(("chat", text) for text in PROMPTS), Ask("", LENGTH, **ask))
    servers = MadeUpServers(dict(zip(names, (plain.server, spec.server), strict=True)))
    bench = ServingBench(plan, servers=servers)
    for load in loads:
        bench.measure(load)
    [found] = bench.certify("float32")
    return found


PLANTED: dict[str, Callable[[Ask, int], bool]] = {
    "lossless only with log-probabilities": lambda ask, now: not ask.logprobs,
    "wrong only in a stream": lambda ask, now: ask.stream,
    "wrong only in a batch": lambda ask, now: now > 1,
    "wrong for one prompt in six": lambda ask, now: ask.stream and ask.prompt == PROMPTS[3],
}


@pytest.mark.parametrize("wrong", PLANTED.values(), ids=PLANTED)
def test_a_server_that_is_right_only_where_it_is_watched_is_a_bug(wrong: Callable[[Ask, int], bool]) -> None:
    """It read "certified: 6 of 6" with no timed text equal to plain's."""
    found = certificate_of(Letters(), Letters(wrong), ONE, FOUR)
    assert found.state == "bug"
    assert "timed texts are not its certified ones" in found.lines[0]
    assert any("Y" in line for line in found.details), "both texts are shown"
    assert certificate_of(Letters(), Letters(wrong)).state == "certified", "which nothing shows if nothing was timed"


def test_an_honest_server_is_certified_with_the_loads_and_the_way_in_which_it_was_timed() -> None:
    found = certificate_of(Letters(), Letters(), ONE, FOUR)
    assert found.state == "certified"
    assert found.lines[0].endswith(
        "; asked for one at a time, whole and with log-probabilities, at most 24 tokens each, with 6 known prompts; 12 "
        "of 12 timed texts (1 at once, 4 at once; streamed, without log-probabilities, known prompts) are the same"
    )
    assert certificate_of(Letters(), Letters()).lines[0].endswith("; no timed text was compared")


def test_timed_texts_that_part_at_a_tie_are_excused_and_counted() -> None:
    found = certificate_of(Letters(gap=0.005), Letters(lambda ask, now: now > 1, gap=0.005), ONE, FOUR)
    assert found.state == "certified"
    assert isinstance(found.evidence, GreedyEvidence)
    assert 0 < found.evidence.timed.ties <= 6
    assert f" are the same, {found.evidence.timed.ties} part from them at a tie" in found.lines[0]


def test_a_plain_server_whose_timed_texts_are_not_its_own_judges_nobody() -> None:
    found = certificate_of(Letters(PLANTED["wrong only in a stream"]), Letters(), ONE)
    assert found.state == "inconclusive"
    assert "plain asked twice is not itself" in found.lines[0]


def test_without_log_probabilities_a_timed_text_that_differs_is_not_judged() -> None:
    def silent(letters: Letters) -> Letters:
        whole = letters.answer
        letters.server.answer = lambda ask: replace(whole(ask), tokens=())
        return letters

    assert certificate_of(silent(Letters()), silent(Letters()), ONE).state == "certified"
    found = certificate_of(silent(Letters()), silent(Letters(PLANTED["wrong only in a stream"])), ONE)
    assert found.state == "differs, not judged"
    assert "6 timed texts are not its certified ones, which was not judged" in found.lines[0]


def token_with(text: str, *top: tuple[str, float]) -> Token:
    return Token(text, None, top[0][1] if top else None, top)


FAR = (("x", -9.0), ("y", -9.5))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a big dog", "tie"),  # " big" is as likely as " cat"
        ("a bird", "not judged"),  # " b" is 0.005 nats behind " c", and nothing is known of what follows it
        ("a zoo", "bug"),
        ("a", "bug"),  # an end is no nearer than the farthest of the list
        ("a cat sat", "not judged"),  # it goes on behind the end
        ("the cat", "not judged"),  # "the" could be just below the list of the first place
    ],
)
def test_a_text_is_judged_by_the_lists_of_the_places_where_it_parts(text: str, kind: str) -> None:
    tokens = [
        token_with("a", ("a", -0.5), ("an", -0.505)),
        token_with(" cat", (" cat", -0.5), (" big", -0.505), ("q", -9.0)),
    ]
    if kind == "bug":
        tokens = [token_with("a", ("a", -0.5), *FAR), token_with(" cat", (" cat", -0.5), *FAR)]
    if text == "a bird":
        tokens[1] = token_with(" cat", (" cat", -0.5), (" c", -0.505))
    assert compare_text(tokens, "a cat", text, BOUND) == kind


def test_a_token_that_reaches_over_the_place_where_texts_part_excuses_it() -> None:
    """The output said "in" and "to"; the text says "inside" by one token, which is as likely as "in" in its place."""
    tokens = [
        token_with("in", ("in", -0.5), ("inside", -0.505), ("q", -9.0)),
        token_with("to", ("to", -0.1), *FAR),
    ]
    assert compare_text(tokens, "into", "inside", BOUND) == "tie"
    far = [replace(tokens[0], top=(("in", -0.5), ("inside", -3.0))), tokens[1]]
    assert compare_text(far, "into", "inside", BOUND) == "bug"
    long = [token_with("in", ("in", -0.5), ("inside", -0.505)), *[token_with("abcd", ("abcd", -0.1), *FAR)] * 4]
    assert compare_text([*long, tokens[1]], "in" + "abcd" * 4 + "to", "in" + "abcd" * 4 + "no", BOUND) == "bug"


@pytest.mark.parametrize(
    ("tokens", "own"),
    [
        ([token_with("a"), token_with("b", ("b", -0.1), *FAR)], "ab"),  # a place without a list
        (
            [token_with("a", ("a", -0.1), *FAR), token_with("\ufffd", ("\ufffd", -0.1), *FAR)],
            "aé",
        ),  # a part of a character
        ([token_with("a", ("a", -0.1), *FAR)], "another"),  # the tokens do not spell the text
        ([], "ab"),
    ],
)
def test_where_tokens_or_their_lists_are_not_known_nothing_is_said(tokens: list[Token], own: str) -> None:
    assert compare_text(tokens, own, "acdc", BOUND) == "not judged"


@given(st.lists(st.sampled_from([" a", "b", " the", "\u0120and", "c"]), min_size=2, max_size=12), st.data())
def test_a_text_that_takes_the_second_likeliest_token_is_a_tie_or_a_bug_by_its_distance(
    words: list[str], data: st.DataObject
) -> None:
    """Names of vocabularies (\u0120 for a blank) are read as text, and blanks at the ends do not matter."""
    place, near = data.draw(st.integers(0, len(words) - 1)), data.draw(st.booleans())
    tokens = [token_with(word, (word, -0.1), ("Q", -4.0), ("R", -9.0)) for word in words]
    gap = 0.009 if near else 0.011
    tokens[place] = token_with(words[place], (words[place], -0.1), ("Q", -0.1 - gap), ("R", -9.0))
    own = "".join(words).replace("\u0120", " ").strip()
    said = "".join([*words[:place], "Q", *words[place + 1 :]]).replace("\u0120", " ")
    assert compare_text(tokens, own, said, BOUND) == ("tie" if near else "bug")


def test_texts_are_the_same_but_for_blanks_and_a_part_of_a_character_at_their_ends() -> None:
    reply = made_up_reply(" a text\n", (), 3)
    texts = ("a text", " a text\ufffd", "a text.")
    timed = [TimedText(0, "1 at once", made_up_reply(text, (), 3)) for text in texts]
    other = TimedText(1, "4 at once", made_up_reply("x", (), 1))
    found, lines = timed_evidence([*timed, other], {0: (reply, ())}, BOUND)
    assert found == TimedEvidence(("1 at once", "4 at once"), 4, unjudged=2)
    assert found.equal == 2
    assert lines == ["prompt 0, timed with 1 at once: 'a text.', certified: ' a text\\n'"]


@pytest.mark.parametrize(("counted", "miscounted"), [(3, 0), (4, 0), (2, 0), (5, 1), (1, 1), (6, 1), (None, 0)])
def test_a_text_has_one_number_of_tokens_but_for_an_end_token(counted: int | None, miscounted: int) -> None:
    """A server whose ``usage`` counts twice in streams alone gained 1.31x."""
    timed = [TimedText(0, "1 at once", made_up_reply("a text", (), counted))]
    found, _ = timed_evidence(timed, {0: (made_up_reply("a text", (), 3), ())}, BOUND)
    assert found == TimedEvidence(("1 at once",), 1, miscounted=miscounted)
