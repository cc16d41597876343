"""Write the text and train the heads: ``python -m specdec_plugins.heads write``, ``… train`` and ``… export``.

    python -m specdec_plugins.heads write --corpus corpus
    python -m specdec_plugins.heads train eagle --corpus corpus --run eagle --out eagle.safetensors
    python -m specdec "Say hello." --draft "eagle(head=eagle.safetensors)"
    python -m specdec_plugins.heads export --head eagle.safetensors --out folder

The first two continue where they stopped if they are started again with the same folders.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from specdec import Registry, SpecdecError, catalog
from specdec.devices import pick_device
from specdec.errors import folded
from specdec.model import ArenaModel
from specdec_plugins.heads import corpus, exported, files, start, training
from specdec_plugins.heads.dflash_head import DFlashHead
from specdec_plugins.heads.eagle3_head import Eagle3Head
from specdec_plugins.heads.eagle_head import EagleHead
from specdec_plugins.heads.medusa_heads import MedusaHeads

SomeHead = TypeVar("SomeHead", bound=nn.Module)

STEPS = 3
"""Tokens that a head proposes in a step, unless another number is given."""

VOCABULARY = 8192
"""Tokens that a head knows, unless another number is given."""


def _count(text: str, least: int = 1) -> int:
    """A whole number from ``least`` on."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a whole number, {least} or more")
    return int(text)


def _share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a share, from 0 to 1, as 0.3")
    return number


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    whole = argparse.ArgumentParser("python -m specdec_plugins.heads", description=__doc__.partition("\n")[0])
    verbs = whole.add_subparsers(dest="verb", required=True)
    write = verbs.add_parser("write", help="let the target write the text that heads learn from")
    train = verbs.add_parser("train", help="train heads on such a text")
    export = verbs.add_parser("export", help="write an EAGLE head as a module for multi-token prediction")
    for verb in (write, train, export):
        verb.add_argument("--target", default="smollm2-135m", help="the target (default: %(default)s)")
        verb.add_argument("--device", default="auto", help="cuda, cpu (default: %(default)s)")
    export.add_argument("--head", default="trained", help="a head's file, or the shipped one (default: %(default)s)")
    export.add_argument("--out", type=Path, required=True, help="folder, in the form of the speculators package")
    export.set_defaults(dtype=None)
    for verb in (write, train):
        verb.add_argument("--corpus", type=Path, required=True, help="folder of the text")
        verb.add_argument(
            "--dtype",
            choices=("float32", "bfloat16"),
            help="of the target and its states (default: bfloat16, in training unless a processor must emulate it); "
            "measure both: on a Xeon without AMX, float32 trained 1.4 to 2.1 times as fast",
        )
    write.add_argument("--shards", type=_count, default=36, help="files of conversations (default: %(default)s)")
    write.add_argument(
        "--first",
        type=partial(_count, least=0),
        default=0,
        help="number of the first, each one's seed (default: %(default)s)",
    )
    write.add_argument("--rows", type=_count, default=192, help="conversations in a file (default: %(default)s)")
    write.add_argument("--length", type=_count, default=192, help="tokens in a conversation (default: %(default)s)")
    write.add_argument(
        "--layers",
        default="",
        help="layers whose outputs are kept for heads that read them, eagle3 and dflash, as 2-15-28 (default: none)",
    )
    _add_training(train)
    return whole


