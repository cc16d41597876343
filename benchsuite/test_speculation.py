"""The main job: every arm of the matrix, measured in pairs with plain decoding and checked against its contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdec.errors import folded

if TYPE_CHECKING:
    from benchsuite.measure.rows import Row

pytestmark = pytest.mark.slow


def test_speculation(specdec_benchmark: Row) -> None:
    if specdec_benchmark.failure:
        pytest.fail(folded(specdec_benchmark.failure), pytrace=False)
