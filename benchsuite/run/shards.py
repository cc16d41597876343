"""The part of the plugin that runs one part of the collected items, ``--specdec-shard i/n``.

Rows that are measured together stay together: a row's figures are of one machine. Imports no torch by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


class ShardPlugin:
    """Deselects the items of the other parts.

    ``shard``: the number of this part, and of how many. ``cell_of``: the name of what an item's row is measured with.

    Items are dealt in the order of collection, so every part must select the same ones: equal arguments, equal ``-k``
    and ``-m``.
    """

    def __init__(
        self, config: pytest.Config, shard: tuple[int, int], cell_of: Callable[[pytest.Item], str | None]
    ) -> None:
        self.config, self._cell_of = config, cell_of
        self.part, self.of = shard

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep every n-th item or group of rows, from the i-th."""
        if self.of == 1:
            return
        keys = {item: self._cell_of(item) or item.nodeid for item in items}
        mine = set(list(dict.fromkeys(keys.values()))[self.part - 1 :: self.of])
        self.config.hook.pytest_deselected(items=[item for item in items if keys[item] not in mine])
        items[:] = [item for item in items if keys[item] in mine]
