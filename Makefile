# Two commands to start: `make demo` and `make test`; both call `make setup` first.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
unexport PYTHONDONTWRITEBYTECODE  # an image's setting: every process would compile the package anew

.PHONY: help setup lock demo test matrix lint generate clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.ready  ## make .venv with everything that the lock file pins

.venv/.ready: requirements.lock pyproject.toml
	@PYTHON="$(PYTHON)" bash scripts/setup.sh
	@touch $@

lock:  ## resolve pyproject.toml anew into requirements.lock (needs uv)
	uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links -q -o requirements.lock

lint: setup  ## ruff, mypy, import-linter
	ruff check . && ruff format --check . && mypy && lint-imports

demo: setup  ## the main job with a real training run; KEEP=1 leaves it running, CLUSTER=lab plays on real Kueue
	@python -m examples.demo.play $(if $(KEEP),--keep) $(if $(CLUSTER),--cluster $(CLUSTER))

test: setup  ## everything: lint, unit, contract, lab
	@bash scripts/test.sh

matrix: setup  ## every crash of every process at every phase of a recall, on the lab; hours
	@python -m tests.matrix

generate: setup  ## write CRDs, JSON Schema and reference docs from the models
	gpubank schema write

clean:  ## remove what setup and tests made in the tree
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
