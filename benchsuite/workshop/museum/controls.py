"""Controls: unusual but lossless changes, in which no layer may find anything."""

from __future__ import annotations

from benchsuite.workshop.museum.entries import control
from benchsuite.workshop.museum.places import POSITION, TABLE

DRAWN = "tokens = context.propose_token(logits, position)"
LIKELIEST = f"{DRAWN} if self.branches else logits.max(dim=-1).indices"

CONTROLS = (
    control(
        "EAGLE#183, #110, #221",
        "drawn siblings are declared certain and tried one after another",
        (f"{TABLE}.__init__", "distribution, shape, certain", "distribution, shape, True"),
    ),
    control(
        "z-lab/dflash#74",
        "a draft at temperature 0 under a target that samples",
        (f"{TABLE}.propose", DRAWN, LIKELIEST),
        (f"{TABLE}.propose", "q = None if self._certain else", "q = None if not self.branches else"),
    ),
    control(
        "vllm#16899",
        "argmax drafting with q one-hot: lower acceptance, the same distribution",
        (f"{TABLE}.propose", DRAWN, LIKELIEST),
        (
            f"{TABLE}.propose",
            "drawn_from[row].append(own)",
            "drawn_from[row].append("
            "own if self.branches else [float(i == own.index(max(own))) for i in range(len(own))])",
        ),
    ),
    control(
        "pegainfer#670",
        "a proposal is kept if the target's own draw equals it, under a policy that uses q",
        (
            "specdec_plugins.policies.rejection:Rejection.accept",
            POSITION,
            f"{POSITION}\n        return context.ops.verify_prefix("
            "window, context.choose(logits, position, Purpose.TARGET))",
        ),
    ),
    control(
        "garbage",
        "proposals are uniform for every text: q is correct but far from p",
        (
            f"{TABLE}.propose",
            "own = self.shape.without_elders(distribution,",
            "own = self.shape.without_elders([1 / len(distribution)] * len(distribution),",
        ),
    ),
    control(
        "what goes on",
        "what goes on behind a chain is left out, as if nothing had been found",
        ("specdec_plugins.joining:continued", "torch.minimum(count,", "torch.minimum(count * 0,"),
    ),
    control(
        "nothing",
        "a draft that never proposes",
        (
            f"{TABLE}.propose",
            "size = 1 + min(int(context.max_proposals_host.max()), len(self.shape.parents) - 1)",
            "size = 1",
        ),
        (f"{TABLE}.propose", "q = None if self._certain else", "q = None if size == 1 else"),
    ),
    control(
        "a tie",
        "the logits of wide windows differ in their last bits",
        (
            "specdec.model:ArenaModel.forward",
            "return out.logits, taps",
            "return out.logits * (1 + 1e-7 * (window.tokens.shape[1] > 1)), taps",
        ),
    ),
    control(
        "vllm#46104",
        "a block's masks have another embedding than that of their token: other proposals, and the same output",
        (
            "specdec_plugins.drafts.dflash:PublishedBlock.window",
            "embeds = self._target_embeds(block) if head.embedding is None else F.embedding(block, head.embedding)",
            "embeds = self._target_embeds(block) * 2 if head.embedding is None else F.embedding(block, head.embedding)",
        ),
    ),
)
