"""One run of the suite: loads models, builds engines, and measures a workload when its first row is asked for."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchsuite.judge.judgement import OutputJudge
from benchsuite.judge.ties import Judge
from benchsuite.machine import clock, provenance, roofline
from benchsuite.machine.load import Load
from benchsuite.measure import card, paired, profile, weights, workloads
from benchsuite.measure.arms import Arm, Setting, arm_named
from benchsuite.measure.bystanders import Bystanders
from benchsuite.measure.cells import Cell, made_here, snapshot
from benchsuite.measure.contrasts import contrast, decoding
from benchsuite.measure.measured import Measured
from benchsuite.measure.paired import Comparison
from benchsuite.measure.peers import PeerRunner, parse_peer, peer_needs_gguf
from benchsuite.measure.plan import MeasuringPlan, Search
from benchsuite.measure.rows import Machine, Row, text_of
from benchsuite.measure.runners import EngineRunner, FailedRunner, Outcome, Runner, raised_text
from benchsuite.measure.units import Batch, Unit, disjoint_batches, make_units
from benchsuite.measure.watchdog import Watchdog
from benchsuite.measure.workloads.twins import twin_ids
from specdec import catalog, devices
from specdec.arena import Arena
from specdec.assembly import Assembly
from specdec.characters import decoded
from specdec.choices import BITS
from specdec.engine import Engine
from specdec.errors import RAISED, SpecdecError
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.peer import PeerEnv
from specdec.ranks import joined_ranks, on_all_ranks
from specdec.registry import Registry
from specdec.request import Request
from specdec.sharding import shard_model

Progress = Callable[[str], None]

PROBE = 4
"""Tokens of the short runs by which the duration is estimated."""

TWINS = 6
"""Prompts of all workloads of a setting whose twins each draft decodes, untimed: so many tell a cache from a lookup."""

DRAFTED = 1.6
"""A step that proposes takes so many times a plain one, on average, also where nothing is gained."""

ENDLESS = "the files of the target name no end token of its vocabulary: every text has the longest length"


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


class Bench(Measured):
    """Measures the arms of a workload when its first row is asked for; where the plan chooses how much is measured, the
    arms of all workloads of a setting.

    ``prepare`` raises SpecdecError for anything that cannot run: names, values, devices, models, prompts that do not
    fit. Where that is true of some settings only (a target that cannot be fetched), the card names them, their rows
    raise it, and the others run. All arms of the run are built before the first measurement. ``abandon`` is called,
    from another thread, if a run hangs so that it cannot be ended; the process ends after it. ``keep`` is called with
    each cell when nothing more will be measured of it. Cells that are added before ``prepare`` are not measured again.
    """

    def __init__(
        self,
        plan: MeasuringPlan | None = None,
        abandon: Callable[[str], None] = lambda what: None,
        keep: Callable[[Cell], None] = lambda cell: None,
    ) -> None:
        self.plan = plan or MeasuringPlan()
        super().__init__(self.plan.baseline, self.plan.dry, self.plan.across)
        self.registry = Registry()
        self._keep = keep
        self._watchdog = Watchdog(self.plan.timeout, abandon)
        self._bystanders = Bystanders()
        self._drawn = _drawn()
        self._stages: dict[Setting, Stage] = {}
        self.arms: list[Arm] = []
        self._comparisons: dict[Setting, Comparison] = {}
        self._texts: dict[str, workloads.Workload] = {}
        self._failed: dict[Setting, BaseException] = {}
        self._loaded: dict[tuple[object, ...], tuple[ArenaModel, catalog.Loaded]] = {}
        self._judge: OutputJudge | None = None
        self._seconds: dict[Arm, Outcome | None] = {}

    def prepare(self, arms: Sequence[Arm]) -> None:
        """Load and build everything that ``arms`` need; each setting's plain arm is added, once and again."""
        settings = dict.fromkeys(arm.setting for arm in arms if arm.setting not in self.cells)
        arms = [arm for arm in arms if arm.setting in settings]
        controls = [Arm(setting, again=again) for setting in settings for again in (False, True)]
        self.arms = list(dict.fromkeys((*controls, *arms)))
        for name in dict.fromkeys(setting.workload for setting in settings):
            self._texts[name] = workloads.load_workload(name).first(self.plan.prompts)
        for setting in settings:
            disjoint_batches(setting.workload, self._texts[setting.workload].questions, setting.batch)
        for arm in self.arms:
            arm.check(self.registry)
            if arm.peer:
                parse_peer(arm.peer)
        groups: dict[Setting, list[Arm]] = {}
        for arm in self.arms:
            groups.setdefault(arm.setting.without_workload, []).append(arm)
        for group in groups.values():
            arm_named(self.plan.baseline, group)
        self._build(groups)
        if self.plan.judge and settings:
            self._judge = OutputJudge("tiny" if self.plan.dry else self.plan.judge, devices.pick_device("cpu"))
            for setting in dict.fromkeys(arm.setting for arm in self.arms):
                tokenizer = self._stages[setting.without_workload].tokenizer
                longest = max(self._texts[setting.workload].encode(tokenizer), key=len)
                self._judge.require_room(longest, tokenizer, setting.sampling.max_new_tokens)
            self.card += self._fixed_text()

    def _build(self, groups: Mapping[Setting, list[Arm]]) -> None:
        """Build the stage of each setting; one that cannot be built fails its own rows. SpecdecError if none can."""
        refused: dict[Setting, SpecdecError] = {}
        for setting, group in groups.items():
            try:
                if not self.plan.dry and all(arm.peer and peer_needs_gguf(arm.peer) for arm in _asked(group)):
                    catalog.gguf_file(setting.target)  # refused before a model is loaded
                with on_all_ranks(setting.id):
                    self._stages[setting] = self._stage(setting, group)
            except SpecdecError as error:
                refused[setting] = error
        if refused and not self._stages:
            raise next(iter(refused.values()))
        self.card += [f"not measured: {'-'.join([s.target, *s.odd])}: {error}" for s, error in refused.items()]
        self._failed |= {
            arm.setting: refused[arm.setting.without_workload]
            for arm in self.arms
            if arm.setting.without_workload in refused
        }
        self.arms = [arm for arm in self.arms if arm.setting not in self._failed]

    def _fixed_text(self) -> list[str]:
        """A line for each target with its own weights: its perplexity on the fixed text."""
        lines = []
        for stage in self._stages.values():
            if stage.machine.dtype not in BITS:  # a quantised target has a table of its own
                texts = weights.texts(stage.tokenizer)
                count, found = sum(len(text) - 1 for text in texts), weights.perplexity(stage.judge.model, texts)
                lines.append(f"perplexity of {stage.machine.target} on the fixed text, {count:,} tokens: {found:.3f}")
        return list(dict.fromkeys(lines))

    def _stage(self, setting: Setting, arms: list[Arm]) -> Stage:
        ranks = joined_ranks()
        device = devices.pick_device(setting.device) if ranks is None else ranks.device(setting.device)
        dtype = devices.pick_dtype(setting.dtype, device)
        ops = self.registry.backend(setting.backend)
        target, loaded = self._load(setting, ops, device, dtype)
        texts = {name: self._texts[name] for name in dict.fromkeys(arm.setting.workload for arm in arms)}
        prompts = {name: text.encode(loaded.tokenizer) for name, text in texts.items()}
        encoded, most = [prompt for found in prompts.values() for prompt in found], setting.sampling.max_new_tokens
        longest = {name: text.longest(loaded.tokenizer, most) for name, text in texts.items()}
        assembly = Assembly(
            self.registry,
            target,
            loaded.tokenizer,
            max_rows=setting.batch,
            max_length=max(longest.values()) + most,
            seed=setting.sampling.seed,
            graphs=self.plan.graphs,
            exact=self.plan.exact,
        )
        judge = Judge(target, max(encoded, key=len))
        strategies = list(dict.fromkeys(replace(arm, setting=setting) for arm in arms))
        runners: dict[Arm, Runner] = {}
        for arm in strategies:
            runners[arm] = self._runner(arm, assembly)
        self.card += _not_built(runners)
        # The longest prompt of a conversation is known by its length alone.
        _refuse_unfit(setting, runners.values(), {name: [*prompts[name], (0,) * longest[name]] for name in prompts})
        if target.limit is not None and assembly.max_length > target.limit:
            self.card.append(f"{setting.target} has {target.limit} positions: texts end there, before {most} tokens")
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
        if self.plan.dry:
            runs, window = len(encoded) * (len(strategies) + 1), _widest_window(runners.values())
            sizes = {"longest": max(longest.values()), "window": window, "runs": runs}
            self.card += card.dry(setting, dtype, device, machine.bandwidth, **sizes)
        eos = catalog.end_tokens(loaded.model)
        stage = Stage(target, loaded.tokenizer, eos, judge, machine, assembly, runners)
        peers = [runner.described() for runner in runners.values() if isinstance(runner, PeerRunner)]
        self.card += card.card(
            machine,
            device,
            strategies,
            len(encoded),
            _forward_seconds(stage),
            self._expected(stage, arms, sorted(encoded, key=len)[len(encoded) // 2]),
            ops.absent(device.type),
            peers,
            _notes(stage),
        )
        return stage

    def _expected(self, stage: Stage, arms: Sequence[Arm], prompt: tuple[int, ...]) -> str:
        """How long the arms of a stage will take, in words: by short runs of plain decoding and of the peers."""
        if self.plan.budget is not None:
            return f"at most {card.minutes(self.plan.budget)} of measuring"
        expected, unknown = 0.0, list[str]()
        for setting in dict.fromkeys(arm.setting for arm in arms):
            most, batches = setting.sampling.max_new_tokens, self._batches(setting)
            runs = sum(batch.turns for batch in batches) * self.plan.passes(len(batches))
            warming = 2 * min(1.0, paired.WARM_UP / most)
            drafts = [arm for arm in arms if arm.setting == setting and arm.draft]
            mine = [arm for arm in arms if arm.setting == setting]
            of = {arm: stage.runners[replace(arm, setting=setting.without_workload)] for arm in mine}
            plain = self._probed(next(runner for arm, runner in of.items() if arm.plain), prompt, most) or 0.0
            each = {arm: self._probed(runner, prompt, most) for arm, runner in of.items() if arm.peer}
            unknown += [arm.label for arm, seconds in each.items() if seconds is None]
            # Plain decodes each prompt once more, for drafts that replay it.
            ours = sum(DRAFTED if arm.draft else 1.0 for arm in mine if not arm.peer) + 1.0
            expected += (runs + warming) * (ours * plain + sum(filter(None, each.values())))
            expected += (1 + len(self._twinned(setting)) - warming) * len(drafts) * DRAFTED * plain
        first = "for a pass over the prompts, " if self.plan.chooses else ""
        without = f", without {', '.join(dict.fromkeys(unknown))}" if unknown else ""
        return f"{first}about {card.minutes(expected)}{without}"

    def _probed(self, runner: Runner, prompt: tuple[int, ...], most: int) -> float | None:
        """The seconds that one run of a prompt will take, by the faster of two runs of a few tokens; None for an arm
        that cannot run, which its row reports, and for one that has to be compiled first."""
        setting = runner.arm.setting
        key = replace(runner.arm, setting=setting.without_workload)
        if key not in self._seconds:
            request = Request(0, prompt, replace(setting.params(()), max_new_tokens=PROBE))
            try:
                with on_all_ranks(runner.arm.label), self._watchdog.limit(f"{runner.arm.label}, {PROBE} tokens"):
                    compiled = runner.conditions().get("compile", "no") != "no"
                    found = [] if compiled else [runner.run([request]) for _ in range(2)]
            except RAISED:  # it is raised again, and reported, when its row is measured
                found = []
            self._seconds[key] = min(found, key=lambda outcome: outcome.wall_s) if found else None
        outcome = self._seconds[key]
        if outcome is None:
            return None
        first = outcome.emissions[0][0][0]
        once = first + (most - 1) * (outcome.tpot_s[0] if outcome.tpot_s else first)
        one_by_one = isinstance(runner, PeerRunner) and not runner.peer.batches
        return once * (setting.batch if one_by_one else 1)

    def _runner(self, arm: Arm, assembly: Assembly) -> Runner:
        """The arm, built and asked once for what is said of it. Whatever an engine, a draft or another plugin raises
        costs its own row."""
        self._bystanders.begin()
        try:
            runner = self._peer(arm, assembly) if arm.peer else EngineRunner(arm, self._engine(arm, assembly))
            _ask_once(runner)
        except RAISED as error:
            if arm.plain or joined_ranks() is not None:
                raise  # every arm is compared with plain, and every rank must make the same calls
            return FailedRunner(arm, error)
        changed = self._bystanders.built(arm.strategy)
        return FailedRunner(arm, SpecdecError(changed)) if changed else runner

    def _engine(self, arm: Arm, assembly: Assembly) -> Engine:
        """The arm's engine; in a dry run, with random proposals where its draft does not fit the tiny model."""
        try:
            return assembly.engine(arm.draft, arm.policy, arm.controller, arm.k, eager=arm.eager)
        except SpecdecError as error:
            options = self.registry.parse("draft", arm.draft)[1] if arm.draft else {}
            if not self.plan.dry or not any(isinstance(value, str) for value in options.values()):
                raise  # only a text can name a model or a head
            self.card.append(f"dry run: garbage stands for {arm.draft}, which does not fit the tiny model: {error}")
            return assembly.engine("garbage", arm.policy, arm.controller, arm.k)

    def _peer(self, arm: Arm, assembly: Assembly) -> PeerRunner:
        """The arm's engine; in a dry run transformers, where it cannot load the tiny model."""
        target, setting = assembly.target, arm.setting
        env = PeerEnv(
            "tiny" if self.plan.dry else setting.target,
            target.device,
            target.dtype,
            assembly.max_length,
            setting.batch,
            torch.get_num_threads(),
            target.twin,
            assembly.tokenizer,
        )
        try:
            peer = self.registry.peer(arm.peer or "", env)
            peer.check_params(setting.params(()))
        except SpecdecError as error:
            if not self.plan.dry:
                raise
            self.card.append(f"dry run: transformers stands for {arm.peer}: {error}")
            peer = self.registry.peer("transformers", env)
        return PeerRunner(arm, peer)

    def _load(
        self, setting: Setting, ops: Ops, device: torch.device, dtype: torch.dtype
    ) -> tuple[ArenaModel, catalog.Loaded]:
        """The setting's target; settings that share it load it once."""
        bits = BITS.get(setting.dtype)
        key = (setting.target, setting.backend, device, dtype, bits)
        if key not in self._loaded:
            name = "tiny" if self.plan.dry else setting.target
            ranks = joined_ranks()
            # A rank loads the whole model on the host, and moves its own part to its device.
            first = torch.device("cpu") if ranks else device
            loaded = catalog.load(name, first, dtype, rows=setting.batch, max_length=1024, seed=setting.sampling.seed)
            if ranks:
                shard_model(loaded.model, ranks.place.rank, ranks.place.ranks)
                loaded.model.to(device)
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
        for setting in dict.fromkeys(arm.setting for arm in self.arms):
            group = [arm for arm in self.arms if arm.setting == setting]
            batches = self._batches(setting)
            passes = self.plan.passes(len(batches))
            ticks += len(group) * (sum(batch.turns for batch in batches) * passes + 1 + passes)
        return ticks

    def row(self, arm: Arm, progress: Progress) -> Row:
        """Return the arm's row; the first row of a setting measures all its arms.

        Raises the error if plain failed, or if nothing of the setting could be built.
        """
        if arm.setting not in self._failed and arm.setting not in self.cells:
            if self.plan.chooses:
                self._search(arm.setting.without_workload, progress)
            else:
                passes = self.plan.passes(len(self._batches(arm.setting)))
                self._guarded(arm.setting, progress, [self._batches(arm.setting)] * passes)
                self._finished([arm.setting])
        if arm.setting in self._failed:
            raise self._failed[arm.setting]
        return self._rows[arm.setting][arm]

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
            with on_all_ranks(setting.id):
                comparison = self._comparison(setting, progress)
                for batches in passes:
                    comparison.measure(list(self._units(setting, batches)), enough)
                self._add_cell(setting)
        except RAISED as error:
            # Plain failed: every arm of the workload raises this error, and none runs again.
            self._failed[setting] = error
            self.drop(setting)
            self._wipe(self._stages[setting.without_workload])

    def _wipe(self, stage: Stage) -> None:
        """Let nothing of a workload that failed, such as a NaN in a cell, reach the next one."""
        stage.assembly.wipe()
        for runner in stage.runners.values():
            if isinstance(runner, EngineRunner):
                runner.engine.arena.wipe()

    def _search(self, setting: Setting, progress: Progress) -> None:
        """Measure all workloads of a setting until the plan has what it wants."""
        settings = list(dict.fromkeys(arm.setting for arm in self.arms if arm.setting.without_workload == setting))
        done = dict.fromkeys(settings, 0)

        def measure(units: int, enough: Callable[[], bool]) -> dict[str, dict[str, list[float]]]:
            for one in settings:
                batches = self._batches(one)
                new = batches[done[one] : units] if units else batches
                done[one] = max(done[one], units)
                if new and one not in self._failed:
                    self._guarded(one, progress, [new], enough)
            pools = self.pools(setting)
            whole = {arm: pool for arm, pool in pools.items() if not any(one.failure for one in pool.values())}
            return {
                arm.strategy: found
                for arm, pool in whole.items()
                if not arm.plain
                and (found := contrast(pool, pools[arm_named(self.plan.baseline, list(pools))], decoding))
            }

        search = Search(self.plan, max(len(self._batches(one)) for one in settings), len(settings), measure)
        search.run()
        self.said.append(search.said)
        self._finished(settings)

    def _finished(self, settings: Sequence[Setting]) -> None:
        for setting in settings:
            if setting not in self._failed:
                self._judged(setting)
                self._keep(self.cells[setting])

    def _judged(self, setting: Setting) -> None:
        """Have the judge read the outputs of every arm; an arm that failed is not read."""
        if self._judge is None:
            return
        tokenizer = self._stages[setting.without_workload].tokenizer
        for series in self._comparisons[setting].series.values():
            try:
                series.judged = None if series.error else self._judge.judge(series.outputs, tokenizer)
            except RAISED as error:  # longer in the judge's tokens than was to be expected, or whatever it raises
                self.said.append(f"{series.arm.id} was not judged: {raised_text(error)}")
        self._add_cell(setting)

    def _units(self, setting: Setting, batches: Sequence[Batch]) -> Iterator[Unit]:
        stage = self._stages[setting.without_workload]
        params, questions = setting.params(stage.eos), len(self._texts[setting.workload].questions)
        for batch in batches:
            yield from make_units(batch, questions, params, stage.tokenizer, stage.assembly.plain)

    def _twinned(self, setting: Setting) -> list[Batch]:
        """The batches of a setting whose prompts have twins: so many of each workload that there are enough of all."""
        workloads = {arm.setting for arm in self.arms if arm.setting.without_workload == setting.without_workload}
        return self._batches(setting)[: -(-TWINS // len(workloads))]

    def _twins(self, stage: Stage, arm: Arm) -> dict[int, list[Request]]:
        """Requests that no run can have seen, of another arm neither, like those of an arm's first units, each by the
        unit's first id; they keep room for their whole budget. A draft that declares that it learns has one of them:
        its first prompt of a pass is the only one before which it knows none."""
        setting, coin = arm.setting, Random(f"{self._drawn} {arm.id}")
        params, runner = setting.params(stage.eos), stage.runners[replace(arm, setting=setting.without_workload)]
        room = stage.assembly.max_length - params.max_new_tokens
        return {
            batch.places[0]: [
                Request(place, twin_ids(question, stage.tokenizer, coin, room), params)
                for place, question in zip(batch.places, batch.questions, strict=True)
            ]
            for batch in self._twinned(setting)[: 1 if runner.learns else None]
        }

    def _comparison(self, setting: Setting, progress: Progress) -> Comparison:
        if setting not in self._comparisons:
            stage = self._stages[setting.without_workload]
            wanted = [arm for arm in self.arms if arm.setting == setting]
            runners = {arm: stage.runners[replace(arm, setting=setting.without_workload)] for arm in wanted}
            name = self._label(setting.workload)
            self._comparisons[setting] = Comparison(
                runners,
                stage.judge,
                stage.assembly.plain,
                lambda what: progress(f"{name}, {what}"),
                self._watchdog.limit,
                self.plan.debug,
                self._bystanders,
                partial(self._twins, stage),
            )
        return self._comparisons[setting]

    def close(self) -> None:
        """Free the memory of other engines; nothing is measured afterwards."""
        for stage in self._stages.values():
            for runner in stage.runners.values():
                if isinstance(runner, PeerRunner):
                    try:
                        runner.peer.close()
                    except RAISED as error:  # what it has measured is kept
                        self.said.append(f"{runner.arm.label} could not be closed: {raised_text(error)}")

    def trace(self, setting: Setting, folder: Path) -> None:
        """Write a trace of each of our arms on the first unit of a setting to ``folder``, by the arm's name."""
        for arm, series in self._comparisons[setting].series.items():
            runner = self._stages[setting.without_workload].runners[replace(arm, setting=setting.without_workload)]
            if isinstance(runner, EngineRunner) and series.units and not arm.again:
                name = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in arm.id)
                profile.trace(runner.engine, series.units[0].requests, folder / f"{name}.json.gz")

    def _add_cell(self, setting: Setting) -> None:
        """Make the rows of one workload anew."""
        without = setting.without_workload
        stage, series = self._stages[without], self._comparisons[setting].series
        target = stage.target
        plain, made = next(one for arm, one in series.items() if arm.plain), made_here(target.device)
        # On CUDA each run begins a peak of its own: what probes and checks held between the runs is not part of any.
        runs = [outcome.memory for one in series.values() for outcome in one.outcomes]
        peaks = [memory["cuda_peak"] for memory in runs if "cuda_peak" in memory]
        self.add(
            Cell(
                setting,
                self._label(setting.workload),
                replace(stage.machine, peak_memory_bytes=max(peaks) if peaks else devices.peak_memory(target.device)),
                stage.eos,
                {arm: snapshot(one, made["machine"]) for arm, one in series.items()},
                {
                    arm: sum(seconds.values())
                    for arm in series
                    if (seconds := stage.runners[replace(arm, setting=without)].set_up_seconds)
                },
                text_of(plain, stage.judge),
                made,
                _pieces(series.values(), stage.tokenizer),
            )
        )

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

    def units(self, setting: Setting) -> list[Unit]:
        """Return the units of a setting that was prepared; later turns of conversations are decoded for it."""
        return [*self._units(setting, self._batches(setting))]

    def stages(self) -> Iterator[tuple[Setting, Stage]]:
        """Yield every stage that was built, with its setting apart from the workload."""
        yield from self._stages.items()

    def engines(self) -> Iterator[tuple[Arm, Engine]]:
        """Yield every engine that was built, with its arm."""
        for stage in self._stages.values():
            for arm, runner in stage.runners.items():
                if isinstance(runner, EngineRunner):
                    yield arm, runner.engine

    def prompts(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """Yield each first turn of the run: its workload, its place there from 0, its token ids."""
        for setting in dict.fromkeys(arm.setting for arm in self.arms):
            tokenizer = self._stages[setting.without_workload].tokenizer
            for place, tokens in enumerate(self._texts[setting.workload].encode(tokenizer)):
                yield setting.workload, place, tokens


def _drawn() -> int:
    """A number that no other run draws, on every rank the same."""
    drawn, ranks = secrets.randbits(62), joined_ranks()
    return drawn if ranks is None else ranks.decided([drawn])[0]


def _ask_once(runner: Runner) -> None:
    """Ask an arm for all that is said of it later: a plugin that raises then raises now, where it costs its own row."""
    for said in (paired.contract_of, paired.repeats, type(runner).conditions):
        said(runner)
    dict(runner.set_up_seconds)
    if isinstance(runner, PeerRunner):
        runner.described()


def _asked(arms: Iterable[Arm]) -> list[Arm]:
    """The arms for which a run is made: strategies of drafts; peers where there are none; else all."""
    every = [*arms]
    return [arm for arm in every if arm.draft] or [arm for arm in every if arm.peer] or every


def _not_built(runners: Mapping[Arm, Runner]) -> list[str]:
    """A line for each arm that could not be built. Raises the first refusal, before any work, if none is left of those
    for which the run is made."""
    failed = {arm: runner.error for arm, runner in runners.items() if isinstance(runner, FailedRunner)}
    refusals = [error for error in failed.values() if isinstance(error, SpecdecError)]
    if refusals and all(arm in failed for arm in _asked(runners)):
        raise refusals[0]
    return [f"not measured: {arm.strategy}: {raised_text(error)}" for arm, error in failed.items()]


def _refuse_unfit(
    setting: Setting, runners: Iterable[Runner], prompts: Mapping[str, Sequence[tuple[int, ...]]]
) -> None:
    """Raise SpecdecError, with the workload's name, for the first prompt that one of our engines would refuse."""
    engines = [runner.engine for runner in runners if isinstance(runner, EngineRunner)]
    for name, found in prompts.items():
        for prompt in found:
            try:
                for engine in engines:
                    engine.refuse_unfit(Request(0, prompt, setting.params(())))
            except SpecdecError as error:
                raise SpecdecError(f"the workload {name} does not fit {setting.target}: {error}") from None


def _pieces(every: Iterable[paired.Series], tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The text of each token in the arms' outputs of the first unit."""
    ids = {
        token for series in every for outcome in series.outcomes[:1] for tokens in outcome.tokens for token in tokens
    }
    return {token: decoded(tokenizer, [token]) for token in sorted(ids)}


def _notes(stage: Stage) -> list[str]:
    """What the card says of this target on this machine."""
    target, ranks = stage.target, joined_ranks()
    shared = [f"{ranks}: {target.sharding}"] if ranks else []
    return [
        *(target.swap.notes() + _tapped(stage)),
        *(Load.measured().lines() + shared),
        *([] if stage.eos else [ENDLESS]),
    ]


def _tapped(stage: Stage) -> list[str]:
    """What the drafts that read outputs of layers cost in every slot of a window and every token of a prompt."""
    size = stage.target.model.get_input_embeddings().weight.shape[1] * stage.target.dtype.itemsize
    read = {
        arm.draft: runner.engine.queue.taps.layers
        for arm, runner in stage.runners.items()
        if isinstance(runner, EngineRunner)
    }
    return [
        f"{draft} reads the outputs of layers {', '.join(map(str, layers))}: {len(layers) * size:,} bytes a token"
        for draft, layers in read.items()
        if layers
    ]


@torch.inference_mode()
def _widest_window(runners: Iterable[Runner]) -> int:
    """The slots of the widest window of any engine of ours."""
    return max(runner.engine.max_window for runner in runners if isinstance(runner, EngineRunner))


def _forward_seconds(stage: Stage) -> float:
    target = stage.target
    arena = target.arena(1, 64, 1)
    zero = torch.zeros(1, dtype=torch.int64, device=target.device)
    window = Window.chain(zero, zero[:, None][:, :0], zero)
    forward = partial(target.forward, arena, window, slice(0, 1), 0)
    return min(clock.seconds(forward, target.device) for _ in range(4))
