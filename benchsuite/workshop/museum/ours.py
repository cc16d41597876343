"""Bugs that we found ourselves, each as a mutant of our code."""

from __future__ import annotations

from benchsuite.workshop.museum.entries import mutant
from benchsuite.workshop.museum.places import (
    BLOCKS,
    CHAIN,
    COMMIT,
    COMMITTED,
    EXTEND,
    FEEDBACK,
    FILTER,
    JOINING,
    KEPT,
    MEMORY,
    PACK,
    PENALISED,
    PROCESS,
    REFERENCE,
    STEP,
    TRANSLATED,
)

OURS = (
    mutant(
        "ours",
        "the ratio is q/p in place of p/q",
        "distribution",
        (f"{REFERENCE}.rejection_sample", "torch.where(q > 0, p / q, 0.0)", "torch.where(q > 0, q / p, 0.0)"),
    ),
    mutant(
        "ours",
        "temperature is applied twice",
        "distribution",
        ("specdec.processors:process", "warped = logits / scale", "warped = logits / scale / scale"),
    ),
    mutant(
        "ours",
        "a slot's position is its number, not its depth",
        "distribution",
        (
            f"{REFERENCE}.kv_plan",
            "position = committed[:, None] + depth",
            "position = committed[:, None] + torch.arange(width).expand_as(depth)",
        ),
    ),
    mutant(
        "ours",
        "a slot sees its elder siblings",
        "distribution",
        (
            f"{REFERENCE}.kv_plan",
            """else:
            own = window.ancestors""",
            """else:
            own = torch.ones_like(window.ancestors).tril()""",
        ),
    ),
    mutant(
        "ours",
        "an accepted branch is not compacted",
        "distribution",
        (COMMITTED, "compact=self.draft is not None and self.draft.branches", "compact=False"),
    ),
    mutant(
        "ours",
        "uniforms have eight bits only: a coin of 0.999 always succeeds",
        "power",
        (
            "specdec.sampling:uniform",
            "_shift(mix(key + _GOLDEN), 40).float() * 2.0**-24",
            "_shift(mix(key + _GOLDEN), 56).float() * 2.0**-8",
        ),
    ),
    mutant(
        "ours",
        "every token of a draw gets the same noise",
        "power",
        ("specdec.sampling:gumbel", "(ids + 1) * _GOLDEN", "(ids * 0 + 1) * _GOLDEN"),
    ),
    mutant(
        "ours",
        "requests with the same seed draw with the same noise",
        "streams",
        ("specdec.sampling:stream", "request * _GOLDEN", "request * 0"),
    ),
    mutant(
        "ours",
        "the purpose of a draw shifts its noise by a token: a coin's is that of a token of the residual",
        "keyed",
        (
            "specdec.sampling:key",
            "mix(mix(stream[:, None] + position * _GOLDEN) ^ ((purpose << 32) | draw))",
            "mix(mix(stream[:, None] + position * _GOLDEN) ^ draw) - purpose * _GOLDEN",
        ),
    ),
    mutant(
        "ours",
        "a draft draws at a position by the same noise in every step: a block has seen what it proposes again",
        "distribution",
        ("specdec.messages:Context.propose_token", "Purpose.DRAFT, self.step", "Purpose.DRAFT"),
    ),
    mutant(
        "ours",
        "the coins of a block are used again in the next step",
        "distribution",
        ("specdec_plugins.policies.block:Block.accept", "position, context.step)", "position, 0)"),
    ),
    mutant(
        "ours",
        "siblings share a coin",
        "distribution",
        ("specdec_plugins.policies.tree_rejection:TreeRejection.accept", "position - 1, slots)", "position - 1, 0)"),
    ),
    mutant(
        "ours",
        "a greedy row beside sampled ones is sampled",
        "equality",
        (
            "specdec.processors:process",
            "return torch.where(sampled[:, None, None], warped, _top_only(logits))",
            "return warped",
        ),
    ),
    mutant(
        "ours",
        "the noise stream of a row is not moved with the row",
        "equality",
        ("specdec.ledger:Ledger.move", "(self.stream, self.top_k,", "(self.top_k,"),
    ),
    mutant(
        "ours",
        "the prompt's last token is committed by prefill and again by the first step",
        "equality",
        ("specdec.model:ArenaModel.prefill", "[prompt[:-1]]", "[prompt]"),
    ),
    mutant(
        "ours",
        "tokens accepted past a stop are counted",
        "stops",
        ("specdec.engine:Engine._absorb", "stats.accepted(min(accepted, kept))", "stats.accepted(accepted)"),
    ),
    mutant(
        "ours",
        "keys and values move to new storage in every step",
        "rollback",
        (
            COMMIT,
            KEPT,
            f"""{KEPT}
        self._viewed = None
        for stack in self.stacks:
            old, new = stack.keys.data_ptr(), stack.keys.clone()
            object.__setattr__(stack, "keys", new)
            for layer, keys in enumerate(self.keys):
                if keys.untyped_storage().data_ptr() == old:
                    self.keys[layer] = new.as_strided(keys.shape, keys.stride(), keys.storage_offset())""",
        ),
    ),
    mutant(
        "ours",
        "a chain is compacted although its path is already in place",
        "counters",
        (COMMITTED, "compact=self.draft is not None and self.draft.branches", "compact=True"),
    ),
    mutant(
        "ours",
        "a step reads the device a second time",
        "counters",
        (
            EXTEND,
            "packed = self.rows.extend(window, verdict, self.ops)",
            "packed = self.rows.extend(window, verdict, self.ops)\n        assert int(verdict.num_accepted.max()) < 99",
        ),
    ),
    mutant(
        "ours",
        "forget() forgets nothing",
        "drafting",
        ("specdec_plugins.drafts.suffix:Suffix.forget", "self._shared = Automaton()", "self._fed += 0"),
    ),
    mutant(
        "ours",
        "the judge does not compare the distance of an arm's logits with the bound",
        "ties",
        ("benchsuite.judge.ties:Judge._judge", "> self.bound", "> 1e9"),
    ),
    mutant(
        "ours",
        "the bound of a tie is 1e9, whatever the judge measures",
        "ties",
        ("benchsuite.judge.ties:Judge.bound", "min(measured, MOST_FLOAT32) if wide else measured", "1e9"),
    ),
    mutant(
        "ours",
        "the judge does not ask whether a token follows from its own arm's logits",
        "ties",
        ("benchsuite.judge.ties:Judge._judge", "request.after(outputs[0][:index])) != token:", "request) == -1:"),
    ),
    mutant(
        "ours",
        "the judge looks at the logits of plain alone",
        "ties",
        ("benchsuite.judge.ties:Judge._judge", '("plain", "the other"), seen', '("plain",), seen[:1]'),
        ("benchsuite.judge.ties:Judge._judge", "ends, strict=True)", "ends, strict=False)"),
    ),
    mutant(
        "ours",
        "the bound of a tie is forty times what the model differs from itself, not four times",
        "ties",
        ("benchsuite.judge.ties:Judge.bound", "MARGIN * self", "10 * MARGIN * self"),
    ),
    mutant(
        "ours",
        "the penalties count one token a step, the last",
        "rollback",
        (
            f"{MEMORY}.count",
            "device=emitted.device) < num_emitted[:, None]",
            "device=emitted.device) == num_emitted[:, None] - 1",
        ),
    ),
    mutant(
        "ours",
        "the penalties count rejected proposals",
        "rollback",
        (
            "specdec.rows:Rows.extend",
            "memory.count(packed[:, :-TAIL], verdict.num_accepted + 1)",
            "memory.count(packed[:, :-TAIL], window.width)",
        ),
    ),
    mutant(
        "ours",
        "the penalties' counts do not move with the row",
        "rollback",
        (
            f"{MEMORY}.move",
            "if isinstance(tensor, Tensor):",
            "if isinstance(tensor, Tensor) and tensor is not self.emitted:",
        ),
    ),
    mutant(
        "ours",
        "the next request in a row inherits the penalties' counts",
        "rollback",
        (f"{MEMORY}.admit", "self.emitted[row].zero_().scatter_add_", "self.emitted[row].scatter_add_"),
    ),
    mutant(
        "ours",
        "the least length is counted in steps, not in tokens",
        "distribution",
        (
            f"{MEMORY}.count",
            "new = torch.arange",
            "self.least[: len(emitted)] += num_emitted - 1\n        new = torch.arange",
        ),
    ),
    mutant(
        "ours",
        "the least length does not see the window's own tokens",
        "distribution",
        (
            "specdec.processors:bans",
            "adjustments.length[:, None] + depth <",
            "adjustments.length[:, None] + 0 * depth <",
        ),
    ),
    mutant(
        "ours",
        "a bad word is completed across an accepted block: the ban does not see the window's own tokens",
        "distribution",
        ("specdec.processors:_tail", "place = depth[:, :, None] -", "place = 0 * depth[:, :, None] -"),
    ),
    mutant(
        "ours",
        "the penalties of a slot do not count the window's own tokens",
        "distribution",
        (PENALISED, "valid.to(count.dtype)", "valid.to(count.dtype) * 0"),
    ),
    mutant(
        "ours",
        "the penalties of a slot count the tokens of a sibling's branch too",
        "distribution",
        (
            PENALISED,
            "valid.to(count.dtype))",
            "valid.to(count.dtype))\n    count = count.cummax(dim=1).values",
        ),
    ),
    mutant(
        "ours",
        "the frequency penalty counts the prompt's tokens",
        "processors",
        (PENALISED, "- frequency * count -", "- frequency * (count + penalties.seen[:, None]) -"),
    ),
    mutant(
        "ours",
        "the repetition penalty multiplies positive logits too, so that what was said gets likelier",
        "processors",
        (PENALISED, "logits / repetition", "logits * repetition"),
    ),
    mutant(
        "ours",
        "min-p is a probability, not a share of the likeliest token's",
        "processors",
        (FILTER, "min_p * distribution[..., :1]", "min_p * torch.ones_like(distribution[..., :1])"),
    ),
    mutant(
        "ours",
        "a seed is ignored",
        "streams",
        ("specdec.ledger:Ledger.admit", "(params.seed, request.id)", "(0, request.id)"),
    ),
    mutant(
        "ours",
        "the draft's logprobs are reported as the target's",
        "logprobs",
        (
            PACK,
            "parts = []",
            "if window.q is not None:\n"
            "        drafted = window.q.log().float()[:, : processed.shape[1] - 1]\n"
            "        processed = torch.cat([drafted, processed[:, drafted.shape[1] :]], dim=1)\n"
            "    parts = []",
        ),
    ),
    mutant(
        "ours",
        "logprobs are computed after the step's tokens were counted as output",
        "logprobs",
        (
            EXTEND,
            """chances = None if wanted is None else logprobs.pack(context, forward.logits, window, verdict, wanted)
        packed = self.rows.extend(window, verdict, self.ops)""",
            """packed = self.rows.extend(window, verdict, self.ops)
        chances = None if wanted is None else logprobs.pack(context, forward.logits, window, verdict, wanted)""",
        ),
    ),
    mutant(
        "ours",
        "the logprobs of an accepted branch are those of the window's first slots",
        "logprobs",
        (PACK, "verdict.path.clamp(min=0)", "torch.arange(verdict.path.shape[1]).expand_as(verdict.path)"),
    ),
    mutant(
        "ours",
        "a stream shows half a character",
        "text",
        ("specdec.text:TextStream.feed", "self._text[sure - 1] == BROKEN", "False"),
    ),
    mutant(
        "ours",
        "a stream shows the stop string that ends it",
        "text",
        ("specdec.text:TextStream._release", 'elif finish == "stop":', 'elif finish == "never":'),
    ),
    mutant(
        "ours",
        "a stream shows the beginning of a stop string before the rest has come",
        "text",
        ("specdec.text:TextStream._release", "if finish is None:", "if finish is None and not held:"),
    ),
    mutant(
        "ours",
        "the draft is not told that a request was cancelled",
        "cancels",
        ("specdec.queue:Queue.cancel", "self._release(row, self.rows.live[row])", "pass"),
    ),
    mutant(
        "ours",
        "a cancelled request that waits runs all the same",
        "cancels",
        ("specdec.queue:Queue.cancel", "if entry[0].id not in gone)", "if True)"),
    ),
    mutant(
        "ours",
        "a stream that is read late gives some tokens twice",
        "cancels",
        ("specdec.engine:Engine._streamed", "given[number] += len(tokens)", "given[number] += min(len(tokens), 1)"),
    ),
    mutant(
        "ours",
        "a beam's copy lacks the last committed cell",
        "beams",
        (
            "specdec.beam:BeamSearch._place",
            "self.arena.move(beam.origin, row, committed)",
            "self.arena.move(beam.origin, row, committed - 1)",
        ),
    ),
    mutant(
        "ours",
        "every beam's penalties count the text of one of them",
        "beams",
        (
            "specdec.beam:BeamSearch._continue",
            "[beams[row].tokens if row in beams",
            "[beams[min(beams)].tokens if row in beams",
        ),
    ),
    mutant(
        "ours",
        "a beam that was copied keeps the text of the beam before it in its row",
        "beams",
        ("specdec.beam:BeamSearch._place", "placed[row] = beam", "placed[row] = placed.get(beam.origin, beam)"),
    ),
    mutant(
        "ours",
        "the lengths of a translated draft are stale after steps without proposals",
        "drafting",
        (f"{TRANSLATED}.observe", "self._steps += 1", "self._steps += 0"),
    ),
    mutant(
        "ours",
        "a translated draft keeps the cells of rejected proposals",
        "drafting",
        (f"{TRANSLATED}._read", "len(tokens) - self._steps", "len(tokens) + self._window"),
    ),
    mutant(
        "ours",
        "a beginning that two sources share is two siblings of one token",
        "distribution",
        (f"{JOINING}grown_together", "(theirs & ~shared)[:, 1:]", "theirs[:, 1:]"),
    ),
    mutant(
        "ours",
        "a drawn sibling's q has the token of the certain one that is tried before it",
        "distribution",
        (f"{JOINING}_without", "torch.where(gone > 0, 0.0, q)", "torch.where(gone > 1, 0.0, q)"),
    ),
    mutant(
        "ours",
        "a node of two sources has the q of the drawn one, although the tree has it whatever is drawn",
        "distribution",
        (
            f"{JOINING}grown_together",
            "q = both.gather(",
            "which = torch.where(shared[:, 1:], twin[:, 1:] - 1, both.shape[1] - 1)\n"
            "        at = which[:, :, None].expand(-1, -1, both.shape[2])\n"
            "        both = both.scatter(1, at, younger.q)\n"
            "        q = both.gather(",
        ),
    ),
    mutant(
        "ours",
        "what goes on behind a drawn chain has the q of the token before it",
        "distribution",
        (f"{JOINING}continued", "_certain(wide[:, 1:], own)", "own[:, :1].expand_as(own)"),
    ),
    mutant(
        "ours",
        "the parents of a tree of two sources are off by one",
        "drafting",
        (
            f"{JOINING}grown_together",
            "slot.gather(1, parents.gather(1, order))",
            "(slot.gather(1, parents.gather(1, order)) - 1).clamp(min=0)",
        ),
    ),
    mutant(
        "ours",
        "a bad word of a single token is not forbidden",
        "processors",
        ("specdec.processors:bans", ".all(dim=3)", ".all(dim=3) & (prefix[:, None] >= 0).any(dim=3)"),
    ),
    mutant(
        "ours",
        "the half line that a kill left in the results stays there",
        "files",
        ("specdec.jobs:OutFile._read", "self._file.truncate(sum(len(line) + 1 for line in lines))", "len(rest)"),
    ),
    mutant(
        "ours",
        "a run that goes on begins again with the first request",
        "files",
        ("specdec.jobs:OutFile.__init__", "self.done = self._read(", "self.done = set() and self._read("),
    ),
    mutant(
        "ours",
        "a line's own end tokens give way to the model's",
        "files",
        ("specdec.jobs:Job.request", "self.params if self.ends else replace", "replace"),
    ),
    mutant(
        "ours",
        "row 0's K is used for all rows",
        "lengths",
        ("specdec.rows:Rows.context", "np.array(k, dtype=np.int64)", "np.full(b, k[0], dtype=np.int64)"),
        ("specdec.rows:Rows.context", "(room_host, k)", "(room_host, k if isinstance(k, int) else k[0])"),
    ),
    mutant(
        "ours",
        "a row is told the confidence of another one after rows have moved: it lies by the order of arrival",
        "lengths",
        (
            "specdec.engine:Engine._absorb",
            "asked[row], sure[row])",
            "asked[row], sure[sorted(range(len(sure)), key=lambda one: self.rows.live[one].request.id).index(row)])",
        ),
    ),
    mutant(
        "ours",
        "a draft's confidence is given to what was looked up beside it",
        "lengths",
        (f"{JOINING}_told", "torch.where(where, wide, NO_ESTIMATE)", "wide"),
    ),
    mutant(
        "ours",
        "a path of both trees loses the confidence of the draft that has one",
        "lengths",
        (f"{JOINING}grown_together", "torch.where(shared, sure, NO_ESTIMATE)", "torch.full_like(sure, NO_ESTIMATE)"),
    ),
    mutant(
        "ours",
        "a model's confidence is that of its likeliest token, not of the one that it has drawn",
        "lengths",
        (CHAIN, "own - logits", "logits.amax(dim=-1) - logits"),
    ),
    mutant(
        "ours",
        "what a controller knows of a request stays in the row that it left",
        "lengths",
        (
            "specdec.rows:Rows.move",
            "self.live[row] = self.live[source]",
            "left, self.live[row] = self.live[row].counts, self.live[source]; self.live[row].counts = left",
        ),
    ),
    mutant(
        "ours",
        "a tap is one layer off",
        "states",
        ("specdec.model:ArenaModel._tapped", "stack[layer].register", "stack[max(layer - 1, 0)].register"),
    ),
    mutant(
        "ours",
        "a run of layers that one op computes goes on past a tap",
        "states",
        ("specdec.swap:Swap._stack", "modules[place]._forward_hooks or later[0]", "later[0]"),
    ),
    mutant(
        "ours",
        "a draft is given the states of the step before",
        "states",
        (
            STEP,
            "hidden = forward.hidden if self.queue.taps else None",
            "before = self.__dict__.get('before', forward.hidden)\n"
            "            hidden = before if before.shape == forward.hidden.shape else forward.hidden\n"
            "            self.before = forward.hidden",
        ),
    ),
    mutant(
        "ours",
        "a module of MiMo's is joined as others are: the embedding before the state",
        "drafting",
        ("specdec_plugins.heads.mtp_head:MtpEntry.forward", "pair[::-1] if self.state_first else pair", "pair"),
    ),
    mutant(
        "ours",
        "the last accepted slot's state is that of a rejected one",
        "states",
        (
            "specdec.messages:Verdict.last",
            "self.path.gather(1, self.num_accepted[:, None])",
            "torch.full_like(self.path[:, :1], states.shape[1] - 1)",
        ),
    ),
    mutant(
        "ours",
        "a draft that asks for logits is given processed ones",
        "states",
        (STEP, "logits=forward.logits)", f"logits={PROCESS.replace('logits', 'forward.logits')})"),
    ),
    mutant(
        "ours",
        "accepted tokens keep the head's estimates: their entries are not computed anew from the target's states",
        "drafting",
        (
            f"{FEEDBACK}._learned",
            "feature = self._head.feature(kept)",
            "feature = self._head.feature(kept) * 0 + self._state[rows, None]",
        ),
    ),
    mutant(
        "ours",
        "a block's draft commits the entries of rejected proposals",
        "drafting",
        (f"{BLOCKS}._learned", "+= verdict.num_accepted + 1", "+= size"),
    ),
)
