"""Fixtures of the suite's own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from benchsuite.tiny import assembly
from specdec.assembly import Assembly

# The engine's first call in a process is slow and machines are shared: a deadline would time noise.
settings.register_profile("specdec", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("specdec")

Make = Callable[..., Assembly]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny products are faster on one thread, and beside a busy neighbour a hundred times so."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def assemble(one_thread: None) -> Make:
    """``benchsuite.tiny.assembly``, on one thread."""
    return assembly


KILLS = pytest.StashKey[list[Any]]()
"""What the museum's mutants came to."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The museum's table, where it was visited."""
    kills = config.stash.get(KILLS, [])
    if kills:
        from benchsuite.museum.kills import table

        terminalreporter.section("museum")
        terminalreporter.write_line(table(kills))


DEVICES = [
    pytest.param("cpu"),
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.gpu]),
    pytest.param("mps", marks=[pytest.mark.mps, pytest.mark.gpu]),
]
"""Every device a test may run on; those that are not here skip with the reason."""
