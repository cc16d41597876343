"""The merge of a plugin's author, in a project of its own: a slower draft and a lost acceptance fail it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from benchsuite.tests.gate_rig import FAILED, OK, STEADY, Done, Suite, refused
from benchsuite.tests.rig import Run
from specdec.installed import LOAD_PLUGINS

PLUGIN = f"""
{STEADY}
import time
from specdec import hookimpl
from specdec_plugins.drafts.oracle import Oracle

RATE, WORK = 1.0, 100

class Mine(Oracle):
    def __init__(self, env):
        super().__init__(env, RATE)

    def propose(self, context):
        for _ in range(WORK):
            time.perf_counter()
        return super().propose(context)

@hookimpl
def specdec_register_drafts(register):
    register("mine", Mine)
"""
"""A draft that looks at the clock so often in each step: where only looks move the clock, this is its time."""

PROJECT = """
[project]
name = "my-draft"
version = "1"

[project.entry-points.specdec]
mine = "my_draft"
"""

JOB = (
    *("--pyargs", "benchsuite.test_speculation", "--specdec-target=tiny", "--specdec-peer=none"),
    *("--specdec-workload=chat", "--specdec-prompts=2", "--specdec-max-new-tokens=40", "--gate-pairs=2"),
    *("--gate=fail", "--gate-against=HEAD~1"),
)


def looked_at() -> Callable[[], float]:
    """A clock that only those who look at it move, by 10 microseconds each time."""
    looks = count(1)

    def perf_counter() -> float:
        return next(looks) / 100_000

    perf_counter.__module__ = "time"  # pytest-benchmark writes its timer's name, and reads it again
    return perf_counter


@pytest.fixture
def author(inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A project with a draft in ``src``, of which an older copy than any commit is installed."""
    monkeypatch.setattr(time, "perf_counter", looked_at())
    for file, text in {
        "site/my_draft/__init__.py": PLUGIN.replace("1.0, 100", "0.2, 900"),
        "site/my_draft-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-draft\nVersion: 1\n",
        "site/my_draft-1.dist-info/entry_points.txt": "[specdec]\nmine = my_draft\n",
        "src/my_draft/__init__.py": PLUGIN,
        "pyproject.toml": PROJECT,
        ".gitignore": "site\nlaunches\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    made = Suite(tmp_path, inside)
    made.commit()
    return made


def merge_of(author: Suite, change: dict[str, str], *options: str, drafts: str = "mine") -> Done:
    """Gate a commit that changes the plugin so, against the one before."""
    for name, text in change.items():
        (author.folder / name).write_text(text)
    author.commit()
    environment = {"PYTHONPATH": str(author.folder / "site"), LOAD_PLUGINS: "my-draft"}
    return author.run(*JOB, f"--specdec-draft={drafts}", *options, **environment)


SOURCE = "src/my_draft/__init__.py"
ROW = "tiny-chat-mine-match-k4-max_new_tokens40"


@pytest.mark.slow
def test_a_harmless_change_passes_and_a_new_draft_is_a_new_row(author: Suite) -> None:
    other = PLUGIN.replace("Mine", "Other").replace('"mine"', '"other"')
    change = {
        SOURCE: PLUGIN.replace("class Mine", "# In other words.\nclass Mine"),
        "src/my_draft/other.py": other,
        "pyproject.toml": f'{PROJECT}other = "my_draft.other"\n',
        "site/my_draft-1.dist-info/entry_points.txt": "[specdec]\nmine = my_draft\nother = my_draft.other\n",
        "site/my_draft/other.py": other,
    }
    done = merge_of(author, change, "--gate-on-missing=new", "--gate-level=0,2", drafts="mine,other")
    new = "tiny-chat-other-match-k4-max_new_tokens40"
    refused(
        done, OK, "PASS: 3 rows at levels 0, 2 against", f"nothing got worse of what was gated; not gated (new): {new}"
    )
    refused(done, OK, f"{ROW} 0 PASS", f"{ROW} 2 s/token PASS +0.0% +0.0% to +0.0%")


@pytest.mark.slow
def test_a_draft_that_takes_a_fifth_longer_fails_the_merge_in_its_draft(author: Suite) -> None:
    done = merge_of(author, {SOURCE: PLUGIN.replace("1.0, 100", "1.0, 120")})
    refused(done, FAILED, f"REGRESSED at level 2, {ROW}: +", "where: draft +", f"{ROW} 0 PASS")


@pytest.mark.slow
def test_a_draft_that_loses_a_twentieth_of_its_acceptance_fails_the_merge_exactly(author: Suite) -> None:
    """Where the installed copy, whose counters were once compared, is the same for both."""
    done = merge_of(author, {SOURCE: PLUGIN.replace("1.0, 100", "0.95, 100")}, "--gate-level=0")
    refused(done, FAILED, f"REGRESSED at level 0, {ROW}: ", "num_accepted_tokens was", "where: acceptance")
