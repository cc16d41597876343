"""``engines acceptance``: a server over HTTP is asked until enough steps are counted, and judged."""

from __future__ import annotations

import pytest

from benchsuite.__main__ import benchsuite_main
from benchsuite.engines.acceptance import enough_steps
from benchsuite.tests.synthetic_servers import APositionLate, LongerMean, SyntheticServer, synthetic_url
from specdec_plugins.schedule import schedule_of

pytestmark = pytest.mark.usefixtures("endless_line")

ASKED = schedule_of(4, length=2.6)


def answered_by(server: SyntheticServer, *more: str) -> int:
    """The exit code of the command for a server."""
    with synthetic_url(server) as url:
        return benchsuite_main(["engines", "acceptance", url, "--k", "4", "--length", "2.6", *more])


@pytest.mark.parametrize("words", ["positions", "steps", "total"])
def test_a_right_server_passes_with_the_steps_that_find_every_fault(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of steps that are counted one by one those at an end of a text are left out."""
    server = SyntheticServer(ASKED, words=words, cut=words == "steps")
    assert answered_by(server) == 0
    out = capsys.readouterr().out
    whole = sum(proposed == 4 for proposed, _ in server.steps)
    assert enough_steps(ASKED) <= whole < enough_steps(ASKED) + 128
    assert f"{whole} steps may accept as asked: they emitted " in out
    assert ("the mean alone" in out) == (words == "total")
    assert ("position 1: " in out) == (words != "total")


@pytest.mark.parametrize("fault", [APositionLate, LongerMean])
def test_a_wrong_server_fails(fault: type[SyntheticServer], capsys: pytest.CaptureFixture[str]) -> None:
    assert answered_by(fault(ASKED)) == 2
    said = capsys.readouterr()
    assert "steps do not accept as asked" in said.out
    assert "does not accept as asked, see above" in said.err


def test_fewer_steps_say_what_they_do_not_find(capsys: pytest.CaptureFixture[str]) -> None:
    assert answered_by(SyntheticServer(ASKED), "--steps", "20") == 0
    assert "a mean 4% higher from 1205 steps, more than there were" in capsys.readouterr().out


def test_a_server_that_does_not_speculate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    class Silent(SyntheticServer):
        def page(self) -> str:
            return "vllm:generation_tokens_total 7\n"

    class Idle(SyntheticServer):
        def answer(self, tokens: int) -> list[tuple[int, int]]:
            return []

    assert answered_by(Silent(ASKED)) == 2
    assert "neither in its answers nor on /metrics" in capsys.readouterr().err
    assert answered_by(Idle(ASKED)) == 2
    assert "counted no step of 4 proposals in an answer of 128 tokens" in capsys.readouterr().err


def test_one_description_of_the_acceptance_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--rate", "0.5", "--length", "2"]):
        with pytest.raises(SystemExit):
            benchsuite_main(["engines", "acceptance", "http://127.0.0.1:9", "--k", "4", *words])
    assert "not allowed with argument" in capsys.readouterr().err
    assert benchsuite_main(["engines", "acceptance", "http://127.0.0.1:9", "--k", "4", "--length", "7"]) == 2
    assert "length is 7.0; expected 1 to 5" in capsys.readouterr().err
