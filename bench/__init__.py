"""Measurements of what autotune and its trainer cost. Each module runs with `python -m bench.NAME`."""

import trainer  # noqa: F401 - first of all: keeps the libraries off the network and bitsandbytes quiet
