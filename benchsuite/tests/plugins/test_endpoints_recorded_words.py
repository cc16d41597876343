"""Every name of a recorded server is read, or listed with the reason why it is not.

The recordings are of vLLM 0.32 on a CPU and of llama.cpp's server, build 11549, made by ``engines record`` and
``vllm bench serve``: pages of metrics, bodies of answers, a benchmark's file. ``chained`` is two kinds of drafts in a
chain. ``unread.toml`` beside them has what nobody reads.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from benchsuite.foreign.files import read_result
from specdec import DraftCounts
from specdec_plugins.endpoints import server_metrics
from specdec_plugins.endpoints.answers import OURS
from specdec_plugins.endpoints.exposition import read_samples
from specdec_plugins.endpoints.server_metrics import NAMES, Speculation

SERVERS = Path(__file__).parents[1] / "recorded" / "servers"
UNREAD: Mapping[str, Mapping[str, str]] = tomllib.loads((SERVERS / "unread.toml").read_text(encoding="utf-8"))
SOURCES = {"vllm": "vllm", "llama": "llama.cpp"}
RECORDINGS = sorted(path for path in SERVERS.iterdir() if path.suffix in (".txt", ".json"))


def recording_kind(recording: Path) -> str:
    """``vllm page``, ``llama.cpp body`` …: the section of ``unread.toml``, and the source in ``NAMES``."""
    return f"{SOURCES[recording.name.partition('-')[0]]} {recording.stem.rpartition('-')[2]}"


def names_below(found: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The paths of all values of a body that are the server's own words."""
    for name, value in found.items():
        if before or name not in OURS:
            yield from names_below(value, f"{before}{name}.") if isinstance(value, dict) else (before + name,)


def names_of(recording: Path) -> set[str]:
    """Every name of a recording; of a histogram and of a counter's beginning the name of what they are of."""
    text = recording.read_text(encoding="utf-8")
    if recording.suffix == ".json":
        body = json.loads(text)
        return set(body) if recording_kind(recording) == "vllm bench" else set(names_below(body))
    every = {sample.name for sample in read_samples(text)}
    parts = {
        name: name.removesuffix(end) for name in every for end in ("_created", "_sum", "_count") if name.endswith(end)
    }
    return {name.removesuffix("_total") for name in every} - set(parts) | {
        whole.removesuffix("_total") for whole in parts.values()
    }


def read_by_us(recording: Path) -> set[str]:
    """The names of a recording that are read."""
    kind = recording_kind(recording)
    if kind == "vllm bench":
        return names_of(recording) - {*read_result(json.loads(recording.read_text(encoding="utf-8"))).runs[0].left}
    if kind.endswith("page"):
        return {name.removesuffix("_total") for name in NAMES[kind].values()}
    return {".".join((*server_metrics.BODIES[kind], name)) for name in NAMES[kind].values()}


def left_over(names: set[str], kind: str) -> set[str]:
    """Those that ``unread.toml`` does not list."""
    listed = [pattern.removesuffix("_total") for pattern in UNREAD[kind]]
    return {name for name in names if not any(fnmatch(name, pattern) for pattern in listed)}


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_every_name_of_a_server_is_read_or_listed_as_unread(recording: Path) -> None:
    unread = names_of(recording) - read_by_us(recording)
    assert not left_over(unread, recording_kind(recording)), "read these, or say in unread.toml why nobody does"


def test_what_is_listed_as_unread_stands_in_a_recording_and_is_not_read() -> None:
    for kind, reasons in UNREAD.items():
        mine = [recording for recording in RECORDINGS if recording_kind(recording) == kind]
        for pattern, reason in reasons.items():
            met = {name for one in mine for name in names_of(one) if fnmatch(name, pattern.removesuffix("_total"))}
            assert met, f"{pattern} of {kind} stands in no recording"
            assert not met & {name for one in mine for name in read_by_us(one)}, f"{pattern} of {kind} is read"
            assert reason


def test_a_new_name_of_a_server_is_found() -> None:
    """The three kinds of recordings with one name more."""
    [page] = [one for one in RECORDINGS if one.name == "vllm-0.32-ngram-page.txt"]
    new = {"vllm:spec_decode_num_wasted_tokens"}
    assert left_over((names_of(page) | new) - read_by_us(page), "vllm page") == new
    assert left_over({"metrics.speculative_decoding.acceptance_histogram_by_draft_length"}, "vllm body")
    assert left_over({"timings.draft_n_wasted"}, "llama.cpp body")


def recorded_words(name: str) -> Speculation | None:
    """What a recording says of speculation."""
    text = (SERVERS / name).read_text(encoding="utf-8")
    return server_metrics.read_body(json.loads(text)) if name.endswith(".json") else server_metrics.read_page(text)


def test_recorded_words_have_the_counts_that_their_servers_made() -> None:
    found = {path.stem: said for path in RECORDINGS if "bench" not in path.name and (said := recorded_words(path.name))}
    assert {name: said.notes for name, said in found.items() if said.speculates} == {
        "llama-b11549-chained-body": (),
        "llama-b11549-chained-page": (),
        "vllm-0.32-ngram-body": (),
        "vllm-0.32-ngram-page": (),
    }
    assert found["vllm-0.32-ngram-body"].counts == DraftCounts.of_steps([(4, 4)] * 7)
    page = found["vllm-0.32-ngram-page"]
    assert page.counts == DraftCounts(2, 8, 4, (1, 1, 1, 1))
    chained = found["llama-b11549-chained-page"]
    assert (chained.drafts, chained.proposed, chained.accepted) == (76, 532, 439)
    assert chained.accepted_by_position[:4] == (76, 67, 66, 20)
    assert sum(chained.accepted_by_position) == 439
    request = found["llama-b11549-chained-body"]
    assert (request.drafts, request.acceptance_rate is not None) == (None, True)


def test_a_server_that_does_not_speculate_says_so_by_silence() -> None:
    plain = recorded_words("llama-b11549-plain-page.txt")
    assert plain is not None
    assert not plain.speculates
    assert recorded_words("llama-b11549-plain-body.json") is None
