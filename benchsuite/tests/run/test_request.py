"""A run's request: one text gives one value whoever has said it, and what contradicts itself is refused at once."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from benchsuite.options import OPTIONS
from benchsuite.run.matrix import build_matrix
from benchsuite.run.request import KNOWN, RunRequest, read_request
from benchsuite.tests.rig import requested
from specdec import SpecdecError

pytest_plugins = "pytester"

WRITTEN = {
    "arm": "ngram/match/fixed/2, fast=suffix",
    "adaptive-k": "8",
    "k": "2,4",
    "endpoint": "plain=http://localhost:1",
    "endpoint-start": "servers.yaml",
    "endpoint-api": "chat",
    "concurrency": "1,8",
    "rate": "0.5",
    "certify": "bfloat16",
    "slo": "ttft=0.5",
    "graphs": "off",
    "batch": "1,4",
    "temperature": "0,0.7",
    "top-k": "0,40",
    "top-p": "0.9",
    "min-p": "0.1",
    "presence-penalty": "-0.5",
    "frequency-penalty": "1.5",
    "repetition-penalty": "1.2",
    "max-new-tokens": "7",
    "seed": "3",
    "prompts": "2",
    "pairs": "5",
    "precision": "2%",
    "budget": "90s",
    "timeout": "0",
    "across": "dtype",
    "shard": "2/3",
    "detail": "rows",
    "predict": "cached",
    "results": "kept",
}
"""A text that is not the default, of every option that does not take any word."""


def written_text(name: str) -> str:
    option = next(one for one in OPTIONS if one.name == name)
    return "true" if option.flag else WRITTEN.get(name, "something")


@pytest.mark.parametrize("name", [name for name in KNOWN if not name.startswith("gate-")])
def test_one_text_is_one_value_on_the_command_line_in_the_ini_file_and_in_a_file(
    name: str, pytester: pytest.Pytester
) -> None:
    text, flag = written_text(name), next(one.flag for one in OPTIONS if one.name == name)
    more = ["--specdec-results=kept"] if name in ("profile", "resume") else []
    key = name.replace("-", "_")
    pytester.path.joinpath("run.yaml").write_text(f"{name}: {'true' if flag else json.dumps(text)}\n")
    requests = [
        read_request(pytester.parseconfig(*more, *arguments))
        for arguments in (
            [f"--specdec-{name}" if flag else f"--specdec-{name}={text}"],
            ["-o", f"specdec_{key}={text}"],
            ["--specdec-config", "run.yaml"],
        )
    ]
    typed, _, _ = requests
    field = "sampling" if key in typed.sampling else key
    assert getattr(typed, field) != getattr(requested(), field), "the text says nothing"
    assert name in typed.given
    for other in requests[1:]:
        assert other == typed


def test_a_request_has_the_values_of_every_option_and_nothing_of_its_own_but_what_it_says() -> None:
    names = {one.name.replace("-", "_") for one in OPTIONS} - {"config"}
    own = {"sampling", "given", "texts", "gate"}
    assert {one.name for one in fields(RunRequest)} - own | {*requested().sampling} == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": "4", "adaptive_k": "8"}, "leave out --specdec-k and --specdec-controller"),
        ({"arm": "ngram", "policy": "match"}, "leave out --specdec-policy, or --specdec-arm"),
        ({"pairs": "2", "precision": "2%"}, "leave out one or the other"),
        ({"pairs": "2", "budget": "60"}, "leave out one or the other"),
        ({"dry_run": "true", "predict": "cached"}, "a dry run's figures mean nothing"),
        ({"resume": "true"}, "name its folder with --specdec-results"),
        ({"profile": "true"}, "name its folder with --specdec-results"),
        ({"gate": "fail", "gate_self_test": "true", "dry_run": "true"}, "a dry run has nothing to gate"),
        ({"gate": "fail", "gate_self_test": "true", "budget": "60"}, "the gate compares runs of the same work"),
        (
            {"gate": "fail", "gate_self_test": "true", "resume": "true", "results": "there"},
            "the gate measures every row itself",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused_before_anything_is_loaded(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(SpecdecError, match=message):
        requested(**given)


def test_a_run_that_repeats_another_has_its_matrix(tmp_path: Path) -> None:
    """The texts that a manifest keeps give the request again."""
    first = requested(target="tiny", draft="ngram,suffix", batch="1,2", workload="chat", temperature="0,0.5", k="3")
    again = requested(**{name.replace("-", "_"): text for name, text in first.texts.items() if text})
    assert build_matrix(again) == build_matrix(first)
    assert replace(again, given=first.given, texts=first.texts) == first
