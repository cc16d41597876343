"""The part of the plugin that runs one part of the collected items, ``--specdec-shard i/n``.

Rows that are measured together stay together: a row's figures are of one machine. Imports no torch by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from benchsuite import options


class ShardPlugin:
    """Deselects the items of the other parts. ``cell_of``: the name of what an item's row is measured together with.

    Items are dealt in the order of collection, so every part must select the same ones: equal arguments, equal ``-k``
    and ``-m``.
    """

    def __init__(self, config: pytest.Config, cell_of: Callable[[pytest.Item], str | None]) -> None:
        self.config, self._cell_of = config, cell_of
        self.part, self.of = _parts(options.value(config, "shard"))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep every n-th item or group of rows, from the i-th."""
        if self.of == 1:
            return
        keys = {item: self._cell_of(item) or item.nodeid for item in items}
        mine = set(list(dict.fromkeys(keys.values()))[self.part - 1 :: self.of])
        self.config.hook.pytest_deselected(items=[item for item in items if keys[item] not in mine])
        items[:] = [item for item in items if keys[item] in mine]


def _parts(text: str) -> tuple[int, int]:
    """Read ``i/n``; an empty text is the whole. UsageError for anything else."""
    found = re.fullmatch(r"(\d+)/(\d+)", text.replace(" ", "") or "1/1")
    part, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= part <= of:
        raise pytest.UsageError(f"--specdec-shard is {text!r}; expected i/n with i from 1 to n, as in 2/3")
    return part, of
