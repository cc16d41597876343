"""Guests are set up, certified and run one after the other; what cannot be set up is skipped by name."""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchsuite import conformance
from benchsuite.conformance.models.tiny import registry
from benchsuite.engines.guests import Guest, chosen_guests, known_guests, run_guests
from benchsuite.engines.pins import EnginePins
from benchsuite.tests.engines.standing_in import NotedCommands
from benchsuite.tests.rig import Run
from specdec import SpecdecError

HERE = f"{sys.platform}-{platform.machine().lower()}"


def guest(name: str, **given: object) -> Guest:
    pins = EnginePins(name, "a stand-in", ">=3.11", (HERE,), 0.001, (f"{name}==1",), (name,))
    return Guest(replace(pins, **given), (("ngram", {"k": 2}), ("suffix", {"remembers": True})), "known = 3")  # type: ignore[arg-type]


def test_a_guest_is_certified_with_its_claims_and_run_for_a_row_of_each_draft(tmp_path: Path) -> None:
    said, unrun = list[str](), NotedCommands()
    assert run_guests([guest("one")], tmp_path, said.append, unrun) == ([], [])
    kit, rows = unrun.lines[-2:]
    assert kit.split()[0] == str(tmp_path / "one" / "bin" / "python")
    assert (tmp_path / "one" / "test_guest.py").read_text().splitlines() == [
        "known = 3",
        "from benchsuite import conformance",
        "Test0 = conformance.draft('ngram', **{'k': 2})",
        "Test1 = conformance.draft('suffix', **{'remembers': True})",
    ]
    assert kit.endswith(f"--rootdir={tmp_path / 'one'} {tmp_path / 'one' / 'test_guest.py'}")
    assert rows.endswith("--specdec-arm one 0=ngram/match/fixed/4, one 1=suffix/match/fixed/4")
    assert said[-2:] == ["one: the kit: 4 passed in 1 s", "one: rows on tiny: 4 passed in 1 s"]


def test_what_cannot_be_set_up_is_skipped_and_what_fails_its_checks_has_failed(tmp_path: Path) -> None:
    said = list[str]()

    class FailsOfTwo(NotedCommands):
        def __call__(self, command: Sequence[str]) -> str:
            if str(tmp_path / "two" / "test_guest.py") in command:
                raise SpecdecError("1 failed")
            return super().__call__(command)

    guests = [guest("old", python="<3"), guest("gone"), guest("two"), guest("three")]
    unrun = FailsOfTwo(fails="gone==1")
    assert run_guests(guests, tmp_path, said.append, unrun) == (["old", "gone"], ["two"])
    for line in ("gone: skipped: no matching distribution for gone==1", "two: FAILED: 1 failed"):
        assert line in said
    assert any(line.startswith("old: skipped: its pins are for Python <3") for line in said)
    assert said[-1].startswith("three: rows on tiny")


def test_a_package_is_built_last_with_what_the_environment_has(tmp_path: Path) -> None:
    unrun = NotedCommands()
    run_guests([guest("one", built=("two==2",))], tmp_path, list[str]().append, unrun)
    packages, built, imported = unrun.lines[1:4]
    assert packages.endswith("--no-deps one==1")
    assert built.startswith(f"env PATH={tmp_path / 'one' / 'bin'}:")
    assert built.endswith("--no-deps --no-build-isolation two==2")
    assert "import one" in imported


def test_the_known_guests_are_registered_drafts_and_claim_what_the_kit_knows() -> None:
    known = known_guests()
    assert set(known) == {"arctic_suffix", "rest", "flashspec_drafter", "transformers_candidates"}
    for name, one in known.items():
        for text, claims in one.drafts:
            registry().parse("draft", text)  # its options exist
            assert text.partition("(")[0] == name
            assert claims.keys() <= inspect.signature(conformance.draft).parameters.keys()


def test_a_name_that_is_no_guest_is_refused_with_those_that_are(run: Run) -> None:
    assert chosen_guests([]) == [*known_guests().values()]
    done = run("-m", "benchsuite", "guests", "rset")
    assert done.returncode == 2
    assert "unknown guest 'rset'; did you mean 'rest'? choices: arctic_suffix, flashspec_drafter" in done.stderr
