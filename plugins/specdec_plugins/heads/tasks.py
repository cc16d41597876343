"""What the user asks for in the text that heads learn from: eight kinds of tasks, whose contents the target writes.

A task is a list of parts of one user's turn. The words of a part are given; what follows them the target writes. No
prompt of a workload is among them: a head that had seen the benchmark would be measured on what it knows by heart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

SENTENCE = (".", "!", "?", ".\n", ".\n\n", "?\n", "?\n\n")
"""Tokens with which a sentence ends."""

QUESTION = ("?", "?\n", "?\n\n", "\n", "\n\n")
"""Tokens with which a question ends."""

FENCE = ("```", "\n\n\n")
"""Tokens with which a piece of code ends."""


@dataclass(frozen=True)
class Part:
    """``words``, and after them up to ``most`` tokens of the target's; from ``least`` on one of ``stops`` ends them."""

    words: str
    most: int = 0
    least: int = 0
    stops: tuple[str, ...] = ()


Task = tuple[Part, ...]

Pick = Callable[[int], int]
"""A number below another, drawn at random."""

OPENINGS = (
    "What is",
    "What are",
    "What does",
    "What should I",
    "What would happen if",
    "Which",
    "Who",
    "When did",
    "When should",
    "Where can",
    "Why do",
    "Why is",
    "Why does",
    "How do I",
    "How does",
    "How can",
    "How many",
    "How long",
    "How would you",
    "Is it",
    "Are there",
    "Can you",
    "Could you explain",
    "Do you",
    "Does",
    "Should I",
    "Explain",
    "Describe",
    "Tell me",
    "Give me",
    "Write a",
    "Suggest",
    "Recommend",
    "Compare",
    "List",
    "Help me",
    "Name",
    "Summarize",
    "Teach me",
    "Show me",
    "I am",
    "I have",
    "I want to",
    "I need",
    "My",
    "We are",
    "Imagine",
    "Hello",
    "Please",
    "In a few sentences,",
    "My friend",
    "My daughter",
    "My landlord",
    "I bought",
    "I feel",
    "I would love to learn",
    "My boss",
    "For my birthday",
    "Next month I",
    "I am planning",
)
"""Openings of questions in a chat, because a model alone asks for long tasks too often."""

FACTS = (
    "What is the capital of",
    "Who wrote",
    "Who invented",
    "Who painted",
    "Which planet",
    "Which river",
    "Which element",
    "Which animal",
    "In which year did",
    "What is the largest",
    "What is the smallest",
    "How many legs",
    "How many people live in",
    "What does the word",
    "What colour is",
    "Where do",
    "Is a",
    "What is the chemical symbol of",
    "Which language do people speak in",
    "How tall is",
)

STARTS = (
    "The museum of",
    "The old bridge",
    "Last winter",
    "In the spring of",
    "A new bakery",
    "The train to",
    "Dear",
    "Our school",
    "The company",
    "Researchers",
    "The river",
    "On Monday morning",
    "My grandmother",
    "The harbour",
    "The festival",
    "A group of",
    "The hotel",
    "For many years",
    "The village of",
    "The new law",
    "Bees",
    "The machine",
    "Our office",
    "Water",
    "The club",
    "The city of",
    "Mr. Lind",
    "Maria",
    "The farm",
    "The theatre",
    "Visitors",
    "All members",
    "The repair of",
    "The course",
    "In 1954",
    "The team",
    "The forest",
    "Coffee",
    "The concert",
    "The bus line",
    "Bicycles",
    "Our customers",
    "The mayor",
    "The hospital",
    "The garden",
)
"""First words of the passages that the target writes."""

LABELS = ("Text", "Article", "Notice", "Letter", "Report", "Story", "Message", "Passage", "Announcement", "Minutes")

PROBLEMS = (
    "A farmer has",
    "A shop sells",
    "A bus leaves",
    "Anna buys",
    "Tom is twice as",
    "A recipe needs",
    "A car drives",
    "There are",
    "A ticket costs",
    "Lena saves",
    "A tank holds",
    "A rope is",
    "Two workers",
    "In a class of",
    "A cyclist",
    "The price of",
    "Paul reads",
    "A garden is",
    "Six friends",
    "A factory makes",
    "If a pen costs",
    "A pool is filled",
    "A cake is cut",
    "Nina has",
    "Each box holds",
    "A clock",
    "A school orders",
    "Jack walks",
)
"""First words of the problems with numbers that the target writes."""

