"""Enumeration itself: scripts, tables, shapes and definitions, by hand and by counting."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact import enumerator, exact_runs
from benchsuite.conformance.exact.enumerator import (
    Script,
    Shape,
    chain,
    chain_rule,
    completions,
    drawn_trees,
    leaves,
    random_distribution,
    random_distributions,
    round_distance,
)
from benchsuite.conformance.exact.exact_runs import PROMPTS, adjusted_logits, output_distribution, run_distance, warped
from benchsuite.conformance.exact.keys import ASKED, KeyRecorder
from benchsuite.conformance.exact.shared_noise import Noise
from benchsuite.conformance.exact.table_target import TableDraft, random_table
from specdec import Context, Request, SamplingParams, Verdict, Window
from specdec_kernels.reference import Reference
from specdec_plugins.policies.rejection import Rejection


def test_every_path_of_decisions_is_taken_once_and_its_weight_is_the_product_of_its_chances() -> None:
    """A decision may depend on those before it; what cannot happen is no path."""
    first, after = [0.5, 0.25, 0.25, 0.0], {0: [0.125, 0.875], 1: [1.0, 0.0], 2: [0.5, 0.5]}

    def run(script: Script) -> tuple[int, int]:
        one = script.decide(first, "draw", 1)
        return one, script.decide(after[one], "coin", 2)

    expected = {(one, two): a * b for one, a in enumerate(first) if a for two, b in enumerate(after[one]) if a * b}
    assert completions(run) == expected
    exact = completions(run, exact=True)
    assert exact == {key: Fraction(chance) for key, chance in expected.items()}
    assert all(isinstance(chance, Fraction) for chance in exact.values())
    paths = []
    for script in leaves():
        run(script)
        paths.append((tuple(script.path), script.weight))
    assert len({path for path, _ in paths}) == len(paths) == len(expected)
    assert sum(weight for _, weight in paths) == 1


def test_equal_outcomes_of_several_paths_are_one_with_the_sum_of_their_chances() -> None:
    def run(script: Script) -> int:
        return script.decide([0.5, 0.5], "draw", 1) + script.decide([0.75, 0.25], "draw", 2)

    assert completions(run) == {0: 0.375, 1: 0.5, 2: 0.125}


def test_a_key_that_is_used_twice_decides_both_alike_unless_all_noise_is_new() -> None:
    def run(script: Script) -> tuple[int, int]:
        return script.decide([0.5, 0.5], "draw", 7), script.decide([0.5, 0.5], "draw", 7)

    assert completions(run) == {(0, 0): 0.5, (1, 1): 0.5}
    assert completions(run, exact=True) == {(0, 0): Fraction(1, 2), (1, 1): Fraction(1, 2)}
    assert completions(run, fresh=True) == dict.fromkeys(itertools.product((0, 1), repeat=2), 0.25)


def test_a_decision_of_one_outcome_uses_no_noise() -> None:
    """So its key may be that of a coin too, which two outcomes would forbid."""

    def run(script: Script) -> bool:
        script.decide([0.0, 1.0], "draw", 7)
        return script.decide([0.5, 0.5], "coin", 7) == 0

    assert completions(run) == {True: 0.5, False: 0.5}


def test_a_float_is_the_fraction_that_it_rounds_up_to_the_largest_denominator() -> None:
    """Two such fractions differ by at least 1e-12, far more than a float64 rounds; a prime below has its fractions."""
    assert 1 / enumerator.LARGEST**2 >= 1e-12
    share = Fraction(123_457, 999_983)

    def run(script: Script) -> int:
        return script.decide([float(share), float(1 - share)], "draw", 1)

    assert completions(run, exact=True) == {0: share, 1: 1 - share}
    with pytest.raises(AssertionError, match="is not one of fractions"):
        completions(lambda script: script.decide([0.3, 0.6], "draw", 1), exact=True)


def test_a_row_of_logits_that_is_no_distribution_is_no_decision() -> None:
    """Its token is the largest, beside a row that is drawn; without a key no row is."""
    logits = torch.tensor([[[0.0, math.inf, 1.0]], [[0.0, -math.inf, 0.0]]])
    keys = torch.tensor([[1], [2]])
    found = completions(lambda script: tuple(script.sample(logits, keys).flatten().tolist()))
    assert found == {(1, 0): 0.5, (1, 2): 0.5}
    plain = completions(lambda script: tuple(script.sample(logits[1:] + torch.arange(3), None).flatten().tolist()))
    assert plain == {(2,): 1.0}


def test_a_coin_of_more_than_one_is_certain_and_others_fall_as_often_as_they_say() -> None:
    chances = torch.tensor([[1.5, 0.25], [0.0, 0.5]])
    keys = torch.tensor([[1, 2], [3, 4]])
    found = completions(lambda script: tuple(map(tuple, script.accept(chances, keys).tolist())))
    expected = {((True, a), (False, b)): (0.25 if a else 0.75) * 0.5 for a in (True, False) for b in (True, False)}
    assert found == expected
    assert Script().accept(chances, keys).dtype == torch.bool


def test_the_row_of_a_round_is_sampled_without_filters_and_has_room_for_every_shape() -> None:
    for stream, rows in ((None, 1), (torch.tensor([3, 4]), 2)):
        context = enumerator.context(Reference(), stream)
        assert context.params.temperature.tolist() == [1.0] * rows
        assert (context.params.greedy, context.params.filtered, context.coupled) == (False, False, False)
        assert context.params.top_k.tolist() == context.params.min_p.tolist() == [0] * rows
        assert context.params.top_p.tolist() == context.length.tolist() == [1] * rows
        assert context.max_proposals.tolist() == context.max_proposals_host.tolist()
        assert min(context.max_proposals_host) >= 5
        assert context.tokens.shape == context.history.shape == (rows, context.tokens.shape[1])
        assert context.length_host.tolist() == [1] * rows
        assert {t.dtype for t in (context.tokens, context.length, context.request, context.params.stream)} == {
            torch.int64
        }
    assert context.params.stream.tolist() == [3, 4]


FORKED = Shape((-1, 0, 0, 1, 1, 2))


def test_the_ancestry_of_a_slot_leads_from_the_roots_child_to_it() -> None:
    assert [FORKED.ancestry(slot) for slot in range(6)] == [[], [1], [2], [1, 3], [1, 4], [2, 5]]
    assert (FORKED.depth, chain(3).depth, Shape((-1,)).depth) == (2, 3, 0)
    assert chain(3).parents == (-1, 0, 1, 2)


def test_a_sibling_is_drawn_from_what_its_elders_left() -> None:
    shares, slots = [0.5, 0.25, 0.25], [-1, 0, 1, 2, 0, 1]
    assert FORKED.without_elders(shares, slots, 1) == shares
    assert FORKED.without_elders(shares, slots, 2) == [0.0, 0.5, 0.5]
    assert FORKED.without_elders(shares, slots, 3) == shares, "another parent's child is no elder"
    assert FORKED.without_elders(shares, slots, 4) == [2 / 3, 1 / 3, 0.0]
    assert Shape((-1, 0, 0)).without_elders([1.0, 0.0], [-1, 0, 1], 2) == [0.0, 0.0], "nothing is left"


def test_the_trees_of_a_draft_are_all_that_it_can_draw_with_their_chances() -> None:
    q = {(): [0.5, 0.25, 0.25], (0,): [0.0, 0.0, 1.0], (1,): [0.5, 0.5, 0.0], (2,): [1.0, 0.0, 0.0]}
    found = {tuple(tokens): (weight, rows) for weight, tokens, rows in drawn_trees(Shape((-1, 0, 0, 1)), q, False)}
    assert sum(weight for weight, _ in found.values()) == pytest.approx(1)
    assert found.keys() == {
        (first, second, third)
        for first, second in itertools.permutations(range(3), 2)
        for third, share in enumerate(q[(first,)])
        if share
    }
    weight, rows = found[1, 0, 1]
    assert weight == pytest.approx(0.25 * (2 / 3) * 0.5)
    assert rows == [q[()], pytest.approx([2 / 3, 0.0, 1 / 3]), q[(1,)]]
    certain = [*drawn_trees(Shape((-1, 0, 0, 1)), q, True)]
    assert [rows for _, _, rows in certain] == [[]] * len(found)
    assert {tuple(tokens): weight for weight, tokens, _ in certain} == {
        key: weight for key, (weight, _) in found.items()
    }


def test_a_random_distribution_is_of_fractions_and_of_zeros_only_where_they_may_be() -> None:
    generator = np.random.default_rng(5)
    for zeros in (False, True):
        found = [random_distribution(generator, 3, zeros) for _ in range(300)]
        assert all(sum(map(Fraction, map(str, shares))) == pytest.approx(1) for shares in found)
        assert any(0.0 in shares for shares in found) == zeros
        assert len({tuple(shares) for shares in found}) > 200
    assert all(random_distribution(generator, 1, True) == [1.0] for _ in range(200)), "something is always possible"
    least = min(min(random_distribution(generator, 2, False)) for _ in range(2000))
    assert 0 < least < 0.05, "also 1 of many parts"
    every = random_distributions(generator, 2, 2)
    assert every.keys() == {(), (0,), (1,), *itertools.product((0, 1), repeat=2)}
    assert not any(0.0 in shares for _ in range(40) for shares in random_distributions(generator, 2, 2).values())


def test_the_chain_rule_multiplies_the_shares_after_each_prefix() -> None:
    p = {(): [0.25, 0.75], (0,): [0.5, 0.5], (1,): [0.125, 0.875]}
    assert chain_rule(p, 1, 2) == {(0,): 0.25, (1,): 0.75}
    assert chain_rule(p, 2, 2) == {(0, 0): 0.125, (0, 1): 0.125, (1, 0): 0.09375, (1, 1): 0.65625}


@pytest.mark.parametrize("zeros", [False, True])
def test_a_random_table_has_sixteenths_that_differ_and_depend_on_the_seed_and_the_history(zeros: bool) -> None:
    histories = [*itertools.product(range(3), repeat=4)]
    table, other = random_table("a", 3, zeros=zeros), random_table("b", 3, zeros=zeros)
    found = [table(history) for history in histories]
    for shares in found:
        assert sum(shares) == 1
        assert len({*shares}) == 3
        assert all((16 * share).is_integer() for share in shares)
    assert found == [random_table("a", 3, zeros=zeros)(history) for history in histories]
    assert found != [other(history) for history in histories]
    assert len({*found}) > 10
    places = {place for shares in found for place, share in enumerate(shares) if not share}
    assert places == ({0, 1, 2} if zeros else set())
    if not zeros:
        assert not any(0.0 in random_table("a", 3)(history) for history in histories)
    assert all((8 * share).is_integer() for share in random_table("a", 2, parts=8)((0,)))


def test_noise_that_was_drawn_with_lies_where_that_draw_was_made() -> None:
    """Of two tokens the point is a number from 0 to 1; of three equal ones each has a third, then half of the rest."""
    both = Noise.of(2)
    assert both.volume == 1
    assert both.chance(0, [Fraction(1, 4), Fraction(3, 4)]) == Fraction(1, 4)
    after = both.after(0, [Fraction(1, 4), Fraction(3, 4)])
    assert after.volume == Fraction(1, 4)
    assert after.chance(0, [Fraction(1, 2), Fraction(1, 2)]) == 1
    assert after.chance(1, [Fraction(1, 8), Fraction(7, 8)]) == Fraction(1, 2)
    three = [Fraction(1, 3)] * 3
    assert [Noise.of(3).chance(token, three) for token in range(3)] == three
    left = Noise.of(3).after(0, three)
    assert [left.chance(token, [Fraction(0), Fraction(1, 2), Fraction(1, 2)]) for token in (1, 2)] == [
        Fraction(1, 2)
    ] * 2
    assert [left.chance(token, three) for token in range(3)] == [1, 0, 0]
    floats = Noise.of(3).after(1, [0.5, 0.25, 0.25])
    assert floats.volume == pytest.approx(0.25)
    assert floats.chance(1, [0.5, 0.25, 0.25]) == pytest.approx(1)
    assert floats.chance(0, [0.5, 0.25, 0.25]) == pytest.approx(0, abs=1e-12)


def exact_request(**params: object) -> Request:
    """A request after the prompt 0 1."""
    return Request(0, (0, 1), SamplingParams(**{"temperature": 1.0, "max_new_tokens": 3, **params}))  # type: ignore[arg-type]


def test_logits_are_adjusted_as_the_definitions_say() -> None:
    """By hand, of three tokens after the prompt 0 1 and the output 1 1: a logit is the logarithm of a share."""
    shares, out = [0.5, 0.5, 0.0], (1, 1)
    half = math.log(0.5)
    assert adjusted_logits(shares, exact_request(), out) == [half, half, -math.inf]
    assert adjusted_logits(shares, exact_request(logit_bias={0: 2.0}), out) == [half + 2, half, -math.inf]
    assert adjusted_logits(shares, exact_request(repetition_penalty=2.0), out)[:2] == [2 * half, 2 * half]
    assert adjusted_logits(shares, exact_request(repetition_penalty=2.0, logit_bias={0: 2.0}), out)[0] == (half + 2) / 2
    assert adjusted_logits(shares, exact_request(repetition_penalty=2.0), ())[:2] == [2 * half, 2 * half], (
        "a prompt's too"
    )
    assert adjusted_logits(shares, exact_request(frequency_penalty=0.25), out)[:2] == [half, half - 0.5]
    assert adjusted_logits(shares, exact_request(presence_penalty=0.25), out)[:2] == [half, half - 0.25]
    assert adjusted_logits(shares, exact_request(bad_words=((1, 1, 0),)), out)[:2] == [-math.inf, half]
    assert adjusted_logits(shares, exact_request(bad_words=((0, 1, 0),)), ())[:2] == [-math.inf, half], (
        "begun in the prompt"
    )
    assert adjusted_logits(shares, exact_request(bad_words=((1, 0, 0),)), out)[:2] == [half, half]
    for least, forbidden in ((2, False), (3, True)):
        got = adjusted_logits(shares, exact_request(eos=(0,), min_new_tokens=least), out)
        assert got[:2] == [-math.inf if forbidden else half, half]


FILTERS: list[tuple[dict[str, object], list[float]]] = [
    ({}, [0.5, 0.25, 0.125, 0.125]),
    ({"temperature": 0.5}, [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
    ({"top_k": 2}, [2 / 3, 1 / 3, 0.0, 0.0]),
    ({"top_k": 4}, [0.5, 0.25, 0.125, 0.125]),
    ({"top_p": 0.5}, [1.0, 0.0, 0.0, 0.0]),
    ({"top_p": 0.6}, [2 / 3, 1 / 3, 0.0, 0.0]),
    ({"top_p": 0.8}, [4 / 7, 2 / 7, 1 / 7, 0.0]),
    ({"min_p": 0.5}, [2 / 3, 1 / 3, 0.0, 0.0]),
    ({"min_p": 0.51}, [1.0, 0.0, 0.0, 0.0]),
    ({"top_k": 2, "top_p": 0.6}, [1.0, 0.0, 0.0, 0.0]),
]
"""Parameters, and what they leave of a half, a quarter and two eighths."""


@pytest.mark.parametrize(("params", "left"), FILTERS)
def test_filters_leave_what_the_definitions_say(params: dict[str, object], left: list[float]) -> None:
    got = warped([0.5, 0.25, 0.125, 0.125], exact_request(**params), ())
    assert got == pytest.approx(left, abs=1e-12)


def test_an_output_alone_ends_at_an_end_token_or_at_its_length() -> None:
    def table(history: tuple[int, ...]) -> list[float]:
        return [0.5, 0.5] if len(history) == 2 else [0.25, 0.75]

    assert output_distribution(table, exact_request(max_new_tokens=2), 2) == pytest.approx(
        {(0, 0): 0.125, (0, 1): 0.375, (1, 0): 0.125, (1, 1): 0.375}
    )
    assert output_distribution(table, exact_request(max_new_tokens=2, eos=(0,)), 2) == pytest.approx(
        {(0,): 0.5, (1, 0): 0.125, (1, 1): 0.375}
    )
    assert (0, 0) not in output_distribution(table, exact_request(max_new_tokens=2, bad_words=((0, 0),)), 2)


def test_the_requests_of_exact_runs_are_of_two_tokens_and_have_prompts_of_their_own() -> None:
    assert {token for prompt in PROMPTS for token in prompt} == {0, 1}
    assert {*PROMPTS[0]} == {0, 1}
    assert len({*PROMPTS}) == len({len(prompt) for prompt in PROMPTS}) == 3
    [request] = exact_runs.one(4, top_k=3)
    assert (request.id, request.prompt) == (0, PROMPTS[0])
    assert request.params == SamplingParams(temperature=1.0, max_new_tokens=4, top_k=3)


def test_a_drafts_table_branches_unless_it_is_a_chain() -> None:
    table = random_table("q", 2)
    assert [TableDraft(table, shape).branches for shape in (chain(1), chain(3), FORKED)] == [False, False, True]


def test_a_recorder_keeps_the_keys_of_draws_and_coins_in_their_order() -> None:
    ops, keys = KeyRecorder(), torch.tensor([[3, 4]])
    logits = torch.zeros(1, 2, 5)
    ops.sample(logits, None)
    assert ops.sample(logits, keys).equal(Reference().sample(logits, keys))
    assert ops.accept(torch.tensor([[0.5]]), torch.tensor([[9]])).shape == (1, 1)
    assert ops.keys == [3, 4, 9]
    assert Counter(ops.keys).total() == 3
    assert ASKED.params.temperature == 1, "it draws"


class Zero(Rejection):
    """Keeps nothing, and goes on with token 0."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        none = torch.zeros_like(window.width)
        return Verdict(none[:, None], none, none)


