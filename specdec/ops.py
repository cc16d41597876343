"""The ops as the engine sees them: each call goes to the fastest backend that takes it, and is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from specdec.interfaces import Backend
from specdec.messages import Verdict, Window
from specdec.quantised import Quantised


class Ops(Backend):
    """Backends in order of preference; the last takes everything (the reference).

    ``ran`` counts (op, backend) for every call, so that what ran is known and not assumed. ``absent`` are
    backends that would stand in the chain if they could run here, with the sentences that say why not.

    Example: ``Ops([Cpu(), Reference()]).sample(logits, None)``
    """

    def __init__(self, chain: Sequence[Backend], absent: Sequence[tuple[Backend, str]] = ()) -> None:
        self.chain, self._absent = tuple(chain), tuple(absent)
        self.name, self.priority = self.chain[0].name, self.chain[0].priority
        self.calls: Counter[tuple[str, str]] = Counter()

    def ran(self) -> Counter[tuple[str, str]]:
        """How often each (op, backend) was called so far."""
        return Counter(self.calls)

    def absent(self, device: str) -> list[str]:
        """Why the backends that are meant for a kind of device and are not in the chain are not."""
        return [f"{backend.name}: {reason}" for backend, reason in self._absent if device in backend.devices]

    def pick(self, op: str, *tensors: Tensor | Quantised) -> Backend:
        """The backend that an op on these tensors goes to; not counted."""
        for backend in self.chain:
            if backend.takes(op, *tensors):
                return backend
        raise AssertionError(f"no backend takes {op}; the last of a chain must take everything")

    def takes(self, op: str, *tensors: Tensor | Quantised) -> bool:
        """Always: the last of the chain does."""
        return True

    def _counted(self, op: str, *tensors: Tensor | Quantised) -> Backend:
        backend = self.pick(op, *tensors)
        self.calls[op, backend.name] += 1
        return backend

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """See ``Backend``."""
        return self._counted("sample", logits).sample(logits, key)

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """See ``Backend``."""
        return self._counted("accept", probability).accept(probability, key)

    def verify_prefix(self, window: Window, choices: Tensor) -> Verdict:
        """See ``Backend``."""
        return self._counted("verify_prefix", choices).verify_prefix(window, choices)

    def rejection_sample(
        self, law: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """See ``Backend``."""
        backend = self._counted("rejection_sample", law)
        return backend.rejection_sample(law, window, accept_key, residual_key, bonus_key)

    def kv_append(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, cells: Tensor) -> None:
        """See ``Backend``."""
        self._counted("kv_append", keys, new_keys).kv_append(keys, values, new_keys, new_values, cells)

    def kv_compact(self, keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> None:
        """See ``Backend``."""
        self._counted("kv_compact", keys).kv_compact(keys, values, source, target)

    def tree_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float, softcap: float | None
    ) -> Tensor:
        """See ``Backend``."""
        backend = self._counted("tree_attention", query, keys)
        return backend.tree_attention(query, keys, values, mask, scaling, softcap)

    def linear(self, x: Tensor, weight: Tensor | Quantised, bias: Tensor | None) -> Tensor:
        """See ``Backend``."""
        return self._counted("linear", x, weight).linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """See ``Backend``."""
        return self._counted("rms_norm", x).rms_norm(x, weight, eps, offset)

    def rotary(self, query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Backend``."""
        return self._counted("rotary", query, cos).rotary(query, keys, cos, sin)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """See ``Backend``."""
        return self._counted("silu_mul", gate).silu_mul(gate, up)
