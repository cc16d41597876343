"""Progress: a log gets a line now and then, and never a carriage return; a terminal a bar that is gone at the end."""

from __future__ import annotations

import io

import pytest

from specdec.progress import EVERY, Progress


def test_a_log_gets_a_line_each_half_minute_without_a_carriage_return() -> None:
    now, log = [0.0], io.StringIO()
    with Progress(100, "runs", file=log, clock=lambda: now[0]) as progress:
        for number in range(100):
            now[0] += 1.0
            progress.step(f"prompt {number + 1}")
    assert log.getvalue().splitlines() == [
        f"prompt {done}: {done} of 100 runs" for done in range(int(EVERY), 100, int(EVERY))
    ]
    assert "\r" not in log.getvalue()


@pytest.mark.parametrize(
    ("total", "said"), [(None, "writing: 2,000 tokens\n"), (9000, "writing: 2,000 of 9,000 tokens\n")]
)
def test_work_of_one_name_and_of_many_steps_is_counted(total: int | None, said: str) -> None:
    now, log = [0.0], io.StringIO()
    progress = Progress(total, "tokens", "writing", log, lambda: now[0])
    progress.step(count=1000)
    now[0] = EVERY
    progress.step(count=1000)
    progress.close()
    assert log.getvalue() == said


def test_a_terminal_has_a_bar_that_is_removed() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    with Progress(3, "runs", file=shown) as progress:
        for _ in range(3):
            progress.step("chat")
    assert "\r" in shown.getvalue()
    assert shown.getvalue().rsplit("\r", 2)[-2].strip() == ""


def test_a_bar_begins_with_the_work_and_how_much_of_it_there_is_on_stderr_by_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    Progress(7, "prompts", "writing").close()
    said = capsys.readouterr()
    assert "writing:" in said.err
    assert "0/7" in said.err
    assert "prompts" in said.err
    assert said.out == ""
