"""A merge is as complete as what it is made of: every part is, and together they hold the whole matrix."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchsuite.__main__ import benchsuite_main
from benchsuite.measure.weights import Weights
from benchsuite.report.merged import merge
from benchsuite.store.journal import Journal, manifest
from benchsuite.tests.report.made_parts import CELLS, Part, measured_part, plain_cell
from benchsuite.tests.rig import slow_after
from specdec import SpecdecError


@pytest.fixture(scope="module")
def matrix_said() -> dict[str, Any]:
    return manifest({"baseline": "plain", "target": "tiny"})


def manifest_of_merge(folders: Sequence[Path], into: Path) -> dict[str, Any]:
    """The manifest of the folder that ``python -m benchsuite merge`` makes of these."""
    assert benchsuite_main(["merge", *map(str, folders), "--into", str(into)]) == 0
    found: dict[str, Any] = json.loads((into / "MANIFEST.json").read_text())
    return found


def apart(number: int = 1, of: int = 1) -> Iterator[tuple[Part, ...]]:
    """Every choice of parts of 1, 2 and 4 that have no cell in common, from within one part; the empty one too."""
    yield ((number, of),)
    if of == CELLS:
        yield ()
        return
    for some, others in product(apart(number, 2 * of), apart(number + of, 2 * of)):
        yield (*some, *others)


SHOWN: list[tuple[Part, ...]] = [((1, 1),), ((2, 2), (1, 2)), ((1, 2), (2, 4)), ((2, 4), (1, 2), (4, 4)), ((1, 2),)]
REST = [parts for parts in apart() if parts and sorted(parts) not in map(sorted, SHOWN)]


@pytest.mark.parametrize("parts", slow_after(len(SHOWN), [(parts,) for parts in (*SHOWN, *REST)]), ids=str)
def test_complete_parts_are_complete_together_if_they_hold_the_whole_matrix(
    parts: tuple[Part, ...], matrix_said: dict[str, Any], tmp_path: Path
) -> None:
    """Also where what one part of two lacks was measured in parts of four; else a line names what is missing."""
    found = manifest_of_merge(
        [measured_part(tmp_path, matrix_said, part, "whole") for part in parts], tmp_path / "merged"
    )
    held = {place for number, of in parts for place in range(number - 1, CELLS, of)}
    assert len(list((tmp_path / "merged" / "cells").iterdir())) == len(held)
    assert found["complete"] is (len(held) == CELLS)
    assert any("shards that are missing" in line for line in found["card"]) is (len(held) < CELLS)


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["interrupted", "killed"])
@pytest.mark.parametrize("parts", [((1, 1),), ((1, 2), (2, 2))], ids=["one", "two"])
def test_a_merge_of_a_part_that_is_not_complete_is_not_complete_wherever_it_stands(
    parts: tuple[Part, ...], ended: str, matrix_said: dict[str, Any], tmp_path: Path
) -> None:
    """All of its cells are there: what it was to measure besides is not known. Nor is a merge of the merge, or a report
    of it, complete."""
    for unfinished in parts:
        root = tmp_path / str(unfinished[0])
        folders = [measured_part(root, matrix_said, part, ended if part == unfinished else "whole") for part in parts]
        assert manifest_of_merge(folders, root / "merged")["complete"] is False
        assert manifest_of_merge([root / "merged"], root / "again")["complete"] is False
        assert benchsuite_main(["report", str(root / "merged")]) == 0
        assert Journal.load(root / "merged").said["complete"] is False


@pytest.mark.slow
def test_a_merge_of_a_merge_is_as_complete_as_that_is(matrix_said: dict[str, Any], tmp_path: Path) -> None:
    folders = [measured_part(tmp_path, matrix_said, part, "whole") for part in ((1, 2), (2, 2))]
    assert manifest_of_merge(folders, tmp_path / "both")["complete"] is True
    assert manifest_of_merge([tmp_path / "both"], tmp_path / "again")["complete"] is True
    assert manifest_of_merge(folders[:1], tmp_path / "half")["complete"] is False
    assert manifest_of_merge([tmp_path / "half", folders[1]], tmp_path / "late")["complete"] is False


def changed_part(folder: Path, **said: Any) -> Path:
    """A part whose manifest says something else."""
    file = folder / "MANIFEST.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | said))
    return folder


def test_parts_of_two_runs_are_refused_with_what_differs(matrix_said: dict[str, Any], tmp_path: Path) -> None:
    """Which parts they are, and on which machines they were measured, may differ."""
    one, two = (measured_part(tmp_path, matrix_said, part, "whole") for part in ((1, 2), (2, 2)))
    machine = {name: f"another {name}" for name in ("processor", "vectors", "cores", "threads", "gpus")}
    changed_part(two, machine=json.loads((two / "MANIFEST.json").read_text())["machine"] | machine)
    merge([one, two], tmp_path / "merged")
    changed_part(two, machine=machine | {"ranks": "2"}, commit="another")
    with pytest.raises(SpecdecError, match=f"{one} and {two} are not parts of one run:\n") as error:
        merge([one, two], tmp_path / "again")
    _, *lines = str(error.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["  commit", "  ranks"]
    assert not (tmp_path / "again").exists()


def test_a_cell_that_two_parts_have_measured_is_named_with_both(matrix_said: dict[str, Any], tmp_path: Path) -> None:
    whole, half = (measured_part(tmp_path, matrix_said, part, "whole") for part in ((1, 1), (2, 4)))
    with pytest.raises(SpecdecError, match=f"{whole} and {half} have both measured {plain_cell(1).setting.id}: "):
        merge([whole, half], tmp_path / "merged")


def test_a_merge_holds_the_lines_of_all_its_parts_once_and_says_what_it_is_made_of(
    matrix_said: dict[str, Any], tmp_path: Path
) -> None:
    """Weights too; of four shards the first and the last are missing."""
    folders = [measured_part(tmp_path, matrix_said, part, "whole") for part in ((2, 4), (3, 4))]
    weights = [asdict(Weights("tiny", dtype, 1, 2, 3.0, 4.0, 5)) for dtype in ("int8", "int4")]
    for place, folder in enumerate(folders):
        said, card = ["shared", f"said {place}"], ["shared", f"card {place}"]
        changed_part(folder, said=said, card=card, weights=[weights[0], *weights[1 : place + 1]])
    journal = merge(folders, tmp_path / "merged")
    found = Journal.load(tmp_path / "merged").said
    assert found == journal.said
    assert found["said"] == ["shared", "said 0", "said 1"]
    assert found["card"] == [
        *("shared", "card 0", "card 1", f"merged from {folders[0]}, {folders[1]}"),
        "shards that are missing: 1/4, 4/4",
    ]
    assert found["weights"] == weights
    assert found["options"]["shard"] == ""
    assert set(found["sha256"]) >= {"benchmark.json", "table.md", "report.html"}
    rows = json.loads((tmp_path / "merged" / "benchmark.json").read_text())["rows"]
    assert [row["max_new_tokens"] for row in rows] == [9, 10]


def test_a_merge_that_ends_early_is_not_complete(matrix_said: dict[str, Any], tmp_path: Path) -> None:
    """Of parts that are, one of which has weights that cannot be read; nothing is said of files that are not there."""
    part = changed_part(measured_part(tmp_path, matrix_said, (1, 1), "whole"), weights=[{"of": "another kind"}])
    with pytest.raises(TypeError, match="of"):
        merge([part], tmp_path / "merged")
    found = Journal.load(tmp_path / "merged").said
    assert (found["complete"], found["sha256"]) == (False, {})
