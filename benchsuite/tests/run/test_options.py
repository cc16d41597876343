"""The table of options: what help, files, variables and the ini file make of each, and the values at its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml

from benchsuite.benches.serving.figures import Slo
from benchsuite.gate.rules import Rules
from benchsuite.measure.arms import SAMPLED
from benchsuite.options import OPTIONS, Option, Texts
from benchsuite.run.request import KNOWN, RunRequest, read_request, texts_of
from benchsuite.run.sources import FIXED, with_sources
from benchsuite.tests.rig import Run, requested
from benchsuite.tests.run.written_options import written_text
from specdec import SamplingParams, SpecdecError
from specdec_plugins.endpoints.named import Endpoint

pytest_plugins = "pytester"

RUNS = Path(__file__).parents[3] / "docs" / "runs.md"

TYPES = get_type_hints(RunRequest, localns={"Endpoint": Endpoint, "Rules": Rules})
"""The type of every field of a request."""

NAMES = [option.name for option in OPTIONS if option.name not in ("config", "repeat")]


def field_of(name: str) -> str:
    return name.replace("-", "_")


def is_list(name: str) -> bool:
    """Whether a request has any number of values of an option, or its text has any number of strategies."""
    return (
        (field_of(name) in SAMPLED and name != "seed") or name == "arm" or "..." in str(TYPES.get(field_of(name), ""))
    )


def fits(value: object, kind: Any) -> bool:
    """Whether a value is of a type, with the types of what it holds."""
    if isinstance(kind, UnionType):
        return any(fits(value, one) for one in get_args(kind))
    inner = get_args(kind)
    if get_origin(kind) is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = inner[:1] * len(value) if ... in inner else inner
        return len(kinds) == len(value) and all(map(fits, value, kinds))
    if get_origin(kind) is Mapping:
        return isinstance(value, Mapping) and all(fits(one, inner[1]) for one in value.values())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, get_origin(kind) or kind) and not (kind is int and isinstance(value, bool))


def test_every_value_has_the_type_of_its_field_whether_it_is_given_or_not() -> None:
    alone = {"profile", "resume"}
    every = [requested()]
    for name in NAMES:
        more = {"results": "kept"} if name in alone else {}
        every.append(requested(**more, **{field_of(name): written_text(name)}))
    for request in every:
        for one in fields(request):
            assert fits(getattr(request, one.name), TYPES[one.name]), one.name


def test_what_is_not_said_of_sampling_is_as_requests_have_it() -> None:
    usual = SamplingParams()
    assert requested().sampling == {name: (getattr(usual, name),) for name in SAMPLED if name != "seed"}
    assert requested().seed == usual.seed


def of_file(text: str, folder: Path) -> RunRequest:
    """The request of a YAML file with this text."""
    (folder / "run.yaml").write_text(text)
    return RunRequest.of(with_sources(texts_of({"config": "run.yaml"}, folder), KNOWN))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("profile", "resume", "results")])
def test_a_list_in_a_file_is_a_comma_list_where_an_option_has_many_values_and_refused_elsewhere(
    name: str, tmp_path: Path
) -> None:
    option, text = KNOWN[name][1], written_text(name).replace(", ", ",")
    if is_list(name):
        parts = text.split(",")
        assert of_file(yaml.safe_dump({name: parts}), tmp_path) == of_file(yaml.safe_dump({name: text}), tmp_path)
        return
    with pytest.raises(pytest.UsageError) as refused:
        of_file(yaml.safe_dump({name: [text, text]}), tmp_path)
    expected = "true or false" if option.flag else "one value"
    assert str(refused.value).endswith(f": {name} is [{text}, {text}]; expected {expected}")


def documented_variables() -> list[tuple[str, str | None, str, str]]:
    """Of each line of the table in docs/runs.md the variable, its value there, the option and the option's text."""
    rows = re.findall(r"^\| `(SPECDEC_\w+)(?:=(\w+))?` \| `--specdec-([\w-]+)(?: (\w+))?` \|$", RUNS.read_text(), re.M)
    return [(variable, value or None, option, text) for variable, value, option, text in rows]


