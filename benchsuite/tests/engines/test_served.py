"""``engines serve``: from the start of a stand-in engine to a signal, after which nothing of it is left."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchsuite.__main__ import benchsuite_main
from benchsuite.engines.launches import WantedServer, server_command
from benchsuite.engines.pins import engine_pins
from benchsuite.engines.served import serve_until_signal
from benchsuite.tests.engines.standing_in import StandInEnvironment
from specdec import SpecdecError

pytestmark = pytest.mark.usefixtures("endless_line")


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandInEnvironment]:
    with closing(StandInEnvironment(engine_pins()["vllm"], tmp_path)) as found:
        yield found


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_the_server_is_and_ends_all_of_it_at_a_signal(
    number: signal.Signals, stand_in: StandInEnvironment, free_port: int
) -> None:
    lines: list[str] = []
    running: list[bool] = []

    def say(line: str) -> None:
        lines.append(line)
        if "answers" in line:
            running.append(stand_in.runs())
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    serve_until_signal("vllm", server_command("vllm", stand_in.folder, WantedServer("m", free_port)), free_port, say)
    assert lines == [f"vllm answers at http://127.0.0.1:{free_port}", "vllm has ended"]
    assert running == [True]
    assert not stand_in.runs(30)
    assert signal.getsignal(number) is before


def test_a_server_that_cannot_start_is_an_error_with_its_last_lines(
    stand_in: StandInEnvironment, free_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--model", "m", "--port", str(free_port), "--into", str(tmp_path), "--set", "broken"]
    assert benchsuite_main(["engines", "serve", "vllm", *given]) == 2
    printed = capsys.readouterr()
    assert re.search(r"the server of vllm ended with 1 .*its last lines:\s+no memory for the weights", printed.err)
    assert not printed.out
    assert not stand_in.runs(30)


def test_a_server_that_ends_by_itself_is_an_error(stand_in: StandInEnvironment, free_port: int) -> None:
    def end(line: str) -> None:
        os.kill(stand_in.pid, signal.SIGKILL)

    with pytest.raises(SpecdecError, match="the server of vllm ended with -9, its last lines:"):
        serve_until_signal(
            "vllm", server_command("vllm", stand_in.folder, WantedServer("m", free_port)), free_port, end
        )
    assert not stand_in.runs(30)


def test_what_is_not_set_up_is_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["llama_cpp", "--model", "m.gguf", "--into", str(tmp_path)]
    assert benchsuite_main(["engines", "serve", *given]) == 2
    said = capsys.readouterr().err
    assert f"llama_cpp is not set up in {tmp_path / 'llama_cpp'}: python -m benchsuite engines set-up llama_cpp" in said


@pytest.mark.parametrize("option", ["port", "k", "threads", "max-length", "rows"])
def test_what_is_no_whole_number_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchsuite_main(["engines", "serve", "vllm", "--model", "m", f"--{option}", "few"]) == 2
    assert f"--{option} is 'few'; expected a whole number, 1 or more" in capsys.readouterr().err
