"""``python -m specdec``: one generation, as users run it."""

from __future__ import annotations

import json

import pytest

from benchsuite.tests.rig import Run


@pytest.mark.slow
def test_the_command_tells_tokens_apart_without_colour(run: Run) -> None:
    done = run(
        "-m", "specdec", "one two one two", "--target", "tiny", "--draft", "oracle(0.8)", "--max-new-tokens", "12"
    )
    assert done.returncode == 0, done.stderr
    assert "[accepted]" in done.stdout
    assert "a proposal that was kept" in done.stdout
    assert "contract exact, ended by length" in done.stdout


@pytest.mark.slow
def test_the_command_gives_strict_json_on_request(run: Run) -> None:
    arguments = ("one two", "--specdec-target", "tiny", "--json", "--max-new-tokens", "8", "--temperature", "0.7")
    found = json.loads(run("-m", "specdec", *arguments).stdout, parse_constant=pytest.fail)
    assert len(found["tokens"]) == found["counters"]["num_emitted_tokens"] == 8
    assert {token["kind"] for token in found["tokens"]} <= {"accepted", "recovered", "bonus", "plain"}
    again = json.loads(run("-m", "specdec", *arguments, "--draft", "none").stdout)
    assert [t["id"] for t in again["tokens"]] == [t["id"] for t in found["tokens"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x", "--draft", "ngrm"), "unknown draft 'ngrm'; did you mean 'ngram'"),
        (("  ", "--target", "tiny"), "the prompt is empty; give it some text"),
        (("x", "--target", "tiny", "--top-p", "3"), "top_p is 3.0; expected above 0"),
    ],
)
def test_the_command_refuses_with_one_line_and_code_2(arguments: tuple[str, ...], message: str, run: Run) -> None:
    done = run("-m", "specdec", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
