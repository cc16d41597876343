"""The benchmark of conversations: strategies of the engine and servers answer the same ones, turn by turn, in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from benchsuite.benches.conversations.over_http import common_tokens, replay_over_http, turn_ask
from benchsuite.benches.conversations.over_queue import ChatRendering, QueueReplay, longest_prompt
from benchsuite.benches.conversations.progress import AnsweredTurn, ConversationProgress, Nonces, Prefix, ReplayedBlock
from benchsuite.benches.conversations.prompt_cache import PrefixFinding, cached_prompt, prefix_finding
from benchsuite.benches.conversations.turn_figures import TurnFigures, turn_figures
from benchsuite.benches.load.bench import PLAIN, WARM, arm_names
from benchsuite.benches.load.equal_outputs import unequal_output
from benchsuite.benches.load.served_queue import TOKEN_IDS
from benchsuite.benches.serving.bench import AGAIN, sent_json
from benchsuite.benches.serving.figures import Slo
from benchsuite.benches.serving.load import Traffic
from benchsuite.benches.serving.restarts import ServersInTurn
from benchsuite.benches.serving.turns import BlockPlan, plan_blocks
from benchsuite.judge.ties import Judge
from benchsuite.measure.arms import Arm
from benchsuite.measure.conversations.filler import nonce_text
from benchsuite.measure.conversations.form import Conversation
from specdec import Registry, Request, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.catalog import Loaded
from specdec.errors import SpecdecError
from specdec.model import ArenaModel
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

ENDPOINT = "endpoint "
"""Before the names of servers, which may be those of arms."""


@dataclass(frozen=True)
class ConversationPlan:
    """What is replayed, and how.

    ``at_once``: so many conversations at a time; None: each when it is due in the trace that they are of. ``ask``:
    every request but what it says; its ``max_tokens`` is the most of any answer. ``dice``: of what begins the prompts.
    """

    conversations: tuple[Conversation, ...]
    endpoints: tuple[Endpoint, ...]
    ask: Ask
    at_once: int | None
    prefixes: tuple[Prefix, ...]
    rounds: int = 1
    slo: Slo | None = None
    seed: int = 0
    dice: Random | None = None


class EngineRows:
    """The arms of a run over one target, each with an engine of its own.

    Raises SpecdecError for names, options or a K that do not exist, and for conversations that a template refuses. A
    request that is longer than the target's limit is a failure of its own.
    """

    def __init__(
        self, name: str, loaded: Loaded, target: ArenaModel, arms: Sequence[Arm], plan: ConversationPlan, rows: int
    ) -> None:
        self.name, self.target, self.arms = name, target, arm_names(arms)
        self.rendering = ChatRendering(loaded.tokenizer)
        nonce, answer = nonce_text(Random(0)), plan.ask.max_tokens
        longest = max(longest_prompt(self.rendering, one.turns, nonce, answer) for one in plan.conversations) + answer
        limit = target.limit or longest
        self.assembly = Assembly(
            Registry(),
            target,
            loaded.tokenizer,
            max_rows=max(rows, plan.at_once or 1),
            max_length=min(longest, limit),
            seed=plan.seed,
        )
        self.params = SamplingParams(max_new_tokens=answer, eos=catalog.end_tokens(loaded.model))
        self.judge = Judge(target, self.rendering.ids([{"role": "user", "content": nonce}]))
        self.common = len(self.rendering.ids([{"role": "user", "content": nonce}]))
        self.exact: dict[str, bool] = {}
        self._replays: dict[str, QueueReplay] = {}

    def replay(self, name: str) -> QueueReplay:
        """Return the replay of one arm, its engine built once and warm."""
        if name not in self._replays:
            arm = self.arms[name]
            engine = self.assembly.engine(arm.draft, arm.policy, arm.controller, arm.k)
            self.exact[name] = engine.policy.contract(self.params) == "exact"
            brief = SamplingParams(max_new_tokens=WARM)
            engine.warm_up(brief)
            engine.run([Request(0, self.rendering.ids([{"role": "user", "content": "Hello"}]), brief)])
            if engine.draft:
                engine.draft.forget()
            engine.controller.forget()
            self._replays[name] = QueueReplay(engine, self.rendering, self.params)
        return self._replays[name]


class ConversationBench:
    """Replays conversations over the engine's arms and over servers, when ``measure`` is called.

    ``prepare`` asks every server for its health and for what two prompts have in common at most. ``blocks`` has what
    was measured; ``keep`` is called after every group. ``said`` has lines about all rows.
    """

    def __init__(
        self,
        plan: ConversationPlan,
        engine: EngineRows | None = None,
        servers: ServersInTurn | None = None,
        keep: Callable[[ConversationBench], None] = lambda bench: None,
    ) -> None:
        if engine is None and not plan.endpoints:
            raise SpecdecError("neither a target nor a server is given; name one: --specdec-target, --specdec-endpoint")
        self.plan, self.engine, self.servers, self._keep = plan, engine, servers or ServersInTurn({}), keep
        self.blocks, self.said = list[ReplayedBlock](), list[str]()
        self.common: dict[str, int | None] = {}
        self._nonces, self._dice = Nonces(plan.dice or Random()), plan.dice or Random()
        self._ready = self._measured = False

    @property
    def families(self) -> list[list[str]]:
        """The rows that are compared with each other, the engine's and the servers', each with what speeds are over
        first, and this once more behind it."""
        served = [ENDPOINT + one.name for one in self.plan.endpoints]
        again = [served[0], served[0] + AGAIN, *served[1:]] if served else []
        return [rows for rows in ([*self.engine.arms] if self.engine else [], again) if rows]

    def prepare(self) -> None:
        """Refuse servers that do not answer, and requests that they do not take. Raises SpecdecError."""
        if self._ready:
            return
        self._ready = True
        for endpoint in self.plan.endpoints:
            for turn in (turn for one in self.plan.conversations for turn in one.turns):
                turn_ask(self.plan.ask, turn, turn.messages)
            asyncio.run(self._prepared(endpoint))

    async def _prepared(self, endpoint: Endpoint) -> None:
        async with self.servers.connect(endpoint) as client:
            await client.health()
            common, line = await common_tokens(client, self.plan.ask, self.plan.conversations, self._dice)
        self.common[ENDPOINT + endpoint.name] = common
        self.said.append(line)

    def planned(self) -> Iterator[BlockPlan]:
        """The blocks in the order in which they are sent; a row and a prefix are one name, with a line break between.

        Of so many conversations at a time each group goes to all rows before the next one; a trace with times is one
        group, and so are all conversations where servers run in turn.
        """
        names = [f"{row}\n{prefix.value}" for rows in self.families for row in rows for prefix in self.plan.prefixes]
        labels = [(place, one.label) for place, one in enumerate(self.plan.conversations)]
        urls = [one.url for one in self.plan.endpoints]
        whole = self.plan.at_once is None or len(set(urls)) < len(urls)
        load = Traffic(concurrency=self.plan.at_once or 1)
        return plan_blocks(names, labels, load, self.plan.rounds, self.plan.seed, len(labels) if whole else None)

    def measure(self) -> list[TurnFigures]:
        """Replay all conversations over every row, once, and return the figures."""
        if not self._measured:
            self._measured = True
            self.prepare()
            try:
                for plan in self.planned():
                    self.blocks.append(self._block(plan))
            finally:  # also an interrupt: what has ended is kept
                self._keep(self)
        return self.figures()

    def _block(self, plan: BlockPlan) -> ReplayedBlock:
        row, _, value = plan.endpoint.partition("\n")
        prefix = Prefix(value)
        places = sorted(plan.places) if self.plan.at_once is None else plan.places
        waiting = [
            ConversationProgress(place, self.plan.conversations[place], self._draw(prefix, row, plan.round, place))
            for place in places
        ]
        turns = list[AnsweredTurn]()
        if self.engine and row in self.engine.arms:
            turns, counts = self.engine.replay(row).block(waiting, prefix, self.plan.at_once)
        else:
            name = row.removeprefix(ENDPOINT)
            endpoint = next(one for one in self.plan.endpoints if name in (one.name, one.name + AGAIN))

            async def run() -> Any:
                async with self.servers.connect(endpoint) as client:
                    return await replay_over_http(client, waiting, self.plan.ask, self.plan.at_once, turns)

            counts = asyncio.run(run())
        return ReplayedBlock(row, prefix, plan.round, plan.group, tuple(turns), counts)

    def _draw(self, prefix: Prefix, row: str, turn: int, place: int) -> Callable[[int], str]:
        """The nonces of a conversation. A server that is asked once more must not know its prompts."""
        family = "again" if row.endswith(AGAIN) and row.startswith(ENDPOINT) else "first"
        return lambda number: self._nonces.of(prefix, family, (turn, place, number))

    def figures(self) -> list[TurnFigures]:
        """The figures so far, of the engine's rows and of the servers'."""
        again = [row for rows in self.families for row in rows if row.startswith(ENDPOINT) and row.endswith(AGAIN)]
        return [
            one
            for rows in self.families
            for one in turn_figures(self.blocks, rows, self.plan.conversations, self.plan.slo, again)
        ]

    def findings(self) -> dict[str, PrefixFinding]:
        """What is known of the prefixes of each row."""
        labels = [one.label for one in self.plan.conversations]
        return {
            row: prefix_finding(row, self.blocks, self._common(row), labels) for rows in self.families for row in rows
        }

    def _common(self, row: str) -> int | None:
        if self.engine and row in self.engine.arms:
            return self.engine.common
        return self.common.get(row.removesuffix(AGAIN))

    def wrong(self) -> list[str]:
        """A line for each row whose cold prompts came from a cache, and for each output of an arm with an exact policy
        that is not plain's and differs at no tie."""
        refused = [f"{row}: refused: {one.refused}" for row, one in self.findings().items() if one.refused]
        return refused + (self._bugs(self.engine) if self.engine else [])

    def _bugs(self, engine: EngineRows) -> list[str]:
        plain = {key: one for block in self.blocks if block.row == PLAIN for key, one in _outputs(block)}
        found = []
        for block in self.blocks:
            if block.row == PLAIN or not engine.exact.get(block.row):
                continue
            for key, one in _outputs(block):
                first = plain.get(key)
                if first and first.prompt == one.prompt and first.sent.reply and one.sent.reply:
                    expected, ids = (reply.body[TOKEN_IDS] for reply in (first.sent.reply, one.sent.reply))
                    request = Request(0, one.prompt, engine.params)
                    unequal = unequal_output(engine.judge, one.sent.prompt, request, expected, ids)
                    if unequal and not unequal.tie:
                        found.append(f"{block.row}, {block.prefix.value}, turn {one.turn + 1}: {unequal}")
        return found

    def as_json(self) -> dict[str, Any]:
        """Every request of every block with its times, its answer and what was said of its cache, and the figures. No
        API key is part of it."""
        plan, engine = self.plan, self.engine
        return {
            "target": engine.name if engine else None,
            "arms": {name: arm.strategy for name, arm in engine.arms.items()} if engine else {},
            "endpoints": [{"name": one.name, "url": one.url, "model": one.model} for one in plan.endpoints],
            "at_once": plan.at_once,
            "max_new_tokens": plan.ask.max_tokens,
            "chat": plan.ask.chat,
            "common_tokens": {row: self._common(row) for rows in self.families for row in rows},
            "conversations": [
                {"name": one.name, "workload": one.label, "turns": [asdict(turn) for turn in one.turns]}
                for one in plan.conversations
            ],
            "figures": [{**asdict(one), "prefix": one.prefix.value} for one in self.figures()],
            "findings": [asdict(one) for one in self.findings().values()],
            "blocks": [
                {
                    "row": block.row,
                    "prefix": block.prefix.value,
                    "round": block.round,
                    "group": block.group,
                    "counts": asdict(block.counts) if block.counts else None,
                    "turns": [_turn_json(one) for one in block.turns],
                }
                for block in self.blocks
            ],
        }


def _outputs(block: ReplayedBlock) -> list[tuple[tuple[Prefix, int, int, int], AnsweredTurn]]:
    return [((block.prefix, block.round, one.sent.prompt, one.turn), one) for one in block.turns]


def _turn_json(one: AnsweredTurn) -> Mapping[str, Any]:
    said = cached_prompt(one.sent.reply) if one.sent.reply else None
    sent = sent_json(one.sent)
    return {
        "conversation": sent.pop("prompt"),
        "turn": one.turn,
        **sent,
        "cached": said and said.tokens,
        "cached_wrong": said and said.wrong,
        "counts": asdict(one.counts) if one.counts else None,
    }
