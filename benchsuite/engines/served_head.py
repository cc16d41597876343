"""A draft head in an engine's server and in our engine: the same prompts, greedily, compared step by step."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Literal

import torch

from benchsuite.benches.serving.restarts import ServersInTurn
from benchsuite.benches.serving.self_reported import SelfReported, page_now, self_reported_of
from benchsuite.doctor.readings import draft_text
from benchsuite.engines.launches import WantedServer, own_cores, server_command
from benchsuite.judge.agreement import Agreement
from benchsuite.judge.ties import Judge
from benchsuite.measure.interval import estimate
from benchsuite.measure.workloads import load_workload
from specdec import catalog
from specdec.assembly import Assembly
from specdec.draft_counts import DraftCounts
from specdec.engine import Engine
from specdec.errors import SpecdecError
from specdec.model import ArenaModel
from specdec.registry import Registry
from specdec.request import Request, SamplingParams
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply
from specdec_plugins.endpoints.server_metrics import read_body

ENGINE = "vllm"
"""The engine whose server reads heads in the form of speculators and counts each step of an answer."""

METHOD = "eagle3"
"""The form of heads that is compared: the name of our draft and of the server's method."""

PREFILLED = 1
"""Tokens of an answer that the server's forward of the prompt yields, before its first step."""

PATIENCE_S = 900.0
"""Seconds in which the server must answer a request."""

Side = Literal["served", "ours"]

SIDES: tuple[Side, Side] = ("served", "ours")


@dataclass(frozen=True)
class ServedHeadPlan:
    """What is compared: ``prompts`` of each kind of text, ``max_new_tokens`` each, with K proposals a step.

    ``head``: a folder in the form of speculators; ``target``: a name that both ``--specdec-target`` and
    ``engines serve`` take; ``port``: the server's.
    """

    head: str
    target: str
    workloads: tuple[str, ...]
    prompts: int
    max_new_tokens: int
    k: int
    port: int

    def command(self, environment: Path) -> str:
        """The command that starts the server from the engine's environment."""
        wanted = WantedServer(self.target, self.port, METHOD, self.k, self.head, own_cores(), rows=1)
        return server_command(ENGINE, environment, wanted)


@dataclass(frozen=True)
class SpeculatedText:
    """A greedy answer, and for each of its steps the numbers of proposals and of accepted proposals.

    ``first``: how many tokens come before the first step; each step yields its accepted proposals and one token more.

    Example: ``SpeculatedText((5, 6, 7, 8), ((3, 2),), first=1)``
    """

    tokens: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    first: int

    def full_steps(self, length: int, k: int) -> dict[int, tuple[int, int]]:
        """Return the steps that have room for K + 1 tokens among the first ``length``, by the place of their first
        token.

        Near the end of an answer some engines propose less, and others count proposals that they then cut off.
        """
        found, place = {}, self.first
        for step in self.steps:
            if place + k + 1 <= length:
                found[place] = step
            place += step[1] + 1
        return found


@dataclass(frozen=True)
class PromptSteps:
    """The answers of the server and of our engine to one prompt.

    ``gap``: the distance between the target's logits of the first two tokens that differ; None if none differ, or if
    one answer is the beginning of the other.
    """

    workload: str
    served: SpeculatedText
    ours: SpeculatedText
    gap: float | None = None

    @property
    def agreement(self) -> Agreement:
        """How far the server's answer equals ours."""
        return Agreement.of(self.ours.tokens, self.served.tokens)

    def steps(self, side: Side, k: int) -> dict[int, tuple[int, int]]:
        """The full steps of one side by their places, from the first place at which both sides begin a step to the
        first difference; empty if there is no such place.

        Engines may begin differently: ours proposes behind the prompt, vLLM behind the first token of the answer.
        """
        length = self.agreement.prefix
        both = {"served": self.served.full_steps(length, k), "ours": self.ours.full_steps(length, k)}
        begin = min(both["served"].keys() & both["ours"].keys(), default=len(self.ours.tokens))
        return {place: step for place, step in both[side].items() if place >= begin}

    def difference(self, k: int) -> float | None:
        """The server's mean acceptance length minus ours, over full steps; None if one side has none."""
        served, ours = (DraftCounts.of_steps(self.steps(side, k).values()).mean_acceptance_length for side in SIDES)
        return None if served is None or ours is None else served - ours


