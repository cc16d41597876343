"""docs/write-a-plugin.md is run as it stands: its files are the example's, its commands print what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specdec.registry import LOAD_PLUGINS

ROOT = Path(__file__).parents[2]
TUTORIAL, EXAMPLE = ROOT / "docs" / "write-a-plugin.md", ROOT / "plugins" / "example_repeat"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TUTORIAL.exists(), reason="the documentation is not part of an installed wheel"),
]


def sections() -> dict[str, str]:
    """The page's sections that let the reader run something, by heading."""
    page = TUTORIAL.read_text(encoding="utf-8") if TUTORIAL.exists() else ""
    found = (part.partition("\n") for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    return {heading: text for heading, _, text in found if blocks("console", text)}


def blocks(kind: str, text: str) -> list[str]:
    """The fenced blocks of a kind, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def files(last: str) -> dict[str, str]:
    """The files that the tutorial lets the reader write, up to the end of a section: blocks after a line that ends in
    ``name`` and a colon. A block after "Add to ``name``:" continues the file.
    """
    written: dict[str, str] = {}
    for heading, text in sections().items():
        for added, name, block in re.findall(
            r"(^Add to )?`([\w.]+)`:\n\n```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
        ):
            written[name] = written[name] + block if added else block
        if heading == last:
            break
    return written


def _printed(command: str, folder: Path) -> list[str]:
    """The lines that a command prints; ``pip install`` installs for later commands in the same folder alone."""
    site = folder / "site"
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        LOAD_PLUGINS: "example-repeat",
    }
    words = shlex.split(command)
    if words[0] == "pip":
        words += ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]


def test_its_files_are_the_examples() -> None:
    written = files("A draft")
    assert {"pyproject.toml", "example_repeat.py", "test_repeat.py"} <= written.keys()
    for name, text in written.items():
        if (EXAMPLE / name).exists():
            assert (EXAMPLE / name).read_text(encoding="utf-8") == text, name
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLE.glob("*.*"))
    assert lines <= 80


def test_it_has_a_section_for_each_kind() -> None:
    assert list(sections()) == ["A draft", "A policy", "A controller", "A backend"]


@pytest.mark.parametrize("section", sections())
def test_its_commands_print_what_it_says(section: str, tmp_path: Path) -> None:
    """Outputs are compared line by line; … stands for whatever differs from run to run."""
    for name, text in files(section).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for block in blocks("console", sections()[section]):
        for part in block.split("$ ")[1:]:
            command, _, expected = part.partition("\n")
            printed = _printed(command, tmp_path)
            position = 0
            for line in expected.splitlines():
                pattern = re.compile(".*".join(re.escape(piece) for piece in line.rstrip().split("…")))
                found = [i for i in range(position, len(printed)) if pattern.fullmatch(printed[i])]
                assert found, f"`{command}` did not print {line!r} after its line {position}:\n" + "\n".join(printed)
                position = found[0] + 1
