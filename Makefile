# Everything is installed in .venv, once: again only when pyproject.toml or a version changes.
PYTHON ?= python3
LAB_ARGS ?=
LOCK_ARGS ?=
VENV_PYTHON := .venv/bin/python
INSTALLED := .venv/installed

# On Linux, pip installs PyTorch with CUDA, which is gigabytes. Without an NVIDIA GPU, pip also gets PyTorch's index of
# CPU builds, and prefers those. `make` first asks whether that index answers: if it does not, pip retries for seconds,
# for each package. An empty CPU_INDEX turns this off, and so does a PIP_EXTRA_INDEX_URL of your own.
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
SYSTEM := $(shell uname -s)
NVIDIA := $(wildcard /dev/nvidia* /proc/driver/nvidia $(addsuffix /nvidia-smi,$(subst :, ,$(PATH))))
ASK := from urllib.request import Request, urlopen; \
    urlopen(Request("$(CPU_INDEX)/torch/", headers={"User-Agent": "pip"}), timeout=5)
ifeq ($(SYSTEM)$(strip $(NVIDIA) $(PIP_EXTRA_INDEX_URL)),Linux)
EXTRA_INDEX = $(shell $(PYTHON) -c '$(ASK)' 2>/dev/null && echo --extra-index-url $(CPU_INDEX))
endif

.PHONY: help lab test test-elsewhere test-torch gpu gpu-kit bench endurance notebooks screenshot film site lock clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile

lab: $(INSTALLED)  ## open the lesson you worked on last in JupyterLab (LAB_ARGS="--no-browser --port 9999" are passed on)
	@$(VENV_PYTHON) -m course_lib.commands.cli lab $(LAB_ARGS)

test: $(INSTALLED)  ## check style and types, then run every test and every notebook
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy
	$(VENV_PYTHON) -m pytest

test-elsewhere: $(INSTALLED)  ## run every notebook with ranks that are processes, and as on an older CPU
	EVERY_LESSON=1 $(VENV_PYTHON) -m pytest tests/notebooks/test_elsewhere.py

# torch brings its own versions of CUDA's packages and of setuptools, so constraints.txt does not hold for those.
test-torch: TORCH := build/torch-$(VERSION)
test-torch:  ## run the tests of what uses torch most with a different one (VERSION=2.14.1), in build/
	@test -n '$(VERSION)' || { echo 'Name a release of torch: make test-torch VERSION=2.14.1' >&2; exit 1; }
	test -x $(TORCH)/bin/pip || $(PYTHON) -m venv $(TORCH)
	grep -vE '^(torch|setuptools|cuda|nvidia)' constraints.txt > $(TORCH)/constraints.txt
	$(TORCH)/bin/python -m pip install --disable-pip-version-check $(EXTRA_INDEX) \
	    --constraint $(TORCH)/constraints.txt --editable '.[test]' torch==$(VERSION)
	$(TORCH)/bin/python -m pytest tests/world tests/zero tests/meter tests/parallel notebooks/04-zero-1.ipynb

gpu: $(INSTALLED)  ## run the tests that need a GPU
	$(VENV_PYTHON) -m pytest -n 0 -m gpu tests

# The wheels are for Linux, on both kinds of CPU, and for every Python that the course takes: psutil's has the stable ABI.
KIT ?= build/gpu-kit
KIT_WHEELS ?= cloudpickle platformdirs psutil
gpu-kit:  ## collect what measures a GPU on a machine without a network, in build/gpu-kit/
	rm -rf $(KIT) && mkdir -p $(KIT)/wheels
	tar --create --exclude __pycache__ --exclude notebooks course_lib tests/gpu benchmarks LICENSE | tar --extract --directory $(KIT)
	mv $(KIT)/benchmarks/gpu/run-gpu-checks.sh $(KIT)
	for machine in $(if $(KIT_WHEELS),x86_64 aarch64); do \
	    $(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
	        --python-version 3.11 --abi abi3 --abi none --platform manylinux_2_28_$$machine --platform any \
	        --constraint constraints.txt --dest $(KIT)/wheels $(KIT_WHEELS) || exit 1; \
	done
	du -sh $(KIT)

bench: $(INSTALLED)  ## measure, print and write benchmarks/RESULTS.md
	$(VENV_PYTHON) -m benchmarks

endurance: $(INSTALLED)  ## an hour in one kernel, exercises with every case and more seeds, killed writers of the record, broken worlds of processes, 700 stopped runs
	ENDURANCE=1000 $(VENV_PYTHON) -m pytest -n 0 tests/progress/test_progress.py -k a_kill_loses_nothing
	SEEDS=3 $(VENV_PYTHON) -m pytest tests/exercises/test_every_exercise.py tests/exercises/test_answers.py
	ENDURANCE_SECONDS=3600 $(VENV_PYTHON) -m pytest -n 0 -s tests/test_endurance.py
	ENDURANCE=200 $(VENV_PYTHON) -m pytest -n 0 tests/world/test_processes_failure.py -k many_mixed
	STOPPED_RUNS=100 $(VENV_PYTHON) -m pytest -n 0 -s tests/world/test_stopped_runs.py

notebooks: $(INSTALLED)  ## execute every notebook and save its outputs, as they are shipped
	$(VENV_PYTHON) -m tests.notebooks.save

screenshot: $(INSTALLED)  ## take the pictures of the README and of links again: docs/screenshot.png, docs/static/share.png (needs Chromium)
	$(VENV_PYTHON) -m docs.screenshot
	$(VENV_PYTHON) -m docs.share

film: $(INSTALLED)  ## film the README's replay again: docs/film.png (needs Chromium)
	$(VENV_PYTHON) -m docs.film

site: $(INSTALLED)  ## write the site to build/site/ (needs npm)
	$(VENV_PYTHON) -m pip install --disable-pip-version-check $(EXTRA_INDEX) \
	    --constraint constraints.txt --editable '.[docs]'
	mkdir -p build/npm && cp docs/planner/package*.json build/npm
	npm ci --prefix build/npm --ignore-scripts --no-audit --no-fund
	$(VENV_PYTHON) -m sphinx -W --keep-going -d build/doctrees docs build/site
	@echo 'To read it: $(VENV_PYTHON) -m http.server --directory build/site'

# uv keeps the versions in the file that it writes, as far as they fit. Left out is what torch's CUDA build pins for itself.
lock: $(INSTALLED)  ## write constraints.txt again (LOCK_ARGS=--upgrade takes the newest versions)
	$(VENV_PYTHON) -m pip install --disable-pip-version-check uv
	mkdir -p build && cp constraints.txt build/constraints.txt
	$(VENV_PYTHON) -m uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-header --no-annotate \
	    $(LOCK_ARGS) --output-file build/constraints.txt pyproject.toml
	{ head -1 constraints.txt; sed 's/ ;.*//' build/constraints.txt | \
	    grep -vE '^(triton|cuda-toolkit|nvidia-(cu|nccl|nvshmem|nvtx))'; } > build/lock && mv build/lock constraints.txt

clean:  ## remove .venv and every cache
	rm -rf .venv build docs/lessons *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@test -x .venv/bin/pip || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo 'Sharded needs Python 3.11 or newer, and "$(PYTHON)" is not.' \
	         'Name one that is: make PYTHON=python3.12 lab' >&2; exit 1; }
	@test -x .venv/bin/pip || $(PYTHON) -m venv .venv || { \
	    echo 'Python could not make .venv. On Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	$(VENV_PYTHON) -m pip install --disable-pip-version-check $(EXTRA_INDEX) \
	    --constraint constraints.txt --editable '.[test]'
	@touch $@
