"""The gate's options: what each means, and every one that is refused, with what it says."""

from __future__ import annotations

import argparse
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.gate import rules
from benchsuite.gate.record import GateError
from benchsuite.gate.rules import Rules, refuse_what_disables
from benchsuite.machine.provenance import git
from benchsuite.tests.gate_rig import PLAIN_RULES, ruled
from specdec import SpecdecError


@pytest.fixture
def start_folder(tmp_path: Path) -> Path:
    """A folder with a baseline and another folder in it, in no repository."""
    (tmp_path / "base.json").write_text("{}")
    (tmp_path / "more").mkdir()
    return tmp_path


AGAINST = ("--gate=fail", "--gate-against=base.json")


def test_what_is_not_said_has_its_default(start_folder: Path) -> None:
    assert ruled(start_folder) is None
    found = ruled(start_folder, *AGAINST)
    assert found == Rules(file=start_folder / "base.json", **PLAIN_RULES)
    assert found.gating
    assert ruled(start_folder, "--gate", "--gate-against=base.json") == found
    assert ruled(start_folder, "--gate-against=base.json", ini={"gate": "fail"}) == found
    assert ruled(start_folder, "--gate=off", "--gate-against=base.json", "--gate-update") is None
    saved = ruled(start_folder, "--gate-save=new.json")
    assert saved == replace(found, mode="off", file=None, save=start_folder / "new.json")
    assert not saved.gating


@pytest.mark.parametrize(
    ("argument", "changed"),
    [
        ("--gate-level=2, 0,2", {"levels": (0, 2)}),
        ("--gate-level=1", {"levels": (1,)}),
        ("--gate-tolerance=0.05", {"tolerance": 0.05, "tolerance_given": True}),
        ("--gate-ttft-tolerance=0.2", {"ttft_tolerance": 0.2}),
        ("--gate-coarse-tolerance=0.3", {"coarse_tolerance": 0.3}),
        ("--gate-acceptance-tolerance=0.1", {"acceptance_tolerance": 0.1}),
        ("--gate-alpha=0.999", {"alpha": 0.999}),
        ("--gate-launches=5+8", {"launches_given": True}),
        ("--gate-launches=7", {"launches": (7, 0), "launches_given": True}),
        ("--gate-launches=1 + 0", {"launches": (1, 0), "launches_given": True}),
        ("--gate-pairs=1", {"pairs": 1}),
        *((f"--gate-on-missing={one}", {"on_missing": one}) for one in ("fail", "new", "report", "save")),
        *((f"--gate-on-mismatch={one}", {"on_mismatch": one}) for one in ("fail", "counters", "ignore")),
        *((f"--gate-inconclusive={one}", {"inconclusive": one}) for one in ("fail", "report")),
        ("--gate-order-seed=77", {"order_seed": 77}),
        ("--gate-path=src tests", {"path": ("src", "tests")}),
        ("--gate-environment=shared", {}),
        ("--gate-update", {"update": True}),
        ("--gate-dedicated", {"dedicated": True}),
        ("--gate-self-test", {"self_test": True, "file": None}),
        ("--gate=report", {"mode": "report"}),
    ],
)
def test_an_option_changes_its_rule_and_no_other(start_folder: Path, argument: str, changed: dict[str, Any]) -> None:
    plain = Rules(file=start_folder / "base.json", **PLAIN_RULES)
    assert ruled(start_folder, *AGAINST, argument) == replace(plain, **changed)


def test_files_are_below_the_folder_of_the_start_or_of_the_ini_file(start_folder: Path) -> None:
    given = ("--gate-json=v.json", "--gate-anchor=base.json", "--gate-save=s.json")
    found = ruled(start_folder, *AGAINST, *given, "--gate-export=bmf=more/a.json, junit=d.xml,")
    assert found is not None
    assert (found.json, found.anchor, found.save) == tuple(
        start_folder / name for name in ("v.json", "base.json", "s.json")
    )
    assert found.exports == (("bmf", start_folder / "more" / "a.json"), ("junit", start_folder / "d.xml"))
    ini = {"gate_json": "v.json", "gate_launches": "6+9", "gate_dedicated": "true"}
    below = ruled(start_folder, *AGAINST, ini=ini, inipath=start_folder / "more" / "pytest.ini")
    assert below is not None
    assert below.json == start_folder / "more" / "v.json"
    assert below.file == start_folder / "base.json"
    assert (below.launches, below.launches_given, below.dedicated) == ((6, 9), True, True)


def test_a_revision_is_a_commit_that_git_knows(start_folder: Path) -> None:
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "a"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=start_folder, check=True)
    commit = git(start_folder, "rev-parse", "HEAD")
    found = ruled(start_folder, "--gate=fail", "--gate-against=HEAD", "--gate-environment=own")
    assert found == replace(Rules(file=None, **PLAIN_RULES), base=commit, own_environment=True)
    new = ruled(start_folder, "--gate=fail", "--gate-against=new.json", "--gate-on-missing=save")
    assert new is not None
    assert (new.file, new.base) == (start_folder / "new.json", None)


