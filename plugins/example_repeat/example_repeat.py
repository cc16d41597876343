"""repeat: the end of the text, over and over. A third party's draft, in one file."""

from collections.abc import Callable
from typing import Annotated

from specdec import Context, Draft, SpecdecError, Window, hookimpl
from specdec.interfaces import DraftFactory, Env


class Repeat(Draft):
    """Proposes that the last ``period`` tokens come again, in turn: good on rows of dots, bad on most else.

    Source: the tutorial of specdec-bench, docs/write-a-plugin.md.

    Example: after 7 8 9 with ``repeat(period=2)`` and K = 3 it proposes 8 9 8.
    """

    def __init__(self, env: Env, period: Annotated[int, "how many tokens come again"] = 1) -> None:
        if period < 1:
            raise SpecdecError(f"period is {period}; expected 1 or more")
        self._period = period

    def propose(self, context: Context) -> Window:
        """As many tokens a row as it has room for."""
        return Window.ragged(context, [self._again(context, row) for row in range(context.rows)])

    def _again(self, context: Context, row: int) -> list[int]:
        end = context.history[row, : context.length_host[row]][-self._period :].tolist()
        return [end[index % len(end)] for index in range(context.max_proposals_host[row])]


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``repeat``."""
    register("repeat", Repeat)
