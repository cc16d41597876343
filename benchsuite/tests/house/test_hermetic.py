"""Plugins of others that are installed beside the project change nothing that its own tests find."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchsuite.tests.rig import Run, as_installed
from specdec import Registry, SpecdecError
from specdec.installed import LOAD_PLUGINS

MODULE = """
from specdec import Window, hookimpl
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.garbage import Garbage
from specdec_plugins.policies.match import Match

class Wrong(Reference):
    '''Would run every op of every test, and doubles what it normalises.'''

    name, priority = "unrelated_backend", 999

    def rms_norm(self, x, weight, eps, offset):
        return 2 * super().rms_norm(x, weight, eps, offset)

@hookimpl
def specdec_register_drafts(register):
    register("aaa_unrelated", Garbage)

@hookimpl
def specdec_register_policies(register):
    register("aaa_unrelated", Match)

@hookimpl
def specdec_register_backends(register):
    register("unrelated_backend", Wrong)
"""

PART = (
    "--pyargs",
    "benchsuite.tests.specdec.test_listing",
    "benchsuite.tests.specdec.test_registry",
    "benchsuite.tests.specdec.test_equality",
    "-m",
    "not slow",
    "-k",
    "(listing or registry or ragged_batch) and not list_option",
)
"""A part of the suite that lists names, refuses names and runs models on the fastest backend there is.

It leaves out the test of the listing that starts a process which imports everything again.
"""


def outcomes(file: Path) -> list[tuple[str, str]]:
    """The name and the result of each test of a JUnit file."""
    cases = ElementTree.parse(file).iter("testcase")
    return [(str(case.get("name")), ",".join(child.tag for child in case) or "passed") for case in cases]


@pytest.mark.slow
def test_an_unrelated_plugin_changes_no_result(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOAD_PLUGINS, raising=False)
    unrelated = as_installed(MODULE, tmp_path)
    loaded = run("-c", "import specdec; print(specdec.Registry().backend().chain[0].name)", path=unrelated)
    assert loaded.stdout == "unrelated_backend\n", "the plugin is not there, so nothing is shown"
    for name, path in (("alone", ""), ("beside", unrelated)):
        done = run("-m", "pytest", *PART, "-p", "no:cacheprovider", f"--junitxml={name}.xml", path=path)
        assert done.returncode == 0, done.stdout[-3000:]
    alone, beside = outcomes(tmp_path / "alone.xml"), outcomes(tmp_path / "beside.xml")
    assert len(alone) > 50
    assert beside == alone


def test_the_list_of_distributions_says_which_plugins_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOAD_PLUGINS, "specdec_bench")
    assert "ngram" in Registry().names("draft")
    monkeypatch.setenv(LOAD_PLUGINS, "specdec-bench, nothing-of-this-name")
    with pytest.raises(
        SpecdecError, match=r"names 'nothing-of-this-name', which is no installed distribution .*specdec-bench"
    ):
        Registry()
