"""Files of users with anything in them changed: each is read, or refused by a sentence; nothing else is raised."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchsuite.benches.serving.restarts import read_commands
from benchsuite.foreign.files import read_file, write_result
from benchsuite.foreign.glossary import FORMATS
from benchsuite.gate.record import GateError, Record
from benchsuite.measure.workloads import load_workload
from benchsuite.options import OPTIONS
from benchsuite.report.foreign import foreign_document
from benchsuite.report.renderers import markdown, terminal
from benchsuite.run.names import refuse_unknown_names
from benchsuite.run.request import KNOWN, RunRequest, texts_of
from benchsuite.run.sources import with_sources
from benchsuite.tests.changed_json import changed_json
from specdec import Registry, Request, SamplingParams, SpecdecError, catalog
from specdec.assembly import Assembly
from specdec.jobs import read_jobs
from specdec.model import ArenaModel
from specdec_plugins.endpoints.named import parse_endpoints

CPU = torch.device("cpu")

RECORDED = Path(__file__).parents[1] / "recorded"

RESULTS = {name: json.loads((RECORDED / f"{name}.json").read_text()) for name in ("aiperf", "guidellm", "vllm-bench")}

WORKLOAD = [
    {"question_id": 1, "category": "a", "turns": ["one", "two"]},
    {"question_id": 2, "category": "b", "messages": [{"role": "user", "content": "three"}]},
]

REQUESTS = [
    {"prompt": "one", "id": "x", "temperature": 0.5, "stop": ["a"], "bad_words": ["b", [1]], "logit_bias": {"3": 1.0}},
    {"prompt_ids": [1, 2], "seed": 3, "eos": [], "max_new_tokens": 4},
    {"messages": [{"role": "user", "content": "two"}], "top_p": 0.5, "logprobs": 2},
]

BASELINE = json.loads((Path(__file__).parents[3] / ".ci" / "gate.json").read_text())

FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    return tmp_path / "file.jsonl"


def lines(objects: list[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_result_files_of_other_benchmarks(data: st.DataObject, users_file: Path) -> None:
    name = data.draw(st.sampled_from([*RESULTS]))
    found = data.draw(changed_json(RESULTS[name], most=2))
    users_file.write_bytes(json.dumps(found).encode() if data.draw(st.booleans()) else lines([found, RESULTS[name]]))
    with contextlib.suppress(SpecdecError):
        read = read_file(users_file)
        for shown in (markdown(foreign_document(read)), "\n".join(terminal(foreign_document(read)))):
            shown.encode()
        for format_ in FORMATS:
            with contextlib.suppress(SpecdecError):  # a format that holds one run
                json.dumps(write_result(read, format_)[0], allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.slow
@FUZZ
@given(found=changed_json(WORKLOAD))
def test_workloads(found: list[Any], users_file: Path) -> None:
    users_file.write_bytes(lines(found))
    tokenizer = catalog.byte_tokenizer()
    with contextlib.suppress(SpecdecError):
        assert all(load_workload(str(users_file)).encode(tokenizer))


@pytest.mark.slow
@FUZZ
@given(found=changed_json(REQUESTS))
def test_files_of_requests(found: list[Any], users_file: Path) -> None:
    users_file.write_bytes(lines(found))
    with contextlib.suppress(SpecdecError):
        for job in read_jobs(users_file, SamplingParams(), {}):
            job.request((1, 2), (0,), catalog.byte_tokenizer())


@pytest.mark.slow
@FUZZ
@given(found=changed_json(BASELINE))
def test_baselines_of_the_gate(found: dict[str, Any], users_file: Path) -> None:
    users_file.write_bytes(json.dumps(found).encode())
    with contextlib.suppress(GateError):
        Record.load(users_file).save(users_file)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's files."""
    folder, loaded = tmp_path_factory.mktemp("model"), catalog.load("tiny", CPU, torch.float32)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@settings(FUZZ, max_examples=75)
