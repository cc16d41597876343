"""``python -m benchsuite``: what each command may be told, what its defaults are, and what it does with them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.__main__ import benchsuite_main
from benchsuite.foreign.files import read_file, write_result
from benchsuite.machine.files import strict_json
from benchsuite.predict.ks import KS
from benchsuite.report.foreign import foreign_document
from benchsuite.report.renderers import terminal
from benchsuite.run.names import refuse_unknown_names
from benchsuite.store.journal import Journal, manifest
from benchsuite.tests.report.made_parts import measured_part
from benchsuite.tests.rig import requested

pytestmark = pytest.mark.usefixtures("endless_line")

RECORDED = Path(__file__).parents[1] / "recorded"

OF_TEXT = (
    "[--target TARGET] [--workload WORKLOAD] [--batch BATCH] [--prompts PROMPTS] [--max-new-tokens MAX_NEW_TOKENS] "
    "[--dtype DTYPE] [--device DEVICE] [--backend BACKEND] [--seed SEED] [--json FILE]"
)
"""What the two commands take that load a target and run it over a kind of text."""

USAGE = {
    "merge": "--into INTO folders [folders ...]",
    "submit": "--shards SHARDS --into INTO [--cluster {slurm,local}] [--set NAME=VALUE] arguments [arguments ...]",
    "report": "folder",
    "compare": "[--all] [--markdown FILE] [--html FILE] base run [run ...]",
    "history": "--html FILE run [run ...]",
    "convert": "[--to {vllm,aiperf,guidellm,ours}] [--run NAME] [--out FILE] file",
    "advise": f"[--minutes MINUTES] [--drafts DRAFT] [--k K] [--temperature TEMPERATURE] [--policy POLICY] {OF_TEXT}",
    "breakeven": f"[--drafting DRAFTING] [--html FILE] {OF_TEXT}",
    "head": "[--target TARGET] [--workload WORKLOAD] [--prompts PROMPTS] [--max-new-tokens MAX_NEW_TOKENS] [--k K] "
    "[--dtype DTYPE] [--device DEVICE] [--backend BACKEND] [--json FILE] head",
    "engines": "COMMAND ...",
    "engines set-up": "[--into INTO] [NAME ...]",
    "engines serve": "--model MODEL [--speculation HOW] [--k K] [--draft-model MODEL] [--port PORT] "
    "[--threads THREADS] [--max-length MAX_LENGTH] [--rows ROWS] [--set NAME=VALUE] [--into INTO] NAME",
    "engines head": "[--target TARGET] [--workload WORKLOAD] [--prompts PROMPTS] [--max-new-tokens MAX_NEW_TOKENS] "
    "[--k K] [--port PORT] [--into INTO] [--markdown FILE] head",
    "engines record": "--into FILE [--note NAME=TEXT] url",
    "engines acceptance": "--k K (--length LENGTH | --rate RATE | --rates RATES | --histogram HISTOGRAM) "
    "[--steps STEPS] url",
    "guests": "[--into INTO] [NAME ...]",
}
"""What may be typed behind each command's name; scripts of users have it."""


