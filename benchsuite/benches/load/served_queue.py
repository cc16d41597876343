"""An engine's own queue under a load: the requests of a block are submitted as they are due, and their times kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil

from benchsuite.benches.load.queue_block import QueueBlock, QueueStep
from benchsuite.benches.serving.load import Sent, Traffic, due_times
from benchsuite.benches.serving.turns import BlockPlan
from specdec.characters import decoded
from specdec.engine import Engine
from specdec.errors import SpecdecError
from specdec.queue import Completion
from specdec.request import Request, SamplingParams
from specdec_plugins.endpoints.replies import Chunk, Reply

TOKEN_IDS = "token_ids"
"""The name in ``Reply.body`` of an output's token ids."""


GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole parts, are spread evenly, however many there are."""


def queued_request(turn: int, place: int, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Request:
    """Return the request for the prompt at a place in a round; its id, which keys its noise, is that of every arm.

    It may emit from half of ``max_new_tokens`` to all of them, by its place. If all were as long, those of plain
    decoding would end in one step, and their followers be read one after the other, which takes a twentieth less time
    than reading them between steps, as those of a draft are.

    Example: ``queued_request(2, 5, prompts, params).id`` is 21 of eight prompts.
    """
    length = ceil(params.max_new_tokens * (1 - place * GOLDEN % 1 / 2))
    return Request(turn * len(prompts) + place, tuple(prompts[place]), replace(params, max_new_tokens=length))


class ServedQueue:
    """One arm's engine as a server of blocks: it runs on from block to block, and so do its controller and its costs.

    ``prompts`` has the token ids of each prompt by its place, each of which is served once in a round. Before each
    block the draft forgets what ended requests taught, since later blocks have the same prompts again; the controller
    does not.

    Example: ``ServedQueue(engine, prompts, params).block(plan, Traffic(concurrency=4))``
    """

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        if engine.tokenizer is None:
            raise SpecdecError("the engine has no tokenizer, and texts are compared: build it with Assembly.engine")
        self.engine, self.prompts, self.params, self.tokenizer = engine, prompts, params, engine.tokenizer
        engine.run([])

    def block(self, plan: BlockPlan, load: Traffic) -> QueueBlock:
        """Serve the prompts of a block to their ends, under a load; requests beyond the engine's rows wait."""
        if self.engine.draft:
            self.engine.draft.forget()
        stats = self.engine.stats
        before, start = len(stats.steps), stats.stopwatch.mark()
        sent = self._served(plan, load)
        steps = tuple(QueueStep.of(step, stats, start) for step in stats.steps[before:])
        return QueueBlock(plan.endpoint, plan.round, tuple(sent), plan.group, steps=steps)

    def _served(self, plan: BlockPlan, load: Traffic) -> list[Sent]:
        """Every request and its reply, in the order of their ends."""
        engine, sent, open_ones = self.engine, list[Sent](), dict[int, Sent]()
        dues = due_times(len(plan.places), load.rate, plan.seed) if load.rate else [0.0] * len(plan.places)
        waiting = deque(zip(plan.places, dues, strict=True))
        start = time.perf_counter()
        while waiting or open_ones:
            while waiting and self._is_due(waiting[0][1], time.perf_counter() - start, len(open_ones), load):
                place, due = waiting.popleft()
                now = time.perf_counter() - start
                request = queued_request(plan.round, place, self.prompts, self.params)
                open_ones[request.id] = Sent(place, now, now, None, late_s=now - due if load.rate else 0.0)
                engine.submit([request])
            if not open_ones:
                time.sleep(max(0.0, waiting[0][1] - (time.perf_counter() - start)))
                continue
            engine.step()
            for number in [number for number in open_ones if number in engine.finished]:
                begun, done = open_ones.pop(number), engine.finished.pop(number)
                reply = self._reply(done)
                sent.append(Sent(begun.prompt, begun.sent_s, begun.sent_s + reply.seconds, reply, late_s=begun.late_s))
        return sent

    @staticmethod
    def _is_due(due: float, now: float, running: int, load: Traffic) -> bool:
        return running < load.concurrency if load.concurrency else due <= now

    def _reply(self, done: Completion) -> Reply:
        """A completion as a server's reply: a piece for each emission, which says its tokens and not its text."""
        text = decoded(self.tokenizer, done.tokens, special=False)
        chunks = tuple(Chunk(at, "", len(list(tokens))) for at, tokens in groupby(done.times))
        said = {TOKEN_IDS: list(done.tokens)}
        sizes = len(done.request.prompt), len(done.tokens)
        return Reply(text, (), chunks, done.times[-1], *sizes, done.finish_reason, 1, said)
