"""Times and shares as people write them in options. Imports no torch."""

from __future__ import annotations

import re
from math import isfinite

_NUMBER = r"([0-9]*\.?[0-9]+)"

_SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600}


def parse_duration(text: str, option: str) -> float | None:
    """Return the seconds that ``text`` means, None if it is empty or 0. ``option`` is named in the SpecdecError.

    Example: ``parse_duration("1.5h", "--specdec-timeout")`` is 5400.0; also ``90``, ``90s``, ``10min``.
    """
    found = re.fullmatch(_NUMBER + r"\s*(s|min|h|)", text.strip() or "0")
    seconds = float(found[1]) * _SECONDS[found[2]] if found else float("nan")
    if not isfinite(seconds):
        raise _refused(option, text, "a time, for example 90, 90s, 10min or 1.5h, or 0 for none")
    return seconds or None


def parse_share(text: str, option: str) -> float:
    """Return the share, above 0 and below 1, that ``text`` means. ``option`` is named in the SpecdecError.

    ``N%`` is exactly the number that N/100 written as a decimal is.

    Example: ``parse_share("2%", "--specdec-precision")`` is 0.02, as ``0.02`` is.
    """
    found = re.fullmatch(_NUMBER + r"\s*(%?)", text.strip())
    share = float(found[1] + ("e-2" if found[2] else "")) if found else 0.0
    if not 0 < share < 1:
        raise _refused(option, text, "a share above 0 and below 1, for example 2% or 0.02")
    return share


def _refused(option: str, text: str, expected: str) -> Exception:
    from specdec.errors import SpecdecError

    return SpecdecError(f"{option} is {text!r}; expected {expected}")
