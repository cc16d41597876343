"""Certificates over HTTP: planted bugs are found at the stated size, honest pairs are not, and rounding is excused."""

from __future__ import annotations

import random
import re
from math import exp, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.measure.fidelity import FALSE_ALARM
from benchsuite.measure.logprob_ties import (
    FLOORS,
    MOST,
    Bound,
    bound_of,
    compare_outputs,
    near_ties,
    parting,
    score_outputs,
    smallest_rate,
    tokens_needed,
    too_many_ties,
)
from benchsuite.measure.transforms import FALSE_ALARM_OF_HEAT, read_tokens
from benchsuite.serving.certified import certify
from benchsuite.tests.our_server import Bugs, OurServer
from benchsuite.tests.rig import Make
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Token

BOUND = Bound(0.5, 0.0, 0, 0.5)


def listed(text: str, *chances: tuple[str, float]) -> Token:
    return Token(text, None, dict(chances).get(text), tuple(chances))


def test_outputs_part_at_their_first_different_token() -> None:
    a, b, c = Token("a"), Token("b"), Token("c")
    assert parting([a, b, c], [a, b, c]) == 3
    assert parting([a, b, c], [a, c, c]) == 1
    assert parting([a], [a, b]) == 1
    assert parting([Token("x", 1)], [Token("y", 1)]) == 1, "numbers decide: one token may have two texts"
    assert parting([Token("x", 1)], [Token("x", 2)]) == 0


def test_the_bound_is_twice_plains_own_disagreement_within_its_limits() -> None:
    one = [listed("a", ("a", -0.1), ("b", -2.0))]
    for apart, nats in ((0.0, 0.5), (0.2, 0.5), (0.3, 0.6), (5.0, MOST)):
        bound = bound_of([(one, [listed("a", ("a", -0.1 - apart), ("b", -2.0))])])
        assert bound.nats == pytest.approx(nats)
        assert bound.seen == pytest.approx(apart)
        assert bound.compared == 2
    assert bound_of([(one, one)], "float32").nats == FLOORS["float32"]


def test_after_the_first_different_token_plain_is_not_compared_with_itself() -> None:
    """The lists after another token are of another text: their distance is no rounding."""
    one = [listed("a", ("a", -0.1)), listed("b", ("b", -0.1)), listed("c", ("c", -0.1))]
    two = [listed("a", ("a", -0.1)), listed("x", ("b", -0.1)), listed("c", ("c", -4.0))]
    assert bound_of([(one, two)]).seen == 0


@pytest.mark.parametrize(
    ("other", "kind"),
    [("b", "tie"), ("c", "bug"), ("z", "bug")],
    ids=["within the bound", "outside", "below the end of the list"],
)
def test_a_difference_is_judged_by_plains_list(other: str, kind: str) -> None:
    mine = listed("a", ("a", -1.0), ("b", -1.5), ("c", -1.6))
    found = compare_outputs(7, [mine], [Token(other)], BOUND)
    assert found is not None
    assert (found.kind, found.place, found.prompt) == (kind, 0, 7)
    assert ("'c' -1.600" in str(found)) == (kind == "bug"), "a bug is printed with its lists"


def test_a_token_that_may_lie_just_below_a_list_is_not_judged() -> None:
    mine = listed("a", ("a", -1.0), ("b", -1.2))
    found = compare_outputs(0, [mine], [Token("z")], BOUND)
    assert found is not None
    assert found.kind == "not judged"
    assert compare_outputs(0, [Token("a")], [Token("b")], BOUND).kind == "not judged"  # type: ignore[union-attr]


def test_the_end_of_the_bound_is_within_it() -> None:
    bound = Bound(0.5, 0.0, 0, 0.5)
    for gap, kind in ((0.5, "tie"), (0.5000001, "bug")):
        found = compare_outputs(0, [listed("a", ("a", 0.0), ("b", -gap))], [Token("b")], bound)
        assert found is not None
        assert found.kind == kind


@pytest.mark.parametrize(("second", "kind"), [(-3.0, "bug"), (-0.3, "not judged")])
def test_an_output_that_ends_early_is_a_bug_where_no_end_token_can_be_near(second: float, kind: str) -> None:
    long = [listed("a", ("a", -0.1)), listed("b", ("b", -0.05), ("c", second))]
    for pair in ((long, long[:1]), (long[:1], long)):
        found = compare_outputs(0, *pair, BOUND)
        assert found is not None
        assert (found.kind, found.place) == (kind, 1)


def test_every_token_of_a_scored_output_is_judged() -> None:
    """After a tie the outputs are two texts; read by plain, a bug behind the tie is found."""
    other = [Token("b"), Token("c"), Token("z")]
    scored = [
        listed("b", ("a", -0.7), ("b", -0.8)),
        listed("c", ("c", -0.1), ("d", -3.0)),
        listed("z", ("e", -0.01), ("f", -6.0)),
    ]
    assert [(one.place, one.kind) for one in score_outputs(0, scored, other, BOUND)] == [(0, "tie"), (2, "bug")]


