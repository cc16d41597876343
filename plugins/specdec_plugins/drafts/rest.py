"""rest: what followed the last two tokens in a datastore of ``draftretriever``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from specdec import SpecdecError, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.guests import guest_module
from specdec_plugins.lookup import History, Lookup

SPAN = 2
"""Tokens that the package looks at; fewer end the process, and more are ignored."""


class Rest(Lookup):
    """Searches a datastore of ``draftretriever`` for the last two tokens, and proposes the tree that it answers.

    The package of this name on the index (0.1.1) is ADED's: a table of what followed each pair of tokens, in which it
    draws continuations of at most four tokens by chance. REST's own, which searches for the longest suffix, is on no
    index. Nothing is learnt from what is decoded.

    Source: REST, He et al. 2311.08252; liuxukun2000/ADED, which is based on FasterDecoding/REST.

    Example: ``rest(datastore=texts.idx)``
    """

    branches = True

    def __init__(
        self,
        env: Env,
        datastore: Annotated[str, "a file that draftretriever.Writer wrote, of the target's tokens"] = "",
    ) -> None:
        package = guest_module("rest", "draftretriever", "rest")
        if not Path(datastore).is_file():
            raise SpecdecError(
                f"rest was given datastore={datastore!r}; expected a file that draftretriever.Writer wrote: "
                "rest(datastore=texts.idx)"
            )
        super().__init__(env.max_window)
        self._reader, self._vocabulary = package.Reader(datastore), env.target.vocabulary

    def continuations(self, row: int, history: History, limit: int) -> list[list[int]]:
        """The paths of the answer; the tree of these is cut to the room."""
        if len(history) < SPAN:
            return []
        # Asked for one node, the package ends the process.
        answer = self._reader.search(history[-SPAN:].tolist(), choices=max(limit, 2))[0]
        paths = [[token for token in path if token >= 0] for path in answer]  # -2 fills paths up
        if strange := [token for path in paths for token in path if token >= self._vocabulary]:
            raise SpecdecError(
                f"the datastore of rest has the token {strange[0]}, and the target's vocabulary ends at "
                f"{self._vocabulary - 1}; write one with the target's tokenizer"
            )
        return paths


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``rest``."""
    register("rest", Rest)
