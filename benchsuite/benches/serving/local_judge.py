"""A model of this machine as the judge of servers: the same weights in transformers read what the servers wrote."""

from __future__ import annotations

from typing import Any

import torch

from benchsuite.benches.serving.asked import LIST
from specdec import catalog
from specdec.characters import decoded
from specdec.errors import RAISED, SpecdecError
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.replies import Reply, Token

LONG = 1000
"""Likeliest tokens of a list under which sampled ones are judged: a nucleus of 0.95 is seen where it ends within it."""


class LocalJudge:
    """Reads outputs with a model that is loaded by name, in float32 on the CPU, as a plain server would with ``echo``.

    Raises SpecdecError for a name that cannot be loaded.

    Example: ``LocalJudge("smollm2-135m").read(ask, reply)``
    """

    def __init__(self, name: str) -> None:
        loaded = catalog.load(name, torch.device("cpu"), torch.float32)
        self.name, self._model, self._tokenizer = name, loaded.model, loaded.tokenizer

    def read(self, ask: Ask, reply: Reply) -> tuple[Token, ...] | None:
        """Return an output's tokens with the model's own likeliest at their places.

        None where the output is not known token by token: the numbers of its tokens are the server's or, without any,
        those of its text, if that text is as many tokens as the server counted and they make the same text again.
        Raises SpecdecError, with the judge's name, for whatever its model or tokenizer raises.
        """
        try:
            before, output = self._prompt(ask), self._output(reply)
            most = LONG if ask.temperature else LIST
            return None if output is None or not output else self._lists(before, output, most)
        except RAISED as error:
            raise SpecdecError(
                f"--specdec-certify-by {self.name} cannot read {reply.text[:60]!r}: {type(error).__name__}: {error}; "
                "name the model that the servers have"
            ) from error

    def _prompt(self, ask: Ask) -> list[int]:
        if not isinstance(ask.prompt, str):
            return list(ask.prompt)
        if ask.chat:
            return catalog.chat_ids(self._tokenizer, ask.prompt)
        return list(self._tokenizer(ask.prompt)["input_ids"])

    def _output(self, reply: Reply) -> list[int] | None:
        named = [token.id for token in reply.tokens]
        if named and None not in named:
            return [number for number in named if number is not None]
        ids: list[int] = self._tokenizer(reply.text, add_special_tokens=False)["input_ids"]
        # A server that ended by itself may count the end token, which has no text.
        more = (0, 1) if reply.finish_reason == "stop" else (0,)
        fits = reply.counted is not None and reply.counted - len(ids) in more
        return ids if fits and decoded(self._tokenizer, ids) == reply.text else None

    @torch.inference_mode()
    def _lists(self, before: list[int], output: list[int], most: int) -> tuple[Token, ...]:
        model: Any = self._model
        logits = model(torch.tensor([[*before, *output]]), use_cache=False).logits[0, len(before) - 1 : -1]
        chances = logits.float().log_softmax(1)
        found = []
        for place, token in enumerate(output):
            top = chances[place].topk(min(most, chances.shape[1]))
            own, *names = self._names([token, *top.indices.tolist()])
            ranked = tuple(zip(names, top.values.tolist(), strict=True))
            found.append(Token(own, token, float(chances[place, token]), ranked))
        return tuple(found)

    def _names(self, tokens: list[int]) -> list[str]:
        """The tokens' own names; a vocabulary may be padded by numbers that the tokenizer lacks."""
        names: list[str | None] = self._tokenizer.convert_ids_to_tokens(tokens)
        return [f"<{token}>" if name is None else name for token, name in zip(tokens, names, strict=True)]
