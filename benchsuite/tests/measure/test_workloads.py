"""Workloads: files in two formats become named lists of conversations, and prompts stay within the bound given."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from benchsuite.measure import workloads
from benchsuite.measure.workloads import PLACEHOLDER, Question, Workload, load_workload, workload_names
from benchsuite.tests.rig import slow_after
from specdec import SpecdecError, catalog


def question_file(folder: Path, *rows: object) -> str:
    """The path of a file of these lines; a text is a line as it is, anything else is written as JSON."""
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path = folder / "mine.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def asked(text: str, category: str | None = None) -> dict[str, Any]:
    """A line with one turn."""
    return {"question_id": 1, "turns": [text]} | ({"category": category} if category else {})


def bytewise(template: bool) -> PreTrainedTokenizerBase:
    """The byte tokenizer, with or without its chat template."""
    tokenizer = catalog.byte_tokenizer()
    if not template:
        tokenizer.chat_template = None
    return tokenizer


@cache
def merging() -> PreTrainedTokenizerBase:
    """A tokenizer with merges, learned from the prompts of the six kinds."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learn = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text for kind in workloads.KINDS for text in load_workload(kind).prompts], learn)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_workloads_are_listed_without_torch_and_transformers() -> None:
    code = (
        "import sys; from benchsuite.measure import workloads; workloads.load_workload('chat'); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kind", [kind for kind in workloads.BUILT_IN if kind != "recurring"])
def test_each_kind_has_ten_different_prompts_that_fit_the_template(kind: str) -> None:
    text = load_workload(kind)
    assert len(text.prompts) == len(set(text.prompts)) == workloads.PROMPTS
    for prompt, ids in zip(text.prompts, text.encode(catalog.byte_tokenizer()), strict=True):
        assert catalog.byte_tokenizer().decode(list(ids)) == f"<|turn|>user: {prompt}<|turn|>"


def test_a_prompt_is_the_whole_conversation_up_to_its_turn() -> None:
    tokenizer = bytewise(template=True)
    texts = [tokenizer.decode(list(Question(("a", "b", "c")).prompt(tokenizer, "xyz"[:n]))) for n in range(3)]
    turns = ["user: a", "assistant: x", "user: b", "assistant: y", "user: c"]
    assert texts == ["".join(f"<|turn|>{turn}<|turn|>" for turn in turns[:n]) for n in (1, 3, 5)]


def test_a_prompt_without_a_template_is_the_texts_line_by_line() -> None:
    tokenizer = bytewise(template=False)
    assert tokenizer.decode(list(Question(("a", "b", "c")).prompt(tokenizer, "xy"))) == "a\nx\nb\ny\nc"


def test_a_conversation_that_the_user_does_not_end_is_refused() -> None:
    tokenizer = bytewise(template=True)
    with pytest.raises(SpecdecError, match="2 answers were given; expected 0 to 1"):
        Question(("a", "b")).prompt(tokenizer, ("x", "y"))
    for texts in ((), ("a", "x")):
        with pytest.raises(SpecdecError, match=f"of {len(texts)} texts does not end with the user"):
            catalog.chat_ids(tokenizer, *texts)


def test_a_file_is_one_workload_for_each_category_in_order_of_appearance(tmp_path: Path) -> None:
    path = question_file(
        tmp_path, asked("1", "writing"), asked("2", "math"), "", asked("3", "writing"), asked("4", "a: b")
    )
    names = workload_names(path)
    assert names == [f"{path}:writing", f"{path}:math", f"{path}:a: b"]
    assert [load_workload(name).prompts for name in names] == [("1", "3"), ("2",), ("4",)]
    assert load_workload(path).prompts == ("1", "2", "3", "4")
    assert [workload_names(name) for name in names] == [[name] for name in names]


def test_a_file_without_categories_and_a_kind_are_one_workload_each(tmp_path: Path) -> None:
    path = question_file(tmp_path, asked("1"), {"turns": ["2"], "category": None})
    assert (workload_names(path), load_workload(path).prompts) == ([path], ("1", "2"))
    assert [workload_names(kind) for kind in workloads.BUILT_IN] == [[kind] for kind in workloads.BUILT_IN]


@pytest.mark.parametrize("name", ["maths", ""])
@pytest.mark.parametrize("call", [workload_names, load_workload])
def test_an_unknown_category_is_refused_with_those_of_the_file(call: Any, name: str, tmp_path: Path) -> None:
    path = question_file(tmp_path, asked("1", "writing"), asked("2", "math"))
    with pytest.raises(SpecdecError, match=f"unknown category '{name}'.*choices: math, writing.*mine.jsonl"):
        call(f"{path}:{name}")


