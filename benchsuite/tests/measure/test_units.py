"""Units: conversations become prompts turn by turn, with the target's own answers in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchsuite.measure.arms import Arm
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.measure.units import disjoint_batches, make_units
from benchsuite.measure.workloads import Question, workload_names
from benchsuite.report import tables
from benchsuite.tests.rig import SETTING
from specdec import Request, SamplingParams, SpecdecError, catalog

PARAMS = SamplingParams(max_new_tokens=5)


def test_a_turns_prompt_is_the_conversation_so_far_with_plains_answers() -> None:
    tokenizer = catalog.byte_tokenizer()
    question = Question(("one?", "two?", "three?"))
    asked: list[Request] = []

    def answer(request: Request) -> tuple[int, ...]:
        asked.append(request)
        return tuple(tokenizer.encode(f"answer {len(asked)}", add_special_tokens=False))

    [batch] = disjoint_batches("mine", [question], 1)
    units = list(make_units(batch, 1, PARAMS, tokenizer, answer))
    prompts = [unit.requests[0].prompt for unit in units]
    assert prompts == [question.prompt(tokenizer, [f"answer {i + 1}" for i in range(turn)]) for turn in range(3)]
    assert [request.prompt for request in asked] == prompts[:2], "the last answer is asked for by nobody"
    assert {unit.number for unit in units} == {0}, "turns of one conversation are not independent"
    assert len({request.id for unit in units for request in unit.requests}) == 3


def test_conversations_of_a_batch_end_at_their_own_turns() -> None:
    tokenizer = catalog.byte_tokenizer()
    questions = [Question(("a", "b", "c")), Question(("d",)), Question(("e", "f")), Question(("g", "h"))]
    batches = disjoint_batches("mine", questions, 2)
    sizes = [[len(unit.requests) for unit in make_units(b, 4, PARAMS, tokenizer, lambda r: (65,))] for b in batches]
    assert sizes == [[2, 1, 1], [2, 2]]
    ids = [r.id for b in batches for u in make_units(b, 4, PARAMS, tokenizer, lambda r: (65,)) for r in u.requests]
    assert len(set(ids)) == len(ids), "the noise is keyed by the id"


@pytest.mark.slow
def test_a_file_of_two_categories_is_two_columns_with_their_turns(tmp_path: Path) -> None:
    lines = [
        ("coding", ["Write a loop.", "Now a shorter one."]),
        ("math", ["What is 2 + 2?"]),
        ("coding", ["Sort it."]),
    ]
    path = tmp_path / "questions.jsonl"
    rows = [{"question_id": i, "category": name, "turns": turns} for i, (name, turns) in enumerate(lines)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    names = workload_names(str(path))
    bench = Bench(MeasuringPlan())
    bench.prepare([Arm(SETTING.replaced(workload=name, max_new_tokens=6), draft="garbage", k=2) for name in names])
    found: dict[str, Any] = {}
    for arm in bench.arms:
        found[bench.row(arm, lambda what: None).info["workload"]] = bench.row(arm, lambda what: None)
    assert list(found) == ["coding", "math"]
    assert [run["unit"] for run in found["coding"].measured] == [0, 0, 1]
    assert found["coding"].info["units"] == 2
    assert found["coding"].info["contract_checked"] == "3/3"
    results = bench.results()
    assert tables.overview(results.pooled, results.rows).headers[-3:] == ["coding", "math", "all"]


@pytest.mark.slow
def test_two_files_with_the_same_category_are_two_columns(tmp_path: Path) -> None:
    names = []
    for stem in ("one", "two"):
        path = tmp_path / f"{stem}.jsonl"
        path.write_text(json.dumps({"question_id": 1, "category": "math", "turns": [f"Count to {stem}."]}))
        names += workload_names(str(path))
    bench = Bench(MeasuringPlan())
    bench.prepare([Arm(SETTING.replaced(workload=name, max_new_tokens=4), draft="garbage", k=2) for name in names])
    assert [bench.row(arm, lambda what: None).info["workload"] for arm in bench.arms if arm.draft] == names


def test_prompts_that_fill_no_batch_are_left_out() -> None:
    questions = [Question((text,)) for text in "abcde"]
    assert [batch.places for batch in disjoint_batches("mine", questions, 2)] == [(0, 1), (2, 3)]


def test_a_batch_of_all_different_prompts_is_taken_and_of_one_more_refused() -> None:
    questions = [Question((text,)) for text in "abca"]
    assert [batch.places for batch in disjoint_batches("mine", questions, 3)] == [(0, 1, 2)]
    with pytest.raises(SpecdecError) as refused:
        disjoint_batches("mine", questions, 4)
    assert str(refused.value) == (
        "--specdec-batch 4 takes 4 different prompts at once, and mine has 3; give a batch of at most 3, more "
        "--specdec-prompts, or another --specdec-workload"
    )


def test_batches_of_the_same_prompts_are_one_independent_unit_whatever_their_order() -> None:
    questions = [Question((text,)) for text in "abbacd"]
    batches = disjoint_batches("mine", questions, 2)
    assert [batch.places for batch in batches] == [(0, 1), (2, 3), (4, 5)]
    assert [batch.number for batch in batches] == [0, 0, 1]
    assert [[question.turns[0] for question in batch.questions] for batch in batches] == [
        ["a", "b"],
        ["b", "a"],
        ["c", "d"],
    ]


def test_an_answer_is_handed_on_without_its_special_tokens_and_ids_tell_turns_apart() -> None:
    tokenizer = catalog.byte_tokenizer()
    questions = [Question(("one?", "two?")), Question(("three?", "four?"))]
    end = tokenizer.convert_tokens_to_ids("<|turn|>")
    x, a = (tokenizer.encode(text, add_special_tokens=False) for text in "xA")
    answers = {0: (*x, end), 1: (end, *a)}
    [batch] = disjoint_batches("mine", questions, 2)
    assert batch.turns == 2
    first, second = make_units(batch, 2, PARAMS, tokenizer, lambda request: answers[request.id])
    assert [request.id for request in (*first.requests, *second.requests)] == [0, 1, 2, 3]
    assert [request.params for request in second.requests] == [PARAMS] * 2
    assert [request.prompt for request in second.requests] == [
        question.prompt(tokenizer, [text]) for question, text in zip(questions, ("x", "A"), strict=True)
    ]
