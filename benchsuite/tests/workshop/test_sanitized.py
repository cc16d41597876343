"""The command that runs the C++ under sanitizers does not trust sanitizers that find nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchsuite.conformance.ops.cases import TAILS, every_tail
from benchsuite.workshop.native import sanitized


@pytest.mark.parametrize("planted", sanitized.PLANTED, ids=lambda planted: f"{planted.op}: {planted.sign}")
def test_what_is_planted_is_still_a_line_of_the_sources(planted: sanitized.Planted, tmp_path: Path) -> None:
    planted.into(tmp_path)
    assert planted.new in (tmp_path / planted.file).read_text()
    assert any(f"specdec_{planted.op}(" in source.read_text() for source in tmp_path.glob("*.cpp"))


def test_every_number_of_floats_that_a_vector_of_16_leaves_over_is_a_case_of_every_op_with_vectors() -> None:
    sizes: dict[tuple[str, str], set[int]] = {}
    for case in every_tail():
        kind, _, size = case.name.rpartition("-")
        sizes.setdefault((case.op, kind), set()).add(int(size))
    assert {op for op, _ in sizes} == {"decoder_layers", *(case.op for case in TAILS)}
    for cases, found in sizes.items():
        assert {size % 16 for size in found} == {*range(16)}, cases