@pytest.fixture
def helped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What ``python -m benchsuite … --help`` prints, on a terminal of one endless line."""
    monkeypatch.setenv("COLUMNS", "1000")

    def call(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            benchsuite_main([*words, "--help"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("command", USAGE)
def test_a_command_takes_what_its_usage_says(command: str, helped: Callable[..., str]) -> None:
    assert helped(*command.split()).splitlines()[0] == f"usage: python -m benchsuite {command} [-h] {USAGE[command]}"


def test_the_commands_are_listed_and_one_must_be_named(
    helped: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = helped()
    assert shown.startswith("usage: python -m benchsuite [-h] COMMAND ...\n\nWork with results; advice on a text.\n")
    assert re.findall(r"^    (\w+)(?: |$)", shown, re.MULTILINE) == [one for one in USAGE if " " not in one]
    for command in ([], ["mend"]):
        with pytest.raises(SystemExit) as ended:
            benchsuite_main(command)
        assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "the following arguments are required: COMMAND" in said
    assert "invalid choice: 'mend'" in said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["advise", "breakeven"])
def test_help_shows_the_defaults_of_a_command_which_are_values_of_a_run(
    command: str, helped: Callable[..., str]
) -> None:
    """Each is what a run would take and has a name that is known; what writes a file is left out by itself."""
    shown = re.findall(r"^  (--.*?)(?=^  -|\Z)", helped(command), re.MULTILINE | re.DOTALL)
    names = [re.findall(r"--([\w-]+) [A-Z]", one)[-1] for one in shown]
    defaults = {name: re.findall(r"\(default: (.*)\)", one) for name, one in zip(names, shown, strict=True)}
    assert {name for name, said in defaults.items() if not said} == {"json", "html"} & defaults.keys()
    usual = {name.replace("-", "_"): said[0] for name, said in defaults.items() if said}
    assert float(usual.pop("minutes" if command == "advise" else "drafting")) in (2, 0)
    request = requested(**usual)
    refuse_unknown_names(request)
    assert (request.target, request.sampling["temperature"], request.seed) == (("smollm2-135m",), (0,), 0)
    assert request.batch == ((1,) if command == "advise" else (1, 4))
    assert command == "breakeven" or request.k == tuple(k for k in KS if k)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (("advise", "--minutes", text), f"--minutes is '{text}'; expected a number above 0")
            for text in ("0", "inf")
        ),
        *((("advise", "--minutes", text), "--minutes is ") for text in ("-1", "nan", "x")),
        *((("breakeven", "--drafting", text), f"--drafting is '{text}'; expected 0 or ") for text in ("-0.5", "inf")),
        *((("advise", "--minutes", text, "--batch", "x"), "--batch is 'x'") for text in ("1e-9", "1", "60")),
        *((("breakeven", "--drafting", text, "--batch", "x"), "--batch is 'x'") for text in ("0", "0.5", "2")),
        (("breakeven", "--workload", "chat,reasoning"), "--workload names 2 kinds of text, chat, reasoning; "),
    ],
)
def test_numbers_are_taken_up_to_their_limits(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchsuite_main([*words]) == 2
    assert capsys.readouterr().err.startswith(f"benchsuite: {said}")


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = str(RECORDED / "aiperf.json")
    assert benchsuite_main(["convert", there, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"benchsuite: {tmp_path}: Is a directory; name another file\n"


def test_a_result_is_shown_whole_or_one_run_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two.jsonl"
    one = json.loads((RECORDED / "vllm-bench.json").read_text())
    file.write_text("".join(json.dumps({**one, "model_id": name}) + "\n" for name in ("near", "far")))
    whole = read_file(file)
    first, second = (run.name for run in whole.runs)
    assert first != second
    assert benchsuite_main(["convert", str(file)]) == 0
    shown, said = capsys.readouterr()
    assert shown == "\n".join(terminal(foreign_document(whole))) + "\n"
    assert not said
    assert first in shown
    assert second in shown
    assert benchsuite_main(["convert", str(file), "--run", second, "--out", str(tmp_path / "o.txt")]) == 0
    assert not capsys.readouterr().out
    kept = (tmp_path / "o.txt").read_text(encoding="utf-8")
    assert second in kept
    assert first not in kept


@pytest.mark.parametrize("to", ["vllm", "aiperf", "guidellm", "ours"])
def test_a_conversion_says_all_that_is_lost(to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the other format has no place for, then what was not read of the file, then what is doubtful about it."""
    file = tmp_path / "later.json"
    file.write_text((RECORDED / "aiperf.json").read_text().replace('"1.4"', '"9.9"', 1))
    assert benchsuite_main(["convert", str(file), "--to", to]) == 0
    shown, said = capsys.readouterr()
    found = read_file(file)
    content, lost = write_result(found, to)
    assert shown == strict_json(content)
    [run] = found.runs
    assert said.splitlines() == [
        *(f"no place in {to}: {one}" for one in lost),
        f"{run.name}: {len(run.left)} values of the file were not read",
        *found.notes,
    ]
    assert run.left
    assert len(found.notes) == 1
    assert "says version 9.9 of its format" in found.notes[0]


@pytest.mark.slow
def test_a_report_that_is_written_again_keeps_the_predictions_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = measured_part(tmp_path, manifest({"baseline": "plain", "target": "tiny"}), (1, 1), "whole")
    measured = Journal.load(folder).measured()
    more = {"prediction.json": "{}\n", "prediction.txt": "later, it said …\n"}
    Journal.load(folder).finish(more, measured, True)
    assert benchsuite_main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder / "report.html")
    again = Journal.load(folder)
    assert again.said["complete"] is True
    for name, text in more.items():
        assert (folder / name).read_text(encoding="utf-8") == text
        assert name in again.said["sha256"]


