"""Certificates over HTTP: planted bugs are found at the stated size, honest pairs are not, and rounding is excused."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from math import exp, inf, log, sqrt
from statistics import NormalDist
from typing import Any

import pytest

from benchsuite.benches.serving.asked import Connect, ServedAnswers
from benchsuite.benches.serving.certificate import Certificate, GreedyEvidence, SampledEvidence
from benchsuite.benches.serving.certified import certify
from benchsuite.benches.serving.echoes import echoed
from benchsuite.benches.serving.local_judge import LocalJudge
from benchsuite.judge.fidelity import FALSE_ALARM
from benchsuite.judge.logprob_ties import (
    MOST,
    Bound,
    bound_of,
    compare_outputs,
    drifts,
    parting,
    score_outputs,
    smallest_rate,
    tokens_needed,
)
from benchsuite.judge.transforms import ALTERNATIVES, FALSE_ALARM_OF_RATIOS, HEATS, PASSING, read_tokens
from benchsuite.tests.our_server import Bugs, OurServer
from benchsuite.tests.rig import Make
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply, Token

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
    for apart, nats in ((0.0, 0.01), (0.2, 0.4), (0.3, 0.6), (5.0, MOST)):
        bound = bound_of([(one, [listed("a", ("a", -0.1 - apart), ("b", -2.0))])])
        assert bound.nats == pytest.approx(nats)
        assert bound.seen == pytest.approx(apart)
        assert bound.compared == 2
    for dtype, floor in {"float32": 0.01, "bfloat16": 0.5, "float16": 0.1, "unknown": 0.01}.items():
        assert bound_of([(one, one)], dtype).nats == bound_of([(one, one)], dtype).floor == floor
    assert bound_of([(one, one)]).nats == 0.01


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


def test_a_tie_needs_both_lists_where_both_have_the_tokens() -> None:
    mine = listed("a", ("a", -0.69), ("b", -0.7))
    for other, kind in (
        (listed("b", ("b", -0.69), ("a", -0.7)), "tie"),
        (listed("b", ("b", -0.01), ("a", -6.0)), "bug"),
        (listed("b", ("b", -0.01)), "tie"),
    ):
        found = compare_outputs(0, [mine], [other], BOUND)
        assert found is not None
        assert found.kind == kind


def test_a_part_of_a_character_may_be_several_tokens() -> None:
    """Texts do not tell them apart: a difference that only one of them excuses is not judged, and sets no bound."""
    part = "\ufffd"
    mine = listed("a", ("a", -1.0), (part, -1.1), (part, -3.0))
    near = listed("a", ("a", -1.0), (part, -1.1), (part, -1.2))
    alone = listed("a", ("a", -1.0), (part, -3.0))  # where a text has one place, all but one of its tokens are lost
    for token, kind in ((mine, "not judged"), (near, "tie"), (alone, "not judged")):
        found = compare_outputs(0, [token], [Token(part)], BOUND)
        assert found is not None
        assert found.kind == kind
    assert bound_of([([mine], [near])]).compared == 1


def test_what_plain_itself_turns_is_neither_excused_nor_accused() -> None:
    """A noisy plain: beyond ``MOST`` nothing is a tie, and up to its own disagreement nothing is a bug."""
    one = [listed("a", ("a", -0.2), ("b", -2.0))]
    two = [listed("b", ("b", -0.2), ("a", -2.0))]
    bound = bound_of([(one, two)])
    assert bound.nats == MOST
    assert bound.sure == pytest.approx(3.6)
    assert compare_outputs(0, one, two, bound).kind == "not judged"  # type: ignore[union-attr]
    for gap, kind in ((0.9, "tie"), (3.5, "not judged"), (3.7, "bug")):
        mine = listed("a", ("a", -0.1), ("b", -0.1 - gap))
        assert compare_outputs(0, [mine], [Token("b")], bound).kind == kind  # type: ignore[union-attr]
        beside = listed("b", ("b", -0.1), ("a", -0.1 - gap))  # the other's own list
        near = listed("a", ("a", -0.1), ("b", -0.2))
        assert compare_outputs(0, [near], [beside], bound).kind == kind  # type: ignore[union-attr]
    for gap, kind in ((3.5, "not judged"), (3.7, "bug")):
        mine = listed("a", ("a", -0.1), ("b", -0.1 - gap))
        assert compare_outputs(0, [mine], [Token("z")], bound).kind == kind  # type: ignore[union-attr]
        assert compare_outputs(0, [mine], [], bound).kind == kind  # type: ignore[union-attr]
    assert smallest_rate([one], bound) is None, "at a gap of 1.8 a change would not be judged"
    assert smallest_rate([one], BOUND) is not None


def test_equal_tokens_with_other_probabilities_are_found() -> None:
    one = [listed("a", ("a", -0.1), ("b", -2.0)), listed("c", ("c", -0.1)), listed("d", ("d", -0.1))]
    two = [listed("a", ("a", -0.1), ("b", -2.6)), listed("x", ("c", -0.5)), listed("d", ("d", -4.0))]
    assert drifts(one, one, BOUND) == []
    [(place, nats)] = drifts(one, two, BOUND)  # after another token the lists are of another text
    assert place == 0
    assert nats == pytest.approx(0.6)


def test_a_scored_token_out_of_the_list_is_judged_by_its_own_log_probability() -> None:
    top = (("a", -1.0), ("b", -1.2))
    for chance, kind in ((-1.5, "tie"), (-9.0, "bug"), (None, "not judged")):
        [found] = score_outputs(0, [Token("x"), Token("z", None, chance, top)], [Token("x"), Token("z")], BOUND)
        assert (found.kind, found.place, found.before) == (kind, 1, "x")


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
    tie, bug = score_outputs(0, scored, other, BOUND)
    assert (tie.place, tie.kind, bug.place, bug.kind) == (0, "tie", 2, "bug")
    assert (tie.plain, tie.other, tie.lists) == ("a", "b", (scored[0].top, ()))
    assert (bug.plain, bug.other, bug.before) == ("e", "z", "bc")
    assert bug.gap == pytest.approx(6.0 - 0.01)


def test_an_output_that_ends_at_the_bounds_end_is_no_bug() -> None:
    """There an end token, which no list shows, could be the second likeliest."""
    for more, kind in ((0.0, "not judged"), (0.001, "bug")):
        going = listed("a", ("a", 0.0), ("b", -BOUND.sure - more))
        found = compare_outputs(0, [going], [], BOUND)
        assert found is not None
        assert found.kind == kind


def test_the_stated_size_is_that_of_the_binomial() -> None:
    clear, close = listed("a", ("a", -0.1), ("b", -4.0)), listed("a", ("a", -0.7), ("b", -0.8))
    outputs = [[clear] * 919 + [close] * 50]
    assert smallest_rate(outputs, BOUND) == pytest.approx(200, abs=0.3)
    assert tokens_needed(200, 1.0) == pytest.approx(919, abs=1)
    assert smallest_rate([[close]], BOUND) is None


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


@pytest.mark.slow
def test_honest_samples_are_not_suspected() -> None:
    """200 samples of 200 tokens; by Ville's inequality at most a share p has a p-value below p, here with 5 sigma."""
    dice = random.Random(5)
    samples = [read_tokens([world(dice, 1.0, 200)], seed) for seed in range(200)]
    assert min(one.evenness for one in samples) >= FALSE_ALARM
    for level in (0.5, 0.1, 0.02):
        most = 200 * level + 5 * sqrt(200 * level * (1 - level))
        assert sum(one.ratio_p < level for one in samples) <= most
    assert min(one.ratio_p for one in samples) >= FALSE_ALARM_OF_RATIOS


