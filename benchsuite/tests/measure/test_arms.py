"""Settings: whatever names, keys or writes one does so by every field, so that no two settings become one."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.measure.arms import SAMPLED, Arm, Setting
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
