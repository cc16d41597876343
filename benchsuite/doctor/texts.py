"""The target's own texts with its states, and what a draft proposes at each of their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec.assembly import Assembly
from specdec.engine import Engine
from specdec.interfaces import Draft
from specdec.ledger import stacked
from specdec.messages import Context, Verdict, Window
from specdec.model import PREFILL_CHUNK, ArenaModel
from specdec.request import Request
from specdec.taps import Taps

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OwnText:
    """A request, the target's greedy answer to it, and the target's states of all its tokens but the last.

    ``states`` is [1, N, n, H], or [1, N, H] where no layer is tapped; None where nothing is asked for.
    """

    request: Request
    answer: tuple[int, ...]
    states: Tensor | None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return (*self.request.prompt, *self.answer)

    def following(self, k: int) -> Tokens:
        """int64 [answer, K]: the tokens that follow each place of the answer, -1 past its end."""
        padded = np.array([*self.answer, *[-1] * k], dtype=np.int64)
        return np.lib.stride_tricks.sliding_window_view(padded, k)[: len(self.answer)]


class Listener(Draft):
    """Proposes nothing, and keeps the target's states that it is told, in ``heard`` by the request's id."""

    def __init__(self, taps: Taps) -> None:
        self.needs_hidden, self.hidden_layers = taps.final, taps.layers
        self.heard: dict[int, list[Tensor]] = {}
        self._request: dict[int, int] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Know whose states the row's are."""
        self._request[row] = request.id
        self.heard.setdefault(request.id, [])

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Keep the states of a prompt's chunk."""
        self.heard[self._request[row]].append(hidden.clone())

    def propose(self, context: Context) -> Window:
        """Nothing."""
        return Window.root(context)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """Keep the state of each row's token."""
        if hidden is not None:
            for row, states in enumerate(hidden):
                self.heard[self._request[row]].append(states[None].clone())


def own_texts(assembly: Assembly, requests: Sequence[Request], rows: int, taps: Taps) -> list[OwnText]:
    """The target's answers to greedy ``requests``, ``rows`` at a time, and the states that ``taps`` asks for."""
    listener, plain = Listener(taps), assembly.engine(None, k=0, max_rows=rows)
    engine = Engine(
        assembly.target,
        draft=listener,
        policy=plain.policy,
        controller=plain.controller,
        ops=plain.ops,
        max_rows=rows,
        max_length=assembly.max_length,
    )
    done = engine.run(requests)
    heard = [listener.heard[request.id] for request in requests]
    states = [torch.cat(seen, dim=1) if seen else None for seen in heard]
    return [OwnText(request, one.tokens, seen) for request, one, seen in zip(requests, done, states, strict=True)]


@torch.inference_mode()
def proposed(draft: Draft, target: ArenaModel, texts: Sequence[OwnText], taps: Taps, k: int) -> list[Tokens]:
    """``k`` proposals of ``draft`` at every place of each answer, int64 [answer, K]; -1 where it proposed fewer.

    ``taps`` are those of the texts' states. The draft is told what an engine tells it whose target refuses every
    proposal, so that it proposes once for each place, and it sees no token before that is emitted.
    """
    batch = _Batch(draft, target, texts, taps, k)
    for row in range(len(texts)):
        batch.admit(row)
    found = [np.full((len(text.answer), k), -1, dtype=np.int64) for text in texts]
    for step in range(max(len(text.answer) for text in texts)):
        window = draft.propose(batch.context())
        tokens, width = window.tokens[:, 1 : k + 1].cpu().numpy(), window.width.cpu().numpy()
        for row, mine in enumerate(found):
            if step < len(mine):
                made = min(int(width[row]) - 1, k)
                mine[step, :made] = tokens[row, :made]
        batch.refuse(window, step)
    for row in reversed(range(len(texts))):
        draft.release(row, texts[row].tokens)
    draft.forget()
    return found


class _Batch:
    """The rows of texts as an engine shows them to a draft, with one more token in each step."""

    def __init__(self, draft: Draft, target: ArenaModel, texts: Sequence[OwnText], taps: Taps, k: int) -> None:
        self._draft, self._texts, self._k, self._ops = draft, texts, k, target.ops
        asked = Taps.of([draft])
        self._states = [None if text.states is None else taps.part(text.states, asked) for text in texts]
        requests = [text.request for text in texts]
        self._request = torch.tensor([request.id for request in requests], device=target.device)
        # A row whose text has ended goes on as long as the others do.
        room = max(len(request.prompt) for request in requests) + max(len(text.answer) for text in texts) + k + 1
        self._history = np.zeros((len(texts), room), dtype=np.int64)
        self._length = np.array([len(request.prompt) for request in requests], dtype=np.int64)
        self._params = stacked(requests, target.vocabulary, target.device)

    def admit(self, row: int) -> None:
        """Begin a text: its prompt, and the states of all its tokens but the last."""
        request, states = self._texts[row].request, self._states[row]
        self._history[row, : len(request.prompt)] = request.prompt
        self._draft.admit(row, request, request.prompt)
        if states is None:
            return
        known = torch.tensor([request.prompt[:-1]], device=self._request.device)
        for start in range(0, known.shape[1], PREFILL_CHUNK):
            chunk = slice(start, min(start + PREFILL_CHUNK, known.shape[1]))
            self._draft.prefilled(row, known[:, chunk], start, states[:, chunk])

    def context(self) -> Context:
        """The step's context; each row has room for all proposals."""
        tokens, length = torch.from_numpy(self._history), torch.from_numpy(self._length)
        room = np.full_like(self._length, self._k)
        device = self._request.device
        return Context(
            request=self._request,
            tokens=tokens.to(device, copy=True),
            history=self._history,
            length=length.to(device, copy=True),
            length_host=self._length,
            max_proposals=torch.from_numpy(room).to(device),
            max_proposals_host=room,
            params=self._params,
            ops=self._ops,
            coupled=True,
        )

    def refuse(self, window: Window, step: int) -> None:
        """Tell the draft that nothing was accepted, and the next token; a text that has ended repeats its last."""
        device, states = self._request.device, list[Tensor]()
        for row, (text, seen) in enumerate(zip(self._texts, self._states, strict=True)):
            place = min(step, len(text.answer) - 1)
            if seen is not None:
                states.append(seen[0, len(text.request.prompt) - 1 + place])
            self._history[row, self._length[row]] = text.answer[place]
        root = torch.zeros(len(self._texts), 1, dtype=torch.int64, device=device)
        following = torch.from_numpy(self._history[np.arange(len(self._length)), self._length]).to(device)
        self._length = self._length + 1
        hidden = torch.stack(states)[:, None] if states else None
        if hidden is not None:
            hidden = hidden.expand(-1, window.tokens.shape[1], *hidden.shape[2:])
        self._draft.observe(window, Verdict(root, root[:, 0], following), hidden, own=True)
