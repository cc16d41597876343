"""The available choices are listed with meanings and sources, and every option reads them in the same form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchsuite.conformance.models import tiny
from benchsuite.conformance.models.tiny import prompts, registry
from benchsuite.run.matrix import build_matrix
from benchsuite.run.request import read_request
from benchsuite.tests.rig import QUICK, Make, Run
from specdec import Controller, Draft, Env, Registry, Request, SamplingParams, SpecdecError, hookimpl
from specdec.installed import HOOKS
from specdec.stats import Stats

pytest_plugins = "pytester"

ALIASES = {"vanilla": "draft_model", "medusa_lite": "medusa(head_init=tie)", "eagle_lite": "eagle(head=lite)"}
DRAFTS = sorted(
    (
        *ALIASES,
        *("arctic_suffix", "flashspec_drafter", "rest", "transformers_candidates"),
        "custom_class",
        "dflash",
        "draft_model",
        "dspark",
        "eagle",
        "eagle3",
        "garbage",
        "hybrid",
        "medusa",
        "mtp",
        "ngram",
        "oracle",
        "peagle",
        "suffix",
        "tree",
    )
)
ENGINES = [
    *("endpoint", "llama_cpp", "llama_cpp_prompt_lookup", "onnxruntime", "onnxruntime_speculative"),
    *("openvino", "openvino_draft", "openvino_prompt_lookup"),
    *("transformers", "transformers_assisted"),
    *("transformers_compiled", "transformers_early_exit", "transformers_prompt_lookup", "vllm", "vllm_speculative"),
]
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


def test_every_built_in_strategy_is_there() -> None:
    assert registry().names("draft") == DRAFTS
    assert registry().names("policy") == list(POLICIES)
    assert registry().names("controller") == ["adaptive", "budget", "fixed", "goodput"]
    assert registry().names("peer") == ENGINES


@pytest.mark.parametrize("kind", [kind for kind in HOOKS if kind != "backend"])
def test_every_option_has_a_meaning_and_every_strategy_a_source(kind: str) -> None:
    for name in registry().names(kind):
        entry = registry().entry(kind, name)
        assert entry.summary, name
        assert entry.source, f"{kind} {name} names no source"
        missing = [option for option, meaning in entry.meanings.items() if not meaning]
        assert not missing, f"{kind} {name}: {missing} have no meaning"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), ALIASES.items())
def test_a_name_that_stands_for_another_is_listed_as_such_and_builds_the_same(
    name: str, text: str, assemble: Make
) -> None:
    assert f"\n  {name}\n    the same as {text}\n" in registry().listing()
    build = assemble()
    request = Request(0, prompts(1)[0], SamplingParams(max_new_tokens=12))
    runs = []
    for draft in (name, text):
        engine = build.engine(draft, k=3)
        engine.run([request])
        runs.append((type(engine.draft), engine.stats.counters()))
    assert runs[0] == runs[1]


def test_a_name_that_stands_for_another_takes_its_other_options(assemble: Make) -> None:
    entry, options = registry().parse("draft", "medusa_lite(num_heads=2)")
    assert (entry.preset, options) == ({"head_init": "tie"}, {"num_heads": 2})
    engine = assemble().engine("medusa_lite(num_heads=2)", k=4)
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=12))])
    assert max(step.proposed for step in engine.stats.steps) == 2
    with pytest.raises(SpecdecError, match="unknown draft 'nothing'"):
        registry().add("draft", "short", "nothing", "a test")


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
    found = [(arm.draft, arm.policy, arm.controller, arm.k) for arm in build_matrix(read_request(config))]
    assert found == [
        (None, "match", "fixed", 0),
        (None, "match", "fixed", 0),  # plain again
        ("ngram", "match", "fixed", 4),
        ("eagle(head=a/b.safetensors)", "rejection", "fixed", 4),
        ("suffix", "match", "goodput", 15),
    ]


def test_an_adapted_length_is_an_arm_of_its_own(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("--specdec-draft", "ngram", "--specdec-workload", "chat", "--specdec-adaptive-k", "9")
    found = {(arm.controller, arm.k) for arm in build_matrix(read_request(config)) if arm.draft}
    assert found == {("adaptive(maximum=9)", 4)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--specdec-k", "4", "--specdec-adaptive-k", "8"), "leave out --specdec-k and --specdec-controller"),
        (("--specdec-arm", "ngram", "--specdec-policy", "match"), "leave out --specdec-policy, or --specdec-arm"),
        (("--specdec-arm", "a/b/c/4/5"), "cannot read the arm 'a/b/c/4/5'; expected draft, draft/policy"),
        (("--specdec-arm", "ngram/match/fixed/x"), "the K of --specdec-arm is 'x'; expected whole numbers"),
        (("--specdec-arm", "ngram//fixed"), "cannot read the arm"),
        (
            ("--specdec-arm", "a=ngram, suffix, b=ngram/match/fixed/4"),
            "a and b of --specdec-arm are one strategy, ngram/match/fixed/4, which is measured once: leave one of them",
        ),
        (("--specdec-arm", "ngram, b=ngram, suffix"), "ngram and b of --specdec-arm are one strategy"),
    ],
)
def test_arms_that_contradict_themselves_are_refused(
    options: tuple[str, ...], message: str, pytester: pytest.Pytester
) -> None:
    with pytest.raises((SpecdecError, pytest.UsageError), match=message):
        build_matrix(read_request(pytester.parseconfig(*options)))


def lengths(pytester: pytest.Pytester, *options: str) -> list[tuple[str, int | None]]:
    """Controller and K of the arms that the options ask for."""
    config = pytester.parseconfig(
        "--specdec-draft", "ngram", "--specdec-workload", "chat", "--specdec-target", "tiny", *options
    )
    return [(arm.controller, arm.k) for arm in build_matrix(read_request(config)) if arm.draft]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ("fixed", 4)),
        (("--specdec-controller", "fixed(k=8)"), ("fixed", 8)),
        (("--specdec-k", "8"), ("fixed", 8)),
        (("--specdec-controller", "goodput"), ("goodput", 15)),
        (("--specdec-controller", "goodput(6)"), ("goodput", 6)),
        (("--specdec-controller", "goodput(probe=3, maximum=6)"), ("goodput(probe=3)", 6)),
        (("--specdec-controller", "goodput(probe=3)", "--specdec-k", "6"), ("goodput(probe=3)", 6)),
        (("--specdec-controller", "adaptive(window=2)"), ("adaptive(window=2)", 4)),
    ],
)
def test_k_is_an_option_of_its_controller_and_has_a_short_way(
    options: tuple[str, ...], expected: tuple[str, int], pytester: pytest.Pytester
) -> None:
    assert lengths(pytester, *options) == [expected]


def test_one_length_written_in_two_ways_is_one_arm(pytester: pytest.Pytester) -> None:
    assert lengths(pytester, "--specdec-controller", "fixed, fixed(k=4), fixed(4)") == [("fixed", 4)]


class Sevenths(Controller):
    """A third party's controller, whose first option is not its K."""

    max_k = 7

    def __init__(self, env: Env, speed: int = 3) -> None: ...

    def next_k(self, stats: Stats) -> int:
        return 7


