"""Rows at their edges: runs without tokens, records or a partner, and every key of the JSON of a run and a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import log
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.judge.fidelity import Fidelity
from benchsuite.judge.ties import Difference
from benchsuite.measure.arms import Arm
from benchsuite.measure.interval import NONE, WITHIN, Estimate, estimate
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import (
    Machine,
    Row,
    _by_position,
    hinges,
    make_rows,
    op_calls,
    summed,
    text_of,
    vllm_names,
)
from benchsuite.measure.runners import Outcome
from benchsuite.measure.units import Unit
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.report.tables import SHARES
from benchsuite.tests.rig import SETTING
from specdec import DraftCounts
from specdec.devices import Stopwatch
from specdec.stats import Call, Marks, RowStep, Stats, Step, StepTimes

HERE = Machine("tiny", "reference", "cpu", "float32", 1000, 10, 1e6, 77)
BASE, OURS = Arm(SETTING), Arm(SETTING, draft="ngram", k=2)
PEER = Arm(SETTING, peer="transformers")
RUN = Outcome([(1, 2, 3, 4)], 5.0, 4.0, 4, [[(1.0, 1), (5.0, 3)]], 4, 20.0)
FASTER = [1.5, 1.6, 1.55, 1.7, 1.45, 1.62]


def _series(arm: Arm, *runs: Outcome, **fields: Any) -> Series:
    """A series of one run for each unit."""
    return Series(arm, "exact", [Unit((), n) for n in range(len(runs))], list(runs), list(runs), **fields)


def _row(ours: Series, plain: Series, workload: str = "chat") -> Row:
    """The row of an arm whose workload is ``workload``; plain's is chat."""
    return make_rows({BASE: {"chat": plain}, ours.arm: {workload: ours}}, BASE, HERE, "chat", None, {})[ours.arm]


def _sped(*ratios: float) -> tuple[Series, Series]:
    """A peer that is so many times as fast, and plain."""
    ours = [replace(RUN, decode_s=4.0 / ratio, wall_s=5.0 / ratio) for ratio in ratios]
    return _series(PEER, *ours), _series(BASE, *[RUN] * len(ratios))


def test_without_plain_again_there_is_no_noise_that_a_speedup_must_exceed() -> None:
    row = _row(*_sped(*FASTER))
    assert (row.info["verdict"], row.info["units"], row.method) == ("faster", 6, WITHIN)
    assert row.info["marks"] == []


def test_a_speedup_that_one_prompt_makes_is_marked() -> None:
    assert _row(*_sped(*[1.01, 1.02, 1.0, 1.03, 1.01, 1.02, 9.0])).info["marks"] == ["one prompt"]


def test_a_peer_whose_prompts_were_in_a_cache_has_no_time_from_the_prompt_on() -> None:
    """Neither its own nor one beside it, whichever of the two is the baseline; speeds of decoding stay."""
    ours, plain = _sped(*FASTER)
    cached = replace(ours, outcomes=[replace(run, warm=True, wall_s=run.wall_s / 9) for run in ours.outcomes])
    named = ("ttft_ms", "ttft_draft_ms", "e2e_s", "e2e_speedup", "e2e_low", "e2e_high")
    cold, warm = _row(ours, plain), _row(cached, plain)
    assert None not in [cold.info[name] for name in named]
    assert [warm.info[name] for name in named] == [None] * 6
    assert (warm.whole.speed, warm.verdict, warm.info["tpot_ms"]) == (None, cold.verdict, cold.info["tpot_ms"])
    assert (cold.info["marks"], warm.info["marks"]) == ([], ["warm"])
    turned = make_rows({BASE: {"chat": plain}, PEER: {"chat": cached}}, PEER, HERE, "chat", None, {})[BASE]
    assert (turned.whole.speed, turned.info["marks"]) == (None, [])
    assert turned.info["speedup"] == pytest.approx(1 / warm.info["speedup"])


@pytest.mark.parametrize(("named", "verdict"), [("learns", None), ("learnt", "not comparable")])
def test_a_draft_that_learns_is_marked_and_one_that_does_not_forget_is_compared_with_nothing(
    named: str, verdict: str | None
) -> None:
    ours, plain = _sped(2.0)
    setattr(ours, named, True)
    row = _row(ours, plain)
    assert (row.info["marks"], row.info["verdict"], row.method) == (["learns"], verdict, NONE)


