"""Factories that don't come back or can't be used. They import no torch, so that a worker starts quickly."""

import os
import threading
from collections.abc import Mapping
from typing import Any


def create(config: Mapping[str, Any]) -> Any:
    """Wait for ever."""
    threading.Event().wait()


def die(config: Mapping[str, Any]) -> Any:
    """Say something and end with exit status 3."""
    os.write(2, b"first line\nthe driver is too old\n")
    os._exit(3)


def fail(config: Mapping[str, Any]) -> Any:
    """Raise an error that hides another."""
    try:
        int(str(config["rank"]))
    except ValueError as error:
        raise RuntimeError("the config can't be used") from error
