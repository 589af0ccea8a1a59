# Everything runs in .venv, made on first use. PYTHON chooses the interpreter for it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
N ?= 2000
# Test processes; each takes about 2 GB of memory.
JOBS ?= 2

# What, when changed, calls for installing again.
SOURCES := pyproject.toml setup.py $(wildcard tf_amp/_autostart_*.py) \
	grappler_pass/shim.c

# The release of Keras 2 that belongs to the TensorFlow in .venv, such as 2.21.0.
TF_VERSION = $(BIN)/pip show tensorflow-cpu | sed -n 's/^Version: \([0-9]*\.[0-9]*\).*/\1.0/p'

.PHONY: demo test lint bench fuzz clean
.DEFAULT_GOAL := test

demo: $(VENV)/.installed-demo
	$(BIN)/python examples/demo.py

test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.prediction
	$(BIN)/python -m benchmarks.first_step
	$(BIN)/python -m benchmarks.pass_time

# Random graphs run before and after the pass: make fuzz N=20000
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz $(N)

clean:
	rm -rf $(VENV) build dist *.egg-info grappler_pass/_shim_*.so

$(VENV)/.installed-demo: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --editable '.[cpu,demo]'
	touch $@

$(VENV)/.installed-test: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --editable '.[cpu,demo,test]'
	$(BIN)/python -m pip install --no-deps "tf_keras~=$$($(TF_VERSION))"
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || (rm -rf $(VENV); exit 1)
