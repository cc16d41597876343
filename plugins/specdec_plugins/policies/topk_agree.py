"""topk_agree: accepts a proposal if it is among the target's k likeliest tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from torch import Tensor

from specdec import SpecdecError, Window, hookimpl
from specdec.interfaces import Env, PolicyFactory
from specdec_plugins.lenient import Lenient, rank_is_below


class TopkAgree(Lenient):
    """Accepts while fewer than k tokens are likelier than the proposal.

    Source: top-k verification as in Blockwise Parallel Decoding, Stern et al. 1811.03115, section 5.1.

    Example: ``topk_agree(k=3)``
    """

    def __init__(self, env: Env, k: Annotated[int, "number of likeliest tokens that are accepted"] = 3) -> None:
        if k < 1:
            raise SpecdecError(f"k is {k}; expected 1 or more")
        self._k = k

    def good(self, distribution: Tensor, window: Window) -> Tensor:
        """Within the top k."""
        return rank_is_below(distribution, window, self._k)


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``topk_agree``."""
    register("topk_agree", TopkAgree)
