# Two commands do everything:  make quick  and  make test.  `make help` lists the rest.
# Each makes its environment (.venv) when it is missing; all it needs is python3 (3.11 or newer), git and make.
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
READY := $(VENV)/.ready
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.DEFAULT_GOAL := help
.PHONY: help env quick test lint repro plan figures bench readme lab

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

env: $(READY)  ## the environment .venv, from the pip section of environment.yml

$(READY): environment.yml pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make environments (ensurepip is missing); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	sed -n 's/^      - //p' environment.yml > $(VENV)/requirements.txt
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	@touch $@

quick: $(READY)  ## the whole pipeline from nothing on a small corpus, in a folder of its own
	$(RUN) python -m smallinit repro --profile quick --jobs $(JOBS)
	@echo "look at workspaces/quick/figures/summary/headline.png and workspaces/quick/results/notebooks/"

test: $(READY) lint  ## lint, types, unit and end-to-end tests (every notebook is executed)
	$(RUN) python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(READY)  ## ruff and mypy
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

repro: $(READY)  ## bring the tracked default up to date: JOBS runs side by side, only what changed
	$(RUN) python -m smallinit repro --jobs $(JOBS)

plan: $(READY)  ## after an edit: what would rerun, without running it
	$(RUN) python -m smallinit repro --dry

figures: $(READY)  ## redraw all figures, tables and the summary from what git holds, offline
	$(RUN) python -m smallinit figures --jobs $(JOBS)

bench: $(READY)  ## training speed: ours beside other trainers, on the idle machine (about 15 minutes)
	$(RUN) python -m smallinit bench

readme: $(READY)  ## refresh the generated parts of README.md
	$(RUN) python -m smallinit readme

lab: $(READY)  ## JupyterLab on the notebooks, with this environment's kernel
	$(RUN) python -m smallinit lab