def test_rare_tokens_of_peaked_lists_are_not_suspected() -> None:
    """Three rare tokens of 300 are six standard deviations and come once in 300 samples: no normal law."""
    lists = (("a", log(0.999)), ("b", log(0.001)))
    common, rare = Token("a", None, None, lists), Token("b", None, None, lists)
    assert read_tokens([[common] * 297 + [rare] * 3]).ratio_p > 1e-3
    assert read_tokens([[common] * 200 + [rare] * 100]).ratio_p < FALSE_ALARM_OF_RATIOS


def test_the_likelihood_ratio_of_every_alternative_has_the_expectation_one() -> None:
    """The law that the false alarm rests on, summed over a list and its rest."""
    chances = [0.6, 0.25, 0.1, 0.05]
    top = tuple((str(n), log(chance)) for n, chance in enumerate(chances[:3]))
    samples = [read_tokens([[Token(str(n), None, None, top)]]) for n in range(4)]
    ratios = [sample.ratios for sample in samples]
    assert sum(p * one.surplus for p, one in zip(chances, samples, strict=True)) == pytest.approx(0), "as expected"
    assert len(ratios[0]) == ALTERNATIVES
    hot = HEATS.index(2.0)
    assert ratios[3][hot] > 0 > ratios[0][hot], "rare tokens speak for a higher temperature"
    for n in range(ALTERNATIVES):
        assert sum(p * exp(row[n]) for p, row in zip(chances, ratios, strict=True)) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("heat", [1.2, pytest.param(0.85, marks=pytest.mark.slow)])