def _add_training(train: argparse.ArgumentParser) -> None:
    """Add the arguments of ``train`` alone."""
    train.add_argument("kind", choices=("dflash", "eagle", "eagle3", "medusa", "mtp"))
    train.add_argument("--run", type=Path, required=True, help="folder of checkpoint and log")
    train.add_argument(
        "--out",
        type=Path,
        required=True,
        help="the head's file; dflash, eagle3, mtp: its folder, in the form of the speculators package",
    )
    train.add_argument(
        "--begin",
        help="a head's file to begin with (eagle3: one of eagle), or trained: the shipped one; "
        "default: the target's parts, all that dflash and mtp begin with",
    )
    train.add_argument(
        "--beside",
        type=_share,
        default=0.0,
        help="share of the places outside of answers from which it learns too (default: %(default)s)",
    )
    train.add_argument("--epochs", type=int, default=7, help="(default: %(default)s)")
    train.add_argument(
        "--steps",
        type=_count,
        default=STEPS,
        help="eagle, eagle3, mtp: tokens fed to itself, plus 1 (default: %(default)s)",
    )
    train.add_argument("--heads", type=_count, default=4, help="medusa: how many (default: %(default)s)")
    train.add_argument("--wide", type=_count, default=576, help="medusa: a head's inner size (default: %(default)s)")
    train.add_argument("--block", type=_count, default=8, help="dflash: proposals, plus 1 (default: %(default)s)")
    train.add_argument("--deep", type=_count, default=2, help="dflash: its layers (default: %(default)s)")
    train.add_argument(
        "--batch",
        type=_count,
        default=12,
        help="conversations a step; dflash begins a block at each of their tokens, and needs the memory of as many "
        "conversations (default: %(default)s)",
    )
    train.add_argument("--rate", type=float, default=0.025, help="learning rate (default: %(default)s)")
    train.add_argument(
        "--vocabulary",
        type=_count,
        help=f"how many of the most frequent tokens (default: {VOCABULARY}, or with --begin that head's own; mtp: all)",
    )
    train.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")


def heads_main(arguments: list[str] | None = None) -> None:
    """Run one verb."""
    given = parser().parse_args(arguments)
    try:
        device = pick_device(given.device)
        dtype = getattr(torch, given.dtype) if given.dtype else None
        loaded = catalog.load(
            given.target, device, (dtype or torch.bfloat16) if given.verb == "write" else torch.float32
        )
        if given.verb == "export":
            head, _ = files.load_eagle(given.head, _read_by(loaded.model))
            exported.export_eagle(given.out, head, loaded.model, STEPS)
        elif given.verb == "write":
            target = ArenaModel(loaded.model, Registry().backend("auto"))
            corpus.write_corpus(
                given.corpus,
                target,
                loaded.tokenizer,
                given.shards,
                given.rows,
                given.length,
                corpus.layers_named(given.layers),
                given.first,
            )
        else:
            _train(given, loaded, dtype or products_dtype(device))
    except SpecdecError as error:
        sys.exit(folded(f"error: {error}"))


def _train(given: argparse.Namespace, loaded: catalog.Loaded, dtype: torch.dtype) -> None:
    """Train one kind of head; writes its file and, beside it, a log of the training."""
    model = loaded.model.requires_grad_(False)
    text = corpus.Corpus.read(given.corpus)
    head, ids = _begun(given, model, text)
    head = head.to(model.device)
    reader = training.Reader(model.get_output_embeddings().weight, ids.to(model.device), dtype)
    log = training.train(
        head,
        Registry().backend("reference"),
        reader,
        model.get_input_embeddings().weight.to(dtype),
        text,
        given.run,
        epochs=given.epochs,
        steps=head.shape.proposals if isinstance(head, DFlashHead) else given.steps,
        batch=given.batch,
        rate=given.rate,
        seed=given.seed,
        beside=given.beside,
    )
    out = given.out
    if isinstance(head, EagleHead | MedusaHeads):
        files.save(out, head, ids, model)
    else:
        if isinstance(head, Eagle3Head):
            exported.export_eagle3(out, head, ids, text.layers, model, given.steps)
        elif isinstance(head, DFlashHead):
            exported.export_dflash(out, head, ids, text.layers, model)
        else:
            exported.export_mtp(out, head, model, given.steps)
        out = out / "model.safetensors"
    made = {
        "arguments": {name: str(value) for name, value in vars(given).items()},
        "machine": f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {model.device}",
        "conversations": len(text.tokens),
        "tokens": text.tokens.numel(),
        "parameters": sum(p.numel() for p in head.parameters()),
        "epochs": log,
    }
    given.out.with_suffix(".json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{given.out}: {out.stat().st_size / 1e6:.1f} MB, held out {log[-1] if log else 'nothing'}")


