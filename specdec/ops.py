"""The ops that the engine calls: each call goes to the first backend that takes it, and is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specdec import acceptance
from specdec.decoder import Cells, DecoderWeights, decode
from specdec.interfaces import OPS, Backend, defining_class
from specdec.messages import Verdict, Window
from specdec.packed import Weight
from specdec.processors import StackedParams

Route = tuple[Callable[..., bool], Callable[..., Any], tuple[str, str]]
"""A backend's check of the deciding tensors, its method, and the name under which the call is counted."""


class Ops(Backend):
    """Backends in order of preference; the last takes everything (the reference).

    ``ran`` counts the calls of each (op, backend). ``absent`` are the backends that would be in the chain if they
    could run here, each with the reason why it cannot.

    Example: ``Ops([Cpu(), Reference()]).sample(logits, None)``
    """

    def __init__(self, chain: Sequence[Backend], absent: Sequence[tuple[Backend, str]] = ()) -> None:
        self.chain, self._absent = tuple(chain), tuple(absent)
        self.name, self.priority = self.chain[0].name, self.chain[0].priority
        self.calls: Counter[tuple[str, str]] = Counter()
        self._routes: dict[str, list[Route]] = {
            op: [(partial(backend.takes, op), getattr(backend, op), (op, backend.name)) for backend in self.chain]
            for op in OPS
        }
        for op in ("linear", "sample"):
            self._routes[f"{op}_of_slots"] = [
                (takes, _of_slots(backend, op), name)
                for backend, (takes, _, name) in zip(self.chain, self._routes[op], strict=True)
            ]

    def ran(self) -> Counter[tuple[str, str]]:
        """The calls of each (op, backend) so far."""
        return Counter(self.calls)

    def add(self, calls: Counter[tuple[str, str]]) -> None:
        """See ``Backend``."""
        self.calls.update(calls)

    def absent(self, device: str) -> list[str]:
        """For each backend that is meant for a kind of device and is not in the chain, the reason."""
        return [f"{backend.name}: {reason}" for backend, reason in self._absent if device in backend.devices]

    def pick(self, op: str, *tensors: Weight) -> Backend:
        """The backend that would run ``op`` on these tensors; not counted."""
        return next(backend for backend in self.chain if backend.takes(op, *tensors))

    def takes(self, op: str, *tensors: Weight) -> bool:
        """Always True, because the last backend takes everything."""
        return True

    def pack(self, weight: Weight) -> Weight:
        """In the form of the first backend that has one of its own for this matrix."""
        return next((packed for b in self.chain if (packed := b.pack(weight)) is not weight), weight)

    def _run(self, op: str, deciding: tuple[Weight, ...], *arguments: Any) -> Any:
        # Called some 300 times a forward, so the routes are built once, in the constructor.
        for takes, call, name in self._routes[op]:
            if takes(*deciding):
                self.calls[name] += 1
                return call(*arguments)
        raise AssertionError(f"no backend takes {op}; the last of a chain must take everything")

    def _run_whole(self, op: str, deciding: tuple[Weight, ...], composed: Callable[..., Any], *arguments: Any) -> Any:
        """An op that is made of other ops: by the first backend that has it, else ``composed`` of the chain's ops."""
        *whole, _ = self._routes[op]
        for takes, call, name in whole:
            if takes(*deciding):
                self.calls[name] += 1
                return call(*arguments)
        return composed(self, *arguments)

    def process(self, logits: Tensor, params: StackedParams, paths: Tensor | None) -> Tensor:
        """See ``Backend``."""
        processed: Tensor = self._run("process", (logits,), logits, params, paths)
        return processed

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """See ``Backend``."""
        chosen: Tensor = self._run("sample", (logits,), logits, key)
        return chosen

    def sample_of_slots(self, logits: Tensor, key: Tensor | None, width: Tensor) -> Tensor:
        """See ``Backend``."""
        chosen: Tensor = self._run("sample_of_slots", (logits,), logits, key, width)
        return chosen

    def noise_keys(self, stream: Tensor, position: Tensor, draw: int | Tensor) -> Tensor:
        """See ``Backend``."""
        keys: Tensor = self._run("noise_keys", (position,), stream, position, draw)
        return keys

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """See ``Backend``."""
        accepted: Tensor = self._run("accept", (probability,), probability, key)
        return accepted

    def verify_prefix(self, window: Window, choices: Tensor) -> Verdict:
        """See ``Backend``."""
        verdict: Verdict = self._run("verify_prefix", (choices,), window, choices)
        return verdict

    def rejection_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """See ``Backend``."""
        given = distribution, window, accept_key, residual_key, bonus_key
        verdict: Verdict = self._run("rejection_sample", (distribution,), *given)
        return verdict

    def block_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """See ``Backend``; if no backend has it whole, its coins and draws go each to its own backend."""
        given = distribution, window, accept_key, residual_key, bonus_key
        verdict: Verdict = self._run_whole("block_sample", (distribution,), acceptance.block_verdict, *given)
        return verdict

    def tree_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """See ``Backend``; if no backend has it whole, its coins and draws go each to its own backend."""
        given = distribution, window, accept_key, residual_key, bonus_key
        verdict: Verdict = self._run_whole("tree_sample", (distribution,), acceptance.tree_verdict, *given)
        return verdict

    def emit(self, window: Window, verdict: Verdict, tokens: Tensor, length: Tensor) -> Tensor:
        """See ``Backend``."""
        packed: Tensor = self._run("emit", (tokens,), window, verdict, tokens, length)
        return packed

    def kv_plan(
        self,
        window: Window,
        committed: Tensor,
        span: int | None,
        capacity: int,
        look: int,
        limit: int | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See ``Backend``."""
        given = window, committed, span, capacity, look, limit, dtype
        planned: tuple[Tensor, Tensor, Tensor, Tensor] = self._run("kv_plan", (committed,), *given)
        return planned

    def kv_append(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, cells: Tensor) -> None:
        """See ``Backend``."""
        self._run("kv_append", (keys, new_keys), keys, values, new_keys, new_values, cells)

    def kv_compact(self, keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> None:
        """See ``Backend``."""
        self._run("kv_compact", (keys,), keys, values, source, target)

    def tree_attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        scaling: float,
        softcap: float | None,
        used: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See ``Backend``."""
        deciding = (query, keys) if sinks is None else (query, keys, sinks)
        given = query, keys, values, mask, scaling, softcap, used, sinks
        out: Tensor = self._run("tree_attention", deciding, *given)
        return out

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        """See ``Backend``."""
        out: Tensor = self._run("linear", (x, weight), x, weight, bias, wide)
        return out

    def linear_of_slots(
        self, x: Tensor, weight: Weight, bias: Tensor | None, width: Tensor, wide: bool = False
    ) -> Tensor:
        """See ``Backend``."""
        out: Tensor = self._run("linear_of_slots", (x, weight), x, weight, bias, width, wide)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """See ``Backend``."""
        out: Tensor = self._run("rms_norm", (x,), x, weight, eps, offset)
        return out

    def rotary(self, query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Backend``."""
        turned: tuple[Tensor, Tensor] = self._run("rotary", (query, cos), query, keys, cos, sin)
        return turned

    def decoder_layers(
        self, x: Tensor, layers: Sequence[DecoderWeights], turn: tuple[Tensor, Tensor], at: Sequence[Cells]
    ) -> Tensor:
        """See ``Backend``; if no backend has whole layers, each of their ops goes to its own backend."""
        out: Tensor = self._run_whole("decoder_layers", (x, layers[0].qkv), decode, x, layers, turn, at)
        return out

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """See ``Backend``."""
        out: Tensor = self._run("silu_mul", (gate,), gate, up)
        return out


def _of_slots(backend: Backend, op: str) -> Callable[..., Any]:
    """A backend's ``op`` of slots; its ``op`` itself, where a class below the one of that computes otherwise."""
    of_slots, whole = (defining_class(type(backend), name) for name in (f"{op}_of_slots", op))
    if whole is not of_slots and issubclass(whole, of_slots):
        return partial(getattr(Backend, f"{op}_of_slots"), backend)
    found: Callable[..., Any] = getattr(backend, f"{op}_of_slots")
    return found
