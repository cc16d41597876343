"""The results of a run: the rows of its cells, those over all workloads, and every strategy beside every other one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

from benchsuite.measure.arms import Arm, Setting, arm_named
from benchsuite.measure.cells import Cell
from benchsuite.measure.contrasts import Pool, decoding, end_to_end, noise_between, verdict_between
from benchsuite.measure.paired import Cost, Series
from benchsuite.measure.rows import Row, Text, make_rows
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.measure.weights import Weights
from benchsuite.measure.workloads.depths import depth_name, split_depth


@dataclass(frozen=True)
class SettingResults:
    """One setting, apart from its workload: its cells, the ``rows`` of each, and each strategy's row over all of them.
    ``across`` and ``baseline`` as in ``Measured``.

    Example: ``[row.figures.speedup for row in results.settings[0].pooled]``
    """

    setting: Setting
    cells: tuple[Cell, ...]
    rows: tuple[Row, ...]
    pooled: tuple[Row, ...]
    across: tuple[str, ...] = ()
    baseline: str = "plain"

    @cached_property
    def by_depth(self) -> Mapping[int, tuple[Row, ...]]:
        """Each strategy's row over all workloads of one depth, by the tokens before their questions; empty where no
        question has any."""
        depths = sorted({split_depth(cell.setting.workload)[1] for cell in self.cells})
        found = dict[int, tuple[Row, ...]]()
        for depth in depths if any(depths) else ():
            cells = [cell for cell in self.cells if split_depth(cell.setting.workload)[1] == depth]
            name = depth_name("all", depth)
            found[depth] = tuple(rows_of(pools_of(cells), cells, name, None, self.baseline, self.across).values())
        return found

    @cached_property
    def contrasts(self) -> Mapping[tuple[Arm, Arm], SpeedVerdict]:
        """The speed of each strategy over each other's, over all workloads, and what the first's row would say of it
        if the other were the baseline; failed ones apart."""
        return self._contrasts(decoding)

    @cached_property
    def whole_contrasts(self) -> Mapping[tuple[Arm, Arm], SpeedVerdict]:
        """The same from prompt to last token; without those whose prompts may have been in a cache."""
        return self._contrasts(end_to_end)

    @cached_property
    def own_plain(self) -> Mapping[Arm, Arm]:
        """The plain decoding of the same engine, of each strategy and peer that has one in this run: ours is plain
        decoding, a peer's the one that its outputs were compared with."""
        pools = pools_of(self.cells)
        plain = next((arm for arm in pools if arm.plain), None)
        found = dict[Arm, Arm]()
        for arm, pool in pools.items():
            name = next((series.reference for series in pool.values() if series.reference), "")
            own = next((other for other in pools if other.peer and other.label == name), None) if arm.peer else plain
            if own is not None and own != arm and not (arm.again or arm.eager):
                found[arm] = own
        return found

    def _contrasts(self, cost: Cost) -> dict[tuple[Arm, Arm], SpeedVerdict]:
        every, found = pools_of(self.cells), dict[tuple[Arm, Arm], SpeedVerdict]()
        noise = noise_between(every, cost) if every else 0.0
        whole = {arm: pool for arm, pool in every.items() if not any(series.failure for series in pool.values())}
        for (one, ours), (other, base) in permutations(whole.items(), 2):
            verdict = verdict_between(ours, base, cost, noise, self.across)
            if verdict.speed is not None:
                found[one, other] = verdict
        return found


@dataclass(frozen=True)
class Results:
    """What a run has measured, as every report takes it: made of its cells, and not changed afterwards.

    ``cells`` and ``rows`` are in the order of measurement. ``card``: the lines printed before the measurement;
    ``said``: what the plan reached; ``weights``: quantised targets; ``dry``: no figure means anything.
    """

    settings: tuple[SettingResults, ...] = ()
    cells: tuple[Cell, ...] = ()
    rows: tuple[Row, ...] = ()
    card: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    weights: tuple[Weights, ...] = ()
    dry: bool = False

    @property
    def pooled(self) -> tuple[Row, ...]:
        """The rows over all workloads, of every setting."""
        return tuple(row for one in self.settings for row in one.pooled)


def setting_results(
    setting: Setting, cells: Sequence[Cell], rows: Sequence[Row], baseline: str, across: Collection[str]
) -> SettingResults:
    """Return the results of one setting, apart from its workload, of its own among ``cells`` and ``rows``.

    ``baseline`` and ``across`` as in ``Measured``.
    """
    mine = tuple(cell for cell in cells if cell.setting.without_workload == setting)
    return SettingResults(
        setting,
        mine,
        tuple(row for row in rows if row.arm.setting.without_workload == setting),
        tuple(rows_of(pools_of(mine), mine, "all", None, baseline, across).values()),
        tuple(across),
        baseline,
    )


def pools_of(cells: Sequence[Cell]) -> dict[Arm, Pool]:
    """Return the series of each strategy by workload; ``cells`` are of one setting, apart from the workload."""
    pools: dict[Arm, dict[str, Series]] = {}
    for cell in cells:
        for arm, series in cell.series.items():
            everywhere = replace(arm, setting=cell.setting.without_workload)
            pools.setdefault(everywhere, {})[cell.setting.workload] = series
    return dict(pools)


def rows_of(
    pools: dict[Arm, Pool],
    cells: Sequence[Cell],
    workload: str,
    text: Text | None,
    baseline: str,
    across: Collection[str],
) -> dict[Arm, Row]:
    """Return the row of each arm of ``pools``, which were measured in ``cells``, on the machine of the last of them.

    ``workload`` names the rows' workload. A peak of memory is the highest of all cells; a set-up is that of the last
    cell that has one.
    """
    machine = replace(cells[-1].machine, peak_memory_bytes=max(cell.machine.peak_memory_bytes for cell in cells))
    by_strategy = {arm.strategy: seconds for cell in cells for arm, seconds in cell.set_up.items()}
    set_up = {arm: by_strategy[arm.strategy] for arm in pools if arm.strategy in by_strategy}
    return make_rows(pools, arm_named(baseline, list(pools)), machine, workload, text, set_up, across)
