"""Certificates: the verdict follows from the numbers alone, and the sentence has each that decides."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from benchsuite.benches.serving.certificate import NAMES, Certificate, GreedyEvidence, SampledEvidence, State
from benchsuite.benches.serving.certified import certify
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure, Reply, Token

FROM_BEST: tuple[State, ...] = ("certified", "inconclusive", "differs, not judged", "bug")

SMALL = st.integers(0, 3)


@st.composite
def greedy(draw: st.DrawFn) -> GreedyEvidence:
    both = draw(st.integers(1, 5))
    return GreedyEvidence(
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


@given(greedy(), st.sampled_from(["wrong", "unjudged", "asked", "unread"]))
def test_more_of_what_speaks_against_a_server_never_makes_its_verdict_better(found: GreedyEvidence, worse: str) -> None:
    assume(worse != "unread" or found.unread < found.both)
    more = replace(found, **{worse: getattr(found, worse) + 1})
    assert FROM_BEST.index(more.state) >= FROM_BEST.index(found.state)


@given(greedy())
def test_a_certificate_is_given_where_all_was_answered_and_judged_and_a_change_would_be_found(
    found: GreedyEvidence,
) -> None:
    faults = (found.wrong, found.unjudged, found.asked - found.both, found.unread and found.both - found.equal)
    blind = found.reader != "none" and found.one_in is None
    assert (found.state == "certified") == (not any(faults) and not blind)
    assert (found.state == "bug") == (found.wrong > 0)


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
    found = SampledEvidence("plain", 9, left, 500, even, heat, factor, (900.0, 300.0))
    likely = replace(found, even=1.0, heat=1.0)
    assert likely.state == ("certified" if factor and not left else "inconclusive")
    assert found.state in (likely.state, "bug")
    assert replace(found, even=0.0).state == replace(found, heat=0.0).state == "bug"


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
