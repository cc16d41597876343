"""Checks of every controller: its bounds, its claim to be deterministic, and unchanged outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from benchsuite.conformance.claims import Checks, Failed, same
from benchsuite.conformance.drafts import GREEDY, differ, kit_assembly
from benchsuite.prove import tiny
from specdec import Engine

DRAFTS = ("oracle(0.8)", "garbage", "ngram(n_min=1)", "ngram(n_min=1, branches=2)")
"""Good and bad drafts, chains and trees."""


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
        """K lies in 0 … ``max_k``, which determines the arena's size; ``max_k`` does not change."""
        engine = self.engine(draft)
        most = engine.controller.max_k

        def see(step: int, k: Any) -> None:
            if type(k) is not int or not 0 <= k <= most or engine.controller.max_k != most:
                measured = f"K {k!r} at step {step}, max_k {most}, now {engine.controller.max_k}"
                raise Failed(f"{self.text} stays within its bounds", measured, f"six requests drafted by {draft}")

        self._asked(engine, see)

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_it_repeats_where_claimed(self, draft: str) -> None:
        """``deterministic``: the same run gives the same K at each step, in one engine and in a new engine."""
        if not self.deterministic:
            pytest.skip("claimed: deterministic=False")
        engine = self.engine(draft)
        runs = [self._asked(engine), self._asked(engine), self._asked(self.engine(draft))]
        for number, other in enumerate(runs[1:], 2):
            if other != runs[0]:
                step = next(i for i, pair in enumerate(zip(runs[0], other, strict=False)) if pair[0] != pair[1])
                measured = f"K {runs[0][step]} in the first run, {other[step]} in run {number}"
                raise Failed(f"{self.text} has deterministic=True", measured, f"step {step} of requests by {draft}")

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