def _begun(
    given: argparse.Namespace, model: PreTrainedModel, text: corpus.Corpus
) -> tuple[training.Head, torch.Tensor]:
    """The head with which training begins, and the ids of its vocabulary: those of the head's file, if
    one is given and ``--vocabulary`` is not."""
    ids = training.frequent(text.tokens, VOCABULARY if given.vocabulary is None else given.vocabulary)
    tokens = text.tokens[:4].to(model.device)
    if given.kind == "medusa":
        if given.begin:
            return _loaded(files.load_medusa, given, model, ids)
        return start.medusa(model, tokens, given.seed, given.heads, given.wide), ids
    if given.kind in ("dflash", "mtp"):
        if given.begin:
            raise SpecdecError(f"{given.kind} begins with the target's parts, got --begin {given.begin}; leave it out")
        if given.kind == "mtp":  # its form has no reduced vocabulary
            return start.mtp_start(model, tokens, given.seed), torch.arange(model.config.vocab_size)
        _refuse_without_layers(given, text, start.spread_layers(model.config.num_hidden_layers))
        mask = start.rarest(text.tokens, model.config.vocab_size)
        return start.dflash_start(model, len(text.layers), given.block, given.deep, mask), ids
    if given.kind == "eagle3":
        return _begun_eagle3(given, model, text, ids)
    if given.begin:
        return _loaded(files.load_eagle, given, model, ids)
    return start.eagle_start(model, tokens, given.seed), ids


def _loaded(
    load: Callable[[str, ArenaModel], tuple[SomeHead, torch.Tensor]],
    given: argparse.Namespace,
    model: PreTrainedModel,
    ids: torch.Tensor,
) -> tuple[SomeHead, torch.Tensor]:
    """The head of a file in float32, and the ids of its vocabulary or, if ``--vocabulary`` is given, ``ids``."""
    head, its_ids = load(given.begin, _read_by(model))
    return head.float().requires_grad_(True), its_ids if given.vocabulary is None else ids


def _begun_eagle3(
    given: argparse.Namespace, model: PreTrainedModel, text: corpus.Corpus, ids: torch.Tensor
) -> tuple[Eagle3Head, torch.Tensor]:
    """The same of eagle3, whose text has outputs of layers."""
    _refuse_without_layers(given, text, (2, 15, 29))
    if not given.begin:
        return start.eagle3_start(model, len(text.layers), ids, given.seed), ids
    eagle, ids = _loaded(files.load_eagle, given, model, ids)
    tokens = text.tokens[:4].to(model.device)
    # What the other head learnt is of its own tokens.
    embedded = F.embedding(tokens[:, 1:], model.get_input_embeddings().weight)
    hidden = training.final(text.hidden[:4]).to(embedded)[:, :-1]
    return start.eagle3_of_eagle(eagle, model, len(text.layers), ids, embedded, hidden, given.seed), ids


def _refuse_without_layers(given: argparse.Namespace, text: corpus.Corpus, usual: Sequence[int]) -> None:
    if not text.layers:
        raise SpecdecError(
            f"{given.kind} reads outputs of layers, and {given.corpus} was written without them; write another text "
            f"with `python -m specdec_plugins.heads write --layers {'-'.join(map(str, usual))}`"
        )


def _read_by(model: PreTrainedModel) -> ArenaModel:
    return ArenaModel(model, Registry().backend("reference"))


def products_dtype(device: torch.device) -> torch.dtype:
    """The dtype of the target's rows and states in training: bfloat16, unless a processor would have to emulate it.

    On one with AVX2 alone, products in bfloat16 took 30 times as long as those in float32 (docs/log.md).
    """
    emulated = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.float32 if emulated else torch.bfloat16


if __name__ == "__main__":
    heads_main()
