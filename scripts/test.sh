#!/usr/bin/env bash
# Lint, then every test: the examples of domain and decisions, which must reach every branch; what else needs no cluster,
# on all cores; then the lab's, one after the other, on one lab.
# With arguments, only pytest with these arguments. The real servers are built once into a cache outside the tree.
set -euo pipefail
# Tests start the package in hundreds of processes: without stored bytecode each of them would compile it anew.
unset PYTHONDONTWRITEBYTECODE
if [ "$#" -gt 0 ]; then
  exec pytest "$@"
fi
ruff check .
ruff format --check .
mypy
lint-imports
parallel=(-n "${GPUBANK_TEST_WORKERS:-2}" --dist worksteal)
pytest "${parallel[@]}" -m "core" --cov --cov-report=term-missing:skip-covered
pytest "${parallel[@]}" -m "not lab and not core"
pytest -m lab
