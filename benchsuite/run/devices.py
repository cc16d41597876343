"""The part of the plugin that selects by device: it skips items without their device, and fails if none ran.

Only items of this suite are affected. Imports no torch until an item has one of the markers.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

from benchsuite.run.speculation import row_of

DEVICE_MARKERS = ("cuda", "mps", "gpu")


class DevicePlugin:
    """Reads the devices that ``-m`` selects, and sees whether items of ours were collected and ran."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        expression = config.option.markexpr or ""
        named = re.findall(r"\w+", re.sub(r"not\s+\w+", "", expression))
        self._kinds = [marker for marker in DEVICE_MARKERS if marker in named]
        self._collected = self._ran = False  # any item of ours

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """See whether there are items of ours, before ``-m`` and ``-k`` deselect some."""
        self._collected = any(map(_is_ours, items))
        return (yield)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip our items whose device is missing; the reason names the device."""
        marks = {mark.name for mark in item.iter_markers()} & set(DEVICE_MARKERS)
        if marks and _is_ours(item):
            from specdec.devices import why_absent

            kinds = sorted(marks - {"gpu"}) or ["cuda", "mps"]
            reasons = [why_absent(kind) for kind in kinds]
            if all(reasons):
                pytest.skip("; ".join(reason for reason in reasons if reason))

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """See whether an item of ours ran."""
        self._ran |= _is_ours(item)

    @property
    def _ran_nothing(self) -> bool:
        return bool(self._kinds and self._collected and not self._ran and not self.config.option.collectonly)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail the run if it selects by device and none of our items ran."""
        if self._ran_nothing and exitstatus in (0, 5):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print why a selection by device failed."""
        if not self._ran_nothing:
            return
        from specdec.devices import why_absent

        kinds = ("cuda", "mps") if "gpu" in self._kinds else self._kinds
        reasons = [reason for kind in kinds if (reason := why_absent(kind))]
        terminalreporter.section("specdec-bench", sep="-")
        terminalreporter.write_line(
            f"-m {self.config.option.markexpr!r} selected by device and none of specdec-bench's tests ran: "
            f"{'; '.join(reasons) or 'none of those collected carries the marker'}",
            red=True,
        )


def _is_ours(item: pytest.Item) -> bool:
    module = getattr(getattr(item, "module", None), "__name__", "")
    return row_of(item) is not None or module.startswith("benchsuite.")
