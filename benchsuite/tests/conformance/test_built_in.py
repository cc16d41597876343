"""Every built-in plugin passes the checks of the conformance kit; some of them with --specdec-deep."""

from __future__ import annotations

from typing import TypeVar

import pytest

from benchsuite import conformance
from benchsuite.conformance.claims import Checks
from benchsuite.tests.eagle3_heads import EAGLE3_HEAD
from benchsuite.tests.recorded_heads import recorded_head
from benchsuite.tests.rig import left_to_deep, slow_checks
from specdec.interfaces import OPS

C = TypeVar("C", bound=type[Checks])

FAKE = "test_a_step_is_fit_for_a_gpu"
"""test_fake_cuda.py takes such steps with every draft and policy, and has rows end and others enter."""

REPLAYED = "test_it_keeps_nothing_that_a_replayed_step_overwrites"
"""tests/specdec/test_runtime.py replays the drafts under several policies each, with every kind of requests."""

OF_POLICIES = (FAKE, "test_a_step_can_be_recorded_and_replayed", "test_its_distribution_is_what_its_contract_says")
"""tests/specdec/test_runtime.py tests the second as well, test_exact_runs.py the third; of a lossy policy it shows a
distance and tests nothing."""

SAMPLED = "test_sampled_outputs_have_the_targets_distribution"
"""Of proposals that are certain, whatever they are, tests/conformance/test_exact_runs.py proves this; of block and
tree_rejection tests/judge/test_favour.py tests it."""

SAME = "test_it_changes_no_output"
"""tests/specdec/test_equality.py compares outputs of the same drafts with plain decoding's, at more K and batches."""

AGREES = "test_an_op_agrees_with_the_reference_and_runs_where_claimed"

FOLLOWS = "test_what_it_proposes_follows_from_the_text"
"""tests/plugins/test_catching_up.py plays longer with the drafts that have a model."""

OF_MODELS = (FAKE, REPLAYED, FOLLOWS, SAME)

Q = "test_q_is_the_distribution_that_its_proposals_were_drawn_from"


def slow(checks: C, *deep: str) -> C:
    """Mark as slow: the kit of a drafting model takes seconds, of a policy one; some of each kind stay quick.

    The checks ``deep``, which take longest, run with --specdec-deep: another test holds each of these plugins to them.
    """
    checks.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]
    return left_to_deep(checks, *deep)


TestNgram = slow_checks(conformance.draft("ngram(n_min=1)"), FAKE, REPLAYED, SAMPLED, SAME)
TestNgramTree = slow(conformance.draft("ngram(n_min=1, branches=3)", trees=True), FAKE, REPLAYED, SAMPLED)
TestSuffix = slow(conformance.draft("suffix(min_match=1)", remembers=True), FAKE, REPLAYED, SAMPLED)
TestSuffixAlone = slow(conformance.draft("suffix(min_match=1, earlier=False)"), FAKE, REPLAYED, SAMPLED)
TestHybrid = slow(
    conformance.draft("hybrid(sources='suffix(min_match=1, earlier=False), draft_model')", sampled=True),
    FAKE,
    FOLLOWS,
    SAME,
    REPLAYED,
)
TestHybridMerged = slow(
    conformance.draft(
        "hybrid(sources='suffix(min_match=1, earlier=False), ngram(n_min=1), draft_model', merge=True, slots=6)",
        trees=True,
        sampled=True,
        k=6,
    ),
    FAKE,
    FOLLOWS,
    SAME,
    REPLAYED,
)
TestHybridExtended = slow(
    conformance.draft("hybrid(sources='ngram, draft_model', extend=True, model_k=2, slots=6)", sampled=True, k=6),
    FAKE,
    FOLLOWS,
    SAME,
    REPLAYED,
)
TestCustomClass = slow(
    conformance.draft(
        "custom_class(path='benchsuite.tests.vllm_rig:TheirLookup', settings='{\"num_speculative_tokens\": 3}')"
    ),
    FAKE,
    SAMPLED,
)
TestCustomClassThatLearns = slow(
    conformance.draft("custom_class(path='benchsuite.tests.vllm_rig:TheirMemory', learns=True)", remembers=True),
    FAKE,
    SAMPLED,
)
TestDraftModel = slow(conformance.draft("draft_model", sampled=True), *OF_MODELS)
TestTree = slow(conformance.draft("tree(beam=2, depth=3)", trees=True, k=6), *OF_MODELS, SAMPLED)
TestMedusa = slow(conformance.draft("medusa(head_init=random)", sampled=True, hidden=True), *OF_MODELS)
TestMedusaTree = slow(
    conformance.draft("medusa(head_init=random, beam=2)", trees=True, hidden=True, k=6),
    FAKE,
    FOLLOWS,
    SAME,
    REPLAYED,
    SAMPLED,
)
TestEagle = slow(conformance.draft("eagle(reset=False)", sampled=True, hidden=True), *OF_MODELS)
TestEagleThatResets = slow(
    conformance.draft("eagle", sampled=True, hidden=True, memoryless=False), *OF_MODELS, SAMPLED, Q
)
TestEagle3 = slow(
    conformance.draft(f"eagle3(head={EAGLE3_HEAD!r})", sampled=True, hidden=True), FAKE, FOLLOWS, REPLAYED, SAMPLED
)
TestEagle3Tree = slow(
    conformance.draft(f"eagle3(head={EAGLE3_HEAD!r}, beam=2, depth=3)", trees=True, hidden=True, k=6),
    *(FAKE, FOLLOWS, SAME, REPLAYED, SAMPLED),
)
TestEagle3Leaves = slow(
    conformance.draft(f"eagle3(head={EAGLE3_HEAD!r}, leaves=2, depth=3)", trees=True, hidden=True, k=6),
    *(FAKE, FOLLOWS, SAME, REPLAYED, SAMPLED),
)
TestHybridWithLeaves = slow(
    conformance.draft(
        f"hybrid(sources='ngram(n_min=1), eagle3(head={EAGLE3_HEAD}, leaves=2)')", trees=True, hidden=True, k=6
    ),
    *(FAKE, FOLLOWS, SAME, REPLAYED, SAMPLED),
)
TestDFlash = slow(
    conformance.draft(f"dflash(head={recorded_head('dflash/windows')!r})", sampled=True, hidden=True, k=3),
    *OF_MODELS,
    SAMPLED,
)
TestDSpark = slow(
    conformance.draft(f"dspark(head={recorded_head('dspark/rnn')!r})", sampled=True, hidden=True, k=3),
    *OF_MODELS,
    SAMPLED,
)
TestMtp = slow(
    conformance.draft(f"mtp(head={recorded_head('mtp/speculators-llama')!r})", sampled=True, hidden=True),
    *OF_MODELS,
    SAMPLED,
)
TestPeagle = slow(
    conformance.draft(f"peagle(head={recorded_head('peagle/qwen3')!r})", sampled=True, hidden=True), *OF_MODELS, SAMPLED
)
TestOracle = slow(conformance.draft("oracle(0.8)", replays=True), FAKE, REPLAYED)
TestGarbage = slow(conformance.draft("garbage"), FAKE, REPLAYED, SAMPLED)

