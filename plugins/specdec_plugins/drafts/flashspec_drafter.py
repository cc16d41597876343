"""flashspec_drafter: a drafter that was written for FlashSpec proposes here."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any

import torch
from torch import Tensor

from specdec import Context, Draft, Request, SpecdecError, Window, hookimpl
from specdec.errors import unknown
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.guests import count_of, guest_module, window_of_tensors

GROUP = "flashspec.drafters"


class FlashspecDrafter(Draft):
    """Runs a drafter of FlashSpec: one of the entry-point group ``flashspec.drafters``, a registered one, or a class.

    A drafter with ``propose`` looks up; its proposals are certain. Any other is asked by ``generate_draft``, one row at
    a time. If it has ``set_temperature``, it gets each request's (0 under a policy that compares with the target's
    draw), and q are its distributions; if not, nobody knows from what it drew, and its proposals count as certain. It
    knows neither top-k nor top-p. The weights of its model are not counted.

    Source: Mattral/FlashSpec, flashspec/engine/drafter.py, hf_drafter.py and ngram.py.

    Example: ``flashspec_drafter('flashspec.engine:NgramDrafter', settings='{"max_ngram": 4}')``
    """

    def __init__(
        self,
        env: Env,
        drafter: Annotated[str, "its name, or its class as package.module:Class"] = "flashspec.engine:NgramDrafter",
        settings: Annotated[str, "JSON: arguments of its constructor; device, dtype and temperature are known"] = "{}",
    ) -> None:
        made, own = _drafter_named(drafter), json.loads(settings)
        known = {"device": env.target.device, "dtype": env.target.dtype, "temperature": 1.0}
        takes = inspect.signature(made).parameters
        self._drafter: Any = made(**{name: value for name, value in known.items() if name in takes} | own)
        self._looks = callable(getattr(self._drafter, "propose", None))
        self._tempered = callable(getattr(self._drafter, "set_temperature", None))
        asked = None if self._looks else inspect.signature(self._drafter.generate_draft).parameters
        self._keyed = asked is not None and "generator" in asked
        self._seed, self._vocabulary, self._drafter_name = env.seed, env.target.vocabulary, drafter
        self._requests: dict[int, Request] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Whose temperature and seed the row has."""
        self._requests[row] = request

    def propose(self, context: Context) -> Window:
        """Each row's proposals, and their distributions if any row has one."""
        found = [self._drafted(context, row) for row in range(context.rows)]
        q = [drawn for _, _, drawn in found]
        if all(drawn is None for drawn in q):
            return window_of_tensors(context, [ids for ids, _, _ in found], [count for _, count, _ in found])
        sure = [torch.nn.functional.one_hot(ids, self._vocabulary).float() for ids, _, _ in found]
        drawn = [one if own is None else own for one, own in zip(sure, q, strict=True)]
        return window_of_tensors(context, [ids for ids, _, _ in found], [count for _, count, _ in found], drawn)

    def _drafted(self, context: Context, row: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """A row's proposals [n], how many are real [], and the distributions [n, V] that they were drawn from."""
        length, room = int(context.length_host[row]), int(context.max_proposals_host[row])
        tokens, params = context.tokens[row : row + 1], self._requests[row].params
        if room < 1:
            return tokens[0, :0], count_of(tokens[0, :0]), None
        if self._looks:  # in the whole buffer, so that its shapes are those of every step
            ids, real = self._drafter.propose(tokens, context.length[row], room)
            return ids[0], real[0], None
        text = tokens[:, :length].clone()
        temperature = 0.0 if context.coupled else params.temperature
        if self._tempered:
            self._drafter.set_temperature(temperature)
        key = random.Random(f"{self._seed} {params.seed} {self._requests[row].id} {length}").getrandbits(63)
        more = {"generator": torch.Generator(text.device).manual_seed(key)} if self._keyed else {}
        ids, logprobs = self._drafter.generate_draft(text, room, **more)
        if logprobs.shape[-1] != self._vocabulary:
            raise SpecdecError(
                f"the drafter {self._drafter_name} has {logprobs.shape[-1]} tokens and the target {self._vocabulary}; "
                "expected the same vocabulary"
            )
        drawn = logprobs[0].exp() if self._tempered and temperature > 0 else None
        return ids[0], count_of(ids[0]), drawn


def _drafter_named(name: str) -> Callable[..., Any]:
    """The class of a drafter; SpecdecError with the choices if there is none of this name."""
    package = guest_module("flashspec_drafter", "flashspec", "flashspec")
    module, _, part = name.rpartition(":")
    if module:
        found: Callable[..., Any] = getattr(import_module(module), part)
        return found
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name in points:
        found = points[name].load()
        return found
    registered = package.list_drafters()
    if name not in registered:
        raise unknown("drafter", name, {*points, *registered}, "A class is named as package.module:Class.")
    found = package.get_drafter(name)
    return found


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``flashspec_drafter``."""
    register("flashspec_drafter", FlashspecDrafter)
