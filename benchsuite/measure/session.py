"""One run of the suite: loads models, builds engines, and measures a workload when its first row is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchsuite.machine import clock, provenance, roofline
from benchsuite.machine.load import Load
from benchsuite.measure import card, paired, results, weights, workloads
from benchsuite.measure.interval import Estimate
from benchsuite.measure.matrix import Arm, Setting
from benchsuite.measure.paired import Comparison
from benchsuite.measure.peers import TransformersRunner, parse_peer
from benchsuite.measure.plan import MeasuringPlan, Search
from benchsuite.measure.results import Machine, Row
from benchsuite.measure.runners import EngineRunner, Runner
from benchsuite.measure.ties import Judge
from benchsuite.measure.units import Batch, Unit, disjoint_batches, make_units
from benchsuite.measure.watchdog import Watchdog
from specdec import catalog, devices
from specdec.arena import Arena
from specdec.assembly import Assembly
from specdec.engine import Engine
from specdec.errors import SpecdecError, unknown
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.quantised import BITS
from specdec.registry import Registry
from specdec.request import Request

Progress = Callable[[str], None]


@dataclass
class Stage:
    """Everything that one target needs on one device; built before anything is timed."""

    target: ArenaModel
    tokenizer: PreTrainedTokenizerBase
    eos: tuple[int, ...]
    judge: Judge
    machine: Machine
    assembly: Assembly
    runners: dict[Arm, Runner]


@dataclass(frozen=True)
class Compared:
    """One measured setting: the series of its arms, the number of units in one pass over its prompts, and what they
    read. ``model`` has the target's own parameters."""

    series: dict[Arm, paired.Series]
    units: int
    workload: workloads.Workload
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel


