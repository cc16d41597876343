"""Each type of model of transformers ends its trial as docs/families.md says; the trial finds planted faults."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import Run
from benchsuite.workshop.sweep.__main__ import sweep_main
from benchsuite.workshop.sweep.battery import (
    CRASHED,
    EXACT,
    OTHER,
    REFUSED,
    WRONG,
    FamilyOutcome,
    NotItsOwn,
    compare_decoding,
    compare_forwards,
    spread_model,
    try_family,
)
from benchsuite.workshop.sweep.configs import SPAN, VOCABULARY, class_names, config_by_rule, model_kinds
from benchsuite.workshop.sweep.page import PAGE, families_page, read_families
from specdec import ArenaModel

QUICK = ("llama", "mistral", "gpt2", "gemma2", "bloom", "mamba", "bert", "bart", "diffllama", "dory", "falcon_h1")
"""Types that are tried in every run of the tests."""

pytestmark = pytest.mark.families


@pytest.mark.parametrize("kind", QUICK)
def test_a_type_of_model_ends_its_trial_as_the_page_says(kind: str) -> None:
    assert try_family(kind) == read_families(PAGE.read_text())[kind]


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("kind", model_kinds())
def test_the_command_writes_the_page_s_line(kind: str, run: Run, tmp_path: Path) -> None:
    done = run("-m", "benchsuite.workshop.sweep", kind, "--page", str(tmp_path / "page.md"))
    assert done.returncode == 0, done.stderr
    assert read_families((tmp_path / "page.md").read_text()) == {kind: read_families(PAGE.read_text())[kind]}


@pytest.mark.slow  # transformers of another version builds others
def test_the_page_has_each_type_that_transformers_builds_once() -> None:
    assert sorted(read_families(PAGE.read_text())) == sorted(model_kinds())


def test_readme_has_the_page_s_count() -> None:
    found = read_families(PAGE.read_text())
    exact = sum(one.result == EXACT for one in found.values())
    words = " ".join((PAGE.parents[1] / "README.md").read_text().split())
    assert f"{exact} of the {len(found)} types of model" in words


def test_a_page_is_read_as_it_was_written() -> None:
    outcomes = {
        "llama": FamilyOutcome("llama", EXACT),
        "bloom": FamilyOutcome("bloom", REFUSED, "one | two"),
        "bert": FamilyOutcome("bert", OTHER, "reads: later"),
        "gpt2": FamilyOutcome("gpt2", WRONG, "a window of 3"),
        "mamba": FamilyOutcome("mamba", CRASHED, "SIGSEGV"),
    }
    page = families_page(outcomes)
    assert read_families(page) == outcomes
    assert class_names("llama") == "LlamaForCausalLM"
    assert "| llama | LlamaForCausalLM |" in page
    with pytest.raises(ValueError, match="has a section 'Others'; expected Runs exactly, Refused"):
        read_families(f"{page}\n## Others (3)\n")


def test_a_configuration_made_by_rule_is_small_and_has_its_boundaries() -> None:
    config = config_by_rule("mistral")
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (VOCABULARY, 32, 4)
    assert (config.sliding_window, config.num_key_value_heads, config.head_dim) == (SPAN, 2, 8)
    assert sum(one.numel() for one in spread_model("mistral").parameters()) < 100_000


@pytest.mark.parametrize("fault", ["window", "token", "decoding"])
def test_the_comparison_finds_a_model_that_differs(fault: str) -> None:
    """A window shorter by one token; the embedding of a token that the tree alone has; half of the head."""
    model = spread_model("mistral")
    own = copy.deepcopy(model)
    target = ArenaModel(model, registry().backend())
    if fault == "window":
        own.config.sliding_window -= 1
        with pytest.raises(NotItsOwn, match=r"^a logit is not its own: a window of 1 after 21 tokens, row 0 of two"):
            compare_forwards(target, own)
    elif fault == "token":
        compare_forwards(target, own)
        with torch.no_grad():
            own.model.embed_tokens.weight[0] += 1.0
        with pytest.raises(NotItsOwn, match=r"slot 4 of a tree after \d+ tokens"):
            compare_forwards(target, own)
    else:
        compare_decoding(target, own)
        with torch.no_grad():
            own.lm_head.weight[:32] *= -1
        with pytest.raises(NotItsOwn, match=r"token \d+ after a prompt of 21 is not generate's"):
            compare_decoding(target, own)


def test_an_unknown_type_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sweep_main(["lama"])
    assert "builds no model of type lama; expected one of" in capsys.readouterr().err
