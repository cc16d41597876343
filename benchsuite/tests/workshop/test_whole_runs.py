"""Whole runs of any plugins over any requests keep every promise at once, and a fault in any of them is found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.internal.conjecture import engine as conjecture

from benchsuite.conformance.models import tiny
from benchsuite.workshop.machines.whole_runs import (
    CONTROLLERS,
    DRAFTS,
    NOT_DRAWN,
    POLICIES,
    DrawnRequest,
    Options,
    Run,
    check,
    judged_target,
    whole_runs,
)
from benchsuite.workshop.museum.edit import Edit, apply
from specdec_plugins.controllers.goodput import Goodput


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 5)
@given(run=whole_runs())
def test_a_few_whole_runs_keep_every_promise(run: Run) -> None:
    check(run)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3 // 2)
@given(run=whole_runs())
def test_whole_runs_keep_every_promise(run: Run) -> None:
    """150 runs take some 12 seconds; ``--specdec-deep`` makes them 7,500."""
    check(run)


def test_a_request_is_compared_with_the_run_that_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """``goodput`` reads the clock: a request may be cancelled in one run of an engine and be whole in the next."""
    forgotten = 0

    def forgets(self: Goodput, forget: Callable[[Goodput], None] = Goodput.forget) -> None:
        nonlocal forgotten
        forgotten += 1
        forget(self)

    monkeypatch.setattr(Goodput, "forget", forgets)
    monkeypatch.setattr(Goodput, "_choose", lambda _: 5 if forgotten == 2 else 0)  # the first run is slow
    asked = DrawnRequest((1, 5), {"max_new_tokens": 6}, emitted=0, bad=None, end=None, stop=None, comes=0, leaves=3)
    check(Run("llama", "auto", "oracle(rate=1.0)", "match()", "goodput(maximum=5)", 1, 2, (asked,)))
    assert forgotten == 2, "built and run again, and nothing is left to be compared"
    monkeypatch.setattr(Goodput, "deterministic", True)
    forgotten = 0
    with pytest.raises(AssertionError, match="takes other steps|emits something else"):
        check(Run("llama", "auto", "oracle(rate=1.0)", "match()", "goodput(maximum=5)", 1, 2, (asked,)))


@pytest.mark.parametrize(
    ("kind", "table"), [("draft", DRAFTS), ("policy", POLICIES), ("controller", CONTROLLERS)], ids=lambda v: str(v)[:6]
)
def test_every_plugin_and_option_is_drawn_or_left_out_with_a_reason(kind: str, table: Mapping[str, Options]) -> None:
    registry = tiny.registry()
    for name in registry.names(kind):
        entry = registry.entry(kind, name)
        if not entry.alias and name not in NOT_DRAWN:
            left_out = {option for option in entry.options if f"{name}.{option}" in NOT_DRAWN}
            assert table[name].keys() | left_out == entry.options.keys(), f"the options of {name}"
            assert not table[name].keys() & left_out
    assert table.keys() <= set(registry.names(kind))


STOPS, ROWS, ENGINE = "specdec.stops:StopWatcher.feed", "specdec.rows:Rows", "specdec.engine:Engine"

FAULTS: dict[str, tuple[str, Edit]] = {
    "an end token ends one token late": (
        "tokens",
        Edit(STOPS, "token in self._eos", "self._eos & {*self._output[-2:-1]}"),
    ),
    "a stop string ends one token late": ("tokens", Edit(STOPS, "self._output[-self._tail :]", "self._output[:-1]")),
    "the budget is exceeded by one": ("completion|there is room for", Edit(STOPS, ">= self._limit", "> self._limit")),
    "one proposal more than fits the budget": ("there is room for", Edit(f"{ROWS}.context", ").sub_(1)", ")")),
    "accepted tokens past the end are counted": (
        "the records of|num_accepted",
        Edit(f"{ENGINE}._absorb", "stats.accepted(min(accepted, kept))", "stats.accepted(accepted)"),
    ),
    "a whole block counts one too few": (
        "by depth",
        Edit(
            "specdec.stats:Stats.proposed", "self.proposed_per_pos, deepest", "self.proposed_per_pos, min(deepest, 3)"
        ),
    ),
    "moved cells of a tree are counted for the root too": (
        "kv_bytes_copied",
        Edit(f"{ENGINE}._absorb", "moved * cell", "(moved + (moved > 0)) * cell"),
    ),
    "a cancelled request is not released": (
        "the draft|still in it",
        Edit("specdec.queue:Queue._release", "if self.draft:", "if self.draft and live.finish:"),
    ),
    "a row moves without its parameters": (
        "gave|penalties of|beside other rows",
        Edit("specdec.ledger:Ledger.move", "self.stream, self.top_k, self.temperature,", "self.top_p,"),
    ),
    "a row moves without its keys and values": (
        "plain decoding|beside other rows|in another order|log-probability",
        Edit("specdec.arena:Arena.move", "tensor[row, :, :cells].copy_(part)", "pass"),
    ),
    "a draft does not forget": (
        "a second run",
        Edit("specdec_plugins.drafts.suffix:Suffix.forget", "self._shared = Automaton()", "pass"),
    ),
    "tokens of one step have times of their own": (
        "times of",
        Edit(f"{ROWS}.absorb", "live.times.append(now)", "live.times.append(now + index * 1e-9)"),
    ),
}
"""Each fault with what its message says, and what makes it."""


LONG_SOUGHT = "accepted tokens past the end are counted"
"""A fault that takes 15 seconds to be found: it needs an end inside an accepted block."""


@pytest.fixture
def outputs_of_its_own() -> Iterator[None]:
    """Plain decoding's outputs are remembered: those of before, and those of a planted fault, are no other test's."""
    judged_target.cache_clear()
    yield
    judged_target.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("outputs_of_its_own")
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.deep] if fault == LONG_SOUGHT else []) for fault in FAULTS]
)
def test_a_fault_is_found_in_a_few_runs(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said, edit = FAULTS[fault]
    apply([edit], monkeypatch)
    few = settings(
        max_examples=250, phases=(Phase.generate,), report_multiple_bugs=False, suppress_health_check=list(HealthCheck)
    )
    with pytest.raises((AssertionError, FlakyFailure)) as found:
        few(given(run=whole_runs())(check))()
    # Hypothesis runs again what it finds. Where K follows from the clock the second time may pass: it then says both.
    errors = found.value.exceptions if isinstance(found.value, FlakyFailure) else [found.value]
    assert any(re.search(said, "\n".join([str(error), *getattr(error, "__notes__", [])])) for error in errors)


def _attempts() -> int:
    """How often a failing property is run, the first failure and its shrinking together."""
    ran = 0

    @settings(database=None)
    @given(st.lists(st.integers(), min_size=5))
    def fails(numbers: list[int]) -> None:
        nonlocal ran
        ran += 1
        assert sum(numbers) < 1000

    with pytest.raises(AssertionError):
        fails()
    return ran


@pytest.mark.slow
def test_shrinking_ends_after_the_time_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis reads its limit where the profile of these tests sets it."""
    assert conjecture.MAX_SHRINKING_SECONDS == 30
    shrunk = _attempts()
    monkeypatch.setattr(conjecture, "MAX_SHRINKING_SECONDS", -1)
    assert _attempts() < shrunk
