"""Factories that don't come back or can't be used. They import no torch, so that a worker starts quickly."""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def create(config: Mapping[str, Any]) -> Any:
    """Wait for ever."""
    threading.Event().wait()


def wait_with_a_child(config: Mapping[str, Any]) -> Any:
    """Start a child, write both process numbers to the pipe at `tell`, and wait for ever."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    Path(config["tell"]).write_text(f"{os.getpid()} {child.pid}")
    threading.Event().wait()


def hold_the_interpreter(config: Mapping[str, Any]) -> Any:
    """Write the process number to the pipe at `tell`, and sleep in C without letting other threads run."""
    sleep = ctypes.PyDLL(None).sleep
    Path(config["tell"]).write_text(str(os.getpid()))
    sleep(100_000)


def die(config: Mapping[str, Any]) -> Any:
    """Say something, a warning of Python first, and end with exit status 3."""
    logged = b"W1201 03:40:49.629000 4331 flop_counter.py:29] triton not found\n"
    warned = b"/lib/old.py:3: DeprecationWarning: use new\n  warnings.warn(\n"
    os.write(2, logged + warned + b"first line\nthe driver is too old\n")
    os._exit(3)


def abort(config: Mapping[str, Any]) -> Any:
    """End as C++ does of an exception that nobody catches."""
    said = b"terminate called after throwing an instance of 'c10::Error'\n  what():  Unrecognized key 'garbage'\n"
    os.write(2, said + b"frame #0: c10::Error::Error(...)\nframe #1: <unknown function>\n")
    os.abort()


def fail(config: Mapping[str, Any]) -> Any:
    """Raise an error that hides another."""
    try:
        int(str(config["rank"]))
    except ValueError as error:
        raise RuntimeError("the config can't be used") from error
