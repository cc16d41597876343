"""Requests to the engine: prompts and their decoding parameters."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.errors import SpecdecError

COLDEST = 1e-6
"""The smallest temperature above 0: below it, logits divided by the temperature overflow float32."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request is decoded and when it ends.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 are off; both together are applied in
    transformers' order (temperature, top-k, top-p). ``eos`` are the token ids that end the request,
    ``stop`` the strings that end it; the ending token is part of the output in both cases.

    Raises SpecdecError, naming the field, when a value is out of range.

    Example: ``SamplingParams(temperature=0.8, top_p=0.95, max_new_tokens=32)``
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 64
    eos: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks = (
            (
                "temperature",
                self.temperature,
                self.temperature == 0 or COLDEST <= self.temperature < float("inf"),
                f"0 (greedy) or at least {COLDEST}",
            ),
            ("top_k", self.top_k, _whole(self.top_k) and self.top_k >= 0, "a whole number, 0 (off) or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1 (1 is off)"),
            ("seed", self.seed, _whole(self.seed) and 0 <= self.seed < 2**63, "a whole number from 0 to 2**63 - 1"),
            (
                "max_new_tokens",
                self.max_new_tokens,
                _whole(self.max_new_tokens) and self.max_new_tokens >= 1,
                "1 or more",
            ),
            ("eos", self.eos, isinstance(self.eos, tuple), "a tuple of token ids"),
            (
                "stop",
                self.stop,
                isinstance(self.stop, tuple) and all(isinstance(s, str) and s for s in self.stop),
                "a tuple of strings of at least one character",
            ),
        )
        for name, got, fits, expected in checks:
            if not fits:
                raise SpecdecError(f"{name} is {got!r}; expected {expected}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Request:
    """One prompt to continue. ``id`` is part of every noise key: equal ids draw equal noise.

    ``prompt`` may be given as any sequence of token ids; it is kept as a tuple.
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams = SamplingParams()

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))
