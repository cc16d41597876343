"""The benchmark of strategies under load: plain and every arm serve the same blocks of requests, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from benchsuite.benches.load.crossover import Crossover, crossover
from benchsuite.benches.load.equal_outputs import UnequalOutput, unequal_output
from benchsuite.benches.load.load_figures import LoadFigures, curves, load_figures, token_ids_of
from benchsuite.benches.load.measured_load import MeasuredLoad
from benchsuite.benches.load.queue_block import QueueBlock
from benchsuite.benches.load.served_queue import ServedQueue, queued_request
from benchsuite.benches.serving.figures import Slo
from benchsuite.benches.serving.load import Traffic
from benchsuite.benches.serving.turns import BlockPlan, group_size, plan_blocks
from benchsuite.judge.ties import Judge, too_many
from benchsuite.measure.arms import SAMPLED, Arm
from benchsuite.measure.interval import FEWEST
from benchsuite.measure.workloads import Workload
from specdec import Registry, catalog
from specdec.assembly import Assembly
from specdec.catalog import Loaded
from specdec.engine import Engine
from specdec.errors import SpecdecError
from specdec.model import ArenaModel
from specdec.request import Request, SamplingParams

PLAIN, AGAIN = "plain", "plain again"

OFTEN, LEAST = 2, 1.75
"""Requests of a closed block, in times of those at once, where there are as many, and at least: of as many as places a
tail would follow the first end, and what a slot costs could not be estimated (``BusyPart.full_s``)."""

WARM = 8
"""Tokens of the requests that every arm decodes before a load is timed."""


@dataclass(frozen=True)
class LoadPlan:
    """What is measured.

    ``loads``: so many at once, or so many a second; a rate is served by as many rows as the largest load at once has,
    or ``rows``. ``sampling``: how requests are decoded, whose seed also orders what is served. ``rounds``: how often
    each arm serves a load's prompts; None: once where they make ``FEWEST`` blocks, else as often as makes as many,
    twice at least.
    """

    loads: tuple[Traffic, ...]
    workloads: tuple[Workload, ...]
    sampling: SamplingParams
    rows: int
    rounds: int | None = None
    slo: Slo | None = None


class LoadBench:
    """Measures arms under loads, each load when ``measure`` is called with it; ``blocks`` has what was measured.

    ``name`` is what it is called where there are several; ``arms`` have one setting. ``keep`` is called with each load
    when all of it was measured; one that was taken back with ``go_on`` is not measured again.

    Raises SpecdecError where there are fewer prompts than ``LEAST`` times what a load has at once.
    Example: ``LoadBench("tiny", loaded, target, arms, plan).measure(Traffic(concurrency=2))``
    """

    def __init__(
        self,
        name: str,
        loaded: Loaded,
        target: ArenaModel,
        arms: Sequence[Arm],
        plan: LoadPlan,
        keep: Callable[[MeasuredLoad], None] = lambda measured: None,
    ) -> None:
        self.name, self.target, self.plan, self._keep = name, target, plan, keep
        self.arms, self._target = arm_names(arms), arms[0].setting.target
        self.prompts = _dealt(plan.workloads, loaded)
        most = max((load.concurrency or plan.rows for load in plan.loads), default=plan.rows)
        longest = max(len(ids) for _, ids in self.prompts) + plan.sampling.max_new_tokens
        self.assembly = Assembly(
            Registry(), target, loaded.tokenizer, max_rows=most, max_length=longest, seed=plan.sampling.seed
        )
        self.params = replace(plan.sampling, eos=catalog.end_tokens(loaded.model))
        self.judge = Judge(target, self.prompts[0][1])
        self.blocks: dict[Traffic, list[QueueBlock]] = {}
        self.exact: dict[str, bool] = {}
        self._whole = set[Traffic]()
        for load in plan.loads:
            self.places(load)

    @property
    def names(self) -> list[str]:
        """The arms' names, plain first and plain once more behind it."""
        return list(self.arms)

    def size(self, load: Traffic) -> int:
        """How many prompts a block has, if there are as many: of so many at once twice as many, so that most are not
        the tail; of a rate ``FEWEST`` or more, so that requests meet."""
        wanted = OFTEN * load.concurrency if load.concurrency else max(FEWEST, group_size(load, len(self.prompts)))
        return min(wanted, len(self.prompts))

    def places(self, load: Traffic) -> list[int]:
        """The places of a load's prompts: as many as make ``FEWEST`` blocks, or all; of every workload alike."""
        at_once = load.concurrency or 1
        needed = ceil(LEAST * at_once) if at_once > 1 else 1
        if needed > len(self.prompts):
            raise SpecdecError(
                f"{load.label} takes {needed} different prompts, so that places serve a second one, and there are "
                f"{len(self.prompts)}: name more workloads (--specdec-workload), more --specdec-prompts, or a smaller "
                "load"
            )
        return list(range(min(len(self.prompts), FEWEST * self.size(load))))

    def planned(self, load: Traffic) -> Iterator[BlockPlan]:
        """The blocks of a load in the order in which they are served: plain, an arm, and so on, in random order, each
        group to all of them before the next one."""
        prompts = [(place, self.prompts[place][0]) for place in self.places(load)]
        size = self.size(load)
        groups = max(1, len(prompts) // size)
        rounds = self.plan.rounds or (1 if groups >= FEWEST else max(2, -(-FEWEST // groups)))
        return plan_blocks(self.names, prompts, load, rounds, self.plan.sampling.seed, size)

    def measure(self, load: Traffic) -> list[LoadFigures]:
        """Serve a load's prompts by every arm, and return the figures."""
        if load not in self._whole:
            rows = load.concurrency or self.plan.rows
            queues = {name: self._queue(name, arm, rows) for name, arm in self.arms.items()}
            blocks = self.blocks.setdefault(load, [])
            for plan in self.planned(load):
                blocks.append(queues[plan.endpoint].block(plan, load))
            self._whole.add(load)
            self._keep(self._measured(load))
        return self.figures(load)

    def go_on(self, found: MeasuredLoad) -> None:
        """Take what another process has measured of a load."""
        self.blocks[found.load] = [*found.blocks]
        self.exact |= found.exact
        self._whole.add(found.load)

    def _measured(self, load: Traffic) -> MeasuredLoad:
        return MeasuredLoad(load, dict(self.exact), self.blocks[load])

    def _queue(self, name: str, arm: Arm, rows: int) -> ServedQueue:
        """The arm's engine, warm, whose draft and controller know nothing of what it warmed up with."""
        engine = self.assembly.engine(arm.draft, arm.policy, arm.controller, arm.k, max_rows=rows)
        self.exact[name] = engine.policy.contract(self.params) == "exact"
        _warm_up(engine, [ids for _, ids in self.prompts[:rows]], self.params)
        return ServedQueue(engine, [ids for _, ids in self.prompts], self.params)

    def figures(self, load: Traffic) -> list[LoadFigures]:
        """The figures so far, in the order of ``names``."""
        workloads = [label for label, _ in self.prompts]
        draftless = [name for name, arm in self.arms.items() if arm.draft is None]
        return load_figures(self.blocks.get(load, []), self.names, workloads, load, self.plan.slo, draftless)

    def crossovers(self) -> dict[str, dict[str, Crossover]]:
        """The crossover of each arm but plain along the loads at once, and along the rates; of two loads or more."""
        points = {load: self.figures(load) for load in self.blocks}
        found: dict[str, dict[str, Crossover]] = {}
        for name in self.names[1:]:
            for unit, curve in curves(points, name).items():
                known = [(at, row.log) for at, row in curve if row.log is not None]
                if len(known) > 1:
                    found.setdefault(unit, {})[name] = crossover([at for at, _ in known], [log for _, log in known])
        return found

    def unequal(self, load: Traffic) -> dict[str, list[UnequalOutput]]:
        """Every output of an arm with an exact policy that is not plain's, by the arm's name."""
        blocks = self.blocks.get(load, [])
        plain = token_ids_of([block for block in blocks if block.endpoint == PLAIN])
        found: dict[str, list[UnequalOutput]] = {}
        prompts = [ids for _, ids in self.prompts]
        for name in self.names[1:]:
            if not self.exact.get(name):
                continue
            for (turn, place), ids in token_ids_of([block for block in blocks if block.endpoint == name]).items():
                expected = plain.get((turn, place))
                if expected is not None and ids != expected:
                    request = queued_request(turn, place, prompts, self.params)
                    one = unequal_output(self.judge, place, request, expected, ids)
                    found.setdefault(name, []).extend([one] if one else [])
        return found

    def wrong(self, load: Traffic) -> dict[str, list[str]]:
        """By arm, a line for each output that breaks its contract, and for too many ties."""
        tokens = sum(len(ids) for ids in token_ids_of([b for b in self.blocks[load] if b.endpoint == PLAIN]).values())
        found: dict[str, list[str]] = {}
        for name, some in self.unequal(load).items():
            many = too_many(sum(one.tie for one in some), tokens, self.target.dtype)
            lines = [*(str(one) for one in some if not one.tie), *([many] if many else [])]
            found |= {name: [f"{name}: {line}" for line in lines]} if lines else {}
        return found

    def as_json(self) -> dict[str, Any]:
        """Every request of every block with its times and tokens, and the figures made of them."""
        return {
            "target": self._target,
            "device": str(self.target.device),
            "dtype": self.target.precision,
            "backend": self.target.ops.name,
            "sampling": {name: getattr(self.plan.sampling, name) for name in SAMPLED},
            "rows": self.plan.rows,
            "arms": {name: arm.strategy for name, arm in self.arms.items()},
            "workloads": [label for label, _ in self.prompts],
            "crossovers": {
                unit: {name: asdict(one) for name, one in arms.items()} for unit, arms in self.crossovers().items()
            },
            "loads": [
                {**self._measured(load).as_json(), "figures": [asdict(row) for row in self.figures(load)]}
                for load in self.blocks
            ],
        }


def arm_names(arms: Sequence[Arm]) -> Mapping[str, Arm]:
    """Return arms by the names that rows show: labels, or whole strategies where two arms have one label."""
    labels = [arm.label for arm in arms]
    return {arm.label if labels.count(arm.label) == 1 else arm.strategy: arm for arm in arms}


def _dealt(workloads: Sequence[Workload], loaded: Loaded) -> list[tuple[str, tuple[int, ...]]]:
    """The workload and the token ids of each first turn, one of every workload in turn; each prompt once."""
    each = [[(workload.label, ids) for ids in workload.encode(loaded.tokenizer)] for workload in workloads]
    found: dict[tuple[int, ...], str] = {}
    for place in range(max(map(len, each))):
        for some in each:
            for label, ids in some[place : place + 1]:
                found.setdefault(ids, label)
    return [(label, ids) for ids, label in found.items()]


def _warm_up(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
    """Record and run what requests need, then forget it."""
    brief = replace(params, max_new_tokens=WARM)
    engine.warm_up(brief)
    engine.run([Request(number, tuple(prompt), brief) for number, prompt in enumerate(prompts)])
    if engine.draft:
        engine.draft.forget()
    engine.controller.forget()
