# make demo       a comparison on a tiny random model, in seconds
# make bench      the main job: a comparison table on the embedded model
# make bench-all  every draft with the policies that suit it, greedy and sampled, one row and four
# make engines-bench  every engine at its best in one table with ours, certified
# make engines    environments of vLLM, llama.cpp and others, in .engines/: some GB, some minutes (docs/engines.md)
# make guests     drafts of other projects, each in an environment of its own in .guests/: certified, and a row (docs/other-projects.md)
# make test       everything that needs no GPU
# make test-oldest  the quick tests and those of fake GPUs with the lowest versions that pyproject.toml admits
# make predictions   predictions beside what was measured, the advisor beside an exhaustive grid: some hours
# make gpu-day    everything that waits for a GPU, in three calls of 200 seconds (docs/gpu.md)
# make lint       ruff, mypy, and who may import whom (import-linter)
# make sanitize   the C++ under AddressSanitizer and UndefinedBehaviorSanitizer; it must find what it plants itself
# make docs       run the commands of README.md and put what they print into it
# make pictures   draw the newest report of make bench in headless Chromium, for docs/walk-through.md
# make mutate     mutants of our own code, drawn from every group; make mutate-changed BASE=HEAD~1: of changed lines alone
# make gate REV=HEAD~1   is this checkout slower than a revision? at most a quarter of an hour
# make gate-validate     how often the gate is wrong on this machine: hours, can be resumed
# Each sets up what it needs from a bare checkout.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

EAGLE := eagle(head=trained)
EAGLE_TREE := eagle(head=trained, beam=4, depth=4)
EAGLE_LEAVES := eagle(head=trained, weights=int8, leaves=4)
MEDUSA := medusa(head_init=trained)
WITH_MODEL := hybrid(sources='suffix, ngram, $(EAGLE_LEAVES)')

# What is worth its time on two cores, and the two ends of the scale.
ARMS := ngram/match/goodput/15, suffix/match/goodput/15, hybrid/match/goodput/15, \
	hybrid+eagle=$(WITH_MODEL)/match/budget/15, eagle=$(EAGLE)/match/goodput/8, \
	eagle-leaves=$(EAGLE_LEAVES)/match/budget/15, medusa=$(MEDUSA)/match/goodput/4, \
	oracle(0.8)/match/fixed/8, garbage/match/fixed/8

ALL := ngram, ngram/rejection, ngram/match/adaptive, ngram(branches=3)/match/fixed/8, suffix/match/goodput/15, \
	suffix/block, suffix(branches=3)/tree_rejection/fixed/8, hybrid/match/goodput/15, $(WITH_MODEL)/tree_rejection/fixed/8, \
	draft_model, draft_model/rejection, draft_model/block, tree/match/fixed/8, tree/tree_rejection/fixed/8, \
	medusa, $(MEDUSA), $(MEDUSA)/rejection, medusa(head_init=trained, beam=3)/tree_rejection/fixed/12, \
	eagle, $(EAGLE), $(EAGLE)/rejection, $(EAGLE)/block, $(EAGLE)/longest_prefix, $(EAGLE_TREE)/match/fixed/15, \
	$(EAGLE_TREE)/tree_rejection/fixed/15, $(EAGLE)/conf_threshold, $(EAGLE)/topk_agree, $(EAGLE)/typical, \
	$(EAGLE_TREE)/tree_agree/fixed/15, oracle, garbage, garbage/rejection

.PHONY: demo bench bench-all predictions test test-oldest lint docs pictures gate gate-validate gpu-day sanitize mutate mutate-changed engines engines-bench guests clean

demo bench bench-all docs predictions: export HF_HUB_OFFLINE = 1
demo: $(READY)
	$(BIN)/python -m pytest benchsuite/test_speculation.py --specdec-target tiny --specdec-arm "ngram, oracle(0.8), garbage" \
		--specdec-workload chat,code_editing --specdec-prompts 3 --specdec-max-new-tokens 32 --benchmark-quiet $(ARGS)

bench: $(READY)
	@mkdir -p results
	$(BIN)/python -m pytest benchsuite/test_speculation.py --specdec-target smollm2-135m --specdec-arm "$(ARMS)" \
		--specdec-prompts 3 --specdec-max-new-tokens 48 --specdec-predict cached --specdec-results results \
		--benchmark-json results/benchmark.json --benchmark-quiet $(ARGS)

bench-all: $(READY)
	@mkdir -p results
	$(BIN)/python -m pytest benchsuite/test_speculation.py --specdec-target smollm2-135m --specdec-arm "$(ALL)" \
		--specdec-temperature 0,1 --specdec-batch 1,4 --specdec-prompts 4 --specdec-max-new-tokens 16 \
		--specdec-peer none --specdec-results results --benchmark-json results/benchmark-all.json --benchmark-quiet $(ARGS)

