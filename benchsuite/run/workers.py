"""pytest-xdist's workers: the rows that are measured at once go to one of them. Imports no torch by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

FREE = ("load", "worksteal", "loadgroup")
"""Ways of pytest-xdist to distribute tests that leave free which worker gets which test."""


def scheduling(config: Any, log: Any, cell_of_id: Callable[[str], str | None]) -> Any:
    """Return a scheduling for ``FREE``: the rows of a cell are one unit of work, and every other test is one.

    ``cell_of_id``: what a test is measured with, by its node id; None for a test without a row.
    """
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    class CellScheduling(LoadGroupScheduling):  # type: ignore[misc]
        """Units of work are cells. A unit that is done is forgotten: each test asks how much its worker still has."""

        def _split_scope(self, nodeid: str) -> str:
            return cell_of_id(nodeid) or str(super()._split_scope(nodeid))

        def mark_test_complete(self, node: Any, item_index: int, duration: float) -> None:
            super().mark_test_complete(node, item_index, duration)
            unit = self._split_scope(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][unit].values()):
                del self.assigned_work[node][unit]

    return CellScheduling(config, log)


def split_cells(dist: str, items: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the cells whose rows one of pytest-xdist's other ways to distribute sends to several workers.

    ``items``: the node id of each row's test, and the name of what is measured at once for it.
    """
    scopes = defaultdict[str, set[str]](set)
    for nodeid, cell in items:
        file, name = nodeid.partition("::")[0], nodeid.rpartition("::")[0]
        scopes[cell].add({"loadfile": file, "loadscope": name}.get(dist, ""))
    yield from (cell for cell, found in scopes.items() if dist == "each" or len(found) > 1)
