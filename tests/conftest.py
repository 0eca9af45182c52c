"""What holds for all tests: cases that share an `xdist_group` run in one process.

pytest-xdist 3.8 writes the group into an attribute that pytest 9.2 no longer reads, so `--dist loadgroup`
distributes as if there were no groups (pytest-xdist issue 1386). Where that is so, the group is put where
pytest reads it.
"""

from typing import Any

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    if not getattr(config.option, "loadgroup", False):  # xdist sets it in its workers
        return
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and "@" not in item.nodeid.rpartition("]")[2] and hasattr(item, "_id"):
            item._id = type(item._id).parse(f"{item.nodeid}@{mark.args[0]}")
