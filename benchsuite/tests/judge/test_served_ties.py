"""Verdicts on served outputs at the bounds' very ends, as whole records, and the counts that their laws give."""

from __future__ import annotations

import pytest

from benchsuite.judge.logprob_ties import (
    Bound,
    Kind,
    ServedDifference,
    bound_of,
    compare_outputs,
    drifts,
    parting,
    relaxed_share,
    same_token,
    score_outputs,
    smallest_rate,
    tokens_needed,
    unclear,
)
from specdec_plugins.endpoints.replies import Token

NEAR = Bound(0.5, 0.0, 0, 0.5)
"""Up to 0.5 a tie, above it a bug."""

NOISY = Bound(1.0, 0.75, 4, 0.5)
"""Up to 1 a tie, above 1.5 a bug."""

STEP = 1 / 64
"""All numbers here are sums of such steps, so that every gap is exact."""

PART = "\ufffd"

Top = tuple[tuple[str, float], ...]


def _token(text: str, *top: tuple[str, float], chance: float | None = None) -> Token:
    return Token(text, None, chance, top)


def _only(plain: Token, other: Token, kind: Kind, gap: float | None) -> ServedDifference:
    """The difference of two outputs of one token each, of prompt 3."""
    return ServedDifference(3, 0, plain.text, other.text, kind, gap, (plain.top, other.top), "")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Token("x", 1), Token("y", 1), True),
        (Token("x", 1), Token("x", 2), False),
        (Token("x", 0), Token("x", 1), False),
        (Token("x", 1), Token("x"), True),
        (Token("x", 1), Token("y"), False),
        (Token("x"), Token("x"), True),
        (Token("x"), Token("y"), False),
    ],
)
def test_numbers_decide_where_both_tokens_have_one_and_texts_elsewhere(one: Token, other: Token, same: bool) -> None:
    assert same_token(one, other) is same_token(other, one) is same
    assert parting([one], [other]) == same
    assert parting([Token("a"), one, Token("b")], [Token("a"), other, Token("b")]) == (3 if same else 1)


def test_nothing_has_nothing_in_common() -> None:
    assert parting([], []) == parting([], [Token("a")]) == parting([Token("a")], []) == 0


def test_beyond_the_bound_and_below_plains_own_disagreement_lies_what_is_not_judged() -> None:
    assert (NEAR.sure, NOISY.sure, Bound(1.0, 0.25, 1, 0.5).sure) == (0.5, 1.5, 1.0)
    assert str(NEAR) == (
        "two tokens within 0.5 nats may change places: twice the largest disagreement of plain with itself, 0 over 0 "
        "log-probabilities, and at least 0.5"
    )
    assert str(Bound(1.0, 0.75, 1234, 0.5)) == (
        "two tokens within 1 nats may change places: twice the largest disagreement of plain with itself, 0.75 over "
        "1,234 log-probabilities, and at least 0.5, cut to 1; up to 1.5 is not judged"
    )


def test_the_bound_of_two_runs_counts_every_text_that_both_lists_have_once() -> None:
    """Up to the first different token and with it; nothing of a text that a list has twice or of half a character."""
    first = _token("a", ("a", -1.0), ("b", -2.0), ("mine", -3.0), (PART, -4.0))
    again = _token("a", ("a", -1.25), ("b", -2.0), ("its", -3.0), (PART, -9.0))
    twice = _token("c", ("c", -1.0), ("d", -2.0), ("d", -7.0))
    once = _token("c", ("c", -1.125), ("d", -9.0))
    differs, there = _token("x", ("x", -1.0), ("y", -1.5)), _token("y", ("x", -1.0), ("y", -1.5))
    after = _token("z", ("z", -1.0)), _token("z", ("z", -9.0))
    one, other = [first, twice, differs, after[0]], [again, once, there, after[1]]
    assert bound_of([(one, other)]) == bound_of([(other, one)]) == Bound(0.5, 0.25, 5, 0.01, 0.5)
    assert bound_of([(one, other), (one[:1], other)], "float32") == Bound(0.5, 0.25, 7, 0.01)
    assert bound_of([([after[0]], [_token("z", ("z", -1.75))]), (one, other)]) == Bound(1.0, 0.75, 6, 0.01, 0.5)
    assert bound_of([([after[0]], [_token("z", ("z", -1.375))])]) == Bound(0.75, 0.375, 1, 0.01, 0.5)
    assert bound_of([([after[0]], [_token("z", ("z", -1.125))])], "float16") == Bound(0.25, 0.125, 1, 0.1)
    assert bound_of([]) == bound_of([([], one)]) == Bound(0.01, 0.0, 0, 0.01, 0.5)


