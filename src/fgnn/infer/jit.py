"""Compile inner loops that do not vectorise to machine code, with numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from fgnn.errors import need

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function at its first call; threads run it side by side, and later processes load it from disk.

    A module that uses this is imported where it is needed, so that `import fgnn` works without numba.
    """
    return cast("Function", need("numba").njit(cache=True, nogil=True, error_model="numpy")(function))
