#!/usr/bin/env bash
# Everything that is checked, for a laptop and for CI: format, lint, types, import floors, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
ruff format --check .
ruff check .
mypy
lint-imports
# two processes of one thread each are faster than one of two, and do not fight over the cores
OMP_NUM_THREADS=1 python -m pytest -n 2 --dist worksteal "$@"
