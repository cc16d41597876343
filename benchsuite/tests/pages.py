"""Pages that a test follows: it runs their commands and looks for the lines that they show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from benchsuite.tests.rig import Python
from specdec.installed import LOAD_PLUGINS


def blocks(kind: str, text: str) -> list[str]:
    """The fenced blocks of a kind, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def files_written(text: str) -> dict[str, str]:
    """The files that a page lets its reader write, by name: blocks after a line that ends in ``name`` and a colon.

    A block after "Add to ``name``:" continues the file.
    """
    found: dict[str, str] = {}
    for added, name, block in re.findall(
        r"(^Add to )?`([\w.]+)`:\n\n```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    ):
        found[name] = found[name] + block if added else block
    return found


def follow(text: str, folder: Path, plugins: str, python: Python) -> None:
    """Run the commands of the console blocks of ``text`` in ``folder`` by ``python``, with these ``plugins`` loaded.

    Each prints the lines shown below it, in their order, among others; … stands for whatever differs from run to run.
    ``pip install`` installs for later commands in the same folder alone.
    """
    for block in blocks("console", text):
        for part in block.split("$ ")[1:]:
            command, _, expected = part.partition("\n")
            lines = _printed(command, folder, plugins, python)
            position = 0
            for line in expected.splitlines():
                pattern = re.compile(".*".join(re.escape(piece) for piece in line.rstrip().split("…")))
                found = [i for i in range(position, len(lines)) if pattern.fullmatch(lines[i])]
                assert found, f"`{command}` did not print {line!r} after its line {position}:\n" + "\n".join(lines)
                position = found[0] + 1


def _printed(command: str, folder: Path, plugins: str, python: Python) -> list[str]:
    site = folder / "site"
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-p no:randomly",
        **{f"GIT_{who}_{what}": "reader@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        LOAD_PLUGINS: plugins if site.exists() else "specdec-bench",
    }
    words = shlex.split(command)
    if words[0] in ("git", "sed"):
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    else:
        if words[0] == "pip":
            words += ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
        done = python(words[1:] if words[0] == "python" else ["-m", *words], folder, environment)
    return [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
