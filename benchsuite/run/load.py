"""The part of the plugin that measures strategies under load: ``pytest -m load``.

Imports no torch until an item runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchsuite.run.target_plugin import TargetPlugin

if TYPE_CHECKING:
    from benchsuite.benches.load.bench import LoadBench, LoadPlan
    from benchsuite.measure.arms import Arm
    from benchsuite.report.document import Document
    from benchsuite.run.request import RunRequest
    from specdec.catalog import Loaded
    from specdec.model import ArenaModel


class LoadPlugin(TargetPlugin["LoadBench"]):
    """Builds one ``LoadBench`` for each target of the run, and makes an item for each of its loads."""

    fixture = "specdec_load"
    title = "load"
    max_length = 1024

    def __init__(self, config: pytest.Config, request: RunRequest) -> None:
        super().__init__(config, request)
        self.rows = max(request.batch)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item for each target and each load of ``--specdec-batch`` and ``--specdec-rate``."""
        super().pytest_generate_tests(metafunc)
        if self.fixture in metafunc.fixturenames and "load" in metafunc.fixturenames:
            from benchsuite.benches.serving.load import loads_of

            loads = loads_of(self.request.batch, self.request.rate)
            metafunc.parametrize("load", loads, ids=[load.id for load in loads])

    def build(self, name: str, loaded: Loaded, target: ArenaModel) -> LoadBench:
        """Return the benchmark of one target: its arms and what they serve. SpecdecError for what cannot be meant."""
        from benchsuite.benches.load.bench import LoadBench

        return LoadBench(name, loaded, target, self._arms(name), self._plan())

    def _arms(self, name: str) -> list[Arm]:
        """Plain, plain again, and the strategies of the request."""
        from benchsuite.run.matrix import build_matrix

        alone = replace(
            self.request,
            target=(name,),
            batch=(1,),
            peer=(),
            endpoint=(),
            **{part: getattr(self.request, part)[:1] for part in ("backend", "device", "dtype", "workload")},
        )
        return [arm for arm in build_matrix(alone) if not arm.eager]

    def _plan(self) -> LoadPlan:
        from benchsuite.benches.load.bench import LoadPlan
        from benchsuite.benches.serving.figures import Slo
        from benchsuite.benches.serving.load import loads_of
        from benchsuite.measure.workloads import load_workload
        from benchsuite.run.names import named_workloads
        from specdec.errors import SpecdecError

        request = self.request
        if request.sampling["temperature"] != (0.0,):
            raise SpecdecError(
                f"--specdec-temperature is {request.texts['temperature']!r}; under load outputs are greedy, so that "
                "each is compared with plain's: leave it out"
            )
        if len(request.sampling["max_new_tokens"]) > 1:
            raise SpecdecError(
                f"--specdec-max-new-tokens is {request.texts['max-new-tokens']!r}; under load all requests have one "
                "limit: name one"
            )
        names = named_workloads(request)
        return LoadPlan(
            tuple(loads_of(request.batch, request.rate)),
            tuple(load_workload(name).first(request.prompts) for name in names),
            int(request.sampling["max_new_tokens"][0]),
            self.rows,
            request.pairs,
            Slo(**request.slo) if request.slo else None,
            request.seed,
        )

    def measured(self, bench: LoadBench) -> bool:
        """Whether a block was served."""
        return any(bench.blocks.values())

    def document(self, bench: LoadBench) -> Document:
        """Return the report of one target."""
        from benchsuite.report.load import load_document

        return load_document(bench, self.card)

    def write(self, root: Path, bench: LoadBench, complete: bool) -> Path:
        """Write page, table and JSON of one target."""
        from benchsuite.report.load import write_load

        return write_load(root, bench, self.card, complete)