@pytest.mark.parametrize("kind", ["a class", "an alias of it"])
def test_a_controller_whose_k_is_no_option_of_its_own_is_refused_when_it_is_registered(kind: str) -> None:
    class Misspelt(Sevenths):
        k_option = "sped"

    class Plugin:
        @hookimpl
        def specdec_register_controllers(self, register: Callable[[str, Any], None]) -> None:
            if kind != "a class":
                register("short", "misspelt(speed=2)")
            register("misspelt", Misspelt)

    with pytest.raises(SpecdecError, match="theirs registers the controller 'misspelt', whose k_option is 'sped'"):
        Registry({"theirs": Plugin()})
    Misspelt.k_option = "speed"
    assert Registry({"theirs": Plugin()}).split_k("misspelt", 5) == ("misspelt", 5)


def test_a_k_that_contradicts_its_controller_or_that_it_does_not_take_is_refused(assemble: Make) -> None:
    with pytest.raises(SpecdecError, match=r"'fixed\(k=8\)' sets k=8 and K = 4 is given too; leave one out"):
        assemble().engine("ngram", controller="fixed(k=8)", k=4)
    build = tiny.assembly(extra=(("controller", "sevenths", Sevenths),))
    assert build.engine("ngram", controller="sevenths(speed=5)").controller.max_k == 7
    with pytest.raises(SpecdecError, match="'sevenths' takes no K, got 4; its options: speed=3"):
        build.engine("ngram", controller="sevenths", k=4)
    with pytest.raises(
        SpecdecError, match="k of the controller 'fixed\\(k=many\\)' is 'many'; expected a whole number"
    ):
        assemble().engine("ngram", controller="fixed(k=many)")
