"""Two recorded grids of ``make predictions`` beside predictions from the recorded acceptance of the same prompts, at
costs that were known before: what the advisor's runs bought, and what more prompts traced buy. No clock is read.

``python -m benchsuite.tests.recorded_grids`` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

from benchsuite.measure.arms import Arm
from benchsuite.predict.accuracy import Accuracy, batch_trials, k_trials
from benchsuite.predict.advisor import CLOSE
from benchsuite.predict.checked import UnitTraces
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.prediction import PromptSizes, Replay
from benchsuite.predict.traces import StepTrace
from benchsuite.report.document import Document, Lines, Section, Table
from benchsuite.report.predicted import accuracy_json, accuracy_parts
from benchsuite.report.renderers import markdown
from benchsuite.tests.recorded_acceptance import PROMPTS, ROWS, K, Positions, decoded_with, recorded_positions
from benchsuite.tests.recorded_costs import recorded_costs
from benchsuite.tests.rig import SETTING
from benchsuite.workshop.predictions.__main__ import DRAFTS

RESULTS = Path(__file__).parents[2] / "docs" / "results"

GRIDS = {
    32: "20261125-advisor-smollm2-135m-cpu-avx512-bf16.json",
    64: "20261125-advisor-64-tokens-smollm2-135m-cpu-avx512-bf16.json",
}
"""The files of the grids, by tokens of a prompt."""

T = TypeVar("T")

NAMES = {draft: name for name, draft in DRAFTS.items()}


@dataclass(frozen=True)
class Choices:
    """Choices for each text and batch: the ``shares`` of the fastest cell's speed in the grid, and the median ``error``
    of the predictions of all cells."""

    shares: Sequence[float]
    error: float

    @property
    def close(self) -> int:
        """How many are about as fast as the fastest cell."""
        return sum(share >= CLOSE for share in self.shares)

    @property
    def mean(self) -> float:
        """The geometric mean of the shares."""
        return exp(fmean(map(log, self.shares)))


@dataclass(frozen=True)
class RecordedGrid:
    """A grid: the logs of the measured speedups, and what the advisor of then predicted and, after it had run some of
    them beside each other, expected."""

    tokens: int
    measured: Mapping[Arm, float]
    predicted: Mapping[Arm, float]
    expected: Mapping[Arm, float]

    @staticmethod
    def load(tokens: int) -> RecordedGrid:
        """Read one of ``GRIDS``."""
        cells = json.loads((RESULTS / GRIDS[tokens]).read_text(encoding="utf-8"))["cells"]
        columns: dict[str, dict[Arm, float]] = {"speedup": {}, "predicted": {}, "expected": {}}
        for cell in cells:
            draft, policy, controller, k = cell["strategy"].rsplit("/", 3)
            setting = SETTING.replaced(workload=cell["workload"], batch=cell["batch"], max_new_tokens=tokens)
            arm = Arm(setting, draft, policy, controller, int(k), name=NAMES[draft])
            for name, column in columns.items():
                column[arm] = log(cell[name])
        return RecordedGrid(tokens, columns["speedup"], columns["predicted"], columns["expected"])

    def choices(self, said: Mapping[Arm, float]) -> Choices:
        """Return the choices of the cells of which most is said."""
        shares = []
        for setting in dict.fromkeys(arm.setting for arm in self.measured):
            mine = [arm for arm in self.measured if arm.setting == setting]
            chosen = max(mine, key=lambda arm: said[arm])
            shares.append(exp(self.measured[chosen] - max(self.measured[arm] for arm in mine)))
        return Choices(shares, median(abs(exp(self.measured[arm] - said[arm]) - 1) for arm in self.measured))

    def traced(self, prompts: Sequence[int]) -> dict[Arm, float]:
        """Return what follows for every cell from traces of some prompts with the largest K, in whole batches."""
        found = {}
        for arm in self.measured:
            batch = arm.setting.batch
            sizes = PromptSizes((1,) * batch, self.tokens)
            traces = [self.trace(arm, prompt, K).with_k(arm.k or 0) for prompt in prompts]
            found[arm] = fmean(
                self._replays[strategy_of(arm)].gains(some, sizes)[0] for some in in_batches(traces, batch)
            )
        return found

    def trace(self, arm: Arm, prompt: int, k: int) -> StepTrace:
        """The trace of a prompt of an arm's text with its draft and K = ``k``."""
        return decoded_with(_positions()[arm.setting.workload][NAMES[str(arm.draft)]][prompt], k, self.tokens)

    @cached_property
    def accuracies(self) -> dict[str, Accuracy]:
        """How good predictions of a K and of a batch are that were not run; every unit is as fast as its cell."""
        known = {}
        for arm, gain in self.measured.items():
            sizes = PromptSizes((1,) * arm.setting.batch, self.tokens)
            known[arm] = [
                UnitTraces(number, tuple((one,) for one in some), sizes, traces, gain)
                for number, some in enumerate(in_batches(range(PROMPTS), arm.setting.batch))
                for traces in [tuple(self.trace(arm, prompt, arm.k or 0) for prompt in some)]
            ]
        costs = dict.fromkeys((arm.setting.without_workload for arm in known), self._costs)
        return {"a K": Accuracy.of(k_trials(known, costs)), "a batch": Accuracy.of(batch_trials(known, costs))}

    @cached_property
    def _costs(self) -> Costs:
        return recorded_costs({strategy_of(arm): NAMES[str(arm.draft)] for arm in self.measured})

    @cached_property
    def _replays(self) -> dict[str, Replay]:
        return {strategy: Replay(self._costs, strategy) for strategy in self._costs.strategies}


def in_batches(of: Sequence[T], size: int) -> list[tuple[T, ...]]:
    """Return them in whole batches."""
    return [tuple(of[first : first + size]) for first in range(0, len(of), size)]


@cache
def _positions() -> Mapping[str, Mapping[str, Sequence[Positions]]]:
    return recorded_positions()


def print_grids() -> None:
    """Print what the grids say."""
    rows, parts = [], []
    for tokens in GRIDS:
        grid = RecordedGrid.load(tokens)
        said = {
            "the advisor of then: its predictions alone": grid.predicted,
            "the advisor of then, after its tournament": grid.expected,
            "traces of the first batch of prompts": grid.traced(range(ROWS)),
            "traces of the second batch": grid.traced(range(ROWS, PROMPTS)),
            "traces of all prompts": grid.traced(range(PROMPTS)),
        }
        for what, logs in said.items():
            found = grid.choices(logs)
            close = f"{found.close} of {len(found.shares)}"
            rows.append((tokens, what, close, f"{found.mean:.3f}", f"{min(found.shares):.3f}", f"{found.error:.1%}"))
        parts += [Lines([f"grid of {tokens} tokens:"]), *accuracy_parts(accuracy_json(grid.accuracies))]
    headers = ("tokens", "choice by", f"within {1 - CLOSE:.0%}", "mean share", "least", "error of a cell")
    print(markdown(Document("The advisor beside recorded grids", [Section(parts=[Table(headers, rows), *parts])])))


if __name__ == "__main__":
    print_grids()
