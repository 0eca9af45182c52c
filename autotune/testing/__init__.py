"""Fakes and contract suites that others can import: tiny models, demo data, the fake NVML."""
