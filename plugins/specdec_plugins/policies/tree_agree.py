"""tree_agree: accepts a node whose token several branches propose and the target finds likely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from specdec import SpecdecError, Window, hookimpl
from specdec.interfaces import Env, PolicyFactory
from specdec_plugins.lenient import Lenient, rank_is_below


class TreeAgree(Lenient):
    """Accepts a node if at least m nodes of its depth propose its token and it is in the target's top k.

    The node itself counts, so with m = 1 it is ``topk_agree`` over a tree.

    Source: a vote of branches, over the trees of SpecInfer, Miao et al. 2305.09781.

    Example: ``tree_agree(m=2, k=3)``
    """

    def __init__(
        self,
        env: Env,
        m: Annotated[int, "nodes of one depth that must propose the token, itself included"] = 2,
        k: Annotated[int, "number of the target's likeliest tokens that are accepted"] = 3,
    ) -> None:
        if m < 1 or k < 1:
            raise SpecdecError(f"tree_agree was given m={m}, k={k}; expected 1 or more of both")
        self._m, self._k = m, k

    def good(self, distribution: Tensor, window: Window) -> Tensor:
        """Enough votes, and within the top k."""
        valid = torch.arange(window.tokens.shape[1], device=distribution.device) < window.width[:, None]
        same = (window.tokens[:, :, None] == window.tokens[:, None, :]) & (
            window.depth[:, :, None] == window.depth[:, None, :]
        )
        votes = (same & valid[:, None, :]).sum(dim=2)
        return (votes >= self._m) & rank_is_below(distribution, window, self._k)


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``tree_agree``."""
    register("tree_agree", TreeAgree)