class Jobs:
    """A cluster that keeps what it is told; the n-th job does what the n-th of ``works`` does with its arguments."""

    def __init__(self, *works: Callable[..., object]) -> None:
        self.works, self.told = [*works], dict[str, Any]()

    def executor(self, folder: Path, cluster: str | None = None) -> Any:
        self.told |= {"folder": folder, "cluster": cluster, "jobs": []}
        return SimpleNamespace(update_parameters=self.update, submit=self.submit)

    def update(self, **settings: object) -> None:
        if "no_such" in settings:
            raise NameError("no_such is unknown")
        self.told["settings"] = settings

    def submit(self, work: Callable[..., int], *arguments: Any) -> Any:
        self.told["jobs"].append(arguments)
        doing = self.works[len(self.told["jobs"]) - 1]
        paths = SimpleNamespace(stdout="out.log", stderr="err.log")
        return SimpleNamespace(result=lambda: doing(*arguments), paths=paths)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Submit with arguments to ``Jobs``; returns the exit code and what the cluster was told."""
    submitit = pytest.importorskip("submitit")
    matrix = manifest({"baseline": "plain", "target": "tiny"})

    def measures(arguments: list[str], shard: str, folder: str) -> None:
        part, of = map(int, shard.split("/"))
        measured_part(Path(folder), matrix, (part, of), "whole")

    def call(*words: str, works: int = 2) -> tuple[int, dict[str, Any]]:
        jobs = Jobs(*[measures] * works, *[lambda *arguments: None] * 2)
        monkeypatch.setattr(submitit, "AutoExecutor", jobs.executor)
        into = str(tmp_path / "x" / ".." / "jobs")
        return benchsuite_main(["submit", "--into", into, *words, "--", "-k", "one"]), jobs.told

    return call


def test_parts_are_submitted_with_the_clusters_settings_and_merged_anew(
    submitted: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--set", "timeout_min=7", "--set", "slurm_partition=a=b", "--set", "slurm_time=")
    (tmp_path / "jobs" / "merged").mkdir(parents=True)
    (tmp_path / "jobs" / "merged" / "old").touch()
    code, told = submitted("--shards", "2", *settings, "--cluster", "local")
    into = tmp_path / "jobs"
    assert code == 0
    assert told["folder"] == into / "jobs"
    assert told["cluster"] == "local"
    assert told["settings"] == {"timeout_min": 7, "slurm_partition": "a=b", "slurm_time": ""}
    assert told["jobs"] == [(["-k", "one"], f"{part}/2", str(into / f"part-{part}")) for part in (1, 2)]
    assert capsys.readouterr().out == f"4 cells of 2 parts: {into / 'merged'}\n"
    assert not (into / "merged" / "old").exists()


def test_one_part_is_a_run_and_a_part_without_results_is_named_with_its_logs(
    submitted: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = submitted("--shards", "1")
    assert (code, told["cluster"], told["settings"]) == (0, None, {"timeout_min": 30})
    capsys.readouterr()
    assert submitted("--shards", "3", works=2)[0] == 2
    said = f"benchsuite: {tmp_path / 'jobs' / 'part-3'} has no results; its output is in out.log and err.log. "
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--shards", "2", "--set", "a=1", "--set", "timeout"), "--set 'timeout' has no value; write NAME=VALUE"),
        (("--shards", "0"), "--shards must be 1 or more"),
        (("--shards", "0", "--set", "timeout"), "--set 'timeout' has no value; write NAME=VALUE"),
        (
            ("--shards", "1", "--set", "no_such=1"),
            "submitit does not take these settings: no_such is unknown; leave out --set, or see its names",
        ),
    ],
)
def test_a_submission_that_cannot_be_meant_is_refused(
    words: tuple[str, ...],
    said: str,
    submitted: Callable[..., tuple[int, dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, told = submitted(*words)
    assert (code, told.get("jobs", [])) == (2, [])
    assert capsys.readouterr().err == f"benchsuite: {said}\n"