def test_an_arm_that_shares_no_workload_with_the_baseline_has_no_speedup() -> None:
    ours, plain = _sped(*FASTER)
    row = _row(ours, plain, workload="code")
    names = ("speedup", "speedup_low", "speedup_high", "units", "verdict", "marks", "e2e_speedup")
    assert [row.info[name] for name in names] == [None, None, None, 0, None, [], None]
    assert row.info["tokens_per_s"] is not None
    assert (row.ratios, row.n, row.method) == ({}, 0, "")


def test_runs_in_which_nothing_was_decoded_have_no_speed_and_are_no_failure() -> None:
    nothing = replace(RUN, tokens=[(1,)], decode_s=0.0, decoded=0, emissions=[[(1.0, 1)]], forwards=0)
    plain = _series(BASE, nothing)
    rows = make_rows({BASE: {"chat": plain}, OURS: {"chat": _series(OURS, nothing)}}, BASE, HERE, "chat", None, {})
    assert [rows[arm].info["verdict"] for arm in (BASE, OURS)] == ["baseline", None]
    for row in rows.values():
        assert (row.failure, row.info["failed"], row.info["tokens_per_s"], row.rounds) == (None, None, None, ())
    only = _row(_series(OURS, RUN), plain).info
    assert (only["plain_tokens_per_s"], only["speedup"]) == (None, None)


def test_every_failure_has_its_line_and_its_kind() -> None:
    bugs = [Difference(0, n, (5, 6), None, None, (1.0, 0.5), 1e-5, False, f"bug {n}") for n in (1, 2)]
    ours, plain = _sped(2.0)
    ours.differences += bugs
    row = _row(ours, plain)
    assert row.failure == "\n".join(map(str, bugs))
    assert (row.info["failed"], row.info["verdict"]) == ("contract", "FAILED")
    two = {"chat": ours, "code": replace(ours, differences=bugs[:1])}
    pools: dict[Arm, Any] = {BASE: {"chat": plain}, PEER: two}
    assert make_rows(pools, BASE, HERE, "all", None, {})[PEER].failure == "\n".join(map(str, [*bugs, bugs[0]]))
    ended = replace(ours, differences=[], error="it broke", ended="crashed")
    assert (_row(ended, plain).failure, _row(ended, plain).info["failed"]) == ("it broke", "crashed")


def test_a_failure_of_workloads_together_alone_is_one_of_the_contract() -> None:
    shifted = Fidelity([26, 26, 26, 26, 26, 12, 12, 12, 12, 12], 0, 190, 1.0, 190, 1.0)
    ours, plain = _sped(2.0)
    parts = {name: replace(ours, contract="distribution", fidelity=shifted) for name in ("a", "b", "c", "d")}
    rows = make_rows({BASE: dict.fromkeys(parts, plain), PEER: parts}, BASE, HERE, "all", None, {})
    assert all(part.failed is None for part in parts.values())
    assert rows[PEER].info["failed"] == "contract"


@pytest.mark.parametrize(("forwards", "tau"), [((0, 4), 2.0), ((2, None), None), ((0, 0), None), ((2, 8), 0.8)])
def test_a_peers_tokens_per_forward_need_the_forwards_of_every_run(
    forwards: tuple[int | None, ...], tau: float | None
) -> None:
    runs = [replace(RUN, forwards=count) for count in forwards]
    assert _row(_series(PEER, *runs), _series(BASE, RUN, RUN)).info["tau"] == tau


def test_the_bytes_that_move_are_known_only_if_every_run_says_so_and_the_weights_are_the_targets() -> None:
    plain = _series(BASE, RUN, RUN)
    whole = 2 * 4 * (1000 + 10 * 20) / 8 / 1e6
    assert _row(_series(OURS, RUN, RUN), plain).info["mbu"] == pytest.approx(whole)
    assert _row(_series(OURS, RUN, replace(RUN, forwards=None)), plain).info["mbu"] is None
    assert _row(replace(_series(OURS, RUN, RUN), contract="own"), plain).info["mbu"] is None
    assert _row(_series(OURS, RUN, replace(RUN, forwards=0)), plain).info["mbu"] == pytest.approx(whole / 2)


