"""Bugs that shipped in other engines, each as a mutant of our code."""

from __future__ import annotations

from benchsuite.workshop.museum.entries import mutant
from benchsuite.workshop.museum.places import (
    ADJUSTED,
    BLOCK_HEAD,
    BLOCKS,
    CHAIN,
    COMMIT,
    DRAFT_MODEL,
    FILTER,
    GIVEN,
    JUDGE,
    KEPT,
    MODULE,
    PACK,
    POSITION,
    PROCESS,
    REFERENCE,
)

SHIPPED = (
    mutant(
        "transformers#32867",
        "the draft token is the argmax, but the softmax is returned as q",
        "drafting",
        (
            CHAIN,
            "token = context.propose_token(processed, position)",
            "token = processed.max(dim=-1).indices",
        ),
    ),
    mutant(
        "transformers#47932",
        "tokens are drawn from processed logits, but the raw softmax is returned as q",
        "drafting",
        (CHAIN, "append(processed.softmax(dim=-1))", "append(logits.softmax(dim=-1))"),
    ),
    mutant(
        "vllm#9834",
        "processors are not applied to the target's distribution in verification",
        "distribution",
        (JUDGE, GIVEN, "given = logits"),
    ),
    mutant(
        "vllm#42744, sglang#10617",
        "processors are applied to the bonus token only",
        "distribution",
        (JUDGE, GIVEN, f"given = torch.cat([logits[:, :-1], {PROCESS}[:, -1:]], dim=1)"),
    ),
    mutant(
        "vllm#47386",
        "the noise that drew the draft token is used again after its rejection",
        "distribution",
        (
            "specdec_plugins.policies.rejection:Rejection.accept",
            "residual_key=keys[Purpose.RESIDUAL]",
            "residual_key=context.ops.noise_keys(context.params.stream, position, context.step)[Purpose.DRAFT]",
        ),
    ),
    mutant(
        "vllm#6038",
        "a request's seed is ignored where its proposals are rejected",
        "streams",
        (
            "specdec_plugins.policies.rejection:Rejection.accept",
            "noise_keys(context.params.stream, position, 0)",
            "noise_keys(context.request, position, 0)",
        ),
    ),
    mutant(
        "vllm-ascend#2881",
        "the residual is the target's distribution without the draft token, not max(p - q, 0)",
        "distribution",
        (
            f"{REFERENCE}.rejection_sample",
            "residual = (at - taken).clamp(min=0)",
            "residual = at.scatter(1, proposals.gather(1, column), 0.0)",
        ),
    ),
    mutant(
        "vllm-ascend#7807",
        "block verification uses the token-wise rule",
        "distribution",
        (
            "specdec.acceptance:survival",
            "kept.append((kept[-1] * ratio[:, index]).clamp(max=1))",
            "kept.append(ratio[:, index].clamp(max=1))",
        ),
    ),
    mutant(
        "vllm#41834",
        "where q is NaN the residual is empty, and a proposal that is to be rejected is emitted",
        "distribution",
        ("specdec.acceptance:stopping", "finite(window.q)", "window.q"),
    ),
    mutant(
        "DeepSpec#31",
        "tokens are drawn in bfloat16, but q and p are computed in float32",
        "power",
        (
            "specdec.messages:Context.choose",
            "self.ops.sample(logits, key)",
            "self.ops.sample(logits.bfloat16().to(logits.dtype), key)",
        ),
    ),
    mutant(
        "vllm-ascend#13608",
        "the target's draw depends on the number of proposals",
        "equality",
        ("specdec_plugins.policies.match:Match.accept", POSITION, f"{POSITION} + window.tokens.shape[1]"),
    ),
    mutant(
        "sglang#36173",
        "top-p uses the distribution before top-k",
        "distribution",
        (
            FILTER,
            """ordered = ordered.masked_fill(ordered < floor, NEVER)
    distribution = ordered.softmax(dim=-1)""",
            """distribution = ordered.softmax(dim=-1)
    ordered = ordered.masked_fill(ordered < floor, NEVER)""",
        ),
    ),
    mutant(
        "EAGLE#50",
        "sampled siblings are tried against a residual that is not normalised",
        "distribution",
        (
            "specdec.acceptance:tree_verdict",
            "torch.where(mass > 0, rest / mass, left)",
            "torch.where(mass > 0, rest, left)",
        ),
    ),
    mutant(
        "lattice#243",
        "the first proposal is always kept",
        "equality",
        (f"{REFERENCE}.verify_prefix", "good[:, 0] = True", "good[:, :2] = True"),
    ),
    mutant(
        "openvino.genai#4190",
        "the token after a rejection is drawn from the next slot's distribution",
        "distribution",
        (
            f"{REFERENCE}.rejection_sample",
            "at = distribution.gather(1, num_accepted[:, None, None].expand(-1, 1, distribution.shape[2]))[:, 0]",
            "at = distribution.gather(1, (num_accepted + 1).clamp(max=distribution.shape[1] - 1)[:, None, None]"
            ".expand(-1, 1, distribution.shape[2]))[:, 0]",
        ),
    ),
    mutant(
        "vllm#9730",
        "a rejected proposal's keys and values stay in the draft's arena",
        "drafting",
        (
            f"{DRAFT_MODEL}._rolled_back",
            "committed += right.clamp(max=fed) - fed",
            "committed += right - right",
        ),
    ),
    mutant(
        "mlx-lm#1109",
        "rolling back does nothing: rejected proposals stay",
        "equality",
        (COMMIT, KEPT, "committed += verdict.path.shape[1]"),
    ),
    mutant(
        "mlx-swift-lm#424, mlx-lm#1427",
        "the ring is too small: a window overwrites cells that it sees",
        "rollback",
        ("specdec.arena:Arena.__init__", "min(full, span + max_window - 1)", "min(full, max(span, max_window))"),
    ),
    mutant(
        "mlx-vlm#1155",
        "in a ragged batch every row advances by the largest number of accepted tokens",
        "equality",
        (COMMIT, KEPT, "committed += verdict.num_accepted.max() + 1"),
    ),
    mutant(
        "aprender#2014",
        "a rejection resets the row's length, on the device only",
        "equality",
        (
            COMMIT,
            KEPT,
            "committed.copy_(torch.where(verdict.num_accepted == 0, 1, committed + verdict.num_accepted + 1))",
        ),
    ),
    mutant(
        "transformers#30042",
        "the position advances by one for any number of accepted tokens",
        "equality",
        (COMMIT, KEPT, "committed += 1"),
    ),
    mutant(
        "vllm#39273",
        "analogue: a head continues from the state of slot 0, not of the last kept slot",
        "drafting",
        (
            "specdec.messages:Verdict.last",
            "slot = self.path.gather(1, self.num_accepted[:, None])",
            "slot = torch.zeros_like(self.num_accepted[:, None])",
        ),
    ),
    mutant(
        "llama.cpp#26695",
        "analogue: a reset reports success but leaves the row unchanged",
        "rollback",
        ("specdec.arena:Arena.reset", "self.committed[row].fill_(0)", "self.committed[row].add_(0)"),
    ),
    mutant(
        "vllm#39273",
        "a recurrent layer goes on from the state of slot 0 after proposals were accepted",
        "rollback",
        (
            "specdec.recurrent:WindowStates.run",
            "self._rings.write(key, self._rows, target, state)",
            "[self._rings.write(key, self._rows, after, state) for after in self._targets if self.slot == 0]",
        ),
    ),
    mutant(
        "llama.cpp#26695",
        "a decode is undone and its recurrent state stays",
        "rollback",
        ("specdec.states:StateRings.read", "count % self._places", "count * 0"),
        ("specdec.states:StateRings.write", "count % self._places", "count * 0"),
    ),
    mutant(
        "sglang#25015",
        "the draft's positions are incremented before its forward",
        "drafting",
        (
            f"{DRAFT_MODEL}._drafted",
            """logits = self._forward(known_text(token), rows, longest + index)
                self._arena.committed[rows] += 1""",
            """self._arena.committed[rows] += 1
                logits = self._forward(known_text(token), rows, longest + index)""",
        ),
    ),
    mutant(
        "vllm#26498",
        "the draft's lengths are stale after full acceptance: only the acceptance rate falls",
        "drafting",
        (f"{DRAFT_MODEL}.observe", "self._behind = 2", "self._behind = 1"),
    ),
    mutant(
        "sglang#8409",
        "a drafted node sees the previous slot instead of its parent",
        "drafting",
        (
            "specdec_plugins.growth:Forest.window",
            "parents = torch.where(above < 0, -1, (same * slots).sum(dim=2))",
            "parents = torch.where(above < 0, -1, slots - 1)",
        ),
    ),
    mutant(
        "speculators#897",
        "an additive mask has zeros and ones, where 0 means attend",
        "rollback",
        (f"{REFERENCE}.kv_plan", 'mask.masked_fill_(~sees, float("-inf"))', "mask.masked_fill_(~sees, 1.0)"),
    ),
    mutant(
        "transformers#31301, #47912",
        "an end token inside an accepted block is missed",
        "stops",
        (
            "specdec.rows:Rows.absorb",
            "live.finish = live.watcher.feed(token)",
            "live.finish = live.watcher.feed(token) if index == len(emitted) - 1 else None",
        ),
    ),
    mutant(
        "sglang#23802",
        "stop strings are searched in a tail of the output that is too short",
        "stops",
        ("specdec.stops:StopWatcher.__init__", "4 * max(map(len, params.stop), default=0) + 4", "1"),
    ),
    mutant(
        "vllm#47616",
        "the output continues past the stop to the end of its block",
        "stops",
        (
            "specdec.rows:Rows.absorb",
            """if live.finish:
                break""",
            """if live.finish and index == len(emitted) - 1:
                break""",
        ),
    ),
    mutant(
        "vllm#42533",
        "proposals exceed the token budget",
        "stops",
        ("specdec.rows:Rows.context", "room.clamp_(max=k)", "room.fill_(k)"),
        (
            "specdec.rows:Rows.context",
            "room_host = self.limit_host[:b] - self.length_host[:b] - 1",
            "room_host = np.full(b, k)",
        ),
    ),
    mutant(
        "EAGLE#95",
        "the acceptance length is that of the last step",
        "counters",
        (
            "specdec.stats:Stats.mean_acceptance_length",
            'return 1 + self.counts["num_accepted_tokens"] / drafts if drafts else None',
            "return 1 + self.steps[-1].accepted if drafts else None",
        ),
    ),
    mutant(
        "vllm#18902, TensorRT-LLM#17701",
        "penalties are silently ignored while speculating",
        "distribution",
        (
            ADJUSTED,
            "if adjustments.penalties is not None:",
            "if adjustments.penalties is not None and not paths.shape[2]:",
        ),
    ),
    mutant(
        "vllm#42744",
        "min-p is applied to the bonus token only",
        "distribution",
        (
            FILTER,
            "(distribution < min_p * distribution[..., :1])",
            "(distribution < min_p * distribution[..., :1])"
            " & (torch.arange(logits.shape[1]) == logits.shape[1] - 1)[:, None]",
        ),
    ),
    mutant(
        "sglang#10617",
        "logit bias is applied to the bonus token only",
        "distribution",
        (
            ADJUSTED,
            "logits + adjustments.bias[:, None]",
            "logits + adjustments.bias[:, None] * (torch.arange(logits.shape[1]) == logits.shape[1] - 1)[:, None]",
        ),
    ),
    mutant(
        "llama.cpp#27972",
        "a greedy token's logprob is that of the one-hot distribution: always 0.0",
        "logprobs",
        (PACK, "context.params.ungreedy()", "context.params"),
    ),
    mutant(
        "vllm#17876, vllm#34497",
        "logprobs are wrong with speculation: all of a window are those of its first slot",
        "logprobs",
        (PACK, "verdict.path.clamp(min=0)", "(verdict.path * 0)"),
    ),
    mutant(
        "vllm#45895, ROCm/ATOM#1764",
        "a module for multi-token prediction goes on from its states before its last norm",
        "drafting",
        (f"{MODULE}.step", "state if self._before else self._base.last(state)", "state"),
        (f"{MODULE}.logits", "self._base.last(feature) if self._before else feature", "self._base.last(feature)"),
    ),
    mutant(
        "LightLLM#1402",
        "a module for multi-token prediction reads the target's states before its last norm",
        "drafting",
        ("specdec_plugins.published.mtp:read", 'reading.final, [("after", rule)]', 'reading.final, [("before", rule)]'),
    ),
    mutant(
        "mlx-vlm#2096",
        "a draft that reads hidden states sees those of a prompt's last chunk alone",
        "drafting",
        (
            "specdec_plugins.drafts.eagle_lite:EagleLite.prefilled",
            "torch.cat([self._last[row : row + 1], hidden[0]])",
            "torch.cat([torch.zeros_like(self._last[row : row + 1]), hidden[0]])",
        ),
    ),
    mutant(
        "vllm-ascend#5445",
        "a prompt's last chunk of one token is taken for a step of decoding; analogue: it is not read",
        "drafting",
        (
            "specdec.model:ArenaModel.prefill",
            "range(first, tokens.shape[1], PREFILL_CHUNK)",
            "range(first, tokens.shape[1] - (tokens.shape[1] > 1), PREFILL_CHUNK)",
        ),
    ),
    mutant(
        "vllm#50170",
        "a head reads states of one layer too far down: 1.21 % of its proposals were accepted, not 58.9 %",
        "drafting",
        (
            "specdec_plugins.published.eagle3:_layers",
            "tuple(layer - 1 for layer in found)",
            "tuple(layer - 2 for layer in found)",
        ),
    ),
    mutant(
        "sglang#25454",
        "ids of layers are taken for outputs where they are inputs: every state is that of the layer after",
        "drafting",
        ("specdec_plugins.published.eagle3:_layers", "tuple(layer - 1 for layer in found)", "found"),
    ),
    mutant(
        "tokenspeed#526",
        "d2t is read as ids where it holds offsets: the head proposes other tokens than it means",
        "drafting",
        (
            "specdec_plugins.published.eagle3:_ids",
            "return ids, d2t, (choice,)",
            "return d2t, d2t, (choice,)",
        ),
    ),
    mutant(
        "llama.cpp#27040",
        "what a head says inside of eagle_config is not used: it has the conventions of a head that says nothing",
        "drafting",
        (
            "specdec_plugins.published.eagle3:_flag",
            "Choice(key, *found[0]) if found else",
            "Choice(key, *found[0]) if found and found[0][1] == key else",
        ),
    ),
    mutant(
        "tokenspeed#174",
        "a head is fed its states from after the last norm, where it was trained on those from before",
        "drafting",
        (
            "specdec_plugins.heads.eagle3_head:Eagle3Head.forward",
            "return ops.rms_norm(x, self.norm, eps, 0.0) if self.shape.norm_output else x",
            "return ops.rms_norm(x, self.norm, eps, 0.0)",
        ),
    ),
    mutant(
        "sglang#32334",
        "the states of several layers are joined in another order than that of the fusion",
        "drafting",
        (
            "specdec_plugins.drafts.eagle3:PublishedEagle3.feature",
            "if self._order is not None:",
            "if self._order is None:",
        ),
    ),
    mutant(
        "vllm#47930",
        "a block's draft has no entries of a beginning that was kept, and attends to what lies there",
        "drafting",
        (
            f"{BLOCKS}.resume",
            "self._arena.restore(row, kept, first)",
            "self._arena.committed[row].fill_(first)\n        self._arena.keys[1][row].zero_()",
        ),
    ),
    mutant(
        "vllm#56692",
        "slots of a block do not see later ones in layers without a window, where training let them",
        "drafting",
        (f"{BLOCK_HEAD}DFlashHead._seen", "shape.ahead or not shape.windows[layer]", "shape.ahead"),
    ),
    mutant(
        "speculators#684",
        "a draft's own window is ignored: its layers see the whole text",
        "drafting",
        (f"{BLOCK_HEAD}BlockShape.spans", "window + self.anchored if window else None", "None if window else None"),
    ),
)
