"""One run of the suite: loads models, builds engines, and measures a workload when its first row is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

import torch
from transformers import PreTrainedTokenizerBase

from benchsuite.machine import clock, provenance, roofline
from benchsuite.measure import card, paired, results, weights, workloads
from benchsuite.measure.matrix import Arm, Setting
from benchsuite.measure.results import Machine, Row
from benchsuite.measure.runners import PEER_PROPOSALS, EngineRunner, Runner, TransformersRunner
from benchsuite.measure.ties import Judge
from specdec import catalog, devices
from specdec.arena import Arena
from specdec.assembly import Assembly
from specdec.engine import Engine
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


class Bench:
    """Measures the arms of a workload when its first row is asked for.

    ``prepare`` raises SpecdecError for anything that cannot run: names, values, devices, models, prompts that do not
    fit. All arms of the run are built before the first measurement.
    """

    def __init__(self, prompts: int | None = None, pairs: int = 1) -> None:
        self.registry = Registry()
        self.card: list[str] = []
        self._most, self._pairs = prompts, pairs
        self._stages: dict[Setting, Stage] = {}
        self._arms: list[Arm] = []
        self._series: dict[Arm, paired.Series] = {}
        self._rows: dict[Arm, Row] = {}
        self._texts: dict[str, workloads.Workload] = {}
        self._failed: dict[Setting, Exception] = {}
        self.weights: list[weights.Weights] = []
        self._loaded: dict[tuple[object, ...], tuple[ArenaModel, catalog.Loaded]] = {}

    def prepare(self, arms: Sequence[Arm]) -> None:
        """Load and build everything that ``arms`` need; each setting's plain arm is added."""
        plain = [Arm(setting) for setting in dict.fromkeys(arm.setting for arm in arms)]
        self._arms = list(dict.fromkeys((*plain, *arms)))
        for name in dict.fromkeys(arm.setting.workload for arm in self._arms):
            whole = workloads.load_workload(name)
            self._texts[name] = replace(whole, prompts=whole.prompts[: self._most])
        for arm in self._arms:
            for kind, text in (("draft", arm.draft), ("policy", arm.policy), ("controller", arm.controller)):
                if text is not None:
                    self.registry.parse(kind, text)
        groups: dict[Setting, list[Arm]] = {}
        for arm in self._arms:
            groups.setdefault(arm.setting.without_workload, []).append(arm)
        for setting, group in groups.items():
            self._stages[setting] = self._stage(setting, group)

    def _stage(self, setting: Setting, arms: list[Arm]) -> Stage:
        device = devices.pick_device(setting.device)
        dtype = devices.pick_dtype(setting.dtype, device)
        ops = self.registry.backend(setting.backend)
        k = max((arm.k or 0 for arm in arms), default=0)
        target, loaded = self._load(setting, ops, device, dtype)
        texts = [self._texts[name] for name in dict.fromkeys(arm.setting.workload for arm in arms)]
        encoded = [prompt for text in texts for prompt in text.encode(loaded.tokenizer)]
        longest = max(map(len, encoded)) + setting.max_new_tokens
        assembly = Assembly(
            self.registry,
            target,
            loaded.tokenizer,
            max_rows=setting.batch,
            max_length=longest,
            seed=setting.seed,
        )
        judge = Judge(target, max(encoded, key=len))
        strategies = list(dict.fromkeys(replace(arm, setting=setting) for arm in arms))
        runners: dict[Arm, Runner] = {}
        for arm in strategies:
            if arm.peer:
                runners[arm] = TransformersRunner(arm, judge.model, k or PEER_PROPOSALS)
            else:
                runners[arm] = EngineRunner(arm, assembly.engine(arm.draft, arm.policy, arm.controller, arm.k))
        for prompt in encoded:
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
        self.card += card.card(
            machine, device, strategies, len(encoded), _forward_seconds(stage), ops.absent(device.type)
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
    def ticks(self) -> int:
        """The total number of calls of ``progress``, for a progress bar."""
        ticks = 0
        for setting in dict.fromkeys(arm.setting for arm in self._arms):
            group = [arm for arm in self._arms if arm.setting == setting]
            prompts = len(self._texts[setting.workload].prompts)
            ticks += len(group) * (prompts * self._passes(prompts) + 2)
        return ticks

    def _passes(self, prompts: int) -> int:
        """The number of passes over a workload's prompts that gives the requested number of pairs."""
        return -(-self._pairs // prompts)

    def row(self, arm: Arm, progress: Progress) -> Row:
        """Return the arm's row; the first row of a setting measures all its arms. Raises the error if plain failed."""
        if arm.setting not in self._failed and arm not in self._rows:
            try:
                self._measure(arm.setting, progress)
            except Exception as error:
                # Plain failed: every arm of the workload raises this error, and none runs again.
                self._failed[arm.setting] = error
        if arm.setting in self._failed:
            raise self._failed[arm.setting]
        return self._rows[arm]

    @property
    def rows(self) -> list[Row]:
        """The rows measured so far, in the order of measurement."""
        return list(self._rows.values())

    def _measure(self, setting: Setting, progress: Progress) -> None:
        stage = self._stages[setting.without_workload]
        wanted = {replace(arm, setting=setting.without_workload): arm for arm in self._arms if arm.setting == setting}
        text = self._texts[setting.workload]
        work = paired.units(text.encode(stage.tokenizer), next(iter(wanted)), stage.eos)
        runners = {arm: stage.runners[arm] for arm in wanted}
        like: results.Text | None = None
        for series in paired.alternate(
            runners,
            work,
            stage.judge,
            stage.assembly.plain,
            lambda what: progress(f"{text.name}, {what}"),
            self._passes(len(work)),
        ):
            if series.arm.plain:
                pairs = [
                    (request.prompt, tokens)
                    for requests, outcome in zip(work, series.outcomes, strict=False)  # the first pass
                    for request, tokens in zip(requests, outcome.tokens, strict=True)
                ]
                like = results.Text(
                    mean(workloads.copy_rate(prompt, tokens) for prompt, tokens in pairs),
                    mean(stage.judge.entropy(prompt, tokens) for prompt, tokens in pairs),
                )
            arm = wanted[series.arm]
            machine = replace(stage.machine, peak_memory_bytes=devices.peak_memory(stage.target.device))
            self._series[arm] = series
            self._rows[arm] = results.make_row(arm, [series], machine, text.name, like)

    @property
    def device(self) -> str | None:
        """Names of the accelerators that rows ran on; None for the CPU."""
        found = {stage.target.device for stage in self._stages.values() if stage.target.device.type != "cpu"}
        return ", ".join(sorted(provenance.device_name(device) for device in found)) or None

    def compared(self) -> Iterator[tuple[dict[Arm, paired.Series], int]]:
        """For each measured setting, yield the series of its arms and the number of units in one pass over prompts."""
        for setting in dict.fromkeys(arm.setting for arm in self._series):
            series = {arm: found for arm, found in self._series.items() if arm.setting == setting}
            yield series, len(self._texts[setting.workload].prompts)

    def engines(self) -> Iterator[tuple[Arm, Engine]]:
        """Yield every engine that was built, with its arm."""
        for stage in self._stages.values():
            for arm, runner in stage.runners.items():
                if isinstance(runner, EngineRunner):
                    yield arm, runner.engine

    def rows_of(self, setting: Setting) -> list[Row]:
        """The rows measured so far with a setting, whatever their workload."""
        return [row for row in self.rows if row.arm.setting.without_workload == setting.without_workload]

    def pooled(self) -> list[list[Row]]:
        """For each setting apart from its workload, return the rows of each strategy over all measured workloads."""
        groups: dict[Setting, dict[Arm, list[paired.Series]]] = {}
        for arm, series in self._series.items():
            setting = arm.setting.without_workload
            strategies = groups.setdefault(setting, {})
            strategies.setdefault(replace(arm, setting=setting), []).append(series)
        out = []
        for setting, strategies in groups.items():
            stage = self._stages[setting]
            machine = replace(stage.machine, peak_memory_bytes=devices.peak_memory(stage.target.device))
            out.append([results.make_row(arm, found, machine, "all", None) for arm, found in strategies.items()])
        return out


@torch.inference_mode()
def _forward_seconds(stage: Stage) -> float:
    target = stage.target
    arena = target.arena(1, 64, 1)
    zero = torch.zeros(1, dtype=torch.int64, device=target.device)
    window = Window.chain(zero, zero[:, None][:, :0], zero)
    forward = partial(target.forward, arena, window, slice(0, 1), 0)
    return min(clock.seconds(forward, target.device) for _ in range(4))
