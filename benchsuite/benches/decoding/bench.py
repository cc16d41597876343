"""The benchmark of decoding on one target: its families, and the rows measured so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from benchsuite.benches.decoding.batches import LONGEST, batches_family
from benchsuite.benches.decoding.conversations import conversations_family
from benchsuite.benches.decoding.mixes import OUTPUT, PROMPT
from benchsuite.benches.decoding.queues import queues_family
from benchsuite.benches.decoding.ratios import Family, Ratio, alternated
from benchsuite.benches.decoding.steps import BUDGET, PROMPT_TOKENS, ROWS, steps_family
from benchsuite.measure import workloads
from specdec import Registry, catalog
from specdec.assembly import Assembly
from specdec.catalog import Loaded
from specdec.model import ArenaModel

ROUNDS = 6
"""Pairs of every row, unless --specdec-pairs says otherwise: the fewest that have an interval."""

LONGEST_ROW = max(PROMPT_TOKENS + BUDGET, PROMPT[1] + OUTPUT[1], LONGEST)
"""The most tokens of a row."""


class DecodingBench:
    """Measures families of arms over one target, and keeps their rows; ``legend`` holds those families' lines.

    Example: ``DecodingBench("tiny", loaded, target).measure("steps")[0].estimate.ratio``
    """

    def __init__(self, name: str, loaded: Loaded, target: ArenaModel, rounds: int = ROUNDS, seed: int = 0) -> None:
        self.name, self.target, self.rounds, self.seed = name, target, rounds, seed
        self.assembly = Assembly(Registry(), target, loaded.tokenizer, max_rows=ROWS, max_length=LONGEST_ROW, seed=seed)
        self.ends = catalog.end_tokens(loaded.model)
        kinds = (workloads.load_workload(kind) for kind in workloads.KINDS)
        self.text = tuple(token for kind in kinds for prompt in kind.encode(loaded.tokenizer) for token in prompt)
        self.ratios: list[Ratio] = []
        self.legend: list[str] = []

    def measure(self, name: str) -> list[Ratio]:
        """Measure one of ``FAMILIES``; return its rows. SpecdecError if arms of a row did not run equal tokens."""
        family = FAMILIES[name](self)
        found = list(alternated(family, self.rounds, self.seed))
        self.ratios += found
        self.legend += family.legend
        return found

    def as_json(self) -> dict[str, Any]:
        """Return every row with its pairs, as plain values."""
        return {
            "target": self.name,
            "device": str(self.target.device),
            "dtype": self.target.precision,
            "backend": self.target.ops.name,
            "legend": self.legend,
            "rows": [
                {
                    **asdict(row.contrast),
                    "ratio": row.estimate.ratio,
                    "low": row.estimate.low,
                    "high": row.estimate.high,
                    "pairs": list(zip(row.ours, row.base, strict=True)),
                    "prompt_tokens": row.work[0],
                    "output_tokens": row.work[1],
                }
                for row in self.ratios
            ],
        }


FAMILIES: Mapping[str, Callable[[DecodingBench], Family]] = MappingProxyType(
    {
        "steps": lambda bench: steps_family(bench.assembly, bench.text, bench.ends),
        "batches": lambda bench: batches_family(bench.assembly, bench.text),
        "queues": lambda bench: queues_family(bench.assembly, bench.text),
        "turns": lambda bench: conversations_family(bench.assembly, bench.text),
    }
)
"""Each family by its name; a new one is a line here, a new row a ``Contrast`` in its family."""
