"""The part of the plugin that times kernels: ``pytest -m kernels``. Imports no torch until an item runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchsuite.run.target_plugin import TargetPlugin

if TYPE_CHECKING:
    from benchsuite.benches.kernels.timing import KernelBench
    from benchsuite.report.document import Document
    from specdec.catalog import Loaded
    from specdec.model import ArenaModel


class KernelPlugin(TargetPlugin["KernelBench"]):
    """Builds one ``KernelBench`` for each target of the run, when its first test asks for it."""

    fixture = "specdec_kernels"
    title = "kernels"

    def build(self, name: str, loaded: Loaded, target: ArenaModel) -> KernelBench:
        """Return the kernels of one target, timed in as many rounds as --specdec-pairs.

        Beside other workers of pytest-xdist no pause lets the machine settle, so none is made.
        """
        from benchsuite.benches.kernels.timing import ROUNDS, SETTLE_S, KernelBench

        rounds = self.request.pairs or ROUNDS
        # On CUDA the host's threads have nothing to do with a kernel's time.
        at_once = hasattr(self.config, "workerinput") or target.device.type == "cuda"
        return KernelBench(name, target, rounds, 0.0 if at_once else SETTLE_S)

    def measured(self, bench: KernelBench) -> bool:
        """Whether anything was timed."""
        return bool(bench.timings or bench.curves or bench.costs or bench.depths)

    def document(self, bench: KernelBench) -> Document:
        """Return the report of one target."""
        from benchsuite.report.kernels import kernels_document

        return kernels_document(bench, self.card)

    def write(self, root: Path, bench: KernelBench, complete: bool) -> Path:
        """Write tables, JSON and plot of one target."""
        from benchsuite.report.kernels import write_kernels

        return write_kernels(root, bench, self.card, 0, complete)
