#!/usr/bin/env bash
# All tests. Arguments go to pytest. Fetches what the null GPU needs, once; without it those tests are skipped.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
"$VENV/bin/python" -m autotune null install || true
exec "$VENV/bin/python" -m pytest -n "${AUTOTUNE_TEST_JOBS:-2}" --dist loadgroup "$@"
