"""Every option of every plugin takes the ends of its range, and refuses, in one sentence, what lies just beyond."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.conformance.models.tiny import policy_named, registry
from benchsuite.tests.rig import Make
from specdec import SpecdecError

POLICIES = {
    "conf_threshold": (
        ("tau=1e-9", "tau=1"),
        ("tau=0", "tau=1.001", "tau=-0.1"),
        "tau is {tau}; expected a probability above 0 and at most 1",
    ),
    "topk_agree": (("k=1",), ("k=0",), "k is {k}; expected 1 or more"),
    "tree_agree": (
        ("m=1, k=1",),
        ("m=0, k=1", "m=1, k=0"),
        "tree_agree was given m={m}, k={k}; expected 1 or more of both",
    ),
    "typical": (
        ("p=0, epsilon=1, delta=1e-9", "p=1, epsilon=1e-9, delta=9"),
        (
            *("p=-0.001, epsilon=1, delta=1", "p=1.001, epsilon=1, delta=1", "p=0, epsilon=0, delta=1"),
            *("p=0, epsilon=1.001, delta=1", "p=0, epsilon=1, delta=0"),
        ),
        "typical was given p={p}, epsilon={epsilon}, delta={delta}; expected p from 0 to 1, epsilon above 0 and at "
        "most 1, delta above 0",
    ),
}
CONTROLLERS = {
    "fixed": (
        ("k=0", "k=99"),
        ("k=-1", "k=100"),
        "K is {k}; expected 0 to 99: K proposals and the token before them must fit into the longest text, of 100 "
        "tokens with its prompt; lower K, or allow more new tokens",
    ),
    "adaptive": (
        (
            "window=1, step=1, target=0, minimum=1, maximum=1",
            "window=9, step=9, target=1, minimum=99, maximum=99",
        ),
        (
            "window=0, step=1, target=0, minimum=1, maximum=1",
            "window=1, step=0, target=0, minimum=1, maximum=1",
            "window=1, step=1, target=-0.001, minimum=1, maximum=1",
            "window=1, step=1, target=1.001, minimum=1, maximum=1",
            "window=1, step=1, target=1, minimum=0, maximum=1",
            "window=1, step=1, target=1, minimum=2, maximum=1",
            "window=1, step=1, target=1, minimum=2, maximum=100",
        ),
        "adaptive was given window={window}, step={step}, target={target}, minimum={minimum}, maximum={maximum}; "
        "expected window and step 1 or more, target from 0 to 1, and 1 <= minimum <= maximum < 100",
    ),
    "goodput": (
        ("maximum=0, probe=1", "maximum=99, probe=9"),
        ("maximum=-1, probe=1", "maximum=100, probe=1", "maximum=4, probe=0"),
        "goodput was given maximum={maximum} and probe={probe}; expected a maximum from 0 to 99 (the arena holds "
        "sequences of 100) and probe 1 or more",
    ),
}
DRAFTS = {
    "ngram": (
        ("n_min=1, n_max=1", "n_min=3, n_max=3"),
        ("n_min=0, n_max=1", "n_min=2, n_max=1"),
        "n_min is {n_min} and n_max {n_max}; expected 1 <= n_min <= n_max",
    ),
    "ngram ": (("branches=1",), ("branches=0",), "branches is {branches}; expected 1 or more"),
    "suffix": (
        ("factor=1e-9, least=0, min_match=1, branches=1", "factor=9.0, least=1, min_match=9, branches=9"),
        (
            *("factor=0, least=0, min_match=1, branches=1", "factor=1, least=-0.1, min_match=1, branches=1"),
            *("factor=1, least=1.001, min_match=1, branches=1", "factor=1, least=0, min_match=0, branches=1"),
            "factor=1, least=0, min_match=1, branches=0",
        ),
        "suffix was given factor={factor}, least={least}, min_match={min_match}, branches={branches}; expected factor "
        "above 0, least from 0 to 1, min_match and branches 1 or more",
    ),
    "hybrid": (("model_k=1",), ("model_k=0",), "model_k is {model_k}; expected 1 or more"),
    "hybrid ": (
        ("slots=0, merge=True", "slots=1, extend=True"),
        ("slots=-1",),
        "slots is {slots}; expected 1 or more, or 0 for what the forward's cost allows",
    ),
    "oracle": (
        ("rate=0", "rate=1"),
        ("rate=-0.001", "rate=1.001"),
        "rate is {rate}; expected a probability from 0 to 1",
    ),
    "oracle ": (
        ("length=1", "length=3", "rates=0-1", "histogram=0-0-1", "histogram=0.3333333-0.3333333-0.3333333"),
        ("length=0.999", "length=3.001"),
        "length is {length}; expected 1 to 3: a step emits one token and up to K = 2 proposals. Raise K or lower the "
        "length",
    ),
    "medusa": (
        ("num_heads=1, beam=1, least=0", "num_heads=9, beam=9, least=0.999"),
        (
            *("num_heads=0, beam=1, least=0", "num_heads=1, beam=0, least=0", "num_heads=1, beam=1, least=-0.1"),
            "num_heads=1, beam=1, least=1",
        ),
        "medusa was given num_heads={num_heads}, beam={beam}, least={least}; expected num_heads and beam 1 or more, "
        "least from 0 to below 1",
    ),
    "eagle": (
        ("beam=1, depth=1, max_draft=0, least=0, leaves=0", "beam=9, depth=9, max_draft=9, least=0.999, leaves=9"),
        (
            *("beam=0, depth=1, max_draft=0, least=0, leaves=0", "beam=1, depth=0, max_draft=0, least=0, leaves=0"),
            *("beam=1, depth=1, max_draft=-1, least=0, leaves=0", "beam=1, depth=1, max_draft=0, least=-0.1, leaves=0"),
            *("beam=1, depth=1, max_draft=0, least=1, leaves=0", "beam=1, depth=1, max_draft=0, least=0, leaves=-1"),
        ),
        "eagle was given beam={beam}, depth={depth}, max_draft={max_draft}, least={least}, leaves={leaves}; expected "
        "beam and depth 1 or more, max_draft and leaves 0 or more, least from 0 to below 1",
    ),
    "tree": (
        ("beam=1, depth=1, least=0", "beam=3, depth=3, least=0.999"),
        (
            "beam=0, depth=1, least=0",
            "beam=1, depth=0, least=0",
            "beam=1, depth=1, least=-0.1",
            "beam=1, depth=1, least=1",
        ),
        "tree was given beam={beam}, depth={depth}, least={least}; expected beam and depth 1 or more, least from 0 to "
        "below 1",
    ),
    "tree ": (
        ("widths='1'", "widths='1-2-1'"),
        ("widths='0'", "widths='2-0'", "widths='-2'", "widths='2-x'"),
        "tree was given widths={widths}; expected whole numbers from 1 on, as 4-2-1",
    ),
}


def refused_by(build: Any, name: str, options: str, says: str) -> None:
    """The options are refused in these words, in which ``{option}`` is what was given."""
    given = dict(part.split("=") for part in options.split(", "))
    with pytest.raises(SpecdecError, match=f"^{re.escape(says.format(**given))}$"):
        build(f"{name.strip()}({options})")


@pytest.mark.parametrize("name", POLICIES)
def test_a_policys_options_have_these_ends(name: str) -> None:
    taken, beyond, says = POLICIES[name]
    for options in taken:
        policy_named(f"{name}({options})")
    for options in beyond:
        refused_by(policy_named, name, options, says)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_controllers_options_have_these_ends_in_an_arena_for_a_hundred_tokens(name: str) -> None:
    calibration = SimpleNamespace(measure=lambda *sizes: None, forward=lambda *sizes: 1.0)
    target = SimpleNamespace(skips_padding=False, slots_of_a_pass=1)
    env: Any = SimpleNamespace(max_length=100, max_rows=2, calibration=calibration, target=target)
    taken, beyond, says = CONTROLLERS[name]
    for options in taken:
        built = registry().controller(f"{name}({options})", env)
        assert built.max_k == int(options.split("maximum=")[-1].split("k=")[-1].split(",")[0])
    for options in beyond:
        refused_by(lambda text: registry().controller(text, env), name, options, says)


@pytest.mark.parametrize("name", DRAFTS)
def test_a_drafts_options_have_these_ends(name: str, assemble: Make) -> None:
    build = assemble()
    taken, beyond, says = DRAFTS[name]
    for options in taken:
        build.engine(f"{name.strip()}({options})", k=2)
    for options in beyond:
        refused_by(lambda text: build.engine(text, k=2), name, options, says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "draft_model(model=x, layers=1)",
            "draft_model takes model or layers, not both: layers are the target's own",
        ),
        (
            "draft_model(vocabulary=both)",
            "unknown vocabulary 'both'; choices: intersection, same",
        ),
        (
            "draft_model(vocabulary=intersection)",
            "vocabulary=intersection is for a model with a tokenizer of its own; give draft_model a model and no "
            "layers",
        ),
        (
            "draft_model(model=x, layers=1, vocabulary=intersection)",
            "vocabulary=intersection is for a model with a tokenizer of its own; give draft_model a model and no "
            "layers",
        ),
        ("hybrid(sources=',')", "hybrid has no sources; name some drafts, for example 'suffix, ngram'"),
        *(
            (
                f"hybrid(sources={sources!r})",
                f"hybrid cannot combine {sources!r}: expected lookups (suffix, ngram) and at most one other draft, as "
                "the last; unless merge=True lookups must be chains, and with extend=True all drafts",
            )
            for sources in ("garbage, ngram", "garbage, garbage", "suffix, ngram(branches=2)")
        ),
        ("hybrid(sources='ngram, tree', extend=True)", "hybrid cannot combine 'ngram, tree': expected lookups"),
        (
            "oracle(0.5, length=2)",
            "the acceptance is given by rate and length; expected one of rate, length, rates, histogram, each of which "
            "describes all of it",
        ),
        ("oracle(rates=0-1, histogram=0-0-1)", "the acceptance is given by rates and histogram; expected one of "),
        *(
            (
                f"oracle(rates={text})",
                f"rates is {shown}; expected numbers joined by -, 2 of them at K = 2: one for each position",
            )
            for text, shown in (("0.5", "0.5"), ("1-1-1", "'1-1-1'"), ("0.5-high", "'0.5-high'"), ("0--1", "'0--1'"))
        ),
        ("oracle(rates=0.5-1.01)", "rates is 1.01; expected a probability from 0 to 1"),
        ("oracle(rates=nan-1)", "rates is nan; expected a probability from 0 to 1"),
        (
            "oracle(histogram=0.5-0.5)",
            "histogram is '0.5-0.5'; expected numbers joined by -, 3 of them at K = 2: the probabilities of 0, 1, … K "
            "accepted proposals",
        ),
        ("oracle(histogram=0.5-0.5-2)", "histogram is 2.0; expected a probability from 0 to 1"),
        ("oracle(histogram=0.5-0.25-0.2)", "histogram is '0.5-0.25-0.2', which sums to 0.95; expected 1: "),
        ("medusa(temperature=0)", "temperature is -1.0; expected 0 (greedy) or at least 1e-06"),
        ("medusa(top_p=0)", "top_p is 0; expected above 0 and at most 1 (1 is off)"),
        (
            "medusa(head_init=x)",
            "unknown head_init 'x'; choices: copy, random, tie, trained. Or name a .safetensors file of heads.",
        ),
    ],
)
def test_options_that_contradict_each_other_or_mean_nothing_are_refused(text: str, says: str, assemble: Make) -> None:
    with pytest.raises(SpecdecError, match=f"^{re.escape(says)}"):
        assemble().engine(text, k=2)