class Bench:
    """Measures the arms of a workload when its first row is asked for; where the plan chooses how much is measured, the
    arms of all workloads of a setting.

    ``prepare`` raises SpecdecError for anything that cannot run: names, values, devices, models, prompts that do not
    fit. All arms of the run are built before the first measurement. ``abandon`` is called, from another thread, if a
    run hangs so that it cannot be ended; the process ends after it. ``said``: what the plan reached, for each setting.
    """

    def __init__(self, plan: MeasuringPlan | None = None, abandon: Callable[[str], None] = lambda what: None) -> None:
        self.registry = Registry()
        self.plan = plan or MeasuringPlan()
        self.card: list[str] = []
        self.said: list[str] = []
        self._watchdog = Watchdog(self.plan.timeout, abandon)
        self._stages: dict[Setting, Stage] = {}
        self._arms: list[Arm] = []
        self._comparisons: dict[Setting, Comparison] = {}
        self._rows: dict[Arm, Row] = {}
        self._texts: dict[str, workloads.Workload] = {}
        self._failed: dict[Setting, Exception] = {}
        self.weights: list[weights.Weights] = []
        self._loaded: dict[tuple[object, ...], tuple[ArenaModel, catalog.Loaded]] = {}

    def prepare(self, arms: Sequence[Arm]) -> None:
        """Load and build everything that ``arms`` need; each setting's plain arm is added, once and again."""
        settings = dict.fromkeys(arm.setting for arm in arms)
        controls = [Arm(setting, again=again) for setting in settings for again in (False, True)]
        self._arms = list(dict.fromkeys((*controls, *arms)))
        for name in dict.fromkeys(setting.workload for setting in settings):
            self._texts[name] = workloads.load_workload(name).first(self.plan.prompts)
        for setting in settings:
            disjoint_batches(setting.workload, self._texts[setting.workload].questions, setting.batch)
        for arm in self._arms:
            for kind, text in (("draft", arm.draft), ("policy", arm.policy), ("controller", arm.controller)):
                if text is not None:
                    self.registry.parse(kind, text)
            if arm.peer:
                parse_peer(arm.peer)
        groups: dict[Setting, list[Arm]] = {}
        for arm in self._arms:
            groups.setdefault(arm.setting.without_workload, []).append(arm)
        for setting, group in groups.items():
            self._baseline(group)
            self._stages[setting] = self._stage(setting, group)

    def _baseline(self, arms: Sequence[Arm]) -> Arm:
        """The arm that the speedups of one setting are relative to; any workload's."""
        text = self.plan.baseline
        exact = [arm for arm in arms if arm.strategy == text]
        found = {arm.strategy: arm for arm in exact or arms if text in (arm.label, arm.strategy)}
        if len(found) == 1:
            return next(iter(found.values()))
        choices = list(dict.fromkeys(arm.strategy for arm in arms))
        if found:
            raise SpecdecError(f"--specdec-baseline {text!r} names {len(found)} arms; name one of {', '.join(found)}")
        raise unknown("arm", text, choices, "--specdec-baseline names an arm of every setting that is measured.")

    def _stage(self, setting: Setting, arms: list[Arm]) -> Stage:
        device = devices.pick_device(setting.device)
        dtype = devices.pick_dtype(setting.dtype, device)
        ops = self.registry.backend(setting.backend)
        target, loaded = self._load(setting, ops, device, dtype)
        texts = [self._texts[name] for name in dict.fromkeys(arm.setting.workload for arm in arms)]
        encoded = [prompt for text in texts for prompt in text.encode(loaded.tokenizer)]
        longest = max(text.longest(loaded.tokenizer, setting.max_new_tokens) for text in texts)
        assembly = Assembly(
            self.registry,
            target,
            loaded.tokenizer,
            max_rows=setting.batch,
            max_length=longest + setting.max_new_tokens,
            seed=setting.seed,
        )
        judge = Judge(target, max(encoded, key=len))
        strategies = list(dict.fromkeys(replace(arm, setting=setting) for arm in arms))
        runners: dict[Arm, Runner] = {}
        for arm in strategies:
            if arm.peer:
                runners[arm] = TransformersRunner(arm, judge.model, parse_peer(arm.peer))
            else:
                runners[arm] = EngineRunner(arm, assembly.engine(arm.draft, arm.policy, arm.controller, arm.k))
        # The longest prompt of a conversation is known by its length alone.
        for prompt in [*encoded, (0,) * longest]:
            probe = Request(0, prompt, setting.sampling(()))
            for runner in runners.values():
                if isinstance(runner, EngineRunner):
                    runner.engine.refuse_unfit(probe)
        machine = Machine(
            setting.target,
            ops.name,
            device.type,
            setting.dtype if setting.dtype in BITS else str(dtype).removeprefix("torch."),
            target.weight_bytes,
            Arena.bytes_per_token(target.layers, dtype),
            roofline.read_bandwidth(device),
            0,
        )
        eos = catalog.end_tokens(loaded.model)
        stage = Stage(target, loaded.tokenizer, eos, judge, machine, assembly, runners)
        peers = [runner.described() for runner in runners.values() if isinstance(runner, TransformersRunner)]
        self.card += card.card(
            machine,
            device,
            strategies,
            len(encoded),
            _forward_seconds(stage),
            ops.absent(device.type),
            peers,
            [*target.swap.notes(), *Load.measured().lines()],
        )
        return stage

    def _load(
        self, setting: Setting, ops: Ops, device: torch.device, dtype: torch.dtype
    ) -> tuple[ArenaModel, catalog.Loaded]:
        """The setting's target; settings that share it load it once."""
        bits = BITS.get(setting.dtype)
        key = (setting.target, setting.backend, device, dtype, bits)
        if key not in self._loaded:
            loaded = catalog.load(setting.target, device, dtype, rows=setting.batch, max_length=1024, seed=setting.seed)
            texts = weights.texts(loaded.tokenizer) if bits else []
            before = weights.perplexity(loaded.model, texts) if bits else 0.0
            target = ArenaModel(loaded.model, ops, bits)
            if bits:
                self.weights.append(
                    weights.Weights(
                        setting.target,
                        setting.dtype,
                        target.weight_bytes,
                        sum(p.numel() * p.element_size() for p in loaded.model.parameters()),
                        weights.perplexity(target.twin(), texts),
                        before,
                        sum(len(text) - 1 for text in texts),
                    )
                )
            self._loaded[key] = target, loaded
        return self._loaded[key]

    @property
    def ticks(self) -> int | None:
        """The total number of calls of ``progress``, for a progress bar; None if the plan chooses how much runs."""
        if self.plan.chooses:
            return None
        ticks = 0
        for setting in dict.fromkeys(arm.setting for arm in self._arms):
            group = [arm for arm in self._arms if arm.setting == setting]
            batches = self._batches(setting)
            passes = self.plan.passes(len(batches))
            ticks += len(group) * (sum(batch.turns for batch in batches) * passes + 1 + passes)
        return ticks

    def row(self, arm: Arm, progress: Progress) -> Row:
        """Return the arm's row; the first row of a setting measures all its arms. Raises the error if plain failed."""
        if arm.setting not in self._failed and arm not in self._rows:
            if self.plan.chooses:
                self._search(arm.setting.without_workload, progress)
            else:
                passes = self.plan.passes(len(self._batches(arm.setting)))
                self._guarded(arm.setting, progress, [self._batches(arm.setting)] * passes)
        if arm.setting in self._failed:
            raise self._failed[arm.setting]
        return self._rows[arm]

    @property
    def rows(self) -> list[Row]:
        """The rows measured so far, in the order of measurement."""
        return list(self._rows.values())

    def _batches(self, setting: Setting) -> list[Batch]:
        text = self._texts[setting.workload]
        return disjoint_batches(setting.workload, text.questions, setting.batch)

    def _label(self, workload: str) -> str:
        """The header of a workload's column: its label or, if another has the same, its whole name."""
        label = self._texts[workload].label
        return label if [text.label for text in self._texts.values()].count(label) == 1 else workload

    def _guarded(
        self,
        setting: Setting,
        progress: Progress,
        passes: Sequence[Sequence[Batch]],
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Measure batches of one workload, pass by pass, and make its rows; an error of plain fails the workload."""
        try:
            comparison = self._comparison(setting, progress)
            for batches in passes:
                comparison.measure(list(self._units(setting, batches)), enough)
        except Exception as error:
            # Plain failed: every arm of the workload raises this error, and none runs again.
            self._failed[setting] = error
            return
        self._make_rows(setting)

    def _search(self, setting: Setting, progress: Progress) -> None:
        """Measure all workloads of a setting until the plan has what it wants."""
        settings = list(dict.fromkeys(arm.setting for arm in self._arms if arm.setting.without_workload == setting))
        done = dict.fromkeys(settings, 0)

        def measure(units: int, enough: Callable[[], bool]) -> dict[str, dict[str, list[float]]]:
            for one in settings:
                batches = self._batches(one)
                new = batches[done[one] : units] if units else batches
                done[one] = max(done[one], units)
                if new and one not in self._failed:
                    self._guarded(one, progress, [new], enough)
            pools = self._pools(setting)
            whole = {arm: pool for arm, pool in pools.items() if not any(one.failure for one in pool.values())}
            return {
                arm.strategy: found
                for arm, pool in whole.items()
                if not arm.plain
                and (found := results.contrast(pool, pools[self._baseline(list(pools))], results.decoding))
            }

        search = Search(self.plan, max(len(self._batches(one)) for one in settings), len(settings), measure)
        search.run()
        self.said.append(search.said)

    def _units(self, setting: Setting, batches: Sequence[Batch]) -> Iterator[Unit]:
        stage = self._stages[setting.without_workload]
        params, questions = setting.sampling(stage.eos), len(self._texts[setting.workload].questions)
        for batch in batches:
            yield from make_units(batch, questions, params, stage.tokenizer, stage.assembly.plain)

    def _comparison(self, setting: Setting, progress: Progress) -> Comparison:
        if setting not in self._comparisons:
            stage = self._stages[setting.without_workload]
            wanted = [arm for arm in self._arms if arm.setting == setting]
            runners = {arm: stage.runners[replace(arm, setting=setting.without_workload)] for arm in wanted}
            name = self._label(setting.workload)
            self._comparisons[setting] = Comparison(
                runners,
                stage.judge,
                stage.assembly.plain,
                lambda what: progress(f"{name}, {what}"),
                self._watchdog.limit,
            )
        return self._comparisons[setting]

    def _make_rows(self, setting: Setting) -> None:
        """Make the rows of one workload anew."""
        stage, series = self._stages[setting.without_workload], self._comparisons[setting].series
        name = self._label(setting.workload)
        pools = {arm: {setting.workload: one} for arm, one in series.items() if one.outcomes or one.error}
        plain = next(one for arm, one in series.items() if arm.plain)
        text = results.text_of(plain, stage.judge)
        self._rows |= self._rows_from(pools, name, text)

    def _rows_from(
        self, pools: dict[Arm, dict[str, paired.Series]], name: str, text: results.Text | None
    ) -> dict[Arm, Row]:
        setting = next(iter(pools)).setting.without_workload
        stage = self._stages[setting]
        machine = replace(stage.machine, peak_memory_bytes=devices.peak_memory(stage.target.device))
        set_up = {
            arm: sum(runner.engine.set_up_seconds.values())
            for arm in pools
            if isinstance(runner := stage.runners[replace(arm, setting=setting)], EngineRunner)
        }
        return results.make_rows(pools, self._baseline(list(pools)), machine, name, text, set_up)

    @property
    def device(self) -> str | None:
        """Names of the accelerators that rows ran on; None for the CPU."""
        found = {stage.target.device for stage in self._stages.values() if stage.target.device.type != "cpu"}
        return ", ".join(sorted(provenance.device_name(device) for device in found)) or None

    def compared(self) -> Iterator[Compared]:
        """Yield what was compared in each measured setting."""
        for setting, comparison in self._comparisons.items():
            if setting not in self._failed and comparison.whole:
                stage, units = self._stages[setting.without_workload], self._batches(setting)
                yield Compared(
                    comparison.series,
                    sum(batch.turns for batch in units),
                    self._texts[setting.workload],
                    stage.tokenizer,
                    stage.judge.model,
                )

    def engines(self) -> Iterator[tuple[Arm, Engine]]:
        """Yield every engine that was built, with its arm."""
        for stage in self._stages.values():
            for arm, runner in stage.runners.items():
                if isinstance(runner, EngineRunner):
                    yield arm, runner.engine

    def prompts(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """Yield each first turn of the run: its workload, its place there from 0, its token ids."""
        for setting in dict.fromkeys(arm.setting for arm in self._arms):
            tokenizer = self._stages[setting.without_workload].tokenizer
            for place, tokens in enumerate(self._texts[setting.workload].encode(tokenizer)):
                yield setting.workload, place, tokens

    def rows_of(self, setting: Setting) -> list[Row]:
        """The rows measured so far with a setting, whatever their workload."""
        return [row for row in self.rows if row.arm.setting.without_workload == setting.without_workload]

    def _pools(self, setting: Setting) -> dict[Arm, dict[str, paired.Series]]:
        """The series of each strategy of a setting, by workload; left out are workloads in which plain failed, and one
        that is being measured: its outputs are not checked yet."""
        pools: dict[Arm, dict[str, paired.Series]] = {}
        for one, comparison in self._comparisons.items():
            if one.without_workload == setting and one not in self._failed and comparison.whole:
                for arm, series in comparison.series.items():
                    pools.setdefault(replace(arm, setting=setting), {})[one.workload] = series
        return pools

    def pooled(self) -> list[list[Row]]:
        """For each setting apart from its workload, return the rows of each strategy over all measured workloads."""
        settings = dict.fromkeys(row.arm.setting.without_workload for row in self.rows)
        found = [pools for setting in settings if (pools := self._pools(setting))]
        return [list(self._rows_from(pools, "all", None).values()) for pools in found]

    def contrasts(self, setting: Setting) -> dict[tuple[Arm, Arm], Estimate]:
        """The speed of each strategy of a setting over each other's, over all measured workloads; failed ones apart."""
        setting = setting.without_workload
        pools = {
            arm: pool
            for arm, pool in self._pools(setting).items()
            if not any(series.failure for series in pool.values())
        }
        found = {}
        for one, ours in pools.items():
            for other, base in pools.items():
                speed = results.compared_with(ours, base, results.decoding) if one != other else None
                if speed is not None:
                    found[one, other] = speed
        return found


@torch.inference_mode()
def _forward_seconds(stage: Stage) -> float:
    target = stage.target
    arena = target.arena(1, 64, 1)
    zero = torch.zeros(1, dtype=torch.int64, device=target.device)
    window = Window.chain(zero, zero[:, None][:, :0], zero)
    forward = partial(target.forward, arena, window, slice(0, 1), 0)
    return min(clock.seconds(forward, target.device) for _ in range(4))
