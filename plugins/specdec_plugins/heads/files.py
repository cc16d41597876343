"""Head files: a safetensors file with a head's weights, its vocabulary and the fingerprint of its target."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specdec import SpecdecError
from specdec.model import ArenaModel
from specdec_plugins.heads.eagle_head import EagleHead, EagleShape
from specdec_plugins.heads.medusa_heads import MedusaHeads
from specdec_plugins.heads.placed import placed

H = TypeVar("H", EagleHead, MedusaHeads)

SHIPPED = files(__package__) / "weights"


def fingerprint(model: nn.Module) -> str:
    """16 hex digits that identify a model: a hash of every vector parameter (norms, biases) in bfloat16.

    Matrices are left out, because a target in int8 is the same target; but if all vectors are constant, as in a model
    with random weights, all parameters are hashed.
    """
    named = sorted(model.named_parameters())
    vectors = [p for _, p in named if p.dim() == 1 and bool((p != p[0]).any())]
    digest = hashlib.sha256()
    for parameter in vectors or [p for _, p in named]:
        digest.update(parameter.detach().to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def save(path: Path, head: EagleHead | MedusaHeads, ids: Tensor, target: nn.Module) -> None:
    """Write a head for ``target`` in bfloat16; ``ids`` int64 [D] is its reduced vocabulary."""
    kind = "eagle" if isinstance(head, EagleHead) else "medusa"
    tensors = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in head.named_parameters()}
    metadata = {"kind": kind, "shape": json.dumps(head.describe()), "target": fingerprint(target)}
    save_file({**tensors, "ids": ids.to(torch.int32)}, path, metadata=metadata)


def load_eagle(name: str, target: ArenaModel) -> tuple[EagleHead, Tensor]:
    """The EAGLE head ``name`` ("trained": the shipped one for this target, or a file) and its vocabulary."""
    shape, tensors = _read("eagle", name, target)
    return _filled(EagleHead(EagleShape(**shape)), tensors, target)


def load_medusa(name: str, target: ArenaModel) -> tuple[MedusaHeads, Tensor]:
    """The Medusa heads ``name`` ("trained": the shipped ones for this target, or a file) and their vocabulary."""
    shape, tensors = _read("medusa", name, target)
    return _filled(MedusaHeads(**shape), tensors, target)


def shipped_folder(form: str, target: nn.Module) -> Path:
    """The folder of the shipped head of a published form, as eagle3, for this target; SpecdecError if there is none."""
    mark = fingerprint(target)
    for folder in sorted(Path(str(SHIPPED)).iterdir()):
        if not folder.is_dir() or json.loads((folder / "config.json").read_text())["speculators_model_type"] != form:
            continue
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            if file.metadata().get("target") == mark:
                return folder
    raise SpecdecError(
        f"no trained {form} head for this target is shipped; name the folder of one: {form}(head='path/to/head')"
    )


def _filled(head: H, tensors: dict[str, Tensor], target: ArenaModel) -> tuple[H, Tensor]:
    ids = tensors.pop("ids").long().to(target.device)
    head.load_state_dict(tensors, assign=True)
    return placed(head, target.device, target.dtype), ids


def _read(kind: str, name: str, target: ArenaModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    mark = fingerprint(target.model)
    if name == "trained":
        for entry in SHIPPED.iterdir():
            if entry.name.endswith(".safetensors"):
                with as_file(entry) as path:
                    metadata, tensors = _open(path)
                if (metadata.get("kind"), metadata.get("target")) == (kind, mark):
                    return json.loads(metadata["shape"]), tensors
        raise SpecdecError(
            f"no trained {kind} head for this target is shipped (smollm2-135m has one); train one with "
            f"`python -m specdec_plugins.heads --help` and give its file, or take the untrained form of {kind}"
        )
    metadata, tensors = _open(Path(name))
    if metadata.get("kind") != kind or "shape" not in metadata:
        raise SpecdecError(
            f"{name!r} holds {metadata.get('kind', 'something else')!r}; expected a head of kind {kind!r}"
        )
    if metadata.get("target") != mark:
        raise SpecdecError(
            f"the head {name!r} was trained for another target (its mark {metadata.get('target')}, this target's "
            f"{mark}); a head reads one target's hidden states: train one with `python -m specdec_plugins.heads`"
        )
    return json.loads(metadata["shape"]), tensors


def _open(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise SpecdecError(f"the head {str(path)!r} cannot be read: {error}; name a .safetensors file") from error
