"""The contents of the package: the library, its headers, the command line tool."""

from __future__ import annotations

import importlib.metadata
import os

from . import _core
from ._errors import NotFoundError

_HERE = os.path.dirname(os.path.abspath(__file__))


def _there(path: str, what: str) -> str:
    if not os.path.exists(path):
        raise NotFoundError(f"{what}: not part of this installation of waymark ({path})")
    return path


def build_info() -> dict[str, str]:
    """How the library was built: version, abi, compiler, cuda (its version, or none), archs, redis
    (its client library, or none), host (instruction sets)."""
    pairs = (pair.partition("=") for pair in _core.build_info().split())
    return {name: value for name, _, value in pairs}


def library_path() -> str:
    """The path of the library of the package, the extension module: it exports wm_get_api_v1, for
    code in C or C++ within this process."""
    return _there(_core.__file__, "the extension module")


def include_dir() -> str:
    """The folder of waymark.h and the other C headers, for programs in C or C++."""
    return os.path.dirname(_there(os.path.join(_HERE, "include", "waymark.h"), "waymark.h"))


def tool_path() -> str:
    """The path of the command line tool ``waymark``. NotFoundError if it is not part of the
    package."""
    try:
        files = importlib.metadata.files("waymark") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "waymark" and file.parent.name == "bin":
            return _there(os.path.normpath(file.locate()), "the tool waymark")
    return _there(os.path.join(_HERE, "bin", "waymark"), "the tool waymark")