@pytest.mark.parametrize("call", [workload_names, load_workload])
def test_an_unknown_workload_is_refused_with_the_kinds(call: Any) -> None:
    with pytest.raises(SpecdecError, match=r"unknown workload 'poetry'; choices: chat.*must end in \.jsonl"):
        call("poetry")
    with pytest.raises(SpecdecError, match=r"none\.jsonl cannot be read: No such file"):
        call("none.jsonl:chat")


@pytest.mark.parametrize(
    ("name", "label"),
    [("question_answering", "question_answering"), ("a/b.c.jsonl", "b.c"), ("a/b.jsonl:low: entropy", "low: entropy")],
)
def test_a_column_is_headed_by_the_kind_the_category_or_the_files_stem(name: str, label: str) -> None:
    assert Workload(name, ()).label == label


def test_turns_and_messages_are_the_same_conversation(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "first"}, {"role": "user", "content": "second"}]
    path = question_file(
        tmp_path, {"turns": ["first", "second"], "reference": ["x"]}, {"messages": said, "source": "y"}
    )
    assert load_workload(path).questions == (Question(("first", "second")),) * 2
    assert load_workload(path).prompts == ("first", "first")


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path) -> None:
    text = "one\u2028two\x85three"
    assert load_workload(question_file(tmp_path, asked(text))).prompts == (text,)


def test_a_repeated_question_is_kept_and_equal() -> None:
    questions = load_workload("recurring").questions
    assert (len(questions), len(set(questions))) == (6, 4)
    assert questions[0] == questions[2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: expected a JSON object"),
        ("[1]", "line 2: expected a JSON object"),
        ({"question_id": 1}, "line 2: expected a JSON object"),
        ({"turns": []}, "line 2: expected a JSON object"),
        ({"turns": "a text"}, "line 2: expected a JSON object"),
        ({"turns": ["a"], "category": 7}, "line 2: expected a JSON object"),
        ({"messages": ["a"]}, "line 2: expected a JSON object"),
        ({"turns": ["  "]}, "line 2: the first turn is empty"),
        ({"turns": [7]}, "line 2: the first turn is empty"),
        ({"turns": ["a", " "]}, "line 2: turn 2 is empty"),
        ({"messages": [{"role": "system", "content": "a"}]}, "line 2: .*roles.*system.*expected the user's alone"),
        ({"turns": ["a"]}, "line 2: every line must have a category, or none"),
    ],
)
def test_a_workload_file_with_a_bad_line_is_refused_by_its_number(line: object, message: str, tmp_path: Path) -> None:
    path = question_file(tmp_path, asked("a question", "x"), line)
    with pytest.raises(SpecdecError, match=f"mine.jsonl, {message}"):
        load_workload(path)


def test_an_empty_workload_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="has no questions"):
        load_workload(question_file(tmp_path, ""))


def test_a_workload_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b"PAR1\xff")
    with pytest.raises(SpecdecError, match="is no text in UTF-8 .line 1, .*; save it as UTF-8"):
        load_workload(str(path))


def test_placeholders_are_refused_with_their_number_and_the_script_that_fills_them(tmp_path: Path) -> None:
    held = asked(f"{PLACEHOLDER}\n\nSummarise: {{article}}", "summarization")
    path = question_file(tmp_path, asked("1", "math"), held, asked("2", "math"), {**held, "turns": ["a", PLACEHOLDER]})
    for name in (path, f"{path}:math"):
        with pytest.raises(SpecdecError, match=r"mine\.jsonl, line 2: .*in 2 of the file's 4 questions.*prepare\.py"):
            load_workload(name)


def test_the_first_questions_are_a_workload_of_the_same_name() -> None:
    whole = load_workload("chat")
    assert whole.first(2) == Workload("chat", whole.questions[:2])
    assert whole.first(None) == whole


def test_the_longest_prompt_of_single_turns_is_exact() -> None:
    text, tokenizer = load_workload("chat"), bytewise(template=True)
    assert text.longest(tokenizer, 64) == max(map(len, text.encode(tokenizer)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "tokenizer", slow_after(1, [bytewise(True), bytewise(False), merging()]), ids=["bytes", "text", "merges"]
)
@given(seed=st.integers(0, 2**32), most=st.integers(1, 128))
def test_no_prompt_is_longer_than_the_longest(tokenizer: PreTrainedTokenizerBase, seed: int, most: int) -> None:
    draw = random.Random(seed)
    noise = [[draw.randrange(len(tokenizer)) for _ in range(most)] for _ in range(2)]
    answers = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in noise]
    text = Workload("mine.jsonl", (Question(("a question", "go on", "and then?")), Question(("short",))))
    prompts = [text.questions[0].prompt(tokenizer, answers[:n]) for n in range(3)]
    assert max(map(len, prompts)) <= text.longest(tokenizer, most)


