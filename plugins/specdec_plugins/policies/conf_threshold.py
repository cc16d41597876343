"""conf_threshold: accepts a proposal if the target gives it a probability of at least tau."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from torch import Tensor

from specdec import SpecdecError, Window, hookimpl
from specdec.interfaces import Env, PolicyFactory
from specdec_plugins.lenient import Lenient, probability


class ConfThreshold(Lenient):
    """Accepts while p(x) >= tau, where p is the target's distribution before temperature and filters.

    Source: the simplest relaxation in use, for example BiLD's fallback rule, Kim et al. 2302.07863.

    Example: ``conf_threshold(tau=0.3)``
    """

    def __init__(self, env: Env, tau: Annotated[float, "smallest probability that is accepted, 0 to 1"] = 0.3) -> None:
        if not 0 < tau <= 1:
            raise SpecdecError(f"tau is {tau!r}; expected a probability above 0 and at most 1")
        self._tau = tau

    def good(self, distribution: Tensor, window: Window) -> Tensor:
        """p(x) >= tau."""
        return probability(distribution, window) >= self._tau


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``conf_threshold``."""
    register("conf_threshold", ConfThreshold)