@dataclass(frozen=True)
class ServedHead:
    """A head of ``target`` on ``prompts``, with K proposals a step.

    ``reported``: the server's own counts; ``bound``: a first difference whose ``gap`` is at most this is a tie.
    """

    head: str
    target: str
    k: int
    prompts: tuple[PromptSteps, ...]
    reported: SelfReported
    bound: float

    @property
    def agreement(self) -> Agreement:
        """How far the server's answers equal ours."""
        return sum((one.agreement for one in self.prompts), Agreement())

    @property
    def ties(self) -> int:
        """The number of answers whose first difference is a tie."""
        return sum(one.gap is not None and one.gap <= self.bound for one in self.prompts)

    @property
    def same_steps(self) -> int:
        """The number of full steps that begin at the same place on both sides and accept equally many proposals."""
        return sum(
            step == one.steps("ours", self.k).get(place)
            for one in self.prompts
            for place, step in one.steps("served", self.k).items()
        )

    def of(self, workload: str | None) -> list[PromptSteps]:
        """The prompts of one kind of text; all for None."""
        return [one for one in self.prompts if workload in (None, one.workload)]

    def counts(self, side: Side, workload: str | None = None) -> DraftCounts:
        """The counts of one side's full steps, on one kind of text or on all."""
        return DraftCounts.of_steps(step for one in self.of(workload) for step in one.steps(side, self.k).values())

    def differences(self, workload: str | None = None) -> dict[str, list[float]]:
        """The difference of mean acceptance lengths of each prompt, by kind of text."""
        found = defaultdict[str, list[float]](list)
        for one in self.of(workload):
            if (difference := one.difference(self.k)) is not None:
                found[one.workload].append(difference)
        return dict(found)


def mean_difference(differences: Mapping[str, Sequence[float]]) -> tuple[float, tuple[float, float] | None]:
    """Return the mean over kinds of text of their mean differences, and its 95 % interval over prompts, as for the logs
    of speedups (``measure.interval``); no interval for few prompts. ValueError if there are no differences.

    Example: ``mean_difference({"chat": [0.0, 0.2, 0.4], "code": [0.5, 0.6, 0.7]})`` is 0.4, from 0.21 to 0.59.
    """
    found = estimate(differences)
    interval = None if found.low is None or found.high is None else (log(found.low), log(found.high))
    return log(found.ratio), interval


def speculated_text(reply: Reply, k: int) -> SpeculatedText:
    """Return a server's answer with its steps. SpecdecError if tokens have no ids, or if the steps yield another number
    of tokens."""
    tokens = [token.id for token in reply.tokens if token.id is not None]
    said = read_body(reply.body)
    if not tokens or len(tokens) != len(reply.tokens) or said is None or not said.accepted_by_step:
        raise SpecdecError(
            f"the server's answer {reply.text[:60]!r} has {len(tokens)} token ids and "
            f"{len(said.accepted_by_step) if said else 0} steps; expected an id for each of {len(reply.tokens)} tokens "
            "and the counts of each step, which vLLM gives with --per-request-spec-decode-metrics detailed"
        )
    steps = tuple(zip(said.proposed_by_step, said.accepted_by_step, strict=True))
    made = PREFILLED + sum(accepted + 1 for _, accepted in steps)
    if not len(tokens) <= made <= len(tokens) + k:
        raise SpecdecError(
            f"the server's steps yield {made} tokens for an answer of {len(tokens)}; expected at least {len(tokens)} "
            f"and at most {k} more: it does not list steps without a proposal, so the places of the others are unknown"
        )
    return SpeculatedText(tuple(tokens), steps, PREFILLED)