# Processes of one thread, one more than there are cores, because many tests wait for a process that they started; of
# several threads they would wait for each other. Of the main job's own items, which pytest-benchmark does not time beside
# others, everything but the time is tested here.
# A GPU is hidden: on it other rows would run by default, and Triton cannot be interpreted and compiled in one process.
test: export CUDA_VISIBLE_DEVICES =
test: export HF_HUB_OFFLINE = 1
test: export TRITON_INTERPRET = 1
test: export OMP_NUM_THREADS = 1
# Empty: bytecode is kept, so that the processes of the gate's tests do not compile all of it again.
test: export PYTHONDONTWRITEBYTECODE =
test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --specdec-target tiny --specdec-prompts 1 \
		--specdec-workload chat,rewriting \
		--specdec-max-new-tokens 16 --specdec-pairs 2 --benchmark-quiet $(ARGS)

WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# The lowest versions that pyproject.toml admits, in an environment of their own. PYTHON312 is a Python 3.12.
PYTHON312 ?= $(firstword $(shell ls $(HOME)/.pyenv/versions/3.12.*/bin/python 2>/dev/null) python3.12)
OLDEST := .venv-oldest/bin/python

test-oldest: export CUDA_VISIBLE_DEVICES =
test-oldest: export HF_HUB_OFFLINE = 1
test-oldest: export TRITON_INTERPRET = 1
test-oldest: export OMP_NUM_THREADS = 1
test-oldest: .venv-oldest/.ready
	$(OLDEST) -m pytest -n auto --dist worksteal -m "fake_gpu or not slow" --benchmark-quiet $(ARGS)

.venv-oldest/.ready: pyproject.toml benchsuite/workshop/lowest.py
	@$(PYTHON312) -c "import sys; sys.exit(sys.version_info[:2] != (3, 12))" \
		|| { echo "test-oldest needs Python 3.12; got $(PYTHON312). Name one: make test-oldest PYTHON312=/path/to/python3.12"; exit 2; }
	$(PYTHON312) -m venv .venv-oldest
	$(PYTHON312) benchsuite/workshop/lowest.py triton endpoints slurm mutate test > .venv-oldest/lowest.txt
	$(OLDEST) -m pip install -r .venv-oldest/lowest.txt -e .
	@touch $@

predictions: $(READY)
	$(BIN)/python -m benchsuite.workshop.predictions $(ARGS)

# Nothing is installed: any Python with torch, transformers and pytest will do. ARGS="1" is the first of the three calls.
gpu-day:
	$(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON)) -m benchsuite.workshop.gpu_day $(or $(ARGS),all)

MUTANTS ?= 400
SEED ?= 7
BASE ?= HEAD~1

# More than an hour for 400 on two cores; what was tried is kept, and the same command goes on. MODULES=engine,specdec/stops.py
# draws from less.
mutate: $(READY)
	$(BIN)/python -m benchsuite.workshop.mutation --slow --mutants $(MUTANTS) --seed $(SEED) --modules "$(MODULES)" $(ARGS)

# It reports and does not fail: how many mutants fit into the time depends on the machine. ARGS="--fail-under 90" fails.
mutate-changed: $(READY)
	$(BIN)/python -m benchsuite.workshop.mutation --changed $(BASE) --budget 240 --most 20 --seed $(SEED) $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

sanitize: $(READY)
	$(BIN)/python -m benchsuite.workshop.native.sanitized $(ARGS)

# Another folder: ARGS="--into FOLDER"; some of them: ARGS="vllm llama_cpp".
engines: $(READY)
	$(BIN)/python -m benchsuite engines set-up $(ARGS)

# Some of them: ARGS="rest". What cannot be set up is skipped by name.
guests: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchsuite guests $(ARGS)

# About an hour on two cores: vLLM's server takes a minute to start, and has a start for each K.
engines-bench: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchsuite engines bench $(ARGS)

docs: $(READY)
	$(BIN)/python docs/paste.py README.md docs/measuring.md

REPORT ?= $(lastword $(sort $(wildcard results/*-smollm2-135m/report.html)))

# The top of the newest report of `make bench`, in headless Chromium; what is cut off or overlaps is an error.
pictures: $(READY)
	$(BIN)/python docs/look.py $(REPORT) docs/images --top 1900

REV ?= HEAD~1

# A worktree of REV and this checkout, launched in turn; one workload, so that 26 launches end in time.
# `tiny` is faster on one thread, and beside other work two would wait for each other.
gate: $(READY)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest benchsuite/test_speculation.py --specdec-target tiny \
		--specdec-workload chat,reasoning --specdec-arm "ngram, suffix, oracle(0.8)" --specdec-peer transformers \
		--specdec-prompts 3 --specdec-max-new-tokens 32 --benchmark-quiet --gate=fail --gate-against $(REV) $(ARGS)

gate-validate: $(READY)
	$(BIN)/python -m benchsuite.workshop.gate.validate $(ARGS)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