def test_where_the_precision_is_not_known_half_a_nat_is_neither_excused_nor_a_bug() -> None:
    """It may be rounding, and it may be a server that takes the second likeliest token on purpose."""
    unknown = Bound(0.01, 0.0, 9, 0.01, 0.5)
    assert unknown.sure == 0.5
    assert str(unknown).endswith(
        "and at least 0.01; up to 0.5 is not judged: name the servers' precision (--specdec-certify)"
    )
    assert "name the" not in str(Bound(0.6, 0.3, 9, 0.01, 0.5))
    for gap, kind in ((2**-7, "tie"), (2**-6, "not judged"), (0.5, "not judged"), (0.5 + STEP, "bug")):
        mine = _token("a", ("a", -1.0), ("b", -1.0 - gap), ("c", -9.0))
        found = compare_outputs(0, [mine], [_token("b", ("b", -1.0))], unknown)
        assert found is not None
        assert found.kind == kind


@pytest.mark.parametrize(
    ("text", "several"), [("a", False), ("b", True), ("c", True), ("z", False), (PART, True), (f"x{PART}y", True)]
)
def test_a_text_is_unclear_that_a_list_has_twice_or_that_holds_part_of_a_character(text: str, several: bool) -> None:
    assert unclear([("a", 0.0), ("b", -1.0), ("c", -2.0), ("b", -3.0), ("c", -4.0), ("c", -5.0)], text) is several
    assert unclear([], text) is (PART in text)


def test_lists_drift_that_are_further_apart_than_the_bound() -> None:
    plain = [_token(text, (text, -1.0), ("b", -2.0)) for text in "acdef"]
    moved = (0.5, 0.5 + STEP, 2.0, 1.0, 3.0)
    other = [_token(text, (text, -1.0), ("b", -2.0 - far)) for text, far in zip("acdxf", moved, strict=True)]
    assert drifts(plain, other, NEAR) == [(1, 0.5 + STEP), (2, 2.0), (3, 1.0)]
    assert drifts(plain, other, NOISY) == drifts(plain[:3], other, NOISY) == [(2, 2.0)]
    assert drifts(plain, other[:2], NEAR) == [(1, 0.5 + STEP)]
    assert drifts(plain, [], NEAR) == drifts([Token("a")], [Token("a")], NEAR) == []


