"""A comparison of made-up runners, and its surroundings: what is asked of each of them and when is noted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchsuite.judge.ties import Difference
from benchsuite.measure.arms import Arm
from benchsuite.measure.bystanders import Bystanders
from benchsuite.measure.paired import Comparison
from benchsuite.measure.runners import Outcome, mean_length
from benchsuite.measure.units import Unit
from benchsuite.tests.rig import SETTING
from specdec import Request
from specdec.peer import Generation, Peer

PLAIN, OURS, OTHER = Arm(SETTING), Arm(SETTING, draft="ngram", k=2), Arm(SETTING, draft="tree", k=2)
PEER = Arm(SETTING, peer="made_up")


def distinct_units(count: int, size: int = 1, **params: Any) -> list[Unit]:
    """Units of different prompts."""
    given = SETTING.replaced(**params).params(())
    prompts = [tuple(range(n + 1)) for n in range(count * size)]
    return [
        Unit(tuple(Request(i, prompts[i], given) for i in range(n * size, (n + 1) * size)), n) for n in range(count)
    ]


def scripted_answer(request: Request) -> tuple[int, ...]:
    """What plain decoding makes of a request."""
    return tuple(7 + request.id + n for n in range(4))


@dataclass
class Scripted:
    """A runner that answers as plain does, unless its script says otherwise; it notes what it is asked."""

    arm: Arm
    said: list[tuple[Any, ...]]
    script: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    learns: bool = False
    raises: Mapping[str, Exception] = field(default_factory=dict)
    condition: dict[str, str] = field(default_factory=lambda: {"dtype": "float32"})
    set_up_seconds: Mapping[str, float] = field(default_factory=dict)

    def _note(self, what: str, *given: Any) -> None:
        self.said.append((self.arm.label, what, *given))
        if what in self.raises:
            raise self.raises[what]

    def warm_up(self, first: Request) -> None:
        """Note it."""
        self._note("warm_up", first)

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Note it; one second of decoding for each token."""
        self._note("run", tuple(requests))
        tokens = [self.script.get(request.id, scripted_answer(request)) for request in requests]
        seconds = float(sum(map(len, tokens)))
        return Outcome(tokens, 1 + seconds, seconds, int(seconds), [[(1.0, 1)]], 4, mean_length(requests, tokens))

    def tokens(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Note it."""
        self._note("tokens", tuple(requests))
        return []

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """Note it."""
        self._note("logits_at", tuple(requests), request, index)
        return None

    def forget(self) -> None:
        """Note it."""
        self._note("forget")

    def conditions(self) -> dict[str, str]:
        """What it was given."""
        return dict(self.condition)


class MadeUpPeer(Peer):
    """A made-up peer: each token takes a second, and the first two are there together after three."""

    def __init__(self, **given: Any) -> None:
        self.asked: list[tuple[Request, ...]] = []
        for name, value in given.items():
            setattr(self, name, value)

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """The answers of plain decoding."""
        self.asked.append(tuple(requests))
        late = {request.id: 2.0 * place for place, request in enumerate(requests)}
        return [
            Generation(scripted_answer(r), ((3.0 + late[r.id], 2), (4.0 + late[r.id], 2)), 5.0 + late[r.id], 1)
            for r in requests
        ]

    def described(self) -> str:
        """A line."""
        return "made up"


@dataclass
class Surroundings:
    """A comparison's surroundings: what was said, in order, and a judge whose verdicts are planted."""

    said: list[tuple[Any, ...]] = field(default_factory=list)
    verdicts: list[Difference] = field(default_factory=list)
    model: Any = field(default_factory=lambda: SimpleNamespace(dtype=torch.bfloat16, device=torch.device("cpu")))

    def compare(
        self, requests: Any, request: Request, plain: Any, other: Any, pair: Any, exact: bool
    ) -> list[Difference]:
        """Note it, and repeat both arms as a judge does."""
        self.said.append(("judge", tuple(requests), request, pair, exact))
        plain.tokens(requests)
        other.logits_at(requests, request.id, 2)
        return self.verdicts

    def after(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> Tensor:
        """Every token is as likely."""
        return torch.zeros(len(output), 50)

    def surprise(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> float:
        """Plain's."""
        return 1.0

    @contextmanager
    def limit(self, what: str) -> Iterator[None]:
        """Note what is limited."""
        self.said.append(("limit", what))
        yield
        self.said.append(("end", what))

    def comparison(self, *runners: Any, debug: bool = False, bystanders: Bystanders | None = None) -> Comparison:
        """Of these runners."""
        judge: Any = self
        made = {runner.arm: runner for runner in runners}
        return Comparison(
            made,
            judge,
            lambda request: self.said.append(("prime", request)),
            lambda text: self.said.append(("progress", text)),
            self.limit,
            debug,
            bystanders,
        )

    def of(self, *whats: str) -> list[tuple[Any, ...]]:
        """What was said of these kinds."""
        return [one for one in self.said if {one[0], one[1] if len(one) > 1 else ""} & set(whats)]
