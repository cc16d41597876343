"""A target over several processes: the tokens of one process, one writer, and failures by the name of the rank.

All runs are forked from one process that has imported everything (``ranks_rig``), one of them by torchrun's own agent.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.store.journal import Journal
from benchsuite.tests import ranks_rig
from benchsuite.tests.rig import Python, Run, child_variables, made_once
from specdec import SpecdecError
from specdec.layers import layers_of
from specdec.ranks import GRACE, SILENCE, Life, Place, diverged, failed_alone
from specdec.sharding import shard_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked after imports, and ended by pidfd")

TWO = ("--pyargs", "benchsuite.test_speculation", "--specdec-target", "tiny", "--specdec-workload", "chat,reasoning")
LIMIT = ("--specdec-timeout", "20")  # of a rank that waits for another, were it not found
SHORT = (*TWO, "--specdec-max-new-tokens", "6", "--specdec-peer", "none", *LIMIT)
KEPT = ("--specdec-results", "out", "-p", "no:cacheprovider")
NGRAM = (*SHORT, "--specdec-draft", "ngram", "--specdec-prompts", "1", *KEPT, "-q")

PLANTED = """
import os, signal
import specdec.ranks
from benchsuite.measure.paired import Comparison
from specdec import SpecdecError
from specdec_plugins.controllers.goodput import Goodput
from specdec_plugins.drafts.ngram import Ngram

specdec.ranks.GRACE = 0.2
run, propose, second = Comparison._run, Ngram.propose, []

def planted_run(self, unit, place):
    if self._plain.setting.workload == "reasoning":
        second.append(unit)
    return run(self, unit, place)

def planted(self, context):
    window = propose(self, context)
    if second and os.environ["RANK"] in {ranks!r}:
        {fault}
    return window

def pytest_collection_modifyitems(items):
    {collected}

