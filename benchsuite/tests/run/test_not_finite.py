"""A target whose logits are no numbers: its outputs are equal in every decoder, and no row says that they are exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.judge.ties import Judge
from benchsuite.tests.rig import Run
from specdec import Registry, SpecdecError, catalog
from specdec.model import ArenaModel


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_judge_reads_no_distribution_out_of_logits_that_are_no_numbers(value: float) -> None:
    model = families.build_model("llama")
    judge = Judge(ArenaModel(model, Registry().backend("reference")), range(40))
    assert judge.entropy((5, 6), (7, 8)) > 0
    model.get_input_embeddings().weight.data[9].fill_(value)
    assert judge.entropy((5, 6), (7, 8)) > 0, "the token is not read"
    for prompt, output, count in (
        ((5, 9), (7, 8), "2 of an output's 2"),
        ((5, 6), (7, 9, 8), "[1-3] of an output's 3"),
    ):
        for read in (judge.entropy, judge.surprise):
            with pytest.raises(SpecdecError, match=f"NaN or infinite at {count} tokens"):
                read(prompt, output)


@pytest.mark.slow
def test_a_prompt_without_a_distribution_costs_its_own_workload_alone(run: Run, tmp_path: Path) -> None:
    tiny = catalog.load("tiny", torch.device("cpu"), torch.float32)
    tiny.model.model.embed_tokens.weight.data[tiny.tokenizer("Z")["input_ids"][0]].fill_(float("inf"))
    for part in (tiny.model, tiny.tokenizer):
        part.save_pretrained(tmp_path / "m")
    for name, text in (("good", "hello"), ("bad", "helloZ")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"turns": [text]}))
    done = run(
        *("-m", "pytest", "--pyargs", "benchsuite.test_speculation", "--specdec-target", "m", "--benchmark-quiet"),
        *("--specdec-workload", "bad.jsonl,good.jsonl", "--specdec-draft", "ngram", "--specdec-peer", "none"),
        *("--specdec-max-new-tokens", "8", "--specdec-results", "out"),
    )
    assert done.returncode == 1
    assert "3 passed, 3 errors" in done.stdout
    assert "the target's logits are NaN or infinite" in done.stdout
    assert "During handling" not in done.stdout
    [found] = (tmp_path / "out").glob("*/benchmark.json")
    rows = json.loads(found.read_text())["rows"]
    assert len(rows) == 3
    alone = run(
        *("-m", "pytest", "--pyargs", "benchsuite.test_speculation", "--specdec-target", "m", "--benchmark-quiet"),
        *("--specdec-workload", "good.jsonl", "--specdec-draft", "ngram", "--specdec-peer", "none"),
        *("--specdec-max-new-tokens", "8", "--specdec-results", "alone"),
    )
    assert alone.returncode == 0
    [found] = (tmp_path / "alone").glob("*/benchmark.json")
    expected = json.loads(found.read_text())["rows"]
    assert [row["emitted_digest"] for row in rows] == [row["emitted_digest"] for row in expected], "no NaN was left"
