"""Results of other benchmarks: recorded files read, converted both ways, and refused; the glossary in the docs.

``aiperf.json`` and ``guidellm.json`` under ``recorded`` were written by AIPerf 0.13.0 and GuideLLM 0.8.1 over a server
that sends fixed streams and vLLM's ``metrics.speculative_decoding``: six requests of seven steps, three proposals each,
2, 0, 3, 1, 3, 0 and 2 of them accepted; both were shortened. ``vllm-bench.json`` has the names of vLLM's
vllm/benchmarks/serve.py, speculation of the log in ``vllm-dflash.txt``, and latencies that are made up.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.__main__ import benchsuite_main
from benchsuite.foreign.files import ForeignFile, ForeignRun, chosen, read_file, read_result, write_result
from benchsuite.foreign.glossary import COUNTED, FORMATS, SCALES, TIMES, WORDS, OwnPlace, placed_word, unit_factor
from benchsuite.measure.figures import KEYS
from benchsuite.report.foreign import foreign_document
from benchsuite.report.renderers import terminal
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.server_metrics import NAMES

RECORDED = Path(__file__).parents[1] / "recorded"
GLOSSARY = Path(__file__).parents[3] / "docs" / "metrics.md"
FILES = {"aiperf": "aiperf.json", "guidellm": "guidellm.json", "vllm": "vllm-bench.json"}


def recorded(format_: str) -> ForeignFile:
    """The recorded file of a format, read."""
    return read_file(RECORDED / FILES[format_])


def raw(format_: str) -> Any:
    """The recorded file of a format, as JSON."""
    return json.loads((RECORDED / FILES[format_]).read_text(encoding="utf-8"))


@pytest.mark.parametrize("format_", FILES)
def test_a_file_is_recognised_by_its_content(format_: str) -> None:
    found = recorded(format_)
    assert found.format == format_
    assert not found.notes
    assert len(found.runs) == 1


@pytest.mark.parametrize("format_", ["aiperf", "guidellm"])
def test_both_programs_counted_what_the_server_sent(format_: str) -> None:
    figures = recorded(format_).runs[0].figures
    assert figures["requests"] == 6
    assert figures["output_tokens"] == 6 * 19
    assert figures["counters.num_drafts"] == 6 * 7
    assert figures["counters.num_draft_tokens"] == 6 * 21
    assert figures["counters.num_accepted_tokens"] == 6 * 11
    assert figures["acceptance_histogram"] == {"0": 12, "1": 6, "2": 12, "3": 12}
    assert figures["acceptance_rate"] == pytest.approx(11 / 21)
    assert figures["mean_acceptance_length"] == pytest.approx(1 + 11 / 7)
    counts = [figures[word.name] for word in WORDS if word.unit in COUNTED and word.name in figures]
    assert {type(one) for one in counts} == {int, dict}, "whole numbers stay whole"


def test_figures_come_in_our_units() -> None:
    vllm, theirs = recorded("vllm").runs[0].figures, raw("vllm")
    assert vllm["e2e_s"] == theirs["median_e2el_ms"] / 1e3
    assert vllm["ttft_ms"] == theirs["median_ttft_ms"]
    assert vllm["acceptance_rate"] == pytest.approx(10130 / 43918)
    assert vllm["counters.num_accepted_tokens_per_pos"] == [4214, 2532, 1350, 888, 566, 370, 210]


def test_a_unit_that_the_file_says_is_the_one_that_is_read() -> None:
    content = raw("aiperf")
    content["time_to_first_token"] |= {"unit": "sec", "p50": 0.5}
    assert read_result(content).runs[0].figures["ttft_ms"] == 500
    content["time_to_first_token"]["unit"] = "fortnights"
    with pytest.raises(SpecdecError, match="'fortnights', which is not known here"):
        read_result(content)


@pytest.mark.parametrize("format_", ["aiperf", "guidellm", "vllm"])
def test_theirs_to_ours_to_theirs_keeps_every_figure_that_has_a_place(format_: str) -> None:
    found = recorded(format_)
    ours = read_result(json.loads(json.dumps(write_result(found, "ours")[0])))
    assert ours.runs[0].figures == found.runs[0].figures
    again, lost = write_result(ours, format_)
    places = [word.places[format_].path for word in WORDS if format_ in word.places]
    kept = 0
    for path in places:
        old, new = raw(format_), again
        if format_ == "guidellm":
            old, new = old["benchmarks"][0], new["benchmarks"][0]
        for key in path.split("."):
            old, new = (old or {}).get(key), (new or {}).get(key)
        assert new == (pytest.approx(old) if old is not None else None)
        kept += old is not None
    assert kept + len(lost) == len(found.runs[0].figures)
    # GuideLLM sums nothing of speculation, so that it has no place for sums.
    assert (len(lost) > 0) == (format_ == "guidellm")


def test_the_unit_of_what_was_read_was_read_too() -> None:
    content = raw("aiperf") | {"other": {"unit": "ms", "avg": 1.0}}
    left = read_result(content).runs[0].left
    assert [path for path in left if path.endswith(".unit") and path.startswith(("other", "request_latency"))] == [
        "other.unit"
    ]
    assert "request_latency.unit" not in left


def test_a_unit_that_only_aiperf_would_say_is_none_in_another_programs_file() -> None:
    content = {
        "benchmarks": [{"duration": 1.5, "metrics": {"unit": "fortnights", "request_totals": {"successful": 2}}}]
    }
    [run] = read_result(content).runs
    assert (run.figures, run.left) == ({"duration_s": 1.5, "requests": 2}, ("metrics.unit",))


def test_what_was_not_read_is_listed_whole() -> None:
    found = recorded("vllm").runs[0]
    assert set(found.left) == {
        "date",
        "endpoint_type",
        "backend",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "request_rate",
        "burstiness",
        "max_concurrency",
        "total_token_throughput",
        "max_output_tokens_per_s",
        *(f"std_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el")),
    }
    made, lost = write_result(recorded("vllm"), "ours")
    assert made["converted"]["not_read"] == {found.name: list(found.left)}
    assert not lost


def values(word: Any) -> st.SearchStrategy[Any]:
    """Values that a figure may have."""
    if word.name.endswith("per_pos"):
        return st.lists(st.integers(0, 10**6), min_size=1, max_size=5)
    if word.name.endswith("histogram"):
        return st.dictionaries(st.integers(0, 9).map(str), st.integers(0, 10**6), min_size=1)
    return st.integers(0, 10**9) if word.unit in COUNTED else st.floats(1e-6, 1e9)


@pytest.mark.slow
@given(st.fixed_dictionaries({}, optional={word.name: values(word) for word in WORDS}), st.sampled_from(list(FORMATS)))
def test_ours_to_theirs_to_ours_is_the_identity_but_for_what_is_listed(figures: dict[str, Any], format_: str) -> None:
    found = ForeignFile("ours", None, (ForeignRun("one", figures),))
    content, lost = write_result(found, format_)
    listed = {line.removeprefix("one: ").partition(" = ")[0] for line in lost}
    kept = {name: value for name, value in figures.items() if name not in listed}
    told = bool({"output_tokens", "acceptance_rate"} & kept.keys() if format_ == "vllm" else kept)
    told = "metrics" in content["benchmarks"][0] if format_ == "guidellm" else told
    if told:  # each format is told by a key of its own
        back = read_result(json.loads(json.dumps(content))).runs[0].figures
        assert back == {name: pytest.approx(v) if isinstance(v, float) else v for name, v in kept.items()}


def test_rows_of_our_own_are_read_from_both_of_our_files(tmp_path: Path) -> None:
    info = dict.fromkeys(KEYS) | {"ttft_ms": 12.5, "acceptance_rate": 0.5, "tau": 1.5, "draft": "ngram"}
    info |= {"counters": {"num_drafts": 4, "num_draft_tokens": 8, "num_accepted_tokens": 4, "host_reads": 5}}
    rows = read_result({"rows": [{"row": "ngram-k2", **info}], "pooled": []})
    benchmarks = read_result({"benchmarks": [{"name": "ngram-k2", "extra_info": info}], "machine_info": {}})
    assert rows == benchmarks
    assert rows.runs[0].figures["counters.num_drafts"] == 4
    assert set(rows.runs[0].left) == {"tau", "draft", "counters.host_reads"}
    content, lost = write_result(rows, "vllm")
    assert content["spec_decode_acceptance_rate"] == 50
    assert not lost


def test_several_rows_need_a_choice_where_a_file_holds_one_run() -> None:
    found = ForeignFile("ours", None, tuple(ForeignRun(name, {"ttft_ms": 1.0}) for name in ("a", "b")))
    with pytest.raises(SpecdecError, match="there are 2: add --run with a, b"):
        write_result(found, "vllm")
    assert write_result(chosen(found, "b"), "vllm")[0] == {"median_ttft_ms": 1.0}
    assert len(write_result(found, "guidellm")[0]["benchmarks"]) == 2
    with pytest.raises(SpecdecError, match="unknown run 'c'"):
        chosen(found, "c")
    with pytest.raises(SpecdecError, match="unknown format 'sglang'"):
        write_result(found, "sglang")


def test_a_version_that_is_not_known_is_noted() -> None:
    found = read_result(raw("aiperf") | {"schema_version": "9.0"})
    assert found.notes == ("AIPerf says version 9.0 of its format; 1.4 is known here, and names may have changed",)
    older = raw("guidellm")
    del older["metadata"]
    assert "GuideLLM says no version" in read_result(older).notes[0]


def test_requests_that_a_file_does_not_keep_are_noted_and_silent_ones_are_not_summed() -> None:
    content = raw("guidellm")
    requests = content["benchmarks"][0]["requests"]
    del requests["successful"][0]
    found = read_result(content)
    assert found.runs[0].figures["counters.num_drafts"] == 5 * 7
    assert found.notes == ("0 synchronous: speculation is that of the 5 of 6 requests that the file keeps",)
    requests["successful"][0]["response_metrics"] = None
    found = read_result(content)
    assert "counters.num_drafts" not in found.runs[0].figures
    assert found.notes == ("0 synchronous: 4 of 5 requests say something of speculation; they were not summed",)


DEAD = {"completed": 0, "failed": 200, "duration": 12.5, "total_input_tokens": 0, "total_output_tokens": 0}


@pytest.mark.parametrize("format_", FORMATS)
def test_a_time_of_nothing_measured_is_no_time_in_any_format(format_: str) -> None:
    latencies = {word.name: 0.0 for word in WORDS if word.unit in TIMES and word.name != "duration_s"}
    figures = {"requests": 0, "failed_requests": 200, "duration_s": 12.5, "output_tokens": 0, **latencies}
    content, _ = write_result(ForeignFile("ours", None, (ForeignRun("one", figures),)), format_)
    found = read_result(content)
    assert found.runs[0].figures.keys() == {"requests", "failed_requests", "duration_s", "output_tokens"}
    assert "0 is no time" in "".join(found.notes)
    assert read_result({**DEAD, "median_ttft_ms": 20.0}).runs[0].figures["ttft_ms"] == 20
    assert read_result({**DEAD, "duration": 0}).runs[0].figures["duration_s"] == 0, "no latency"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_with_a_result_a_line_has_a_run_for_each(end: str, tmp_path: Path) -> None:
    run = {"completed": 20, "total_output_tokens": 200, "median_ttft_ms": 20.0}
    lines = [run | {"label": name} for name in ("first", "second", "second")]
    file = tmp_path / "runs.json"
    file.write_bytes(b"\xef\xbb\xbf" + end.join(map(json.dumps, lines)).encode())
    assert [one.name for one in read_file(file).runs] == ["first", "second 2", "second 3"]
    file.write_text("\n".join(json.dumps(raw("aiperf") | {"schema_version": one}) for one in ("1.4", "9.0")))
    assert read_file(file).version == "1.4", "the first result's"
    file.write_text(json.dumps(lines[0]) + '\n{"completed": 20, ')
    with pytest.raises(SpecdecError, match=r"runs\.json is no JSON \(result 2: "):
        read_file(file)
    file.write_text(json.dumps(lines[0]) + '\n{"rows": [{"row": "a", "ttft_ms": 1.0}]}')
    with pytest.raises(SpecdecError, match="results of ours, vllm"):
        read_file(file)


@pytest.mark.parametrize("value", ["NaN", "1e400", "-1", '"12"', "true", "9" * 400, "[[1]]", "[1]", '{"a": 1}'])
def test_a_figure_that_is_no_number_is_refused_by_its_path(value: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(f'{{"total_output_tokens": 5, "median_ttft_ms": {value}}}')
    with pytest.raises(SpecdecError, match=r"result.json.*(median_ttft_ms is|no number in JSON)"):
        read_file(file)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("<html><body>404</body></html>", "got HTML"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "expected a result file of vLLM bench serve, AIPerf, GuideLLM"),
        ('{"total_output_tokens": null}', "holds no figure that is known here"),
        ('{"benchmarks": [{"metrics": {}}, 3]}', "benchmarks.1 is '3'"),
        ('{"rows": [3]}', "expected an object with figures"),
        ('{"total_output_tokens": 1, "spec_decode_per_position_acceptance_rates": [0.5]}', "which the file lacks"),
        (
            '{"spec_decode_num_drafts": 7, "spec_decode_per_position_acceptance_rates": [0.5]}',
            "gives no whole numbers",
        ),
    ],
)
def test_what_is_no_result_is_refused(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(content)
    with pytest.raises(SpecdecError, match=words):
        read_file(file)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "benchmarks",
                    "rows",
                    "metrics",
                    "unit",
                    "avg",
                    "extra_info",
                    "schema_version",
                    "request_count",
                    "counters",
                    "requests",
                    "successful",
                    "config",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON)
def test_any_json_is_read_or_refused_with_our_error(content: Any) -> None:
    try:
        found = read_result(content)
    except SpecdecError:
        return
    assert any(run.figures for run in found.runs)


@pytest.mark.usefixtures("endless_line")
def test_the_command_shows_and_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchsuite_main(["convert", str(RECORDED / "aiperf.json")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^mean_acceptance_length +ratio +2\.57143 +spec_decode_token_weighted", shown, re.MULTILINE)
    assert "in ms" in shown
    out = tmp_path / "guidellm.json"
    assert benchsuite_main(["convert", str(RECORDED / "aiperf.json"), "--to", "guidellm", "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "no place in guidellm: 515939d7fe24: tpot_ms = 3.98" in said
    assert "values of the file were not read" in said
    assert read_file(out).runs[0].figures["ttft_ms"] == pytest.approx(25.133847)
    assert benchsuite_main(["convert", str(RECORDED / "vllm-dflash.txt")]) == 0
    assert "vllm page" in capsys.readouterr().out
    assert benchsuite_main(["convert", str(RECORDED / "vllm-dflash.txt"), "--run", "client"]) == 2
    assert "unknown run 'client'; choices: server" in capsys.readouterr().err
    assert benchsuite_main(["convert", str(tmp_path / "none.json")]) == 2
    assert benchsuite_main(["convert", str(RECORDED / "bodies.json")]) == 2


def test_a_table_has_a_line_for_every_figure() -> None:
    found = recorded("vllm")
    lines = [line.split()[0] for line in terminal(foreign_document(found)) if line]
    assert set(found.runs[0].figures) <= set(lines)


def tables(heading: str) -> dict[str, list[str]]:
    """The rows of the table under a heading of docs/metrics.md, by their first cell."""
    page = GLOSSARY.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if line[:3] == "| `"]
    return {row[0].strip("` "): row[1:] for row in rows}


def name_in(cell: str) -> str:
    """The name that a cell shows in code, or nothing."""
    found = re.search(r"`([^`]+)`", cell)
    return found[1] if found else ""


def test_the_glossary_of_results_is_the_table_of_the_code() -> None:
    shown = {
        name: (unit, meaning, *map(name_in, places))
        for name, (unit, meaning, *places) in tables("Other benchmarks").items()
    }
    coded = {
        word.name: (
            word.unit,
            word.meaning,
            *(word.places[one].path if one in word.places else "" for one in ("vllm", "aiperf", "guidellm")),
        )
        for word in WORDS
    }
    assert shown == coded
    units = {
        (name, column): re.search(r"` \((.+)\)", cell)
        for name, row in tables("Other benchmarks").items()
        for column, cell in zip(("vllm", "aiperf", "guidellm"), row[2:], strict=True)
    }
    for word in WORDS:
        for format_, place in word.places.items():
            found = units[word.name, format_]
            assert (found[1] if found else word.unit) == (f"/ {place.per}" if place.per else place.unit)


def test_the_glossary_of_servers_is_the_names_of_the_code() -> None:
    servers = ("vllm", "sglang", "llama.cpp", "tgi")
    shown = {
        (f"{server} {kind}", word, name)
        for word, row in tables("Servers").items()
        for server, cell in zip(servers, row[1:], strict=True)
        for name, kind in re.findall(r"`([^`]+)` \((page|body|info)\)", cell)
    }
    assert shown == {(source, word, name) for source, words in NAMES.items() for word, name in words.items()}


def test_words_that_rows_have_are_named_as_rows_name_them() -> None:
    ours = {word.name.partition(".")[0] for word in WORDS}
    assert {"ttft_ms", "tpot_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms", "e2e_s", "acceptance_rate"} <= ours & set(
        KEYS
    )
    assert "counters" in KEYS


def test_units_convert_there_and_back_and_never_into_another_kind() -> None:
    for ours in SCALES:
        for theirs in SCALES:
            there, back = unit_factor(ours, theirs), unit_factor(theirs, ours)
            assert (there is None) == (back is None)
            assert there is None or back is None or there * back == pytest.approx(1)
    for unit, count in {"ns": 10**9, "us": 10**6, "ms": 1000, "sec": 1, "s": 1}.items():
        assert unit_factor("s", unit) == count
        assert unit_factor("min", unit) == pytest.approx(60 * count)
    assert unit_factor("ratio", "%") == 100
    kinds = ("ns", "us", "ms", "sec", "s", "min"), ("%", "ratio"), ("tokens",), ("requests",)
    for one in kinds:
        for other in kinds:
            assert {(unit_factor(a, b) is None) for a in one for b in other} == {one != other}


ANSWERED = {"completed": 2, "total_output_tokens": 20}
RATES = "spec_decode_per_position_acceptance_rates"


@pytest.mark.parametrize(
    ("content", "name", "version"),
    [
        ({**ANSWERED, "label": "mine", "model_id": "a/b"}, "mine", None),
        ({**ANSWERED, "model_id": "a/b"}, "a/b", None),
        (ANSWERED, "vllm", None),
        ({"spec_decode_num_drafts": 3}, "vllm", None),
        ({"schema_version": "1.4", "request_count": {"avg": 2}, "run_info": {"run_label": "mine"}}, "mine", "1.4"),
        ({"schema_version": "1.4", "request_count": {"avg": 2}, "run_info": {}, "benchmark_id": "x"}, "x", "1.4"),
        ({"aiperf_version": "0.13", "request_count": {"avg": 2}, "run_info": "odd"}, "aiperf", None),
        ({"metadata": {"version": 2}, "benchmarks": [{"metrics": {}, "duration": 1.5}]}, "0", "2"),
        ({"metadata": "odd", "benchmarks": [{"metrics": {}, "duration": 1.5}]}, "0", None),
        ({"benchmarks": [{"metrics": {}, "duration": 1, "config": {"strategy": {"type_": "sweep"}}}]}, "0 sweep", None),
        ({"rows": [{"row": "mine", "ttft_ms": 1.0}]}, "mine", None),
        ({"rows": [{"ttft_ms": 1.0}]}, "0", None),
        ({"benchmarks": [{"name": "test_x", "extra_info": {"ttft_ms": 1.0}}]}, "test_x", None),
        ({"benchmarks": [{"extra_info": {"ttft_ms": 1.0}}]}, "0", None),
    ],
)
def test_a_run_has_the_name_that_its_file_says_or_one_of_its_format(
    content: dict[str, Any], name: str, version: str | None
) -> None:
    found = read_result(content)
    assert [run.name for run in found.runs] == [name]
    assert found.version == version


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_blanks_before_a_result_say_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(text + json.dumps(ANSWERED))
    assert read_file(file).runs[0].figures == {"requests": 2, "output_tokens": 20}
    file.write_text(f"{text}{json.dumps(ANSWERED)}\n\n{text}{json.dumps(ANSWERED)}\n")
    assert [run.name for run in read_file(file).runs] == ["vllm 1", "vllm 2"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {"x" * 100: 1},
            f"has {'x' * 80}; expected a result file of vLLM bench serve, AIPerf, GuideLLM, specdec-bench",
        ),
        ({}, "has nothing; expected"),
        ([], "has list; expected .*, or a server's /metrics page"),
        *(
            ({"benchmarks": odd}, "has benchmarks; expected a result file")
            for odd in ([], {}, {"a": 1}, 3, [3], [None])
        ),
        ({**ANSWERED, "spec_decode_num_drafts": 1, RATES: [1 + 1.5e-6]}, "gives no whole numbers"),
        ({**ANSWERED, "spec_decode_per_position_acceptance_rates": 0.5}, "holds shares of counters.num_drafts, which"),
        ({"rows": [{"acceptance_histogram": [1, 2]}]}, "acceptance_histogram is .1, 2.; expected a finite number"),
        (
            {"rows": [{"counters": {"num_accepted_tokens_per_pos": {"0": 1}}}]},
            "per_pos is .*; expected a finite number",
        ),
        ({"rows": [{"counters": {"num_accepted_tokens_per_pos": [1.5]}}]}, "per_pos is 1.5; expected a whole number"),
        ({"rows": [{"acceptance_histogram": {"0": 0.5}}]}, "histogram is 0.5; expected a whole number"),
        ({"rows": [{"requests": 1.5}]}, "requests is 1.5; expected a whole number"),
    ],
)
def test_what_cannot_be_read_is_told_with_what_was_expected(content: Any, says: str) -> None:
    with pytest.raises(SpecdecError, match=says):
        read_result(content)


@pytest.mark.parametrize("off", [0.0, 4e-7, 6e-7, 1e-4])
def test_shares_are_counts_up_to_the_rounding_of_the_program_that_wrote_them(off: float) -> None:
    """Three of seven; a share that was edited gives no whole number."""
    shares = {"spec_decode_num_drafts": 7, "spec_decode_per_position_acceptance_rates": [3 / 7 + off, 0.0]}
    if off == 1e-4:
        with pytest.raises(SpecdecError, match="gives no whole numbers: .*; was the file edited"):
            read_result(shares)
    else:
        assert read_result(shares).runs[0].figures["counters.num_accepted_tokens_per_pos"] == [3, 0]


def test_requests_that_are_kept_without_a_total_are_summed_without_a_note() -> None:
    content = raw("guidellm")
    del content["benchmarks"][0]["metrics"]["request_totals"]
    found = read_result(content)
    assert found.runs[0].figures["counters.num_drafts"] == 6 * 7
    assert not found.notes


def test_a_table_of_ours_keeps_the_order_of_runs_and_says_of_what_it_was_made() -> None:
    runs = ForeignRun("a", {"counters.num_drafts": 4, "ttft_ms": 1.5}, ("left.out",)), ForeignRun("b", {"e2e_s": 2.0})
    content, lost = write_result(ForeignFile("vllm", "9", runs, ("a note",)), "ours")
    assert lost == []
    assert content == {
        "rows": [{"row": "a", "counters": {"num_drafts": 4}, "ttft_ms": 1.5}, {"row": "b", "e2e_s": 2.0}],
        "converted": {"format": "vllm", "version": "9", "notes": ["a note"], "not_read": {"a": ["left.out"], "b": []}},
    }


@pytest.mark.parametrize("text", ['{"completed": }', '{\n"completed": 1,\n}\n', '{"completed": 1}\n[1]\n'])
def test_json_that_is_broken_is_told_by_its_place_in_the_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(SpecdecError, match=r"is no JSON \(.*line \d+ column \d+") as refused:
        read_file(file)
    assert "result 1" not in str(refused.value)


def test_a_word_has_a_place_in_each_format_that_keeps_it_with_its_unit_and_what_it_is_times_ours() -> None:
    made = placed_word("e2e_s", "s", "sent to last token", "median_ms ms", "latency.p50", "a.b min")
    assert (made.name, made.unit, made.meaning) == ("e2e_s", "s", "sent to last token")
    assert made.places == {
        "vllm": OwnPlace("median_ms", "ms", 1000, ""),
        "aiperf": OwnPlace("latency.p50", "s", 1, ""),
        "guidellm": OwnPlace("a.b", "min", 0.0166666666667, ""),
    }
    shares = placed_word("kept", "tokens", "kept", "rates /counters.num_drafts").places
    assert shares == {"vllm": OwnPlace("rates", "ratio", 1, "counters.num_drafts")}
    percent = placed_word("share", "ratio", "a share", aiperf="x.avg %").places
    assert percent == {"aiperf": OwnPlace("x.avg", "%", 100, "")}


def test_a_file_that_is_written_has_the_marks_of_its_format_and_the_units_of_its_metrics() -> None:
    figures = {"requests": 2, "ttft_ms": 1.5, "ttft_p90_ms": 2.5, "e2e_s": 0.5, "acceptance_rate": 0.25}
    found = ForeignFile("ours", None, (ForeignRun("a", {**figures, "acceptance_histogram": {"0": 1}}),))
    assert write_result(found, "aiperf") == (
        {
            "schema_version": "1.4",
            "request_count": {"unit": "requests", "avg": 2},
            "time_to_first_token": {"unit": "ms", "p50": 1.5, "p90": 2.5},
            "request_latency": {"unit": "ms", "p50": 500.0},
            "spec_decode_overall_draft_acceptance_rate": {"unit": "%", "avg": 25.0},
            "pooled_spec_decode_acceptance_histogram": {"0": 1},
        },
        [],
    )
    content, lost = write_result(found, "guidellm")
    assert lost == ["a: acceptance_rate = 0.25", "a: acceptance_histogram = {'0': 1}"]
    times = {"successful": {"median": 1.5, "percentiles": {"p90": 2.5}}}
    metrics = {"request_totals": {"successful": 2}, "time_to_first_token_ms": times}
    assert content == {
        "metadata": {"version": 2},
        "benchmarks": [
            {
                "type_": "generative_benchmark",
                "metrics": {**metrics, "request_latency": {"successful": {"median": 0.5}}},
            }
        ],
    }
    shares = ForeignRun("a", {"counters.num_accepted_tokens_per_pos": [1]})
    assert write_result(ForeignFile("ours", None, (shares,)), "vllm") == (
        {},
        ["a: counters.num_accepted_tokens_per_pos = [1]"],
    )