READ = (
    "Below you find a {}. Answer what is asked after it.",
    "Here is a {}. What does it say?",
    "Please look at this {} and reply to the question below it.",
    "The {} alone holds the answer.",
    "Give a short answer, taken out of this {}.",
    "Reply in a full sentence; everything you need is in the {}.",
)

SHORTEN = (
    "Sum up the following {} in two sentences.",
    "Give me the main points of this {}.",
    "What is this {} about?",
    "Shorten this {} to a few lines.",
    "Write one sentence with the most important facts of the {}.",
    "Make a summary of the {} below.",
    "Summarize this {} briefly.",
    "Tell me in brief what the {} says.",
)

CHANGE = (
    "Rewrite this {} in simple words.",
    "Make this {} more formal.",
    "Correct all mistakes in this {}.",
    "Write this {} again in the past tense.",
    "Put this {} into a friendlier tone and keep all facts.",
    "Repeat this {} and put every sentence on a line of its own.",
    "Write this {} as a list.",
)

STEPS = (
    " Show each step.",
    " Work it out line by line.",
    " Write down how you got the result.",
    " Explain your answer.",
    " Calculate slowly and check the result.",
    "",
)

PROGRAMS = (
    "Write a Python function that",
    "Write a short program that",
    "How do I, in Python,",
    "Write a JavaScript function",
    "Write an SQL query that",
    "Write a shell command that",
    "Explain this line of Python:",
    "Write a class that",
)

EDITS = (
    "Add a docstring to this function.",
    "Rename the variables of this code and show all of it.",
    "Find the mistake in this program and print the corrected program.",
    "Explain what this code does.",
    "Make this function return a list, and write it out in full.",
)

LISTS = ("List five", "Name three", "Give me ten", "Write down all", "Make a list of", "Which four", "Give examples of")


def draw_task(pick: Pick) -> Task:
    """One user's turn; the kinds are those of people's questions, the passage and the sum each twice."""
    kinds = (_chat, _chat, _chat, _facts, _read, _read, _shorten, _shorten, _sum, _sum, _change, _code, _list)
    return _one(kinds, pick)(pick)


def _one(among: tuple[T, ...], pick: Pick) -> T:
    return among[pick(len(among))]


def _asked(words: str) -> Part:
    return Part(words, 48, 3, QUESTION)


def _chat(pick: Pick) -> Task:
    """Half of the questions have an opening; whether one sentence or several, the target decides."""
    return (Part(_one(OPENINGS, pick) if pick(3) else "", 56),)


def _facts(pick: Pick) -> Task:
    return (_asked(_one(FACTS, pick)),)


def _list(pick: Pick) -> Task:
    return (Part(_one(LISTS, pick), 24, 3, SENTENCE),)


def _passage(asked: str, pick: Pick) -> Part:
    label = _one(LABELS, pick)
    words = f"{asked.format(label.lower())}\n\n{label}: {_one(STARTS, pick)}"
    return Part(words, 110, 40 + pick(50), SENTENCE)


def _read(pick: Pick) -> Task:
    openings = ("What", "Who", "When", "Where", "Why", "How", "Which", "How many", "What does", "At what time")
    return _passage(_one(READ, pick), pick), _asked(f"\n\nQuestion: {_one(openings, pick)}")


def _shorten(pick: Pick) -> Task:
    return (_passage(_one(SHORTEN, pick), pick),)


def _change(pick: Pick) -> Task:
    return (Part(_passage(_one(CHANGE, pick), pick).words, 70, 15 + pick(40), SENTENCE),)


def _sum(pick: Pick) -> Task:
    return Part(_one(PROBLEMS, pick), 64, 12, QUESTION), Part(_one(STEPS, pick))


def _code(pick: Pick) -> Task:
    if pick(2):
        return (Part(_one(PROGRAMS, pick), 32, 4, SENTENCE),)
    names = ("def ", "def find", "class ", "for ", "import ", "def count_", "x = ", "def read_", "def is_", "while ")
    return Part(f"{_one(EDITS, pick)}\n\n```python\n{_one(names, pick)}", 70, 10, FENCE), Part("\n```")
