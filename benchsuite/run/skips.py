"""Why tests were skipped, where the suite itself skipped them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from specdec.amounts import amount

PACKAGE = Path(__file__).parents[1]


def skip_lines(reports: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Return a line for each reason for which code of the suite, its own tests left out, skipped tests.

    Example: ``skip_lines(terminalreporter.stats["skipped"])``
    """
    reasons = Counter[str]()
    for report in reports:
        if isinstance(report.longrepr, tuple):
            place, _, reason = report.longrepr
            if Path(place).is_relative_to(PACKAGE) and not Path(place).is_relative_to(PACKAGE / "tests"):
                reasons[reason.removeprefix("Skipped: ")] += 1
    return [f"{amount(count, 'test')} skipped: {reason}" for reason, count in reasons.items()]
