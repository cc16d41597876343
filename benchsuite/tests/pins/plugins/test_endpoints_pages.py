"""Pins of test_endpoints_pages.py: tests that read what is private."""

from __future__ import annotations

import pytest

from specdec_plugins.endpoints import server_metrics
from specdec_plugins.endpoints.exposition import PageError, PageSample


@pytest.mark.parametrize(("text", "depth"), [("0", 0), ("007", 7), ("10000", 10_000)])
def test_a_position_is_a_whole_number_up_to_ten_thousand(text: str, depth: int) -> None:
    assert server_metrics._position(PageSample("n", "1", {"position": text})) == depth


@pytest.mark.parametrize("labels", [{}, *({"position": text} for text in ("", "x", "-1", "1.0", "10001", "\u0663"))])
def test_any_other_position_is_refused_as_it_stands(labels: dict[str, str]) -> None:
    with pytest.raises(PageError) as refused:
        server_metrics._position(PageSample("n", "1", labels))
    assert str(refused.value) == f"n has the position {labels.get('position', '')!r}; expected a whole number"


def test_labels_of_an_engine_are_sorted_and_read_back() -> None:
    assert server_metrics._write_labels({"b": "1", "a": 'x"'}) == '{a="x\\"",b="1"}'
    assert server_metrics._write_labels({}) == ""
    assert server_metrics._read_labels('{a="x\\"",b="1"}') == {"a": 'x"', "b": "1"}
    assert server_metrics._read_labels("") == {}
