"""README.md and the pages of docs/: every file that they name is there, and what they show is what is printed."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchsuite.tests.rig import Run
from specdec import Assembly, Request

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"

PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def paste() -> ModuleType:
    """docs/paste.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("paste", ROOT / "docs" / "paste.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["paste"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "log.md"], ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [page.parent / link.partition("#")[0] for link in re.findall(r"\]\((?!http)([^)]+)\)", text)]
    named = [ROOT / name for name in re.findall(r"`((?:benchsuite|specdec|kernels|plugins|docs)/[\w/.-]+\.\w+)", text)]
    assert [str(path) for path in (*links, *named) if not path.exists()] == []


def test_the_readme_has_at_most_900_words() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize("target", ["tiny", pytest.param("smollm2-135m", marks=pytest.mark.slow)])
def test_ten_lines_load_a_model_build_an_engine_and_generate(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = README.read_text(encoding="utf-8")
    [block] = re.findall(r"^## Generate\n\n```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len([line for line in block.splitlines() if line]) <= 10
    names: dict[str, Any] = {}
    exec(block.replace("smollm2-135m", target), names)
    engine, request = names["engine"], Request(0, names["prompt"], names["params"])
    build = Assembly(names["registry"], names["target"], names["loaded"].tokenizer, max_rows=1, max_length=512)
    assert names["answer"].tokens == build.plain(request)
    assert engine.draft is not None
    assert capsys.readouterr().out == names["loaded"].tokenizer.decode(names["answer"].tokens) + "\n"


def masked(table: str) -> list[str]:
    """The words of a table's lines, figures as 9 and marks left out: what does not change from run to run."""
    bare = [re.sub(r"[~!?]", "", re.sub(r"-?\d[\d.,]*", "9", line)).replace("-", "") for line in table.splitlines()]
    return [" ".join(line.split()) for line in bare]


@pytest.mark.slow
def test_the_demo_prints_the_table_that_the_readme_shows(run: Run) -> None:
    module = paste()
    [place] = [found for found in module.PLACE.finditer(README.read_text()) if found["marker"].startswith("make demo")]
    recipe = subprocess.run(["make", "-n", "demo"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    line = next(part for part in recipe.replace("\\\n", " ").splitlines() if " -m pytest " in part)
    words = shlex.split(line)[1:]
    at = words.index("benchsuite/test_speculation.py")
    done = run(*words[:at], "--pyargs", "benchsuite.test_speculation", *words[at + 1 :])
    assert done.returncode == 0, done.stdout + done.stderr
    assert masked(module.Marker.parse(place["marker"]).cut(done.stdout)) == masked(place["block"])


@pytest.mark.parametrize(("page", "blocks"), [(README, 2), (ROOT / "docs" / "measuring.md", 1)])
def test_every_pasted_block_says_its_command_commit_and_machine(page: Path, blocks: int) -> None:
    found = list(paste().PLACE.finditer(page.read_text()))
    assert len(found) == page.read_text().count("<!-- paste:") == blocks
    for place in found:
        command = re.escape(place["marker"].splitlines()[0])
        assert re.match(
            rf"Printed by `{command}` at commit `[0-9a-f]{{7}}\+?` on \d{{4}}-\d\d-\d\d: .+\n$", place["origin"]
        )


def test_a_marker_that_cannot_be_read_and_an_output_without_the_part_are_refused() -> None:
    module = paste()
    with pytest.raises(ValueError, match="expected a command, then lines of from, to, rows"):
        module.Marker.parse("make demo\nform: ^arm")
    marker = module.Marker.parse("make demo\nfrom: ^arm\nto: ^$\nrows: b")
    assert marker.cut("card\narm x\n--- -\na   1\nb   2\n\nmore\n") == "arm x\n--- -\nb   2\n"
    with pytest.raises(ValueError, match="printed no line that matches"):
        marker.cut("nothing\n")
