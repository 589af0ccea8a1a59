# Everything runs in .venv, made on first use. PYTHON chooses the interpreter for it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
N ?= 2000
# Test processes; each takes about 2 GB of memory. Some wait, so that there is one more
# than cores.
JOBS ?= 3

# Those of the supported versions that are installed, for `make dist`.
PYTHONS ?= $(foreach name,$(addprefix python3.,10 11 12 13),\
	$(if $(shell $(name) -c 'print(1)' 2> /dev/null),$(name)))

# What, when changed, calls for installing again.
SOURCES := pyproject.toml setup.py $(wildcard tf_amp/runtime/_autostart_*.py) \
	$(wildcard grappler_pass/*.c)

# The release of Keras 2 that belongs to the TensorFlow in .venv, such as 2.21.0.
TF_VERSION = $(BIN)/pip show tensorflow-cpu | sed -n 's/^Version: \([0-9]*\.[0-9]*\).*/\1.0/p'

# The newest TensorFlow, the two before it, and the oldest that works with Keras 3.
VERSIONS ?= 2.21 2.20 2.19 2.16
# Which tests each of them runs.
TESTS ?= tests
# What depends on TensorFlow's oneDNN kernels, and so is tried without them, too; of
# whole programs, one of functions and one of layers.
LEARNS := test_a_program_computes_in_16_bits_and_learns_as_well
WITHOUT_ONEDNN := tests/grappler_pass/costs/test_device_profile.py \
	tests/grappler_pass/eligibility/test_fused_half.py \
	tests/grappler_pass/fusions/test_cases.py \
	tests/grappler_pass/fusions/test_kept_weights.py \
	tests/grappler_pass/graph/test_fusions.py \
	tests/grappler_pass/planning/test_product_epilogues.py \
	tests/grappler_pass/rewriting/test_patterns_numerics.py \
	tests/tf_amp/config/test_devices.py \
	tests/tf_amp/training/fusions/test_batch_statistics.py \
	"tests/test_end_to_end.py::$(LEARNS)[function]" \
	"tests/test_end_to_end.py::$(LEARNS)[keras]"
# Processes of tests compile what they import once, also where the environment says not.
export PYTHONDONTWRITEBYTECODE :=
# Not empty where TensorFlow has oneDNN on by itself; elsewhere all tests run without.
HAS_ONEDNN := $(shell grep -oEm1 'avx(512)?_vnni|avx512_bf16|amx_tile' /proc/cpuinfo | head -1)
# A file's tests share what is set up for them, and so stay in one process. Their order
# is that of tests/conftest.py, not by the number of tests.
PYTEST := python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Of few tests a third process would take longer to start than it saves.
FEWER := $(if $(filter 1,$(JOBS)),,-n 2)

.PHONY: demo docs test test-fast test-long test-versions lint bench gpu fuzz dist clean
.DEFAULT_GOAL := test

demo: $(VENV)/.installed-demo
	$(BIN)/python examples/demo.py

test: lint
	$(if $(HAS_ONEDNN),TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/$(PYTEST) -q $(FEWER) \
		$(WITHOUT_ONEDNN))
	$(BIN)/$(PYTEST) -m 'not long' --durations=20

# Without the files that take longest: a few tests of each room, in 90 seconds.
test-fast: lint
	$(BIN)/$(PYTEST) -m 'not slow and not long'

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.prediction
	$(BIN)/python -m benchmarks.first_step
	$(BIN)/python -m benchmarks.first_steps
	$(BIN)/python -m benchmarks.pass_time
	$(BIN)/python -m benchmarks.casts

# What a machine with an NVIDIA GPU shows, in an environment of its own: tests, of which
# six processes share the GPU, and in benchmarks/gpu training steps, in so many minutes.
MINUTES ?= 8
gpu: .venv-gpu/.installed
	.venv-gpu/bin/python -m pytest -n 6 --dist loadgroup -m gpu tests/gpu
	.venv-gpu/bin/python -m benchmarks.gpu --minutes $(MINUTES)

# Random graphs run before and after the pass: make fuzz N=20000
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz $(N)

# What takes too long for each change: all plans, what every command prints, and each
# campaign with the seeds whose results tests/long_runs.md has.
test-long: $(VENV)/.installed-test .venv-examples/.installed
	TF_CPP_MIN_LOG_LEVEL=2 $(BIN)/python -m tests.golden_plans --check
	$(BIN)/python -m tests.snapshots --check
	$(BIN)/python -m tests.yardstick 100 --note
	$(BIN)/python -m tests.programs_of_users --note
	$(BIN)/python -m tests.skips 50 --note
	$(BIN)/python -m tests.fuzz 100 --note
	$(BIN)/python -m tests.kernels 300 --through O2 --note
	$(BIN)/python -m tests.kernels 300 --through O2 --directed --note
	$(BIN)/$(PYTEST) -q -m long
	TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/$(PYTEST) -q tests/grappler_pass/fusions
	SHARING_PROCESSES=64 $(BIN)/$(PYTEST) -q tests/tf_amp/compare/test_kept_file.py
	$(BIN)/python -m pip install --editable '.[trackers]'
	$(BIN)/$(PYTEST) -q tests/test_docs.py -k trackers
	.venv-examples/bin/python -m pytest -q tests/test_examples.py -k of_other_packages

# The pages of docs/ and of docstrings, in build/site; a broken link fails.
docs: $(VENV)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The tests in one environment per version, all of them before the first failure counts.
test-versions: $(VERSIONS:%=.venv-tf%/.installed)
	failed=; for version in $(VERSIONS); do \
		echo "TensorFlow $$version"; \
		.venv-tf$$version/bin/$(PYTEST) -q $(TESTS) \
			|| failed="$$failed $$version"; \
	done; test -z "$$failed" || (echo "failed with:$$failed"; exit 1)

# Sessions of TensorFlow 2.20 ask protobuf for what its release 7 has no more.
.venv-tf%/.installed: $(SOURCES)
	$(PYTHON) -m venv .venv-tf$*
	.venv-tf$*/bin/pip install --editable '.[demo,test]' 'tensorflow-cpu==$*.*' \
		'protobuf<7'
	.venv-tf$*/bin/pip install --no-deps 'tf_keras==$*.*'
	touch $@

# KerasHub brings `tensorflow`, which would lie over the `tensorflow-cpu` of .venv.
.venv-examples/.installed: $(SOURCES)
	$(PYTHON) -m venv .venv-examples
	.venv-examples/bin/pip install --editable '.[examples,test]'
	touch $@

.venv-gpu/.installed: $(SOURCES)
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/pip install --editable '.[cuda,test]'
	touch $@

# In dist/: the sources and a wheel for each kind of CPU, checked. Each Python that is
# installed then takes the wheel from folders alone, without a compiler and a network.
dist: $(VENV)/.installed-test
	rm -rf dist
	$(BIN)/python -m build --sdist --no-isolation --outdir dist . > /dev/null
	$(MAKE) manylinux2014_x86_64 manylinux2014_aarch64
	$(BIN)/twine check --strict dist/*
	$(MAKE) $(foreach python,$(PYTHONS),tried-$(python))

tried-%:
	$* -m venv --clear .venv-dist
	.venv-dist/bin/pip download -q -d .venv-dist/packages --find-links dist 'tf-amp[cpu]'
	PATH= .venv-dist/bin/pip install -q --no-index --find-links .venv-dist/packages \
		'tf-amp[cpu]'
	cp examples/quickstart.py .venv-dist
	cd .venv-dist && PATH= bin/python quickstart.py

# Built by ziglang against the libc of manylinux2014.
manylinux2014_%:
	CC="$(abspath $(BIN))/python -m ziglang cc -target $*-linux-gnu.2.17" \
		$(BIN)/python -m pip wheel . -q --no-deps --no-build-isolation -w dist \
		-C--build-option=--plat-name=$@
	$(BIN)/auditwheel show dist/*_$*.whl | grep "manylinux_2_17_$*"

clean:
	rm -rf $(VENV) .venv-gpu .venv-tf* .venv-dist .venv-examples build dist *.egg-info grappler_pass/_*.so

$(VENV)/.installed-demo: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --editable '.[cpu,demo]'
	touch $@

$(VENV)/.installed-test: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --editable '.[cpu,demo,docs,test]'
	$(BIN)/python -m pip install --no-deps "tf_keras~=$$($(TF_VERSION))"
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || (rm -rf $(VENV); exit 1)
