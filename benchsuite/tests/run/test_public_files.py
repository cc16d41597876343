"""What other programs read of a run: the names of its tests, and the keys of its JSON files with the types of values.

``public_files.json`` has both. Who changes one on purpose writes it again:
``WRITE_PUBLIC_FILES=1 pytest benchsuite/tests/run/test_public_files.py``.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchsuite.tests.our_server import OurServer
from benchsuite.tests.rig import Make, Run

GOLDEN = Path(__file__).parents[1] / "public_files.json"

TINY = ("--specdec-target", "tiny", "--specdec-pairs", "2")
SHORT = ("--specdec-prompts", "1", "--specdec-max-new-tokens", "8")
JOBS: dict[str, tuple[str, ...]] = {
    "speculation": (
        *(*TINY, *SHORT, "--specdec-arm", "ngram, oracle(0.8), garbage", "--specdec-workload", "chat,code_editing"),
        *("--benchmark-json", "out/pytest-benchmark.json", "--gate-save", "out/gate.json"),
    ),
    "kernels": ("-m", "kernels", *TINY),
    "decoding": ("-m", "decoding", *TINY),
    "load": (
        *("-m", "load", *TINY, *SHORT, "--specdec-arm", "ngram"),
        *("--specdec-workload", "chat,code_editing,json,rewriting"),
        *("--specdec-batch", "1,2", "--specdec-rate", "50", "--specdec-slo", "ttft=1"),
    ),
    "conversations": (
        "-m",
        "conversations",
        *TINY,
        *SHORT,
        "--specdec-arm",
        "ngram",
        "--specdec-workload",
        "multi_turn",
    ),
    "serving": ("-m", "serving", *SHORT, "--specdec-workload", "chat", "--specdec-concurrency", "1,2"),
}
"""Tiny runs on the CPU, by what follows ``benchsuite.test_`` in their module's name."""

SOME = {"kernels": ("-k", "silu_mul or accept or appending"), "decoding": ("-k", "turns or steps")}
"""Of jobs whose items write the same keys, the few that are run; the names of all are compared."""

OPEN = {"machine_info", "commit_info", "environment", "versions", "ops", "counts", "conditions"}
"""Keys below which the names are those of the machine, of its packages or of a plugin's counters."""

Shape = dict[str, "Shape"] | list["Shape"] | str


def json_shape(value: object) -> Shape:
    """The keys of JSON with the types of their values; all items of a list are taken for one."""
    if isinstance(value, Mapping):
        return {key: "open" if key in OPEN else json_shape(one) for key, one in value.items()}
    if isinstance(value, list):
        items = [json_shape(one) for one in value]
        return [joined_shape(items)] if items else []
    return {type(None): "null", bool: "bool", str: "text"}.get(type(value), "number")


def joined_shape(shapes: list[Shape]) -> Shape:
    """One shape for all: null is any, and a key that only some have is a key."""
    found: Shape = "null"
    for one in shapes:
        if found == "null":
            found = one
        elif isinstance(found, dict) and isinstance(one, dict):
            found = {key: joined_shape([found.get(key, "null"), one.get(key, "null")]) for key in {**found, **one}}
        elif isinstance(found, list) and isinstance(one, list):
            found = [joined_shape([*found, *one])] if found or one else []
        elif one != "null" and one != found:
            found = "mixed"
    return found


def shape_differences(old: Shape, new: Shape, path: str = "") -> Iterator[str]:
    """Keys and types in which two shapes differ. Null and an empty list agree with every type."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from (f"{path}.{key} is gone" for key in sorted(old.keys() - new.keys()))
        yield from (f"{path}.{key} is new" for key in sorted(new.keys() - old.keys()))
        for key in sorted(old.keys() & new.keys()):
            yield from shape_differences(old[key], new[key], f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        if old and new:
            yield from shape_differences(old[0], new[0], f"{path}[]")
    elif old != new and "null" not in (old, new) and "mixed" not in (old, new):
        yield f"{path} was {old}, and is {new}"


def test_a_key_that_is_gone_new_or_of_another_type_is_a_difference() -> None:
    old = json_shape({"rows": [{"a": 1, "b": None}, {"a": 2.5, "b": "x"}], "empty": []})
    assert old == {"rows": [{"a": "number", "b": "text"}], "empty": []}
    assert list(shape_differences(old, json_shape({"rows": [{"a": None, "b": "y"}], "empty": [1]}))) == []
    found = list(shape_differences(old, json_shape({"rows": [{"a": "1", "c": "y"}]})))
    assert found == [".empty is gone", ".rows[].b is gone", ".rows[].c is new", ".rows[].a was number, and is text"]


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_jobs_tests_and_the_keys_of_its_files_change_on_purpose_alone(
    job: str, run: Run, assemble: Make, tmp_path: Path
) -> None:
    words = ["-m", "pytest", "--pyargs", f"benchsuite.test_{job}", *JOBS[job]]
    (tmp_path / "out").mkdir()
    with OurServer(assemble(max_length=1024).engine(None, k=0), prefix_cache=job == "conversations") as server:
        words += ["--specdec-endpoint", f"plain={server.url}"] if job in ("serving", "conversations") else []
        listed = run(*words, "--collect-only", "-q")
        done = run(*words, *SOME.get(job, ()), "--specdec-results", "out", "--benchmark-quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    files = {file.name: json_shape(json.loads(file.read_text())) for file in sorted((tmp_path / "out").rglob("*.json"))}
    for file in sorted((tmp_path / "out").rglob("*.gz")):
        if file.parent.name != "cells":  # read by ourselves alone
            lines = gzip.decompress(file.read_bytes()).decode().splitlines()
            whole = file.name.endswith(".json.gz")
            files[file.name] = json_shape(json.loads("".join(lines)) if whole else [json.loads(one) for one in lines])
    found = {"tests": [line for line in listed.stdout.splitlines() if "::" in line], "files": files}
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("WRITE_PUBLIC_FILES"):
        GOLDEN.write_text(json.dumps({**golden, job: found}, indent=1, sort_keys=True) + "\n")
        return
    assert found["tests"] == golden[job]["tests"]
    assert list(shape_differences(golden[job]["files"], files)) == []
