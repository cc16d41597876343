"""Units: what every arm runs at once. One prompt, or a batch of different prompts, or a turn of their conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from benchsuite.judge.sources import Tokens
from benchsuite.measure.workloads import Question
from specdec.characters import decoded
from specdec.errors import SpecdecError
from specdec.request import Request, SamplingParams


@dataclass(frozen=True)
class Unit:
    """Requests that every arm runs together.

    ``number``: equal for units that are not independent of each other: the turns of one conversation, and repetitions
    of the same prompts.
    """

    requests: tuple[Request, ...]
    number: int


@dataclass(frozen=True)
class Batch:
    """Conversations that run together; ``places`` are those of its questions in the workload, ``number`` as in Unit."""

    questions: tuple[Question, ...]
    places: tuple[int, ...]
    number: int

    @property
    def turns(self) -> int:
        """The number of units that it becomes."""
        return max(len(question.turns) for question in self.questions)


def disjoint_batches(workload: str, questions: Sequence[Question], size: int) -> list[Batch]:
    """Return batches of ``size`` different questions, in order; each question is in one batch at most.

    Questions that fill no batch are left out. Raises SpecdecError if there are fewer different questions than ``size``.
    """
    different = len(set(questions))
    if size > different:
        raise SpecdecError(
            f"--specdec-batch {size} takes {size} different prompts at once, and {workload} has {different}; "
            f"give a batch of at most {different}, more --specdec-prompts, or another --specdec-workload"
        )
    open_batches: list[list[int]] = []
    for place, question in enumerate(questions):
        for batch in open_batches:
            if len(batch) < size and all(questions[other] != question for other in batch):
                batch.append(place)
                break
        else:
            open_batches.append([place])
    numbers: dict[frozenset[Question], int] = {}
    found = []
    for places in open_batches:
        if len(places) == size:
            members = tuple(questions[place] for place in places)
            number = numbers.setdefault(frozenset(members), len(numbers))
            found.append(Batch(members, tuple(places), number))
    return found


def make_units(
    batch: Batch,
    questions: int,
    params: SamplingParams,
    tokenizer: PreTrainedTokenizerBase,
    answer: Callable[[Request], Tokens],
) -> Iterator[Unit]:
    """Yield one unit for each turn of a batch's conversations.

    The prompt of a turn is the conversation so far, in which the assistant's turns are the target's own: ``answer`` is
    called with the request of the turn before, for plain decoding's output. ``questions``: how many the workload has;
    ids of requests differ between questions and between turns.
    """
    said: list[list[str]] = [[] for _ in batch.questions]
    for turn in range(batch.turns):
        asked = [i for i, question in enumerate(batch.questions) if turn < len(question.turns)]
        requests = [
            Request(batch.places[i] + turn * questions, batch.questions[i].prompt(tokenizer, said[i]), params)
            for i in asked
        ]
        yield Unit(tuple(requests), batch.number)
        for i, request in zip(asked, requests, strict=True):
            if turn + 1 < len(batch.questions[i].turns):
                said[i].append(decoded(tokenizer, answer(request), special=False))
