"""Functions and lines of our code that several entries change."""

from __future__ import annotations

CHAIN = "specdec_plugins.chain:Chain.propose"
REFERENCE = "specdec_kernels.reference:Reference"
COMMIT = "specdec.arena:Arena.commit"
DRAFT_MODEL = "specdec_plugins.drafts.draft_model:DraftModel"
JOINING = "specdec_plugins.joining:"
MODULE = "specdec_plugins.drafts.mtp:MtpSteps"
JUDGE, COMMITTED, EXTEND, STEP = (f"specdec.engine:Engine.{part}" for part in ("_judge", "_commit", "_extend", "step"))
PROCESS = "context.process(logits, window)"
GIVEN = f"given = logits.float() if self.policy.raw else {PROCESS}"
KEPT = "committed += verdict.num_accepted + 1"
POSITION = "position = context.length[:, None] + window.depth"
TABLE = "benchsuite.conformance.exact.table_target:TableDraft"
ADJUSTED = "specdec.processors:adjusted"
PENALISED = "specdec.processors:_penalised"
FILTER = "specdec.processors:_filter"
MEMORY = "specdec.ledger:Memory"
PACK = "specdec.logprobs:pack"
TRANSLATED = "specdec_plugins.drafts.translated:TranslatedDraft"
FEEDBACK = "specdec_plugins.feedback:FeedbackDraft"
