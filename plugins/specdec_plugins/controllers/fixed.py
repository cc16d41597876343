"""fixed: the same K at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from specdec import Controller, SpecdecError, hookimpl
from specdec.interfaces import ControllerFactory, Env
from specdec.stats import Stats


class Fixed(Controller):
    """Proposes K tokens at every step; K = 0 is plain decoding through the same loop.

    Source: Leviathan et al. 2211.17192.

    Example: ``fixed(k=8)``

    Raises SpecdecError for a K below 0, or for a window that does not fit the longest sequence.
    """

    k_option = "k"

    def __init__(self, env: Env, k: Annotated[int, "proposals in every step"] = 4) -> None:
        self._k = k
        if not 0 <= self._k < env.max_length:
            raise SpecdecError(
                f"K is {self._k}; expected 0 to {env.max_length - 1}: K proposals and the token before them must fit "
                f"into the longest text, of {env.max_length} tokens with its prompt; lower K, or allow more new tokens"
            )

    @property
    def max_k(self) -> int:
        """K."""
        return self._k

    def next_k(self, stats: Stats) -> int:
        """Always K."""
        return self._k


@hookimpl
def specdec_register_controllers(register: Callable[[str, ControllerFactory], None]) -> None:
    """Register ``fixed``."""
    register("fixed", Fixed)
