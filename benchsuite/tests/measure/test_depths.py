"""Questions behind much text: how much, what it is, and figures by depth recomputed from the records of a run."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import mean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.gate.inputs import prompts_digest
from benchsuite.measure.arms import Arm
from benchsuite.measure.measured import Measured
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.rows import Row
from benchsuite.measure.session import Bench
from benchsuite.measure.workloads import Question, load_workload, workload_names
from benchsuite.measure.workloads.chronicle import WORKS, chronicle_text, harbour_talk
from benchsuite.measure.workloads.depths import EXACT, KINDS_BEFORE, TextBefore, depth_name, split_depth
from benchsuite.measure.workloads.modules import module_text
from benchsuite.measure.workloads.twins import twin_ids
from benchsuite.report.depths import depth_tables
from benchsuite.tests.rig import SETTING, Make
from specdec import SpecdecError
from specdec.characters import decoded

DEEP = SETTING.replaced(backend="reference", max_new_tokens=12, workload="chat@512")
ARMS = [
    Arm(setting, draft=draft, policy=policy, k=3)
    for setting in (DEEP, DEEP.replaced(workload="chat"))
    for draft, policy in (("ngram", "match"), ("tree(beam=2)", "match"))
]


@given(st.sampled_from(["chat", "my/file.jsonl", "q.jsonl:writing"]), st.integers(1, 50_000))
def test_a_name_tells_its_depth(workload: str, tokens: int) -> None:
    assert split_depth(depth_name(workload, tokens)) == (workload, tokens)
    assert depth_name(workload, 0) == workload
    assert split_depth(workload) == (workload, 0)
    assert depth_name(workload, 2048) == f"{workload}@2k"


@pytest.mark.parametrize("kind", KINDS_BEFORE)
def test_a_prompt_is_longer_by_the_tokens_that_are_asked_for(kind: str, assemble: Make) -> None:
    tokenizer = assemble().tokenizer
    for tokens, seed in ((300, 0), (300, 7), (2048, 1)):
        plain, deep = (
            Question(("What is a quay?",), before).prompt(tokenizer, ())
            for before in (None, TextBefore(kind, tokens, seed))
        )
        more = len(deep) - len(plain)
        assert (1 - EXACT) * tokens <= more <= tokens
        assert decoded(tokenizer, deep).count("What is a quay?") == 1
        assert deep[-8:] == plain[-8:]


def test_each_question_is_the_same_at_every_depth_behind_each_kind_of_text_in_turn() -> None:
    plain, deep = load_workload("chat"), load_workload("chat@2k")
    assert [one.turns for one in deep.questions] == [one.turns for one in plain.questions]
    before = [one.before for one in deep.questions if one.before]
    assert [one.kind for one in before[:4]] == ["conversation", "document", "code", "conversation"]
    assert {one.tokens for one in before} == {2048}
    assert len({one.seed for one in before}) == len(before) == len(deep.questions)
    assert (deep.name, deep.label) == ("chat@2k", "chat@2k")
    assert workload_names("chat@300") == ["chat@300"]
    again = load_workload("recurring@1k").questions
    assert len(set(again)) == len(set(load_workload("recurring").questions)) < len(again)


def test_servers_which_are_asked_in_texts_get_no_depth() -> None:
    with pytest.raises(SpecdecError, match="the workload chat@1k has text before its questions.*name it chat, and"):
        _ = load_workload("chat@1k").prompts


@pytest.mark.parametrize("kind", KINDS_BEFORE)
def test_a_text_follows_from_its_seed_and_repeats_little(kind: str) -> None:
    write = KINDS_BEFORE[kind]
    text = write(3000, 3)
    assert text == write(3000, 3) != write(3000, 4)
    assert 3000 <= len(text.split()) < 3200
    pieces = [line for line in text.splitlines() if len(line.split()) > 6]
    assert len(set(pieces)) > 0.8 * len(pieces) > 30


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_a_module_runs_and_what_it_asserts_is_computed(seed: int) -> None:
    text = module_text(400, seed)
    exec(compile(text, "module", "exec"), {})
    assert text.count("assert ") > 5
    where = random.Random(seed).choice([*re.finditer(r"== (\d+)$", text, re.MULTILINE)])
    wrong = f"{text[: where.start(1)]}{int(where[1]) + 1}{text[where.end(1) :]}"
    with pytest.raises(AssertionError):
        exec(compile(wrong, "module", "exec"), {})


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_of_a_conversation_is_what_was_told_before(seed: int) -> None:
    """How far each work has come: the last number that was told of it."""
    turns, known, answers = harbour_talk(6000, seed).split("\n\n"), dict.fromkeys(WORKS, 0), 0
    assert len(turns) % 2 == 0
    for asked, answer in zip(turns[::2], turns[1::2], strict=True):
        if found := re.fullmatch(r"How far has (.*) come\?", asked):
            answers += 1
            assert answer == f"To {known[found[1]]} parts in a hundred."
        else:
            assert asked.endswith("?") or asked.startswith("Tell me of ")
            for sentence in re.split(r"(?<=\.) ", answer):
                if work := next((work for work in WORKS if work in sentence), ""):
                    told = re.findall(r"\d+", sentence.replace("of a hundred parts", ""))
                    known[work] = 100 if "was finished" in sentence else int(told[-1])
    assert answers > 5


def test_a_conversation_has_turns_and_a_document_stands_in_the_users_own(assemble: Make) -> None:
    tokenizer = assemble().tokenizer
    talk = TextBefore("conversation", 600, 0).turns(tokenizer, "And now?")
    assert len(talk) % 2 == 1
    assert len(talk) > 3
    assert talk[0] == harbour_talk(600, 0).split("\n\n")[0]
    [text] = TextBefore("document", 600, 0).turns(tokenizer, "And now?")
    assert text.endswith("\n\nAnd now?")
    assert chronicle_text(600, 0).startswith(text.removesuffix("\n\nAnd now?"))


def test_a_later_turn_keeps_what_was_before_the_first(assemble: Make) -> None:
    tokenizer = assemble().tokenizer
    question = Question(("One?", "Two?"), TextBefore("code", 300, 0))
    first, second = question.prompt(tokenizer, ()), question.prompt(tokenizer, ("Yes.",))
    begun, whole = decoded(tokenizer, first), decoded(tokenizer, second)
    assert whole.startswith(begun)
    assert whole.removeprefix(begun).index("Yes.") < whole.removeprefix(begun).index("Two?")


def test_a_digest_tells_depths_apart_and_is_what_it_was_without() -> None:
    plain, one, two = (load_workload(name).questions for name in ("chat", "chat@1k", "chat@2k"))
    assert len({prompts_digest(each) for each in (plain, one, two)}) == 3
    assert prompts_digest([Question(("a", "b"))]) == "cccb00f1aa26751e"


def test_a_twin_is_as_deep_and_fits(assemble: Make) -> None:
    tokenizer = assemble().tokenizer
    for question in load_workload("chat@1k").questions[:3]:
        room = len(question.prompt(tokenizer, ()))
        twin = twin_ids(question, tokenizer, random.Random(1), room)
        assert 0.85 * room < len(twin) <= room
        assert twin != question.prompt(tokenizer, ())


def measured_at_depths() -> Measured:
    """A run of a chain and a tree over three questions, with and without text before them."""
    bench = Bench(MeasuringPlan(prompts=3))
    bench.prepare(ARMS)
    for arm in bench.arms:
        bench.row(arm, lambda text: None)
    return bench


def speed_by_units(row: Row) -> Mapping[tuple[str, int], float]:
    """Seconds per token of each unit, from the records of a row's runs."""
    return {(run["workload"], run["unit"]): run["decode_s"] / run["decoded"] for run in row.measured}


