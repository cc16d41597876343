"""Every built-in plugin goes through the kit, and plugins with planted faults do not."""

from __future__ import annotations

from benchsuite import conformance
from specdec.interfaces import OPS

TestNgram = conformance.draft("ngram(n_min=1)")
TestNgramTree = conformance.draft("ngram(n_min=1, branches=3)", trees=True)
TestSuffix = conformance.draft("suffix(min_match=1)", remembers=True)
TestSuffixAlone = conformance.draft("suffix(min_match=1, earlier=False)")
TestHybrid = conformance.draft("hybrid(sources='suffix(min_match=1, earlier=False), draft_model')", sampled=True)
TestDraftModel = conformance.draft("draft_model", sampled=True)
TestTree = conformance.draft("tree(beam=2, depth=3)", trees=True, k=6)
TestMedusa = conformance.draft("medusa(head_init=random)", sampled=True, hidden=True)
TestMedusaTree = conformance.draft("medusa(head_init=random, beam=2)", trees=True, hidden=True, k=6)
TestEagle = conformance.draft("eagle(reset=False)", sampled=True, hidden=True)
TestEagleThatResets = conformance.draft("eagle", sampled=True, hidden=True, memoryless=False)
TestOracle = conformance.draft("oracle(0.8)")
TestGarbage = conformance.draft("garbage")

TestMatch = conformance.policy("match", greedy="exact", sampled="exact", trees=True, coupled=True)
TestRejection = conformance.policy("rejection", greedy="exact", sampled="distribution")
TestBlock = conformance.policy("block", greedy="exact", sampled="distribution")
TestTreeRejection = conformance.policy("tree_rejection", greedy="exact", sampled="distribution", trees=True)
TestLongestPrefix = conformance.policy("longest_prefix", greedy="exact", sampled="lossy", trees=True)
TestConfThreshold = conformance.policy("conf_threshold", greedy="lossy", sampled="lossy", trees=True, coupled=True)
TestTopkAgree = conformance.policy("topk_agree", greedy="lossy", sampled="lossy", trees=True, coupled=True)
TestTypical = conformance.policy("typical", greedy="lossy", sampled="lossy", trees=True, coupled=True)
TestTreeAgree = conformance.policy("tree_agree", greedy="lossy", sampled="lossy", trees=True)

TestFixed = conformance.controller("fixed")
TestAdaptive = conformance.controller("adaptive(window=2)")
TestGoodput = conformance.controller("goodput", deterministic=False)

TestReference = conformance.backend("reference", ops=sorted({*OPS} - {"decoder_layer"}))
TestCpu = conformance.backend("cpu", ops=sorted({*OPS} - {"accept"}))
