"""Kernels and decoding, ``pytest -m kernels`` and ``-m decoding``: one benchmark a target, its tables, its folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.benches.decoding import bench as decoding
from benchsuite.benches.kernels import timing
from benchsuite.benches.kernels.caches import LENGTHS
from benchsuite.report.document import Document, Lines, Section
from benchsuite.run.decoding import DecodingPlugin
from benchsuite.run.kernels import KernelPlugin
from benchsuite.run.target_plugin import TargetPlugin
from benchsuite.tests.rig import Make, Run, requested
from benchsuite.tests.run.shown import Shown
from specdec import catalog, devices

ALONE: Any = SimpleNamespace()
WORKER: Any = SimpleNamespace(workerinput={})
"""What pytest knows of a run of one process, and of a worker of pytest-xdist."""


@pytest.mark.slow
def test_a_benchmark_has_as_many_rounds_as_pairs_are_asked_for_and_lets_the_machine_settle_if_it_is_alone(
    assemble: Make,
) -> None:
    target, loaded = assemble().target, catalog.load("tiny", torch.device("cpu"), torch.float32)
    assert timing.SETTLE_S > 0
    for config, settle_s, pairs, rounds in ((ALONE, timing.SETTLE_S, "7", 7), (WORKER, 0.0, "", timing.ROUNDS)):
        plugin = KernelPlugin(config, requested(pairs=pairs))
        kernels = plugin.build("tiny", loaded, target)
        assert (kernels.name, kernels.rounds, kernels.settle_s) == ("tiny", rounds, settle_s)
    assert not plugin.measured(kernels)
    for results in ("timings", "curves", "costs"):
        setattr(kernels, results, [object()])
        assert plugin.measured(kernels)
        setattr(kernels, results, [])
    for pairs, rounds in (("", decoding.ROUNDS), ("3", 3)):
        made = DecodingPlugin(ALONE, requested(pairs=pairs, seed="5")).build("tiny", loaded, target)
        assert (made.name, made.rounds, made.seed) == ("tiny", rounds, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "item"), [("kernels", "silu_mul"), ("decoding", "turns")])
def test_a_target_that_cannot_be_loaded_fails_its_tests_in_a_line_and_the_others_are_shown_and_kept(
    job: str, item: str, inside: Run
) -> None:
    """A run with an error is kept as one that is not complete; the limits of one target are not another's."""
    words = ("-m", "pytest", "-p", "no:randomly", "--pyargs", f"benchsuite.test_{job}", "-m", job, "-k", item)
    more = ("--specdec-target=tiny,nobody/nothing", "--specdec-pairs=1", "--specdec-results=kept", "--color=no")
    done = inside(*words, *more, HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "1 passed" in done.stdout
    assert "1 error" in done.stdout
    [said] = re.findall(r"^E? *--specdec-target nobody/nothing: (.*)$", done.stdout, re.MULTILINE)
    assert said.startswith("the model 'nobody/nothing' cannot be loaded: ")
    assert "target_plugin.py:" not in done.stdout, "no traceback"
    assert len(re.findall(rf"^=+ {job}: tiny, cpu =+\n+machine .*, torch ", done.stdout, re.MULTILINE)) == 1
    [folder] = re.findall(r"^results: (.*)$", done.stdout, re.MULTILINE)
    made = json.loads((Path(folder) / "MANIFEST.json").read_text())
    assert (made["complete"], made["seed"]) == (False, 0)
    assert {f"{job}.json", f"{job}.md"} <= made["sha256"].keys()
    assert sum("torch" in line for line in made["machine"]["card"]) == 1


@pytest.mark.slow
def test_each_target_has_an_item_for_each_test_and_nothing_is_written_where_nothing_was_measured(
    inside: Run, tmp_path: Path
) -> None:
    words = ("-m", "pytest", "-p", "no:randomly", "--pyargs", "benchsuite.test_decoding", "-m", "decoding")
    more = ("--specdec-target=tiny,a/b", "--specdec-results=kept")
    listed = inside(*words, *more, "--collect-only", "-q").stdout
    names = re.findall(r"::test_decoding\[(\S+)-(\w+)\]", listed)
    assert names == [(target, family) for target in ("tiny", "a/b") for family in decoding.FAMILIES]
    done = inside(*words, *more, "--collect-only")
    assert "decoding: " not in done.stdout
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_cannot_be_made_is_said_before_a_target_is_loaded() -> None:
    plugin = KernelPlugin(ALONE, requested(target="none", results="/dev/null/x"))
    with pytest.raises(pytest.fail.Exception, match="^--specdec-target none: --specdec-results '/dev/null/x' cannot"):
        plugin.bench("none")
    assert not plugin.benches


def test_every_dtype_has_a_benchmark_of_its_own() -> None:
    """With the weights of its name; one that measured the first dtype alone would say nothing of the second."""
    for made in (KernelPlugin, DecodingPlugin):
        plugin = made(ALONE, requested(target="tiny", dtype="float32,int8"))
        benches = {name: plugin.bench(name) for name in plugin.settings()}
        assert {name: bench.target.precision for name, bench in benches.items()} == {
            "tiny-dtypefloat32": "float32",
            "tiny-dtypeint8": "int8",
        }


@pytest.mark.parametrize(
    ("made", "arena"),
    [(KernelPlugin, f"1 row of {max(LENGTHS)} tokens"), (DecodingPlugin, "16 rows of 256 tokens")],
)
def test_a_target_must_fit_the_memory_with_what_its_benchmark_keeps(
    made: type[TargetPlugin[Any]], arena: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.load("tiny", torch.device("cpu"), torch.float32).model.save_pretrained(tmp_path)
    monkeypatch.setattr(devices, "available_bytes", lambda device: 1000)
    with pytest.raises(pytest.fail.Exception) as refused:
        made(ALONE, requested(target=str(tmp_path))).bench(str(tmp_path))
    said = " ".join(str(refused.value).split())  # lines are as wide as the terminal
    assert said.startswith(f"--specdec-target {tmp_path}: the model '{tmp_path}' with {arena} needs about "), said


class MadeUpNumbers(TargetPlugin[list[int]]):
    """A made-up benchmark, whose figures are some numbers; it is written unless one of them is 0."""

    fixture = "figures"
    title = "figures"

    def build(self, name: str, loaded: object, target: object) -> list[int]:
        return [len(name)]

    def measured(self, bench: list[int]) -> bool:
        return bool(bench)

    def document(self, bench: list[int]) -> Document:
        return Document("a title of its own", sections=[Section("sums", parts=[Lines([f"the sum is {sum(bench)}"])])])

    def write(self, root: Path, bench: list[int], complete: bool) -> Path:
        if 0 in bench:
            raise OSError(28, "no space")
        return root / f"{sum(bench)}-{complete}"


@pytest.mark.parametrize("status", [0, 1])
def test_a_folder_of_a_target_that_cannot_be_written_fails_the_run_and_the_others_are_written(
    status: int, tmp_path: Path
) -> None:
    """Of each target there are tables; nothing is written of one that has measured nothing."""
    plugin = MadeUpNumbers(ALONE, requested(results=str(tmp_path / "kept")))
    plugin.benches |= {"a": [1, 2], "b": [4, 0], "c": [], "d": [7]}
    session: Any = SimpleNamespace(exitstatus=status)
    plugin.pytest_sessionfinish(session, status)
    root = tmp_path / "kept"
    assert root.is_dir()
    assert session.exitstatus == 1
    shown: Any = Shown()
    plugin.pytest_terminal_summary(shown)
    sums = {name: sum(bench) for name, bench in plugin.benches.items()}
    tables = [line for name, sum_ in sums.items() for line in (f"= figures: {name}", "sums", f"the sum is {sum_}")]
    complete = status == 0
    written = [f"results: {root / f'3-{complete}'}", f"the results could not be written to {root}: [Errno 28] no space"]
    assert shown.lines == [*tables, *written, f"results: {root / f'7-{complete}'}"]


def test_nothing_is_made_or_shown_where_nothing_was_measured(tmp_path: Path) -> None:
    plugin, shown = MadeUpNumbers(ALONE, requested(results=str(tmp_path / "kept"))), Shown()
    session: Any = SimpleNamespace(exitstatus=0)
    plugin.pytest_sessionfinish(session, 0)
    plugin.benches["a"] = []
    plugin.pytest_sessionfinish(session, 0)
    assert (session.exitstatus, plugin.outcomes, [*tmp_path.iterdir()]) == (0, [], [])
    plugin.benches.clear()
    plugin.pytest_terminal_summary(shown)
    assert shown.lines == []