async def served_texts(
    servers: ServersInTurn, endpoint: Endpoint, requests: Sequence[Request], k: int
) -> tuple[list[SpeculatedText], SelfReported]:
    """Ask a server for the answers to greedy requests, one at a time, none of which may use its cache of prompts.

    Raises EndpointFailure for a request without an answer, and SpecdecError as ``speculated_text`` does.
    """
    before = await page_now(servers.connect(endpoint))
    async with servers.connect(endpoint) as client:
        replies = [
            await client.complete(
                Ask(
                    request.prompt,
                    request.params.max_new_tokens,
                    stream=False,
                    logprobs=1,
                    extra={"cache_salt": uuid.uuid4().hex},
                )
            )
            for request in requests
        ]
    after = await page_now(servers.connect(endpoint))
    return [speculated_text(reply, k) for reply in replies], self_reported_of(before, after, replies)


def our_texts(engine: Engine, requests: Iterable[Request]) -> list[SpeculatedText]:
    """Decode requests one at a time in our engine."""
    found = []
    for request in requests:
        [done] = engine.run([request])
        steps = [step.each[0] for step in engine.stats.steps]
        first = len(done.tokens) - sum(one.emitted for one in steps)
        found.append(SpeculatedText(done.tokens, tuple((one.proposed, one.accepted) for one in steps), first))
    return found


def compare_served_head(plan: ServedHeadPlan, servers: ServersInTurn) -> ServedHead:
    """Ask the server ``ENGINE`` at the plan's port, which ``servers`` may start; then decode the same prompts here, in
    float32 on the CPU.

    Raises SpecdecError for a head or a target that cannot be read, and for a server that does not start or answer.
    """
    loaded, registry = catalog.load(plan.target, torch.device("cpu"), torch.float32), Registry()
    model = ArenaModel(loaded.model, registry.backend("auto"))
    prompts = [
        (workload.label, prompt)
        for workload in map(load_workload, plan.workloads)
        for prompt in workload.first(plan.prompts).encode(loaded.tokenizer)
    ]
    params = SamplingParams(max_new_tokens=plan.max_new_tokens, eos=catalog.end_tokens(loaded.model))
    requests = [Request(place, prompt, params) for place, (_, prompt) in enumerate(prompts)]
    room = max(len(prompt) for _, prompt in prompts) + plan.max_new_tokens + plan.k + 1
    assembly = Assembly(registry, model, loaded.tokenizer, max_rows=1, max_length=room)
    # Built first: a head that cannot be read is refused before a server starts.
    engine = assembly.engine(draft_text(METHOD, {"head": plan.head}), k=plan.k)
    endpoint = Endpoint(ENGINE, f"http://127.0.0.1:{plan.port}", read_s=PATIENCE_S, total_s=PATIENCE_S)
    servers.connect(endpoint)  # starts the server, which nothing can inside of an event loop
    served, reported = asyncio.run(served_texts(servers, endpoint, requests, plan.k))
    judge = Judge(model, prompts[0][1])
    found = []
    for (kind, prompt), theirs, mine in zip(prompts, served, our_texts(engine, requests), strict=True):
        found.append(PromptSteps(kind, theirs, mine, first_gap(judge, prompt, theirs.tokens, mine.tokens)))
    return ServedHead(plan.head, plan.target, plan.k, tuple(found), reported, 2 * judge.bound)


def first_gap(judge: Judge, prompt: Sequence[int], one: tuple[int, ...], other: tuple[int, ...]) -> float | None:
    """Return the distance between the unmodified model's logits of the first two tokens that differ; None if none do,
    or if one answer is the beginning of the other."""
    place = Agreement.of(one, other).prefix
    if place == min(len(one), len(other)):
        return None
    logits = judge.logits((*prompt, *one[:place]))
    return abs(float(logits[one[place]] - logits[other[place]]))
