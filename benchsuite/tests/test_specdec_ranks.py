"""A target over several processes: the tokens of one process, one writer, and failures by the name of the rank.

Most runs are forked from one process that has imported everything (``ranks_rig``); two are started by torchrun itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.prove import families
from benchsuite.tests import ranks_rig
from benchsuite.tests.rig import Run
from specdec import Registry, SpecdecError
from specdec.model import ArenaModel
from specdec.quantised import BITS
from specdec.ranks import GRACE, SILENCE, Life, Place, diverged, failed_alone
from specdec.sharding import shard_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked after imports, and ended by pidfd")

TWO = ("--pyargs", "benchsuite.test_speculation", "--specdec-target", "tiny", "--specdec-workload", "chat,reasoning")
SHORT = (*TWO, "--specdec-max-new-tokens", "6", "--specdec-prompts", "2", "--specdec-peer", "none")
NGRAM = (*SHORT, "--specdec-draft", "ngram", "--specdec-results", "out", "-p", "no:cacheprovider", "-q")

PLANTED = """
import os, signal
import specdec.ranks
from benchsuite.measure.paired import Comparison
from specdec import SpecdecError
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

Comparison._run, Ngram.propose = planted_run, planted
"""
"""A plugin of pytest: in the second workload, ngram does something else on some ranks."""


@pytest.fixture(scope="module")
def cases(python: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found in every case."""
    from benchsuite.tests.conftest import _variables

    folder = tmp_path_factory.mktemp("cases")
    done = python(("-c", "from benchsuite.tests.ranks_rig import *; ranked_cases()"), folder, _variables("", {}))
    assert done.returncode == 0, done.stderr
    assert [(folder / f"found{rank}.json").exists() for rank in (0, 1)] == [True, True], ranks_rig.texts(folder)
    return [json.loads((folder / f"found{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture
def two(run: Run, tmp_path: Path) -> Any:
    """Run pytest on two ranks, with a fault planted on some of them; returns their exit codes and texts."""

    def call(*arguments: str, fault: str = "pass", ranks: str = "") -> tuple[list[int], list[str]]:
        (tmp_path / "planted.py").write_text(PLANTED.format(fault=fault, ranks=ranks))
        code = f"from benchsuite.tests.ranks_rig import ranked_pytest; ranked_pytest(*{[*arguments, '-p', 'planted']!r})"
        done = run("-c", code, path=str(tmp_path))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), list(ranks_rig.texts(tmp_path))

    return call


def rows_in(folder: Path) -> list[str]:
    """The workloads of the cells in the one folder of results."""
    [made] = [path for path in folder.iterdir() if path.is_dir()]
    return sorted(path.name.split("-")[0] for path in (made / "cells").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["0", "1"])
@pytest.mark.parametrize(
    ("family", "draft"),
    [*((family, draft) for family in ranks_rig.FAMILIES for draft in ranks_rig.DRAFTS)]
    + [("llama", draft) for draft in ranks_rig.HEADS],
)
def test_two_ranks_emit_the_tokens_of_one_process(
    family: str, draft: str | None, temperature: str, cases: list[dict[str, Any]]
) -> None:
    zero, one = (found[f"{family} {draft} {temperature}"] for found in cases)
    assert zero == one, "the ranks emitted different tokens"
    assert not zero["bugs"]
    assert zero["equal"] == 3 or zero["bugs"] == [], "a difference that no tie explains"


@pytest.mark.slow
@pytest.mark.parametrize("family", ranks_rig.FAMILIES)
def test_logits_of_two_ranks_lie_within_the_bound_of_certified_ties(family: str, cases: list[dict[str, Any]]) -> None:
    for found in cases:
        apart, bound = found[f"{family} logits"]
        assert 0 <= apart <= bound
    assert cases[0][f"{family} logits"] == cases[1][f"{family} logits"]
