"""``pytest -m serving --gate-base`` as a user runs it, over servers of our own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchsuite.gate.record import VERSION
from benchsuite.tests.our_server import Bugs, OurServer
from benchsuite.tests.rig import Make, Run

SERVE = ("-m", "pytest", "--pyargs", "benchsuite.test_serving", "-m", "serving", "-q")
SHORT = ("--specdec-workload", "chat,reasoning", "--specdec-prompts", "4", "--specdec-max-new-tokens", "16")
LENIENT = ("--gate-tolerance=0.99", "--gate-ttft-tolerance=0.99", "--gate-inconclusive=report")
"""Nothing is said of times, which are those of a busy machine."""

REFUSED = [
    (("--gate-base=base", "-k", "outputs"), "and this run has no test of servers"),
    (("--gate-base=base", "--specdec-prompts=2"), "4 groups of requests in 1 rounds under 1 at once decide nothing"),
    (("--gate-base=base", "--gate-level=1"), "--gate-level 1 compares with a file"),
    (("--gate-base=base", "--gate-launches=7"), "--gate-launches mean nothing for servers"),
    (("--gate-base=none",), "nor an endpoint of base, head"),
    (("--gate-base=base", "-n", "2", "-p", "xdist"), "gate without -n"),
]


@pytest.mark.slow
def test_a_fork_that_lost_its_draft_and_changes_tokens_fails_and_one_that_did_not_passes(
    assemble: Make, inside: Run, tmp_path: Path
) -> None:
    with (
        OurServer(assemble(max_length=512).engine("ngram", k=4)) as base,
        OurServer(assemble(max_length=512).engine("ngram", k=4)) as same,
        OurServer(assemble(max_length=512).engine(None, k=0), Bugs(change=4)) as lost,
    ):
        given = (*SERVE, *SHORT, *LENIENT, "--gate=fail", "--gate-base=base", "--gate-json=v.json")
        for arguments, said in REFUSED:
            endpoints = f"--specdec-endpoint=base={base.url},head={same.url}"
            done = inside(*given, endpoints, *arguments)
            assert done.returncode == 4, done.stdout + done.stderr
            assert said in done.stdout + done.stderr
        done = inside(*given, f"--specdec-endpoint=head={same.url},base={base.url}", "--specdec-certify=float32")
        assert done.returncode == 0, done.stdout
        found = json.loads((tmp_path / "v.json").read_text())
        by = {(one["row"], one["figure"]): one for one in found["findings"]}
        assert by["head-c1", "steps/token"]["change"] == 0
        assert by["head-outputs", "outputs"]["verdict"] == "PASS"
        assert "steps/token" not in done.stdout.partition("not gated")[2]
        assert found["base"]["endpoints"] == {"base": base.url}
        done = inside(*given, f"--specdec-endpoint=base={base.url},head={lost.url}")
        assert done.returncode == 1, done.stdout
        found = json.loads((tmp_path / "v.json").read_text())
        worse = {(one["figure"], one["where"]) for one in found["findings"] if one["verdict"] == "REGRESSED"}
        assert worse == {("speculation", "speculation"), ("outputs", "output")}
        done = inside(*given, f"--specdec-endpoint=base={lost.url},head={base.url}", "--specdec-certify=off")
        _, _, left = done.stdout.partition("not gated (servers): ")
        assert "head-c1 steps/token (the base proposes no tokens by its own" in left
        assert "outputs (--specdec-certify off)" in done.stdout


@pytest.mark.slow
def test_a_file_of_servers_is_written_and_gated_and_what_it_cannot_say_is_refused(
    assemble: Make, inside: Run, tmp_path: Path
) -> None:
    short = ("--specdec-workload=chat", "--specdec-prompts=6", "--specdec-max-new-tokens=8", "--specdec-certify=off")
    rows = {"format": "specdec-gate", "version": VERSION, "made": {}, "rows": {}}
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    with (
        OurServer(assemble(max_length=512).engine(None, k=0)) as plain,
        OurServer(assemble(max_length=512).engine("garbage", k=2)) as spec,
    ):
        given = (*SERVE, *short, f"--specdec-endpoint=plain={plain.url},spec={spec.url}")
        saved = inside(*given, "--gate-save=gate.json")
        assert saved.returncode == 0, saved.stdout + saved.stderr
        assert "saved gate.json: 2 rows of servers" in saved.stdout
        gated = (*given, "--gate=fail", "--gate-inconclusive=report")
        done = inside(*gated, "--gate-against=gate.json", "--gate-level=0", "--gate-json=v.json")
        assert done.returncode == 0, done.stdout
        [found] = json.loads((tmp_path / "v.json").read_text())["findings"]
        assert (found["row"], found["figure"]) == ("spec-c1", "steps/token"), (
            "of a draft whose tokens are those of no prompt"
        )
        assert "plain-c1 steps/token (the base proposes no tokens by its own counts" in done.stdout
        assert "outputs (they are certified by the first endpoint of this run)" in done.stdout
        other = inside(*gated, "--gate-against=gate.json", "--specdec-seed=7")
        assert other.returncode == 1
        assert "measured otherwise than the baseline: other seed; make it again with --gate-save" in other.stdout
        for arguments, said in (
            (("--gate-against=gate.json", "--gate-level=2"), "--gate-level 2 compares servers that run now"),
            (("--gate-against=gate.json", "-k", "outputs"), "baseline of servers and this run has no test of servers"),
            (("--gate-against=rows.json",), "rows.json is no baseline of servers: make one with --gate-save"),
        ):
            refused = inside(*gated, *arguments)
            assert refused.returncode == 4, refused.stdout + refused.stderr
            assert said in refused.stdout + refused.stderr
        for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "a"]):
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)
        revision = inside(*gated, "--gate-base=HEAD")
        assert revision.returncode == 4
        assert "is a revision: start its server beside the other, or name the commands of both" in revision.stderr
        nothing = f"--specdec-endpoint=plain={plain.url},same={plain.url.replace('127.0.0.1', 'localhost')}"
        empty = inside(*SERVE, *short, nothing, "--gate=fail", "--gate-base=plain", "--gate-level=0")
        assert empty.returncode == 1
        assert "nothing was judged, which is no pass" in empty.stdout
