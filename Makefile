# Each target sets up what it needs in .venv, and again only after a change of
# pyproject.toml or of the extras that it asks for.

PYTHON ?= python3
# From an index of CPU builds, pip takes one of this version; an open range may
# prefer a CUDA build of several gigabytes. Override: make parity TORCH=torch
TORCH ?= torch==2.13.0
# Without their dependencies: they ask for an older transformers, for torchvision and
# torchaudio, and for clients of servers, of which their models import nothing.
SPECULATORS := speculators==0.9.0
DFLASH := dflash==0.1.0

BIN := .venv/bin
USE := .venv/.with-hub,cli
DEVELOP := $(USE),plot,train,dev
COMPARE := $(DEVELOP),parity

.PHONY: demo test parity lint bench

demo: $(USE)
	$(BIN)/specdec-jax demo --drafter head --head models/smollm2-135m-instruct/eagle3 --tree chain:2

test: $(DEVELOP)
	$(BIN)/python -m pytest
	@echo "The tests of tests/parity, against PyTorch's transformers, are apart: make parity"

parity: $(COMPARE)
	$(BIN)/python -m pytest tests/parity

lint: $(DEVELOP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: $(COMPARE)
	$(BIN)/python benchmarks/exactness.py
	$(BIN)/python benchmarks/speed.py

# The stem names the extras: .venv/.with-hub,cli holds specdec-jax[hub,cli].
.venv/.with-%: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --no-input --disable-pip-version-check \
	    $(if $(findstring parity,$*),"$(TORCH)") --editable ".[$*]"
	$(if $(findstring parity,$*),$(BIN)/python -m pip install --no-input \
	    --disable-pip-version-check --no-deps "$(SPECULATORS)" "$(DFLASH)")
	@touch $@

# venv writes pip last: an interrupted set-up is taken up again here.
$(BIN)/pip:
	@command -v "$(PYTHON)" > /dev/null || { \
	    echo "There is no $(PYTHON): install Python 3.11 or newer, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "$(PYTHON) is $$("$(PYTHON)" --version 2>&1): Python 3.11 or newer is needed; name one: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2> /dev/null || { \
	    echo "$(PYTHON) has no pip to put into .venv: install its venv and ensurepip modules (Debian: python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
