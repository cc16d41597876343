"""A sign that is a digit and no decimal number, such as ², is refused with the option's own sentence."""

from __future__ import annotations

import pytest

from benchsuite.gate.record import GateError
from benchsuite.options import OPTIONS
from benchsuite.tests.rig import requested
from specdec import SpecdecError

WHOLE = ("k", "adaptive-k", "concurrency", "batch", "top-k", "max-new-tokens", "prompts", "pairs", "seed", "shard")
"""Options of whole numbers."""


@pytest.mark.parametrize("name", [*WHOLE, "gate-pairs", "gate-order-seed", "gate-launches", "gate-level"])
@pytest.mark.parametrize("text", ["²", "1.5", "-1", "x", "1_0"])
def test_what_is_no_whole_number_is_refused_by_the_options_own_sentence(name: str, text: str) -> None:
    gated = {"gate": "fail", "gate_self_test": "true"} if name.startswith("gate-") else {}
    with pytest.raises((SpecdecError, GateError)) as refused:
        requested(**gated, **{name.replace("-", "_"): text})
    option = name if name.startswith("gate-") else f"specdec-{name}"
    assert str(refused.value).startswith(f"--{option} is {text!r}; expected ")


@pytest.mark.parametrize("option", [one.name for one in OPTIONS if one.name not in ("arm", "endpoint")])
def test_the_default_of_every_option_is_taken(option: str) -> None:
    usual = requested()
    written = next(one.default for one in OPTIONS if one.name == option)
    assert requested(**{option.replace("-", "_"): written}).texts == usual.texts
