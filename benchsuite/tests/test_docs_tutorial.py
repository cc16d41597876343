"""docs/write-a-plugin.md is run as it stands: its files are the example's, its commands print what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL, EXAMPLE = ROOT / "docs" / "write-a-plugin.md", ROOT / "plugins" / "example_repeat"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TUTORIAL.exists(), reason="the documentation is not part of an installed wheel"),
]


def blocks(kind: str) -> list[str]:
    """The fenced blocks of a kind, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def files() -> dict[str, str]:
    """The files that the tutorial lets the reader write: blocks after a line that ends in ``name`` and a colon."""
    found = re.findall(
        r"`([\w.]+)`:\n\n```\w+\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return dict(found)


def test_its_files_are_the_examples() -> None:
    assert {"pyproject.toml", "example_repeat.py", "test_repeat.py"} <= files().keys()
    for name, text in files().items():
        if (EXAMPLE / name).exists():
            assert (EXAMPLE / name).read_text(encoding="utf-8") == text, name
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLE.glob("*.*"))
    assert lines <= 80


def test_its_commands_print_what_it_says(tmp_path: Path) -> None:
    """Outputs are compared line by line; … stands for whatever differs from run to run."""
    for name, text in files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    site = tmp_path / "site"
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for block in blocks("console"):
        for part in block.split("$ ")[1:]:
            command, _, expected = part.partition("\n")
            words = shlex.split(command)
            if words[0] == "pip":
                words += ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
            done = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            printed = [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
            position = 0
            for line in expected.splitlines():
                pattern = re.compile(".*".join(re.escape(piece) for piece in line.rstrip().split("…")))
                found = [i for i in range(position, len(printed)) if pattern.fullmatch(printed[i])]
                assert found, f"`{command}` did not print {line!r} after its line {position}:\n" + "\n".join(printed)
                position = found[0] + 1
