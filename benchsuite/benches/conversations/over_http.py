"""Conversations asked of one server over HTTP: each turn behind the server's own answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

from benchsuite.benches.conversations.progress import AnsweredTurn, ConversationProgress, with_nonce
from benchsuite.benches.serving.load import send_one
from benchsuite.benches.serving.self_reported import counts_now
from benchsuite.measure.conversations.filler import nonce_text
from benchsuite.measure.conversations.form import ChatMessage, Conversation, ConversationTurn
from specdec import DraftCounts, SpecdecError
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.server_metrics import Speculation, between, read_body

TEXT_ANSWER = "none"
"""The ``tool_choice`` of requests with tools: a replayed answer is a text, of as many tokens as the trace has."""


def turn_ask(ask: Ask, turn: ConversationTurn, messages: Sequence[ChatMessage]) -> Ask:
    """Return the request of one turn, with all that was said: as a chat, or, for completions, as texts on lines.

    Raises SpecdecError for completions of messages that are no texts. ``ask`` is every request but what it says.
    """
    most = min(turn.max_tokens or ask.max_tokens, ask.max_tokens)
    if ask.chat:
        tools: Mapping[str, Any] = {"tools": list(turn.tools), "tool_choice": TEXT_ANSWER} if turn.tools else {}
        return replace(ask, messages=tuple(messages), max_tokens=most, extra={**ask.extra, **tools})
    if turn.tools or any(one["role"] == "tool" or "tool_calls" in one for one in messages):
        raise SpecdecError(
            "a conversation has tools, which a completion cannot have; ask for chats: --specdec-endpoint-api chat"
        )
    return replace(ask, prompt="\n".join(one["content"] for one in messages), max_tokens=most)


async def replay_over_http(
    client: Client, waiting: Sequence[ConversationProgress], ask: Ask, at_once: int | None, turns: list[AnsweredTurn]
) -> DraftCounts | None:
    """Ask a server for all turns of conversations: so many conversations at once, or each when it is due.

    In place: ``turns``, in the order of their ends. Returns what the server counts of its speculation in all of them.
    Of one conversation at a time what it counts for each answer is read behind it: from the answer, else from its page.
    """
    first = page = await counts_now(client)
    start = time.perf_counter()

    async def walk(progress: ConversationProgress) -> None:
        nonlocal page
        while (turn := progress.turn) is not None:
            due, asked = progress.due_s, turn_ask(ask, turn, progress.messages)
            await asyncio.sleep(max(0.0, due - (time.perf_counter() - start)))
            sent = await send_one(client, asked, progress.place, due if at_once is None else inf, start)
            counts = body_counts(sent.reply.body) if sent.reply else None
            if at_once == 1 and page:
                before, page = page, await counts_now(client)
                counts = counts or page_counts(before, page)
            turns.append(AnsweredTurn(progress.number, sent, counts))
            progress.answered(sent)

    queue = iter(waiting)

    async def worker() -> None:
        for progress in queue:
            await walk(progress)

    await asyncio.gather(*(worker() for _ in range(min(at_once or len(waiting), len(waiting)))))
    answered = [one.counts for one in turns if one.sent.reply]
    return DraftCounts.total(answered) or page_counts(first, await counts_now(client) if first else None)


def body_counts(body: Mapping[str, Any]) -> DraftCounts | None:
    """Return what an answer counts of its own speculation; None if it does not count steps, or speaks nonsense."""
    try:
        said = read_body(body)
        return said.counts if said and said.drafts else None
    except SpecdecError:
        return None


def page_counts(before: Speculation | None, after: Speculation | None) -> DraftCounts | None:
    """Return what a page counted between two readings; None without them, and where nothing was proposed."""
    if before is None or after is None:
        return None
    try:
        found = between(before, after)
        return found.counts if found.drafts else None
    except SpecdecError:  # the server was started anew
        return None


async def common_tokens(
    client: Client, ask: Ask, conversations: Sequence[Conversation], dice: Random
) -> tuple[int | None, str]:
    """Return how many tokens a request has that is nothing but a nonce, at most: no two requests share more.

    Asks for one token of two nonces, with each set of tools that conversations have. Also returns a line: that both
    have as many tokens, or that they do not, or that the server does not count prompts.
    """
    sets = {json.dumps(turn.tools): turn for one in conversations for turn in one.turns}
    found = list[int | None]()
    for turn in sets.values():
        for _ in range(2):
            said = with_nonce([{"role": "user", "content": ""}], nonce_text(dice))
            reply = await client.complete(replace(turn_ask(ask, turn, said), max_tokens=1))
            found.append(reply.prompt_tokens)
    name = client.endpoint.name
    known = [count for count in found if count is not None]
    if len(known) < len(found):
        return None, f"{name} does not count the tokens of prompts: whether a cold prefix was cold is not known"
    if any(one != other for one, other in zip(found[::2], found[1::2], strict=True)):
        return max(known), f"{name}: two nonces have other numbers of tokens ({', '.join(map(str, known))})"
    return max(known), f"{name}: a request of a nonce alone has {max(known)} tokens, whichever nonce it is"