def test_the_distance_of_a_policy_that_says_one_thing_is_the_chance_of_all_else() -> None:
    """Half the sum of differences: outcomes that never come count as much as those that come too often."""
    zero, p = Zero(None), {(): [0.25, 0.75], (0,): [0.5, 0.5], (1,): [0.125, 0.875]}  # type: ignore[arg-type]
    for certain in (False, True):
        far = round_distance(zero, p, {(): [0.5, 0.5], (0,): [0.25, 0.75], (1,): [0.5, 0.5]}, chain(1), certain)
        assert far == pytest.approx(1 - p[()][0])
    table, tokens = random_table(("p", 5), 2), 3
    all_zeros = math.prod(table((*PROMPTS[0], *[0] * length))[0] for length in range(tokens))
    assert run_distance(zero, 2, chain(1), exact_runs.one(tokens), seed=5) == pytest.approx(1 - all_zeros)


def test_two_requests_are_as_far_as_their_pairs_of_outputs() -> None:
    table = random_table(("p", 0), 2)
    requests = [Request(i, PROMPTS[i], SamplingParams(temperature=1.0, max_new_tokens=1)) for i in range(2)]
    both = table(PROMPTS[0])[0] * table(PROMPTS[1])[0]
    far = run_distance(Zero(None), 2, chain(1), requests, rows=2)  # type: ignore[arg-type]
    assert far == pytest.approx(1 - both)
