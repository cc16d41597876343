"""What a plugin gets that writes only what it must, and what a request is that says only what it must."""

from __future__ import annotations

from collections import Counter
from math import exp, log
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.conformance.models.tiny import registry
from specdec import (
    Backend,
    Controller,
    Draft,
    Generation,
    Peer,
    Policy,
    Request,
    SamplingParams,
    SpecdecError,
    calibration,
)
from specdec.calibration import Calibration, Point, forward_seconds, interpolated
from specdec.messages import Context, Verdict, Window


def test_a_request_that_says_nothing_is_greedy_and_of_64_tokens() -> None:
    assert vars(SamplingParams()) == {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 0,
        "max_new_tokens": 64,
        "eos": (),
        "stop": (),
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": (),
        "bad_words": (),
        "min_new_tokens": 0,
        "logprobs": None,
    }
    request = Request(3, (1,))
    assert request.params == SamplingParams()
    assert (request.emitted, request.keep) == (0, False)


class Least(Draft):
    """A draft that writes ``propose`` alone."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def propose(self, context: Context) -> Window:
        return Window.root(context)


def test_a_draft_that_only_proposes_asks_for_nothing_remembers_nothing_and_moves_by_beginning_again() -> None:
    draft: Any = Least()
    flags = ("needs_hidden", "needs_logits", "branches", "looks_up", "extends", "learns", "small_ops", "weight_bytes")
    assert [getattr(draft, name) for name in flags] == [False] * 7 + [0]
    assert draft.hidden_layers == ()
    assert type(draft.weight_bytes) is int
    draft.admit, draft.release = (
        lambda *given, name=name: draft.calls.append((name, *given)) for name in ("admit", "release")
    )
    request = Request(0, (1, 2))
    draft.move(2, 1, request, (1, 2, 3))
    draft.resume(4, request, (1, 2), "kept", 1)
    assert draft.calls == [("release", 2, (1, 2, 3)), ("admit", 1, request, (1, 2, 3)), ("admit", 4, request, (1, 2))]
    assert draft.keep(0, (1,)) is None
    assert draft.look_up(None, 0) == ()
    after, count = draft.extend(None, Window(*(torch.ones(2, 3).long(),) * 2, torch.ones(2).long()), 4)
    assert (after.tolist(), count.tolist()) == ([[0] * 4] * 2, [0, 0])
    assert draft.info() == {}
    assert draft.forget() is draft.prefilled(0, None, 0, None) is draft.observe(0, 0, 0, False) is None


def test_an_observe_that_is_not_told_whose_the_window_was_is_refused_by_name() -> None:
    with pytest.raises(SpecdecError) as refused:
        type("Old", (Draft,), {"__module__": "theirs", "observe": lambda self, window, verdict, hidden: None})
    assert str(refused.value) == (
        "observe of the draft theirs.Old takes (self, window, verdict, hidden); expected (self, window, verdict,"
        " hidden, own): since 0.2 own says whether the window is what this draft's propose returned. Write: def "
        "observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:"
    )
    for five in (
        lambda self, window, verdict, hidden, own: None,
        lambda self, *given: None,
        lambda self, window, *given, **named: None,
        lambda me, w, v, h, o, more=0: None,
    ):
        assert issubclass(type("New", (Draft,), {"observe": five}), Draft)
    for other in (lambda self, window: None, lambda self, a, b, c, d, e: None, lambda self, a, b, c, *, own: None):
        with pytest.raises(SpecdecError, match=r"observe of the draft .*\.New takes \(self, "):
            type("New", (Draft,), {"observe": other})


def test_the_keywords_of_a_drafts_class_reach_its_other_bases() -> None:
    class Registered:
        given: Any = None

        def __init_subclass__(cls, **given: Any) -> None:
            super().__init_subclass__()
            Registered.given = given

    type("Both", (Draft, Registered), {}, name="mine")
    assert Registered.given == {"name": "mine"}
    with pytest.raises(TypeError):
        type("Alone", (Draft,), {}, name="mine")


def test_policies_and_controllers_that_declare_nothing_claim_nothing() -> None:
    class Plain(Policy):
        def contract(self, params: SamplingParams) -> Any:
            return "lossy"

        def accept(self, logits: Any, window: Window, context: Context) -> Verdict:
            raise NotImplementedError

    class Still(Controller):
        max_k = 3

        def next_k(self, stats: Any) -> int:
            return 3

    policy = Plain()
    assert (policy.coupled, policy.trees, policy.raw, policy.chooses) == (False, False, False, False)
    controller = Still()
    assert (controller.deterministic, controller.k_option, controller.reads_confidence) == (True, None, False)


def test_a_peer_that_only_generates_runs_one_request_and_claims_our_arithmetic() -> None:
    class Quiet(Peer):
        def generate(self, requests: Any) -> list[Generation]:
            return []

        def described(self) -> str:
            return "quiet"

    peer = Quiet()
    assert (peer.batches, peer.needs_gguf, peer.reference, peer.own_arithmetic) == (False, False, None, False)
    assert (peer.set_up_seconds, peer.conditions(), peer.missing()) == ({}, {}, None)
    assert peer.logits_at(Request(0, (1,)), 0) is None
    assert Generation((1,), ((0.1, 1),), 0.2).forwards is None


BACKENDS: dict[str, tuple[str, int, tuple[str, ...], bool]] = {
    "cpu": ("level='auto', pack=True", 30, ("cpu",), True),
    "cuda": ("none", 100, ("cuda",), False),
    "flex": ("compiled=True", 4, ("cuda",), False),
    "reference": ("none", 10, ("cuda", "mps", "cpu"), False),
}
COPIES = {"rotary", "kv_append", "kv_compact", "kv_plan"}


def test_backends_declare_their_options_priority_devices_threads_and_ops_that_no_other_row_changes() -> None:
    for name, (options, priority, kinds, own_threads) in BACKENDS.items():
        entry = registry().entry("backend", name)
        made: Any = entry.factory
        assert entry.described == options
        assert (made.name, made.priority, made.devices, made.own_threads) == (name, priority, kinds, own_threads)
        if name != "cpu":
            assert made.row_invariant == COPIES
    assert Backend.row_invariant == frozenset()
    assert Backend.devices == ("cuda", "mps", "cpu")
    assert Backend.own_threads is False
    least: Any = SimpleNamespace()
    assert Backend.missing(least) is None
    assert Backend.ran(least) == Counter()
    weight = torch.ones(1)
    assert Backend.pack(least, weight) is weight


class Timed:
    """A target whose forward takes rows + 10 x width + 100 x length seconds, and a tenth more in every later round."""

    device, vocabulary = torch.device("cpu"), 7

    def __init__(self) -> None:
        self.now, self.arenas, self.asked = 0.0, list[tuple[int, ...]](), list[Point]()

    def arena(self, *sizes: int) -> Any:
        self.arenas.append(sizes)
        return SimpleNamespace(committed=torch.zeros(sizes[0], dtype=torch.int64))

    def forward(self, arena: Any, window: Window, rows: slice, longest: int) -> None:
        count, widest = window.tokens.shape
        widths = window.width.tolist()
        assert rows == slice(0, count)
        assert arena.committed.tolist() == [longest] * self.arenas[-1][0]
        assert widest == max(widths) <= min(widths) + 1
        point = Point(count, longest, sum(widths) / count)
        seen = self.asked.count(point)
        self.asked.append(point)
        self.now += 1000.0 if not seen else count + 10 * point.width + 100 * longest + 0.1 * (seen - 2) ** 3


def test_a_calibration_warms_up_and_takes_the_median_of_its_rounds_in_random_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target: Any = Timed()
    monkeypatch.setattr("specdec.devices.time", SimpleNamespace(perf_counter=lambda: target.now))
    known = {Point(1, 5, 1): 7.0}
    found = Calibration(target, known)
    found.measure([1, 2], [5], [1, 3])
    assert target.arenas == [(2, 8, 3)]
    assert calibration.ROUNDS == 7
    counts = Counter(target.asked)
    assert counts == dict.fromkeys([Point(1, 5, 3), Point(2, 5, 1), Point(2, 5, 3)], calibration.ROUNDS + 1)
    rounds = [target.asked[i : i + 3] for i in range(0, len(target.asked), 3)]
    assert all(len(set(one)) == 3 for one in rounds), "each round has every point once"
    assert len({tuple(one) for one in rounds}) > 1, "in another order"
    logs = {
        point: [log(point.rows + 10 * point.width + 100 * point.length + 0.1 * (turn - 2) ** 3) for turn in range(1, 8)]
        for point in counts
    }
    paces = [fmean(turn) for turn in zip(*logs.values(), strict=True)]
    for point, seconds in found.seconds.items():
        if point in known:
            assert seconds == 7.0
        else:
            own = median(value - pace for value, pace in zip(logs[point], paces, strict=True))
            assert seconds == pytest.approx(exp(median(paces) + own))
    asked = len(target.asked)
    found.measure([2, 1], [5], [3])
    assert (len(target.asked), len(target.arenas)) == (asked, 1), "nothing was missing"
    assert known == {Point(1, 5, 1): 7.0}


def test_a_mean_of_slots_is_measured_with_one_slot_more_in_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = Timed()
    monkeypatch.setattr("specdec.devices.time", SimpleNamespace(perf_counter=lambda: target.now))
    points = [Point(3, 5, slots / 3) for slots in (3, 4, 5, 6)]
    found = Calibration(target)
    found.measure_points(points)
    assert set(target.asked) == set(points)
    assert target.arenas == [(3, 7, 2)]
    assert points[1].widths == [2, 1, 1]
    for point in points:
        assert found.forward(point.width, 3, 5) == found.seconds[point]


def test_seconds_between_measured_points_lie_on_lines_of_width_then_length_then_rows() -> None:
    seconds = {Point(r, n, w): r + 10.0 * w + 100 * n + 0.5 * r * w for r in (1, 3) for n in (4, 8) for w in (1, 5)}
    for rows, length, width in ((1, 4, 1), (2, 6, 3), (3, 8, 5), (2, 8, 2)):
        assert forward_seconds(seconds, width, rows, length) == pytest.approx(
            rows + 10 * width + 100 * length + 0.5 * rows * width
        )
    with pytest.raises(ValueError, match=r"^no forward has been measured; call Calibration\.measure first$"):
        forward_seconds({}, 1, 1, 1)


@pytest.mark.parametrize(
    ("known", "key", "value"),
    [
        ({2: 5.0}, 1, 5.0),
        ({2: 5.0}, 2, 5.0),
        ({2: 5.0}, 9, 5.0),
        ({2: 5.0, 4: 9.0}, 1, 5.0),
        ({2: 5.0, 4: 9.0}, 3, 7.0),
        ({2: 5.0, 4: 9.0}, 5, 11.0),
        ({2: 5.0, 3: 99.0, 4: 9.0}, 6, 13.0),  # the line through the ends
        ({2: 5.0, 4: 3.0}, 6, 3.0),  # it never falls
        ({1: 1.0, 2: 3.0, 6: 7.0}, 3, 4.0),
    ],
)
def test_a_value_is_on_a_line_between_its_neighbours_or_through_the_ends(
    known: dict[int, float], key: int, value: float
) -> None:
    assert interpolated(known, key) == pytest.approx(value)
