# make bench  the main job: a comparison table on the embedded model
# make test   everything that needs no GPU
# make lint   ruff and mypy
# Each sets up what it needs from a bare checkout.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: bench test lint clean

bench: export HF_HUB_OFFLINE = 1
bench: $(READY)
	@mkdir -p results
	$(BIN)/python -m pytest benchsuite/test_speculation.py --specdec-target smollm2-135m \
		--specdec-k 8 --specdec-max-new-tokens 48 --specdec-results results \
		--benchmark-json results/benchmark.json --benchmark-quiet $(ARGS)

test: export HF_HUB_OFFLINE = 1
test: export TRITON_INTERPRET = 1
test: $(READY)
	$(BIN)/python -m pytest --specdec-target tiny --benchmark-quiet $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