@pytest.mark.parametrize(
    ("bound", "gap", "kind"),
    [
        (NEAR, 0.0, "tie"),
        (NEAR, 0.5, "tie"),
        (NEAR, 0.5 + STEP, "bug"),
        (NOISY, 1.0, "tie"),
        (NOISY, 1.0 + STEP, "not judged"),
        (NOISY, 1.5, "not judged"),
        (NOISY, 1.5 + STEP, "bug"),
    ],
)
def test_each_list_judges_a_difference_by_the_gap_between_its_two_tokens(bound: Bound, gap: float, kind: Kind) -> None:
    mine = _token("a", ("a", -1.0), ("x", -1.0), ("b", -1.0 - gap), ("y", -9.0))
    assert compare_outputs(3, [mine], [Token("b")], bound) == _only(mine, Token("b"), kind, gap)
    scored = _token("b", *mine.top, chance=-1.0 - gap)
    [found] = score_outputs(3, [scored], [Token("b")], bound)
    assert found == ServedDifference(3, 0, "a", "b", kind, gap, (mine.top, ()), "")
    level = _token("a", ("a", -1.0), ("b", -1.0))
    for its, chose in (
        (_token("b", ("b", -1.0), ("a", -1.0 - gap)), True),
        (_token("b", ("a", -1.0), ("b", -1.0 - gap)), not gap),
        (_token("b", ("z", 0.0), ("b", -1.0), ("a", -1.0 - gap)), False),
    ):
        expected: Kind = "not judged" if kind == "tie" and not chose else kind
        assert compare_outputs(3, [level], [its], bound) == _only(level, its, expected, gap)


@pytest.mark.parametrize(
    ("bound", "last", "kind"),
    [(NEAR, 0.5, "not judged"), (NEAR, 0.5 + STEP, "bug"), (NOISY, 1.5, "not judged"), (NOISY, 1.5 + STEP, "bug")],
)
def test_a_token_that_plains_list_lacks_is_as_far_as_its_last(bound: Bound, last: float, kind: Kind) -> None:
    mine = _token("a", ("a", -1.0), ("b", -1.25), ("c", -1.0 - last))
    assert compare_outputs(3, [mine], [Token("z")], bound) == _only(mine, Token("z"), kind, last)
    assert compare_outputs(3, [_token("a", ("a", -1.0))], [Token("z")], bound) == _only(
        _token("a", ("a", -1.0)), Token("z"), "not judged", 0.0
    )


def test_the_larger_gap_of_both_lists_is_the_differences() -> None:
    mine = _token("a", ("a", -1.0), ("b", -1.25))
    for other, gap in (
        (_token("b", ("b", -1.0), ("a", -1.125)), 0.25),
        (_token("b", ("b", -1.0), ("a", -1.375)), 0.375),
        (_token("b", ("b", -1.0), ("c", -9.0)), 0.25),
        (_token("b", ("a", -1.0), ("c", -9.0)), 0.25),
        (_token("b"), 0.25),
    ):
        assert compare_outputs(3, [mine], [other], NEAR) == _only(mine, other, "tie", gap)


@pytest.mark.parametrize("text", ["a", "b"])
def test_the_others_list_does_not_judge_where_it_has_one_of_the_two_texts_twice(text: str) -> None:
    mine = _token("a", ("a", -1.0), ("b", -1.25))
    other = _token("b", ("b", -1.0), ("a", -7.0), (text, -8.0))
    assert compare_outputs(3, [mine], [other], NEAR) == _only(mine, other, "tie", 0.25)


def test_the_others_list_saves_no_bug_of_plains() -> None:
    mine, other = _token("a", ("a", -1.0), ("b", -3.0)), _token("b", ("b", -1.0), ("a", -1.0))
    assert compare_outputs(3, [mine], [other], NEAR) == _only(mine, other, "bug", 2.0)


@pytest.mark.parametrize(
    ("values", "kind", "gap"),
    [((-1.25, -1.5), "tie", 0.5), ((-1.25, -1.5 - STEP), "not judged", 0.5 + STEP), ((-3.0, -4.0), "not judged", 3.0)],
)
def test_of_a_text_that_plains_list_has_twice_the_unlikelier_counts_and_accuses_nobody(
    values: tuple[float, float], kind: Kind, gap: float
) -> None:
    mine = _token("a", ("a", -1.0), ("b", values[0]), ("b", values[1]))
    assert compare_outputs(3, [mine], [Token("b")], NEAR) == _only(mine, Token("b"), kind, gap)


def test_without_a_list_of_plain_nothing_is_judged() -> None:
    other = _token("b", ("b", -1.0), ("a", -9.0))
    for mine in (Token("a"), Token("a", None, -0.5)):
        assert compare_outputs(3, [mine], [other], NEAR) == _only(mine, other, "not judged", None)


