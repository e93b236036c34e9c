"""How functions are compiled: once for a machine, found again by every later process.

numba looks for its cache in NUMBA_CACHE_DIR, beside the source, and in the user's cache folder, and
gives up with an error if it can write to none of them. An image brings a filled cache that it may
not write to (non-root, read-only root file system): such a cache is copied to a temporary folder.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile on first use for this machine, without Python objects and without the GIL."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]
    except RuntimeError:  # there is nowhere to keep the result
        return njit(nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


def inlined(function: Function) -> Function:
    """Compile into every function that calls it."""
    return njit(inline="always", error_model="numpy")(function)  # type: ignore[no-any-return]


def _copy_unwritable_cache() -> None:
    given = os.environ.get("NUMBA_CACHE_DIR", "")
    if not given or not Path(given).is_dir() or os.access(given, os.W_OK):
        return
    folder = tempfile.mkdtemp(prefix="relay-numba-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(given, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    numba.config.CACHE_DIR = folder


_copy_unwritable_cache()
