"""Measurements of what autotune and its trainer cost. Each module runs with `python -m bench.NAME`."""
