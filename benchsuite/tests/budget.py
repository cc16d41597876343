"""Which quick tests take more of the processor than a quick test may: a list to read, and no test fails by it.

Seconds of the processor depend less on what else runs than those of the clock, but not so little that a test may be
failed by them. What a process takes that was forked for a test (``benchsuite.tests.warm``) is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

BUDGET_S = 2.0
"""Seconds of the processor of a test that is not marked ``slow``, with the fixtures that it is the first to ask for."""

OVER = pytest.StashKey[list[tuple[float, str]]]()
"""Quick tests above the budget: their seconds and their names."""


def spent() -> float:
    """Seconds of the processor so far: this process and those that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note a quick test above the budget."""
    before = spent()
    result = yield
    took = spent() - before
    if took > BUDGET_S and item.get_closest_marker("slow") is None:
        item.config.stash.setdefault(OVER, []).append((took, item.nodeid))
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands over its list."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["over_budget"] = session.config.stash.get(OVER, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's list."""
    found = getattr(node, "workeroutput", {}).get("over_budget", [])
    node.config.stash.setdefault(OVER, []).extend(map(tuple, found))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the list, the longest first."""
    over = config.stash.setdefault(OVER, [])
    found = sorted(over, reverse=True)
    if found:
        terminalreporter.section(f"quick tests above {BUDGET_S:g} s of the processor: cheaper, or marked slow?")
        for took, name in found:
            terminalreporter.write_line(f"{took:6.1f} s  {name}")
