"""The contents of the package: the library and its headers."""

from __future__ import annotations

import os

from . import _core
from ._errors import NotFoundError

__all__ = ["build_info", "include_dir", "library_path"]


def build_info() -> dict[str, str]:
    """How the library was built: version, abi, compiler, cuda (its version, or none), archs, host
    (instruction sets), redis (its client library, or none)."""
    pairs = (pair.partition("=") for pair in _core.build_info().split())
    return {name: value for name, _, value in pairs}


def library_path() -> str:
    """The path of the library of the package, the extension module: it exports wm_get_api_v1, for
    code in C or C++ within this process."""
    return _core.__file__


def include_dir() -> str:
    """The folder of waymark.h and the other C headers, for programs in C or C++."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")
    if not os.path.exists(os.path.join(folder, "waymark.h")):
        raise NotFoundError(f"waymark.h: not part of this installation of waymark ({folder})")
    return folder