def test_another_temperature_is_found_with_the_stated_tokens(heat: float) -> None:
    """The number of tokens that finds it with 0.99, by the lists; of 20 samples at least 17 are found (5e-5
    otherwise)."""
    dice = random.Random(9)
    needed = int(read_tokens([world(dice, 1.0, 4000)]).tokens_for(heat))
    found = [read_tokens([world(dice, heat, needed)], n).ratio_p < FALSE_ALARM_OF_RATIOS for n in range(20)]
    assert sum(found) >= 17, (sum(found), needed)
    short = [read_tokens([world(dice, heat, needed // 8)], n).ratio_p < FALSE_ALARM_OF_RATIOS for n in range(20)]
    assert sum(short) < 10, "the number is not far too large"


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.99])
def test_the_stated_tokens_reach_the_threshold_with_their_probability(probability: float) -> None:
    """The law of a sum over n tokens: its mean less the share's deviations is the threshold, by sums written again."""
    chances = [0.5, 0.3, 0.15, 0.05]
    token = Token("0", None, None, tuple((str(n), log(chance)) for n, chance in enumerate(chances[:3])))
    needed = read_tokens([[token] * 40]).tokens_for(1.5, probability)
    hot = [chance ** (1 / 1.5) for chance in chances]
    hot = [chance / sum(hot) for chance in hot]
    ratios = [log(h / p) for h, p in zip(hot, chances, strict=True)]
    mean = sum(h * one for h, one in zip(hot, ratios, strict=True))
    variance = sum(h * (one - mean) ** 2 for h, one in zip(hot, ratios, strict=True))
    reached = needed * mean - NormalDist().inv_cdf(probability) * sqrt(needed * variance)
    assert reached == pytest.approx(log(ALTERNATIVES / FALSE_ALARM_OF_RATIOS))


@pytest.mark.parametrize(("most", "mass"), [(0.7, 0.8), (0.9, 0.95), (0.98, None)])
def test_the_stated_tokens_find_a_nucleus_where_the_lists_show_its_end(most: float, mass: float | None) -> None:
    """Each token of a nucleus gains the same, so that the number of tokens is the threshold over that gain."""
    chances = [0.5, 0.3, 0.15, 0.05]
    token = Token("0", None, None, tuple((str(n), log(chance)) for n, chance in enumerate(chances[:3])))
    needed = read_tokens([[token] * 40]).tokens_for_nucleus(most)
    gain = 0.0 if mass is None else log(PASSING + (1 - PASSING) / mass)
    assert needed == pytest.approx(log(ALTERNATIVES / FALSE_ALARM_OF_RATIOS) / gain if gain else inf)


def test_a_place_is_judged_if_its_two_likeliest_are_further_apart_than_the_bound() -> None:
    """At the bound's end a changed token is not judged, and is not counted as if it were."""
    just = [listed("a", ("a", 0.0), ("b", -BOUND.sure))]
    over = [listed("a", ("a", 0.0), ("b", -BOUND.sure - 0.001))]
    assert smallest_rate([just], BOUND) is None
    assert smallest_rate([over], BOUND) == smallest_rate([over, just], BOUND) == pytest.approx(1 / 0.99)


def test_a_server_whose_own_token_is_not_the_likeliest_judges_nobody_there() -> None:
    """By its list, or by its log-probability if the list lacks the token: with a penalty it chose by other numbers."""
    far = ("a", 0.0), ("b", -BOUND.nats - 0.1), ("c", -9.0)
    for mine in (Token("b", None, None, far), Token("z", None, -BOUND.nats - 0.1, far), Token("b", None, -3.0, far)):
        found = compare_outputs(0, [mine], [Token("c")], BOUND)
        assert found is not None
        assert found.kind == "not judged", mine
    found = compare_outputs(0, [Token("z", None, -0.1, far)], [Token("c")], BOUND)
    assert found is not None
    assert found.kind == "bug", "its own token is as likely as the likeliest"


def test_what_lies_on_the_bound_is_no_drift() -> None:
    plain = [listed("a", ("a", 0.0))]
    assert drifts(plain, [listed("a", ("a", -BOUND.nats))], BOUND) == []
    assert drifts(plain, [listed("a", ("a", -BOUND.nats - 0.001))], BOUND) == [(0, BOUND.nats + 0.001)]
    own = ("a", 0.0), ("b", -BOUND.nats), ("c", -9.0)  # its own token is no further below than rounding explains
    found = compare_outputs(0, [Token("b", None, None, own)], [Token("c")], BOUND)
    assert found is not None
    assert found.kind == "bug"


def test_a_difference_is_shown_with_its_gap_its_lists_and_the_last_sixty_characters() -> None:
    shared = [Token(chr(97 + number % 26)) for number in range(70)]
    text = "".join(token.text for token in shared)
    mine, its = listed("A", ("A", -0.25), ("B", -3.0)), Token("B")
    found = compare_outputs(7, [*shared, mine], [*shared, its], BOUND)
    assert found is not None
    assert found.before == text[10:]
    assert str(found) == (
        f"prompt 7, token 70: plain 'A', here 'B': bug, 2.75 nats; after {text[10:]!r}; "
        "plain's list: 'A' -0.250, 'B' -3.000; the other's: none"
    )
    assert str(compare_outputs(0, [listed("A", ("A", -0.25), ("B", -0.5))], [its], BOUND)) == (
        "prompt 0, token 0: plain 'A', here 'B': tie, 0.25 nats"
    )
    assert str(compare_outputs(0, [Token("A")], [its], BOUND)) == (
        "prompt 0, token 0: plain 'A', here 'B': not judged, no list; after ''; plain's list: none; the other's: none"
    )


def test_an_end_is_shown_in_the_place_of_the_token_that_is_not_there() -> None:
    going = listed("b", ("b", -0.05), ("c", -3.0))
    for pair, texts, lists in (
        (([Token("a"), going], [Token("a")]), ("b", "(end)"), (going.top, ())),
        (([Token("a")], [Token("a"), going]), ("(end)", "b"), ((), going.top)),
    ):
        found = compare_outputs(3, *pair, BOUND)
        assert found is not None
        assert (found.prompt, found.place, found.before) == (3, 1, "a")
        assert ((found.plain, found.other), found.lists) == (texts, lists)
        assert found.gap == pytest.approx(2.95)
    alone = compare_outputs(0, [listed("b", ("b", -0.05))], [], BOUND)
    assert alone is not None
    assert (alone.gap, alone.kind) == (None, "not judged"), "a list of one says nothing of an end"


def test_equal_short_outputs_of_different_requests_all_count() -> None:
    """Honest outputs of two tokens coincide; without the copies, rare tokens would be too many."""
    top = (("a", log(0.9)), ("b", log(0.07)), ("c", log(0.02)))
    dice = random.Random(7)
    outputs = [[Token(dice.choices("abcz", [90, 7, 2, 1])[0], None, None, top) for _ in range(2)] for _ in range(500)]
    sample = read_tokens(outputs)
    assert sample.tokens == 1000
    assert min(sample.ratio_p, sample.evenness) > 1e-3


def test_lists_with_parts_of_characters_are_left_out_whatever_was_drawn() -> None:
    """Honest draws of two tokens of one text would all be taken for the likelier one."""
    part = "\ufffd"
    lists = [((part, log(0.5)), (part, log(0.3)), ("a", log(0.15))), (("a", log(0.4)), ("a", log(0.4)))]
    clear = Token("a", None, None, (("a", log(0.5)), ("b", log(0.3))))
    for top in lists:
        for text in (part, "a", "z"):
            assert read_tokens([[clear, Token(text, None, None, top)]]) == read_tokens([[clear]])
    assert read_tokens([[Token(part, None, None, clear.top)]]).tokens == 1, "a part that was not listed is of the rest"


def test_a_token_outside_of_the_list_is_one_of_the_rest() -> None:
    token = Token("z", None, None, (("a", log(0.6)), ("b", log(0.3))))
    sample = read_tokens([[token]])
    assert sample.bins[9] == 1, "the rest has the last tenth"
    assert sample.surplus < 0


class Heard(OurServer):
    """Keeps the seeds that it is asked for; answers the first ``answers`` requests.

    ``silent``: the answer to this prompt has no log-probabilities, and ``Bugs(change=…)`` are in no other.
    """

    answers, silent, change = 99, "", 0

    def answer(self, asked: dict[str, Any], chat: bool) -> Iterator[dict[str, Any]]:
        self.seeds = [*getattr(self, "seeds", []), asked.get("seed")]
        if len(self.seeds) > self.answers:
            raise SpecdecError("no more answers")
        silent = asked["prompt"] == self.silent
        self.bugs.change = self.change if silent else 0
        for one in super().answer(asked, chat):
            yield {**one, "choices": [{**part, "logprobs": None} for part in one["choices"]]} if silent else one


def served(
    plain: OurServer, *others: OurServer, prompts: Sequence[str] | None = None, tokens: int = 12, **ask: float
) -> list[Certificate]:
    """A certificate for each of the other servers, by the first one's outputs."""
    endpoints = [Endpoint(f"spec{n}" if n else "plain", one.url, retries=0) for n, one in enumerate((plain, *others))]
    return certify(endpoints, prompts or PROMPTS, Ask("", tokens, **ask), "float32")  # type: ignore[arg-type]


@pytest.mark.slow
def test_each_prompt_is_sampled_with_its_own_seed(assemble: Make) -> None:
    """Servers make the same random numbers of one seed: 50 honest outputs of it failed in 14 of 20 samples."""
    with OurServer(assemble().engine(None, k=0)) as plain, Heard(assemble().engine(None, k=0)) as spec:
        served(plain, spec, tokens=4, temperature=1.0, seed=7)
        assert spec.seeds == [11, 12, 13, 14], "and with none of those of four timed texts"


@pytest.mark.slow
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_prompts_without_an_answer_are_not_certified(heat: float, assemble: Make) -> None:
    engines = [assemble(max_length=256).engine(None, k=0) for _ in range(2)]
    with OurServer(engines[0]) as plain, Heard(engines[1]) as spec:
        spec.answers = 3
        [found] = served(plain, spec, temperature=heat)
    text = "\n".join(found.lines)
    assert found.state == "inconclusive", text
    assert "too few tokens" not in text
    assert "1 of 4" in text
    assert "refused_request" in text


@pytest.mark.slow
def test_outputs_that_plain_cannot_read_are_not_certified(monkeypatch: pytest.MonkeyPatch, assemble: Make) -> None:
    """Read may be only outputs of some tokens, so that what was read does not speak for what was not."""

    def seldom(connect: Connect, server: Endpoint, ask: Ask, reply: Reply, listed: int = 5) -> tuple[Token, ...] | None:
        return None if ask.prompt == PROMPTS[1] else echoed(connect, server, ask, reply, listed)

    monkeypatch.setattr("benchsuite.benches.serving.certified.echoed", seldom)
    engines = [assemble().engine(None, k=0) for _ in range(2)]
    with OurServer(engines[0]) as plain, OurServer(engines[1]) as spec:
        [found] = served(plain, spec, temperature=1.0)
    assert found.state == "inconclusive"
    assert "not all outputs could be read" in found.lines[0]
    assert "1 of 4 outputs are missing" in found.lines[0]


@pytest.mark.slow
def test_outputs_left_out_for_their_tokens_do_not_fail_an_honest_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the outputs that have a rare token, the others look too likely; the ways to leave them out count."""
    dice, top = random.Random(3), tuple((name, log(p)) for name, p in (("a", 0.7), ("b", 0.2), ("c", 0.08)))
    read: list[tuple[Token, ...] | None] = []
    for _ in range(400):
        texts = dice.choices("abcz", [70, 20, 8, 2], k=64)
        read.append(None if "z" in texts else tuple(Token(text, None, None, top) for text in texts))
    assert read_tokens([one for one in read if one]).ratio_p < FALSE_ALARM_OF_RATIOS, "this sample would fail"
    reply = Reply("x", (), (), 0.0, None, None, None, 1, {})

    def answered(connect: Connect, endpoint: Endpoint, asks: Sequence[Ask], at_once: int = 1) -> ServedAnswers:
        return ServedAnswers((reply,) * len(asks))

    monkeypatch.setattr("benchsuite.benches.serving.sampled.ask_all", answered)
    outputs = itertools.cycle(read)  # of the control, and of the other
    monkeypatch.setattr("benchsuite.benches.serving.certified.echoed", lambda *_, **__: next(outputs))
    endpoints = [Endpoint("plain", "http://x"), Endpoint("spec", "http://y")]
    [found] = certify(endpoints, [str(n) for n in range(400)], Ask("", 64, temperature=1.0))
    assert found.state == "inconclusive", found.lines
    assert isinstance(found.evidence, SampledEvidence)


@pytest.mark.slow
@pytest.mark.parametrize(("change", "state"), [(0, "certified"), (1, "differs, not judged")])
def test_a_reply_without_log_probabilities_among_others_is_no_bug(change: int, state: str, assemble: Make) -> None:
    with OurServer(assemble().engine(None, k=0)) as plain, Heard(assemble().engine("ngram", k=4)) as spec:
        spec.silent, spec.change = PROMPTS[1], change
        [found] = served(plain, spec)
    assert found.state == state, found.lines


@pytest.mark.slow
def test_a_plain_server_that_is_not_itself_judges_nobody(assemble: Make) -> None:
    engines = [assemble().engine(None, k=0) for _ in range(2)]
    with OurServer(engines[0], Bugs(change=5)) as plain, OurServer(engines[1]) as spec:
        [found] = served(plain, spec, tokens=24)
    assert found.state == "inconclusive", found.lines
    assert "plain asked twice is not itself" in found.lines[0]


def test_a_server_that_chooses_by_other_numbers_than_it_lists_is_not_judged() -> None:
    """llama-cpp-python penalises repeats unless told otherwise, and lists log-probabilities from before that."""
    top = (("a", -1.3), ("b", -2.97), ("c", -2.98))
    found = compare_outputs(0, [Token("b", None, -2.97, top)], [Token("c", None, -2.98, top)], BOUND)
    assert found is not None
    assert found.kind == "not judged"
    found = compare_outputs(0, [Token("a", None, -1.3, top)], [Token("c", None, -2.98, top)], BOUND)
    assert found is not None
    assert found.kind == "bug"


@pytest.mark.parametrize(("second", "state"), [(-3.0, "certified"), (-0.2, "inconclusive")])
def test_equal_outputs_of_which_no_change_would_be_found_are_not_certified(
    second: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every place is a near tie: another token there would pass as rounding."""
    reply = Reply("a", (listed("a", ("a", -0.1), ("b", second)),), (), 0.0, None, None, None, 1, {})

    def answered(connect: Connect, endpoint: Endpoint, asks: Sequence[Ask], at_once: int = 1) -> ServedAnswers:
        return ServedAnswers((reply,) * len(asks))

    for module in ("certified", "greedy", "echoes"):
        monkeypatch.setattr(f"benchsuite.benches.serving.{module}.ask_all", answered)
    [found] = certify([Endpoint("plain", "http://x"), Endpoint("spec", "http://y")], ["x"], Ask("", 1))
    assert found.state == state, found.lines


def test_sampling_with_a_filter_has_no_certificate() -> None:
    with pytest.raises(ValueError, match="got top_p 0.9"):
        certify([Endpoint("a", "http://x"), Endpoint("b", "http://y")], ["x"], Ask("", 4, temperature=1, top_p=0.9))


PROMPTS = ["hello there my friend", "def main(x):", "one two three one two", "the cat sat on the mat, and then"]


@pytest.mark.slow
def test_an_honest_pair_is_certified_over_http(assemble: Make) -> None:
    with OurServer(assemble().engine(None, k=0)) as plain, OurServer(assemble().engine("ngram", k=4)) as spec:
        [found] = served(plain, spec)
    assert found.state == "certified", found.lines
    assert found.endpoint == "spec1"
    assert "4 of 4 outputs are plain's" in found.lines[0]
    assert "is found with 99 %" in found.lines[0]


@pytest.mark.slow
def test_changed_tokens_are_found_over_http(assemble: Make) -> None:
    """One token in 20, and one in 5."""
    engines = [assemble().engine("ngram", k=4) for _ in range(2)]
    with (
        OurServer(assemble().engine(None, k=0)) as plain,
        OurServer(engines[0], Bugs(change=20)) as some,
        OurServer(engines[1], Bugs(change=5)) as many,
    ):
        certificates = served(plain, some, many, tokens=40)
    for found in certificates:
        text = "\n".join(found.lines)
        assert found.state == "bug", text
        assert "FAILED" in text
        assert "plain's list: " in text
        assert "the prompt: " in text


@pytest.mark.slow
def test_a_prompt_given_twice_is_asked_and_counted_once(assemble: Make) -> None:
    with OurServer(assemble().engine(None, k=0)) as plain, OurServer(assemble().engine("ngram", k=4)) as spec:
        endpoints = [Endpoint("plain", plain.url), Endpoint("spec", spec.url)]
        twice, once = (certify(endpoints, PROMPTS[:1] * n, Ask("", 6), "float32")[0] for n in (2, 1))
    assert twice == once
    assert "1 of 1 outputs" in once.lines[0]


WEATHER = [f"{word} and then {word} again, " for word in ("sun", "rain", "snow", "wind", "fog", "hail")]


@pytest.mark.slow
def test_one_changed_token_in_200_is_found_among_so_many_tokens_as_the_certificate_says(assemble: Make) -> None:
    """Of 1,200 tokens six are changed; the honest server's certificate says that one in 200 is found with 99 %."""
    engines = [assemble(max_length=256).engine(draft, k=k) for draft, k in ((None, 0), ("ngram", 4), ("ngram", 4))]
    with (
        OurServer(engines[0]) as plain,
        OurServer(engines[1]) as honest,
        OurServer(engines[2], Bugs(change=200)) as changed,
    ):
        true, false = served(plain, honest, changed, prompts=WEATHER, tokens=200)
    assert true.state == "certified", true.lines
    assert isinstance(true.evidence, GreedyEvidence)
    assert (true.evidence.one_in or 0) >= 200
    assert false.state == "bug", false.lines


@pytest.mark.deep  # a temperature of 1.2 and one of 0.85 are found in make test
def test_a_slightly_higher_temperature_is_found_with_the_tokens_that_the_certificate_asks_for(assemble: Make) -> None:
    """The honest server's certificate says how many tokens 1.2 times the temperature needs; with more, it is found."""
    engines = [assemble(max_length=512).engine(None, k=0) for _ in range(3)]
    with (
        OurServer(engines[0]) as plain,
        OurServer(engines[1]) as honest,
        OurServer(engines[2], Bugs(heat=1.2)) as hot,
    ):
        true, false = served(plain, honest, hot, prompts=WEATHER, tokens=400, temperature=1.0)
    assert true.state == "certified", true.lines
    assert isinstance(true.evidence, SampledEvidence)
    assert true.evidence.needs is not None
    assert true.evidence.needs[1] <= 2400
    assert false.state == "bug", false.lines


@pytest.mark.slow
def test_a_server_without_logprobs_is_not_judged(assemble: Make) -> None:
    engines = [assemble().engine(draft, k=k) for draft, k in ((None, 0), (None, 0), ("ngram", 4))]
    with (
        OurServer(engines[0], Bugs(no_logprobs=True)) as plain,
        OurServer(engines[1], Bugs(no_logprobs=True, change=5)) as changed,
        OurServer(engines[2], Bugs(no_logprobs=True)) as honest,
    ):
        states = [found.state for found in served(plain, changed, honest)]
    assert states == ["differs, not judged", "certified"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "state", "hot"), [(150, "inconclusive", "bug"), (2, "inconclusive", "inconclusive")], ids=["many", "few"]
)
def test_a_sampled_pair_is_read_under_plains_list_over_http(tokens: int, state: str, hot: str, assemble: Make) -> None:
    """An honest server, and one at 1.5 times the temperature. Of the tiny model's flat distribution a server's lists do
    not reach the end of a nucleus."""
    # The text of 150 sampled tokens may have as many again when it is read.
    engines = [assemble(max_length=512).engine("garbage", "rejection", k=2) for _ in range(2)]
    with (
        OurServer(assemble(max_length=512).engine(None, k=0)) as plain,
        OurServer(engines[0]) as spec,
        OurServer(engines[1], Bugs(heat=1.5)) as other,
    ):
        certificates = served(plain, spec, other, tokens=tokens, temperature=1.0)
    for found, expected in zip(certificates, (state, hot), strict=True):
        assert found.state == expected, found.lines
        assert isinstance(found.evidence, SampledEvidence)
        assert found.evidence.tokens == 4 * tokens
        assert "a top_p of 0.95 ends behind every list" in found.lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["numbers", "text alone"])
