"""The benchmarks that ship as tests: each fails where what was measured is wrong, and says what is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite import test_kernels as kernels
from benchsuite import test_serving as serving
from benchsuite import test_speculation as speculation
from benchsuite.benches.kernels.caches import LENGTHS, CacheCost
from benchsuite.tests.report.made import NGRAM, made_row


def test_a_row_passes_unless_it_broke_its_contract_and_then_says_so_in_its_own_words() -> None:
    speculation.test_speculation(made_row(NGRAM, 1.5))
    with pytest.raises(pytest.fail.Exception) as failed:
        speculation.test_speculation(made_row(NGRAM, failure="BUG: it differs"))
    assert (failed.value.msg, failed.value.pytrace) == ("BUG: it differs", False)


def test_servers_pass_unless_one_is_inconclusive_or_answers_otherwise_than_the_first() -> None:
    def rows(*reasons: str, asked: int = 8) -> list[Any]:
        return [SimpleNamespace(endpoint=f"e{n}", why=why, failed={}, asked=asked) for n, why in enumerate(reasons)]

    def certificates(*states: str) -> list[Any]:
        return [SimpleNamespace(state=state, lines=(f"{state} {n}", "more")) for n, state in enumerate(states)]

    serving.test_serving(rows("", ""))
    with pytest.raises(AssertionError, match="INCONCLUSIVE: e1: too few; e2: too late"):
        serving.test_serving(rows("", "too few", "too late"))
    with pytest.raises(AssertionError):
        serving.test_serving(rows("", asked=0))
    serving.test_outputs_are_those_of_the_first_endpoint(certificates("same", "inconclusive"))
    with pytest.raises(AssertionError, match=r"bug 1\s+more\s+bug 2\s+more"):
        serving.test_outputs_are_those_of_the_first_endpoint(certificates("same", "bug", "bug"))


def caches_that_move(arena: list[int], theirs: list[int]) -> Any:
    """A benchmark of caches that move so many bytes at each length, the arena's and that of transformers."""
    costs = [
        CacheCost(name, length, 0.1, 0.1, moved, 2)
        for name, each in (("another", [9] * 9), ("arena", arena), ("transformers dynamic", theirs))
        for length, moved in zip(LENGTHS, each, strict=False)
    ]
    return SimpleNamespace(caches=lambda: costs)


def test_caches_pass_if_the_arena_moves_as_much_at_every_length_and_the_other_one_ever_more() -> None:
    level, grows, stays = [5] * len(LENGTHS), [*range(len(LENGTHS))], [0, 0, *range(1, len(LENGTHS) - 1)]
    judge = kernels.test_appending_and_rolling_back_move_the_window_alone
    judge(caches_that_move(level, grows))
    for wrong in ((grows, grows), (level, level), (level, stays), (level, grows[::-1]), (level[1:], grows)):
        with pytest.raises(AssertionError):
            judge(caches_that_move(*wrong))
