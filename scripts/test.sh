#!/usr/bin/env bash
# Lint, then every test: first what needs no cluster, on all cores; then the lab's, one after the other, on one lab.
# With arguments, only pytest with these arguments. The real servers are built once into a cache outside the tree.
set -euo pipefail
if [ "$#" -gt 0 ]; then
  exec pytest "$@"
fi
ruff check .
ruff format --check .
mypy
lint-imports
pytest -n "${GPUBANK_TEST_WORKERS:-2}" --dist worksteal -m "not lab"
pytest -m lab