def test_the_stated_size_is_that_of_the_binomial() -> None:
    clear, close = listed("a", ("a", -0.1), ("b", -4.0)), listed("a", ("a", -0.7), ("b", -0.8))
    outputs = [[clear] * 919 + [close] * 50]
    assert near_ties(outputs, BOUND) == (50, 969)
    assert smallest_rate(outputs, BOUND) == pytest.approx(200, abs=0.3)
    assert tokens_needed(200, 1.0) == pytest.approx(919, abs=1)
    assert smallest_rate([[close]], BOUND) is None


@given(st.integers(0, 200), st.integers(0, 200))
def test_too_many_ties_are_more_than_tosses_of_a_coin(ties: int, chances: int) -> None:
    from math import comb

    tail = sum(comb(chances, k) for k in range(ties, chances + 1)) / 2**chances
    assert too_many_ties(ties, chances) == (tail < 1e-6)


def world(dice: random.Random, heat: float, tokens: int, changed: float = 0.0) -> list[Token]:
    """Tokens drawn from random lists of five and a rest, at ``heat`` times the temperature, read under the lists."""
    found = []
    for _ in range(tokens):
        logits = sorted((dice.gauss(0, 2) for _ in range(6)), reverse=True)
        whole = sum(map(exp, logits))
        chances = [exp(one) / whole for one in logits]
        hot = [exp(one / heat) for one in logits]
        choice = dice.choices(range(6), hot)[0]
        if dice.random() < changed:
            choice = dice.randrange(6)
        top = tuple((str(n), log(chance)) for n, chance in enumerate(chances[:5]))
        found.append(Token(str(choice), None, None, top))
    return found


def test_honest_samples_are_not_suspected() -> None:
    """400 samples of 300 tokens: with false alarms of 1e-6 one fails with a probability below 1e-3.

    The p-values are also spread evenly: the smallest of 400 lies below 0.02 and above 1e-6 with a probability of 0.999.
    """
    dice = random.Random(5)
    samples = [read_tokens([world(dice, 1.0, 300)], seed) for seed in range(400)]
    assert min(one.evenness for one in samples) >= FALSE_ALARM
    assert FALSE_ALARM_OF_HEAT <= min(one.heat_p for one in samples) < 0.02
    assert sum(one.heat_p < 0.5 for one in samples) == pytest.approx(200, abs=5 * sqrt(100))


