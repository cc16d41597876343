"""Workloads: named lists of conversations, in the formats of Spec-Bench's and SPEED-Bench's question files.

Six kinds are measured by default. Others are there to be named: ``multi_turn`` (three turns each), ``json`` (answers in
JSON), ``languages`` (ten, none of them English), ``long_2k``, ``long_8k`` and ``long_32k`` (a question about that many
tokens of text, see ``chronicle``), and ``recurring``, which asks two questions three times, for drafts that learn from
earlier outputs. All prompts were written for this project (2026, MIT like the rest); no text comes from elsewhere. The
workloads differ in how much of the answer copies the prompt. Each run measures and prints this copy rate, so that a
speedup that comes from repetition is visible as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

# specdec is imported where it is needed, because it imports torch and transformers, which reading files does without.
from benchsuite.machine.user_files import UserFileError, parsed_json, user_text
from benchsuite.measure.workloads.chronicle import chronicle
from benchsuite.measure.workloads.depths import KINDS_BEFORE, TextBefore, depth_name, split_depth

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specdec.errors import SpecdecError

KINDS = ("chat", "question_answering", "summarisation", "code_editing", "rewriting", "reasoning")
"""The six kinds that are measured by default."""

LONG = {"long_2k": 1200, "long_8k": 4800, "long_32k": 19500}
"""Kinds whose prompts are chronicles, each with the words of one. SmolLM2 makes 1.6 tokens of a word: with an answer a
prompt stays near its name, and within 8k and 32k."""

BUILT_IN = (*KINDS, "multi_turn", "json", "languages", *LONG, "recurring")

PROMPTS = 10
"""Of each kind."""

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
"""What SPEED-Bench publishes in place of a text that it may not hand on."""


@dataclass(frozen=True)
class Question:
    """One conversation: the user's turns, at least one, and the text ``before`` them, if there is any; two of which
    all is the same are equal.

    Example: ``Question(("Name a city.", "Name another.")).prompt(tokenizer, ["Oslo."])`` ends with the second turn.
    """

    turns: tuple[str, ...]
    before: TextBefore | None = None

    def prompt(self, tokenizer: PreTrainedTokenizerBase, answers: Sequence[str]) -> tuple[int, ...]:
        """Return the token ids of the conversation that ends with user turn number ``len(answers)``, from 0.

        ``answers`` are the texts of the assistant's turns before it, without special tokens. They are tokenized
        again, so that their ids may differ from those that were decoded. Raises SpecdecError if no turn is left.
        """
        from specdec.catalog import chat_ids

        asked = len(answers)
        if asked >= len(self.turns):
            raise _refusal(f"{asked} answers were given; expected 0 to {len(self.turns) - 1}, fewer than turns")
        earlier = [text for pair in zip(self.turns[:asked], answers, strict=True) for text in pair]
        first, *others = [*earlier, self.turns[asked]]
        begun = self.before.turns(tokenizer, first) if self.before else (first,)
        return tuple(chat_ids(tokenizer, *begun, *others))


@dataclass(frozen=True)
class Workload:
    """A name that ``load_workload`` takes, and the questions it stands for; a question may occur more than once."""

    name: str
    questions: tuple[Question, ...]

    @property
    def label(self) -> str:
        """The header of a column: the kind, the category, or the file's stem; two workloads may share it."""
        name, depth = split_depth(self.name)
        path, category = _split(name)
        return depth_name(category or Path(path).stem, depth)

    @property
    def prompts(self) -> tuple[str, ...]:
        """The first turn of each question. SpecdecError for questions with text before them, which a tokenizer measures
        out: a server is asked in texts."""
        if any(question.before for question in self.questions):
            raise _refusal(
                f"the workload {self.name} has text before its questions; servers are asked without: name it "
                f"{split_depth(self.name)[0]}, and leave out --specdec-depth"
            )
        return tuple(question.turns[0] for question in self.questions)

    def encode(self, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, ...]]:
        """Return the token ids of each first turn, in the tokenizer's chat template or, if it has none, as text."""
        return [question.prompt(tokenizer, ()) for question in self.questions]

    def first(self, most: int | None) -> Workload:
        """Return the workload with its first ``most`` questions only, or with all of them for None."""
        return replace(self, questions=self.questions[:most])

    def longest(self, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int) -> int:
        """Return the most tokens that the prompt of any turn may have; exact where every question has one turn.

        The prompt is counted with empty answers, and beside it ``max_new_tokens`` for each earlier answer, with the
        room that their text may need in addition when it is tokenized again (``_room``).
        """
        answer = _room(tokenizer, max_new_tokens)
        return max(
            len(question.prompt(tokenizer, [""] * asked)) + asked * answer
            for question in self.questions
            for asked in range(len(question.turns))
        )


