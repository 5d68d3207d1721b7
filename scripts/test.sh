#!/usr/bin/env bash
# Lint, then every test. The real servers are built once into a cache outside the tree.
set -euo pipefail
ruff check .
ruff format --check .
mypy
lint-imports
pytest "$@"