def test_a_local_model_judges_servers_that_say_nothing(named: bool, assemble: Make) -> None:
    """The judge is the servers' own tiny model. Without numbers few of its texts are the same tokens again: of those
    that are, none is suspected, and where none is nothing is said."""
    judge = LocalJudge("tiny")
    judge._model = assemble().target.twin()  # the catalog's tiny model has other weights
    engines = [assemble().engine("ngram", k=4) for _ in range(2)]
    with (
        OurServer(assemble().engine(None, k=0), Bugs(no_logprobs=not named)) as plain,
        OurServer(engines[0], Bugs(no_logprobs=not named)) as honest,
        OurServer(engines[1], Bugs(no_logprobs=not named, change=8)) as changed,
    ):
        endpoints = [Endpoint("plain", plain.url), Endpoint("honest", honest.url), Endpoint("changed", changed.url)]
        true, false = certify(endpoints, PROMPTS, Ask("", 24), "float32", read=judge.read)
    if named:
        assert (true.state, false.state) == ("certified", "bug"), (true.lines, false.lines)
        assert "4 read by the local judge" in true.lines[0]
        assert "4 read by the local judge" in false.lines[0]
    else:
        assert true.state in ("certified", "inconclusive")
        assert false.state in ("bug", "inconclusive", "differs, not judged")


