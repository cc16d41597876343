"""A comparison of made-up runners: what is asked of each of them and when, what is kept, and what a failure costs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch

from benchsuite.judge.agreement import Agreement
from benchsuite.judge.fidelity import Fidelity
from benchsuite.judge.ties import Difference
from benchsuite.measure.arms import Arm
from benchsuite.measure.paired import (
    Series,
    agreements,
    broken,
    checked,
    contract_of,
    engine_of,
    logs,
    repeats,
)
from benchsuite.measure.peers import PeerRunner
from benchsuite.measure.runners import FailedRunner, Outcome
from benchsuite.measure.units import Unit
from benchsuite.measure.watchdog import RunTimeout
from benchsuite.tests.comparison_rig import (
    OTHER,
    OURS,
    PEER,
    PLAIN,
    MadeUpPeer,
    Scripted,
    Surroundings,
    distinct_units,
    scripted_answer,
)
from benchsuite.tests.rig import SETTING
from specdec import DraftCounts, Request, SpecdecError
from specdec.peer import Generation


def test_arms_are_warmed_up_once_and_peers_before_engines() -> None:
    ground = Surroundings()
    peer, runners = Scripted(PEER, ground.said), [Scripted(arm, ground.said) for arm in (PLAIN, OURS)]
    comparison, units = ground.comparison(*runners, peer), distinct_units(2)
    comparison.measure(units)
    first = replace(units[0].requests[0], params=replace(units[0].requests[0].params, max_new_tokens=8))
    warmed = [
        (arm, what, *given)
        for arm in ("made up", "plain", "ngram")
        for what, *given in (("warm_up", first), ("run", (first,)))
    ]
    assert [one for one in ground.said if first in one or (first,) in one] == warmed
    texts = [one[1] for one in ground.of("progress")]
    assert texts[:3] == ["warming up made up", "warming up plain", "warming up ngram"]
    limits = [one[1] for one in ground.of("limit")]
    assert limits[:3] == ["made up, warming up", "plain, warming up", "ngram, warming up"]
    comparison.measure(units)
    assert len([one for one in ground.said if one[1] == "warm_up"]) == 3


def test_each_unit_is_primed_and_run_by_every_arm_after_it_has_forgotten() -> None:
    ground, units = Surroundings(), distinct_units(3, size=2)
    runners = [Scripted(PLAIN, ground.said), Scripted(OURS, ground.said), Scripted(OTHER, ground.said, learns=True)]
    comparison = ground.comparison(*runners)
    comparison.measure(units[:1])
    for start, end in ((0, 1), (1, 3)):
        del ground.said[:]
        if start:
            comparison.measure(units[1:])
            assert ground.said[:3] == [("limit", "tree, forgetting"), ("tree", "forget"), ("end", "tree, forgetting")]
            del ground.said[:3]
        for number, unit in enumerate(units[start:end] if start else []):
            place = f"prompt {number + 1}/2"
            primed = [
                event
                for r in unit.requests
                for event in (
                    ("limit", f"plain decoding of {place}"),
                    ("prime", r),
                    ("end", f"plain decoding of {place}"),
                )
            ]
            assert ground.said[:6] == primed
            del ground.said[:6]
            seen = []
            for _ in runners:
                _, text = ground.said[0]
                label = text.removeprefix(f"{place}: ")
                inner: list[tuple[Any, ...]] = [] if label == "tree" else [(label, "forget")]
                inner = [
                    ("limit", f"{label}, {place}"),
                    *inner,
                    (label, "run", unit.requests),
                    ("end", f"{label}, {place}"),
                ]
                assert ground.said[1 : 1 + len(inner)] == inner
                del ground.said[: 1 + len(inner)]
                seen.append(label)
            assert sorted(seen) == ["ngram", "plain", "tree"]
    assert ground.said == [("progress", f"checking {label}") for label in ("plain", "ngram", "tree")]
    assert comparison.whole


def drawn_orders(seed: int) -> list[tuple[str, ...]]:
    """The order of three arms over twelve units."""
    ground = Surroundings()
    comparison = ground.comparison(
        *(Scripted(replace(arm, setting=SETTING.replaced(seed=seed)), ground.said) for arm in (PLAIN, OURS, OTHER))
    )
    comparison.measure(distinct_units(12))
    runs = [one[0] for one in ground.said if one[1] == "run"][3:]
    return [tuple(runs[at : at + 3]) for at in range(0, 36, 3)]


def test_the_order_of_arms_is_drawn_anew_for_each_unit_by_the_settings_seed() -> None:
    first = drawn_orders(0)
    assert first == drawn_orders(0) != drawn_orders(1)
    assert len(set(first)) > 3
    assert {frozenset(order) for order in first} == {frozenset(("plain", "ngram", "tree"))}


def test_a_budget_ends_between_units_and_never_before_the_first() -> None:
    ground = Surroundings()
    comparison = ground.comparison(Scripted(PLAIN, ground.said), Scripted(OURS, ground.said))
    comparison.measure(distinct_units(4), lambda: True)
    assert [len(series.outcomes) for series in comparison.series.values()] == [1, 1]
    comparison.measure(distinct_units(4), lambda: True)
    assert [len(series.outcomes) for series in comparison.series.values()] == [1, 1]
    comparison.measure(distinct_units(4), lambda: len(comparison.series[PLAIN].outcomes) >= 3)
    assert [series.compared for series in comparison.series.values()] == [0, 3], "what was run is checked"
    comparison.measure(distinct_units(2))
    assert [len(series.outcomes) for series in comparison.series.values()] == [5, 5]


def test_a_series_holds_each_run_beside_plains_of_the_same_unit_with_its_memory() -> None:
    ground, units = Surroundings(), distinct_units(3)
    runner = Scripted(OURS, ground.said, {1: (1, 2)}, condition={"dtype": "int8"})
    comparison = ground.comparison(Scripted(PLAIN, ground.said), runner)
    runner.condition["compile"] = "in part"
    comparison.measure(units)
    ours, plain = comparison.series[OURS], comparison.series[PLAIN]
    assert (ours.units, plain.units) == (units, units)
    assert [outcome.tokens for outcome in ours.outcomes] == [
        [scripted_answer(units[0].requests[0])],
        [(1, 2)],
        [scripted_answer(units[2].requests[0])],
    ]
    assert [a is b for a, b in zip(ours.plain, plain.outcomes, strict=True)] == [True] * 3
    assert all(outcome.memory["rss"] > 10**6 for outcome in ours.outcomes)
    threads = {"threads": str(torch.get_num_threads())}
    assert ours.conditions == {"dtype": "int8", "compile": "in part", **threads}
    assert plain.conditions == {"dtype": "float32", **threads}
    assert (ours.dtype, ours.contract, ours.engine, ours.repeats, ours.learns, ours.learnt) == (
        torch.bfloat16,
        "exact",
        "",
        True,
        False,
        False,
    )
    assert ours.outputs == [
        (unit.requests[0].prompt, outcome.tokens[0]) for unit, outcome in zip(units, ours.outcomes, strict=True)
    ]


REFUSAL, SLOW, BROKEN = SpecdecError("no room"), RunTimeout("too slow"), ValueError("odd")


@pytest.mark.parametrize("what", ["warm_up", "run", "forget"])
@pytest.mark.parametrize(("error", "ended"), [(REFUSAL, "refused"), (SLOW, "timeout"), (BROKEN, "crashed")])
def test_an_arm_that_raises_ends_its_own_row_by_name(what: str, error: Exception, ended: str) -> None:
    ground, units = Surroundings(), distinct_units(2)
    failing = Scripted(OURS, ground.said, raises={what: error})
    comparison = ground.comparison(Scripted(PLAIN, ground.said), failing, Scripted(OTHER, ground.said))
    comparison.measure(units)
    ours, other = comparison.series[OURS], comparison.series[OTHER]
    place = r" \(ValueError, .*comparison_rig\.py:\d+\)" if ended == "crashed" else ""
    assert ours.error
    assert re.fullmatch(f"ngram could not be measured: {error}{place}", ours.error)
    assert (ours.ended, ours.failure, ours.failed) == (ended, ours.error, ended)
    assert (len(ours.outcomes), ours.compared, other.compared, other.error) == (0, 0, 2, None)
    assert Counter(one[1] for one in ground.said if one[0] == "ngram")[what] == 1, "asked again after it failed"
    assert comparison.whole


class Secretive(Scripted):
    """Does not say its conditions."""

    def conditions(self) -> dict[str, str]:
        """Raise an error."""
        raise BROKEN


def test_an_arm_that_raises_where_it_is_first_asked_is_asked_nothing_more() -> None:
    ground = Surroundings()
    silent = Secretive(OURS, ground.said)
    comparison = ground.comparison(Scripted(PLAIN, ground.said), silent, Scripted(OTHER, ground.said))
    comparison.measure(distinct_units(2))
    ours, other = comparison.series[OURS], comparison.series[OTHER]
    assert (ours.ended, ours.outcomes, other.compared, other.error) == ("crashed", [], 2, None)
    assert (ours.error or "").startswith("ngram could not be measured: odd (ValueError, ")
    assert not [one for one in ground.said if one[0] == "ngram"]


def test_with_debugging_an_error_has_its_traceback() -> None:
    ground = Surroundings()
    failing = Scripted(OURS, ground.said, raises={"run": BROKEN})
    comparison = ground.comparison(Scripted(PLAIN, ground.said), failing, debug=True)
    comparison.measure(distinct_units(1))
    first, second, *rest = (comparison.series[OURS].error or "").splitlines()
    assert first.startswith("ngram could not be measured: odd (ValueError, ")
    assert second == "Traceback (most recent call last):"
    assert rest[-1] == "ValueError: odd"


def test_what_plain_decoding_raises_ends_the_comparison() -> None:
    ground = Surroundings()
    comparison = ground.comparison(Scripted(PLAIN, ground.said, raises={"run": BROKEN}), Scripted(OURS, ground.said))
    with pytest.raises(ValueError, match="odd"):
        comparison.measure(distinct_units(1))
    assert not comparison.whole
    assert comparison.series[PLAIN].error is None


def test_outputs_that_differ_are_judged_once_with_the_batch_that_was_run() -> None:
    tie = Difference(1, 2, (9, 3), None, None, (0.0, 0.0), 0.1, True, "close")
    for exact in (["yes", "yes"], ["yes", "no"], ["no", "yes"], [None, "yes"]):
        ground, units = Surroundings(verdicts=[tie]), distinct_units(2, size=2)
        plain, ours = (
            Scripted(arm, ground.said, condition={"exact": text} if text else {})
            for arm, text in zip((PLAIN, OURS), exact, strict=True)
        )
        ours.script = {1: (8, 8), 2: ()}
        comparison = ground.comparison(plain, ours)
        comparison.measure(units)
        comparison.measure(units[:1])
        series = comparison.series[OURS]
        judged = [one for one in ground.said if one[0] == "judge"]
        pairs = [(units[n // 2].requests, units[n // 2].requests[n % 2]) for n in (1, 2, 1)]
        whole = exact == ["yes", "yes"]
        assert judged == [
            ("judge", requests, request, (scripted_answer(request), ours.script[request.id]), whole)
            for requests, request in pairs
        ]
        assert (series.compared, series.equal, series.tokens) == (6, 3, 6 * 4)
        assert series.differences == [tie] * 3
        limits = [one[1] for one in ground.of("limit") if one[1].endswith("check")]
        assert limits == ["plain, repeated for the check", "ngram, repeated for the check"] * 3
        assert [one[3:] for one in ground.said if one[1] == "logits_at"] == [(1, 2), (2, 2), (1, 2)]
        assert checked([series]) == "3/6, 3 ties"


def test_sampled_outputs_are_examined_whether_they_differ_or_not() -> None:
    ground = Surroundings()
    setting = SETTING.replaced(temperature=1.0)
    arms = [replace(arm, setting=setting) for arm in (PLAIN, OURS, PEER)]
    comparison = ground.comparison(*(Scripted(arm, ground.said, {1: (3, 3)} if arm.draft else {}) for arm in arms))
    comparison.measure(distinct_units(3, temperature=1.0))
    peer = comparison.series[arms[2]]
    assert (peer.contract, peer.fidelity.tokens) == ("distribution", 12)
    series = comparison.series[arms[1]]
    assert series.contract == "distribution"
    assert (series.fidelity.tokens, series.fidelity.agreed, series.fidelity.plain_tokens) == (10, 8, 12)
    assert series.fidelity.plain_surprise == 3.0
    assert (series.compared, series.equal, series.differences) == (3, 2, [])
    assert (series.fidelity.favour.outputs, peer.fidelity.favour.outputs) == (0, 3), "a lookup for its draft"


def test_a_peer_of_its_own_arithmetic_is_set_beside_plain_and_its_own_engine() -> None:
    ground, units = Surroundings(), distinct_units(2)
    engine, faster = Arm(SETTING, peer="made_up"), Arm(SETTING, peer="made_up_faster(k=2)")
    own = PeerRunner(engine, MadeUpPeer(own_arithmetic=True))
    quick = PeerRunner(faster, MadeUpPeer(own_arithmetic=True, reference="made_up"))
    comparison = ground.comparison(Scripted(PLAIN, ground.said, {1: (8, 9, 1)}), own, quick)
    comparison.measure(units)
    comparison.measure(units[:1])
    one, two = comparison.series[engine], comparison.series[faster]
    assert (one.contract, one.engine, two.engine) == ("own", "made_up", "made_up")
    same, other = Agreement(1, 1, 4, 4), Agreement.of((8, 9, 1), scripted_answer(units[1].requests[0]))
    assert one.agreed == two.agreed == same + other + same
    assert (one.referred, two.referred) == (Agreement(), Agreement(3, 3, 12, 12))
    assert agreements([one]) == checked([one]) == (same + other + same).summary
    assert agreements([two, two]) == f"{(two.agreed + two.agreed).summary}; with made up 6/6 equal"
    assert agreements([Series(engine, "own")]) is None


def test_of_several_servers_that_which_others_are_compared_with_is_named() -> None:
    """Two rows said "with endpoint", and neither which."""
    ground, units = Surroundings(), distinct_units(2)
    first, second = (Arm(SETTING, peer=f"endpoint(url=http://localhost:{n}, name={n})") for n in (1, 2))
    peers = [PeerRunner(arm, MadeUpPeer(own_arithmetic=True)) for arm in (first, second)]
    comparison = ground.comparison(Scripted(PLAIN, ground.said), *peers)
    comparison.measure(units)
    said = {arm: checked([comparison.series[arm]]) for arm in (first, second)}
    assert said == {first: "2/2 equal", second: "2/2 equal; with endpoint 1 2/2 equal"}


def test_a_server_is_compared_with_the_one_that_is_its_plain_decoding_wherever_it_stands() -> None:
    ground, units = Surroundings(), distinct_units(2)
    options = ("1, name=one", "2, name=fast, plain=two", "3, name=two")
    arms = [Arm(SETTING, peer=f"endpoint(url=http://localhost:{text})") for text in options]
    peers = [PeerRunner(arm, MadeUpPeer(own_arithmetic=True)) for arm in arms]
    comparison = ground.comparison(Scripted(PLAIN, ground.said), *peers)
    comparison.measure(units)
    said = [comparison.series[arm].reference for arm in arms]
    assert said == ["", "endpoint two", ""], "two is plain itself"


def test_a_sampled_peer_of_its_own_arithmetic_is_compared_with_nothing() -> None:
    setting = SETTING.replaced(temperature=1.0)
    plain, peer = (replace(arm, setting=setting) for arm in (PLAIN, PEER))
    ground = Surroundings()
    comparison = ground.comparison(Scripted(plain, ground.said), PeerRunner(peer, MadeUpPeer(own_arithmetic=True)))
    comparison.measure(distinct_units(2, temperature=1.0))
    assert comparison.series[peer].agreed == Agreement()
    assert checked([comparison.series[peer]]) is None


@pytest.mark.parametrize(
    ("temperature", "own", "promise"),
    [(0.0, False, "exact"), (0.5, False, "distribution"), (0.0, True, "own"), (1.0, True, "own")],
)
def test_a_peers_promise_follows_from_its_arithmetic_and_the_temperature(
    temperature: float, own: bool, promise: str
) -> None:
    arm = replace(PEER, setting=SETTING.replaced(temperature=temperature))
    runner = PeerRunner(arm, MadeUpPeer(own_arithmetic=own))
    assert (contract_of(runner), engine_of(runner), repeats(runner)) == (promise, "made_up", True)
    assert engine_of(PeerRunner(replace(arm, peer="made_up(k=3)"), MadeUpPeer())) == "made_up"
    assert engine_of(PeerRunner(arm, MadeUpPeer(reference="another"))) == "another"
    assert engine_of(Scripted(arm, [])) == ""


def test_units_are_ratios_of_costs_averaged_over_the_runs_of_each() -> None:
    run = Outcome([(1, 2)], 3.0, 1.0, 2, [[(1.0, 1)]], 1, 5.0)
    units = [Unit((), number) for number in (0, 1, 0, 1, 2)]
    costs = [(1.0, 2.0), (1.0, 4.0), (2.0, 16.0), (4.0, 4.0), (5.0, 5.0)]
    ours = Series(OURS, "exact", units, [replace(run, decode_s=mine) for mine, _ in costs])
    base = Series(PLAIN, "exact", units, [replace(run, decode_s=theirs) for _, theirs in costs])
    expected = [(log(2) + log(8)) / 2, (log(4) + log(1)) / 2, 0.0]
    assert logs(ours, base, lambda outcome: outcome.seconds_per_token) == pytest.approx(expected)
    base.outcomes[4] = replace(base.outcomes[4], decoded=0)
    ours.outcomes[3] = replace(ours.outcomes[3], decoded=0)
    del base.outcomes[5:]
    assert logs(ours, base, lambda outcome: outcome.decode_s) == pytest.approx([expected[0], log(4)])
    assert logs(replace(ours, outcomes=ours.outcomes[:1]), base, lambda outcome: outcome.decode_s) == [log(2)]


BUG = Difference(0, 3, (5, 6), None, None, (1.0, 0.5), 1e-5, False, "wrong")
TIE = replace(BUG, tie=True)


@pytest.mark.parametrize(
    ("arm", "contract", "fields", "said"),
    [
        (PLAIN, "exact", {}, "baseline"),
        (OURS, "exact", {"compared": 3, "equal": 3}, "6/6"),
        (OURS, "exact", {"compared": 3, "equal": 2, "differences": [TIE], "tokens": 10**5}, "4/6, 2 ties"),
        (OURS, "exact", {"compared": 3, "equal": 2, "differences": [BUG, TIE]}, "FAILED: 2 of 6 differ"),
        (OURS, "exact", {"compared": 3, "equal": 3, "error": "broke"}, "FAILED: could not be measured"),
        (OURS, "exact", {"compared": 3, "equal": 0, "differences": [TIE] * 9, "tokens": 20}, "FAILED: 0/6, 18 ties"),
        (OURS, "distribution", {}, None),
        (OURS, "lossy", {}, None),
        (
            OURS,
            "lossy",
            {"fidelity": Fidelity([0] * 10, 3, 4, 4 * log(2), 4, 4 * log(3))},
            "75% agree; ppl 2.00 for 3.00",
        ),
        (OURS, "own", {"agreed": Agreement(2, 1, 8, 6)}, "2/4 equal, 75% before"),
    ],
)
def test_the_result_of_a_check_is_that_of_all_series_together(
    arm: Arm, contract: Any, fields: dict[str, Any], said: str | None
) -> None:
    assert checked([Series(arm, contract, **fields), Series(arm, contract, **fields)]) == said


def test_a_distribution_that_is_not_the_targets_fails_and_says_why() -> None:
    uneven, even = Fidelity([200, *[0] * 9], 0, 200, 1.0, 200, 1.0), Fidelity([20] * 10, 0, 200, 1.0, 200, 1.0)
    bad, good = Series(OURS, "distribution", fidelity=uneven), Series(OURS, "distribution", fidelity=even)
    assert broken([good]) == []
    assert (good.failure, good.failed) == (None, None)
    assert broken([bad]) == [uneven.failure] == [bad.failure]
    assert bad.failed == "contract"
    assert checked([bad]) == f"FAILED: {uneven.summary}"
    assert checked([good]) == even.summary
    assert broken([Series(OURS, "lossy", fidelity=uneven)]) == []
    many = Series(OURS, "exact", differences=[TIE] * 9, tokens=20)
    assert len(broken([many])) == 1
    assert "9 certified ties in 20 compared tokens" in broken([many])[0]
    both = Series(OURS, "exact", differences=[BUG, TIE, replace(BUG, index=9)], tokens=10**5)
    assert broken([both]) == [str(BUG), str(replace(BUG, index=9))]
    assert both.failure == f"{BUG}\n{replace(BUG, index=9)}"


def test_an_arm_that_could_not_be_built_says_so_whatever_it_is_asked() -> None:
    runner = FailedRunner(OURS, BROKEN)
    request = distinct_units(1)[0].requests[0]
    calls: list[Callable[[], object]] = [
        lambda: runner.warm_up(request),
        lambda: runner.run([request]),
        lambda: runner.tokens([request]),
        lambda: runner.logits_at([request], 0, 0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="odd"):
            call()
    runner.forget()
    assert (runner.conditions(), runner.set_up_seconds, runner.learns) == ({}, {}, False)


def test_a_peer_that_batches_is_asked_once_and_its_decoding_begins_with_the_last_first_token() -> None:
    requests = list(distinct_units(1, size=3)[0].requests)
    for batches, calls, wall, decoding, decoded in ((True, 1, 9.0, 2.0, 2), (False, 3, 15.0, 6.0, 6)):
        peer = MadeUpPeer(batches=batches, set_up_seconds={"load": 1.5})
        runner = PeerRunner(PEER, peer)
        outcome = runner.run(requests)
        assert [len(call) for call in peer.asked] == [len(requests) // calls] * calls
        assert (outcome.wall_s, outcome.decode_s, outcome.decoded, outcome.forwards) == (wall, decoding, decoded, 3)
        assert outcome.tokens == [scripted_answer(request) for request in requests] == runner.tokens(requests)
        assert [len(one) for one in outcome.emissions] == [2] * 3
        assert outcome.mean_length == sum(len(r.prompt) + 2 for r in requests) / 3
        assert (runner.set_up_seconds, runner.described(), runner.learns) == ({"load": 1.5}, "made up", False)
        assert runner.logits_at(requests, 1, 0) is None
        assert runner.conditions() == {}


class OddPeer(MadeUpPeer):
    """A made-up peer whose generations are planted."""

    made: list[Generation]

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """As planted."""
        return self.made


def test_a_peer_without_later_tokens_took_no_time_to_decode_and_may_not_count_forwards() -> None:
    request = distinct_units(1)[0].requests[0]
    outcome = PeerRunner(PEER, OddPeer(made=[Generation((1, 2), ((3.0, 2),), 4.0)])).run([request])
    assert (outcome.wall_s, outcome.decode_s, outcome.decoded, outcome.forwards) == (4.0, 0.0, 0, None)
    several = PeerRunner(PEER, OddPeer(made=[Generation((1, 2), ((3.0, 1), (5.0, 1)), 6.0, 0)])).run([request])
    assert (several.decode_s, several.decoded, several.forwards) == (3.0, 1, 0)
    together = ((3.0, 1), (3.0, 2), (5.0, 1))
    outcome = PeerRunner(PEER, OddPeer(made=[Generation((1, 2, 3, 4), together, 5.0)])).run([request])
    assert (outcome.emissions, outcome.decode_s, outcome.decoded, outcome.tpot_s) == (
        [[(3.0, 3), (5.0, 1)]],
        2.0,
        1,
        [2.0],
    )
    ended = [Generation((1, 2), ((2.0, 1), (3.0, 1)), 3.0), Generation((1,), ((3.0, 1),), 3.0)]
    outcome = PeerRunner(PEER, OddPeer(made=ended, batches=True)).run(distinct_units(1, 2)[0].requests)
    assert (outcome.decode_s, outcome.decoded) == (0.0, 0), "the one ended as the other began"


def test_the_counts_of_a_peers_requests_are_added_and_known_only_if_every_request_has_them() -> None:
    steps = [[(2, 1)], [(3, 3), (1, 0)]]
    made = [Generation((1,), ((1.0, 1),), 1.0, counts=DraftCounts.of_steps(one)) for one in steps]
    requests = distinct_units(1, 2)[0].requests
    outcome = PeerRunner(PEER, OddPeer(made=made, batches=True)).run(requests)
    assert outcome.counts == DraftCounts.of_steps([*steps[0], *steps[1]])
    made = [made[0], replace(made[1], counts=None)]
    assert PeerRunner(PEER, OddPeer(made=made, batches=True)).run(requests).counts is None


@pytest.mark.parametrize(
    "made",
    [
        [],
        [Generation((1,), ((1.0, 1),), 1.0)] * 2,
        [Generation((), (), 1.0)],
        [Generation((1, 2), ((1.0, 1),), 1.0)],
    ],
)
def test_generations_of_which_no_time_could_be_told_are_refused(made: list[Generation]) -> None:
    said = [(len(one.tokens), sum(count for _, count in one.emissions)) for one in made]
    with pytest.raises(SpecdecError) as refused:
        PeerRunner(PEER, OddPeer(made=made)).run(distinct_units(1)[0].requests)
    assert str(refused.value) == (
        f"the peer made_up returned {said} (tokens, tokens of its emissions) for 1 requests; expected equal numbers of "
        "at least 1 for each request"
    )