def workload_names(text: str) -> list[str]:
    """Return the names of the workloads that ``text`` stands for, each of which ``load_workload`` takes.

    A built-in kind and ``file.jsonl:category`` are one; a ``.jsonl`` file is one for each category in it, in order of
    appearance, or itself if its lines have none. Raises SpecdecError as ``load_workload`` does.

    Example: ``workload_names("question.jsonl")`` is ``["question.jsonl:writing", "question.jsonl:math"]``.
    """
    text, depth = split_depth(text)
    path, category = _split(text)
    if depth:
        return [depth_name(name, depth) for name in workload_names(text)]
    if text in BUILT_IN or category is not None:
        return [load_workload(text).name]
    found = dict.fromkeys(kind for kind, _ in _lines(path))
    return [f"{path}:{kind}" if kind else path for kind in found]


def load_workload(name: str) -> Workload:
    """Return a built-in kind by its name, or the questions of ``file.jsonl`` or of ``file.jsonl:category``.

    ``name@2k`` has the same questions, each behind 2,048 tokens of a conversation, a document or code in turn.
    Each line of a file is a JSON object with ``turns``, a list of texts, or with ``messages``, a list of objects with a
    ``role`` (always "user") and a ``content``; with a ``category`` on every line or on none; other keys are not read.
    Raises SpecdecError for an unknown name or category, for a file that cannot be read, for a bad line, naming it, and
    for a file with placeholders in place of texts.
    """
    base, depth = split_depth(name)
    if depth:
        return Workload(name, _behind(load_workload(base).questions, depth))
    path, category = _split(name)
    lines = _lines(path)
    if category is None:
        return Workload(name, tuple(question for _, question in lines))
    chosen = tuple(question for kind, question in lines if kind == category)
    if not chosen:
        from specdec.errors import unknown

        raise unknown("category", category, {kind for kind, _ in lines if kind}, f"They are those of {path}.")
    return Workload(name, chosen)


def _behind(questions: Sequence[Question], depth: int) -> tuple[Question, ...]:
    """The questions behind so many tokens; those that are equal have one text before them."""
    kinds, places = [*KINDS_BEFORE], {question: place for place, question in enumerate(dict.fromkeys(questions))}
    return tuple(
        replace(one, before=TextBefore(kinds[places[one] % len(kinds)], depth, places[one])) for one in questions
    )


def _split(name: str) -> tuple[str, str | None]:
    """A workload's kind or path, and the category behind it."""
    stem, colon, category = name.partition(".jsonl:")
    return (f"{stem}.jsonl", category) if colon else (name, None)


def _lines(path: str) -> list[tuple[str, Question]]:
    """The category, empty if there is none, and the question of every line of a built-in kind or of a file."""
    if path in LONG:
        return [(path, Question((chronicle(LONG[path], seed),))) for seed in range(PROMPTS)]
    if path in BUILT_IN:
        return _read(path, files(__name__).joinpath(f"{path}.jsonl").read_text(encoding="utf-8"))
    if Path(path).suffix != ".jsonl":
        from specdec.errors import unknown

        raise unknown("workload", path, BUILT_IN, "A file of your own must end in .jsonl.")
    try:
        return _read(path, user_text(Path(path)))
    except UserFileError as error:
        raise _refusal(f"the workload file {error}") from error


