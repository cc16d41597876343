"""Functions and lines of our code that several entries change."""

from __future__ import annotations

CHAIN = "specdec_plugins.chain:Chain.propose"
REFERENCE = "specdec_kernels.reference:Reference"
COMMIT = "specdec.arena:Arena.commit"
DRAFT_MODEL = "specdec_plugins.drafts.draft_model:DraftModel"
STEP = "specdec.engine:Engine.step"
PROCESS = "context.process(logits, window)"
GIVEN = f"given = logits.float() if self.policy.raw else {PROCESS}"
KEPT = "committed += verdict.num_accepted + 1"
POSITION = "position = context.length[:, None] + window.depth"
TABLE = "benchsuite.prove.table_target:TableDraft"