def with_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> RunRequest:
    with monkeypatch.context() as patch:
        patch.setenv(name, value)
        return RunRequest.of(with_sources(texts_of({}), KNOWN))


@pytest.mark.parametrize(("variable", "value", "option", "text"), documented_variables())
def test_a_variable_is_the_option_that_the_page_says(
    variable: str, value: str | None, option: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch has two values, of which the page has the one that changes anything."""
    if value is None:
        for given in ("2,3", "5") if option == "batch" else ("float16", "int8,int4"):
            found = with_variable(monkeypatch, variable, given)
            assert found == requested(**{option: given})
        return
    more = {"results": "kept"} if option == "profile" else {}
    if more:  # an option that takes another one with it
        with pytest.raises(SpecdecError, match="--specdec-profile writes traces"):
            with_variable(monkeypatch, variable, value)
    else:
        assert with_variable(monkeypatch, variable, value) == requested(**{field_of(option): text or "true"})
    other = {"0": "1", "1": "0"}[value]
    assert with_variable(monkeypatch, variable, other).texts == requested().texts
    for wrong in ("2", "", "true", "yes"):
        with pytest.raises(pytest.UsageError) as refused:
            with_variable(monkeypatch, variable, wrong)
        assert re.fullmatch(rf"the variable {variable} is '{wrong}'; expected (1 or 0|0 or 1)", str(refused.value))


def test_variables_of_other_tools_take_the_value_that_the_page_says_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = re.findall(r"`(SPECDEC_\w+)=(\w+)`", RUNS.read_text().split("Three variables of other tools")[1])[:3]
    assert {name for name, _ in said} == FIXED.keys()
    for name, value in said:
        assert with_variable(monkeypatch, name, value) == requested()
        with pytest.raises(pytest.UsageError, match=f"^the variable {name} is 'other'; expected {value}: "):
            with_variable(monkeypatch, name, "other")


SMALLEST = {"k": 0, "adaptive_k": 1, "concurrency": 1, "batch": 1, "prompts": 1, "pairs": 1, "top_k": 0, "seed": 0}


@pytest.mark.parametrize("name", [*SMALLEST, "max_new_tokens"])
def test_the_smallest_number_is_taken_and_the_one_below_is_not(name: str) -> None:
    least = SMALLEST.get(name, 1)
    found = requested(**{name: str(least)})
    value = found.sampling[name] if name in found.sampling else getattr(found, name)
    assert value in (least, (least,))
    with pytest.raises(SpecdecError, match=f"^--specdec-{name.replace('_', '-')} is '{least - 1}'; expected "):
        requested(**{name: str(least - 1)})


@pytest.mark.parametrize("name", ["endpoint-api", "certify", "graphs", "detail", "predict"])
def test_the_words_of_an_option_are_those_of_its_help(name: str) -> None:
    """A refusal lists them; each is taken and is what the request has."""
    with pytest.raises(SpecdecError) as refused:
        requested(**{field_of(name): "none of them"})
    found = re.search(r"; expected (?:one of )?(.*?)(?:, or the file.*)?$", str(refused.value))
    assert found is not None
    words = found[1].split(", ")
    shown = re.findall(r"\w+", KNOWN[name][1].help)
    assert len(words) >= 2
    for word in words:
        assert word in shown
        assert getattr(requested(**{field_of(name): word}), field_of(name)) == word


def test_limits_are_those_of_a_servers_figures() -> None:
    with pytest.raises(SpecdecError) as refused:
        requested(slo="itl=1")
    keys = str(refused.value).removeprefix("--specdec-slo is 'itl=1'; expected ").split(" in seconds")[0].split(", ")
    shown = KNOWN["slo"][1].help
    assert len(keys) == len(fields(Slo)) == 3
    for key in keys:
        assert f"{key}=" in shown
        assert Slo(**requested(slo=f"{key}=0.5").slo) == Slo(**{key: 0.5})


@pytest.mark.parametrize("name", ["target", "draft", "policy", "controller", "arm", "peer", "backend", "judge"])
def test_a_path_in_an_option_has_one_form(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m" / "n").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert requested(**{name: "./m/n/"}).texts != requested(**{name: "m/n"}).texts
    assert getattr(requested(**{name: "./m/n/"}), name) == getattr(requested(**{name: "m/n"}), name)


def test_help_says_of_an_option_whether_it_takes_a_value_a_list_and_what_it_is_by_itself(
    inside: Run,
) -> None:
    shown = inside("-m", "pytest", "--help", COLUMNS="200").stdout
    flat = " ".join(shown.split())
    ours = shown.split("speculative decoding (specdec-bench):")[1].split("\n\n")[0] + "\n"
    assert not re.search(r"%%|\bNone\b", ours)
    for option in OPTIONS:
        value = "" if option.flag else "=VALUE"
        typed = re.escape(f"--specdec-{option.name}{value}")
        [lines] = re.findall(rf"^  {typed}\s+(.*?)(?=^  --|\Z)", ours, re.MULTILINE | re.DOTALL)
        said = " ".join(lines.split())
        assert said.startswith(option.help)
        assert ("; comma list" in said) == is_list(option.name)
        assert re.findall(r"\(default: (.*?)\)$", said) == ([option.default] if option.default else [])
        kind = "linelist" if is_list(option.name) else "string"
        assert f" specdec_{field_of(option.name)} ({kind}): ini twin of --specdec-{option.name} " in flat
    for name in ("list", "deep"):
        assert f"  --specdec-{name} " in ours


TOML = """
[tool.pytest.ini_options]
specdec_batch = [1, 4]
specdec_draft = ["ngram", "oracle(0.8)"]
specdec_temperature = 0.5
specdec_deterministic = true
specdec_exact = false
specdec_seed = 3
"""


def test_an_ini_file_in_toml_has_lists_numbers_and_booleans(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(TOML)
    found = read_request(pytester.parseconfig())
    said = {"batch": "1,4", "draft": "ngram,oracle(0.8)", "temperature": "0.5", "deterministic": "true", "seed": "3"}
    assert found.texts == requested(**said).texts
    assert (found.batch, found.draft, found.deterministic) == ((1, 4), ("ngram", "oracle(0.8)"), True)
    typed = read_request(pytester.parseconfig("--specdec-batch", "2", "--specdec-seed", "0"))
    assert (typed.batch, typed.seed, typed.draft) == ((2,), 0, found.draft)
    assert {"batch", "seed"} <= typed.given


def test_paths_of_the_ini_file_begin_where_it_is_and_others_where_pytest_was_started() -> None:
    texts, here, there = {"results": "out", "repeat": "", "judge": "m"}, Path("/here"), Path("/there")
    given = Texts(texts, frozenset({"judge"}), here, there)
    assert (given.path("results"), given.path("judge"), given.path("repeat")) == (there / "out", here / "m", None)
    without = Texts(texts, frozenset(), here)
    assert (without.path("results"), without.path("judge"), without.base("repeat")) == (here / "out", here / "m", here)


def test_an_option_is_no_list_and_no_flag_unless_it_says_so() -> None:
    plain = Option("x", "", "")
    assert (plain.many, plain.flag, plain.value("1, 2", "specdec-")) == (False, False, "1, 2")
    flag = Option("x", "", "", flag=True)
    assert (flag.value("yes", ""), flag.value("", "")) == (True, False)
    with pytest.raises(SpecdecError, match="^--their-x is 'maybe'; expected true or false$"):
        flag.value("maybe", "their-")
