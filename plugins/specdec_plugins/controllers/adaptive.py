"""adaptive: raises K while enough proposals are accepted, else lowers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from specdec import Controller, SpecdecError, hookimpl
from specdec.interfaces import ControllerFactory, Env
from specdec.stats import Stats


class Adaptive(Controller):
    """After every ``window`` steps with proposals, raises K by ``step`` if accepted / proposed over these steps is at
    least ``target``, else lowers K by ``step``, within ``minimum`` and ``maximum``.

    A run begins with K = ``start``, clamped to these bounds. Steps without proposals do not count.

    Source: the rule of transformers' assisted generation (K + 2 after a full acceptance, K - 1 otherwise), applied to
    an average instead of every step.

    Example: ``adaptive(window=4, target=0.7, maximum=12)``
    """

    k_option = "start"

    def __init__(
        self,
        env: Env,
        start: Annotated[int, "K of a run's first step, clamped to the bounds"] = 4,
        window: Annotated[int, "steps with proposals between two decisions"] = 8,
        step: Annotated[int, "amount by which K changes"] = 1,
        target: Annotated[float, "smallest acceptance rate at which K grows"] = 0.6,
        minimum: Annotated[int, "smallest K"] = 1,
        maximum: Annotated[int, "largest K"] = 8,
    ) -> None:
        if not (window >= 1 and step >= 1 and 0 <= target <= 1 and 1 <= minimum <= maximum < env.max_length):
            raise SpecdecError(
                f"adaptive was given window={window}, step={step}, target={target}, minimum={minimum}, "
                f"maximum={maximum}; expected window and step 1 or more, target from 0 to 1, and "
                f"1 <= minimum <= maximum < {env.max_length}"
            )
        self._window, self._step, self._target = window, step, target
        self._bounds = minimum, maximum
        self._start = min(max(start, minimum), maximum)
        self._stats: Stats | None = None

    @property
    def max_k(self) -> int:
        """The option ``maximum``."""
        return self._bounds[1]

    def next_k(self, stats: Stats) -> int:
        """K by the rule of the class."""
        if stats is not self._stats:
            self._stats, self._k = stats, self._start
            self._seen = self._steps = self._proposed = self._accepted = 0
        for step in stats.steps[self._seen :]:
            if step.proposed:
                self._steps += 1
                self._proposed += step.proposed
                self._accepted += step.accepted
            if self._steps == self._window:
                up = self._accepted >= self._target * self._proposed
                least, most = self._bounds
                self._k = min(max(self._k + (self._step if up else -self._step), least), most)
                self._steps = self._proposed = self._accepted = 0
        self._seen = len(stats.steps)
        return self._k


@hookimpl
def specdec_register_controllers(register: Callable[[str, ControllerFactory], None]) -> None:
    """Register ``adaptive``."""
    register("adaptive", Adaptive)
