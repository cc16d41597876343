"""Pins of test_limits.py: tests that read what is private."""

from __future__ import annotations

import math

from benchsuite.measure import cells


def test_numbers_that_json_lacks_are_written_as_texts_at_any_depth() -> None:
    whole = {"a": [math.inf, (1, -math.inf)], "b": {"c": math.inf, "d": 1.5}, "e": "inf is a word", "f": True}
    texts = {"a": ["inf", [1, "-inf"]], "b": {"c": "inf", "d": 1.5}, "e": "inf is a word", "f": True}
    assert cells._written(whole) == texts
    assert cells._read(texts) == {**whole, "a": [math.inf, [1, -math.inf]]}
    assert (cells._written(math.nan), math.isnan(cells._read("nan"))) == ("nan", True)
