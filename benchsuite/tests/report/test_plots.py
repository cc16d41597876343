"""The geometry of plots: round ticks, values in their order and place, and marks that can be told apart."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.report.document import Document, Plots, Section
from benchsuite.report.plots import Plot, Scale, Trace
from benchsuite.report.renderers import page, picture

VALUES = st.lists(st.floats(-1e5, 1e5).map(lambda value: round(value, 2)), min_size=1, max_size=5)


@pytest.mark.slow
@given(VALUES, st.booleans(), st.booleans())
def test_ticks_are_equally_far_round_and_no_more_than_the_values_need(
    values: list[float], zero: bool, whole: bool
) -> None:
    """A step is 1, 2 or 5 times a power of ten; the first tick is the last one below the values."""
    scale = Scale.of(values, 0, 100, zero, whole)
    steps = [b - a for a, b in zip(scale.ticks, scale.ticks[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert re.fullmatch(r"[125]\.0+e[-+]\d+", f"{steps[0]:.3e}")
    low, high = min([*values, 0.0] if zero else values), max(values)
    near = 1e-6 * steps[0]
    assert scale.ticks[0] <= low + near < scale.ticks[1] + 2 * near
    assert scale.ticks[-2] <= high + near
    assert high < scale.ticks[-1], "nothing lies on the frame's far end"
    assert (scale.at(scale.ticks[0]), scale.at(scale.ticks[-1])) == (0, 100)


@pytest.mark.parametrize(
    ("values", "zero", "whole", "texts"),
    [
        ([], False, False, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "1.2"]),
        ([3.0], False, True, ["3", "4"]),
        ([0.3], False, False, ["0.2", "0.4"]),
        ([4.0], False, False, ["4", "5"]),
        ([5.5], False, False, ["4", "6"]),
        ([0.0, 30.0], False, False, ["0", "10", "20", "30", "40"]),
        ([0.0], False, False, ["0.0", "0.2"]),
        ([2.0, 9.5], False, False, ["2", "4", "6", "8", "10"]),
        ([2.0, 9.5], True, False, ["0", "2", "4", "6", "8", "10"]),
        ([3.0, 4.0], True, False, ["0", "1", "2", "3", "4", "5"]),
        ([1.0, 10.0], False, False, ["0", "2", "4", "6", "8", "10", "12"]),
        ([0.0, 5.0], False, False, ["0", "1", "2", "3", "4", "5", "6"]),
        ([1.0, 3.0], False, True, ["1", "2", "3", "4"]),
        ([1.0, 1.2], False, False, ["1.00", "1.05", "1.10", "1.15", "1.20", "1.25"]),
        ([-3.0, 7.0], True, False, ["-4", "-2", "0", "2", "4", "6", "8"]),
        ([0.0, 260.0], True, False, ["0", "100", "200", "300"]),
    ],
)
def test_a_tick_has_as_many_digits_as_tell_it_from_its_neighbours(
    values: list[float], zero: bool, whole: bool, texts: list[str]
) -> None:
    scale = Scale.of(values, 0, 100, zero, whole)
    assert [scale.text(tick) for tick in scale.ticks] == texts


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([], ["1", "2"]),
        ([1.0], ["1", "2"]),
        ([2.0, 4.0], ["2", "5"]),
        ([0.09, 1.1], ["0.05", "0.1", "0.2", "0.5", "1", "2"]),
        ([5.0, 10.0], ["5", "10"]),
        ([0.1, 0.15], ["0.1", "0.2"]),
        ([30.0, 600.0], ["20", "50", "100", "200", "500", "1000"]),
    ],
)
def test_ratios_have_ticks_at_one_two_and_five_around_their_values(values: list[float], texts: list[str]) -> None:
    scale = Scale.of_ratios(values, 0, 100)
    assert [scale.text(tick) for tick in scale.ticks] == texts
    if scale.ticks[-1] == 10 * scale.ticks[0]:
        assert scale.at(scale.ticks[0] * 10**0.5) == 50


POINTS = [(1.0, 2.0), (3.0, 8.0), (4.0, 6.0)]
"""On axes whose ticks are known: across 1 to 5 in whole numbers, up 0 to 10."""


def drawn_plot(**given: object) -> Plot:
    """A plot of one trace over ``POINTS``."""
    trace = Trace("one", POINTS, 0, joined=True)
    return replace(Plot("title", "note", "across", "up", [trace], whole=True), **given)  # type: ignore[arg-type]


def pixel_between(value: float, low: float, high: float, start: float, end: float) -> float:
    """The pixel of a value between two values and their pixels, as SVG files have it."""
    return round(start + (value - low) / (high - low) * (end - start), 1)


def test_points_lie_where_the_frames_ticks_say_and_up_is_more() -> None:
    drawn = drawn_plot(level=(9.0, "nine")).drawn()
    left, top, right, bottom = drawn["frame"]
    assert 0 < left < right < drawn["width"]
    assert 0 < top < bottom < drawn["height"]
    assert drawn["x_ticks"] == [(pixel_between(x, 1, 5, left, right), str(x)) for x in (1, 2, 3, 4, 5)]
    assert drawn["y_ticks"] == [(pixel_between(y, 0, 10, bottom, top), str(y)) for y in (0, 2, 4, 6, 8, 10)]
    [trace] = drawn["traces"]
    places = [(pixel_between(x, 1, 5, left, right), pixel_between(y, 0, 10, bottom, top)) for x, y in POINTS]
    assert trace["marks"] == [(*place, f"one: {y:g}") for place, (_, y) in zip(places, POINTS, strict=True)], (
        "a point without a sentence says its name and height"
    )
    assert trace["line"] == " ".join(f"{x},{y}" for x, y in places)
    assert drawn["level"] == (pixel_between(9, 0, 10, bottom, top), "nine")
    assert (drawn["diagonal"], trace["bars"]) == (None, [])
    assert [drawn[name] for name in ("title", "note", "x", "y")] == ["title", "note", "across", "up"]


def test_a_level_and_the_ends_of_bars_are_inside_the_frame_too() -> None:
    """The highest point is 8: a level of 12, and a bar from -3 to 15, need further ticks."""
    bars = [(1.0, 3.0), (7.0, 15.0), (-3.0, 7.0)]
    traces = [Trace("one", POINTS, 0, bars=bars, said=["a", "b", "c"])]
    drawn = drawn_plot(traces=traces).drawn()
    assert [text for _, text in drawn["y_ticks"]] == ["-5", "0", "5", "10", "15", "20"]
    _, top, _, bottom = drawn["frame"]
    [trace] = drawn["traces"]
    assert [(low, high) for _, low, high in trace["bars"]] == [
        tuple(pixel_between(end, -5, 20, bottom, top) for end in bar) for bar in bars
    ]
    assert [x for x, _, _ in trace["bars"]] == [x for x, _, _ in trace["marks"]]
    assert [said for _, _, said in trace["marks"]] == ["a", "b", "c"]
    assert trace["line"] == "", "nothing joins the points"
    assert drawn_plot(level=(12.0, "twelve")).drawn()["y_ticks"][-1][1] == "15"
    with pytest.raises(ValueError, match="zip"):
        drawn_plot(traces=[replace(traces[0], bars=bars[:2])]).drawn()


def test_points_beyond_level_and_bars_are_inside_the_frame_too() -> None:
    bars = [(1.0, 3.0), (7.0, 7.5), (5.0, 6.0)]
    drawn = drawn_plot(traces=[Trace("one", POINTS, 0, bars=bars)], level=(1.0, "one")).drawn()
    assert drawn["y_ticks"] == drawn_plot().drawn()["y_ticks"]


def test_a_plot_is_no_wider_than_its_texts_of_15_pixels_allow_on_a_phone_of_360() -> None:
    """They are shown at three quarters of their size, which is 11 pixels and a bit."""
    assert 0.75 * drawn_plot().drawn()["width"] <= 360


def test_axes_begin_at_nothing_unless_a_plot_says_otherwise() -> None:
    """Across too where there is a diagonal; a plot of small differences begins near them."""
    near = [Trace("one", [(6.0, 7.0), (9.0, 8.0)], 0)]
    texts = {
        name: [[text for _, text in drawn[f"{axis}_ticks"]] for axis in "xy"]
        for name, drawn in {
            "plain": drawn_plot(traces=near).drawn(),
            "near": drawn_plot(traces=near, zero=False).drawn(),
            "both": drawn_plot(traces=near, diagonal="equal", whole=False).drawn(),
            "both near": drawn_plot(traces=near, diagonal="equal", whole=False, zero=False).drawn(),
        }.items()
    }
    assert texts["plain"] == [["6", "7", "8", "9", "10"], ["0", "2", "4", "6", "8", "10"]]
    assert texts["near"][1] == ["7.0", "7.2", "7.4", "7.6", "7.8", "8.0", "8.2"]
    assert texts["both"] == [["0", "2", "4", "6", "8", "10"]] * 2, "both axes are one where a line says that they agree"
    assert texts["both near"] == [["6", "7", "8", "9", "10"]] * 2


def test_an_axis_of_whole_numbers_has_no_ticks_between_them() -> None:
    """Windows and positions are counted; up there may be any number."""
    near = [Trace("one", [(1.0, 1.0), (2.0, 2.0)], 0)]
    for whole, texts in ((True, ["1", "2", "3"]), (False, ["1.0", "1.2", "1.4", "1.6", "1.8", "2.0", "2.2"])):
        drawn = drawn_plot(traces=near, zero=False, whole=whole).drawn()
        assert [text for _, text in drawn["x_ticks"]] == texts
        assert len(drawn["y_ticks"]) == 7


@pytest.mark.parametrize("ratios", [False, True])
def test_a_diagonal_runs_where_both_axes_have_the_same_value(ratios: bool) -> None:
    drawn = drawn_plot(diagonal="equal", whole=False, ratios=ratios).drawn()
    across, up = ({text: place for place, text in drawn[f"{axis}_ticks"]} for axis in "xy")
    assert across.keys() == up.keys()
    first, last = next(iter(across)), list(across)[-1]
    assert drawn["diagonal"] == (across[first], up[first], across[last], up[last], "equal")
    left, top, right, bottom = drawn["frame"]
    assert drawn["diagonal"][:4] == (left, bottom, right, top)


def test_equal_ratios_are_equally_far_on_both_axes() -> None:
    traces = [Trace("one", [(1.0, 2.0), (2.0, 4.0), (4.0, 8.0)], 0)]
    drawn = drawn_plot(traces=traces, ratios=True, whole=False).drawn()
    marks = drawn["traces"][0]["marks"]
    for axis in (0, 1):
        places = [mark[axis] for mark in marks]
        assert places[2] - places[1] == pytest.approx(places[1] - places[0], abs=0.2)
        assert places[0] != places[1]
    assert [text for _, text in drawn["x_ticks"]] == ["1", "2", "5"]
    assert [text for _, text in drawn["y_ticks"]] == ["2", "5", "10"]


def test_the_first_traces_differ_in_colour_shape_and_dash() -> None:
    """A reader who sees no colours tells eight lines from one another by their shapes and by their dashes."""
    traces = [Trace(f"t{n}", POINTS, n, joined=True) for n in range(16)]
    found = drawn_plot(traces=traces).drawn()["traces"]
    for look in ("colour", "shape", "dash"):
        assert len({trace[look] for trace in found[:8]}) == 8
    assert found[0]["dash"] == "", "the first line is whole"
    assert all(re.fullmatch(r"\d+( \d+)+", trace["dash"]) for trace in found[1:8])
    assert (found[8]["colour"], found[8]["dash"]) == (found[0]["colour"], found[0]["dash"])
    assert [trace["shape"] for trace in found[8:]] == [trace["shape"] for trace in (*found[1:8], found[0])]


def test_a_page_and_a_file_draw_every_mark_line_and_name() -> None:
    """Shapes: each of the eight is drawn by an element or a path of its own, and no two alike."""
    traces = [Trace(f"t{n}", [(1.0, 2.0 + n), (3.0, 8.0)], n, joined=True) for n in range(8)]
    plot = drawn_plot(traces=traces, level=(1.0, "one"), diagonal="equal", whole=False)
    drawn = plot.drawn()
    html, svg = page(Document("a page", [Section(parts=[Plots([plot])])])), picture(plot)
    whole = ElementTree.fromstring(svg)
    assert whole.get("aria-label") == "title"
    for text in (html, svg):
        assert text.count("<polyline") == 2 * len(traces), "each with its key in the legend"
        assert text.count("<title>t") == sum(len(trace.points) for trace in traces)
        for trace in drawn["traces"]:
            assert f'points="{trace["line"]}" stroke-dasharray="{trace["dash"]}"' in text
            assert re.search(rf"{trace['name']}</(li|text)>", text)
        for words in ("across", "level line: one", "sloping line: equal", "up: up"):
            assert words in text
    [legend] = re.findall(r'<ul class="legend">.*</ul>', html, re.DOTALL)
    keys = re.findall(r"</?polyline[^>]*>(<(?:circle|rect|path)[^>]*>)", legend)
    assert len({*keys}) == len(traces)
