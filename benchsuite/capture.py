"""The user's terminal, while pytest captures what tests print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def uncaptured(config: pytest.Config) -> Iterator[None]:
    """What is printed in here is seen at once."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        yield
        return
    with capture.global_and_fixture_disabled():
        yield
