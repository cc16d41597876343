"""``pytest -m serving`` as a user runs it, over servers of our own: tables, files, refusals, an interrupt."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchsuite.tests.faulty import Fault, FaultyServer, plain_answer
from benchsuite.tests.our_server import Bugs, OurServer
from benchsuite.tests.rig import Make, Run
from specdec_plugins.endpoints.named import KEY

SERVE = ("-m", "pytest", "--pyargs", "benchsuite.test_serving", "-m", "serving")
FEW = (*SERVE, "--specdec-prompts", "2", "--specdec-max-new-tokens", "6", "--specdec-certify", "off")
INTERRUPTED = """
import signal, sys, threading, pytest
signal.signal(signal.SIGINT, signal.default_int_handler)
main = threading.main_thread().ident
def interrupt():
    open("now").read()
    signal.pthread_kill(main, signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
sys.exit(pytest.main(sys.argv[1:]))
"""
"""pytest that is interrupted when the pipe ``now`` is opened and closed.

It is also where it was started in the background, by a shell that ignores SIGINT for it.
"""
SECRET = "sk-also-secret-987654"


def folder_of(root: Path) -> Path:
    [found] = [path for path in root.iterdir() if path.is_dir()]
    return found


@pytest.mark.slow
def test_two_servers_stand_in_one_table(
    assemble: Make, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    with (
        OurServer(assemble(max_length=512).engine(None, k=0)) as plain,
        OurServer(assemble(max_length=512).engine("ngram", k=4)) as spec,
    ):
        done = run(
            *FEW,
            "--specdec-endpoint",
            f"plain={plain.url},spec={spec.url}",
            *("--specdec-workload", "chat,reasoning", "--specdec-concurrency", "1,2", "--specdec-rate", "1000"),
            *("--specdec-slo", "ttft=60", "--specdec-results", str(tmp_path / "kept")),
        )
        assert done.returncode == 0, done.stdout
        # Four prompts in each of three loads, the first server twice, and each is read just before; before the timing
        # each is read once more, and one is asked for usage.
        assert plain.asked == 2 * 4 * 3 * 2 + 4 * 3 + 1
        assert spec.asked == 2 * 4 * 3 + 4 * 3 + 1
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith(("1 at once", "2 at once", "1000 a second"))]
    for name in ("plain", "plain again", "spec"):
        assert sum(line.startswith(f"{name} ") and "4/4" in line for line in lines) >= 3
    assert "100%" in done.stdout, "every request keeps a limit of a minute"
    tables = lines[next(n for n, line in enumerate(lines) if line.startswith("1 at once")) :]
    assert max(len(line) for line in tables if not line.startswith(("results", "="))) <= 120
    found = json.loads((folder_of(tmp_path / "kept") / "serving.json").read_text())
    assert [load["load"] for load in found["loads"]] == [
        {"concurrency": 1, "rate": None},
        {"concurrency": 2, "rate": None},
        {"concurrency": None, "rate": 1000.0},
    ]
    assert all(one["usage"][1] == 6 for block in found["loads"][0]["blocks"] for one in block["sent"])
    kept = "".join(path.read_text(errors="replace") for path in (tmp_path / "kept").rglob("*") if path.is_file())
    assert SECRET not in kept + done.stdout + done.stderr


@pytest.mark.slow
def test_without_an_endpoint_nothing_runs_and_a_line_says_how(inside: Run) -> None:
    done = inside(*SERVE, "-rs", "-v")
    assert done.returncode == 0
    assert "::test_serving[none] SKIPPED" in done.stdout
    assert "2 skipped" in done.stdout
    assert "--specdec-endpoint plain=http://localhost:8000" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--specdec-endpoint", "localhost:8000"), "expected name=url"),
        (("--specdec-endpoint", "a=http://127.0.0.1:1", "--specdec-concurrency", "0"), "--specdec-concurrency is '0'"),
        (("--specdec-endpoint", "a=http://127.0.0.1:1", "--specdec-slo", "itl=1"), "--specdec-slo is 'itl=1'"),
        (("--specdec-endpoint", "a=http://127.0.0.1:1", "--specdec-endpoint-api", "rpc"), "one of completions, chat"),
        (("--specdec-endpoint", "a=http://127.0.0.1:1", "--specdec-temperature", "0,1"), "with one value of it"),
        (("--specdec-endpoint", "a=http://127.0.0.1:1", "--specdec-certify", "int8"), "one of auto, off, float32"),
        pytest.param(("--specdec-endpoint", "a=http://127.0.0.1:1"), "refused", marks=pytest.mark.slow),  # retries
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_timed(
    arguments: tuple[str, ...], said: str, inside: Run
) -> None:
    done = inside(*FEW, *arguments)
    assert done.returncode == 4, done.stdout
    assert said in done.stderr + done.stdout


@pytest.mark.slow
def test_a_server_that_fails_too_often_is_inconclusive(assemble: Make, run: Run) -> None:
    """It answers what is asked before the timing, and nothing after it."""
    good = (b'{"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}',)
    whole = Fault(
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: ",
            *good,
            b"\n\ndata: [DONE]\n\n",
        )
    )
    bad = Fault((plain_answer("400 Bad Request", "no"),))
    with (
        OurServer(assemble(max_length=512).engine(None, k=0)) as plain,
        FaultyServer([whole, whole, whole, bad]) as spec,
    ):
        done = run(*FEW, "--specdec-endpoint", f"plain={plain.url},spec={spec.url}", "--specdec-workload", "chat")
    assert done.returncode == 1
    assert "INCONCLUSIVE: spec: 0 of 2 requests were answered at the first try" in done.stdout
    assert "of 2 requests 2 refused_request" in done.stdout
    assert "spec gives no log-probabilities: its usage is taken at its word" in done.stdout


@pytest.mark.slow
def test_an_interrupt_leaves_what_was_measured(assemble: Make, run: Run, tmp_path: Path) -> None:
    """The second server hangs after its warm-up; the process is interrupted when it is to read a prompt again."""
    whole = Fault(
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            b'data: {"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}\n\n'
            b"data: [DONE]\n\n",
        )
    )
    os.mkfifo(tmp_path / "now")
    with (
        ThreadPoolExecutor(1) as pool,
        OurServer(assemble(max_length=512).engine(None, k=0)) as plain,
        FaultyServer([whole, whole, whole, Fault(hangs=True)]) as spec,
    ):
        short = ("--specdec-workload", "chat", "--specdec-pairs", "1", "--specdec-results", str(tmp_path / "kept"))
        endpoints = ("--specdec-endpoint", f"plain={plain.url},spec={spec.url}")
        running = pool.submit(run, "-c", INTERRUPTED, *FEW[2:], *endpoints, *short)
        # Two prompts before the timing and one again, then the request that hangs: the server's fourth.
        spec.wait(4)
        os.close(os.open(tmp_path / "now", os.O_WRONLY | os.O_NONBLOCK))
        done = running.result(60)
    assert done.returncode == 2, done.stdout + done.stderr
    found = json.loads((folder_of(tmp_path / "kept") / "serving.json").read_text())
    sent = [(block["endpoint"], len(block["sent"])) for block in found["loads"][0]["blocks"]]
    assert sent[-1] == ("spec", 0)
    assert all(count == 1 for _, count in sent[:-1])


@pytest.mark.slow
def test_a_server_that_changes_usage_is_counted_as_such(assemble: Make, run: Run) -> None:
    with (
        OurServer(assemble(max_length=512).engine(None, k=0)) as plain,
        OurServer(assemble(max_length=512).engine(None, k=0), Bugs(usage=2)) as bad,
    ):
        done = run(*FEW, "--specdec-endpoint", f"plain={plain.url},spec={bad.url}", "--specdec-workload", "chat")
    assert done.returncode == 4, "the warm-up finds it"
    assert "usage" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("change", [0, 4], ids=["honest", "one token in four changed"])
def test_a_changed_output_fails_and_an_honest_one_is_certified(change: int, assemble: Make, run: Run) -> None:
    with (
        OurServer(assemble(max_length=512).engine(None, k=0)) as plain,
        OurServer(assemble(max_length=512).engine("ngram", k=4), Bugs(change=change)) as spec,
    ):
        endpoints = ("--specdec-endpoint", f"plain={plain.url},spec={spec.url}", "--specdec-workload", "chat")
        done = run(*FEW, *endpoints, "--specdec-max-new-tokens", "24", "--specdec-certify", "float32")
    assert done.returncode == (1 if change else 0), done.stdout
    assert ("spec: FAILED: " if change else "spec: certified: 0 of 96 judged tokens differ") in done.stdout
    assert ("plain's list: " in done.stdout) == bool(change)


@pytest.mark.slow
def test_outputs_are_compared_where_there_are_two_and_servers_mean_the_same_by_their_lists(
    assemble: Make, inside: Run, tmp_path: Path
) -> None:
    """A run of the comparison alone times nothing, keeps its results, and leaves nothing half made."""
    words = (*SERVE, "-p", "no:randomly", "-k", "outputs", "-rs", "--specdec-workload=chat", "--specdec-prompts=1")
    with (
        OurServer(assemble(max_length=512).engine(None, k=0)) as plain,
        OurServer(assemble(max_length=512).engine(None, k=0)) as spec,
    ):
        one, both = f"plain={plain.url}", f"plain={plain.url},spec={spec.url}"
        for endpoints, more, why in (
            (one, (), "a single endpoint has nothing to be compared with"),
            (both, ("--specdec-certify=off",), "--specdec-certify off"),
            (both, ("--specdec-temperature=0.5",), "outputs are compared at temperature 0 or 1: servers' "),
        ):
            done = inside(*words, f"--specdec-endpoint={endpoints}", *more)
            assert (done.returncode, f": {why}" in done.stdout) == (0, True), done.stdout
            assert "1 skipped" in done.stdout
            assert "= endpoints =" not in done.stdout
        twice = inside(*words, f"--specdec-endpoint=a={spec.url},b={plain.url},c={spec.url}")
        assert twice.returncode == pytest.ExitCode.USAGE_ERROR
        assert f"two endpoints have the address {spec.url}: give each its own, or --specdec-endpoint-st" in twice.stderr
        kept = ("--specdec-results=kept", "--specdec-max-new-tokens=4")
        for heat in ("0", "1"):
            done = inside(*words, f"--specdec-endpoint={both}", *kept, f"--specdec-temperature={heat}")
            assert done.returncode == 0, done.stdout
            assert "1 passed" in done.stdout
            assert re.search(r"^=+ endpoints =+$", done.stdout, re.MULTILINE)
            [folder] = re.findall(r"^results: (.*)$", done.stdout, re.MULTILINE)
            assert (Path(folder) / "serving.json").is_file()
    assert {path.name for path in (tmp_path / "kept").iterdir() if path.is_file()} == set()