def _read(name: str, text: str) -> list[tuple[str, Question]]:
    lines: list[tuple[str, Question]] = []
    held: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines also splits at U+2028, which JSON texts may hold
        if not line.strip():
            continue
        category, question = _line(f"{name}, line {number}", line)
        if lines and bool(category) != bool(lines[0][0]):
            raise _refusal(f"{name}, line {number}: every line must have a category, or none; add or remove some")
        lines.append((category, question))
        if any(PLACEHOLDER in turn for turn in question.turns):
            held.append(number)
    if held:
        raise _refusal(
            f"{name}, line {held[0]}: a placeholder in place of the text, as in {len(held)} of the file's {len(lines)} "
            "questions; SPEED-Bench is published without the texts of its sources. Run its data preparation, "
            "nemo_skills/dataset/speed-bench/prepare.py of NeMo-Skills, and name the .jsonl file that it writes; "
            "examples/specdec_bench/prepare_data.py of NVIDIA Model-Optimizer writes Parquet, to be converted first"
        )
    if not lines:
        raise _refusal(f"the workload {name!r} has no questions; expected one JSON object a line")
    return lines


def _line(where: str, line: str) -> tuple[str, Question]:
    """The category and the question of one line; ``where`` begins the refusals."""
    try:
        row = parsed_json(line)
        category = row.get("category") or ""
        if "messages" in row:
            roles = [message["role"] for message in row["messages"]]
            turns = [message["content"] for message in row["messages"]]
        else:
            roles, turns = [], row["turns"]
        if not (isinstance(category, str) and isinstance(turns, list) and turns):
            raise TypeError("the category must be a text and the list not empty")
    except (UserFileError, KeyError, AttributeError, TypeError) as error:
        raise _refusal(
            f"{where}: expected a JSON object with question_id, category and a list of turns; "
            f"got {line[:60]!r} ({error})"
        ) from error
    if any(role != "user" for role in roles):
        raise _refusal(f"{where}: messages of the roles {roles}; expected the user's alone, answers are decoded")
    for index, turn in enumerate(turns, 1):
        if not isinstance(turn, str) or not turn.strip():
            which = "the first turn" if index == 1 else f"turn {index}"
            raise _refusal(f"{where}: {which} is empty; give it some text")
    return category, Question(tuple(turns))


def _refusal(text: str) -> SpecdecError:
    from specdec.errors import SpecdecError

    return SpecdecError(text)


def _room(tokenizer: PreTrainedTokenizerBase, tokens: int) -> int:
    """The tokens that are kept free for an answer of ``tokens`` tokens, whose text is tokenized again.

    The text may need more tokens than were decoded: the tokens of an answer need not be those that the tokenizer makes
    of their text, and one that is not whole characters becomes U+FFFD. Where each token is a byte, U+FFFD is three of
    them, and three times as many tokens always suffice. Of other tokenizers no such law is known. The worst case tried
    are uniformly random tokens, far from any model's: of SmolLM2, Llama 2 and 3, Gemma 3 and Qwen3, 1 became at most 9,
    16 at most 27, 64 at most 79 and 256 at most 288. Twice as many and 16 leave room above all of these.
    """
    return tokens * max(2, len(tokenizer.encode("\ufffd", add_special_tokens=False))) + 16


def copy_rate(prompt: Sequence[int], output: Sequence[int]) -> float:
    """Return the share of output tokens that repeat the token after the last occurrence of their two predecessors.

    Prompt lookup with bigrams would guess these tokens right; 0 is original text, 1 a copy.

    Example: ``copy_rate([1, 2, 3], [1, 2, 3])`` is 1/3: only the last 3 follows an earlier 1 2.
    """
    text, hits = [*prompt, *output], 0
    last: dict[tuple[int, int], int] = {}
    for index in range(2, len(text)):
        pair = (text[index - 2], text[index - 1])
        hits += index >= len(prompt) and last.get(pair) == text[index]
        last[pair] = text[index]
    return hits / len(output) if output else 0.0
