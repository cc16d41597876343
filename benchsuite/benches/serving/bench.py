"""The benchmark of endpoints: rounds in which all get the same prompts, group by group, one load after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

from benchsuite.benches.serving.asked import Read
from benchsuite.benches.serving.certificate import Certificate
from benchsuite.benches.serving.certified import certify
from benchsuite.benches.serving.figures import EndpointFigures, Slo, endpoint_figures
from benchsuite.benches.serving.load import Sent, ServedBlock, Traffic, send
from benchsuite.benches.serving.restarts import ServersInTurn
from benchsuite.benches.serving.self_reported import (
    SelfReported,
    counts_now,
    group_counts,
    page_now,
    self_reported_of,
)
from benchsuite.benches.serving.timed_texts import TimedText
from benchsuite.benches.serving.turns import BlockPlan, plan_blocks
from benchsuite.measure.workloads import Workload
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.client import NEUTRAL, Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Chunk, EndpointFailure, Reply
from specdec_plugins.endpoints.server_metrics import COUNTS, Speculation

CHECK = "Name the months of the year, one after the other."
COUNTED = 16
"""The prompt, and the most tokens of its answer, by which a server's ``usage`` is checked."""

AGAIN = " again"
"""Behind the first endpoint's name: the same server once more in each round, whose speed shows the noise."""


@dataclass(frozen=True)
class ServingPlan:
    """What is asked, and how often.

    ``prompts``: each with its workload's name, all different. ``ask``: every request but its prompt. ``rounds``: how
    often all prompts of a load go to all endpoints. ``seed``: of the order and of arrivals. ``loads``: those that share
    the prompts out; without any, each has all of them. Endpoints of one address are servers that run in turn.
    ``before_new``: what certificates put before a prompt so that no server knows it; nothing: they are of known prompts
    alone. ``gated``: a gate compares the endpoints; the first is not measured again, which would teach a server that
    learns, and the page of each is read around every group. ``widths``: of the endpoints that stand for one each.
    """

    endpoints: tuple[Endpoint, ...]
    prompts: tuple[tuple[str, str], ...]
    ask: Ask
    rounds: int = 1
    slo: Slo | None = None
    seed: int = 0
    loads: tuple[Traffic, ...] = ()
    before_new: str = ""
    gated: bool = False
    widths: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = Counter(label for label, _ in self.prompts)
        few = [f"{label} has {count}" for label, count in counts.items() if count < len(self.loads)]
        if few:
            raise SpecdecError(
                f"{len(self.loads)} loads need as many different prompts of each workload, since a server may learn "
                f"from what it has answered; {', '.join(few)}: name a workload with more (--specdec-workload), or "
                "measure fewer loads in a run"
            )

    def places(self, load: Traffic) -> list[int]:
        """The places of a load's prompts: no other load has them, and each has as many of every workload, or one more.

        A server that learns from its answers has therefore seen no answer of another load.
        """
        if load not in self.loads:
            return list(range(len(self.prompts)))
        seen, found = Counter[str](), []
        for place, (label, _) in enumerate(self.prompts):
            if seen[label] % len(self.loads) == self.loads.index(load):
                found.append(place)
            seen[label] += 1
        return found


def prompts_of(workloads: Sequence[Workload]) -> tuple[tuple[str, str], ...]:
    """Return the first turn of every question with its workload's label; a text that comes twice is asked once.

    The second time a server's prefix cache would answer.
    """
    found: dict[str, str] = {}
    for workload in workloads:
        for text in workload.prompts:
            found.setdefault(text, workload.label)
    return tuple((label, text) for text, label in found.items())


