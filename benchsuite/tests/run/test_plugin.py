"""The plugin as users run it: in their own pytest process, from their own folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchsuite.measure.figures import KEYS
from benchsuite.tests.rig import QUICK, SHORT, Run, as_installed
from specdec.devices import why_absent
from specdec.installed import LOAD_PLUGINS


@pytest.mark.slow
def test_help_imports_no_torch_and_lists_every_option(cold: Run) -> None:
    code = (
        "import sys, pytest; pytest.main(['--help']); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = cold("-c", code)
    assert done.returncode == 0
    from benchsuite.options import OPTIONS

    for option in OPTIONS:
        assert f"--specdec-{option.name}" in done.stdout
        assert f"specdec_{option.name.replace('-', '_')}" in done.stdout


@pytest.mark.slow
def test_a_project_that_merely_has_it_installed_is_not_affected(cold: Run, tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import sys, pytest\n"
        "@pytest.mark.cuda\n"
        "def test_theirs(): assert 'torch' not in sys.modules\n"
        "def test_other(): pass\n"
    )
    both = cold("-m", "pytest", "-q", "test_theirs.py", "--strict-markers")
    assert both.returncode == 0
    assert "2 passed" in both.stdout
    none = cold("-m", "pytest", "-q", "test_theirs.py", "-m", "mps")
    assert none.returncode == 5, "pytest's own code for an empty selection, not ours"
    assert "specdec" not in none.stdout


def test_naming_the_plugin_twice_registers_it_once(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['benchsuite.plugin']\n")
    done = inside("-m", "pytest", "-p", "benchsuite.plugin", "--markers")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("@pytest.mark.cuda:") == 1


def strict(path: Path) -> object:
    """Parse JSON, refusing NaN and infinity as the standard does."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{path} holds {constant}")

    text = path.read_text()
    assert "UNSERIALIZABLE" not in text
    return json.loads(text, parse_constant=refuse)


