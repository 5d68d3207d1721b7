#!/usr/bin/env bash
# Make .venv from the lock file. Installs Debian's venv module where it is missing and we may.
set -euo pipefail
PYTHON=${PYTHON:-python3}
"$PYTHON" - <<'PY' || { echo "gpubank needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
import sys
sys.exit(sys.version_info < (3, 11))
PY
if ! "$PYTHON" -c 'import ensurepip' 2>/dev/null; then
  [ "$(id -u)" = 0 ] || { echo "python3-venv is missing: apt-get install python3-venv" >&2; exit 2; }
  apt-get update -qq && apt-get install -y -qq python3-venv
fi
[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
echo "installing the locked Python packages into .venv ..."
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