def test_a_share_of_the_bandwidth_above_one_is_kept_and_shown_as_none() -> None:
    """The bandwidth was measured beside other work, or a cache holds the weights."""
    plain = _series(BASE, RUN, RUN)
    whole = 2 * 4 * (1000 + 10 * 20) / 8
    for bandwidth, mbu, shown in ((whole * 1.01, 1 / 1.01, "0.99"), (whole * 0.99, 1 / 0.99, ">1"), (whole, 1, "1.00")):
        row = make_rows(
            {BASE: {"chat": plain}, OURS: {"chat": _series(OURS, RUN, RUN)}},
            BASE,
            replace(HERE, bandwidth=bandwidth),
            "all",
            None,
            {},
        )[OURS]
        assert row.info["mbu"] == pytest.approx(mbu)
        [cell] = [column.cell(row) for column in SHARES if column.header == "MBU"]
        assert cell == shown


def test_memory_is_the_most_of_each_kind_and_a_run_may_lack_one() -> None:
    runs = [replace(RUN, memory=memory) for memory in ({"host": 0, "device": 5}, {}, {"device": 7, "rss": -2})]
    assert _row(_series(OURS, *runs), _series(BASE, *runs)).info["memory"] == {"host": 0, "device": 7, "rss": 0}


def test_plain_again_is_named_by_its_label_and_proposes_nothing() -> None:
    again = Arm(SETTING, again=True, k=3)
    info = _row(_series(again, RUN), _series(BASE, RUN)).info
    names = ("draft", "policy", "controller", "num_speculative_tokens")
    assert [info[name] for name in names] == ["plain again", None, None, 0]


def test_a_speedup_without_both_ends_of_an_interval_is_not_put_in_words() -> None:
    whole = Estimate(1.5, 1.2, 1.9, 6, "by hand")
    assert SpeedVerdict(whole, 0.0, None).label == "faster"
    for part in (None, replace(whole, low=None), replace(whole, high=None)):
        assert SpeedVerdict(part, 0.0, None).label is None


def test_a_speedup_of_exactly_five_percent_may_hinge_on_a_prompt() -> None:
    logs = {"kind": [0.0] * 6 + [0.4]}
    speed = Estimate(1.05, 1.0, 1.2, 7, "by hand")
    assert hinges(logs, speed)
    assert not hinges(logs, replace(speed, ratio=1.0499, high=1.2))


def test_a_prompt_that_makes_exactly_half_of_a_speedup_is_not_more_than_half_of_it() -> None:
    logs = {"kind": [log(2)] * 6 + [8 * log(2)]}  # without the last one the factor is two, of four
    assert not hinges(logs, Estimate(4.0, 1.0, 20.0, 7, "by hand"))
    assert hinges(logs, Estimate(4.001, 1.0, 20.0, 7, "by hand"))


def test_an_interval_must_be_less_than_half_as_wide_without_the_prompt() -> None:
    rest = [log(1.9), log(2.0), log(2.1), log(1.95), log(2.05), log(2.0)]
    width = estimate({"kind": rest}).half_width
    assert width is not None
    logs = {"kind": [*rest, 15.0]}
    for factor, named in ((1.9, False), (2.1, True), (2.9, True)):
        assert hinges(logs, Estimate(16.0, 1.0, 16.0 * (1 + factor * width), 7, "by hand")) is named
    assert not hinges({"kind": [0.0] * 6 + [9.0]}, Estimate(4.0, 4.0, 4.0, 7, "by hand")), "no width has no half"


def test_a_pass_that_is_not_whole_or_decoded_nothing_is_no_round() -> None:
    units = [Unit((), n) for n in range(2)]
    runs = [replace(RUN, decode_s=seconds) for seconds in (1.0, 3.0, 5.0, 7.0, 100.0)]
    ours = Series(OURS, "exact", [*units, *units, units[0]], runs, runs)
    assert _row(ours, ours).rounds == pytest.approx((4 / 8, 12 / 8))
    silent = [replace(run, decoded=0) for run in runs[2:4]]
    ours = Series(OURS, "exact", [*units, *units], [*runs[:2], *silent], runs)
    assert _row(ours, ours).rounds == pytest.approx((4 / 8,))


