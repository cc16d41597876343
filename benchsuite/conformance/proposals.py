"""Records of a draft's run: every window that it proposed, with the text that it was proposed for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from specdec import Context, Engine, Request, Window


@dataclass(frozen=True)
class Proposal:
    """One row of one window: the request, its text so far, its room, the K asked for, and the proposals.

    ``tokens`` and ``parents`` are those of the proposals (slot 1 on, parents as slots); ``q`` float [K, V] or None, and
    ``confidence`` the draft's own in each of them, or None.
    """

    request: Request
    text: tuple[int, ...]
    room: int
    asked: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    q: Tensor | None
    confidence: tuple[float, ...] | None = None

    def __str__(self) -> str:
        chain = self.parents == tuple(range(len(self.parents)))
        shape = "" if chain else f" with parents {list(self.parents)}"
        return f"after {_end(self.text)} it proposed {list(self.tokens)}{shape}"


def _end(text: tuple[int, ...]) -> str:
    return f"[… {', '.join(map(str, text[-8:]))}] ({len(text)} tokens)" if len(text) > 8 else str(list(text))


def proposals(
    engine: Engine,
    requests: Sequence[Request],
    ks: Callable[[int], int] | None = None,
    see: Callable[[Proposal], None] = lambda seen: None,
    most: int | None = None,
) -> list[Proposal]:
    """Run requests; return a record of every row of every window that has proposals, or a width below 1.

    ``ks`` maps a step, from 0, to its K; ``see`` receives each record before the target sees the window. After ``most``
    steps the requests are cancelled; None: they run to their ends.
    """
    assert engine.draft
    found: list[Proposal] = []
    by_id = {request.id: request for request in requests}
    step = asked = 0
    propose = engine.draft.propose

    def recorded(context: Context) -> Window:
        window = propose(context)
        for row, identity in enumerate(context.request.tolist()):
            proposed = int(window.width[row]) - 1
            if proposed:
                text = context.history[row, : context.length_host[row]].tolist()
                made = max(proposed, 0)  # a width below 1 is a fault, which has no proposals
                q = None if window.q is None else window.q[row, :made].clone()
                tokens, parents = (part[row, 1 : made + 1].tolist() for part in (window.tokens, window.parents))
                room = int(context.max_proposals_host[row])
                told, all_sure = (tuple(text), room, asked, tuple(tokens), tuple(parents), q), window.confidence
                sure = None if all_sure is None else tuple(all_sure[row, 1 : made + 1].tolist())
                found.append(Proposal(by_id[identity], *told, confidence=sure))
                see(found[-1])
        return window

    def scripted(stats: object) -> int:
        nonlocal step, asked
        step += 1
        asked = min(ks(step - 1), engine.controller.max_k) if ks else engine.controller.max_k
        return asked

    next_k = engine.controller.next_k
    object.__setattr__(engine.draft, "propose", recorded)
    object.__setattr__(engine.controller, "next_k", scripted)
    try:
        if most is None:
            engine.run(requests)
        else:
            engine.run([])
            engine.submit(requests)
            for _ in range(most):
                engine.step()
            engine.cancel([*by_id])
    finally:
        object.__setattr__(engine.draft, "propose", propose)
        object.__setattr__(engine.controller, "next_k", next_k)
    return found


def proposed_from_scratch(engine: Engine, seen: Proposal) -> Proposal | None:
    """Return what the draft proposes for a record's text as a prompt, alone in an engine, with the same room."""
    if engine.draft:
        engine.draft.forget()
    params = replace(seen.request.params, max_new_tokens=seen.room + 1)
    first = proposals(engine, [replace(seen.request, prompt=seen.text, params=params)], most=1)
    return first[0] if first else None