def accepted_by_hand(steps: Sequence[Mapping[str, Any]]) -> list[float]:
    """The share of rows' steps with a proposal at each depth that accepted there, from the records of steps."""
    had, kept = defaultdict[int, int](int), defaultdict[int, int](int)
    for step in steps:
        for _, deepest, accepted, _ in step["each"]:
            for depth in range(1, deepest + 1):
                had[depth] += 1
                kept[depth] += accepted >= depth
    return [kept[depth] / had[depth] for depth in sorted(had)]


@pytest.mark.slow
def test_figures_by_depth_are_those_of_the_records_and_every_arm_reads_the_same_text() -> None:
    [one] = measured_at_depths().results().settings
    assert list(one.by_depth) == [0, 512]
    for depth, rows in one.by_depth.items():
        plain = next(row for row in rows if row.arm.plain)
        assert len({row.figures.emitted_digest for row in rows}) == 1, "exact arms of one text"
        assert plain.figures.workload == depth_name("all", depth)
        base = speed_by_units(plain)
        for row in rows:
            assert row.failure is None
            mine = speed_by_units(row)
            assert mine.keys() == base.keys()
            assert row.figures.speedup == pytest.approx(exp(mean(log(base[unit] / mine[unit]) for unit in base)))
            assert (row.figures.acceptance_by_position or ()) == pytest.approx(accepted_by_hand(row.steps))
            assert row.figures.ttft_ms is not None
    shallow, deep = ({row.arm: row for row in rows} for rows in one.by_depth.values())
    for arm in shallow:
        lengths = [mean(run["mean_length"] for run in rows[arm].measured) for rows in (shallow, deep)]
        assert lengths[1] - lengths[0] == pytest.approx(512, rel=0.01)
    [table] = depth_tables(one)
    assert [row[1].text for row in table.cells] == ["0", "512"] * 4
    assert one.cells


@pytest.mark.slow
def test_a_run_without_depths_has_no_table_and_one_that_does_not_fit_is_refused_in_a_sentence() -> None:
    bench = Bench(MeasuringPlan(prompts=1))
    bench.prepare(ARMS[-1:])
    bench.row(bench.arms[0], lambda text: None)
    [one] = bench.results().settings
    assert (one.by_depth, depth_tables(one)) == ({}, [])
    far = Arm(DEEP.replaced(workload="chat@8k"), draft="ngram", k=3)
    with pytest.raises(SpecdecError, match=r"^the workload chat@8k does not fit tiny: the prompt .* more positions$"):
        Bench(MeasuringPlan(prompts=1)).prepare([far])