def test_a_local_judge_reads_a_text_only_where_its_tokens_are_known() -> None:
    judge = LocalJudge("tiny")
    ask = Ask("hello", 3)

    def reply(text: str, counted: int, reason: str = "length") -> Reply:
        return Reply(text, (), (), 1.0, 5, counted, reason, 1, {})

    read = judge.read(ask, reply("abc", 3))
    assert read is not None
    assert [token.id for token in read] == judge._tokenizer("abc")["input_ids"]
    assert all(len(token.top) == 5 and token.logprob is not None for token in read)
    assert judge.read(ask, reply("abc", 4)) is None, "the server counted other tokens"
    assert judge.read(ask, reply("abc", 4, "stop")) is not None, "it counted the end token"
    assert judge.read(ask, reply("\ufffd", 1)) is None, "a part of a character"


def test_other_temperatures_have_no_certificate() -> None:
    with pytest.raises(ValueError, match="needs 0 or 1"):
        certify([Endpoint("a", "http://x"), Endpoint("b", "http://y")], ["x"], Ask("", 4, temperature=0.7))


def test_a_pair_that_nobody_answers_is_inconclusive() -> None:
    dead = Endpoint("plain", "http://127.0.0.1:1", "m", retries=0)
    [found] = certify([dead, Endpoint("spec", "http://127.0.0.1:1", "m", retries=0)], ["x"], Ask("", 4))
    assert (found.state, "refused" in found.lines[0]) == ("inconclusive", True)


def test_two_tokens_that_plain_finds_equally_likely_are_as_far_apart_as_the_other_finds_them() -> None:
    plain, other = listed("a", ("a", -0.5), ("b", -0.5)), listed("b", ("b", -0.4), ("a", -0.6))
    found = compare_outputs(0, [plain], [other], BOUND)
    assert found is not None
    assert found.kind == "tie"
    assert found.gap == pytest.approx(0.2)
