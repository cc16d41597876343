"""Amounts in words: counts with their nouns, bytes with their units."""

from __future__ import annotations

UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def amount(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: ``one`` for 1, else ``many``, by default the plural of ``one``.

    Example: ``amount(1, "launch")`` is ``"1 launch"``, ``amount(0, "launch")`` is ``"0 launches"``.
    """
    ending = "es" if one.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{count} {one if count == 1 else many or one + ending}"


def memory_text(count: float) -> str:
    """Return bytes in the largest unit of which they are a tenth or more.

    Example: ``memory_text(3 * 2**19)`` is ``"1.50 MiB"``.
    """
    for unit, size in UNITS:
        if count >= size / 10:
            return f"{count / size:.2f} {unit}"
    return amount(int(count), "byte")
