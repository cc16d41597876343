"""Conditions in which two arms must agree for their times to be compared, unless the user says otherwise. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.errors import unknown

ACROSS = ("compile", "dtype", "runtime")
"""Conditions (``Runner.conditions``) in which arms may differ and still be compared, if the user asks for it."""


def known_conditions(names: Sequence[str]) -> tuple[str, ...]:
    """Return the conditions that ``--specdec-across`` names. SpecdecError, with the choices, for any other.

    Example: ``known_conditions(["runtime", "compile"])``
    """
    for name in names:
        if name not in ACROSS:
            raise unknown("condition of --specdec-across", name, ACROSS)
    return tuple(names)
