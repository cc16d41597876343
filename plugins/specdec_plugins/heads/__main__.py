"""Write the text and train the heads: ``python -m specdec_plugins.heads write`` and ``… train``.

    python -m specdec_plugins.heads write --corpus corpus
    python -m specdec_plugins.heads train eagle --corpus corpus --run eagle --out eagle.safetensors
    python -m specdec "Say hello." --draft "eagle(head=eagle.safetensors)"

Both commands continue where they stopped if they are started again with the same folders.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

import torch

from specdec import Registry, SpecdecError, catalog
from specdec.devices import pick_device
from specdec.model import ArenaModel
from specdec_plugins.heads import corpus, files, start, training


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    whole = argparse.ArgumentParser("python -m specdec_plugins.heads", description=__doc__.partition("\n")[0])
    verbs = whole.add_subparsers(dest="verb", required=True)
    write = verbs.add_parser("write", help="let the target write the text that heads learn from")
    train = verbs.add_parser("train", help="train heads on such a text")
    for verb in (write, train):
        verb.add_argument("--target", default="smollm2-135m", help="the target (default: %(default)s)")
        verb.add_argument("--device", default="auto", help="cuda, cpu (default: %(default)s)")
        verb.add_argument("--corpus", type=Path, required=True, help="folder of the text")
    write.add_argument("--shards", type=int, default=36, help="files of conversations (default: %(default)s)")
    write.add_argument("--rows", type=int, default=192, help="conversations in a file (default: %(default)s)")
    write.add_argument("--length", type=int, default=192, help="tokens in a conversation (default: %(default)s)")
    train.add_argument("kind", choices=("eagle", "medusa"))
    train.add_argument("--run", type=Path, required=True, help="folder of checkpoint and log")
    train.add_argument("--out", type=Path, required=True, help="the head's file")
    train.add_argument(
        "--begin", help="a head's file to begin with, or trained: the shipped one; default: the target's parts"
    )
    train.add_argument("--epochs", type=int, default=7, help="(default: %(default)s)")
    train.add_argument(
        "--steps", type=int, default=3, help="eagle: tokens fed to itself, plus 1 (default: %(default)s)"
    )
    train.add_argument("--heads", type=int, default=4, help="medusa: how many (default: %(default)s)")
    train.add_argument("--wide", type=int, default=576, help="medusa: a head's inner size (default: %(default)s)")
    train.add_argument("--batch", type=int, default=12, help="conversations a step (default: %(default)s)")
    train.add_argument("--rate", type=float, default=0.025, help="learning rate (default: %(default)s)")
    train.add_argument("--vocabulary", type=int, default=8192, help="the most frequent tokens (default: %(default)s)")
    train.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    return whole


def heads_main(arguments: list[str] | None = None) -> None:
    """Run one verb."""
    given = parser().parse_args(arguments)
    try:
        device = pick_device(given.device)
        loaded = catalog.load(given.target, device, torch.bfloat16 if given.verb == "write" else torch.float32)
        if given.verb == "write":
            target = ArenaModel(loaded.model, Registry().backend("auto"))
            corpus.write_corpus(given.corpus, target, loaded.tokenizer, given.shards, given.rows, given.length)
        else:
            _train(given, loaded)
    except SpecdecError as error:
        sys.exit(f"error: {error}")


def _train(given: argparse.Namespace, loaded: catalog.Loaded) -> None:
    """Train one kind of head; writes its file and, beside it, a log of the training."""
    model = loaded.model.requires_grad_(False)
    text = corpus.Corpus.read(given.corpus)
    ids = training.frequent(text.tokens, given.vocabulary)
    head: training.Head
    if given.begin:
        load = files.load_eagle if given.kind == "eagle" else files.load_medusa
        head, _ = load(given.begin, ArenaModel(model, Registry().backend("reference")))
        head.requires_grad_(True)
    elif given.kind == "eagle":
        head = start.eagle_start(model, text.tokens[:4].to(model.device), given.seed)
    else:
        head = start.medusa(model, text.tokens[:4].to(model.device), given.seed, given.heads, given.wide)
    head = head.to(model.device)
    reader = training.Reader(model.get_output_embeddings().weight, ids.to(model.device), torch.bfloat16)
    log = training.train(
        head,
        Registry().backend("reference"),
        reader,
        model.get_input_embeddings().weight.to(torch.bfloat16),
        text,
        given.run,
        epochs=given.epochs,
        steps=given.steps,
        batch=given.batch,
        rate=given.rate,
        seed=given.seed,
    )
    files.save(given.out, head, ids, model)
    made = {
        "arguments": {name: str(value) for name, value in vars(given).items()},
        "machine": f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {model.device}",
        "conversations": len(text.tokens),
        "tokens": text.tokens.numel(),
        "parameters": sum(p.numel() for p in head.parameters()),
        "epochs": log,
    }
    given.out.with_suffix(".json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.1f} MB, held out {log[-1] if log else 'nothing'}")


if __name__ == "__main__":
    heads_main()
