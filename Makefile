# The two commands of the README are `make profile` and `make test`; each sets up what it needs.

PYTHON ?= python3
# `make test TORCH=newest` takes torch from constraints-newest.txt, TORCH=oldest from constraints-oldest.txt.
TORCH ?=
CONSTRAINTS := $(if $(TORCH),build/constraints-$(TORCH).txt,constraints.txt)
# A Python that is asked for has an environment of its own, such as .venv-3.13, and so has another torch: .venv-newest.
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
OWN := $(if $(filter file,$(origin PYTHON)),,-$(or $(VERSION),$(notdir $(PYTHON))))$(TORCH:%=-%)
VENV := .venv$(OWN)
INTEGRATIONS := .venv-integrations$(OWN)
AUDIT := .venv-audit
# Two thirds of all modules are never imported: those that are, are compiled then.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(CONSTRAINTS)

# Processes that share the tests, three for two cores by default; `make test JOBS=0` runs them in one process.
JOBS ?= auto
SHARED := -n $(JOBS) --dist loadgroup
# `make test TESTS=tests/recording` runs these alone.
TESTS ?=

# Without compiled modules, each of the many interpreters that tests start takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

# The recorder in C is built by an installation, and by no test; see setup.py.
NATIVE := setup.py $(wildcard native/*)

.PHONY: profile packages test test-versions test-newest test-programs test-chaos test-native fuzz test-gpu test-integrations golden lint house bench docs dist audit dev venv clean

profile: venv
	RECTIFIED_FLOW_PROFILE=1 $(VENV)/bin/python profile_training.py

test: venv
	$(VENV)/bin/python -m pytest $(SHARED) $(TESTS)

# The tests of `make test` with the newest torch, the oldest one, and each other Python that this machine has.
PYTHONS ?= python3.12 python3.13 python3.14 python3.15
test-versions:
	@failed=; run() { echo "make test $$*"; $(MAKE) --no-print-directory test "$$@" || failed="$$failed $$*"; }; \
	run TORCH=newest; run TORCH=oldest; \
	for name in $(PYTHONS); do \
	  found=; \
	  for path in $$name "$$(pyenv root 2>/dev/null)"/versions/*/bin/$$name; do \
	    $$path -c '' 2>/dev/null && found=$$path; \
	  done; \
	  if [ "$$found" ]; then run PYTHON=$$found; else echo "skipped: this machine has no $$name"; fi; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

# What relies on names that torch does not promise, with the newest one: a change there is seen here first. Epochs,
# traces and imports are seen by tests of instrumentation and by programs.
TORCH_TESTS := $(shell grep -l torch tests/instrumentation/test_*.py) tests/recording/test_data_loader.py $(patsubst %,tests/system/test_%.py, \
  capture compile manual_gradient_sync programs workers) \
  tests/system/test_ranks.py::test_ranks_that_end_together_are_in_the_summary_and_print_nothing_else
test-newest:
	$(MAKE) --no-print-directory test TORCH=newest TESTS="$(TORCH_TESTS)"

# Real trainings, which take long: most of tests/programs, each alone and under the profiler, groups of ranks, and most
# tests of capture windows.
test-programs: venv
	$(VENV)/bin/python -m pytest $(SHARED) -m programs tests/system tests/examples tests/trials

# Hostile surroundings: full and frozen disks, files of others, kills, signals, closed streams, neighbours.
test-chaos: venv
	$(VENV)/bin/python -m pytest $(SHARED) -m chaos tests/chaos

# Damaged journals, messages, traces and snapshots are read: never a traceback, never long, never much memory. Another
# SEED gives other files; KIND=journal reads one kind alone.
CASES ?= 10000
SEED ?= 0
fuzz: venv
	$(VENV)/bin/python -m tests.support.fuzz --cases $(CASES) --seed $(SEED) $(if $(KIND),--kind $(KIND))

# The tests of the recorder in C under AddressSanitizer, then with Python's debug allocator. Needs
# gcc. The sanitizer ends the process at an exception of C++, as torch raises them, if it is loaded before libstdc++ alone.
SANITIZED := build/sanitized
NATIVE_TESTS := tests/recording tests/instrumentation/test_fronts.py
test-native: venv
	CFLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover" \
	  $(VENV)/bin/python setup.py --quiet build_ext --force --build-lib $(SANITIZED) --build-temp $(SANITIZED)
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	  NATIVE_BUILD=$(SANITIZED) $(VENV)/bin/python -m pytest -p tests.support.native_build $(NATIVE_TESTS)
	$(VENV)/bin/python -X dev -m pytest $(NATIVE_TESTS)

# Tests that need an accelerator; skipped, with the reason, where torch finds none. -rP shows the figures.
test-gpu: venv
	$(VENV)/bin/python -m pytest -m gpu -rPs tests/gpu
	$(VENV)/bin/python -m benchmarks.device

# Frameworks that bring many packages stay out of the environment of `make test`.
test-integrations: $(INTEGRATIONS)/.made
	$(INTEGRATIONS)/bin/python -m pytest $(SHARED) -m integrations tests/integrations

# Texts of findings, after a change of one: read the difference before it is committed.
golden: venv
	$(VENV)/bin/python -m tests.diagnosis.test_cases

lint: venv
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python tools/check_words.py

# Size and structure: each figure, its limit of today, and the budget that it is to come to.
house: venv
	@$(VENV)/bin/python -m tests.support.house

bench: $(INTEGRATIONS)/.made
	$(INTEGRATIONS)/bin/python -m benchmarks

# The site in build/docs. Any warning, such as a link to a heading that does not exist, is an error. Needs no network
# once the packages are installed.
docs: $(VENV)/.made-docs
	$(VENV)/bin/python docs/reference.py --check
	$(VENV)/bin/python -m sphinx -n -W --keep-going -q -b html -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

$(VENV)/.made-docs: $(VENV)/.made
	$(VENV)/bin/python $(PIP) --editable '.[docs]'
	@touch $@

# The files of a release in dist/, checked as the package index checks them. The wheel is built from the sdist, so it
# also shows that the sdist is complete.
dist: venv
	rm -rf dist
	$(VENV)/bin/python -m build --quiet
	$(VENV)/bin/python -m twine check --strict dist/*

# Known vulnerabilities of the pinned packages. It asks the package index's service, so it is not a part of .ci/run;
# `make audit REQUIREMENTS=file` audits other versions. Strict: a package that the service does not know is a failure.
REQUIREMENTS ?= constraints.txt
audit:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.7'
	$(AUDIT)/bin/pip-audit --requirement $(REQUIREMENTS) --strict --no-deps --disable-pip --progress-spinner off

# What a contributor needs: the environment, and the hooks of .pre-commit-config.yaml where there is a git repository.
dev: venv
	@if [ -e .git ]; then $(VENV)/bin/pre-commit install; \
	  else echo "not a git repository: no pre-commit hooks to install"; fi

venv: $(VENV)/.made

$(VENV)/.made: $(VENV)/.packages $(NATIVE)
	$(VENV)/bin/python $(PIP) --editable '.[examples,dev]'
	@touch $@

# What the extras ask for, without this package: that changes no file here, so environments can be filled beside others.
EXTRAS := import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], \
  *(line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]), sep="\n")
packages: $(VENV)/.packages
$(VENV)/.packages: $(CONSTRAINTS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "training_profiler needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -c '$(EXTRAS)' examples dev > $(VENV)/requirements.txt
	$(VENV)/bin/python $(PIP) --requirement $(VENV)/requirements.txt
	@touch $@

# Of two lines for one package, the first counts.
build/constraints-%.txt: constraints-%.txt constraints.txt
	@mkdir -p build
	awk -F== '!seen[$$1]++' $^ > $@

# rectified-flow-pytorch asks for torchvision, which has no wheel for the CPU build of torch: hence no dependencies
# with it; traceinsight asks for JupyterLab, which no benchmark needs. The extra lists the others, and
# tests/integrations/stand_ins stands in for torchvision.
$(INTEGRATIONS)/.made: $(INTEGRATIONS)/.packages $(NATIVE)
	$(INTEGRATIONS)/bin/python $(PIP) --editable '.[examples,integrations]'
	@touch $@

$(INTEGRATIONS)/.packages: $(CONSTRAINTS) pyproject.toml
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -c '$(EXTRAS)' examples integrations > $(INTEGRATIONS)/requirements.txt
	$(INTEGRATIONS)/bin/python $(PIP) --requirement $(INTEGRATIONS)/requirements.txt
	$(INTEGRATIONS)/bin/python $(PIP) --no-deps rectified-flow-pytorch traceinsight
	@touch $@

clean:
	rm -f training_profiler/recording/*.so
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