@pytest.mark.parametrize(
    ("chance", "own", "kind"),
    [
        (None, -1.5, "tie"),  # listed, at the bound's end
        (None, -1.5 - STEP, "not judged"),
        (-1.5, None, "tie"),  # by its own number alone
        (-1.5 - STEP, None, "not judged"),
        (-9.0, -1.5, "tie"),  # the likelier of both counts
        (-1.5, -9.0, "tie"),
        (-9.0, -9.0, "not judged"),
        (None, None, "tie"),  # its probability is nowhere
    ],
)
def test_a_server_that_did_not_take_its_likeliest_token_is_not_judged(
    chance: float | None, own: float | None, kind: Kind
) -> None:
    top: Top = (("b", -1.0), ("c", -1.25), *(() if own is None else (("a", own),)))
    mine = Token("a", None, chance, top)
    assert compare_outputs(3, [mine], [Token("c")], NEAR) == _only(mine, Token("c"), kind, 0.25)


def test_a_difference_is_told_with_the_last_sixty_signs_before_it() -> None:
    words = [Token(sign * 9) for sign in "abcdefgh"]
    mine, its = _token("x", ("x", -1.0), ("y", -4.0)), _token("y", ("y", -1.0))
    before = "".join(token.text for token in words)[12:]
    assert len(before) == 60
    [found] = [compare_outputs(5, [*words, mine, Token("z")], [*words, its, Token("w")], NEAR)]
    assert found == ServedDifference(5, 8, "x", "y", "bug", 3.0, (mine.top, its.top), before)
    assert str(found) == (
        f"prompt 5, token 8: plain 'x', here 'y': bug, 3 nats; after '{before}'; plain's list: 'x' -1.000, 'y' -4.000; "
        "the other's: 'y' -1.000"
    )
    assert str(_only(Token("a"), Token("b"), "not judged", None)) == (
        "prompt 3, token 0: plain 'a', here 'b': not judged, no list; after ''; plain's list: none; the other's: none"
    )
    assert str(_only(mine, its, "tie", 0.125)) == "prompt 3, token 0: plain 'x', here 'y': tie, 0.125 nats"


@pytest.mark.parametrize(
    ("bound", "top", "kind", "gap"),
    [
        (NEAR, (("a", -1.0), ("b", -1.5), ("c", -9.0)), "not judged", 0.5),
        (NEAR, (("a", -1.0), ("b", -1.5 - STEP), ("c", -9.0)), "bug", 0.5 + STEP),
        (NOISY, (("a", -1.0), ("b", -2.5)), "not judged", 1.5),
        (NOISY, (("a", -1.0), ("b", -2.5 - STEP)), "bug", 1.5 + STEP),
        (NEAR, (("a", -1.0),), "not judged", None),
        (NEAR, (), "not judged", None),
    ],
)
def test_an_end_is_judged_by_the_two_likeliest_tokens_where_the_other_output_goes_on(
    bound: Bound, top: Top, kind: Kind, gap: float | None
) -> None:
    start, going = [Token("x"), Token("y")], [Token("a", None, None, top), Token("z")]
    longer = [*start, *going]
    assert compare_outputs(3, longer, start, bound) == ServedDifference(3, 2, "a", "(end)", kind, gap, (top, ()), "xy")
    assert compare_outputs(3, start, longer, bound) == ServedDifference(3, 2, "(end)", "a", kind, gap, ((), top), "xy")
    assert compare_outputs(3, longer, longer, bound) is compare_outputs(3, [], [], bound) is None


