#!/usr/bin/env bash
# The main job on whatever is here: a card if there is one, else the virtual GPU. Writes into demo-run/.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec "$VENV/bin/python" -m autotune.testing.demo "$@"
