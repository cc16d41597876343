"""The order in which template, user and assistant speak in the text that heads learn from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from specdec.catalog import chat_text
from specdec_plugins.heads.tasks import Pick, Task, draw_task

TEMPERATURES = (0.0, 0.0, 0.0, 0.0, 0.7)
"""One is drawn for each answer, because a head drafts both greedy text, which repeats itself, and sampled text."""

QUESTION_TEMPERATURE = 0.8
"""At temperature 1, a small model's questions become nonsense, and so do the answers to them."""

LONGEST_ANSWER = 80
"""In tokens. Long answers of a small model repeat themselves: they are easy to draft and teach a head little."""


@dataclass(frozen=True)
class Speech:
    """Forced tokens, then up to ``most`` of the target's own; from ``least`` on one of ``stops`` ends them."""

    forced: list[int]
    most: int
    least: int
    stops: frozenset[int]
    temperature: float
    answer: bool


class TurnScript:
    """What is said next in each of ``rows`` conversations: tokens of the template and of tasks, or the target's own.

    ``answering``: whether the target chose the last token of a row, as part of an answer. ``temperature`` float32
    [rows]: that of the next token. ``generator`` draws the tasks and temperatures; a task is ``draw``'s.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rows: int,
        generator: torch.Generator,
        draw: Callable[[Pick], Task] = draw_task,
    ) -> None:
        marks = ("<<question>>", "<<answer>>", "<<again>>")
        turns = [
            {"role": role, "content": mark} for role, mark in zip(("user", "assistant", "user"), marks, strict=True)
        ]
        text = chat_text(tokenizer, turns, answer=False)
        opening, *between = re.split("|".join(marks), text)[:3]
        self.opening, self.to_answer, self.to_question = (
            tokenizer.encode(part, add_special_tokens=False) for part in (opening, *between)
        )
        self.end = self.to_answer[0]
        self._tokenizer, self._generator, self._draw = tokenizer, generator, draw
        self._ids: dict[str, list[int]] = {}
        self.ahead = [self._turn(self.opening) for _ in range(rows)]
        self.forced = [[*speeches[0].forced] for speeches in self.ahead]
        self.spoken = [0] * rows
        self.answering = [False] * rows
        self.temperature = torch.zeros(rows)

    def follow(self, drawn: list[int]) -> list[int]:
        """The next tokens: the drawn ones, except where the script has tokens of its own."""
        return [self._next(row, token) for row, token in enumerate(drawn)]

    def _next(self, row: int, drawn: int) -> int:
        speech, token = self.ahead[row][0], drawn
        self.answering[row] = False
        if self.forced[row]:
            token = self.forced[row].pop(0)
        else:
            self.spoken[row] += 1
            over = self.spoken[row] > speech.most
            self.answering[row] = speech.answer and not over
            if over or drawn == self.end:
                self._go_on(row)
                token = self.forced[row].pop(0)
            elif drawn in speech.stops and self.spoken[row] >= speech.least:
                self._go_on(row)
        if not self.forced[row] and not self.ahead[row][0].most:
            self._go_on(row)
        self.temperature[row] = self.ahead[row][0].temperature
        return token

    def _go_on(self, row: int) -> None:
        """Begin the next speech that has a token; after an answer, another task."""
        self.spoken[row] = 0
        while not self.forced[row]:
            if len(self.ahead[row]) == 1:
                self.ahead[row] += self._turn(self.to_question)
            self.ahead[row].pop(0)
            self.forced[row] = [*self.ahead[row][0].forced]

    def _turn(self, before: list[int]) -> list[Speech]:
        """A task and its answer; ``before`` leads from the speaker before to the user."""
        speeches = []
        for part in self._draw(self._pick):
            stops = frozenset(token for text in part.stops for token in self._encoded(text)[-1:])
            forced = [*before, *self._encoded(part.words)]
            speeches.append(Speech(forced, part.most, part.least, stops, QUESTION_TEMPERATURE, False))
            before = []
        temperature = TEMPERATURES[self._pick(len(TEMPERATURES))]
        speeches.append(Speech(self.to_answer, LONGEST_ANSWER, 0, frozenset(), temperature, True))
        return speeches

    def _pick(self, among: int) -> int:
        return int(torch.randint(among, (), generator=self._generator))

    def _encoded(self, text: str) -> list[int]:
        if text not in self._ids:
            self._ids[text] = self._tokenizer.encode(text, add_special_tokens=False)
        return self._ids[text]
