"""mtp: a model's own module for multi-token prediction, or one that others trained for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from specdec import Draft, SpecdecError, hookimpl
from specdec.arena import Plan
from specdec.interfaces import DraftFactory, Env
from specdec.model import ArenaModel
from specdec.running import running
from specdec.sharding import whole_weight
from specdec.threads import one_torch_thread
from specdec_plugins.feedback import FeedbackDraft, FeedbackHead, refuse_tree
from specdec_plugins.heads.mtp_head import MtpHead
from specdec_plugins.published import read_for
from specdec_plugins.published.mtp import FORM
from specdec_plugins.published.options import EmbeddingText, MostProposals, StatesText
from specdec_plugins.published.reading import Reading


class MtpSteps(FeedbackHead):
    """A module as ``FeedbackDraft`` asks it: its states are those from which it goes on, of all tokens."""

    ids = None

    def __init__(self, target: ArenaModel, head: MtpHead) -> None:
        head.place(target.device, target.dtype)
        embedding: Any = target.model.get_input_embeddings()
        self.size: int = embedding.weight.shape[1]
        if head.embedding is not None:
            embedding = nn.Embedding.from_pretrained(head.embedding)
        self._embed, self._before = embedding, head.before
        head.model.set_input_embeddings(embedding)
        head.model.config._experts_implementation = target.model.config._experts_implementation
        self._net = ArenaModel(head.model, target.ops, target.bits)
        self._base: Any = head.model.base_model
        self.layers, self.own_threads = self._net.layers, self._net.own_threads
        self._output: Any = target.model.get_output_embeddings()
        rows: Tensor = whole_weight(self._output)
        if head.output is not None and not torch.equal(head.output, rows):
            rows = head.output
            packed = target.ops.pack(rows)
            self._output = lambda state: target.ops.linear(state, packed, None)
        self.weight_bytes = self._net.weight_bytes - embedding.weight.nbytes + rows.nbytes

    def feature(self, hidden: Tensor) -> Tensor:
        """The target's states [B, W, H] or, of its last layer, [B, W, 1, H]."""
        return hidden.flatten(2)

    def step(self, tokens: Tensor, feature: Tensor, plan: Plan) -> Tensor:
        """See ``FeedbackHead``."""
        joined = self._base.entry(self._embed(tokens), feature)
        with one_torch_thread(self.own_threads), running(plan):
            out = self._base(inputs_embeds=joined, position_ids=plan.position, use_cache=False)
        state: Tensor = out.last_hidden_state
        return state if self._before else self._base.last(state)

    def logits(self, feature: Tensor) -> Tensor:
        """By the target's own head, unless the module has another, of the states after the last norm."""
        logits: Tensor = self._output(self._base.last(feature) if self._before else feature)
        return logits.float()


class Mtp(FeedbackDraft):
    """A module for multi-token prediction that drafts token after token (DeepSeek-V3, 2412.19437)."""

    def __init__(
        self, env: Env, head: str, reading: Reading, max_draft: int, beam: int, depth: int, least: float, leaves: int
    ) -> None:
        found = read_for(FORM, _folder(env) if head == "target" else head, env.target, reading)
        steps, before = MtpSteps(env.target, found.head), found.reading.final == "before"
        self.needs_hidden, self.hidden_layers = not before, (len(env.target.layers) - 1,) if before else ()
        super().__init__(env, steps, max_draft, beam, depth, least, leaves)
        self.small_ops = steps.own_threads


def _folder(env: Env) -> str:
    path: str = env.target.model.config.name_or_path
    if not path:
        raise SpecdecError("head=target reads the target's own checkpoint, and the target has no folder; name one")
    return path


def mtp(
    env: Env,
    head: Annotated[str, "target: the module in the target's own checkpoint; or a folder or file with one"] = "target",
    states: StatesText = "",
    final: Annotated[str, "before or after: which of the target's states it reads, by the target's last norm"] = "",
    order: Annotated[str, "embedding or state: which comes first in the joined input"] = "",
    embedding: EmbeddingText = "",
    max_draft: MostProposals = 0,
    beam: Annotated[int, "nodes expanded at each depth; 1 drafts a chain, more a tree"] = 1,
    depth: Annotated[int, "deepest proposals of a tree"] = 5,
    least: Annotated[float, "smallest probability, by the module, of a tree's node"] = 0.0,
    leaves: Annotated[int, "other tokens beside each proposal, which cost no forward of the module"] = 0,
) -> Draft:
    """The layer for multi-token prediction that a model was trained with, over the target's last states.

    It reads checkpoints of DeepSeek-V3 and GLM-4.5, of Qwen3-Next and Qwen3.5, of MiMo, and those of speculators. The
    layer is of the target's own kind; beyond its first proposal it reads its own states again.

    Source: DeepSeek-V3, 2412.19437, section 2.2; one module for all proposals, FastMTP, 2509.18362.

    Example: ``mtp(head=path/to/head, beam=4)`` with K = 16 verifies trees of 16 nodes.
    """
    refuse_tree("mtp", beam, depth, max_draft, least, leaves)
    reading = Reading.of(states=states, final=final, order=order, embedding=embedding)
    return Mtp(env, head, reading, max_draft, beam, depth, least, leaves)


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory | str], None]) -> None:
    """Register ``mtp``."""
    register("mtp", mtp)
