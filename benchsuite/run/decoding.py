"""The part of the plugin that measures decoding as users run it: ``pytest -m decoding``.

Imports no torch until an item runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchsuite.run.target_plugin import TargetPlugin

if TYPE_CHECKING:
    from benchsuite.benches.decoding.bench import DecodingBench
    from benchsuite.report.document import Document
    from specdec.catalog import Loaded
    from specdec.model import ArenaModel


class DecodingPlugin(TargetPlugin["DecodingBench"]):
    """Builds one ``DecodingBench`` for each target of the run, when its first test asks for it."""

    fixture = "specdec_decoding"
    title = "decoding"
    rows = 16
    max_length = 256

    def build(self, name: str, loaded: Loaded, target: ArenaModel) -> DecodingBench:
        """Return the benchmark of one target, of as many rounds as --specdec-pairs."""
        from benchsuite.benches.decoding.bench import ROUNDS, DecodingBench

        return DecodingBench(name, loaded, target, self.request.pairs or ROUNDS, self.request.seed)

    def measured(self, bench: DecodingBench) -> bool:
        """Whether a row was measured."""
        return bool(bench.ratios)

    def document(self, bench: DecodingBench) -> Document:
        """Return the report of one target."""
        from benchsuite.report.decoding import decoding_document

        return decoding_document(bench, self.card)

    def write(self, root: Path, bench: DecodingBench, complete: bool) -> Path:
        """Write table and JSON of one target."""
        from benchsuite.report.decoding import write_decoding

        return write_decoding(root, bench, self.card, complete)
