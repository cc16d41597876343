"""The keys of a run: no two seeds and no two requests have one in common.

What may share noise within a request is known to enumeration (``benchsuite.conformance.exact.enumerator``). Seeds and
requests are apart: their outputs are promised to have nothing to do with each other.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from benchsuite.conformance.exact.enumerator import Shape
from benchsuite.conformance.exact.table_target import TableDraft, Tabular, random_table
from benchsuite.judge.sources import Always
from specdec import Engine, Policy, Request, SamplingParams
from specdec_kernels.reference import Reference

ASKED = Request(0, (0, 1), SamplingParams(temperature=1.0, seed=3, max_new_tokens=12))


class KeyRecorder(Reference):
    """Keeps the keys of every draw and coin."""

    def __init__(self) -> None:
        self.keys: list[int] = []

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """Return a draw; keep its keys."""
        self.keys += [] if key is None else key.flatten().tolist()
        return super().sample(logits, key)

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """Return a coin for each probability; keep their keys."""
        self.keys += key.flatten().tolist()
        return super().accept(probability, key)


def keys_of(policy: Policy, shape: Shape, request: Request) -> set[int]:
    """Return the keys of a run of the engine over tables of three tokens, its draft's among them."""
    ops = KeyRecorder()
    engine = Engine(
        Tabular(random_table("p", 3), 3, ops),
        draft=TableDraft(random_table("q", 3), shape),
        policy=policy,
        controller=Always(len(shape.parents) - 1),
        ops=ops,
        max_rows=1,
        max_length=40,
    )
    engine.run([request])
    return set(ops.keys)


def in_common(policy: Policy, shape: Shape) -> dict[str, int]:
    """Return how many keys of a request are also those of the same request with another seed, and of another one.

    The seed of one differs in its high bits alone, and so does the id of the other.
    """
    own = keys_of(policy, shape, ASKED)
    others = {
        "another seed": [replace(ASKED, params=replace(ASKED.params, seed=seed)) for seed in (4, 3 + 2**40)],
        "another request": [replace(ASKED, id=number) for number in (1, 2**40)],
    }
    return {name: sum(len(own & keys_of(policy, shape, one)) for one in ones) for name, ones in others.items()}
