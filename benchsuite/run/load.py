"""The part of the plugin that measures strategies under load: ``pytest -m load``.

Imports no torch until an item runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchsuite.run.target_plugin import MEANT, TargetPlugin, settings_by_name

if TYPE_CHECKING:
    from benchsuite.benches.load.bench import LoadBench, LoadPlan
    from benchsuite.benches.load.load_journal import LoadJournal
    from benchsuite.benches.load.measured_load import MeasuredLoad
    from benchsuite.measure.arms import Setting
    from benchsuite.report.document import Document
    from benchsuite.run.request import RunRequest
    from specdec.catalog import Loaded
    from specdec.model import ArenaModel


class LoadPlugin(TargetPlugin["LoadBench"]):
    """Builds one ``LoadBench`` for each setting of the run, and makes an item for each of its loads."""

    fixture = "specdec_load"
    title = "load"
    max_length = 1024

    def __init__(self, config: pytest.Config, request: RunRequest) -> None:
        super().__init__(config, request)
        self.rows = max(request.batch)
        self._journal: LoadJournal | None = None
        self._files: dict[str, str] = {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item for each setting and each load of ``--specdec-batch`` and ``--specdec-rate``."""
        super().pytest_generate_tests(metafunc)
        if self.fixture in metafunc.fixturenames and "load" in metafunc.fixturenames:
            from benchsuite.benches.serving.load import loads_of

            loads = loads_of(self.request.batch, self.request.rate)
            metafunc.parametrize("load", loads, ids=[load.id for load in loads])

    def settings(self) -> dict[str, Setting]:
        """Each target with every backend, device, dtype and way of sampling of the options."""
        return settings_by_name(self.request, (*MEANT, *self.request.sampling))

    def build(self, name: str, loaded: Loaded, target: ArenaModel) -> LoadBench:
        """Return the benchmark of one setting: its arms and what they serve. SpecdecError for what cannot be meant."""
        from benchsuite.benches.load.bench import LoadBench
        from benchsuite.run.matrix import engine_arms

        setting = self.settings()[name]
        journal = self._begun()
        if journal is None:
            return LoadBench(name, loaded, target, engine_arms(self.request, setting), self._plan(setting))
        bench = LoadBench(
            name,
            loaded,
            target,
            engine_arms(self.request, setting),
            self._plan(setting),
            lambda found: self._keep(journal, name, found),
        )
        for found in journal.loads(name):
            bench.go_on(found)
        if self.request.resume:
            self.card.append(f"resumed: {len(bench.blocks)} of {len(bench.plan.loads)} loads were there")
        return bench

    def _begun(self) -> LoadJournal | None:
        """The folder of the run, made or gone on with when its first target is loaded. SpecdecError if it cannot be."""
        from benchsuite.benches.load.load_journal import LoadJournal
        from benchsuite.store.journal import manifest

        root = self.request.results_root()
        if self._journal is None and root is not None:
            go_on = LoadJournal.resume if self.request.resume else LoadJournal.begin_in
            self._journal = go_on(root, "load", manifest(self.request.texts))
        return self._journal

    def _keep(self, journal: LoadJournal, name: str, found: MeasuredLoad) -> None:
        """Write a load; where there is no room, a line says so, and it is tried again with the tables."""
        try:
            journal.keep(name, found)
        except OSError as error:
            self.outcomes.append(f"{found.load.label} of {name} could not be written to {journal.folder}: {error}")

    def _plan(self, setting: Setting) -> LoadPlan:
        from benchsuite.benches.load.bench import LoadPlan
        from benchsuite.benches.serving.figures import Slo
        from benchsuite.benches.serving.load import loads_of
        from benchsuite.measure.workloads import load_workload
        from benchsuite.run.names import named_workloads

        request = self.request
        return LoadPlan(
            tuple(loads_of(request.batch, request.rate)),
            tuple(load_workload(name).first(request.prompts) for name in named_workloads(request)),
            setting.sampling,
            self.rows,
            request.pairs,
            Slo(**request.slo) if request.slo else None,
        )

    def measured(self, bench: LoadBench) -> bool:
        """Whether a block was served."""
        return any(bench.blocks.values())

    def document(self, bench: LoadBench) -> Document:
        """Return the report of one setting."""
        from benchsuite.report.load import load_document

        return load_document(bench, self.card)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the tables; the folder of a run that has measured nothing is removed."""
        super().pytest_sessionfinish(session, exitstatus)
        if self._journal is not None and not any(map(self.measured, self.benches.values())):
            self._journal.give_up()

    def write(self, root: Path, bench: LoadBench, complete: bool) -> Path:
        """Write page, table and JSON of one setting into the run's folder."""
        from benchsuite.report.load import load_files

        assert self._journal is not None
        name = "load" if len(self.settings()) == 1 else f"load-{Path(bench.name).name}"
        self._files |= load_files(name, bench, self.card)
        self._journal.close(self._files, {"card": self.card}, complete)
        return self._journal.folder