def _stats() -> Stats:
    """Records of one step of two rows."""
    stats = Stats(Stopwatch.recorded([0.5 * n * n for n in range(16)]))
    each = (RowStep(3, 2, 1, 2), RowStep(4, 4, 0, 1))
    stats.steps.append(replace(Step.of(each, 5, Marks(*range(10))), k=6))
    stats.calls += [Call("admit", 10, 11), Call("release", 11, 12), Call("move", 12, 13), Call("keep", 13, 15)]
    stats.counts.update(num_emitted_tokens=3, num_drafts=2, num_draft_tokens=7, num_accepted_tokens=1, allocations=4)
    stats.accepted_per_pos, stats.proposed_per_pos = [1], [2, 2, 1, 1]
    stats.ops = Counter({("sample", "cpu"): 2, ("linear", "reference"): 1, ("linear", "cpu"): 5})
    return stats


def test_json_has_every_field_of_a_run_and_of_a_step() -> None:
    stats = _stats()
    runs = [RUN, replace(RUN, stats=stats, wall_s=6.0, decode_s=3.5, decoded=2, forwards=1, draft_bytes=9)]
    ours = _series(OURS, *runs[::-1])
    row = _row(ours, _series(BASE, *runs))
    shared = {"workload": "chat", "emissions": RUN.emissions, "mean_length": 20.0}
    with_stats = {"wall_s": 6.0, "decode_s": 3.5, "decoded": 2, "forwards": 1, "draft_bytes": 9}
    without = {"wall_s": 5.0, "decode_s": 4.0, "decoded": 4, "forwards": 4, "draft_bytes": 0}
    times = {"draft_prefill_s": 60.5 - 50.0, "draft_between_s": 84.5 - 60.5}
    none = {"draft_prefill_s": 0.0, "draft_between_s": 0.0}
    assert row.measured == [{**shared, "unit": 0, **with_stats, **times}, {**shared, "unit": 1, **without, **none}]
    spent: StepTimes = stats.times(stats.steps[0])
    counts = {"run": 0, "k_used": 6, "width": 5, "rows": 2, "proposed_len": 7, "accepted_len": 1, "emitted": 3}
    parts = {"control": "control", "draft": "draft", "verify": "target", "accept": "accept", "commit": "commit"}
    taken = {f"{name}_ms": 1e3 * getattr(spent, part) for name, part in {**parts, "host": "host"}.items()}
    [step] = row.steps
    assert step == {**counts, "each": stats.steps[0].each, **taken}
    assert len({round(value, 6) for value in taken.values()}) > 3, "parts that cannot be exchanged"


def test_vllms_names_are_those_of_its_own_report() -> None:
    counters = {"num_drafts": 2, "num_draft_tokens": 7, "num_accepted_tokens": 3}
    figures = replace(
        _row(_series(OURS, RUN), _series(BASE, RUN)).figures,
        counters=counters,
        mean_acceptance_length=2.5,
        acceptance_rate=0.4,
        acceptance_histogram={"1": 1, "2": 1},
    )
    assert vllm_names(figures) == {
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.4,
        "acceptance_histogram": {"1": 1, "2": 1},
        "num_spec_steps": 2,
        "num_draft_tokens": 7,
        "num_accepted_draft_tokens": 3,
    }
    for nothing in (None, {**counters, "num_drafts": 0}):
        assert vllm_names(replace(figures, counters=nothing)) is None


def test_counters_add_up_over_runs_but_for_the_largest_allocation() -> None:
    """Lists of unequal length are added by position, and a counter that only one run has counts."""
    one, two = _stats(), _stats()
    two.accepted_per_pos, two.counts["allocations"], two.counts["odd"] = [2, 1, 1], 9, 5
    one.counts["first"] = 3
    runs = [replace(RUN, stats=stats) for stats in (one, two)]
    found = summed([*runs, RUN])
    expected = {"num_emitted_tokens": 6, "num_drafts": 4, "num_draft_tokens": 14, "num_accepted_tokens": 2}
    expected |= {"allocations": 9, "first": 3, "target_forwards": 0}
    assert {name: found[name] for name in expected} == expected
    assert found["num_accepted_tokens_per_pos"] == [3, 1, 1]
    assert summed([RUN]) == summed([]) == {}
    assert summed(runs[:1])["allocations"] == 4
    assert op_calls([*runs, RUN]) == {("sample", "cpu"): 4, ("linear", "reference"): 2, ("linear", "cpu"): 10}


