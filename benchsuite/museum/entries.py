"""The collection: bugs that shipped elsewhere and some of our own finding, each a mutant of our code.

``source`` is where it shipped; ``sentence`` what was wrong there, or with "analogue:" what stands for it where
we lack the part. ``layer`` is the one that must find it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from benchsuite.museum.edit import Edit
from specdec import Completion, SamplingParams


@dataclass(frozen=True)
class Mutant:
    """A bug: ``edits`` make our code wrong and ``layer`` must say so."""

    source: str
    sentence: str
    layer: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Control:
    """Odd, but lossless: no layer may find anything."""

    source: str
    sentence: str
    edits: tuple[Edit, ...]

    @property
    def of_a_table(self) -> bool:
        """Whether only ``TableDraft`` is changed, which no transformers model drafts with."""
        return bool(self.edits) and all(edit.where.startswith(TABLE) for edit in self.edits)


@dataclass(frozen=True)
class Waiting:
    """A bug of a part that we do not have yet; ``needs`` names the field that it will arrive with."""

    source: str
    sentence: str
    needs: str

    @property
    def arrived(self) -> bool:
        """Whether the part exists by now."""
        return self.needs in {field.name for kind in (SamplingParams, Completion) for field in fields(kind)}


def mutant(source: str, sentence: str, layer: str, *edits: tuple[str, str, str]) -> Mutant:
    """A mutant of edits given as (where, old, new)."""
    return Mutant(source, sentence, layer, tuple(Edit(*edit) for edit in edits))


def control(source: str, sentence: str, *edits: tuple[str, str, str]) -> Control:
    """A control of edits given as (where, old, new)."""
    return Control(source, sentence, tuple(Edit(*edit) for edit in edits))


CHAIN = "specdec_plugins.chain:Chain.propose"
REFERENCE = "specdec_kernels.reference:Reference"
COMMIT = "specdec.arena:Arena.commit"
DRAFT_MODEL = "specdec_plugins.drafts.draft_model:DraftModel"
STEP = "specdec.engine:Engine.step"
PROCESS = "context.process(logits, window.parents, window.tokens)"
GIVEN = f"given = logits.float() if self.policy.raw else {PROCESS}"
KEPT = "committed += verdict.num_accepted + 1"
POSITION = "position = context.length[:, None] + window.depth"

SHIPPED = (
    mutant(
        "transformers#32867", "the draft token is an argmax, its softmax is taken as q", "drafting",
        (CHAIN, 'token = context.propose_token(self._widened(processed, float("-inf")), position)',
         "token = processed.max(dim=-1).indices"),
    ),
    mutant(
        "transformers#47932", "drawn from processed logits, the raw law is returned as q", "drafting",
        (CHAIN, "self._widened(processed.softmax(dim=-1), 0.0)", "self._widened(logits.softmax(dim=-1), 0.0)"),
    ),
    mutant(
        "vllm#9834", "processors are not applied to the target's law in verification", "law",
        (STEP, GIVEN, "given = logits"),
    ),
    mutant(
        "vllm#42744, sglang#10617", "processors reach the bonus token only", "law",
        (STEP, GIVEN, f"given = torch.cat([logits[:, :-1], {PROCESS}[:, -1:]], dim=1)"),
    ),
    mutant(
        "vllm#47386", "the noise that picked the draft token draws again after its rejection", "streams",
        ("specdec_plugins.policies.rejection:Rejection.accept", "residual_key=key(stream, position, Purpose.RESIDUAL)",
         "residual_key=key(stream, position, Purpose.DRAFT, context.step)"),
    ),
    mutant(
        "vllm-ascend#2881", "the residual is the target's law without the draft token, not max(p - q, 0)", "law",
        (f"{REFERENCE}.rejection_sample", "residual = (at - taken).clamp(min=0)",
         "residual = at.scatter(1, proposals.gather(1, column), 0.0)"),
    ),
    mutant(
        "vllm-ascend#7807", "block verification uses the token-wise rule", "law",
        ("specdec_plugins.policies.block:Block.survival", "kept.append((kept[-1] * ratio[:, index]).clamp(max=1))",
         "kept.append(ratio[:, index].clamp(max=1))"),
    ),
    mutant(
        "DeepSpec#31", "tokens are drawn in bfloat16, q and p computed in float32", "power",
        ("specdec.messages:Context.choose", "self.ops.sample(logits, key)",
         "self.ops.sample(logits.bfloat16().to(logits.dtype), key)"),
    ),
    mutant(
        "vllm-ascend#13608", "what is drawn depends on how much was proposed", "equality",
        ("specdec_plugins.policies.match:Match.accept", POSITION, f"{POSITION} + window.tokens.shape[1]"),
    ),
    mutant(
        "sglang#36173", "top-p is taken of the law before top-k", "law",
        ("specdec.sampling:_filter",
         """ordered = ordered.masked_fill(ordered < floor, float("-inf"))
    law = ordered.softmax(dim=-1)""",
         """law = ordered.softmax(dim=-1)
    ordered = ordered.masked_fill(ordered < floor, float("-inf"))"""),
    ),
    mutant(
        "EAGLE#50", "sampled siblings are tried against a law that was not made one again", "law",
        ("specdec_plugins.policies.tree_rejection:TreeRejection.accept", "torch.where(mass > 0, rest / mass, left)",
         "torch.where(mass > 0, rest, left)"),
    ),
    mutant(
        "lattice#243", "the first proposal is kept without a look", "equality",
        (f"{REFERENCE}.verify_prefix", "good[:, 0] = True", "good[:, :2] = True"),
    ),
    mutant(
        "openvino.genai#4190", "the token after a rejection comes from the row after it", "law",
        (f"{REFERENCE}.rejection_sample",
         "at = law.gather(1, num_accepted[:, None, None].expand(-1, 1, law.shape[2]))[:, 0]",
         "at = law.gather(1, (num_accepted + 1).clamp(max=law.shape[1] - 1)[:, None, None]"
         ".expand(-1, 1, law.shape[2]))[:, 0]"),
    ),
    mutant(
        "vllm#9730", "a rejected proposal's keys and values stay in the draft's arena", "drafting",
        (f"{DRAFT_MODEL}.observe", "right = verdict.num_accepted.clamp(max=fed)",
         "right = torch.full_like(verdict.num_accepted, fed)"),
    ),
    mutant(
        "mlx-lm#1109", "rolling back does nothing: rejected proposals stay", "equality",
        (COMMIT, KEPT, "committed += verdict.path.shape[1]"),
    ),
    mutant(
        "mlx-swift-lm#424, mlx-lm#1427", "a ring too small for a window, which overwrites what it sees", "rollback",
        ("specdec.arena:Arena.__init__", "min(full, span + max_window - 1)", "min(full, max(span, max_window))"),
    ),
    mutant(
        "mlx-vlm#1155", "in a ragged batch every row advances as far as the luckiest", "equality",
        (COMMIT, KEPT, "committed += verdict.num_accepted.max() + 1"),
    ),
    mutant(
        "aprender#2014", "a rejection resets the row's length on the device alone", "equality",
        (COMMIT, KEPT,
         "committed.copy_(torch.where(verdict.num_accepted == 0, 1, committed + verdict.num_accepted + 1))"),
    ),
    mutant(
        "transformers#30042", "the position advances by one, however many were accepted", "equality",
        (COMMIT, KEPT, "committed += 1"),
    ),
    mutant(
        "vllm#39273", "analogue: a head continues the state of slot 0, not of the last slot kept", "drafting",
        ("specdec.messages:Verdict.last", "slot = self.path.gather(1, self.num_accepted[:, None])",
         "slot = torch.zeros_like(self.num_accepted[:, None])"),
    ),
    mutant(
        "llama.cpp#26695", "analogue: a reset reports success and leaves the row as it was", "rollback",
        ("specdec.arena:Arena.reset", "self.committed[row] = 0", "self.committed[row] += 0"),
    ),
    mutant(
        "sglang#25015", "the draft's positions are incremented before its forward", "drafting",
        (f"{DRAFT_MODEL}.propose",
         """logits, _ = self._forward(token, rows, longest + index)
                self._arena.committed[rows] += 1""",
         """self._arena.committed[rows] += 1
                logits, _ = self._forward(token, rows, longest + index)"""),
    ),
    mutant(
        "vllm#26498", "after full acceptance the draft's lengths are stale: only acceptance suffers", "drafting",
        (f"{DRAFT_MODEL}.observe", "self._behind = 2", "self._behind = 1"),
    ),
    mutant(
        "sglang#8409", "a drafted node sees the slot before it in place of its parent", "drafting",
        ("specdec_plugins.growth:Forest.window", "parents = torch.where(above < 0, -1, (same * slots).sum(dim=2))",
         "parents = torch.where(above < 0, -1, slots - 1)"),
    ),
    mutant(
        "speculators#897", "an additive mask of zeros and ones: 0 means attend", "rollback",
        ("specdec.arena:Arena._mask", 'mask.masked_fill_(~sees, float("-inf"))', "mask.masked_fill_(~sees, 1.0)"),
    ),
    mutant(
        "transformers#31301, #47912", "an end token inside an accepted block is missed", "stops",
        ("specdec.rows:Rows.absorb", "live.finish = live.watcher.feed(token)",
         "live.finish = live.watcher.feed(token) if index == len(emitted) - 1 else None"),
    ),
    mutant(
        "sglang#23802", "stop strings are looked for in too short a tail of the output", "stops",
        ("specdec.stops:StopWatcher.__init__", "4 * max(map(len, params.stop), default=0) + 4", "1"),
    ),
    mutant(
        "vllm#47616", "the output goes on past the stop to the end of its block", "stops",
        ("specdec.rows:Rows.absorb",
         """if live.finish:
                break""",
         """if live.finish and index == len(emitted) - 1:
                break"""),
    ),
    mutant(
        "vllm#42533", "proposals run past the budget of tokens", "stops",
        ("specdec.rows:Rows.context", "max_proposals=room.clamp(max=k)", "max_proposals=torch.full_like(room, k)"),
        ("specdec.rows:Rows.context", "room_host = self.limit_host[:b] - self.length_host[:b] - 1",
         "room_host = np.full(b, k)"),
    ),
    mutant(
        "EAGLE#95", "the acceptance length is that of the last step", "counters",
        ("specdec.stats:Stats.mean_acceptance_length",
         'return 1 + self.counts["num_accepted_tokens"] / drafts if drafts else None',
         "return 1 + self.steps[-1].accepted if drafts else None"),
    ),
)  # fmt: skip

OURS = (
    mutant(
        "ours", "the ratio is q/p in place of p/q", "law",
        (f"{REFERENCE}.rejection_sample", "torch.where(q > 0, p / q, 0.0)", "torch.where(q > 0, q / p, 0.0)"),
    ),
    mutant(
        "ours", "temperature is applied twice", "law",
        ("specdec.sampling:process", "warped = logits / scale", "warped = logits / scale / scale"),
    ),
    mutant(
        "ours", "a slot's position is its number, not its depth", "law",
        ("specdec.arena:Arena.plan", "position = committed[:, None] + depth",
         "position = committed[:, None] + torch.arange(width).expand_as(depth)"),
    ),
    mutant(
        "ours", "a slot sees its elder siblings", "law",
        ("specdec.arena:Arena._mask",
         """else:
            own = window.ancestors""",
         """else:
            own = torch.ones_like(window.ancestors).tril()"""),
    ),
    mutant(
        "ours", "an accepted branch is not moved to where it belongs", "law",
        (STEP, "compact=self.draft is not None and self.draft.branches", "compact=False"),
    ),
    mutant(
        "ours", "uniforms of eight bits: a coin of 0.999 never shows its other side", "power",
        ("specdec.sampling:uniform", "_shift(mix(key + _GOLDEN), 40).float() * 2.0**-24",
         "_shift(mix(key + _GOLDEN), 56).float() * 2.0**-8"),
    ),
    mutant(
        "ours", "every token of a draw gets the same noise", "power",
        ("specdec.sampling:gumbel", "(ids + 1) * _GOLDEN", "(ids * 0 + 1) * _GOLDEN"),
    ),
    mutant(
        "ours", "requests of one seed draw with the same noise", "streams",
        ("specdec.sampling:stream", "request * _GOLDEN", "request * 0"),
    ),
    mutant(
        "ours", "a greedy row beside sampled ones is sampled", "equality",
        ("specdec.sampling:process", "return torch.where(sampled[:, None, None], warped, _top_only(logits))",
         "return warped"),
    ),
    mutant(
        "ours", "a row that moves leaves its stream of noise behind", "equality",
        ("specdec.rows:Rows.move", "self.limit, self.stream, self.top_k", "self.limit, self.top_k"),
    ),
    mutant(
        "ours", "the prompt's last token is committed by prefill and again by the first step", "equality",
        ("specdec.model:ArenaModel.prefill", "[prompt[:-1]]", "[prompt]"),
    ),
    mutant(
        "ours", "what was accepted past a stop is counted", "stops",
        ("specdec.engine:Engine._absorb", "stats.accepted(min(accepted, kept))", "stats.accepted(accepted)"),
    ),
    mutant(
        "ours", "keys and values move to new storage in every step", "rollback",
        (COMMIT, KEPT, f"{KEPT}\n        self.keys = [keys.clone() for keys in self.keys]"),
    ),
    mutant(
        "ours", "a chain is compacted although its path lies where it belongs", "counters",
        (STEP, "compact=self.draft is not None and self.draft.branches", "compact=True"),
    ),
    mutant(
        "ours", "a step looks at the device a second time", "counters",
        (STEP, "packed = rows.extend(window, verdict)",
         "packed = rows.extend(window, verdict)\n        assert int(verdict.num_accepted.max()) < 99"),
    ),
    mutant(
        "ours", "forget() forgets nothing", "drafting",
        ("specdec_plugins.drafts.suffix:Suffix.forget", "self._shared = Automaton()", "self._fed += 0"),
    ),
    mutant(
        "ours", "the judge takes an arm's logits for granted, however far they lie from the model's", "ties",
        ("benchsuite.ties:Judge._judge", "> self.bound", "> 1e9"),
    ),
    mutant(
        "ours", "the judge does not ask whether a token follows from its own arm's logits", "ties",
        ("benchsuite.ties:Judge.bound", "min(measured, MOST_FLOAT32) if wide else measured", "1e9"),
    ),
)  # fmt: skip

MUTANTS = (*SHIPPED, *OURS)

TABLE = "benchsuite.tabular:TableDraft"
DRAWN = "tokens = context.propose_token(logits, position)"

CONTROLS = (
    control(
        "EAGLE#183, #110, #221", "siblings that were drawn are called certain and tried one after another",
        (f"{TABLE}.__init__", "law, shape, certain, lie or law", "law, shape, True, lie or law"),
    ),
    control(
        "z-lab/dflash#74", "a draft at temperature 0 under a target that samples",
        (f"{TABLE}.propose", DRAWN, "tokens = logits.max(dim=-1).indices"),
        (f"{TABLE}.propose", "q = None if self._certain else", "q = None if not self.branches else"),
    ),
    control(
        "vllm#16899", "argmax drafting with q one-hot: lower acceptance, the same law",
        (f"{TABLE}.propose", DRAWN, "tokens = logits.max(dim=-1).indices"),
        (f"{TABLE}.propose", "told[row].append(said)",
         "told[row].append(said if self.branches else [float(i == own.index(max(own))) for i in range(len(own))])"),
    ),
    control(
        "pegainfer#670", "a proposal is kept if the target's own draw equals it, under a policy that has a q",
        ("specdec_plugins.policies.rejection:Rejection.accept", POSITION,
         f"{POSITION}\n        return context.ops.verify_prefix("
         "window, context.choose(logits, position, Purpose.TARGET))"),
    ),
    control(
        "garbage", "uniform proposals whatever the text: q is exact and poor",
        (f"{TABLE}._without_elders", "for elder in range(1, slot):",
         "left = [1 / len(left)] * len(left)\n        for elder in range(1, slot):"),
    ),
    control(
        "nothing", "a draft that never proposes",
        (f"{TABLE}.propose", "size = 1 + min(int(context.max_proposals_host.max()), len(self._shape.parents) - 1)",
         "size = 1"),
        (f"{TABLE}.propose", "q = None if self._certain else", "q = None if size == 1 else"),
    ),
    control(
        "a tie", "logits of wide windows that differ in their last bits",
        ("specdec.model:ArenaModel.forward", "return out.logits, seen[0]",
         "return out.logits * (1 + 1e-7 * (window.tokens.shape[1] > 1)), seen[0]"),
    ),
)  # fmt: skip

WAITING = (
    Waiting("vllm#18902, TensorRT-LLM#17701", "penalties are silently ignored while speculating", "repetition_penalty"),
    Waiting("vllm#42744", "min-p reaches the bonus token only", "min_p"),
    Waiting("sglang#10617", "logit bias reaches the bonus token only", "logit_bias"),
    Waiting("llama.cpp#27972, vllm#17876, vllm#34497", "logprobs are 0.0 or wrong with speculation", "logprobs"),
)