def test_scored_tokens_are_told_one_by_one_as_far_as_both_outputs_reach() -> None:
    top: Top = (("a", -1.0), ("b", -2.0), ("b", -3.0))
    likeliest = _token("a", *top)
    listless = Token("b", None, -9.0)
    known, unknown = _token("b", *top, chance=-8.0), _token("b", *top)
    scored = [likeliest, listless, known, unknown, known]
    other = [Token("p"), Token("q"), _token("r", ("r", -0.5)), Token("s")]
    found = [
        ServedDifference(3, 2, "a", "r", "bug", 7.0, (top, (("r", -0.5),)), "ab"),  # its own number is no text
        ServedDifference(3, 3, "a", "s", "not judged", 2.0, (top, ()), "abb"),
    ]
    assert score_outputs(3, scored, other, NEAR) == found
    assert score_outputs(3, scored, other[:3], NEAR) == found[:1]
    assert score_outputs(3, scored[:3], other, NEAR) == found[:1]


def test_places_whose_two_likeliest_tokens_are_far_apart_are_counted_among_lists_of_two() -> None:
    gaps = (0.0, 0.5, 0.5 + STEP, 1.0, 1.5, 1.5 + STEP, 4.0)
    lists = [_token("a", ("a", -1.0), ("b", -1.0 - gap)) for gap in gaps]
    lists += [_token("a", ("a", -1.0), ("b", -1.5 - STEP), ("c", -1.5 - STEP))]
    outputs = [lists[:3], [], [*lists[3:], Token("a"), _token("a", ("a", -1.0))]]
    for bound, judged in ((NEAR, 6), (NOISY, 2)):
        rate = smallest_rate(outputs, bound)
        assert rate is not None
        assert (1 - 1 / rate) ** judged == pytest.approx(0.01, rel=1e-9)
    assert smallest_rate([[lists[-2]]], NEAR) == pytest.approx(1 / 0.99)
    assert smallest_rate([], NEAR) is smallest_rate([[Token("a")], lists[:2]], NEAR) is None
    assert smallest_rate([[lists[-2]] * 1000], NEAR) == pytest.approx(218, abs=0.5)


@pytest.mark.parametrize(("one_in", "share"), [(200, 1.0), (3.0, 0.25), (2.0, 1.0), (50.0, 0.5)])
def test_so_many_tokens_hold_no_change_that_is_judged_once_in_a_hundred_times(one_in: float, share: float) -> None:
    assert (1 - share / one_in) ** tokens_needed(one_in, share) == pytest.approx(0.01, rel=1e-9)


def test_the_share_of_relaxed_places_that_is_found_is_that_of_the_binomial() -> None:
    """Places within half a nat and beyond the bound: one of them changed is found, those within the bound are ties."""
    near = Bound(0.25, 0.0, 9, 0.25)
    lists = [_token("a", ("a", -1.0), ("b", -1.0 - gap)) for gap in (0.0, 0.25, 0.375, 0.5, 0.5 + STEP, 4.0)]
    count, share = relaxed_share([lists[:3], [], [*lists[3:], Token("a"), _token("a", ("a", -1.0))]], near)
    assert count == 4
    assert share is not None
    assert (1 - share) ** 2 == pytest.approx(0.01, rel=1e-9)
    assert relaxed_share([lists], NEAR) == (4, None), "all of them may be ties"
    assert relaxed_share([], near) == (0, None)
    assert relaxed_share([[lists[2]] * 100], near)[1] == pytest.approx(0.045, abs=5e-4)


def test_a_tie_is_not_judged_where_the_server_did_not_choose_the_likeliest_of_its_own_list() -> None:
    """A server that takes the second likeliest token says so itself, if it lists what it computed."""
    mine = _token("a", ("a", -1.0), ("b", -1.1))
    for best, kind in ((-1.05, "not judged"), (-1.0625 + 0.0005, "tie")):
        its = _token("b", ("a", best), ("b", -1.0625))
        found = compare_outputs(0, [mine], [its], Bound(0.25, 0.0, 9, 0.25))
        assert found is not None
        assert found.kind == kind
