#!/usr/bin/env bash
# All tests. Arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$VENV/bin/python" -m pytest -n "${AUTOTUNE_TEST_JOBS:-2}" --dist loadgroup "$@"
