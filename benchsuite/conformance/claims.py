"""Claims of the conformance kit, and the texts of their failures."""

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
    """Reports the claim, the measurement, and the smallest example at hand; pytest shows no traceback."""

    def __init__(self, claimed: str, measured: str, example: str) -> None:
        super().__init__(f"\n  claimed:  {claimed}\n  measured: {measured}\n  example:  {example}", pytrace=False)


def same(text: str, name: str, claimed: bool, measured: bool, example: str) -> None:
    """Raise Failed unless the claim ``name`` equals the measurement."""
    if claimed != measured:
        raise Failed(f"{text} has {name}={claimed}", f"{name}={measured}", example)


class Checks:
    """Tests of one plugin; the name of a method says what must be true."""

    @pytest.fixture(autouse=True)
    def _one_thread(self) -> Iterator[None]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)


def failures(checks: type[Checks], *, only: str = "") -> Iterator[tuple[str, str]]:
    """Run every check that needs no accelerator, without pytest; yield the name and the message of each failure.

    ``only`` is a regular expression for the names of the checks to run.
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
    """The product of a check's parametrisations, except values that carry marks."""
    choices = []
    for mark in getattr(check, "pytestmark", []):
        names = (mark.args[0],) if isinstance(mark.args[0], str) else mark.args[0]
        rows = [value if isinstance(value, type(pytest.param())) else pytest.param(value) for value in mark.args[1]]
        choices.append([dict(zip(names, row.values, strict=True)) for row in rows if not row.marks])
    for chosen in itertools.product(*choices):
        yield {name: value for part in chosen for name, value in part.items()}
