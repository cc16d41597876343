"""Models in other engines' formats: converted once for the same weights, and kept in the cache folder."""

from __future__ import annotations

import copy
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from specdec import SpecdecError
from specdec.cache import cache_root


def converted_model(model: PreTrainedModel, tool: str, make: Callable[[PreTrainedModel, Path], None]) -> Path:
    """Return the folder into which ``make`` wrote the model, in ``SPECDEC_CACHE``; it is called if there is none yet.

    ``make`` gets the model in float32 on the CPU and the folder. The folder is named by ``tool`` (the converter and its
    version) and a digest of config and weights, so that other weights are another folder. A temporary folder is written
    and then renamed: the cache never holds a part of a model. Raises SpecdecError if the disk has too little room or
    cannot be written.

    Example: ``converted_model(env.model(), "openvino-2026.4.1", save_ir)``
    """
    ready = cache_root() / "converted" / f"{tool}-{_digest(model)}"
    if ready.exists():
        return ready
    if any(weight.dtype != torch.float32 or weight.device.type != "cpu" for weight in model.parameters()):
        model = copy.deepcopy(model).to(device="cpu", dtype=torch.float32)
    needed = 3 * sum(parameter.numel() * 4 for parameter in model.parameters())  # a copy to read, the result, slack
    try:
        ready.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(ready.parent).free
        if free < needed:
            raise SpecdecError(
                f"converting the model for {tool} needs {needed / 1e9:.1f} GB in {ready.parent} and {free / 1e9:.1f} "
                "GB are free; free some room, or set SPECDEC_CACHE to a folder on a larger disk"
            )
        print(f"specdec: converting the model for {tool} (once)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=ready.parent, prefix="making-") as work:
            made = Path(work) / "made"
            made.mkdir()
            make(model, made)
            made.replace(ready)
    except OSError as error:
        if not ready.exists():  # else another process finished first; its copy is as good
            raise SpecdecError(
                f"the model for {tool} could not be written to {ready}: {error}; check the disk, or set SPECDEC_CACHE"
            ) from error
    return ready


def _digest(model: PreTrainedModel) -> str:
    found = hashlib.sha256(model.config.to_json_string().encode())
    for name, weight in sorted(model.state_dict().items()):
        found.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        found.update(weight.detach().cpu().float().contiguous().numpy().data)
    return found.hexdigest()[:16]
