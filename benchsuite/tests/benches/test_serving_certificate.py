"""Certificates: the verdict follows from the numbers alone, and the sentence has each that decides."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, nextafter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchsuite.benches.serving.asked import ServedAnswers
from benchsuite.benches.serving.certificate import (
    NAMES,
    Certificate,
    GreedyEvidence,
    SampledEvidence,
    State,
    UnsteadyPlain,
)
from benchsuite.benches.serving.certified import certify
from benchsuite.benches.serving.kept_answers import KeptAnswers, known_over_new
from benchsuite.benches.serving.timed_samples import TimedSamples
from benchsuite.benches.serving.timed_texts import AskedFor, TimedEvidence
from benchsuite.judge.fidelity import FALSE_ALARM
from benchsuite.judge.transforms import FALSE_ALARM_OF_RATIOS
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure, Reply, Token

greedy_of_eight = partial(GreedyEvidence, asked_for=AskedFor(8, 4, 4))
sampled_of_eight = partial(SampledEvidence, asked_for=AskedFor(8, 4, 4))
"""Evidence of answers of at most eight tokens, of which none was timed."""

FROM_BEST: tuple[State, ...] = ("certified", "inconclusive", "differs, not judged", "bug")

SMALL = st.integers(0, 3)


@st.composite
def greedy(draw: st.DrawFn) -> GreedyEvidence:
    both = draw(st.integers(1, 5))
    return greedy_of_eight(
        draw(st.sampled_from(["plain", "judge", "none"])),
        both + draw(SMALL),
        both,
        draw(st.integers(0, both)),
        tokens=100,
        wrong=draw(SMALL),
        near=draw(st.integers(3, 9)),
        ties=draw(SMALL),
        unjudged=draw(SMALL),
        one_in=draw(st.none() | st.floats(2, 1e4)),
        unread=draw(st.integers(0, both)),
    )


@pytest.mark.slow
@given(greedy(), st.sampled_from(["wrong", "unjudged", "asked", "unread"]))
def test_more_of_what_speaks_against_a_server_never_makes_its_verdict_better(found: GreedyEvidence, worse: str) -> None:
    assume(worse != "unread" or found.unread < found.both)
    more = replace(found, **{worse: getattr(found, worse) + 1})
    assert FROM_BEST.index(more.state) >= FROM_BEST.index(found.state)


@pytest.mark.slow
@given(greedy())
def test_a_certificate_is_given_where_all_was_answered_and_judged_and_a_change_would_be_found(
    found: GreedyEvidence,
) -> None:
    faults = (found.wrong, found.unjudged, found.asked - found.both, found.unread and found.both - found.equal)
    blind = found.reader != "none" and found.one_in is None
    assert (found.state == "certified") == (not any(faults) and not blind)
    assert (found.state == "bug") == (found.wrong > 0)


@pytest.mark.slow
@given(greedy())
def test_the_sentence_begins_with_the_verdict_and_has_each_number_that_decides(found: GreedyEvidence) -> None:
    first = Certificate("spec", found, ("a detail",)).lines[0]
    assert first.startswith(f"spec: {NAMES[found.state]}: ")
    for number, clause in (
        (found.wrong, "tokens are not"),
        (found.unjudged, "differences not judged"),
        (found.asked - found.both, f"of {found.asked} prompts were not answered by both"),
    ):
        assert (f"{number} {clause}" in first) == (number > 0)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 3), st.none() | st.floats(1.01, 4))
def test_a_sampled_verdict_is_a_bug_by_its_p_values_alone(
    even: float, heat: float, left: int, factor: float | None
) -> None:
    found = sampled_of_eight("plain", 9, left, 500, even, heat, factor, (900.0, 300.0, 500.0))
    likely = replace(found, even=1.0, ratios=1.0)
    assert likely.state == ("certified" if factor and not left else "inconclusive")
    assert found.state in (likely.state, "bug")
    assert replace(found, even=0.0).state == replace(found, ratios=0.0).state == "bug"


ANSWERED = greedy_of_eight("plain", 4, 4, 4, tokens=1200, one_in=261.4, close=40, relaxed=0.123)
READ = replace(ANSWERED, reader="judge")
ALONE = greedy_of_eight("none", 4, 4, 4)
PLACES = "of the 40 places whose two likeliest tokens are within 0.5 nats"
POWER = f"one changed token in 261 is found with 99 %, and {PLACES} a server that takes the second at 12%"
ASKED = (
    "asked for one at a time, whole and with log-probabilities, at most 8 tokens each, with 4 known and 4 new prompts"
)
SILENT = "no log-probabilities were given"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (ANSWERED, f"certified: 0 of 1,200 judged tokens differ, 0 ties; 4 of 4 outputs are plain's; {POWER}"),
        (READ, f"certified: 4 of 4 outputs are plain's, 4 read by the local judge, 1,200 tokens; {POWER}"),
        (ALONE, f"certified: 4 of 4 texts are plain's; {SILENT}"),
        (
            replace(ANSWERED, one_in=None),
            "INCONCLUSIVE: 0 of 1,200 judged tokens differ, 0 ties; 4 of 4 outputs are plain's; nothing would be found",
        ),
        (
            replace(ANSWERED, equal=2, wrong=3, ties=2, near=9),
            "FAILED: 3 tokens are not plain's; 5 of 1,200 judged tokens differ (0.42%), 2 ties; 2 of 4 outputs are "
            "plain's; " + POWER,
        ),
        (
            replace(READ, equal=1, wrong=3),
            "FAILED: 3 tokens are not the judge's; 1 of 4 outputs are plain's, 4 read by the local judge, 1,200 "
            "tokens; " + POWER,
        ),
        (
            replace(ANSWERED, relaxed=None),
            "certified: 0 of 1,200 judged tokens differ, 0 ties; 4 of 4 outputs are plain's; one changed token in 261 "
            f"is found with 99 %, and {PLACES} no server that takes the second is sure to be found",
        ),
        (
            replace(ANSWERED, equal=0, ties=40, near=44, ties_p=9e-7),
            "differs, not judged: 40 of 44 places where a tie can be are ties, and not as plain's own differences are, "
            "which fall off with the distance of two tokens (p=9e-07); 40 of 1,200 judged tokens differ (3.3%), 40 "
            "ties; 0 of 4 outputs are plain's; " + POWER,
        ),
        (
            replace(ANSWERED, equal=0, ties=40, near=44, ties_p=1e-6),
            "certified: 40 of 1,200 judged tokens differ (3.3%), 40 ties; 0 of 4 outputs are plain's; " + POWER,
        ),
        (
            replace(ANSWERED, equal=3, unjudged=1),
            "differs, not judged: 1 differences not judged; 1 of 1,200 judged tokens differ (0.083%), 0 ties; 3 of 4 "
            "outputs are plain's; " + POWER,
        ),
        (
            replace(ALONE, equal=3, unjudged=1),
            f"differs, not judged: 1 differences not judged; 3 of 4 texts are plain's; {SILENT}, and without them "
            "rounding cannot be distinguished from a bug; start the servers with them",
        ),
        (
            replace(READ, equal=3, unread=1),
            "differs, not judged: 1 texts could not be read; 3 of 4 outputs are plain's, 3 read by the local judge, "
            "1,200 tokens; " + POWER,
        ),
        (
            replace(READ, unread=1),
            f"certified: 4 of 4 outputs are plain's, 3 read by the local judge, 1,200 tokens; {POWER}",
        ),
        (
            replace(READ, equal=3),
            f"certified: 3 of 4 outputs are plain's, 4 read by the local judge, 1,200 tokens; {POWER}",
        ),
        (
            replace(ANSWERED, asked=7, failures=("timeout", "reset", "timeout")),
            "INCONCLUSIVE: 3 of 7 prompts were not answered by both (reset, timeout); 0 of 1,200 judged tokens differ, "
            "0 ties; 4 of 4 outputs are plain's; " + POWER,
        ),
        (
            greedy_of_eight("plain", 2, 0, failures=("refused",)),
            "INCONCLUSIVE: 2 of 2 prompts were not answered by both (refused)",
        ),
        (greedy_of_eight("plain", 2, 0, wrong=1), "INCONCLUSIVE: 2 of 2 prompts were not answered by both"),
        (replace(READ, unreadable="base"), "INCONCLUSIVE: no text of base can be read token by token"),
        (
            UnsteadyPlain("base"),
            "INCONCLUSIVE: base asked twice is not itself, so that nothing can be compared with it",
        ),
    ],
)
def test_a_certificate_is_a_sentence_of_its_verdict_and_its_numbers(
    found: GreedyEvidence | UnsteadyPlain, sentence: str
) -> None:
    one = Certificate("spec", found, ("a detail",))
    if isinstance(found, GreedyEvidence) and found.both and not found.unreadable:
        sentence += f"; {ASKED}; no timed text was compared"
    assert one.lines == (f"spec: {sentence}", "a detail")
    assert one.as_json() == {"endpoint": "spec", "state": found.state, "lines": [f"spec: {sentence}", "a detail"]}
    assert NAMES[found.state] == sentence.partition(":")[0]


def test_what_was_not_counted_is_none_and_what_was_not_tested_is_no_suspicion() -> None:
    found = greedy_of_eight("plain", 2, 2)
    assert not any((found.equal, found.tokens, found.wrong, found.ties, found.near, found.unjudged, found.unread))
    sampled = sampled_of_eight("plain", 2, 2, 0)
    assert sampled.even == sampled.ratios == 1, "a p-value"


SAMPLED = sampled_of_eight("base", 9, 0, 1500, 0.25, 0.5, 1.234, (5210.4, 1498.6, 1499.9))
READ_BY = "1,500 tokens under base's lists of the likeliest (all others by their own log-probability)"
TESTED = f"{READ_BY}: transforms p=0.25, alternatives p=0.5"
TIMES = "1.1 times needs 5,210 tokens, 1.2 times 1,499 tokens"
NEEDED = f"{TIMES}; a top_p of 0.95 needs 1,500 tokens"
FOUND = "a temperature 1.23 times as high is found with 99 %"
NOTHING = "no factor of the temperature up to 4 is found with 99 %"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (SAMPLED, f"certified: {TESTED}; {FOUND}; {NEEDED}"),
        (replace(SAMPLED, factor=None), f"INCONCLUSIVE: too few tokens; {TESTED}; {NOTHING}; {NEEDED}"),
        (
            replace(SAMPLED, tokens=1499),
            f"INCONCLUSIVE: too few tokens; {TESTED.replace('1,500', '1,499')}; {FOUND}; {NEEDED}",
        ),
        (
            replace(SAMPLED, needs=(5210.4, 1498.6, inf)),
            f"INCONCLUSIVE: too few tokens; {TESTED}; {FOUND}; {TIMES}; a top_p of 0.95 ends behind every list and "
            "cannot be seen",
        ),
        (
            replace(SAMPLED, even=1e-9),
            f"FAILED: not plain's distribution; {TESTED.replace('0.25', '1e-09')}; {FOUND}; {NEEDED}",
        ),
        (
            replace(SAMPLED, ratios=1e-9, left=2, failures=("reset",)),
            f"FAILED: not plain's distribution; {TESTED.replace('0.5', '1e-09')}; {FOUND}; {NEEDED}; "
            "2 of 9 outputs are missing (reset), or base reads them as other tokens",
        ),
        (
            replace(SAMPLED, left=2),
            f"INCONCLUSIVE: not all outputs could be read; {TESTED}; {FOUND}; {NEEDED}; "
            "2 of 9 outputs are missing, or base reads them as other tokens",
        ),
        (
            sampled_of_eight("base", 9, 9, 0),
            "INCONCLUSIVE: base cannot read a text with log-probabilities (echo), or splits it into other tokens; "
            "nothing is known of the distribution",
        ),
    ],
)
def test_a_certificate_of_samples_is_a_sentence_as_well(found: SampledEvidence, sentence: str) -> None:
    asked = f"; {ASKED}; no timed text was read" if found.needs else ""
    assert Certificate("spec", found).lines == (f"spec: {sentence}{asked}",)


READ_TIMED = TimedSamples(("4 at once",), 20, 18, 900, 0.25, 0.5)


@pytest.mark.parametrize(
    ("timed", "state", "first", "last"),
    [
        (READ_TIMED, "certified", TESTED, "18 could be read: 900 tokens, transforms p=0.25, alternatives p=0.5"),
        (
            replace(READ_TIMED, even=1e-9),
            "FAILED",
            "not plain's distribution",
            "transforms p=1e-09, alternatives p=0.5",
        ),
        (replace(READ_TIMED, ratios=1e-9), "FAILED", "not plain's distribution", "p=0.25, alternatives p=1e-09"),
        (
            replace(READ_TIMED, repeated=3),
            "FAILED",
            "3 timed texts came again for another seed: it keeps its answers",
            "without log-probabilities) 3 are those of another seed; 18 could be read: 900 tokens, transforms p=0.25, "
            "alternatives p=0.5",
        ),
        (
            replace(READ_TIMED, read=0, tokens=0, even=1.0, ratios=1.0),
            "INCONCLUSIVE",
            "no timed text could be read",
            "0 could be read: 0 tokens, transforms p=1, alternatives p=1",
        ),
    ],
)
def test_sampled_texts_that_were_timed_decide_as_the_others_do(
    timed: TimedSamples, state: str, first: str, last: str
) -> None:
    [line] = Certificate("spec", replace(SAMPLED, timed=timed)).lines
    assert line.startswith(f"spec: {state}: {first}")
    assert "; of 20 timed texts (4 at once; streamed, without log-probabilities) " in line
    assert line.endswith(last)


def test_a_timed_text_with_another_count_of_tokens_is_a_bug() -> None:
    """`usage` that counts twice in streams alone makes a server twice as fast."""
    found = replace(ANSWERED, timed=TimedEvidence(("4 at once",), 9, miscounted=2))
    assert found.state == "bug"
    assert found.text.startswith("2 timed texts are its certified ones with other counts of tokens; ")


def test_a_p_value_as_small_as_false_alarms_are_allowed_to_be_is_no_bug() -> None:
    assert replace(SAMPLED, even=FALSE_ALARM, ratios=FALSE_ALARM_OF_RATIOS).state == "certified"
    assert replace(SAMPLED, even=nextafter(FALSE_ALARM, 0)).state == "bug"
    assert replace(SAMPLED, ratios=nextafter(FALSE_ALARM_OF_RATIOS, 0)).state == "bug"
    assert replace(SAMPLED, tokens=0).state == "inconclusive"


class Answering(Client):
    """Answers every prompt with ``a``; the endpoint ``spec`` refuses the last prompt."""

    async def complete(self, ask: Ask) -> Reply:
        if self.endpoint.name == "spec" and ask.prompt == "two":
            raise EndpointFailure("refused_request", "no")
        return Reply("a", (), (), 0.0, None, None, None, 1, {})


def test_a_local_judge_certifies_no_server_that_left_a_prompt_unanswered() -> None:
    """It read the answers that there were, and said nothing of the others."""
    lists = (("a", -0.01), ("b", -6.0))

    def read(ask: Ask, reply: Reply) -> tuple[Token, ...]:
        return (Token("a", None, -0.01, lists),)

    endpoints = [Endpoint("plain", "http://x"), Endpoint("spec", "http://y")]
    [found] = certify(endpoints, ["one", "two"], Ask("", 1), "float32", Answering, read)
    assert found.state == "inconclusive"
    assert "1 of 2 prompts were not answered by both (refused_request)" in found.lines[0]


@pytest.mark.parametrize(
    ("server", "plain", "found"), [(9.9, 1.0, False), (10.0, 1.0, True), (10.0, 0.2, True), (99.0, 10.0, False)]
)
def test_a_server_that_keeps_its_answers_is_not_certified(server: float, plain: float, found: bool) -> None:
    """Plain may know prompts, and a draft may have learnt answers: neither is as fast as a cache of answers."""
    kept = KeptAnswers(server, plain)
    assert kept.found == found
    for one in (ANSWERED, SAMPLED):
        with_it = replace(one, kept=kept)
        assert with_it.state == ("inconclusive" if found else "certified")
        assert with_it.text.startswith(f"it answers known prompts {server:.0f} times as fast as new ones") == found


def test_known_prompts_are_compared_with_the_new_ones_that_they_became() -> None:
    """Per token, by the median: of three prompts 2, 4 and 100 times as fast; an answer that failed has no pair."""

    def reply(seconds: float, tokens: int) -> Reply:
        return Reply("a", (), (), seconds, 1, tokens, None, 1, {})

    known = [reply(1.0, 4), reply(1.0, 2), reply(0.01, 4), None, reply(1.0, 4)]
    new = [reply(2.0, 4), reply(8.0, 4), reply(1.0, 4), reply(9.0, 1), None]
    assert known_over_new(ServedAnswers((*known, *new)), AskedFor(8, 5, 5)) == pytest.approx(4)
    assert known_over_new(ServedAnswers((*known,)), AskedFor(8, 5, 0)) == 1.0
