"""A sign that is a digit and no decimal number, such as ², is refused with the option's own sentence."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest

from benchsuite.benches.serving.load import parse_loads
from benchsuite.gate import rules
from benchsuite.gate.record import GateError
from benchsuite.options import count
from benchsuite.predict import commands
from benchsuite.tests.rig import config
from benchsuite.workshop.predictions import __main__
from specdec import SpecdecError

TYPED: dict[str, tuple[Callable[[str], Any], str]] = {
    "--gate-pairs": (lambda text: rules._whole("pairs", text), "expected a whole number, 1 or more"),
    "--gate-launches": (rules._launches, "expected FIRST+MORE"),
    "--batch of predictions": (
        lambda text: __main__._settings(Namespace(batch=text), ()),
        "expected whole numbers from 1, as a comma list",
    ),
    "--batch of advice": (lambda text: commands.whole_numbers("--batch", text), "expected whole numbers from 1"),
    "--specdec-concurrency": (lambda text: parse_loads(text, ""), "expected whole numbers, 1 or more"),
    "--specdec-repeats": (lambda text: count(config(repeats=text), "repeats"), "expected a whole number"),
}


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("text", ["²", "0", "1.5", "-1", "x"])
def test_what_is_no_whole_number_is_refused_by_the_options_own_sentence(name: str, text: str) -> None:
    read, expected = TYPED[name]
    with pytest.raises((SpecdecError, GateError)) as refused:
        read(text)
    assert expected in str(refused.value)
    assert repr(text) in str(refused.value)
