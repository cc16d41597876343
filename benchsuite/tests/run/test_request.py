"""A run's request: one text gives one value whoever has said it, and what contradicts itself is refused at once."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import fields, replace
from pathlib import Path

import pytest

from benchsuite.options import OPTIONS
from benchsuite.run.matrix import build_matrix
from benchsuite.run.request import KNOWN, RunRequest, read_request, request_of, texts_of
from benchsuite.tests.rig import requested
from benchsuite.tests.run.written_options import written_text
from specdec import SpecdecError

pytest_plugins = "pytester"

STRATEGY = {"draft": "ngram", "policy": "match", "controller": "fixed", "k": "4", "adaptive_k": "8"}
"""What --specdec-arm says by itself."""


APART = ("arm", "width", "adaptive-k", "precision", "budget", "predict", "config", "repeat")
"""Options that are not read together with all others."""

TOGETHER = (
    tuple(one.name for one in OPTIONS if one.name not in (*APART, *(name.replace("_", "-") for name in STRATEGY))),
    (*(name for name in STRATEGY if name != "adaptive_k"), "precision", "budget", "predict"),
    ("arm",),
    ("width",),
    ("adaptive-k",),
)
"""All options of a file, in groups that exclude nothing of themselves."""


@pytest.mark.slow
@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0])
def test_one_text_is_one_value_on_the_command_line_in_the_ini_file_and_in_a_file(
    names: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    flags = {one.name for one in OPTIONS if one.flag}
    texts = {name: written_text(name) for name in names}
    pytester.path.joinpath("run.yaml").write_text(
        "".join(f"{name}: {'true' if name in flags else json.dumps(text)}\n" for name, text in texts.items())
    )
    keys = {name: f"specdec_{name.replace('-', '_')}" for name in names}
    typed, *others = [
        read_request(pytester.parseconfig(*arguments))
        for arguments in (
            [f"--specdec-{name}" if name in flags else f"--specdec-{name}={text}" for name, text in texts.items()],
            [word for name, text in texts.items() for word in ("-o", f"{keys[name]}={text}")],
            ["--specdec-config", "run.yaml"],
        )
    ]
    usual = requested()
    for name in names:
        key = name.replace("-", "_")
        said, unsaid = (one.sampling[key] if key in one.sampling else getattr(one, key) for one in (typed, usual))
        assert said != unsaid, "the text says nothing"
    assert typed.given >= {*names}
    for other in others:
        assert other == typed


def test_every_option_that_a_file_may_set_is_read_in_each_way() -> None:
    mine = {name for name in KNOWN if not name.startswith("gate-")}
    assert {name for names in TOGETHER for name in names} == mine


def test_a_request_has_the_values_of_every_option_and_nothing_of_its_own_but_what_it_says() -> None:
    names = {one.name.replace("-", "_") for one in OPTIONS} - {"config"}
    own = {"sampling", "given", "texts", "gate"}
    assert {one.name for one in fields(RunRequest)} - own | {*requested().sampling} == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": "4", "adaptive_k": "8"}, "leave out --specdec-k and --specdec-controller"),
        *(
            ({"arm": "ngram", name: text}, f"leave out --specdec-{name.replace('_', '-')}, or --specdec-arm")
            for name, text in {
                "draft": "ngram",
                "policy": "match",
                "controller": "fixed",
                "k": "4",
                "adaptive_k": "8",
            }.items()
        ),
        ({"controller": "fixed", "adaptive_k": "8"}, "leave out --specdec-k and --specdec-controller"),
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


@pytest.mark.parametrize(
    "given",
    [
        {"k": "2", "controller": "goodput", "draft": "ngram", "policy": "rejection"},
        {"adaptive_k": "8", "draft": "ngram"},
        {"arm": "ngram", "batch": "2"},
        {"pairs": "2", "prompts": "3"},
        {"precision": "2%", "budget": "60", "prompts": "3"},
        {"dry_run": "true", "pairs": "2"},
        {"predict": "cached", "pairs": "2"},
        {"profile": "true", "resume": "true", "results": "there"},
        {"gate": "fail", "gate_self_test": "true", "results": "there", "profile": "true", "pairs": "2"},
    ],
)
def test_options_that_go_together_are_taken_and_are_what_the_user_has_given(given: dict[str, str]) -> None:
    found = requested(**given)
    assert found.given == {name.replace("_", "-") for name in given if not name.startswith("gate")}
    assert found.chooses == bool({"precision", "budget"} & given.keys())
    assert (found.gate is not None) == ("gate" in given)


@pytest.mark.parametrize("name", ["precision", "budget"])
def test_a_precision_or_a_budget_alone_chooses_what_is_measured(name: str) -> None:
    assert requested(**{name: "0.5"}).chooses
    assert not requested(pairs="3").chooses


def test_a_manifest_has_the_text_of_every_option_that_says_what_is_measured_and_of_no_other() -> None:
    usual = requested()
    unsaid = {"results", "resume", "config", "repeat", "detail", "debug"}
    assert usual.texts.keys() == {one.name for one in OPTIONS} - unsaid
    for option in OPTIONS:
        more = {"results": "kept"} if option.name in ("profile", "resume") else {}
        found = requested(**more, **{option.name.replace("-", "_"): written_text(option.name)}).texts
        changed = {name for name, text in found.items() if text != usual.texts[name]}
        assert changed == {option.name} - unsaid
        if option.name not in unsaid:
            assert found[option.name] == written_text(option.name)
    flags = {one.name for one in OPTIONS if one.flag} - unsaid
    assert {usual.texts[name] for name in flags} == {"false"}
    assert requested(exact="YES").texts == requested(exact="1").texts


def test_a_value_of_the_ini_file_counts_as_given_where_it_is_not_the_default(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nspecdec_k = 2\nspecdec_batch = 1\ngate = report\ngate_self_test = true\n")
    found = read_request(pytester.parseconfig())
    assert found.given == {"k"}
    assert found.gate is not None
    assert found.gate.mode == "report"
    typed = read_request(pytester.parseconfig("--specdec-batch", "1", "--gate=off"))
    assert typed.given == {"k", "batch"}
    assert typed.gate is None


def test_a_list_over_several_lines_of_an_ini_file_is_a_comma_list(pytester: pytest.Pytester) -> None:
    """With commas at the ends of its lines or without."""
    pytester.makeini("[pytest]\nspecdec_draft =\n  ngram,\n  oracle(0.8),\nspecdec_batch =\n  1\n  4\n")
    found = read_request(pytester.parseconfig())
    assert found.texts == requested(draft="ngram,oracle(0.8)", batch="1,4").texts


def test_paths_are_relative_to_where_pytest_was_started_and_those_of_the_ini_file_to_its_folder(
    pytester: pytest.Pytester,
) -> None:
    names = ("results", "endpoint-start", "repeat")
    ini = "".join(f"specdec_{name.replace('-', '_')} = there\n" for name in names[:2])
    inner = pytester.mkdir("inner")
    (inner / "pytest.ini").write_text(f"[pytest]\n{ini}")
    found = read_request(pytester.parseconfig("-c", "inner/pytest.ini"))
    assert [found.results, found.endpoint_start] == [inner / "there"] * 2
    typed = read_request(pytester.parseconfig("-c", "inner/pytest.ini", "--specdec-results=here"))
    assert [typed.results, typed.endpoint_start] == [pytester.path / "here", inner / "there"]
    assert requested(repeat="r").repeat == Path("r")


def test_the_folder_of_results_is_made_with_its_parents_and_may_be_there(tmp_path: Path) -> None:
    request = RunRequest.of(texts_of({"results": "a/b"}, tmp_path))
    assert [request.results_root(), request.results_root()] == [tmp_path / "a" / "b"] * 2
    assert (tmp_path / "a" / "b").is_dir()
    assert requested().results_root() is None
    (tmp_path / "file").touch()
    with pytest.raises(SpecdecError, match=r"^--specdec-results '.*file/x' cannot be made: Not a directory; name a "):
        RunRequest.of(texts_of({"results": "file/x"}, tmp_path)).results_root()


def test_a_commands_arguments_are_a_request_whose_refusals_have_the_commands_own_names() -> None:
    given = Namespace(k="2,3", max_new_tokens="7", minutes="5", json=None, run=print, top_k="9")
    assert request_of(given) == requested(k="2,3", max_new_tokens="7", top_k="9")
    with pytest.raises(SpecdecError, match="^--max-new-tokens is '0'; expected numbers, each a whole number, 1 or "):
        request_of(Namespace(max_new_tokens="0"))


def test_a_name_that_is_no_options_is_a_programmers_error() -> None:
    with pytest.raises(TypeError, match="^no options: bach, gate-tolernce$"):
        texts_of({"batch": "1", "bach": "1", "gate_tolernce": "0.1"})
    usual = texts_of({})
    assert (usual.given, usual.texts["gate"], usual.texts["gate-plant"]) == (frozenset(), "off", "")


def test_a_run_that_repeats_another_has_its_matrix(tmp_path: Path) -> None:
    """The texts that a manifest keeps give the request again."""
    first = requested(target="tiny", draft="ngram,suffix", batch="1,2", workload="chat", temperature="0,0.5", k="3")
    again = requested(**{name.replace("-", "_"): text for name, text in first.texts.items() if text})
    assert build_matrix(again) == build_matrix(first)
    assert replace(again, given=first.given, texts=first.texts) == first
