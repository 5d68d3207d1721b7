#!/usr/bin/env bash
# Lint, then every test: the examples of domain and decisions, which must reach every branch; what else needs no cluster,
# on all cores; then the lab's, on two labs side by side.
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
# Half as many processes again as cores, six at most: tests of workflows and processes wait a third of their time.
cores=$(nproc 2> /dev/null || echo 2)
parallel=(-n "${GPUBANK_TEST_WORKERS:-$(((cores > 4 ? 4 : cores) * 3 / 2))}" --dist worksteal)
# The lab's servers and their compiler collect garbage less often where there is memory (an API server then takes up to
# 2 GiB, and there are four): the lab's tests took 720 s instead of 827.
limit=$(cat /sys/fs/cgroup/memory.max 2> /dev/null || true)
gibibytes='/^MemTotal/ {have = $2 * 1024; print int((limit + 0 > 0 && limit + 0 < have ? limit : have) / 2 ^ 30)}'
memory=$(awk -v limit="$limit" "$gibibytes" /proc/meminfo 2> /dev/null || echo 0)
if [ "$memory" -ge 20 ]; then export GOGC="${GOGC:-400}"; fi
pytest "${parallel[@]}" -m "core" --cov --cov-report=term-missing:skip-covered
# The servers before the tests, so that their progress is seen; where they cannot be built the tests say so themselves.
servers=(--with temporal --with prometheus)
if [ "$(id -u)" = 0 ]; then servers+=(--with kubelet); fi
gpubank lab build "${servers[@]}" || true
pytest "${parallel[@]}" -m "not lab and not core"
# Two labs, each with modules of its own (tests/plugins/groups.py); in the order of names, so that a long one is not last.
pytest -n "${GPUBANK_TEST_LABS:-2}" --dist loadfile --no-loadscope-reorder -m lab
