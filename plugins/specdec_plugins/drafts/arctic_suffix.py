"""arctic_suffix: the suffix trees of arctic-inference propose here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Annotated, Any

import numpy as np

from specdec import Request, SpecdecError, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.guests import guest_module
from specdec_plugins.lookup import History, Lookup


class ArcticSuffix(Lookup):
    """Asks arctic-inference's ``SuffixDecodingCache``: a suffix tree of each request, and one of all outputs.

    Each request's prompt and output are in its own tree, outputs in the common one too; the tree with the larger score
    proposes. The defaults are the package's. Its probabilities of proposals are not used: lookups are certain.

    Source: snowflakedb/ArcticInference, arctic_inference/suffix_decoding/cache.py; Oliaro et al. 2411.04975.
    """

    def __init__(
        self,
        env: Env,
        factor: Annotated[float, "proposals for each token of the match, max_spec_factor"] = 1.0,
        offset: Annotated[float, "proposals besides, max_spec_offset"] = 0.0,
        least: Annotated[float, "smallest probability of a proposal, min_token_prob"] = 0.1,
        depth: Annotated[int, "longest match, max_tree_depth"] = 64,
        cached: Annotated[int, "requests whose outputs are kept, max_cached_requests; -1: all"] = -1,
        tree: Annotated[bool, "propose trees, use_tree_spec"] = False,
    ) -> None:
        if depth < 1 or cached < -1:
            raise SpecdecError(f"arctic_suffix was given depth={depth}, cached={cached}; expected 1 and -1, or more")
        super().__init__(env.max_window if tree else 1)
        self._package = guest_module("arctic_suffix", "arctic_inference.suffix_decoding", "arctic")
        self._sizes, self.learns = (depth, cached), cached != 0
        self._asked = {"max_spec_factor": factor, "max_spec_offset": offset, "min_token_prob": least}
        self._names = count()  # ids of requests come again
        self._rows: dict[int, tuple[int, int]] = {}  # name, tokens told
        self.forget()

    def forget(self) -> None:
        """Begin with new, empty trees."""
        self._cache: Any = self._package.SuffixDecodingCache(*self._sizes)

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Start a request with its prompt."""
        self._rows[row] = next(self._names), len(prompt)
        self._cache.start_request(self._rows[row][0], np.array(prompt, dtype=np.int32))

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """Tell the rest of the output, and stop the request."""
        self._cache.stop_request(self._told(row, np.array(tokens)))
        del self._rows[row]

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """The request goes on by its name."""
        self._rows[row] = self._rows.pop(source)

    def continuations(self, row: int, history: History, limit: int) -> list[list[int]]:
        """The answer's path, or the path to each node of its tree."""
        name, context = self._told(row, history), history[-self._sizes[0] :].astype(np.int32)
        found = self._cache.speculate(name, context, max_spec_tokens=limit, use_tree_spec=self.branches, **self._asked)
        paths: list[list[int]] = []
        for token, parent in zip(found.token_ids, found.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else ()), token])
        return paths if self.branches else paths[-1:]

    def _told(self, row: int, tokens: History) -> int:
        """The name of a row's request, whose tokens are all told."""
        name, known = self._rows[row]
        if known < len(tokens):
            self._cache.add_active_response(name, tokens[known:].astype(np.int32))
            self._rows[row] = name, len(tokens)
        return name


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``arctic_suffix``."""
    register("arctic_suffix", ArcticSuffix)
