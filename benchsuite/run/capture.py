"""Print to the terminal while pytest captures output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def uncaptured(config: pytest.Config) -> Iterator[None]:
    """A context in which printed text goes to the terminal at once."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        yield
        return
    with capture.global_and_fixture_disabled():
        yield
