"""Pins of test_heads.py: tests that read what is private."""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchsuite.conformance.models.tiny import ask, requests
from benchsuite.tests.rig import Make, saved_head, slow_after
from specdec import Draft, Engine, Request, SamplingParams
from specdec.model import ArenaModel
from specdec_plugins.drafts.eagle import TrainedEagle
from specdec_plugins.feedback import FeedbackDraft, FeedbackHead
from specdec_plugins.reduced import Reduced


class WeightReads(TorchDispatchMode):
    """Adds up the bytes of ``weights`` that operations read; rows looked up in an embedding table are left out."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._storages = {weight.untyped_storage().data_ptr() for weight in weights}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; a result in the storage of a weight is a view of it, and reads nothing."""
        out = func(*args, **(kwargs or {}))
        results = {r.untyped_storage().data_ptr() for r in tree_leaves(out) if isinstance(r, Tensor)}
        if "embedding" not in func.name():
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in self._storages - results:
                    self.bytes += value.nbytes
        return out


def _weights(part: Any) -> list[Tensor]:
    """Every weight that a draft holds: parameters, rows of a vocabulary, and those of its parts."""
    if isinstance(part, torch.nn.Module):
        return [*part.parameters(), *(value for value in vars(part).values() if isinstance(value, Tensor))]
    if isinstance(part, Reduced):
        assert isinstance(part._rows, torch.Tensor), "packed weights are read where torch does not see it"
        return [part._rows]
    held = isinstance(part, Draft | ArenaModel | FeedbackHead)
    parts = part if isinstance(part, list) else vars(part).values() if held else []
    return [weight for inner in parts for weight in _weights(inner)]


def _read_in_decoding(engine: Engine, draft: Any) -> tuple[int, int]:
    """Run requests; the bytes of weights that a draft's calls in decoding read, and how often it read its tokens."""
    reading, calls = WeightReads(_weights(draft)), Counter[str]()

    def watched(name: str) -> Any:
        method = getattr(draft, name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            with reading:
                return method(*arguments)

        return call

    for name in ("propose", "observe", "release"):
        object.__setattr__(draft, name, watched(name))
    if isinstance(draft, FeedbackDraft):
        logits = draft._head.logits

        def counted(state: Tensor) -> Tensor:
            calls["logits"] += 1
            return logits(state)

        object.__setattr__(draft._head, "logits", counted)
    ask(engine, cycle([engine.max_window - 1, 0, 0]))
    engine.run(requests(SamplingParams(max_new_tokens=12), count=2))
    return reading.bytes, calls["logits"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "policy"),
    slow_after(
        2,
        [
            ("draft_model", "match"),
            ("tree(beam=2, depth=3)", "match"),
            ("medusa(head_init=tie)", "rejection"),
            ("medusa(head_init=copy)", "match"),
            ("medusa(head_init=random, beam=2)", "match"),
            ("medusa(num_heads=2, head_init={medusa!r})", "match"),
            ("eagle(head=lite)", "match"),
            ("eagle(head={eagle!r})", "rejection"),
            ("eagle(head={eagle!r}, beam=2, depth=3)", "match"),
            ("hybrid(sources='ngram(n_min=1), eagle(head={eagle})')", "match"),
        ],
    ),
)
def test_a_draft_reads_in_each_forward_the_bytes_that_it_declares(
    text: str, policy: str, assemble: Make, tmp_path: Path
) -> None:
    """Counted weight by weight in every operation: ``draft_forwards`` x ``weight_bytes``, prefill excluded.

    The entries of steps in which EAGLE is not asked take its layer alone, which reads no vocabulary. The family has
    one matrix as embedding and head, so that the model of ``draft_model`` has no table of which only rows are read.
    """
    build = assemble("smollm2", max_rows=2, backend="reference")
    heads = {kind: saved_head(kind, build, tmp_path) for kind in ("eagle", "medusa")}
    engine = build.engine(text.format(**heads), policy, k=4)
    assert engine.draft is not None
    model = vars(engine.draft).get("_rest", [engine.draft])[0]  # of a hybrid, the source that is no lookup
    read, readings = _read_in_decoding(engine, model)
    if isinstance(model, FeedbackDraft):
        assert isinstance(model._head, TrainedEagle)
        alone = engine.stats.counts["draft_forwards"] - readings
        assert alone > 0, "no steps without proposals were caught up with"
        read += alone * model._head._reduced.weight_bytes
    assert read == engine.stats.counts["draft_forwards"] * engine.draft.weight_bytes > 0


@pytest.mark.slow
def test_a_request_begins_without_the_estimate_of_the_one_that_had_its_row(tmp_path: Path, assemble: Make) -> None:
    """A prompt of one token has no hidden state of its own: it begins from zeros."""
    build = assemble(max_rows=1)
    engine = build.engine(f"eagle(head={saved_head('eagle', build, tmp_path)!r})", k=2)
    engine.run(requests())
    draft: Any = engine.draft
    assert draft._state.any()
    draft.admit(0, Request(9, (5,)), (5,))
    assert not draft._state.any()
