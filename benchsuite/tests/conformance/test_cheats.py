"""Plugins that are honest on most inputs, or use what is not theirs: the check of the kit that finds each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from benchsuite import conformance
from benchsuite.conformance.claims import Checks, failures
from benchsuite.tests.cheating_controllers import CHEATING_CONTROLLERS
from benchsuite.tests.cheating_drafts import CHEATING_DRAFTS
from benchsuite.tests.cheating_policies import CHEATING_POLICIES
from benchsuite.tests.rig import slow_after
from specdec import Draft, Policy
from specdec.interfaces import ControllerFactory


def found_by(kit: type[Checks], check: str, message: str) -> None:
    """The kit's check of this part of a name fails, with this message."""
    said = next(failures(kit, only=check), None)
    assert said, f"{check} finds nothing"
    assert re.search(message, said[1], re.DOTALL), said


def cheat_name(value: object) -> str | None:
    """The cheat's name as the test's id."""
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("cheat", "claims", "check", "message"), slow_after(2, CHEATING_POLICIES), ids=cheat_name)
def test_a_policy_that_is_honest_elsewhere_is_found(
    cheat: type[Policy], claims: dict[str, Any], check: str, message: str
) -> None:
    found_by(conformance.policy("planted", factory=cheat, **claims), check, message)


@pytest.mark.parametrize(("cheat", "claims", "check", "message"), slow_after(4, CHEATING_DRAFTS), ids=cheat_name)
def test_a_draft_that_uses_what_is_not_its_own_is_found(
    cheat: Callable[..., Draft], claims: dict[str, Any], check: str, message: str
) -> None:
    found_by(conformance.draft("planted", factory=cheat, **claims), check, message)


@pytest.mark.parametrize(("cheat", "check", "message"), slow_after(3, CHEATING_CONTROLLERS), ids=cheat_name)
def test_a_controller_that_leaves_its_bounds_or_its_place_is_found(
    cheat: ControllerFactory, check: str, message: str
) -> None:
    found_by(conformance.controller("planted", deterministic=True, factory=cheat), check, message)
