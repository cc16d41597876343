"""Settings: whatever names, keys or writes one does so by every field, so that no two settings become one."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.measure.arms import SAMPLED, Arm, PeerName, Setting, arm_named
from benchsuite.measure.cells import Cell
from benchsuite.measure.figures import KEYS
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine, Row, make_rows
from benchsuite.report.tables import section_title
from benchsuite.tests.rig import SETTING
from specdec import SpecdecError
from specdec.request import RANGES, SamplingParams

MACHINE = Machine("tiny", "cpu", "cpu", "float32", 1, 2, 3.5, 4)

FIELDS: dict[str, st.SearchStrategy[object]] = {
    "target": st.sampled_from(["tiny", "other"]),
    "backend": st.sampled_from(["auto", "cpu", "reference"]),
    "device": st.sampled_from(["cpu", "cuda", "mps"]),
    "dtype": st.sampled_from(["float32", "bfloat16", "int8"]),
    "workload": st.sampled_from(["chat", "code_editing"]),
    "batch": st.integers(1, 64),
    "temperature": st.sampled_from([0.0, 0.25, 0.8, 1.0]),
    "top_k": st.integers(0, 100),
    "top_p": st.sampled_from([0.25, 0.9, 0.95, 1.0]),
    "min_p": st.sampled_from([0.0, 0.05, 0.5]),
    "presence_penalty": st.sampled_from([-1.5, 0.0, 0.5]),
    "frequency_penalty": st.sampled_from([-1.5, 0.0, 0.5]),
    "repetition_penalty": st.sampled_from([0.5, 1.0, 1.25]),
    "max_new_tokens": st.integers(1, 4096),
    "seed": st.integers(0, 9),
}
SHOWN_OTHERWISE = ("target", "device", "dtype", "workload", "seed")
"""Of a section: shown as they were resolved, with the text, and once for a run."""

SETTINGS = st.fixed_dictionaries(FIELDS)


def other_value(data: st.DataObject, name: str, value: object) -> object:
    """A value of a field that is not ``value``."""
    return data.draw(FIELDS[name].filter(lambda other: other != value))


def unmeasured_row(setting: Setting) -> Row:
    """A row of plain decoding that was not measured."""
    arm = Arm(setting)
    pools = {arm: {setting.workload: Series(arm, "exact")}}
    return make_rows(pools, arm, MACHINE, setting.workload, None, {})[arm]


@pytest.mark.slow
@given(SETTINGS, st.sampled_from(list(FIELDS)), st.data())
def test_two_settings_that_differ_in_any_field_are_one_nowhere(
    values: dict[str, object], name: str, data: st.DataObject
) -> None:
    one = Setting.of(values)
    other = one.replaced(**{name: other_value(data, name, values[name])})
    assert one != other
    assert one.values != other.values
    assert [Setting.of(json.loads(json.dumps(each.values))) for each in (one, other)] == [one, other]
    cells = [Cell(each, "", MACHINE, (), {}, {}, None, {}, {}).id for each in (one, other)]
    assert cells[0] != cells[1]
    if name == "seed":  # one for a whole run: no part of names, and compared as a number
        assert unmeasured_row(one).info["seed"] != unmeasured_row(other).info["seed"]
        return
    assert one.id != other.id
    assert Arm(one).id != Arm(other).id
    assert unmeasured_row(one).info["setting"] != unmeasured_row(other).info["setting"]


@pytest.mark.slow
@given(SETTINGS, st.sampled_from([name for name in FIELDS if name not in SHOWN_OTHERWISE]), st.data())
def test_a_section_says_every_value_in_which_it_differs_from_another(
    values: dict[str, object], name: str, data: st.DataObject
) -> None:
    one = Setting.of(values)
    other = one.replaced(**{name: other_value(data, name, values[name])})
    assert section_title(unmeasured_row(one)) != section_title(unmeasured_row(other))


def test_every_number_of_the_sampling_parameters_is_a_field_of_settings() -> None:
    """Those that are left out are no option of the main job: texts and tokens, and a least length."""
    left_out = {"eos", "stop", "logit_bias", "bad_words", "min_new_tokens", "logprobs"}
    assert set(SAMPLED) == {one.name for one in fields(SamplingParams)} - left_out
    assert set(SAMPLED) <= set(KEYS)
    assert set(SAMPLED) <= set(RANGES)


def test_a_value_out_of_range_or_a_field_that_is_none_is_refused() -> None:
    with pytest.raises(SpecdecError, match=r"top_p is 2\.0; expected above 0"):
        SETTING.replaced(top_p=2.0)
    with pytest.raises(TypeError, match="heat"):
        SETTING.replaced(heat=1)


@pytest.mark.parametrize(
    ("given", "label", "strategy", "name"),
    [
        ({}, "plain", "plain", "plain"),
        ({"again": True}, "plain again", "plain again", "plain-again"),
        ({"eager": True}, "plain eager", "plain eager", "plain-eager"),
        ({"draft": "ngram", "k": 4}, "ngram", "ngram/match/fixed/4", "ngram-match-k4"),
        ({"draft": "ngram", "k": 4, "name": "mine"}, "mine", "ngram/match/fixed/4", "mine-match-k4"),
        (
            {"draft": "a/b", "policy": "block", "controller": "adaptive", "k": None},
            "a/b",
            "a/b/block/adaptive",
            "a:b-block-adaptive",
        ),
        ({"draft": "tree", "controller": "goodput", "k": 6}, "tree", "tree/match/goodput/6", "tree-match-k6-goodput"),
        ({"peer": "transformers"}, "transformers", "transformers", "transformers"),
        (
            {"peer": "transformers_prompt_lookup(k=3, ngram=2)"},
            "transformers prompt lookup",
            "transformers_prompt_lookup(k=3, ngram=2)",
            "transformers-prompt-lookup-k3-ngram2",
        ),
        (
            {"peer": "endpoint(url=http://x, name=a)"},
            "endpoint a",
            "endpoint(url=http://x, name=a)",
            "endpoint-a-urlhttp:::x-namea",
        ),
    ],
)
def test_an_arm_is_named_by_what_it_runs(given: dict[str, Any], label: str, strategy: str, name: str) -> None:
    arm = Arm(SETTING, **given)
    setting = "".join(f"-{part}" for part in SETTING.odd)
    assert SETTING.odd == ["devicecpu", "dtypefloat32", "max_new_tokens24"]
    assert (arm.label, arm.strategy, arm.id) == (label, strategy, f"tiny-chat-{name}{setting}")
    assert arm.control == bool({"peer", "again", "eager"} & given.keys())
    assert arm.plain == (not given)


def test_an_arms_own_name_makes_it_no_other_arm() -> None:
    assert Arm(SETTING, draft="ngram", k=4, name="mine") == Arm(SETTING, draft="ngram", k=4)
    assert Arm(SETTING, draft="ngram", k=4) != Arm(SETTING, draft="ngram", k=3)
    assert Arm(SETTING) == Arm(SETTING, None, "match", "fixed", 0, None, again=False, eager=False, name=None)


@pytest.mark.parametrize(
    ("text", "name", "label", "options", "brief", "k"),
    [
        ("one_two", "one_two", "one two", "", "", None),
        ("one(k=10, ngram=2)", "one", "one", "k=10, ngram=2", "k=10, ngram=2", 10),
        ("one(size=k=4)", "one", "one", "size=k=4", "size=k=4", None),
        ("one(a=f(x), name='my own', k=3)", "one", "one my own", "a=f(x), name='my own', k=3", "", 3),
        ('one(name="two")', "one", "one two", 'name="two"', "", None),
    ],
)
def test_a_peers_name_and_options_are_read_from_its_text(
    text: str, name: str, label: str, options: str, brief: str, k: int | None
) -> None:
    peer = PeerName(text)
    assert (peer.name, peer.label, peer.options, peer.brief, peer.k) == (name, label, options, brief, k)


def test_requests_end_at_the_targets_tokens_and_are_decoded_as_the_setting_says() -> None:
    setting = SETTING.replaced(temperature=0.5, seed=3)
    params = setting.params((7, 8))
    assert (params.eos, params.temperature, params.seed, params.max_new_tokens) == ((7, 8), 0.5, 3, 24)
    assert setting.without_workload == setting.replaced(workload="")
    assert setting.replaced(batch=2, top_k=5).unusual == {**setting.unusual, "batch": 2, "top_k": 5}
    assert Setting("tiny", "auto", "auto", "auto", 1, "chat").id == "tiny-chat"


def test_an_arm_is_found_by_its_label_or_its_strategy_and_a_strategy_comes_first() -> None:
    other = SETTING.replaced(workload="math")
    strategies: list[dict[str, Any]] = [{}, {"draft": "ngram", "k": 4}, {"draft": "tree", "k": 4}]
    arms = [Arm(setting, **one) for setting in (SETTING, other) for one in strategies]
    assert arm_named("plain", arms) is arms[0]
    assert arm_named("ngram", arms) is arm_named("ngram/match/fixed/4", arms) is arms[1]
    twice = [*arms, Arm(SETTING, draft="ngram", k=2)]
    assert arm_named("ngram/match/fixed/2", twice) is twice[-1]
    with pytest.raises(
        SpecdecError, match="'ngram' names 2 arms; name one of ngram/match/fixed/4, ngram/match/fixed/2$"
    ):
        arm_named("ngram", twice)
    with pytest.raises(SpecdecError, match="unknown arm 'trie'.*ngram/match/fixed/4, plain, tree/match/fixed/4"):
        arm_named("trie", arms)
    named = [Arm(SETTING, draft="tree", k=4, name="ngram/match/fixed/4"), *arms]
    assert arm_named("ngram/match/fixed/4", named) is arms[1], "a strategy is not mistaken for a name"
