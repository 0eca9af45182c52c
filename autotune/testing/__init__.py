"""Fakes and contract suites that others can import: tiny models, demo data, the fake NVML."""

import trainer  # noqa: F401 - first of all: keeps the libraries off the network and bitsandbytes quiet
