"""The part of the plugin for a target over several processes, ``torchrun … -m pytest``: all measure, rank 0 writes.

Imports no torch until a run of several ranks has rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from benchsuite.measure.arms import Arm
    from benchsuite.run.request import RunRequest
    from specdec.ranks import Ranks

ALONE = {
    "exact": "the sums over ranks are not proved to be the same for windows of every width",
    "profile": "a trace is made on rank 0 alone, and would wait for the others",
    "resume": "rank 0 alone reads the folder, and the others would measure what it leaves out",
    "precision": "it goes by the clock, which is another on every rank: fix the work with --specdec-prompts and "
    "--specdec-pairs",
    "budget": "it goes by the clock, which is another on every rank: fix the work with --specdec-prompts and "
    "--specdec-pairs",
}
"""Options that a run of several ranks refuses, each with the reason."""

ELSEWHERE = {
    "specdec_kernels": "pytest -m kernels",
    "specdec_decoding": "pytest -m decoding",
    "specdec_load": "pytest -m load",
    "specdec_conversations": "pytest -m conversations",
    "specdec_served": "pytest -m serving",
    "specdec_certificates": "pytest -m serving",
}
"""Fixtures whose benchmarks know no ranks, and the commands that use them."""

CUT = ("transformers", "transformers_prompt_lookup")
"""The peers that run on a cut model."""


class RankedPlugin:
    """Joins the ranks of a run, keeps all but rank 0 quiet, and has them end together.

    ``ranks`` is None in a run of one process, and until ``begin``.
    """

    def __init__(self, config: pytest.Config, request: RunRequest) -> None:
        self.config, self.request = config, request
        self.several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
        self.ranks: Ranks | None = None
        self._session: pytest.Session | None = None
        self._held: tuple[Any, Any] | None = None  # the terminal's writer and its file

    @property
    def first(self) -> bool:
        """Whether this process writes and shows the results."""
        return self.ranks is None or self.ranks.first

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Hold back what other ranks than the first print, until it is known whether the run has rows."""
        self._session = session
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if self.several and os.environ["RANK"] != "0" and reporter is not None:
            writer = reporter._tw
            self._held, writer._file = (writer, writer._file), StringIO()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_finish(self, session: pytest.Session) -> Any:
        """Refuse benchmarks that know no ranks; let a run without rows print."""
        used = {name for item in session.items for name in getattr(item, "fixturenames", ()) if name in ELSEWHERE}
        if self.several and used and not self.config.option.collectonly:
            commands = " and ".join(sorted({ELSEWHERE[name] for name in used}))
            raise pytest.UsageError(
                f"{commands} measures one process, and torchrun has started {os.environ['WORLD_SIZE']}: run it "
                "without torchrun, or name benchsuite/test_speculation.py alone"
            )
        result = yield
        if self._held is not None and self.ranks is None:
            writer, file = self._held
            file.write(writer._file.getvalue())
            writer._file = file
        return result

    def begin(self, arms: Sequence[Arm], gated: bool, abandon: Callable[[str], None]) -> None:
        """Meet the other ranks, if there are any. SpecdecError for what several ranks cannot do.

        ``abandon`` is called on rank 0, from any thread, before a run that cannot go on ends the process.
        """
        from specdec.devices import kind_of
        from specdec.ranks import Place, join_ranks

        place = Place.of(os.environ)
        if place is None:
            return
        self._refuse(arms, gated, place.ranks)
        kinds = sorted({kind_of(arm.setting.device) for arm in arms})
        self.ranks = join_ranks(place, kinds[0], abandon if place.rank == 0 else lambda reason: None)
        order = crc32(repr([arm.id for arm in arms]).encode())
        shuffled = "the order of the rows: if a plugin such as pytest-randomly shuffles them, add -p no:randomly"
        self.ranks.compare(shuffled, len(arms), len(kinds), order)
        if not self.first:
            self._write_nothing()

    def _refuse(self, arms: Sequence[Arm], gated: bool, ranks: int) -> None:
        from specdec.choices import BITS
        from specdec.errors import SpecdecError

        def refused(what: str, reason: str) -> SpecdecError:
            return SpecdecError(f"{what} with {ranks} ranks: {reason}; leave it out, or run without torchrun")

        for name, reason in ALONE.items():
            if getattr(self.request, name):
                raise refused(f"--specdec-{name}", reason)
        if gated:
            raise refused("--gate", "its launches are processes of their own, which torchrun does not start")
        if getattr(self.config.option, "numprocesses", None) or hasattr(self.config, "workerinput"):
            raise refused("-n of pytest-xdist", "its workers would be ranks of the same number")
        kinds = {arm.setting.device.partition(":")[0] for arm in arms}
        if "mps" in kinds or len(kinds) > 1:
            raise refused(f"--specdec-device {','.join(sorted(kinds))}", "one kind of cpu and cuda joins the ranks")
        for arm in arms:
            if arm.setting.dtype in BITS:
                raise refused(
                    f"--specdec-dtype {arm.setting.dtype}",
                    "weights are rounded in groups of inputs, which a cut would divide otherwise than one process does",
                )
            if arm.peer and (name := arm.peer.partition("(")[0].strip()) not in CUT:
                raise refused(
                    f"--specdec-peer {name}",
                    f"only {' and '.join(CUT)} run on a cut model (nothing that is compiled, and no other engine)",
                )

    def _write_nothing(self) -> None:
        """Rank 0 writes the files that pytest-benchmark and pytest are asked for."""
        session = getattr(self.config, "_benchmarksession", None)
        if session is not None:
            session.json = session.save = session.autosave = None
        for plugin in self.config.pluginmanager.get_plugins():
            if type(plugin).__name__ == "LogXML":  # of --junitxml
                plugin.logfile = os.devnull

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name the failures of other ranks than the first, whose reports nobody sees."""
        if report.failed and not self.first:
            assert self.ranks is not None
            *_, last = str(report.when), *report.longreprtext.strip().splitlines()
            print(f"rank {self.ranks.place.rank} failed: {report.nodeid}: {last}", file=sys.__stderr__, flush=True)

    def pytest_unconfigure(self) -> None:
        """Wait for the other ranks; rank 0 has written and shown everything."""
        if self.ranks is not None:
            assert self._session is not None  # rows were collected in it
            self.ranks.leave(int(self._session.exitstatus))
