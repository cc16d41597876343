"""What is said in the text that heads learn from: tasks, their parts, and when the target writes."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import torch
from transformers import PreTrainedTokenizerBase

from benchsuite.measure.workloads import BUILT_IN, LONG, load_workload
from specdec import catalog
from specdec_plugins.heads import script as scripts
from specdec_plugins.heads.script import TurnScript
from specdec_plugins.heads.tasks import Part, Pick, Task, draw_task

TEMPLATE = "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}\n{% endfor %}"
END = ord("\n")


def chatting() -> PreTrainedTokenizerBase:
    tokenizer = catalog.byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def script_of(*tasks: Task) -> TurnScript:
    """A script of one row with these tasks, again and again."""
    several = itertools.cycle(tasks)
    return TurnScript(chatting(), 1, torch.Generator().manual_seed(0), lambda pick: next(several))


def follows_drawn(script: TurnScript, drawn: str) -> tuple[str, str, list[float]]:
    """The text that follows if the target draws these characters; its answers alone, "-" elsewhere; temperatures."""
    tokenizer = catalog.byte_tokenizer()
    text, answers, heat = "", "", []
    for one in drawn:
        [token] = script.follow(tokenizer.encode(one, add_special_tokens=False))
        text += tokenizer.decode([token])
        answers += text[-1] if script.answering[0] else "-"
        heat.append(round(float(script.temperature[0]), 3))
    return text, answers, heat


def test_a_part_ends_at_a_stop_from_its_least_length_on_at_its_most_and_at_the_end_token() -> None:
    task = (Part("Say: ", most=6, least=3, stops=(".",)), Part(" Q?"))
    forced = "<u>Say: "
    for drawn, said in (
        ("a.c.", "a.c. Q?"),  # the first stop came too early
        ("abcdefg", "abcdef Q?"),  # the seventh is not spoken
        ("ab\n", "ab Q?"),  # the target would have ended its turn
    ):
        text, answers, _ = follows_drawn(script_of(task), "z" * len(forced) + drawn + "z" * 20)
        assert text.startswith(f"{forced}{said}\n<a>z"), text
        assert answers.strip("-").strip("z") == "", "the user's words are no answer"


def test_an_answer_is_what_the_target_says_with_the_end_that_it_chose_and_no_end_that_it_did_not() -> None:
    script = script_of((Part("Hi"),))
    text, answers, _ = follows_drawn(
        script, "-" * len("<u>Hi\n<a>") + "no.\n" + "-" * len("<u>Hi\n<a>") + "x" * 81 + "--"
    )
    assert text == "<u>Hi\n<a>no.\n<u>Hi\n<a>" + "x" * 80 + "\n<u"
    assert answers == "-" * 9 + "no.\n" + "-" * 9 + "x" * 80 + "---"
    assert scripts.LONGEST_ANSWER == 80


def test_tasks_follow_one_another_and_an_empty_part_is_left_out() -> None:
    script = script_of((Part("A", most=1), Part("")), (Part("B"), Part("C")))
    text, _, _ = follows_drawn(script, "-" * 4 + "y" + "-" * 4 + "\n" + "-" * 100)
    assert text.startswith("<u>Ay\n<a>"), text
    assert "\n<u>BC\n<a>" in text


def test_the_user_is_heated_and_most_answers_are_greedy() -> None:
    _, _, heat = follows_drawn(script_of((Part("A", most=3, least=3),)), "-" * 4 + "yyy" + "-" * 6)
    assert heat[3:6] == [0.8] * 3
    assert heat[-1] in scripts.TEMPERATURES
    assert Counter(scripts.TEMPERATURES) == {0.0: 4, 0.7: 1}


def test_a_script_follows_its_generator_and_no_other() -> None:
    def told(seed: int, others: int) -> list[object]:
        torch.manual_seed(others)
        script = TurnScript(chatting(), 8, torch.Generator().manual_seed(seed))
        return [[script.follow([5] * 8) for _ in range(200)], script.temperature.tolist()]

    assert told(1, others=0) == told(1, others=1)
    assert told(1, others=0)[0] != told(2, others=0)[0]


def drawn_tasks(count: int) -> list[Task]:
    dice = torch.Generator().manual_seed(3)
    pick: Pick = lambda among: int(torch.randint(among, (), generator=dice))  # noqa: E731
    return [draw_task(pick) for _ in range(count)]


def test_tasks_are_of_many_kinds_and_each_leaves_something_to_the_target() -> None:
    tasks = drawn_tasks(2000)
    assert all(sum(part.most for part in task) >= 20 for task in tasks)
    assert all(part.least <= part.most for task in tasks for part in task)
    assert max(len(task) for task in tasks) == 2
    told = {" ".join(part.words for part in task) for task in tasks}
    assert len(told) > 1000, "the same words again and again would be learnt by heart"
    for words in ("Question:", "```python", "capital of", "A farmer has", "List five", "Summarize"):
        assert any(words in one for one in told), words
    for one in told:
        assert "{}" not in one, one


def _runs(text: str, size: int) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z']+", text.lower())
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}


def test_no_task_has_five_words_in_a_row_of_a_prompt_that_is_measured() -> None:
    measured: set[tuple[str, ...]] = set()
    for name in BUILT_IN:
        if name not in LONG:
            measured |= {run for one in load_workload(name).questions for turn in one.turns for run in _runs(turn, 5)}
    assert len(measured) > 3000
    shared = {run for task in drawn_tasks(4000) for part in task for run in _runs(part.words, 5)} & measured
    assert not shared