class ServingBench:
    """Measures endpoints under loads, each load when ``measure`` is called with it.

    ``prepare`` asks every endpoint for its health, and for one token of every prompt: an address, key or model that is
    wrong is refused before anything is timed. It also asks once with log-probabilities, which tell whether ``usage``
    counts what was sent; timed requests do without, because some servers compute them slowly. ``said`` has a line for
    each endpoint that gives none. ``measure`` sends the prompts in small groups, each to all endpoints in turn. Just
    before, it asks the endpoint for one token of each prompt of the group, which is then in the server's prefix cache,
    if it has one: no endpoint meets colder caches than another. ``blocks`` has what was measured, by load; ``keep`` is
    called after every group.
    """

    def __init__(
        self,
        plan: ServingPlan,
        keep: Callable[[ServingBench], None] = lambda bench: None,
        servers: ServersInTurn | None = None,
        read: Read | None = None,
    ) -> None:
        self.plan, self.blocks = plan, dict[Traffic, list[ServedBlock]]()
        self.said: list[str] = []
        self.self_reported: dict[Traffic, dict[str, SelfReported]] = {}
        self._known: dict[str, dict[str, int]] = {}
        self._keep = keep
        self.servers = servers or ServersInTurn({})
        self._read = read
        self._ready = False
        self.certificates: list[Certificate] | None = None

    @property
    def names(self) -> list[str]:
        """The endpoints' names, and the first one's once more, unless a gate compares them."""
        found = [endpoint.name for endpoint in self.plan.endpoints]
        return found if self.plan.gated else [found[0], found[0] + AGAIN, *found[1:]]

    def prepare(self) -> None:
        """Refuse endpoints that do not answer; see the class. Raises SpecdecError."""
        if not self._ready:
            for endpoint in self.plan.endpoints:
                asyncio.run(self._prepared(self.servers.connect(endpoint)))
            self._ready = True

    async def _prepared(self, opened: Client) -> None:
        async with opened as client:
            await client.health()
            for _, prompt in self.plan.prompts:
                await client.complete(self._asked(prompt, max_tokens=1))
            await self._checked(client)
            left = [name for name in NEUTRAL if name in client.refused]
            if left:
                self.said.append(
                    f"{client.endpoint.name} refuses requests with {', '.join(left)}: its own defaults of these hold"
                )

    def _count(self, blocks: list[ServedBlock]) -> None:
        """Ask again, whole, for the answers whose stream had no ``usage``: some servers have one then.

        A streamed answer of the same text gets its number. This comes after the timing, so that a server which learns
        from what it has answered knows no answer before. In place: ``blocks``.
        """
        for endpoint in self.plan.endpoints:
            mine = {n: block for n, block in enumerate(blocks) if block.endpoint.removesuffix(AGAIN) == endpoint.name}
            replies = [one.reply for block in mine.values() for one in block.sent]
            if all(reply is None or reply.counted is not None for reply in replies):
                continue
            lengths = self._known.get(endpoint.name)
            if lengths is None:
                lengths = asyncio.run(self._lengths(self.servers.connect(endpoint)))
            self._known[endpoint.name] = lengths
            for place, block in mine.items():
                blocks[place] = replace(block, sent=tuple(_with_length(one, lengths) for one in block.sent))

    async def _lengths(self, opened: Client) -> dict[str, int]:
        """The number of tokens of every answer, by its text, as the server counts them outside of streams."""
        found = {}
        async with opened as client:
            for _, prompt in self.plan.prompts:
                reply = await client.complete(self._asked(prompt, stream=False))
                if reply.counted is not None:
                    found[reply.text] = reply.counted
        said = "counted by the same answers, asked for whole" if found else "not known: no figure is per token"
        self.said.append(f"{opened.endpoint.name} has no usage in a stream: its tokens are {said}")
        return found

    async def _checked(self, client: Client) -> None:
        """Compare ``usage`` with the tokens of log-probabilities, on a prompt that is not measured."""
        ask = self._asked(CHECK, max_tokens=min(COUNTED, self.plan.ask.max_tokens), logprobs=1)
        try:
            reply = await client.complete(ask)
        except EndpointFailure as failure:
            if failure.kind not in ("refused_request", "server_error"):
                raise
            reply = None
        if reply is None or not reply.tokens:
            self.said.append(f"{client.endpoint.name} gives no log-probabilities: its usage is taken at its word")

    def _seed(self, place: int) -> int | None:
        """The seed of a prompt's timed requests: of one seed for all, servers make the same random numbers."""
        return None if self.plan.ask.seed is None else self.plan.ask.seed + place

    def _asked(self, prompt: str, **other: Any) -> Ask:
        return Ask(**{**vars(self.plan.ask), "prompt": prompt, **other})

    def measure(self, load: Traffic) -> list[EndpointFigures]:
        """Send every prompt to every endpoint, ``rounds`` times, and return the figures."""
        self.prepare()
        blocks = self.blocks.setdefault(load, [])
        pages = [self._page(endpoint) for endpoint in self.plan.endpoints]
        for _, group in groupby(self.planned(load), lambda block: (block.round, block.group)):
            try:
                for block in group:
                    self._block(load, block, blocks)
            finally:  # also an interrupt: what has ended is kept
                self._keep(self)
        for endpoint, before in zip(self.plan.endpoints, pages, strict=True):
            mine = [block for block in blocks if block.endpoint.removesuffix(AGAIN) == endpoint.name]
            replies = [one.reply for block in mine for one in block.sent if one.reply]
            said = self_reported_of(before, self._page(endpoint), replies)
            self.self_reported.setdefault(load, {})[endpoint.name] = said
        self._count(blocks)
        return self.figures(load)

    def planned(self, load: Traffic) -> Iterator[BlockPlan]:
        """The blocks of a load in the order in which they are sent."""
        plan = self.plan
        prompts = [(place, plan.prompts[place][0]) for place in plan.places(load)]
        in_turn = len({endpoint.url for endpoint in plan.endpoints}) < len(plan.endpoints)
        return plan_blocks(self.names, prompts, load, plan.rounds, plan.seed, len(prompts) if in_turn else None)

    def _block(self, load: Traffic, block: BlockPlan, blocks: list[ServedBlock]) -> None:
        endpoint = next(one for one in self.plan.endpoints if block.endpoint in (one.name, one.name + AGAIN))
        asks = [(place, self._asked(self.plan.prompts[place][1], seed=self._seed(place))) for place in block.places]
        first = [(place, replace(ask, max_tokens=1)) for place, ask in asks]
        sent, pages = list[Sent](), list[Speculation | None]()
        opened = self.servers.connect(endpoint)
        alone = load.concurrency == 1

        async def run() -> None:
            async with opened as client:
                # Connections are open then, too: those of the group before were closed while others had their turn.
                await send(client, first, Traffic(concurrency=load.concurrency or 1), block.seed, [])

                async def count() -> None:
                    if self.plan.gated and (not pages or pages[-1]):
                        pages.append(await counts_now(client))

                await count()
                await send(client, asks, load, block.seed, sent, count if alone else None)
                if not alone:
                    await count()

        try:
            asyncio.run(run())
        finally:
            groups = [(one.prompt,) for one in sent] if alone else [block.places]
            counts = group_counts(pages, groups)
            blocks.append(ServedBlock(block.endpoint, block.round, tuple(sent), block.group, counts))

    def certify(self, dtype: str) -> list[Certificate]:
        """Compare the outputs of every endpoint with the first one's, once, and those that were timed with these;
        nothing is timed. See ``certified.certify``."""
        if self.certificates is None:
            self.prepare()
            prompts = [text for _, text in self.plan.prompts]
            connect, plan = self.servers.connect, self.plan
            self.certificates = certify(
                plan.endpoints, prompts, plan.ask, dtype, connect, self._read, self._timed(), plan.before_new
            )
            self._keep(self)
        return self.certificates

    def _timed(self) -> dict[str, list[TimedText]]:
        """Every text that was timed, by the names of the endpoints."""
        found: dict[str, list[TimedText]] = {endpoint.name: [] for endpoint in self.plan.endpoints}
        for load, blocks in self.blocks.items():
            for block in blocks:
                texts = [TimedText(one.prompt, load.label, one.reply) for one in block.sent if one.reply]
                found[block.endpoint.removesuffix(AGAIN)] += texts
        return found

    def _page(self, endpoint: Endpoint) -> str | None:
        """An endpoint's counters; None of one that is started in turn, whose counters begin anew each time."""
        if endpoint.name in self.servers.commands:
            return None
        return asyncio.run(page_now(self.servers.connect(endpoint)))

    def figures(self, load: Traffic) -> list[EndpointFigures]:
        """The figures so far, in the order of ``names``."""
        workloads = [label for label, _ in self.plan.prompts]
        return endpoint_figures(self.blocks.get(load, []), self.names, workloads, self.plan.slo)

    def as_json(self) -> dict[str, Any]:
        """Everything that was asked and answered, the fields that servers refused, and the figures. No API key is part
        of it."""
        ask = {
            name: value for name, value in vars(self.plan.ask).items() if name not in ("prompt", "messages", "extra")
        }
        sampling = dict(NEUTRAL) | ask | dict(self.plan.ask.extra)
        return {
            "endpoints": [{"name": one.name, "url": one.url, "model": one.model} for one in self.plan.endpoints],
            "asked": sampling,
            "refused_fields": {name: sorted(fields) for name, fields in self.servers.refused.items() if fields},
            "before_new": self.plan.before_new,
            "prompts": [{"workload": label, "text": text} for label, text in self.plan.prompts],
            "certificates": [one.as_json() for one in self.certificates or ()],
            "loads": [
                {
                    "load": asdict(load),
                    "figures": [asdict(one) for one in self.figures(load)],
                    "own_words": {
                        name: [said.figures() for said in (one.page, one.bodies) if said is not None]
                        for name, one in self.self_reported.get(load, {}).items()
                    },
                    "blocks": [
                        {
                            "endpoint": block.endpoint,
                            "round": block.round,
                            "group": block.group,
                            "counts": [
                                {"prompts": list(one.prompts), **{word: getattr(one.said, word) for word in COUNTS}}
                                for one in block.counts
                            ],
                            "sent": [sent_json(one) for one in block.sent],
                        }
                        for block in blocks
                    ],
                }
                for load, blocks in self.blocks.items()
            ],
        }