def test_the_longest_prompt_is_nearly_reached_by_broken_characters() -> None:
    tokenizer, question = bytewise(template=True), Question(("a", "b", "c"))
    broken = tokenizer.decode([tokenizer.convert_tokens_to_ids("ÿ")] * 40)
    room = Workload("mine.jsonl", (question,)).longest(tokenizer, 40) - len(question.prompt(tokenizer, [broken] * 2))
    assert 0 <= room <= 2 * 16


def test_copy_rate_counts_what_bigram_lookup_would_guess() -> None:
    assert workloads.copy_rate([1, 2, 3], [1, 2, 3]) == pytest.approx(1 / 3)
    assert workloads.copy_rate([1, 2, 3, 1, 2, 4], [1, 2, 4]) == pytest.approx(1 / 3), "the last occurrence counts"
    assert workloads.copy_rate([1, 2, 3], [7, 8, 9]) == 0
    assert workloads.copy_rate([1, 2] * 4, [1, 2] * 4) == 1


def test_a_conversation_has_three_turns_and_other_kinds_one() -> None:
    for kind in workloads.BUILT_IN:
        turns = {len(question.turns) for question in load_workload(kind).questions}
        assert turns == ({3} if kind == "multi_turn" else {1}), kind


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "words"), workloads.LONG.items())
def test_a_chronicle_repeats_no_sentence_much_and_no_long_piece(kind: str, words: int) -> None:
    """Every sentence tells a change: it comes back only where the same thing happens to the same people."""
    texts = load_workload(kind).prompts
    assert all(words <= len(text.split()) < words + 250 for text in texts)
    for text in texts:
        told = [sentence for day in text.split("\n\n")[1:-1] for sentence in day.split(". ")[2:]]
        assert len(set(told)) > 0.97 * len(told)
        pieces = text.split()
        runs = [tuple(pieces[place : place + 12]) for place in range(len(pieces) - 11)]
        assert len(set(runs)) > 0.95 * len(runs)


def test_the_chronicles_of_a_length_share_little() -> None:
    days = [" ".join(text.split("\n\n")[1:-1]).split() for text in load_workload("long_2k").prompts]
    pieces = [{tuple(told[place : place + 8]) for place in range(len(told) - 7)} for told in days]
    for place, one in enumerate(pieces):
        for other in pieces[place + 1 :]:
            assert len(one & other) < 0.1 * len(one)  # of the sentences' patterns


def test_no_two_prompts_of_different_kinds_are_equal() -> None:
    prompts = [prompt for kind in workloads.BUILT_IN if kind != "recurring" for prompt in load_workload(kind).prompts]
    assert len(prompts) == len(set(prompts))


@pytest.mark.parametrize(("known", "each"), [([], 3), (["\ufffd"], 2)], ids=["bytes", "a token of its own"])
def test_for_an_answer_there_is_room_for_its_text_tokenized_again(known: list[str], each: int) -> None:
    """Three tokens of one where each is a byte, two elsewhere, and sixteen more."""
    tokenizer = bytewise(template=True)
    tokenizer.add_tokens(known)
    question = Question(("a", "b", "c"))
    room = Workload("mine.jsonl", (question,)).longest(tokenizer, 40) - len(question.prompt(tokenizer, ["", ""]))
    assert room == 2 * (40 * each + 16)


def test_copy_rate_is_the_share_that_a_search_backwards_guesses() -> None:
    dice = random.Random(0)
    for _ in range(40):
        prompt, output = ([dice.randrange(3) for _ in range(dice.randrange(most))] for most in (9, 12))
        text, hits = [*prompt, *output], 0
        for at in range(max(len(prompt), 2), len(text)):
            places = [n for n in range(at - 1, 1, -1) if text[n - 2 : n] == text[at - 2 : at]]
            hits += bool(places) and text[places[0]] == text[at]
        assert workloads.copy_rate(prompt, output) == (hits / len(output) if output else 0)
    assert (workloads.PROMPTS, len(workloads.KINDS)) == (10, 6)


def test_a_line_without_a_category_among_lines_without_is_read_and_blank_lines_are_not_counted(tmp_path: Path) -> None:
    path = question_file(tmp_path, "", asked("1"), "  ", {"turns": ["2"]}, {"turns": ["a", 7]})
    with pytest.raises(SpecdecError, match=r"mine.jsonl, line 5: turn 2 is empty"):
        load_workload(path)
    path = question_file(tmp_path, asked("1"), asked("2", "math"))
    with pytest.raises(SpecdecError, match=r"line 2: every line must have a category, or none"):
        load_workload(path)