Comparison._run, Ngram.propose = planted_run, planted
Goodput.next_k = lambda self, stats: 1 + 2 * int(os.environ["RANK"])
"""
"""A plugin of pytest: in the second workload, ngram does something else on some ranks; goodput's clock is the rank;
something happens to the items that were collected."""


@pytest.fixture(scope="module")
def ranked_outputs(
    python: Python, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> list[dict[str, Any]]:
    """What each rank found in every case."""
    folder = tmp_path_factory.mktemp("cases")
    code = f"from benchsuite.tests.ranks_rig import *; ranked_cases({bool(pytestconfig.getoption('specdec_deep'))})"

    def make() -> list[dict[str, Any]]:
        done = python(("-c", code), folder, child_variables("", {}))
        assert done.returncode == 0, done.stderr
        files = [folder / f"found{rank}.json" for rank in (0, 1)]
        assert all(file.exists() for file in files), ranks_rig.rank_texts(folder)
        return [json.loads(file.read_text()) for file in files]

    found: list[dict[str, Any]] = made_once(tmp_path_factory, "ranked_outputs", make)
    return found


@pytest.fixture
def two(run: Run, tmp_path: Path) -> Any:
    """Run pytest on two ranks, with a fault planted on some of them; returns their exit codes and texts."""

    def call(
        *arguments: str, fault: str = "pass", ranks: str = "", collected: str = "pass"
    ) -> tuple[list[int], list[str]]:
        (tmp_path / "planted.py").write_text(PLANTED.format(fault=fault, ranks=ranks, collected=collected))
        code = (
            f"from benchsuite.tests.ranks_rig import ranked_pytest; ranked_pytest(*{[*arguments, '-p', 'planted']!r})"
        )
        done = run("-c", code, path=str(tmp_path))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), list(ranks_rig.rank_texts(tmp_path))

    return call


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "draft", "temperature"),
    [
        pytest.param(*case, marks=[] if case in ranks_rig.tiny_cases(every=False) else pytest.mark.deep)
        for case in ranks_rig.tiny_cases(every=True)
    ],
)
def test_two_ranks_emit_the_tokens_of_one_process(
    family: str, draft: str | None, temperature: float, ranked_outputs: list[dict[str, Any]]
) -> None:
    zero, one = (found[f"{family} {draft} {temperature:g}"] for found in ranked_outputs)
    assert zero == one, "the ranks emitted different tokens"
    assert not zero["bugs"]
    assert zero["equal"] == 3 or zero["bugs"] == [], "a difference that no tie explains"


@pytest.mark.slow
@pytest.mark.parametrize("family", ranks_rig.FAMILIES)
def test_logits_of_two_ranks_lie_within_the_bound_of_certified_ties(
    family: str, ranked_outputs: list[dict[str, Any]]
) -> None:
    for found in ranked_outputs:
        apart, bound = found[f"{family} logits"]
        assert 0 <= apart <= bound
    assert ranked_outputs[0][f"{family} logits"] == ranked_outputs[1][f"{family} logits"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ranks_rig.FAMILIES)
def test_every_rank_has_the_whole_states_of_a_layer(family: str, ranked_outputs: list[dict[str, Any]]) -> None:
    assert [found[f"{family} states"] for found in ranked_outputs] == ["", ""]


@pytest.mark.slow
@pytest.mark.deep
def test_smollm2_over_two_ranks_emits_the_tokens_of_one_process(run: Run, tmp_path: Path) -> None:
    done = run("-c", "from benchsuite.tests.ranks_rig import *; ranked_smollm2()")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "found1.json").exists(), ranks_rig.rank_texts(tmp_path)
    zero, one = (json.loads((tmp_path / f"found{rank}.json").read_text()) for rank in (0, 1))
    assert zero == one
    assert zero.pop("cut") == (
        "each of 2 ranks holds a part of MLP, head, embedding; "
        "whole on every rank: attention (9 heads do not divide by 2)"
    )
    apart, bound = zero.pop("logits")
    assert 0 < apart <= bound, "sums of two parts are rounded otherwise"
    assert set(zero) == {"None", "tree(beam=2, depth=2)"}
    assert not [bug for found in zero.values() for bug in found["bugs"]]


@pytest.mark.slow
def test_a_run_on_two_ranks_is_written_and_shown_once(two: Any, tmp_path: Path) -> None:
    arms = ("--specdec-arm", "oracle(0.8)/match/goodput/4,tree/match,ngram/match")
    more = ("--specdec-batch", "2", "--specdec-temperature", "0.8", "--junitxml", "out$RANK.xml")
    files = ("--benchmark-json", "out$RANK.json")
    codes, texts = two(*SHORT, *arms, *more, *files, "--specdec-prompts", "2", *KEPT)
    assert codes == [0, 0], texts
    assert "10 passed" in texts[0]
    assert texts[1] == "", "rank 1 is quiet"
    assert "2 ranks over gloo: each of 2 ranks holds a part of attention, MLP, head, embedding" in texts[0]
    [folder] = (tmp_path / "out").iterdir()
    assert len(list((folder / "cells").iterdir())) == 2
    journal = Journal.load(folder)
    assert journal.said["machine"]["ranks"] == "2 ranks over gloo"
    assert all(cell.made["machine"].endswith(", 2 ranks over gloo") for cell in journal.cells())
    assert (tmp_path / "out0.xml").read_text().count("<testcase") == 10
    assert not (tmp_path / "out1.xml").exists()
    assert len(json.loads((tmp_path / "out0.json").read_text())["benchmarks"]) == 10
    assert not (tmp_path / "out1.json").exists() or not (tmp_path / "out1.json").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "codes", "named"),
    [
        # test_torchrun_with_a_killed_rank_fails_and_says_which kills one as well
        pytest.param(
            "os.kill(os.getpid(), signal.SIGKILL)", [1, -9], "rank 1 was killed: its process ", marks=pytest.mark.deep
        ),
        ("raise RuntimeError('planted')", [1, 1], "rank 1 failed: ngram: RuntimeError: planted"),
        ("window.tokens[:, -1] = 7", [1, 1], "rank 1 diverged from rank 0, found at a step"),
    ],
    ids=["killed", "raises", "diverges"],
)
def test_a_failure_of_one_rank_ends_all_by_its_name_and_keeps_the_finished_rows(
    fault: str, codes: list[int], named: str, two: Any, tmp_path: Path
) -> None:
    ended, texts = two(*NGRAM, fault=fault, ranks="1")
    assert ended == codes, texts
    assert f"specdec-bench: {named}" in texts[0]
    assert "3 rows were finished; results: " in texts[0]
    assert [named in text for text in texts] == [True, codes[1] == 1]
    assert ["rows were finished" in text for text in texts] == [True, False], "rank 0 alone shows what is there"
    assert " Speculative decoding " in texts[0]
    [folder] = (tmp_path / "out").iterdir()
    assert len(list((folder / "cells").iterdir())) == 1
    journal = Journal.load(folder)
    assert not journal.said["complete"]
    assert [line for line in journal.said["card"] if line.startswith(f"ended early: {named}")]
    assert len(json.loads((folder / "benchmark.json").read_text())["rows"]) == 3


@pytest.mark.slow
def test_errors_that_differ_between_the_ranks_end_the_run(two: Any) -> None:
    ended, texts = two(*NGRAM, fault="raise RuntimeError('planted ' + os.environ['RANK'])", ranks="01")
    assert ended == [1, 1], texts
    for text in texts:
        assert "rank 0 failed: ngram: RuntimeError: planted 0; rank 1 failed: ngram: RuntimeError: planted 1" in text


@pytest.mark.slow
def test_a_refusal_that_all_ranks_meet_fails_its_row_alone(two: Any) -> None:
    codes, texts = two(*NGRAM, fault="raise SpecdecError('planted refusal')", ranks="01")
    assert codes == [1, 1]
    assert "1 failed, 5 passed" in texts[0]
    assert "ngram could not be measured: planted refusal" in texts[1]
    assert len(texts[1].splitlines()) == 1, "rank 1 says what failed and nothing else"
    assert "rank 0 failed" not in texts[0], "pytest has said it"


@pytest.mark.slow
def test_ranks_whose_rows_are_in_another_order_end_before_they_measure(two: Any) -> None:
    codes, texts = two(*NGRAM, collected="items[:] = items[:: 1 - 2 * int(os.environ['RANK'])]")
    assert codes == [1, 1], texts
    said = "rank 1 diverged from rank 0, found at the order of the rows: if a plugin such as pytest-randomly shuffles"
    for text in texts:
        assert said in text


@pytest.mark.slow
def test_torchrun_with_a_killed_rank_fails_and_says_which(run: Run, tmp_path: Path) -> None:
    kill = PLANTED.format(fault="os.kill(os.getpid(), signal.SIGKILL)", ranks="1", collected="pass")
    (tmp_path / "planted.py").write_text(kill)
    code = f"from benchsuite.tests.ranks_rig import under_torchrun; under_torchrun(*{[*NGRAM, '-p', 'planted']!r})"
    done = run("-c", code, path=str(tmp_path))
    assert done.returncode == 1
    assert "ChildFailedError" in done.stderr, "torchrun's own report"
    assert "specdec-bench: rank 1 was killed: its process " in done.stderr
    assert "3 rows were finished; results: " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--specdec-dtype", "int8"), "--specdec-dtype int8 with 2 ranks: weights are rounded in groups"),
        (("--specdec-exact",), "--specdec-exact with 2 ranks: the sums over ranks"),
        (("--specdec-budget", "1s"), "--specdec-budget with 2 ranks: it goes by the clock"),
        (("--gate-save", "base.json"), "--gate with 2 ranks"),
        (
            ("--specdec-peer", "transformers_compiled"),
            "--specdec-peer transformers_compiled with 2 ranks: only transformers and",
        ),
    ],
    ids=lambda case: case[0] if isinstance(case, tuple) else "",
)
def test_what_several_ranks_cannot_do_is_refused_before_they_meet(
    arguments: tuple[str, ...], said: str, run: Run
) -> None:
    places = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}
    done = run("-m", "pytest", *SHORT, *arguments, **places)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr


@pytest.mark.parametrize("missing", ["LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_half_of_torchruns_variables_is_refused(missing: str) -> None:
    whole = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    assert Place.of(whole) == Place(1, 2, 1, "here", 29500)
    assert Place.of({**whole, "WORLD_SIZE": "1"}) is None
    del whole[missing]
    with pytest.raises(SpecdecError, match=f"'{missing}' is missing.*torchrun"):
        Place.of(whole)


def test_the_rank_that_most_others_disagree_with_has_diverged() -> None:
    assert diverged("a step", [[1, 4], [1, 5]]).startswith("rank 1 diverged from rank 0, found at a step")
    assert diverged("a step", [[1, 4], [1, 5], [1, 5]]).startswith("rank 0 diverged from rank 1,")
    assert diverged("a step", [[1, 4], [1, 5], [1, 4], [1, 6]]).startswith("ranks 1, 3 diverged from rank 0,")


def test_a_failure_names_its_rank_its_work_and_who_did_not_fail() -> None:
    assert failed_alone([("ngram", ""), ("ngram", "KeyError: 3"), ("ngram", "")]) == (
        "rank 1 failed: ngram: KeyError: 3; ranks 0, 2 did not fail"
    )
    apart = failed_alone([("ngram", ""), ("tree", "")])
    assert apart == "the ranks went apart: rank 0 was at ngram; rank 1 was at tree"


STATE = {"beat": 1, "machine": "here", "process": 7}


def test_a_silent_rank_is_lost_and_one_that_gives_signs_of_life_is_not() -> None:
    life = Life(0.0)
    assert life.lost(1, STATE, 0, SILENCE - 1) is None
    assert life.lost(1, STATE, 0, 2 * SILENCE - 2) is None, "the last sign of life was seen a moment ago"
    said = life.lost(1, STATE, 0, 2 * SILENCE)
    assert said
    assert said.startswith("rank 1 was lost: its process 7 on here has given no sign of life")
    assert life.lost(1, {**STATE, "beat": 2}, 0, 3 * SILENCE) is None


def test_a_rank_whose_process_is_gone_was_killed_unless_it_said_why_it_ends() -> None:
    life = Life(0.0, gone=True)
    assert str(life.lost(1, STATE, 0, 0.0)).startswith("rank 1 was killed: its process 7 on here")
    assert life.lost(1, {**STATE, "ended": "a reason"}, 0, 0.0) == "a reason"
    assert life.lost(1, {**STATE, "done": True}, 0, 0.0) is None, "it left, and this rank is about to"
    assert life.lost(1, {**STATE, "failed": "ngram: no", "point": 3}, 3, 0.0) == "rank 1 failed: ngram: no"


def test_a_failed_rank_is_given_grace_until_this_one_is_where_it_failed() -> None:
    failed = {**STATE, "failed": "ngram: no", "point": 3}
    life = Life(0.0)
    assert life.lost(1, failed, 3, 1.0) is None
    assert life.lost(1, failed, 3, 1.0 + GRACE) == "rank 1 failed: ngram: no"
    life = Life(0.0)
    assert life.lost(1, failed, 3, 1.0) is None
    assert life.lost(1, failed, 4, 1.0 + GRACE) is None, "this rank is there too: they compare how they ended"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_parts_of_the_ranks_make_the_whole_matrices(ranks: int) -> None:
    whole = dict(families.build_model("llama").named_parameters())
    parts = [families.build_model("llama") for _ in range(ranks)]
    for rank, model in enumerate(parts):
        made = shard_model(model, rank, ranks)
        assert ("attention" in made.cut) == (ranks == 2), "4 heads and 2 of keys and values"
        assert made.heads == (2 if ranks == 2 else 1)
    for name, tensor in whole.items():
        found = [dict(model.named_parameters())[name] for model in parts]
        if found[0].shape == tensor.shape:
            assert all(torch.equal(part, tensor) for part in found)
            continue
        axis = next(axis for axis in (0, 1) if found[0].shape[axis] != tensor.shape[axis])
        assert torch.equal(torch.cat(found, dim=axis), tensor), name
    cut = {name for name, tensor in whole.items() if dict(parts[0].named_parameters())[name].shape != tensor.shape}
    assert any("mlp" in name for name in cut)
    assert ("lm_head.weight" in cut) == (ranks == 2), "258 tokens divide by 2 and not by 4"


def test_a_bias_of_summed_parts_is_added_once() -> None:
    model = families.build_model("llama")
    down: Any = model.model.layers[0].mlp.down_proj
    down.bias = torch.nn.Parameter(torch.arange(32.0))
    first, second = model, families.build_model("llama")
    other: Any = second.model.layers[0].mlp.down_proj
    other.bias = torch.nn.Parameter(torch.arange(32.0))
    for rank, one in enumerate((first, second)):
        shard_model(one, rank, 2)
    assert torch.equal(down.bias + other.bias, torch.arange(32.0))


def test_a_rank_has_the_arena_of_its_own_heads() -> None:
    model = families.build_model("qwen3")
    assert [layer.heads for layer in layers_of(model)] == [2, 2]
    shard_model(model, 0, 2)
    assert [layer.heads for layer in layers_of(model)] == [1, 1]


def test_a_model_of_which_some_layers_alone_can_be_cut_is_refused() -> None:
    """Each layer's attention must have as many heads in the arena."""
    model: Any = families.build_model("llama")
    odd = model.model.layers[1].self_attn
    odd.k_proj = torch.nn.Linear(odd.k_proj.in_features, odd.head_dim, bias=False)  # one head of keys
    with pytest.raises(SpecdecError, match="some layers of this llama model divide by 2 and others do not"):
        shard_model(model, 0, 2)


@pytest.mark.parametrize(
    ("family", "ranks", "said"),
    [
        ("gpt2", 2, "a gpt2 model cannot be cut over 2 ranks: it has no plan"),
        ("llama", 5, "nothing of this llama model"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_by_name(family: str, ranks: int, said: str) -> None:
    with pytest.raises(SpecdecError, match=said):
        shard_model(families.build_model(family), 0, ranks)
