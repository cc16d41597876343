"""Conversations over the engine's own queue: each turn behind the engine's own answer, with or without its prefix."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from typing import Any

from benchsuite.benches.conversations.progress import AnsweredTurn, ConversationProgress, Prefix, with_nonce
from benchsuite.benches.load.served_queue import TOKEN_IDS
from benchsuite.benches.serving.load import Sent
from benchsuite.measure.conversations.form import ChatMessage, ConversationTurn
from specdec import DraftCounts, Request, SpecdecError, catalog
from specdec.characters import decoded
from specdec.engine import Engine
from specdec.queue import Completion
from specdec.request import SamplingParams
from specdec_plugins.endpoints.replies import Chunk, Reply


class ChatRendering:
    """Token ids of messages in a tokenizer's chat template, or, without one, of their texts on lines.

    ``said`` has a line for what a template does not show: calls of tools then stand as text in the assistant's message,
    definitions as text of the system. Raises SpecdecError for what the template refuses.

    Example: ``ChatRendering(tokenizer).ids([{"role": "user", "content": "Hello"}])``
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.said = tokenizer, list[str]()

    def ids(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """The token ids up to where the next answer begins."""
        told = [dict(one) for one in messages]
        if not self.tokenizer.chat_template:
            return tuple(self.tokenizer.encode("\n".join(one["content"] or "" for one in self._as_text(told, tools))))
        calls = any("tool_calls" in one for one in told)
        bare = [{name: value for name, value in one.items() if name != "tool_calls"} for one in told]
        if calls and self._text(told) == self._text(bare):
            told = self._as_text(told, ())
        if tools and self._text(told, tools) == self._text(told):
            told, tools = self._as_text(told, tools), ()
        return tuple(self.tokenizer.encode(self._text(told, tools), add_special_tokens=False))

    def _text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        filled = [{**one, "content": one.get("content") or ""} for one in messages]
        return catalog.chat_text(self.tokenizer, filled, tools=[*tools] or None)

    def _as_text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Messages that say in their texts what the template does not show."""
        found = []
        for one in messages:
            calls = "".join(
                f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in one.get("tool_calls", ())
            )
            kept = {name: value for name, value in one.items() if name != "tool_calls"}
            found.append({**kept, "content": (one.get("content") or "") + calls})
            self._note(bool(calls), "calls of tools", "as text in the assistant's messages")
        if tools:
            shown = "Tools: " + json.dumps([*tools])
            self._note(True, "definitions of tools", "as text of the system")
            if found and found[0]["role"] == "system":
                found[0]["content"] += "\n" + shown
            else:
                found.insert(0, {"role": "system", "content": shown})
        return found

    def _note(self, there: bool, what: str, where: str) -> None:
        line = f"the target's chat template does not show {what}: they stand {where}"
        if there and line not in self.said:
            self.said.append(line)


class QueueReplay:
    """One arm's engine, which answers conversations; it runs on from block to block.

    With a cold prefix a request reads its whole prompt. Else it continues the request of the turn before, with the keys
    and values of what both texts begin with. Before each block the draft forgets what ended requests taught.

    Example: ``QueueReplay(engine, rendering, params).block(waiting, Prefix.WARM, 1)``
    """

    def __init__(self, engine: Engine, rendering: ChatRendering, params: SamplingParams) -> None:
        self.engine, self.rendering, self.params = engine, rendering, params
        self.numbers = count()
        engine.run([])

    def block(
        self, waiting: Sequence[ConversationProgress], prefix: Prefix, at_once: int | None
    ) -> tuple[list[AnsweredTurn], DraftCounts | None]:
        """Answer all turns of conversations, so many conversations at once or each when it is due, and return them in
        the order of their ends, with what was counted in all of them."""
        engine = self.engine
        if engine.draft:
            engine.draft.forget()
        before, replayed = Counter(engine.stats.counts), _QueueBlock(self, prefix, at_once)
        try:
            replayed.run(deque(waiting))
        finally:
            engine.cancel([*replayed.running])
            engine.drop([*engine.kept])
        return replayed.turns, _counts(before, engine.stats.counts)


@dataclass(frozen=True)
class _Running:
    """A request in the engine: its token ids, those of them whose cells were there, and all counts before it."""

    progress: ConversationProgress
    sent: Sent
    ids: tuple[int, ...]
    cached: int
    counts: Counter[str]


class _QueueBlock:
    """One block on its way: requests in the engine by their ids, and the last request of each conversation."""

    def __init__(self, replay: QueueReplay, prefix: Prefix, at_once: int | None) -> None:
        self.replay, self.prefix, self.at_once = replay, prefix, at_once
        self.turns = list[AnsweredTurn]()
        self.running: dict[int, _Running] = {}
        self._last: dict[int, int] = {}
        self._start = time.perf_counter()

    def run(self, queue: deque[ConversationProgress]) -> None:
        """Walk through all conversations."""
        idle = list[ConversationProgress]()  # begun, or due some time, and not in the engine
        while queue or idle or self.running:
            while queue and (self.at_once is None or len(idle) + len(self.running) < self.at_once):
                idle.append(queue.popleft())
            now = self._now()
            for progress in [one for one in idle if one.due_s <= now]:
                idle.remove(progress)
                self._submit(progress)
            if self.running:
                self.replay.engine.step()
                idle += [one for one in self._ended() if one.turn]
            elif idle:
                time.sleep(max(0.0, min(one.due_s for one in idle) - self._now()))

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _submit(self, progress: ConversationProgress) -> None:
        """Submit the next turn, or record why the engine does not take it."""
        engine, turn, number = self.replay.engine, progress.turn, next(self.replay.numbers)
        assert turn is not None
        ids, before = self.replay.rendering.ids(progress.messages, turn.tools), self._last.pop(progress.place, None)
        kept = None if before is None else engine.kept.get(before)
        most = self.replay.params.max_new_tokens
        params = replace(self.replay.params, max_new_tokens=min(turn.max_tokens or most, most))
        keep = self.prefix is not Prefix.COLD
        request = Request(number, ids, params, keep=keep, continues=before if kept else None)
        now = self._now()
        sent = Sent(progress.place, now, now, None, late_s=0.0 if self.at_once else max(0.0, now - progress.due_s))
        try:
            engine.refuse_unfit(request)
        except SpecdecError as error:
            sent = replace(sent, failure="refused_request", said=str(error))
            self.turns.append(AnsweredTurn(progress.number, sent, prompt=ids))
            progress.answered(sent)
            return
        cached = kept.usable(ids, needs_hidden=bool(engine.queue.taps)) if kept else 0
        self.running[number] = _Running(progress, sent, ids, cached, Counter(engine.stats.counts))
        engine.submit([request])

    def _ended(self) -> list[ConversationProgress]:
        """Record the requests that have ended, and return their conversations."""
        finished, found = self.replay.engine.finished, list[ConversationProgress]()
        for number in [number for number in self.running if number in finished]:
            one = self.running.pop(number)
            answer = self._answered(one, finished.pop(number))
            self.turns.append(answer)
            self._last[one.progress.place] = number
            one.progress.answered(answer.sent)
            found.append(one.progress)
        return found

    def _answered(self, one: _Running, done: Completion) -> AnsweredTurn:
        text = decoded(self.replay.rendering.tokenizer, done.tokens, special=False)
        chunks = tuple(Chunk(at, "", len(list(tokens))) for at, tokens in groupby(done.times))
        ids, sizes = {TOKEN_IDS: list(done.tokens)}, (len(one.ids), len(done.tokens))
        reply = Reply(text, (), chunks, done.times[-1], *sizes, done.finish_reason, 1, ids, one.cached)
        sent = replace(one.sent, ended_s=one.sent.sent_s + reply.seconds, reply=reply)
        counts = _counts(one.counts, self.replay.engine.stats.counts) if self.at_once == 1 else None
        return AnsweredTurn(one.progress.number, sent, counts, one.ids)


def _counts(before: Counter[str], after: Counter[str]) -> DraftCounts | None:
    """What was counted between; None where nothing was proposed."""
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    drafts, proposed, accepted = (after[name] - before[name] for name in names)
    return DraftCounts(drafts, proposed, accepted) if drafts else None


def longest_prompt(rendering: ChatRendering, turns: Sequence[ConversationTurn], nonce: str, answer: int) -> int:
    """Return how many tokens the prompt of a conversation's last request may have, if each answer has ``answer``.

    An answer's text may be more tokens when it is read again: each counts twice, and 16.
    """
    said, longest = list[ChatMessage](), 0
    for place, turn in enumerate(turns):
        said = [*turn.messages] if turn.whole else [*said, *turn.messages]
        answers = 0 if turn.whole else place * (2 * answer + 16)
        longest = max(longest, len(rendering.ids(with_nonce(said, nonce), turn.tools)) + answers)
        said.append({"role": "assistant", "content": ""})
    return longest
