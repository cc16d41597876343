"""Options from a file, from the environment and from an earlier run: what wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchsuite import options
from benchsuite.options import VARIABLES
from benchsuite.run.request import KNOWN, RunRequest, texts_of
from benchsuite.run.sources import FIXED, OTHERS, with_sources
from benchsuite.store.journal import Journal, manifest
from benchsuite.tests.rig import Run, requested

ONE = ("-m", "pytest", "--pyargs", "benchsuite.test_speculation", "--collect-only", "-q")


def collected(inside: Run, *arguments: str, **environment: str) -> str:
    """The names of the rows that a run would measure."""
    done = inside(*ONE, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def found_in(folder: Path, text: str = "", **given: str) -> RunRequest:
    """The request of a YAML file with this text, of the environment, and of what the command line has given."""
    if text:
        (folder / "run.yaml").write_text(text)
        given["config"] = "run.yaml"
    return RunRequest.of(with_sources(texts_of(given, folder), KNOWN))


def refused_source(folder: Path, text: str = "", **given: str) -> str:
    """The sentence with which such a run is refused."""
    with pytest.raises(pytest.UsageError) as refused:
        found_in(folder, text, **given)
    return str(refused.value)


def test_what_the_command_line_leaves_open_is_read_from_the_file_and_counts_as_given(tmp_path: Path) -> None:
    text = "target: owner/model\nbatch: [2, 3]\nseed: 0\nexact: false\ndebug: true\ngate-tolerance: 0.05\n"
    found = found_in(tmp_path, text, target="tiny")
    assert (found.target, found.batch, found.seed, found.exact, found.debug) == (("tiny",), (2, 3), 0, False, True)
    assert found.given == {"target", "batch", "seed", "exact", "debug"}
    assert found_in(tmp_path) == requested()


def test_the_words_of_a_refused_file_name_what_was_got_and_what_is_taken(tmp_path: Path) -> None:
    begins = "--specdec-config 'run.yaml'"
    assert refused_source(tmp_path, "seed: [1]") == f"{begins}: seed is [1]; expected one value"
    assert refused_source(tmp_path, "seed: true") == f"{begins}: seed is true; expected one value"
    assert refused_source(tmp_path, "exact: 'true'") == f"{begins}: exact is true; expected true or false"
    assert (
        refused_source(tmp_path, "batch: [1, [2]]")
        == f"{begins}: batch is [1, [2]]; expected a value or a list of values"
    )
    assert (
        refused_source(tmp_path, "batch: {a: b}")
        == f"{begins}: batch is {{a: b}}; expected a value or a list of values"
    )
    known = ", ".join(KNOWN)
    assert refused_source(tmp_path, "zzzz: 1") == f"{begins} has 'zzzz', which is no option; options are {known}"
    for wrong in ("max_new_token", "specdec-max-new-token", "specdec_max_new_tokens"):
        said = f"{begins} has {wrong!r}, which is no option: did you mean 'max-new-tokens'?"
        assert refused_source(tmp_path, f"batch: 1\n{wrong}: 2") == said
    assert refused_source(tmp_path, config="none.yaml").startswith("--specdec-config: ")
    assert refused_source(tmp_path, config="none.yaml").endswith("; name a YAML file")


def test_sources_that_contradict_each_other_are_refused_by_the_option_that_settles_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_DTYPE", "float16")
    said = "dtype has two values: 'int8' in run.yaml, 'float16' in the variable SPECDEC_DTYPE; leave out one, or say "
    assert refused_source(tmp_path, "dtype: int8") == f"{said}--specdec-dtype=…"
    assert found_in(tmp_path, "dtype: float16").dtype == ("float16",)
    assert found_in(tmp_path, "dtype: int8", dtype="int4").dtype == ("int4",)
    monkeypatch.setenv("SPECDEC_AMP", "1")
    said = "dtype has two values: 'bfloat16' in the variable SPECDEC_AMP, 'float16' in the variable SPECDEC_DTYPE; "
    assert refused_source(tmp_path).startswith(said)


def test_variables_that_say_nothing_of_options_are_left_alone_and_unknown_ones_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    for name in ("SPECDEC_FORCE_PY", "SPECDEC_CACHE", "SPECDEC_API_KEY", "SPECDEC_API_KEY_PLAIN", "SPECDEC_GATE_X"):
        monkeypatch.setenv(name, "anything")
    monkeypatch.setenv("A_SPECDEC_DTYPE", "float16")
    monkeypatch.setenv("ZSPECDEC_", "float16")
    assert found_in(tmp_path) == requested()
    assert not recwarn.list
    monkeypatch.setenv("SPECDEC_QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ", "1")
    monkeypatch.setenv("SPECDEC_DEBUGG", "1")
    assert found_in(tmp_path) == requested()
    first, second = (str(one.message) for one in recwarn.list)
    assert first == "the variable SPECDEC_DEBUGG means nothing here: did you mean SPECDEC_DEBUG?"
    every = ", ".join((*VARIABLES, *FIXED, *OTHERS))
    assert second == f"the variable SPECDEC_QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ means nothing here: known are {every}"


def test_a_run_is_repeated_with_its_options_of_which_those_that_are_usual_are_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = requested(target="tiny", batch="2,3", exact="true", max_new_tokens="7")
    folder = Journal.begin_in(tmp_path, "tiny", manifest(first.texts)).folder
    again = found_in(tmp_path, repeat=folder.name)
    assert (again.texts, again.repeat) == (first.texts, folder)
    assert again.given >= {"target", "batch", "exact", "max-new-tokens"}
    assert not again.given & {"draft", "seed", "temperature", "graphs", "pairs"}
    other = found_in(tmp_path, repeat=folder.name, batch="4")
    assert (other.batch, other.target) == ((4,), ("tiny",))
    said = f"batch has two values: '5' in run.yaml, '2,3' in the run in {folder.name}; leave out one, or say "
    assert refused_source(tmp_path, "batch: 5", repeat=folder.name) == f"{said}--specdec-batch=…"
    none = f"--specdec-repeat: {tmp_path / 'none'} is no folder of results: it has no MANIFEST.json; name a folder "
    assert refused_source(tmp_path, repeat="none").startswith(none)


@pytest.mark.slow
def test_a_file_and_a_variable_choose_the_rows_of_a_run_and_the_command_line_wins(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "target: tiny\nworkload: [chat, reasoning]\nbatch: [1, 2]\ndraft: ngram\npeer: none\ntemperature: 0.7\n"
        "deterministic: true\ngate-tolerance: 0.05\n"
    )
    words = ("--specdec-config", "run.yaml", "--specdec-batch", "1,3")
    found = collected(inside, *words, SPECDEC_FORCE_PYTORCH_BACKEND="1", SPECDEC_BATCH_SIZE="4")
    for workload, batch in ((one, more) for one in ("chat", "reasoning") for more in ("", "-batch3")):
        name = f"tiny-{workload}-ngram-match-k4-backendreference{batch}-temperature0.7"
        assert f"[{name}]" in found
    assert found.count("-ngram-") == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("targt: tiny", "'targt', which is no option: did you mean 'target'?"),
        ("specdec_max_new_tokens: 4", "did you mean 'max-new-tokens'?"),
        ("qqqq: 1", "which is no option; options are target, "),
        ("batch: {a: 1}", "batch is {a: 1}; expected a value or a list of values"),
        ("batch: []", "batch is []; expected a value or a list of values"),
        ("batch: null", "batch is null; expected a value or a list of values"),
        ("batch: true", "batch is true; expected a value or a list of values"),
        ("seed: [1, 2]", "seed is [1, 2]; expected one value"),
        ("deterministic: 3", "deterministic is 3; expected true or false"),
        ("- target", "holds a list; expected a mapping from names to values"),
        ("a: [", "is no YAML"),
        ("batch: two", "--specdec-batch is 'two'; expected whole numbers"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(inside: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    done = inside(*ONE, "--specdec-target", "tiny", "--specdec-config", "run.yaml")
    assert done.returncode == 4
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_every_variable_is_in_the_help_of_its_option_and_in_the_documents(inside: Run) -> None:
    shown = " ".join(inside("-m", "pytest", "--help").stdout.split())
    page = (Path(__file__).parents[3] / "docs" / "runs.md").read_text(encoding="utf-8")
    for name in VARIABLES:
        assert name in shown
    for name in (*VARIABLES, *FIXED, *OTHERS):
        assert f"`{name}" in page


def test_a_folder_that_is_none_cannot_be_repeated(inside: Run) -> None:
    done = inside(*ONE, "--specdec-repeat", "nowhere")
    assert done.returncode == 4
    assert "nowhere is no folder of results" in done.stderr


def test_every_variable_stands_for_an_option_and_every_option_has_one_name() -> None:
    assert {variable.option for variable in VARIABLES.values()} <= KNOWN.keys()
    assert not {*OTHERS, *FIXED} & VARIABLES.keys()
    assert len(KNOWN) == len({options.key_of(option.name, group) for group, option in KNOWN.values()})


@pytest.mark.slow
def test_a_dry_run_goes_through_everything_without_the_model_and_says_so(run: Run, tmp_path: Path) -> None:
    """The target is a folder with a config and no weights."""
    import json

    (tmp_path / "model").mkdir()
    config = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1024}
    config |= {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    common = ("--pyargs", "benchsuite.test_speculation", "--specdec-target", "model", "--specdec-workload", "chat")
    done = run(
        *("-m", "pytest", *common, "--specdec-dry-run", "--specdec-max-new-tokens", "4", "--specdec-results", "out"),
        *("--specdec-draft", "ngram, draft_model(model=nowhere/at-all)"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # 1,000 rows and a head of 512, four layers of 2.2 million parameters and nine norms of 512, at four bytes.
    assert "dry run: model would read 37.92 MiB" in done.stdout
    assert "This was a dry run" in done.stdout
    assert (
        "dry run: garbage stands for draft_model(model=nowhere/at-all), which does not fit the tiny model"
        in " ".join(done.stdout.split())
    )
    assert len(list(tmp_path.glob("out/*/cells/*"))) == 1
    real = run("-m", "pytest", *common, "--specdec-max-new-tokens", "4", "--specdec-results", "out", "--specdec-resume")
    assert real.returncode == 4
    assert "--specdec-dry-run: true there, false here" in real.stderr


def test_a_misspelled_option_of_a_file_gets_the_nearest_also_where_it_begins_as_on_the_command_line(
    tmp_path: Path,
) -> None:
    for written in ("drft", "specdec-drft", "specdec_drft"):
        assert refused_source(tmp_path, f"{written}: ngram").endswith("which is no option: did you mean 'draft'?")


@pytest.mark.slow
def test_a_refused_value_is_named_with_the_file_in_which_it_stands(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nspecdec_k = four\n")
    (tmp_path / "run.yaml").write_text("batch: none\n")
    of_ini, of_file = inside(*ONE).stderr, inside(*ONE, "--specdec-k=2", "--specdec-config=run.yaml").stderr
    assert (
        f"--specdec-k is 'four'; expected whole numbers, 0 or more, separated by commas; k stands in the ini file "
        f"{tmp_path / 'pytest.ini'}" in of_ini
    )
    assert "--specdec-batch is 'none'" in of_file
    assert "; batch stands in run.yaml" in of_file
    assert "stands in" not in inside(*ONE, "--specdec-k=five").stderr
