"""What there is to choose from is listed with meanings and sources, and chosen in one form everywhere."""

from __future__ import annotations

import pytest

from benchsuite.measure.matrix import build_matrix
from benchsuite.prove.tiny import registry
from benchsuite.tests.rig import QUICK, Run
from specdec import Draft, Env, Registry, SpecdecError, hookimpl
from specdec.registry import KINDS

pytest_plugins = "pytester"

DRAFTS = ("draft_model", "eagle", "garbage", "hybrid", "medusa", "ngram", "oracle", "suffix", "tree")
POLICIES = (
    "block",
    "conf_threshold",
    "longest_prefix",
    "match",
    "rejection",
    "topk_agree",
    "tree_agree",
    "tree_rejection",
    "typical",
)


def test_every_strategy_of_the_mission_is_there() -> None:
    assert registry().names("draft") == list(DRAFTS)
    assert registry().names("policy") == list(POLICIES)
    assert registry().names("controller") == ["adaptive", "fixed", "goodput"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "backend"])
def test_every_option_has_a_meaning_and_every_strategy_a_source(kind: str) -> None:
    for name in registry().names(kind):
        entry = registry().entry(kind, name)
        assert entry.summary, name
        assert entry.source, f"{kind} {name} names no source"
        missing = [option for option, meaning in entry.meanings.items() if not meaning]
        assert not missing, f"{kind} {name}: {missing} have no meaning"


@pytest.mark.slow
def test_the_list_option_shows_all_and_runs_nothing(run: Run) -> None:
    done = run("-m", "pytest", *QUICK, "--specdec-list")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 120
    for name in (*DRAFTS, *POLICIES, "adaptive", "goodput", "cpu", "reference"):
        assert f"\n  {name}\n" in done.stdout
    assert "n_max=4: longest run of tokens that is looked for" in done.stdout
    assert "passed" not in done.stdout


class Third(Draft):
    """A third party's draft."""

    def __init__(self, env: Env, speed: int = 3) -> None: ...

    propose = None  # type: ignore[assignment]


def test_a_third_partys_draft_is_listed_without_notes() -> None:
    class Plugin:
        @hookimpl
        def specdec_register_drafts(self, register: object) -> None:
            register("third", Third)  # type: ignore[operator]

    listing = Registry({"their-package": Plugin()}).listing()
    assert "A third party's draft." in listing
    assert "speed=3: (not described)" in listing
    assert "source: their-package" in listing


def test_arms_are_named_one_by_one(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig(
        "--specdec-target",
        "tiny",
        "--specdec-workload",
        "chat",
        "--specdec-peer",
        "none",
        "--specdec-arm",
        "ngram, eagle(head=a/b.safetensors)/rejection, suffix/match/goodput/15",
    )
    found = [(arm.draft, arm.policy, arm.controller, arm.k) for arm in build_matrix(config)]
    assert found == [
        (None, "match", "fixed", 0),
        ("ngram", "match", "fixed", 4),
        ("eagle(head=a/b.safetensors)", "rejection", "fixed", 4),
        ("suffix", "match", "goodput", 15),
    ]


def test_an_adapted_length_is_an_arm_of_its_own(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("--specdec-draft", "ngram", "--specdec-workload", "chat", "--specdec-adaptive-k", "9")
    found = {(arm.controller, arm.k) for arm in build_matrix(config) if arm.draft}
    assert found == {("adaptive(maximum=9)", 4)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--specdec-k", "4", "--specdec-adaptive-k", "8"), "leave out --specdec-k and --specdec-controller"),
        (("--specdec-arm", "ngram", "--specdec-policy", "match"), "leave out --specdec-policy, or --specdec-arm"),
        (("--specdec-arm", "a/b/c/4/5"), "cannot read the arm 'a/b/c/4/5'; expected draft, draft/policy"),
        (("--specdec-arm", "ngram/match/fixed/x"), "the K of --specdec-arm is 'x'; expected whole numbers"),
        (("--specdec-arm", "ngram//fixed"), "cannot read the arm"),
    ],
)
def test_arms_that_contradict_themselves_are_refused(
    options: tuple[str, ...], message: str, pytester: pytest.Pytester
) -> None:
    with pytest.raises(SpecdecError, match=message):
        build_matrix(pytester.parseconfig(*options))
