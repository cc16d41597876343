"""Bugs that we found ourselves, each as a mutant of our code."""

from __future__ import annotations

from benchsuite.museum.entries import mutant
from benchsuite.museum.places import COMMIT, KEPT, REFERENCE, STEP

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
            "specdec.arena:Arena.plan",
            "position = committed[:, None] + depth",
            "position = committed[:, None] + torch.arange(width).expand_as(depth)",
        ),
    ),
    mutant(
        "ours",
        "a slot sees its elder siblings",
        "distribution",
        (
            "specdec.arena:Arena._mask",
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
        (STEP, "compact=self.draft is not None and self.draft.branches", "compact=False"),
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
        (COMMIT, KEPT, f"{KEPT}\n        self.keys = [keys.clone() for keys in self.keys]"),
    ),
    mutant(
        "ours",
        "a chain is compacted although its path is already in place",
        "counters",
        (STEP, "compact=self.draft is not None and self.draft.branches", "compact=True"),
    ),
    mutant(
        "ours",
        "a step reads the device a second time",
        "counters",
        (
            STEP,
            "packed = rows.extend(window, verdict)",
            "packed = rows.extend(window, verdict)\n        assert int(verdict.num_accepted.max()) < 99",
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
        ("benchsuite.measure.ties:Judge._judge", "> self.bound", "> 1e9"),
    ),
    mutant(
        "ours",
        "the bound of a tie is 1e9, whatever the judge measures",
        "ties",
        ("benchsuite.measure.ties:Judge.bound", "min(measured, MOST_FLOAT32) if wide else measured", "1e9"),
    ),
)
