"""Checks of every controller: its bounds, its claim to be deterministic, what it forgets, and unchanged outputs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from benchsuite.conformance.claims import Checks, Failed, same
from benchsuite.conformance.drafts import GREEDY, differ, kit_assembly
from benchsuite.conformance.guards.read_guard import guarded_steps
from benchsuite.conformance.models import tiny
from benchsuite.conformance.worlds import ROWS, WORLDS, Asked, clock_watched, live_in
from specdec import Engine
from specdec.stats import Stats

DRAFTS = ("oracle(0.8)", "garbage", "ngram(n_min=1)", "ngram(n_min=1, branches=2)")
"""Good and bad drafts, chains and trees."""


CHANGING = WORLDS["text that can be predicted comes and goes"]


def _parts(stats: Stats) -> dict[str, Any]:
    """The parts of stats, as they are now."""
    parts = {name: copy.copy(part) for name, part in vars(stats).items()}
    return parts | {"stopwatch": [*stats.stopwatch.marks], "rows": copy.deepcopy(stats.rows)}


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

    @property
    def in_a_world(self) -> Engine:
        """An engine with the controller, as large as a world may be."""
        return kit_assembly("llama", ROWS, self.extra).engine("ngram", controller=self.text, k=self.k)

    def test_it_is_what_it_claims(self) -> None:
        """The claim ``deterministic``."""
        says = self.engine("ngram").controller.deterministic
        same(self.text, "deterministic", self.deterministic, says, "the class says so")

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_k_is_a_whole_number_within_its_bounds(self, draft: str) -> None:
        """K, or that of each live row, lies in 0 … ``max_k``, which determines the arena's size and does not change."""
        engine = self.engine(draft)
        self.ks_of_run(engine, self._bounded(engine, f"six requests drafted by {draft}"))

    @pytest.mark.parametrize("world", WORLDS)
    def test_in_any_world_it_asks_for_what_it_may(self, world: str) -> None:
        """The same of runs without an engine: longer ones, of larger batches, in which all or nothing is accepted."""
        engine = self.in_a_world
        try:
            live_in(WORLDS[world], engine.controller, self._bounded(engine, f"a run in which {world}"))
        except Exception as error:
            measured = f"it raises {type(error).__name__}: {error}"
            raise Failed(f"{self.text} has a K for every step", measured, f"a run in which {world}") from error

    def test_it_writes_to_nothing_that_it_was_lent(self) -> None:
        """The counters and steps of a run belong to the engine: an acceptance that a controller writes is none."""
        controller, changed = self.in_a_world.controller, set[str]()
        next_k = controller.next_k

        def watched(stats: Stats) -> Any:
            before = _parts(stats)
            k = next_k(stats)
            changed.update(f"Stats.{name}" for name, part in _parts(stats).items() if part != before[name])
            return k

        object.__setattr__(controller, "next_k", watched)
        live_in(CHANGING, controller)
        if changed:
            measured = f"next_k changed {' and '.join(sorted(changed))}"
            raise Failed(f"{self.text} writes to nothing that it was lent", measured, "any step")

    def test_it_reads_the_clock_only_where_claimed(self) -> None:
        """``deterministic``: K follows from counters, not from what a clock says, of the host or of a step."""
        if not self.deterministic:
            pytest.skip("claimed: deterministic=False")
        controller = self.in_a_world.controller
        with clock_watched() as read:
            live_in(CHANGING, controller)
        if read:
            measured = f"next_k read {' and '.join(dict.fromkeys(read))}"
            raise Failed(f"{self.text} has deterministic=True", measured, f"{len(read)} times in a run")

    def test_a_step_reads_the_device_once(self) -> None:
        """The host reads the device only in the engine's one read."""
        # Longer than six steps in which every proposal is accepted.
        guarded_steps(self.engine("ngram(n_min=1)"), tiny.requests(replace(GREEDY, max_new_tokens=60), 3), 6)

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_it_repeats_where_claimed(self, draft: str) -> None:
        """``deterministic``: the same run gives the same K at each step, after ``forget`` and in a new engine."""
        if not self.deterministic:
            pytest.skip("claimed: deterministic=False")
        engine = self.engine(draft)
        first = self.ks_of_run(engine)
        engine.controller.forget()
        claimed = f"{self.text} has deterministic=True"
        _equal(claimed, draft, {"in the first run": first, "in the second, after forget()": self.ks_of_run(engine)})
        _equal(claimed, draft, {"in the first run": first, "in a new engine": self.ks_of_run(self.engine(draft))})

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_after_forget_it_asks_what_a_new_one_asks(self, draft: str) -> None:
        """Nothing of a run is left after ``forget``, also of what a controller reads from the clock.

        The clock ticks evenly here. A controller that asks for another K in every new engine even so cannot be checked.
        """
        with _even_clock():
            fresh, used = self.ks_of_run(self.engine(draft)), self.engine(draft)
            if self.ks_of_run(used) != fresh:
                pytest.skip("two new engines differ, although their clock ticks evenly")
            used.controller.forget()
            again = self.ks_of_run(used)
        _equal(f"{self.text} forgets", draft, {"by a new controller": fresh, "after a run and forget()": again})

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_it_changes_no_output(self, draft: str) -> None:
        """Under ``match`` every output equals plain decoding's."""
        build = kit_assembly("llama", 3, self.extra)
        differ(f"{draft} with {self.text}", build, self.engine(draft), tiny.requests(GREEDY, 6))

    def _bounded(self, engine: Engine, run: str) -> Asked:
        """What refuses a K outside of the controller's bounds, and bounds that change, by the step."""
        most = engine.controller.max_k

        def see(step: int, k: Any, stats: Stats) -> None:
            each, rooms = [*k] if isinstance(k, list | tuple) else [k] * stats.batch, [row.room for row in stats.rows]
            fits = len(each) == stats.batch and all(type(one) is int and 0 <= one <= most for one in each)
            if not fits or engine.controller.max_k != most:
                measured = f"K {k!r} at step {step}, max_k {most}, now {engine.controller.max_k}, {stats.batch} rows"
                raise Failed(f"{self.text} stays within its bounds", measured, run)
            if isinstance(k, list | tuple) and any(one > room for one, room in zip(k, rooms, strict=True)):
                measured = f"K {k!r} at step {step} for rows that have room for {rooms}"
                raise Failed(f"{self.text} gives no row more than its room", measured, run)

        return see

    def ks_of_run(self, engine: Engine, see: Asked = lambda step, k, stats: None) -> list[Any]:
        """Return every K of a run; ``see`` receives each K before the engine does."""
        asked: list[Any] = []
        next_k = engine.controller.next_k

        def recorded(stats: Any) -> Any:
            k = next_k(stats)
            see(len(asked), k, stats)
            asked.append(k)
            return k

        object.__setattr__(engine.controller, "next_k", recorded)
        try:
            engine.run(tiny.requests(GREEDY, 6))
        finally:
            object.__setattr__(engine.controller, "next_k", next_k)
        return asked
