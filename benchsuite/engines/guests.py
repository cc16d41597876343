"""Guests: drafts of other projects, each set up in an environment of its own, certified, and run for a row."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchsuite.engines.environments import Command, run_quietly, set_up
from benchsuite.engines.pins import EnginePins, chosen_by_name, pins_of_table
from specdec.errors import SpecdecError

GUESTS = Path(__file__).with_name("guests.toml")

FOLDER = "{folder}"
"""Stands for the guest's environment in its texts."""

ROW = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "benchsuite.test_speculation"),
    *("--specdec-target", "tiny", "--specdec-workload", "chat", "--specdec-prompts", "1"),
    *("--specdec-max-new-tokens", "24", "--specdec-peer", "none", "--benchmark-quiet", "--specdec-arm"),
)


@dataclass(frozen=True)
class Guest:
    """Drafts of another project.

    ``pins``: its environment. ``drafts``: names with options, each with its claims of ``conformance.draft``.
    ``before``: Python code for what must be there before they are built.
    """

    pins: EnginePins
    drafts: tuple[tuple[str, Mapping[str, object]], ...]
    before: str = ""


def known_guests(file: Path = GUESTS) -> dict[str, Guest]:
    """Every guest that is known, by name."""
    tables: dict[str, dict[str, Any]] = tomllib.loads(file.read_text(encoding="utf-8"))
    common = tables.pop("common")
    return {name: _guest(name, common, table) for name, table in tables.items()}


def _guest(name: str, common: Mapping[str, Any], table: dict[str, Any]) -> Guest:
    drafts, before = tuple((one["text"], one["claims"]) for one in table.pop("drafts")), table.pop("before", "")
    values = {**common, **table, "packages": [*common["packages"], *table.get("packages", ())]}
    return Guest(pins_of_table(name, {**values, "ours": True}), drafts, before)


def chosen_guests(names: Sequence[str], file: Path = GUESTS) -> list[Guest]:
    """The guests of these names, all if there are none. SpecdecError for a name that is none."""
    return chosen_by_name("guest", names, known_guests(file), "Without a name all are run.")


def run_guests(
    guests: Sequence[Guest], into: Path, say: Callable[[str], None], run: Command = run_quietly
) -> tuple[list[str], list[str]]:
    """Set up, certify and run one guest after the other; return the names of those skipped, and of those that failed.

    A guest that cannot be set up on this machine is skipped with the reason: no wheel, another Python, no room.
    """
    skipped, failed = list[str](), list[str]()
    for guest in guests:
        name = guest.pins.name
        try:
            set_up(guest.pins, into / name, say, run)
        except (SpecdecError, OSError) as error:
            say(f"{name}: skipped: {error}")
            skipped.append(name)
            continue
        try:
            for what, command in commands_of_guest(guest, into / name):
                said = run(command).strip().splitlines()
                say(f"{name}: {what}: {said[-1] if said else 'done'}")
        except SpecdecError as error:
            say(f"{name}: FAILED: {error}")
            failed.append(name)
    return skipped, failed


def commands_of_guest(guest: Guest, folder: Path) -> list[tuple[str, list[str]]]:
    """The kit and the rows of a guest that is set up in ``folder``, where the file of its checks is written."""
    folder = folder.absolute()
    drafts = [(text.replace(FOLDER, str(folder)), dict(claims)) for text, claims in guest.drafts]
    lines = [guest.before.replace(FOLDER, str(folder)), "from benchsuite import conformance"]
    lines += [f"Test{i} = conformance.draft({text!r}, **{claims!r})" for i, (text, claims) in enumerate(drafts)]
    checks, python = folder / "test_guest.py", str(folder / "bin" / "python")
    checks.write_text("\n".join(lines) + "\n", encoding="utf-8")
    kit = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", str(checks)]
    arms = ", ".join(f"{guest.pins.name} {i}={text}/match/fixed/4" for i, (text, _) in enumerate(drafts))
    return [("the kit", kit), ("rows on tiny", [python, *ROW, arms])]