def _with_length(one: Sent, lengths: Mapping[str, int]) -> Sent:
    if one.reply is None or one.reply.counted is not None:
        return one
    return replace(one, reply=replace(one.reply, completion_tokens=lengths.get(one.reply.text)))


def sent_json(one: Sent) -> dict[str, Any]:
    """Return one request and what came of it, as JSON has it."""
    reply = one.reply
    found: dict[str, Any] = {"prompt": one.prompt, "sent_s": one.sent_s, "ended_s": one.ended_s, "late_s": one.late_s}
    if reply is None:
        return found | {"failure": one.failure, "said": one.said}
    return found | {
        "text": reply.text,
        "tokens": [[token.text, token.logprob] for token in reply.tokens],
        "chunks": [[chunk.seconds, len(chunk.text), chunk.tokens] for chunk in reply.chunks],
        "seconds": reply.seconds,
        "usage": [reply.prompt_tokens, reply.completion_tokens],
        "finish_reason": reply.finish_reason,
        "attempts": reply.attempts,
        "body": dict(reply.body),
    }


def sent_from_json(content: Mapping[str, Any]) -> Sent:
    """Return the request that ``sent_json`` wrote. What it leaves out stays out: of pieces the texts, each of which has
    its length, and log-probabilities of tokens."""
    times = content["sent_s"], content["ended_s"]
    if "text" not in content:
        return Sent(content["prompt"], *times, None, content["failure"], content["said"], content["late_s"])
    chunks = tuple(Chunk(seconds, "x" * length, tokens) for seconds, length, tokens in content["chunks"])
    before, counted = content["usage"]
    reply = Reply(
        content["text"],
        (),
        chunks,
        content["seconds"],
        before,
        counted,
        content["finish_reason"],
        content["attempts"],
        content["body"],
    )
    return Sent(content["prompt"], *times, reply, late_s=content["late_s"])
