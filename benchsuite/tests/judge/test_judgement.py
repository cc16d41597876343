"""The perplexity of outputs under a judge is that of its own probabilities, whichever tokenizer made the outputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from benchsuite.conformance.models import families
from benchsuite.judge.judgement import Judgement, OutputJudge, together
from benchsuite.measure.arms import Arm
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.tests.rig import SETTING
from specdec import catalog
from specdec.errors import SpecdecError

PROMPT, OUTPUT = tuple(b"a prompt in bytes"), tuple(b", and more")


@pytest.fixture(scope="module")
def reader() -> OutputJudge:
    return OutputJudge("tiny", torch.device("cpu"))


def test_a_judgement_is_the_sum_of_the_judges_own_surprise(reader: OutputJudge) -> None:
    model = catalog.load("tiny", torch.device("cpu"), torch.float32).model
    nats = 0.0
    for place, token in enumerate(OUTPUT):
        with torch.inference_mode():
            logits = model(torch.tensor([[*PROMPT, *OUTPUT[:place]]])).logits[0, -1]
        nats -= float(logits.log_softmax(dim=-1)[token])
    found = reader.surprise(PROMPT, OUTPUT)
    assert found.tokens == len(OUTPUT)
    assert found.nats == pytest.approx(nats, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(nats / len(OUTPUT)), rel=1e-5)


def test_equal_outputs_count_once(reader: OutputJudge) -> None:
    tokenizer = catalog.byte_tokenizer()
    once = reader.judge([(PROMPT, OUTPUT)], tokenizer)
    assert reader.judge([(PROMPT, OUTPUT)] * 3, tokenizer) == once
    other = reader.judge([(PROMPT, OUTPUT), (OUTPUT, PROMPT)], tokenizer)
    assert other.tokens == len(OUTPUT) + len(PROMPT)


def test_another_tokenizers_outputs_are_read_as_text(reader: OutputJudge) -> None:
    other = catalog.byte_tokenizer()
    other.add_tokens(["<|more|>"])
    assert other.get_vocab() != catalog.byte_tokenizer().get_vocab()
    mine, theirs = (
        tuple(tuple(tokenizer.encode(text)) for text in ("a prompt", " and its answer"))
        for tokenizer in (catalog.byte_tokenizer(), other)
    )
    assert reader.judge([theirs], other) == reader.judge([mine], catalog.byte_tokenizer())  # type: ignore[list-item]


def test_another_tokenizers_end_token_is_no_text_to_the_judge(reader: OutputJudge) -> None:
    other = catalog.byte_tokenizer()
    other.add_tokens(["<|more|>"])
    text = tuple(other.encode(" and its answer"))
    prompt = tuple(other.encode("a prompt"))
    assert other.eos_token_id is not None
    assert reader.judge([(prompt, (*text, other.eos_token_id))], other) == reader.judge([(prompt, text)], other)


def test_a_judge_whose_tokenizer_begins_every_text_with_a_token_reads_the_text_alone(tmp_path: Path) -> None:
    tokenizer, other = catalog.byte_tokenizer(), catalog.byte_tokenizer()
    first = str(tokenizer.eos_token)
    template = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, tokenizer.eos_token_id)])
    tokenizer.backend_tokenizer.post_processor = template
    assert tokenizer.encode("ab")[1:] == other.encode("ab")
    families.build_model("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    other.add_tokens(["<|more|>"])
    judge = OutputJudge(str(tmp_path), torch.device("cpu"))
    prompt, output = (tuple(catalog.byte_tokenizer().encode(text)) for text in ("a prompt", " and more"))
    assert judge.judge([(prompt, output)], other) == judge.surprise(prompt, output)


def test_what_the_judge_cannot_read_is_refused_with_both_lengths(reader: OutputJudge) -> None:
    most = reader._loaded.model.config.max_position_embeddings
    with pytest.raises(SpecdecError, match=rf"reads at most {most} tokens, .* has {most + 1}"):
        reader.require_room([0] * most, catalog.byte_tokenizer(), 1)
    reader.require_room([0] * most, catalog.byte_tokenizer(), 0)


def test_a_missing_part_leaves_no_judgement_of_the_whole() -> None:
    one = Judgement(1.0, 2)
    assert together([one, one]) == Judgement(2.0, 4)
    assert together([one, None]) is None
    assert together([]) is None
    assert Judgement(0.0, 0).perplexity is None


@pytest.mark.slow
def test_a_row_that_keeps_its_contract_has_plains_perplexity_and_a_lossy_one_its_own() -> None:
    bench = Bench(MeasuringPlan(prompts=2, judge="tiny"))
    strategies: list[dict[str, Any]] = [
        {"draft": "ngram", "k": 4},
        {"draft": "garbage", "policy": "topk_agree(k=200)", "k": 4},
    ]
    bench.prepare([Arm(SETTING, **strategy) for strategy in strategies])
    rows = {row.arm.draft: row for arm in bench.arms for row in [bench.row(arm, lambda what: None)]}
    assert rows["ngram"].info["judged_perplexity"] == rows[None].info["judged_perplexity"]
    assert rows["garbage"].info["judged_perplexity"] > 2 * rows[None].info["judged_perplexity"]
    # The judge is the target itself, so that the contract's own check says the same.
    shown = rows["garbage"].info["contract_checked"]
    assert f"ppl {rows['garbage'].info['judged_perplexity']:.2f}" in shown
    assert any(line.startswith("perplexity of tiny on the fixed text") for line in bench.card)


def test_an_output_or_a_prompt_of_no_tokens_is_no_surprise(reader: OutputJudge) -> None:
    assert reader.surprise(PROMPT, ()) == reader.surprise((), OUTPUT) == Judgement(0.0, 0)
    assert reader.judge([], catalog.byte_tokenizer()) == Judgement(0.0, 0)
    assert Judgement(2.0, 3) + Judgement(0.5, 4) == Judgement(2.5, 7)
    assert Judgement(2.0, 4).perplexity == pytest.approx(math.exp(0.5))
    three = [Judgement(1.0, 1), Judgement(2.0, 10), Judgement(4.0, 100)]
    assert (together(three), together(three[:1])) == (Judgement(7.0, 111), three[0])
    assert together([None, *three]) is together([None]) is None


def test_a_prompt_that_is_too_long_with_its_output_is_not_read(reader: OutputJudge) -> None:
    """Also where it was not asked before: the text may be longer in the judge's tokens than was expected."""
    with pytest.raises(SpecdecError, match="reads at most"):
        reader.surprise((1,) * 10**6, OUTPUT)
