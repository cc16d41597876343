"""Claims, and how their failure reads."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from _pytest.outcomes import Failed as Outcome


class Failed(Outcome):
    """What was claimed, what was measured instead, and the smallest example at hand; pytest shows no traceback."""

    def __init__(self, claimed: str, measured: str, example: str) -> None:
        super().__init__(f"\n  claimed:  {claimed}\n  measured: {measured}\n  example:  {example}", pytrace=False)


def same(text: str, name: str, claimed: bool, measured: bool, example: str) -> None:
    """Raise Failed unless a claim by ``name`` is what was measured."""
    if claimed != measured:
        raise Failed(f"{text} has {name}={claimed}", f"{name}={measured}", example)


class Checks:
    """Tests of one plugin: methods whose names say what holds."""

    @pytest.fixture(autouse=True)
    def _one_thread(self) -> Iterator[None]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)


def failures(checks: type[Checks], *, only: str = "") -> Iterator[tuple[str, str]]:
    """Run every check that needs no accelerator, without pytest: the names of those that fail, and how.

    ``only`` is a regular expression of the names that are run.
    """
    for name, check in inspect.getmembers(checks, inspect.isfunction):
        if name.startswith("test_") and re.search(only, name):
            for arguments in _cases(check):
                try:
                    check(checks(), **arguments)
                except pytest.skip.Exception:
                    continue
                except (Exception, Failed) as error:
                    case = f"[{', '.join(map(str, arguments.values()))}]" if arguments else ""
                    yield name + case, f"{type(error).__name__}: {error}"


def _cases(check: Any) -> Iterator[dict[str, Any]]:
    """The product of a check's parametrisations, but for values that carry marks."""
    choices = []
    for mark in getattr(check, "pytestmark", []):
        names = (mark.args[0],) if isinstance(mark.args[0], str) else mark.args[0]
        rows = [value if isinstance(value, type(pytest.param())) else pytest.param(value) for value in mark.args[1]]
        choices.append([dict(zip(names, row.values, strict=True)) for row in rows if not row.marks])
    for chosen in itertools.product(*choices):
        yield {name: value for part in chosen for name, value in part.items()}