JOINED = (
    "behind=hybrid(sources='ngram(n_min=1), draft_model', extend=True, slots=4)/rejection/fixed/4",
    "filled=hybrid(sources='ngram(n_min=1), draft_model', extend=True)/match/goodput/4",
    "merged=hybrid(sources='suffix(min_match=1), draft_model', merge=True, slots=4)/match/fixed/4",
    "trees=hybrid(sources='ngram(n_min=1), tree(beam=2, depth=2)', merge=True)/tree_rejection/budget/6",
)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_rows_of_hybrids_that_join_proposals_keep_their_contracts(temperature: str, run: Run) -> None:
    done = run(
        *("-m", "pytest", *SHORT, "--specdec-max-new-tokens", "16", "--specdec-prompts", "2", "--specdec-batch", "2"),
        *("--specdec-peer", "none", "--benchmark-quiet", "--specdec-temperature", temperature),
        *("--specdec-arm", ", ".join(JOINED)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for arm in JOINED:
        name = arm.partition("=")[0]
        assert [line for line in done.stdout.splitlines() if line.startswith(f"{name} ")], f"no row {name}"
    assert f"{len(JOINED) + 2} of {len(JOINED) + 2} rows were measured and kept their contract" in done.stdout


@pytest.mark.slow
def test_the_main_job_on_tiny_prints_its_tables_and_writes_strict_json(run: Run, tmp_path: Path) -> None:
    done = run(
        "-m", "pytest", *QUICK, "--specdec-results", "out", "--benchmark-json", "bench.json", "--benchmark-quiet"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if "measured read bandwidth" in line], "no card"
    first_test = next(i for i, line in enumerate(lines) if line.startswith(".") or "test_speculation.py ." in line)
    assert next(i for i, line in enumerate(lines) if "measured read bandwidth" in line) < first_test, "card came late"
    report = next((tmp_path / "out").glob("*/report.html")).read_text()
    [answer] = re.findall(r'<p class="answer">(On this machine .*)</p>', report)
    assert answer in " ".join(done.stdout.split()), "the report begins with another answer"
    path = re.escape(str(tmp_path))
    wide = [line for line in lines[first_test + 1 : -1] if len(line) > 100 and not re.search(path, line)]
    assert [line for line in wide if "Speculative decoding" not in line] == [], "a table is too wide"
    arms = (
        "plain *",
        "plain again",
        "ngram",
        "draft_model",
        "oracle(0.8)",
        "garbage",
        "transformers",
        "transformers pr",
    )
    for arm in arms:
        assert [line for line in lines if line.startswith(arm)], f"no row {arm}"
    assert done.stdout.count("exact: 1/1") == 7

    from typing import Any, cast

    report = cast(Any, strict(tmp_path / "bench.json"))
    assert len(report["benchmarks"]) == 8
    for benchmark in report["benchmarks"]:
        assert list(benchmark["extra_info"]) == list(KEYS)
        assert benchmark["stats"]["rounds"] == 1
        assert benchmark["stats"]["mean"] > 0
    folder = next((tmp_path / "out").iterdir())
    manifest = cast(Any, strict(folder / "MANIFEST.json"))
    assert manifest["complete"] is True
    for name, digest in manifest["sha256"].items():
        import hashlib

        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert {path.name for path in folder.iterdir()} == {*manifest["sha256"], "MANIFEST.json", "cells"}
    written = cast(Any, strict(folder / "benchmark.json"))
    assert {row["draft"] for row in written["rows"]} >= {"ngram", "transformers"}
    assert written["rows"][1]["steps"][0].keys() >= {"k_used", "proposed_len", "accepted_len", "draft_ms", "verify_ms"}
    assert "http" not in (folder / "report.html").read_text().replace("http://www.w3.org", ""), "not self-contained"


@pytest.mark.slow
def test_what_ran_where_and_what_could_not_is_said(run: Run) -> None:
    """Nothing is compiled here, so the counters must show every op on the reference, and the card must say why."""
    done = run("-m", "pytest", *QUICK, "--specdec-draft", "garbage", "--specdec-peer", "none", SPECDEC_FORCE_PY="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without backend cpu: SPECDEC_FORCE_PY=1 forbids compiled kernels" in done.stdout
    assert "ops on reference: " in done.stdout
    assert "ops on cpu" not in done.stdout
    named = run("-m", "pytest", *QUICK, "--specdec-backend", "cpu", SPECDEC_FORCE_PY="1")
    assert named.returncode == 4
    assert "the backend 'cpu' cannot run here: SPECDEC_FORCE_PY=1 forbids" in named.stderr


@pytest.mark.slow
def test_quantised_targets_show_their_bytes_and_perplexity(run: Run) -> None:
    done = run("-m", "pytest", *QUICK, "--specdec-draft", "ngram", "--specdec-dtype", "int8,int4")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("target  weights"))
    assert [line.split()[:2] for line in lines[start + 2 : start + 4]] == [["tiny", "int8"], ["tiny", "int4"]]
    # Both peers run the rounded weights in float32, and read four times the bytes.
    assert done.stdout.count("exact: 1/1") == 8
    assert done.stdout.count("not comparable: dtype: float32, the baseline's is int8") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--specdec-draft", "ngrm"),
            "unknown draft 'ngrm'; did you mean 'ngram'? choices: arctic_suffix, custom_class, dflash, draft_model",
        ),
        (("--specdec-k", "-2"), "--specdec-k is '-2'; expected whole numbers, 0 or more"),
        (("--specdec-results", "/dev/null/x"), "--specdec-results '/dev/null/x' cannot be made: Not a directory"),
        (("--specdec-prompts", "none"), "--specdec-prompts is 'none'; expected a whole number"),
        (("--specdec-precision", "200%"), "--specdec-precision is '200%'; expected a share above 0 and below 1"),
        (("--specdec-budget", "soon"), "--specdec-budget is 'soon'; expected a time, for example 90"),
        (("--specdec-precision", "2%", "--specdec-pairs", "3"), "--specdec-pairs fixes what --specdec-precision"),
        (("--specdec-budget", "9", "--gate-save", "g.json"), "the gate compares runs of the same work"),
        (("--specdec-baseline", "sufix"), "unknown arm 'sufix'; choices: draft_model/match/fixed/4"),
        (("--specdec-batch", "4"), "--specdec-batch 4 takes 4 different prompts at once, and chat has 1"),
        (("--specdec-peer", "transformers_prompt_lookup(k=0)"), "k of the peer transformers_prompt_lookup is 0"),
    ],
)
def test_a_wrong_value_ends_with_one_line_and_code_4(arguments: tuple[str, ...], message: str, run: Run) -> None:
    done = run("-m", "pytest", *QUICK, *arguments)
    assert done.returncode == 4
    assert message in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_another_baseline_is_the_denominator_of_every_speedup(run: Run, tmp_path: Path) -> None:
    arguments = (
        "--specdec-draft",
        "ngram,oracle(0.8)",
        "--specdec-baseline",
        "oracle(0.8)",
        "--specdec-results",
        "out",
    )
    done = run("-m", "pytest", *QUICK, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Speedup over oracle(0.8), geometric means of paired ratios:" in done.stdout
    folder = next((tmp_path / "out").iterdir())
    rows = {row["draft"]: row for row in json.loads((folder / "benchmark.json").read_text())["rows"]}
    assert {row["baseline"] for row in rows.values()} == {"oracle(0.8)"}
    assert (rows["oracle(0.8)"]["speedup"], rows["oracle(0.8)"]["verdict"]) == (1.0, "baseline")
    speed = {name: row["tokens_per_s"] for name, row in rows.items()}
    assert rows[None]["speedup"] == pytest.approx(speed[None] / speed["oracle(0.8)"])
    assert "Each arm's speed over each other's" in (folder / "table.md").read_text()


@pytest.mark.slow
def test_a_precision_ends_in_a_sentence_that_says_what_was_reached(run: Run) -> None:
    arguments = ("--specdec-draft", "oracle(0.8)", "--specdec-peer", "none", "--specdec-max-new-tokens", "6")
    done = run("-m", "pytest", *SHORT, *arguments, "--specdec-precision", "95%", "--specdec-prompts", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    # Which of them it is depends on the machine; tests/measure/test_plan.py has each with a clock of its own.
    ends = "the precision is reached: every|all 6 prompts of each workload are used"
    assert re.search(ends, done.stdout), done.stdout
    done = run("-m", "pytest", *SHORT, *arguments, "--specdec-precision", "0.001%", "--specdec-budget", "0.001")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the budget of 0.001 s is spent" in done.stdout


def test_an_unknown_option_is_not_swallowed(inside: Run) -> None:
    done = inside("-m", "pytest", "--specdec-drafts", "ngram")
    assert done.returncode == 4
    assert "--specdec-drafts" in done.stderr


@pytest.mark.slow
def test_a_run_of_the_root_probes_the_machine_as_a_users_does(cold: Run) -> None:
    """``pytest -m kernels`` there takes the conftest of the suite's own tests in, whose probes are brief."""
    done = cold(
        "-c",
        "import os, sys, pytest\n"
        "from benchsuite.machine import load, roofline\n"
        "def probes(): return dict(roofline.PROBE_BYTES), load.SECONDS\n"
        "users = probes()\n"
        f"os.chdir({str(Path(__file__).parents[3])!r})\n"
        "places = ['benchsuite/test_kernels.py', 'benchsuite/tests/compare']\n"
        "code = pytest.main([*places, '-m', 'kernels', '--co', '-q', '--specdec-target', 'tiny'])\n"
        "assert 'benchsuite.tests.conftest' in sys.modules, 'pytest no longer takes it in: this test shows nothing'\n"
        "sys.exit(code or probes() != users)\n",
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_an_ini_file_sets_options_and_the_command_line_wins(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nspecdec_draft = ngrm\nspecdec_target = tiny\n")
    assert "unknown draft 'ngrm'" in run("-m", "pytest", *QUICK).stderr
    done = run("-m", "pytest", *QUICK, "--specdec-draft", "garbage", "--co", "-q")
    assert "tiny-chat-garbage-match-k4" in done.stdout
    assert "ngrm" not in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(why_absent("cuda") is None, reason="this machine has a CUDA device, so the selection runs")
def test_a_selection_by_device_that_runs_nothing_fails_with_the_reason(run: Run) -> None:
    done = run("-m", "pytest", *QUICK, "-m", "cuda")
    assert done.returncode == 1
    assert "none of specdec-bench's tests ran: no CUDA device: torch" in done.stdout
    either = run("-m", "pytest", *QUICK, "-m", "gpu")
    assert "none of specdec-bench's tests ran: no CUDA device: torch" in either.stdout
    assert "; no MPS device: torch" in either.stdout
    skipped = run("-m", "pytest", "--pyargs", "benchsuite.tests.specdec.test_sampling", "-m", "cuda", "-rs")
    assert skipped.returncode == 1
    assert "SKIPPED [1]" in skipped.stdout
    assert "no CUDA device: torch" in skipped.stdout


THEIRS = """
from specdec import Draft, Window, SpecdecError, hookimpl

class Echo(Draft):
    def __init__(self, env, fail_after=10**9):
        self.left = fail_after

    def propose(self, context):
        self.left -= 1
        if self.left < 0:
            raise SpecdecError("echo was told to fail")
        k = int(context.max_proposals_host.max())
        return Window.chain(context.pending, context.pending[:, None].expand(-1, k), context.max_proposals)

@hookimpl
def specdec_register_drafts(register):
    register("echo", Echo)
"""


@pytest.fixture
def their_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A third party's draft as pip installs it: one module and its entry point, outside the project."""
    monkeypatch.setenv(LOAD_PLUGINS, "specdec-echo")
    return as_installed(THEIRS, tmp_path)


@pytest.mark.slow
def test_a_folder_outside_the_project_adds_a_draft_by_name(run: Run, their_plugin: str) -> None:
    done = run("-m", "pytest", *QUICK, "--specdec-draft", "echo,ngram", "--benchmark-quiet", path=their_plugin)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("echo ") and "exact: 1/1" in line]


@pytest.mark.slow
def test_what_was_measured_before_a_failure_is_still_written(run: Run, their_plugin: str, tmp_path: Path) -> None:
    # The first workload asks less than 18 times, warm-up and second look included; the failure is in the second.
    done = run(
        "-m",
        "pytest",
        *SHORT[:4],
        "--specdec-workload",
        "chat,reasoning",
        *QUICK[6:],
        "--specdec-draft",
        "echo(18)",
        "--specdec-results",
        "out",
        "--benchmark-json",
        "bench.json",
        path=their_plugin,
    )
    assert done.returncode == 1
    assert "echo(18) could not be measured: echo was told to fail" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    folder = next((tmp_path / "out").iterdir())
    rows = json.loads((folder / "benchmark.json").read_text())["rows"]
    assert len(rows) == 10
    failed = [row for row in rows if row["failure"]]
    assert [(row["draft"], row["workload"]) for row in failed] == [("echo(18)", "reasoning")]
    assert failed[0]["speedup"] is None
    assert failed[0]["rounds"] == []
    assert all(row["speedup"] for row in rows if row not in failed)
    assert json.loads((folder / "MANIFEST.json").read_text())["complete"] is False
    assert len(json.loads((tmp_path / "bench.json").read_text())["benchmarks"]) == 9


@pytest.mark.slow
def test_a_broken_plugin_is_named_in_one_line(run: Run, their_plugin: str, tmp_path: Path) -> None:
    (tmp_path / "site" / "specdec_echo.py").write_text("import nothing_of_this_name\n")
    done = run("-m", "specdec", "x", "--target", "tiny", path=their_plugin)
    assert done.returncode == 2
    assert "the plugin 'echo' (specdec_echo) of specdec-echo cannot be imported: ModuleNotFoundError" in done.stderr


@pytest.mark.slow
def test_a_hub_id_out_of_reach_is_refused(run: Run) -> None:
    done = run("-m", "specdec", "x", "--target", "nobody/nothing")
    assert done.returncode == 2
    assert "the model 'nobody/nothing' cannot be loaded" in done.stderr
    assert "the hub is out of reach" in " ".join(done.stderr.split())