def test_the_acceptance_of_steps_follows_from_their_rows() -> None:
    info = _row(_series(OURS, replace(RUN, stats=_stats())), _series(BASE, RUN)).info
    assert info["tau"] == 3 / 2
    assert info["acceptance_rate"] == 1 / 7
    assert info["mean_acceptance_length"] == 1 + 1 / 2
    assert info["acceptance_by_position"] == [1 / 2, 0, 0, 0]
    assert info["acceptance_histogram"] == {"0": 1, "1": 1}
    assert list(info["counters"]["ops"].items()) == [("linear", {"cpu": 5, "reference": 1}), ("sample", {"cpu": 2})]
    idle = _stats()
    idle.steps = [Step.of((RowStep(0, 0, 0, 1),), 1, Marks(*range(10)))]
    idle.counts, idle.accepted_per_pos, idle.proposed_per_pos = Counter(num_emitted_tokens=1), [], []
    info = _row(_series(OURS, replace(RUN, stats=idle)), _series(BASE, RUN)).info
    names = ("acceptance_rate", "mean_acceptance_length", "acceptance_by_position", "acceptance_histogram")
    assert [info[name] for name in names] == [None] * 4


def test_a_peers_acceptance_is_what_its_engine_counted_in_all_of_its_runs() -> None:
    runs = [replace(RUN, counts=DraftCounts.of_steps(steps)) for steps in ([(2, 2), (1, 0)], [(2, 1), (0, 0)])]
    row = _row(_series(PEER, *runs), _series(BASE, RUN, RUN))
    info = row.info
    assert (info["acceptance_rate"], info["mean_acceptance_length"]) == (3 / 5, 2.0)
    assert (info["acceptance_by_position"], info["acceptance_histogram"]) == ([2 / 3, 1 / 2], {"0": 1, "1": 1, "2": 1})
    assert info["counters"] == {
        "num_drafts": 3,
        "num_draft_tokens": 5,
        "num_accepted_tokens": 3,
        "num_accepted_tokens_per_pos": [2, 1],
    }
    assert (vllm_names(row.figures) or {})["num_spec_steps"] == 3
    silent = _row(_series(PEER, runs[0], RUN), _series(BASE, RUN, RUN)).info
    assert (silent["counters"], silent["acceptance_rate"], silent["acceptance_histogram"]) == (None, None, None)


def test_latencies_are_medians_over_requests_and_percentiles_over_gaps() -> None:
    runs = [
        replace(RUN, emissions=[[(0.1, 1), (0.3, 2), (0.6, 1)], [(0.5, 4)]]),
        replace(RUN, emissions=[[(0.2, 1), (1.2, 3)], []]),
    ]
    info = _row(_series(OURS, *runs), _series(BASE, *runs)).info
    names = ("ttft_ms", "tpot_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms", "ttft_draft_ms")
    later = 1e3 * (0.5 / 3 + 1.0 / 3) / 2
    # Of the gaps 0.2, 0.3 and 1.0, between the second and the third: 0.8 and 0.98 of the way.
    assert [info[name] for name in names] == pytest.approx([200, later, 300, 860, 986, 0.0])
    alone = _row(_series(OURS, replace(RUN, emissions=[[(0.5, 4)]])), _series(BASE, RUN)).info
    assert [alone[name] for name in names] == [500, None, None, None, None, 0.0]


def test_two_gaps_are_enough_for_percentiles() -> None:
    run = replace(RUN, emissions=[[(0.0, 1), (1.0, 1), (4.0, 1)]])
    assert _row(_series(OURS, run), _series(BASE, run)).info["itl_p50_ms"] == pytest.approx(2000)


def test_a_workloads_text_has_the_means_of_its_outputs() -> None:
    judge: Any = SimpleNamespace(entropy=lambda prompt, output: float(len(output)))
    plain = SimpleNamespace(outputs=[((1, 2, 3), (1, 2, 3)), ((7,), (8, 9, 10, 11, 12)), ((1, 2, 3), (1, 2, 3))])
    found = text_of(plain, judge)  # type: ignore[arg-type]
    assert found is not None
    assert found.entropy_bits == 4.0


def test_no_lists_have_no_positions() -> None:
    assert _by_position([]) == _by_position([[], []]) == []
    assert _by_position([[1], [], [2, 3]]) == [3, 3]
