# Sourced by demo.sh and test.sh: makes .venv in the repository once, and again when what it is made of changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}
VENV=${AUTOTUNE_VENV:-.venv}

"$PYTHON" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"Python {sys.version.split()[0]} is too old: autotune needs 3.11 or newer. Set PYTHON=/path/to/python3.11.")
try:
    import ensurepip  # noqa: F401
except ImportError:
    sys.exit("this Python has no ensurepip, so no virtual environment can be made: install python3-venv.")
PY

stamp=$(cat pyproject.toml constraints.txt | cksum)
if [ "$(cat "$VENV/.autotune-stamp" 2>/dev/null || true)" != "$stamp" ]; then
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
  printf '%s\n' "$stamp" > "$VENV/.autotune-stamp"
fi
