"""tree: the likeliest continuations of a draft model, several for each token, verified together."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Annotated

from torch import Tensor

from specdec import Context, SpecdecError, Verdict, Window, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.drafts.draft_model import DraftModel
from specdec_plugins.growth import Forest, Growth


class Tree(DraftModel):
    """Expands the ``beam`` likeliest paths of a draft model; the K likeliest nodes are verified.

    At each depth up to ``depth``, the likeliest nodes are expanded; with ``widths``, every node is expanded into the
    number of children given for its depth. Nodes below ``least`` are pruned, so rows differ in shape. The draft's arena
    keeps only committed tokens: nodes are processed again at each depth, and accepted tokens in the next step's first
    forward.

    Source: SpecInfer, Miao et al. 2305.09781; the choice of nodes, EAGLE-2, Li et al. 2406.16858.

    Example: ``tree(model=path/to/draft, beam=4, depth=4)`` with K = 16
    """

    branches = True

    def __init__(
        self,
        env: Env,
        model: Annotated[str | None, "name, folder or hub id; none: the target's own first layers"] = None,
        layers: Annotated[int | None, "without a model: how many of the target's layers draft"] = None,
        beam: Annotated[int, "nodes expanded at each depth, and children of each"] = 4,
        depth: Annotated[int, "deepest proposals"] = 4,
        least: Annotated[float, "smallest probability, by the draft, of a node; 0 prunes nothing"] = 0.0,
        widths: Annotated[str, "children of every node at depth 1, 2, …, as 4-2-1; replaces beam and depth"] = "",
    ) -> None:
        self._widths = _numbers(str(widths))
        nodes = list(itertools.accumulate(self._widths, operator.mul)) or [beam] * depth
        if self._widths:
            beam, depth = nodes[-1], len(nodes)
        if beam < 1 or depth < 1 or not 0 <= least < 1:
            raise SpecdecError(
                f"tree was given beam={beam}, depth={depth}, least={least}; expected beam and depth 1 or more, "
                "least from 0 to below 1"
            )
        super().__init__(env, model, layers)
        self._beam, self._depth, self._least = beam, depth, least
        widest = max(env.max_window + 1, sum(nodes[:-1]))
        self._arena = self._model.arena(env.max_rows, env.max_length + depth + 2, widest)

    def propose(self, context: Context) -> Window:
        """Process the newly committed tokens, then grow the tree depth by depth."""
        most, behind = int(context.max_proposals_host.max()), self._catching_up(context)
        self._asked = min(self._depth, most)
        self._forwards += self._asked - 1
        steps = self._runtime.steps((self, context.kind, most, behind))
        return steps.part(self._grown, context, most, behind, self._longest(context))

    def _grown(self, context: Context, most: int, behind: int, longest: int) -> Window:
        rows, logits = slice(0, context.rows), self._catch_up(context, behind, longest)
        growth, forest = Growth(self._distribution(context, logits, 0)[:, 0], None, self._beam, self._widths), Forest()
        for depth in range(1, min(self._depth, most)):
            logits = self._forward(forest.window(growth), rows, longest)
            growth.expand(self._distribution(context, logits[:, -growth.frontier.shape[1] :], depth, growth.paths))
        return growth.window(context, most, self._least)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """The nodes were never committed, so all accepted tokens are still missing."""
        self._rested += not self._asked
        self._behind += (self._asked if own else window.tokens.shape[1] - 1) + 1
        self._asked = 0


def _numbers(widths: str) -> list[int]:
    numbers = [int(part) if part.isdecimal() else 0 for part in widths.split("-")] if widths else []
    if not all(numbers):
        raise SpecdecError(f"tree was given widths={widths!r}; expected whole numbers from 1 on, as 4-2-1")
    return numbers


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``tree``."""
    register("tree", Tree)
