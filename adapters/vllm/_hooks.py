"""Names of vLLM that are replaced; methods that never raise into vLLM; their times."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from .._hooks import Function, module

__all__ = ["Function", "Refused", "after_import", "class_of", "forget_times", "guarded",
           "hook_times", "logger", "module", "put", "timed"]  # fmt: skip

logger = logging.getLogger("vllm.waymark")

TIMES = os.environ.get("WAYMARK_VLLM_TIMES", "0") == "1"
_times: defaultdict[str, list[int]] = defaultdict(list)
_LATEST = 100_000


class Refused(ValueError):
    """vLLM is configured in a way that cannot be captured, or lacks what the plugin needs; names
    what and why."""


def class_of(name: str) -> Any:
    """A name of a module of vLLM. Refused if it is not there."""
    where, _, kind = name.rpartition(".")
    owner = getattr(module(where), kind, None)
    if owner is None:
        raise Refused(f"waymark: this vLLM is refused: {name} is not there")
    return owner


def put(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
    """Replaces a function of a class or module by ``make(function)``, once in a process."""
    function = getattr(owner, name, None)
    if function is None:
        raise Refused(f"waymark: this vLLM is refused: {owner.__name__}.{name} is not there")
    if not getattr(function, "_waymark", False):
        made = functools.wraps(function)(make(function))
        made._waymark = True  # type: ignore[attr-defined]
        setattr(owner, name, made)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls functions with modules when they have been imported: vLLM's are large, and not every
    process needs each."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[[Any], None]] = {}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        function = self.functions.pop(fullname, None)
        if function is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: Any) -> None:
                execute(module)
                function(module)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


_after_import = _AfterImport()


def after_import(name: str, function: Callable[[Any], None]) -> None:
    """Calls ``function(module)`` when a module has been imported, or at once."""
    if name in sys.modules:
        function(sys.modules[name])
        return
    if _after_import not in sys.meta_path:
        sys.meta_path.insert(0, _after_import)
    _after_import.functions[name] = function


def guarded(method: Function) -> Function:
    """A method of a half: does nothing when the capture has ended, and what it raises ends it."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        if self.failure:
            return None
        try:
            return method(self, *args)
        except Exception as error:
            self.fail(error)
            return None

    return call


def timed(name: str) -> Callable[[Function], Function]:
    """Collects the times of a function under WAYMARK_VLLM_TIMES=1; else the function itself."""

    def make(function: Function) -> Function:
        if not TIMES:
            return function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                if len(_times[name]) < _LATEST:
                    _times[name].append(time.perf_counter_ns() - start)

        return call

    return make


def hook_times() -> dict[str, dict[str, float]]:
    """Of each hook that ran in this process: calls, and p50 and p90 in microseconds. Empty without
    WAYMARK_VLLM_TIMES=1."""
    return {
        name: {
            "calls": len(ns),
            "p50": float(np.percentile(ns, 50)) / 1e3,
            "p90": float(np.percentile(ns, 90)) / 1e3,
        }
        for name, ns in sorted(_times.items())
    }


def forget_times() -> None:
    """Empties hook_times()."""
    _times.clear()
