"""Checks of every controller: its bounds, its claim to be deterministic, what it forgets, and unchanged outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from benchsuite.conformance.claims import Checks, Failed, same
from benchsuite.conformance.drafts import GREEDY, differ, kit_assembly
from benchsuite.conformance.models import tiny
from specdec import Engine

DRAFTS = ("oracle(0.8)", "garbage", "ngram(n_min=1)", "ngram(n_min=1, branches=2)")
"""Good and bad drafts, chains and trees."""


@contextmanager
def _even_clock() -> Iterator[None]:
    """Make each reading of the host's clock one second later than the reading before."""
    with patch("time.perf_counter", map(float, itertools.count()).__next__):
        yield


def _equal(claimed: str, draft: str, asked: dict[str, list[Any]]) -> None:
    """Raise Failed unless two runs, by their names, asked for the same K at each step."""
    (first, ks), (second, others) = asked.items()
    if ks != others:
        step = next(i for i, (k, other) in enumerate(zip(ks, others, strict=False)) if k != other)
        raise Failed(claimed, f"K {ks[step]} {first}, {others[step]} {second}", f"step {step} of requests by {draft}")


class ControllerChecks(Checks):
    """Checks of a controller; ``conformance.controller`` makes a subclass with the claims filled in."""

    text: ClassVar[str]
    deterministic: ClassVar[bool]
    k: ClassVar[int | None]
    extra: ClassVar[tuple[tiny.Extra, ...]]

    def engine(self, draft: str) -> Engine:
        """Return an engine with ``draft`` and this controller."""
        return kit_assembly("llama", 3, self.extra).engine(draft, controller=self.text, k=self.k)

    def test_it_is_what_it_claims(self) -> None:
        """The claim ``deterministic``."""
        says = self.engine("ngram").controller.deterministic
        same(self.text, "deterministic", self.deterministic, says, "the class says so")

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_k_is_a_whole_number_within_its_bounds(self, draft: str) -> None:
        """K, or that of each live row, lies in 0 … ``max_k``, which determines the arena's size and does not change."""
        engine = self.engine(draft)
        most = engine.controller.max_k

        def see(step: int, k: Any) -> None:
            rows = engine.stats.batch
            each = [*k] if isinstance(k, list | tuple) else [k] * rows
            fits = len(each) == rows and all(type(one) is int and 0 <= one <= most for one in each)
            if not fits or engine.controller.max_k != most:
                measured = f"K {k!r} at step {step}, max_k {most}, now {engine.controller.max_k}, {rows} rows"
                raise Failed(f"{self.text} stays within its bounds", measured, f"six requests drafted by {draft}")

        self._asked(engine, see)

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_it_repeats_where_claimed(self, draft: str) -> None:
        """``deterministic``: the same run gives the same K at each step, after ``forget`` and in a new engine."""
        if not self.deterministic:
            pytest.skip("claimed: deterministic=False")
        engine = self.engine(draft)
        first = self._asked(engine)
        engine.controller.forget()
        claimed = f"{self.text} has deterministic=True"
        _equal(claimed, draft, {"in the first run": first, "in the second, after forget()": self._asked(engine)})
        _equal(claimed, draft, {"in the first run": first, "in a new engine": self._asked(self.engine(draft))})

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_after_forget_it_asks_what_a_new_one_asks(self, draft: str) -> None:
        """Nothing of a run is left after ``forget``, also of what a controller reads from the clock.

        The clock ticks evenly here. A controller that asks for another K in every new engine even so cannot be checked.
        """
        with _even_clock():
            fresh, used = self._asked(self.engine(draft)), self.engine(draft)
            if self._asked(used) != fresh:
                pytest.skip("two new engines differ, although their clock ticks evenly")
            used.controller.forget()
            again = self._asked(used)
        _equal(f"{self.text} forgets", draft, {"by a new controller": fresh, "after a run and forget()": again})

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_it_changes_no_output(self, draft: str) -> None:
        """Under ``match`` every output equals plain decoding's."""
        build = kit_assembly("llama", 3, self.extra)
        differ(f"{draft} with {self.text}", build, self.engine(draft), tiny.requests(GREEDY, 6))

    def _asked(self, engine: Engine, see: Callable[[int, Any], None] = lambda step, k: None) -> list[Any]:
        """Return every K of a run; ``see`` receives each K before the engine does."""
        asked: list[Any] = []
        next_k = engine.controller.next_k

        def recorded(stats: Any) -> Any:
            k = next_k(stats)
            see(len(asked), k)
            asked.append(k)
            return k

        object.__setattr__(engine.controller, "next_k", recorded)
        try:
            engine.run(tiny.requests(GREEDY, 6))
        finally:
            object.__setattr__(engine.controller, "next_k", next_k)
        return asked