TestTransformers = slow(conformance.engine("transformers", refuses=["cache=sttic", "cache=4"]))
TestTransformersStatic = slow(conformance.engine("transformers(cache=static)"))
TestTransformersEarlyExit = slow(
    conformance.engine("transformers_early_exit(layers=1, k=3)", refuses=["layers=0", "k=0"])
)
TestTransformersLookup = slow(
    conformance.engine("transformers_prompt_lookup(k=3)", refuses=["k=0", "ngram=0", "k=2.5"])
)
TestLlamaCpp = slow(conformance.engine("llama_cpp", own_arithmetic=True, refuses=["threads=0", "threads=many"]))
TestLlamaCppLookup = slow(
    conformance.engine("llama_cpp_prompt_lookup(k=3)", own_arithmetic=True, refuses=["k=0", "ngram=0", "threads=0"])
)
TestOnnxRuntime = slow(conformance.engine("onnxruntime", refuses=["threads=0"]))
TestOnnxRuntimeNgrams = slow(
    conformance.engine("onnxruntime_speculative(k=3)", refuses=["k=0", "k=17", "ngram=0", "ngram=16", "chained=1"])
)
TestOnnxRuntimeDraft = slow(conformance.engine("onnxruntime_speculative(model=tiny, k=3)", refuses=["model=tiny, k=0"]))
TestOpenVino = slow(conformance.engine("openvino", own_arithmetic=True, refuses=["threads=0"]))
TestOpenVinoLookup = slow(
    conformance.engine("openvino_prompt_lookup(k=3)", own_arithmetic=True, refuses=["k=0", "ngram=0", "threads=0"])
)
TestOpenVinoDraft = slow(
    conformance.engine(
        "openvino_draft(model=tiny, k=3)",
        own_arithmetic=True,
        sampled=False,
        refuses=["model=tiny, k=0", "model=tiny, threads=0", "k=3"],
    )
)

TestMatch = slow(conformance.policy("match", greedy="exact", sampled="exact", trees=True, coupled=True), *OF_POLICIES)
TestRejection = slow_checks(
    conformance.policy("rejection", greedy="exact", sampled="distribution"), *OF_POLICIES, SAMPLED
)
TestBlock = slow(conformance.policy("block", greedy="exact", sampled="distribution"), *OF_POLICIES, SAMPLED)
TestTreeRejection = slow(
    conformance.policy("tree_rejection", greedy="exact", sampled="distribution", trees=True), *OF_POLICIES, SAMPLED
)
TestLongestPrefix = slow(
    conformance.policy("longest_prefix", greedy="exact", sampled="lossy", trees=True), *OF_POLICIES
)
TestConfThreshold = slow(
    conformance.policy("conf_threshold", greedy="lossy", sampled="lossy", trees=True, coupled=True), *OF_POLICIES
)
TestTopkAgree = slow(
    conformance.policy("topk_agree", greedy="lossy", sampled="lossy", trees=True, coupled=True), *OF_POLICIES
)
TestTypical = slow(
    conformance.policy("typical", greedy="lossy", sampled="lossy", trees=True, coupled=True), *OF_POLICIES
)
TestTreeAgree = slow(
    conformance.policy("tree_agree", greedy="lossy", sampled="lossy", trees=True, coupled=True), *OF_POLICIES
)

TestFixed = slow_checks(
    conformance.controller("fixed"), "test_it_repeats_where_claimed", "test_after_forget_it_asks_what_a_new_one_asks"
)
TestAdaptive = slow(conformance.controller("adaptive(window=2)"))
TestGoodput = slow(conformance.controller("goodput(maximum=4)", deterministic=False))
TestBudget = slow(conformance.controller("budget(maximum=4)", deterministic=False))
TestBudgetAtAPrice = slow(conformance.controller("budget(maximum=4, price=0.3)", deterministic=False))

TestReference = slow_checks(
    conformance.backend("reference", ops=sorted({*OPS} - {"decoder_layers", "block_sample", "tree_sample"})),
    SAME,
    AGREES,
)
TestCpu = slow_checks(
    conformance.backend("cpu", ops=sorted({*OPS} - {"accept", "noise_keys", "block_sample", "tree_sample"})),
    SAME,
    AGREES,
)
