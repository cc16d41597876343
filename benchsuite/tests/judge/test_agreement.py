"""Engines with arithmetic of their own: their outputs are compared and not judged, and their runs are timed alike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.conformance.models.tiny import requests
from benchsuite.judge.agreement import Agreement
from benchsuite.measure.arms import Arm
from benchsuite.measure.paired import Series, broken, checked
from benchsuite.measure.peers import PeerRunner
from benchsuite.tests.rig import SETTING
from specdec import Generation, Peer, Request, SpecdecError

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple)


@pytest.mark.slow
@given(tokens, tokens)
def test_an_agreement_counts_the_tokens_before_the_first_difference(
    expected: tuple[int, ...], got: tuple[int, ...]
) -> None:
    found = Agreement.of(expected, got)
    assert expected[: found.prefix] == got[: found.prefix]
    assert found.prefix == min(len(expected), len(got)) or expected[found.prefix] != got[found.prefix]
    assert (found.equal == 1) == (expected == got)
    assert Agreement.of(expected, expected).summary == "1/1 equal"


def test_agreements_add_up_and_name_the_share_before_a_difference() -> None:
    both = Agreement.of((1, 2, 3, 4), (1, 2, 9, 4)) + Agreement.of((5, 6), (5, 6))
    assert both == Agreement(runs=2, equal=1, tokens=6, prefix=4)
    assert both.summary == "1/2 equal, 67% before"


def test_an_output_of_another_arithmetic_never_breaks_a_contract() -> None:
    row = Series(Arm(SETTING, peer="llama_cpp"), "own", engine="llama_cpp", agreed=Agreement(4, 0, 40, 3))
    assert broken([row]) == []
    assert "0/4 equal, 8% before" in str(checked([row]))


class _Two(Peer):
    """Decodes a batch: the first token of each after 0.1 and 0.2 s, the rest ``gap`` seconds later."""

    batches = True

    def __init__(self, wrong: bool = False, gap: float = 0.5) -> None:
        self.calls: list[int] = []
        self.wrong, self.gap = wrong, gap

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        self.calls.append(len(requests))
        made = []
        for place, request in enumerate(requests):
            begin, count = 0.1 * (place + 1), request.params.max_new_tokens
            found = tuple(range(count))
            later = count - 1 + self.wrong
            made.append(Generation(found, ((begin, 1), (begin + self.gap, later)), begin + self.gap, 1))
        return made

    def described(self) -> str:
        return "two"


def test_a_batch_decodes_from_the_moment_when_all_its_rows_have_begun() -> None:
    """Two rows: the second begins at 0.2 s, and both have their other tokens after that, the last at 0.7 s."""
    peer, work = _Two(), requests(count=2)
    outcome = PeerRunner(Arm(SETTING, peer="llama_cpp"), peer).run(work)
    lengths = [request.params.max_new_tokens for request in work]
    assert peer.calls == [2]
    assert outcome.wall_s == pytest.approx(0.7)
    assert outcome.decode_s == pytest.approx(0.5)
    assert outcome.decoded == sum(lengths) - 2
    assert outcome.forwards == 2


@pytest.mark.parametrize(("gap", "rows"), [(0.1, 2), (0.05, 1)])
def test_what_is_emitted_when_the_last_row_begins_is_decoded_and_what_was_before_is_not(gap: float, rows: int) -> None:
    """The first row has its rest at 0.2 s, when the second begins, or at 0.15 s."""
    work = requests(count=2)
    outcome = PeerRunner(Arm(SETTING, peer="llama_cpp"), _Two(gap=gap)).run(work)
    assert outcome.decoded == sum(request.params.max_new_tokens - 1 for request in work[2 - rows :])
    assert outcome.decode_s == pytest.approx(gap)


def test_a_peer_whose_emissions_are_not_its_tokens_is_refused() -> None:
    with pytest.raises(SpecdecError, match="expected equal numbers"):
        PeerRunner(Arm(SETTING, peer="llama_cpp"), _Two(wrong=True)).run(requests(count=1))