TWO = "base=http://127.0.0.1:1,head=http://127.0.0.1:2"


def test_what_a_run_is_held_against_has_two_names_and_may_be_an_endpoint(start_folder: Path) -> None:
    """The command line goes before the ini file, whichever name each has."""
    by_file = Rules(file=start_folder / "base.json", **PLAIN_RULES)
    for name, other in (("against", "base"), ("base", "against")):
        typed = f"--gate-{name}=base.json"
        assert ruled(start_folder, "--gate", typed) == by_file
        assert ruled(start_folder, "--gate", typed, f"--gate-{other}=base.json") == by_file
        assert ruled(start_folder, "--gate", typed, ini={f"gate_{other}": "no.json"}) == by_file
        assert ruled(start_folder, "--gate", ini={f"gate_{name}": "base.json"}) == by_file
        with pytest.raises(GateError, match="name two bases, and a run has one: leave out one of them"):
            ruled(start_folder, "--gate", typed, f"--gate-{other}=no.json")
        served = ruled(start_folder, "--gate", f"--gate-{name}=head", ini={"endpoint": TWO})
        assert served == replace(by_file, file=None, endpoint="head")
    below = ruled(
        start_folder, "--gate", ini={"gate_base": "../base.json"}, inipath=start_folder / "more" / "pytest.ini"
    )
    assert below is not None
    assert below.file == start_folder / "more" / ".." / "base.json"
    for text, endpoints, said in (
        ("base", "base=http://127.0.0.1:1", "--gate-base base is the only endpoint: name what is held against it"),
        ("main", TWO, "neither a file nor a revision that git knows here, nor an endpoint of base, head; fetch it"),
    ):
        with pytest.raises(GateError, match=said):
            ruled(start_folder, "--gate", f"--gate-base={text}", ini={"endpoint": endpoints})
    with pytest.raises(GateError, match="--gate-update writes over a baseline file"):
        ruled(start_folder, "--gate", "--gate-base=head", "--gate-update", ini={"endpoint": TWO})
    with pytest.raises(GateError, match="--gate-base without --gate would gate nothing"):
        ruled(start_folder, "--gate-base=base.json")


REFUSED = [
    (("--gate-on-missing=x",), "--gate-on-missing is 'x'; expected one of fail, new, report, save"),
    (("--gate-on-mismatch=x",), "--gate-on-mismatch is 'x'; expected one of fail, counters, ignore"),
    (("--gate-inconclusive=x",), "--gate-inconclusive is 'x'; expected one of fail, report"),
    (("--gate-environment=x",), "--gate-environment is 'x'; expected one of shared, own"),
    (("--gate-level=3",), "--gate-level is '3'; expected 0, 1 or 2, or a comma list of them"),
    (("--gate-level=1,x",), "--gate-level is '1,x'; expected 0, 1 or 2, or a comma list of them"),
    *(
        ((f"--gate-{name}={text}",), f"--gate-{name} is {text!r}; expected a fraction between 0 and 1: 0.03 is 3 %")
        for name in ("tolerance", "ttft-tolerance", "coarse-tolerance", "acceptance-tolerance", "alpha")
        for text in ("0", "1", "5", "x", "-0.1", "nan")
    ),
    *(
        ((f"--gate-{name}={text}",), f"--gate-{name} is {text!r}; expected a whole number, 1 or more")
        for name in ("pairs", "order-seed")
        for text in ("0", "x", "-1", "1.5")
    ),
    *(
        ((f"--gate-launches={text}",), f"--gate-launches is {text!r}; expected FIRST+MORE, for example 5+8")
        for text in ("0", "0+3", "1+2+3", "x", "1+", "+1", "1+x")
    ),
    *(
        (
            (f"--gate-export={text}",),
            f"--gate-export is {text!r}; expected FORMAT=FILE with one of bmf, github-action-benchmark, markdown, "
            "junit",
        )
        for text in ("a", "x=a", "bmf=", "=a")
    ),
    (
        ("--gate-environment=own",),
        "--gate-environment=own installs what a revision pins, and there is none to compare with; name it with "
        "--gate-against REV, or gate with --gate-environment=shared",
    ),
    (
        ("--gate-self-test", "--gate-update"),
        "--gate-update writes over a baseline file; name it with --gate-against",
    ),
    (
        ("--gate-anchor=no.json",),
        "--gate-anchor 'no.json' is no file; pin a baseline of launches with --gate-save no.json --gate-launches 13",
    ),
    (
        ("--gate-save=base.json",),
        "--gate-save base.json is there already; --gate-against it with --gate-update, or remove it",
    ),
    (("--gate-save=no/a.json",), "--gate-save no/a.json: there is no folder {start_folder}/no"),
    (("--gate-json=more",), "--gate-json more: {start_folder}/more is a folder; name a file"),
    (("--gate-json=no/a",), "--gate-json no/a: there is no folder {start_folder}/no"),
    (("--gate-export=bmf=more",), "--gate-export bmf=more: {start_folder}/more is a folder; name a file"),
    (
        ("--gate-against=",),
        "--gate needs something to compare this run with: --gate-against FILE (made with --gate-save FILE) or "
        "--gate-against REV",
    ),
    (
        ("--gate=report", "--gate-against=", "--gate-save=new.json"),
        "--gate needs something to compare this run with: --gate-against FILE (made with --gate-save FILE) or "
        "--gate-against REV; to write a baseline and compare nothing, give --gate=off",
    ),
    (("--gate-against=more",), "--gate-against 'more' is a folder; expected a baseline file in it, or a revision"),
    (
        ("--gate-against=main",),
        "--gate-against 'main' is neither a file nor a revision that git knows here; fetch it (git fetch; in CI, a "
        "whole clone: fetch-depth: 0), or name a baseline FILE.json",
    ),
    (
        ("--gate-against=a.json",),
        "--gate-against 'a.json' is neither a file nor a revision that git knows here; make a baseline with "
        "--gate-save a.json, or let this run make it with --gate-on-missing=save",
    ),
    (
        ("--gate-against=no/a.json", "--gate-on-missing=save"),
        "--gate-against no/a.json: there is no folder {start_folder}/no",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED, ids=lambda value: " ".join(value)[:40])
def test_what_cannot_be_meant_is_refused_in_a_sentence(
    start_folder: Path, arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(start_folder.parent))
    with pytest.raises((GateError, SpecdecError)) as refused:
        ruled(start_folder, *AGAINST, *arguments)
    assert str(refused.value) == sentence.format(start_folder=start_folder)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--gate-against=base.json",), "--gate-against"),
        (("--gate-anchor=base.json", "--gate-level=1"), "--gate-anchor, --gate-level"),
        (("--gate-json=a", "--gate-export=bmf=a"), "--gate-json, --gate-export"),
        (("--gate-environment=own",), "--gate-environment"),
        (
            ("--gate-update", "--gate-dedicated", "--gate-self-test"),
            "--gate-update, --gate-dedicated, --gate-self-test",
        ),
    ],
)
def test_options_of_a_gate_that_is_not_asked_for_are_refused(
    start_folder: Path, arguments: tuple[str, ...], named: str
) -> None:
    for more, effect in ((), "gate nothing"), (("--gate-save=s.json",), "only save"):
        with pytest.raises(GateError) as refused:
            ruled(start_folder, *arguments, *more)
        assert str(refused.value) == (f"{named} without --gate would {effect}; add --gate=fail or --gate=report")