@given(data=st.data())
def test_folders_of_models_whose_configs_are_changed_are_run_or_refused(
    data: st.DataObject, model_folder: Path
) -> None:
    name = data.draw(st.sampled_from(["config.json", "generation_config.json", "tokenizer_config.json"]))
    known = Registry()
    ops = known.backend()
    file, whole = model_folder / name, (model_folder / name).read_bytes()
    file.write_text(json.dumps(data.draw(changed_json(json.loads(whole), most=2))))
    try:
        with contextlib.suppress(SpecdecError):
            loaded = catalog.load(str(model_folder), CPU, torch.float32, rows=1, max_length=32)
            assembly = Assembly(known, ArenaModel(loaded.model, ops), loaded.tokenizer, max_rows=1, max_length=32)
            prompt = tuple(catalog.chat_ids(loaded.tokenizer, "hello"))[-8:] or (1,)
            params = SamplingParams(max_new_tokens=2, eos=catalog.end_tokens(loaded.model))
            [done] = assembly.engine("ngram", k=2).run([Request(0, prompt, params)])
            assert 1 <= len(done.tokens) <= 2
    finally:
        file.write_bytes(whole)


OPTION_TEXTS = [
    *("", " ", ",", "a", "1", "-1", "0", "1e400", "nan", "inf", "1,a", "a(b=", "a()/b", "a=b", "=", "(", "'", '"x'),
    *(
        "true",
        "off",
        "10min",
        "90s",
        "1e3",
        "٣",
        "\x00",
        "\ud83d",
        "http://x",
        "a=http://x#",
        "x:1",
        "~",
        "tiny",
        "[1]",
    ),
]


@pytest.mark.slow
@settings(FUZZ, max_examples=80)
@given(
    st.dictionaries(
        st.sampled_from([one.name for one in OPTIONS]), st.sampled_from(OPTION_TEXTS) | st.text(max_size=5), max_size=3
    )
)
def test_options_of_any_text(given_texts: dict[str, str]) -> None:
    with contextlib.suppress(SpecdecError, GateError):
        refuse_unknown_names(RunRequest.of(texts_of(given_texts)))


CONFIG = {
    "target": "tiny",
    "draft": ["ngram", "oracle(0.8)"],
    "batch": [1, 4],
    "temperature": 0.5,
    "exact": True,
    "graphs": "off",
    "timeout": "10min",
    "gate": "fail",
    "gate-tolerance": 0.05,
}


@pytest.mark.slow
@FUZZ
@given(found=changed_json(CONFIG))
def test_yaml_files_of_options(found: dict[str, Any], users_file: Path) -> None:
    users_file.write_bytes(yaml.safe_dump(found, allow_unicode=True).encode("utf-8", "surrogatepass"))
    with contextlib.suppress(SpecdecError, GateError, pytest.UsageError):
        RunRequest.of(with_sources(texts_of({"config": str(users_file)}), KNOWN))


STARTS = {"plain": "serve --port {port}", "spec": {"command": ["serve", "--port", "8001"], "env": {"A": "1"}}}


@pytest.mark.slow
@FUZZ
@given(found=changed_json(STARTS))
def test_yaml_files_of_servers(found: dict[str, Any], users_file: Path) -> None:
    users_file.write_bytes(yaml.safe_dump(found, allow_unicode=True).encode("utf-8", "surrogatepass"))
    with contextlib.suppress(SpecdecError):
        read_commands(users_file, parse_endpoints("plain=http://127.0.0.1:1,spec=http://127.0.0.1:2"))


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_a_byte_changed_anywhere(data: st.DataObject, users_file: Path) -> None:
    """Half a file, a byte of another encoding, a NUL: the same for every reader."""
    whole = bytearray(data.draw(st.sampled_from([lines(WORKLOAD), lines(REQUESTS), json.dumps(BASELINE).encode()])))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.sampled_from([0, 0x0A, 0x22, 0x5C, 0x7B, 0x80, 0xC3, 0xFF]))
    users_file.write_bytes(bytes(whole[: data.draw(st.integers(1, len(whole)))]))
    for read in (
        lambda: load_workload(str(users_file)),
        lambda: read_jobs(users_file, SamplingParams(), {}),
        lambda: read_file(users_file),
        lambda: Record.load(users_file),
    ):
        with contextlib.suppress(SpecdecError, GateError):
            read()