@pytest.mark.parametrize("heat", [1.2, 0.85])
def test_another_temperature_is_found_with_the_stated_tokens(heat: float) -> None:
    """The number of tokens that finds it with 0.99, by the lists; of 60 samples at least 55 are found (1e-4
    otherwise)."""
    dice = random.Random(9)
    needed = int(read_tokens([world(dice, 1.0, 4000)]).tokens_for(heat))
    found = [read_tokens([world(dice, heat, needed)], n).heat_p < FALSE_ALARM_OF_HEAT for n in range(60)]
    assert sum(found) >= 55, (sum(found), needed)
    assert all(read_tokens([world(dice, heat, needed)], n).hotter == (heat > 1) for n in range(10))
    short = [read_tokens([world(dice, heat, needed // 8)], n).heat_p < FALSE_ALARM_OF_HEAT for n in range(60)]
    assert sum(short) < 30, "the number is not far too large"


def test_the_same_text_twice_is_one_piece_of_evidence() -> None:
    output = world(random.Random(1), 1.0, 50)
    assert read_tokens([output, list(output), output]) == read_tokens([output])
    assert read_tokens([output]).tokens == 50


def test_a_token_outside_of_the_list_is_one_of_the_rest() -> None:
    token = Token("z", None, None, (("a", log(0.6)), ("b", log(0.3))))
    sample = read_tokens([[token]])
    assert sample.bins[9] == 1, "the rest has the last tenth"
    assert sample.surplus < 0


PROMPTS = ["hello there my friend", "def main(x):", "one two three one two", "the cat sat on the mat, and then"]


def certificate(plain: OurServer, other: OurServer, tokens: int = 24, **ask: float) -> tuple[str, str]:
    endpoints = [Endpoint("plain", plain.url), Endpoint("spec", other.url)]
    [found] = certify(endpoints, PROMPTS, Ask("", tokens, **ask), "float32")  # type: ignore[arg-type]
    assert found.endpoint == "spec"
    return found.state, "\n".join(found.lines)


def test_an_honest_pair_is_certified_over_http(assemble: Make) -> None:
    with OurServer(assemble().engine(None, k=0)) as plain, OurServer(assemble().engine("ngram", k=4)) as spec:
        state, text = certificate(plain, spec)
    assert state == "certified", text
    assert "4 of 4 outputs are plain's" in text
    assert "is found with 99 %" in text


@pytest.mark.parametrize("change", [20, 5])
def test_changed_tokens_are_found_over_http(change: int, assemble: Make) -> None:
    with (
        OurServer(assemble().engine(None, k=0)) as plain,
        OurServer(assemble().engine("ngram", k=4), Bugs(change=change)) as spec,
    ):
        state, text = certificate(plain, spec, 40)
    assert state == "bug", text
    assert "FAILED" in text
    assert "plain's list: " in text


@pytest.mark.slow
def test_one_changed_token_in_200_is_found_among_so_many_tokens_as_the_certificate_says(assemble: Make) -> None:
    """Of 1,200 tokens six are changed; the honest server's certificate says that one in 200 is found with 99 %."""
    prompts = [f"{word} and then {word} again, " for word in ("sun", "rain", "snow", "wind", "fog", "hail")]
    found = {}
    for change in (0, 200):
        with (
            OurServer(assemble(max_length=256).engine(None, k=0)) as plain,
            OurServer(assemble(max_length=256).engine("ngram", k=4), Bugs(change=change)) as spec,
        ):
            endpoints = [Endpoint("plain", plain.url), Endpoint("spec", spec.url)]
            [found[change]] = certify(endpoints, prompts, Ask("", 200), "float32")
    assert found[0].state == "certified", found[0].lines
    stated = re.search(r"one changed token in (\d+) is found", found[0].lines[0])
    assert stated is not None
    assert int(stated[1]) >= 200
    assert found[200].state == "bug", found[200].lines


@pytest.mark.slow
def test_a_slightly_higher_temperature_is_found_with_the_tokens_that_the_certificate_asks_for(assemble: Make) -> None:
    """The honest server's certificate says how many tokens 1.2 times the temperature needs; with more, it is found."""
    prompts = [f"{word} and then {word} again, " for word in ("sun", "rain", "snow", "wind", "fog", "hail")]
    found = {}
    for heat in (1.0, 1.2):
        with (
            OurServer(assemble(max_length=512).engine(None, k=0)) as plain,
            OurServer(assemble(max_length=512).engine("garbage", "rejection", k=2), Bugs(heat=heat)) as spec,
        ):
            endpoints = [Endpoint("plain", plain.url), Endpoint("spec", spec.url)]
            [found[heat]] = certify(endpoints, prompts, Ask("", 400, temperature=1.0))
    assert found[1.0].state == "certified", found[1.0].lines
    needed = re.search(r"1.2 times ([\d,]+) tokens", found[1.0].lines[0])
    assert needed is not None
    assert int(needed[1].replace(",", "")) <= 2400
    assert found[1.2].state == "bug", found[1.2].lines
    assert "hotter" in found[1.2].lines[0]


def test_a_server_without_logprobs_is_not_judged(assemble: Make) -> None:
    with OurServer(assemble().engine(None, k=0), Bugs(no_logprobs=True)) as plain:
        with OurServer(assemble().engine(None, k=0), Bugs(no_logprobs=True, change=5)) as spec:
            assert certificate(plain, spec)[0] == "differs, not judged"
        with OurServer(assemble().engine("ngram", k=4), Bugs(no_logprobs=True)) as spec:
            assert certificate(plain, spec)[0] == "certified"


@pytest.mark.parametrize(
    ("heat", "tokens", "state"), [(1.0, 150, "certified"), (1.5, 150, "bug"), (1.0, 2, "inconclusive")]
)
def test_a_sampled_pair_is_read_under_plains_list_over_http(
    heat: float, tokens: int, state: str, assemble: Make
) -> None:
    with (
        OurServer(assemble(max_length=256).engine(None, k=0)) as plain,
        OurServer(assemble(max_length=256).engine("garbage", "rejection", k=2), Bugs(heat=heat)) as spec,
    ):
        found, text = certificate(plain, spec, tokens, temperature=1.0)
    assert found == state, text
    assert f"{4 * tokens} tokens of spec under plain's list" in text


def test_other_temperatures_have_no_certificate() -> None:
    with pytest.raises(ValueError, match="needs 0 or 1"):
        certify([Endpoint("a", "http://x"), Endpoint("b", "http://y")], ["x"], Ask("", 4, temperature=0.7))


def test_a_pair_that_nobody_answers_is_inconclusive() -> None:
    dead = Endpoint("plain", "http://127.0.0.1:1", "m", retries=0)
    [found] = certify([dead, Endpoint("spec", "http://127.0.0.1:1", "m", retries=0)], ["x"], Ask("", 4))
    assert (found.state, "refused" in found.lines[0]) == ("inconclusive", True)