def test_a_mode_is_one_of_three(start_folder: Path) -> None:
    with pytest.raises(GateError) as refused:
        ruled(start_folder, ini={"gate": "maybe"})
    assert str(refused.value) == "the ini key gate is 'maybe'; expected one of off, report, fail"
    assert [rules._mode(mode) for mode in rules.MODES] == ["off", "report", "fail"]
    with pytest.raises(argparse.ArgumentTypeError) as wrong:
        rules._mode("test_a.py")
    assert str(wrong.value) == "got 'test_a.py'; expected one of off, report, fail: write --gate=fail"


def test_what_disables_benchmarks_is_refused() -> None:
    def config(benchmark: bool = True, **option: Any) -> Any:
        plugins = SimpleNamespace(hasplugin=lambda name: benchmark and name == "benchmark")
        return SimpleNamespace(option=SimpleNamespace(**option), pluginmanager=plugins)

    refuse_what_disables(config())
    refuse_what_disables(config(dist="no", numprocesses=0))
    refuse_what_disables(config(benchmark_disable=True, benchmark_enable=True))
    workers = "pytest-xdist is active, so benchmarks are disabled and would compete for cores; gate without -n"
    for given, sentence in (
        (config(dist="load"), workers),
        (config(dist="no", numprocesses=2), workers),
        (config(benchmark=False), "pytest-benchmark is switched off (-p no:benchmark): there is nothing to gate"),
        (
            config(benchmark_disable=True),
            "--benchmark-disable is given: nothing would be measured; leave it out to gate",
        ),
        (config(benchmark_skip=True), "--benchmark-skip is given: nothing would be measured; leave it out to gate"),
    ):
        with pytest.raises(GateError) as refused:
            refuse_what_disables(given)
        assert str(refused.value) == sentence


def test_a_launch_repeats_no_option_of_the_gate_and_writes_no_file() -> None:
    given = [
        *("a.py", "--gate", "fail", "-k", "x", "--gate-against", "HEAD", "--gate-update", "--gate-level=2", "--gate"),
        *("b.py", "--junitxml", "j.xml", "--benchmark-json=k", "--benchmark-autosave", "--log-file", "l", "--gate=off"),
        *("--specdec-results", "r", "--gateway", "--gate-plant=x", "-q"),
    ]
    assert rules.without_own(given) == ["a.py", "-k", "x", "b.py", "--gateway", "-q"]
