"""Wrapping methods of vLLM's classes, so that nothing of ours raises into vLLM; times of the hooks."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

logger = logging.getLogger("vllm.waymark")

TIMES = os.environ.get("WAYMARK_VLLM_TIMES", "0") == "1"
_times: defaultdict[str, list[int]] = defaultdict(list)
_LATEST = 100_000

Function = Callable[..., Any]


def module(name: str) -> Any:
    """A module of vLLM or torch, whose types are not ours."""
    return importlib.import_module(name)


def wrap(owner: type, name: str, make: Callable[[Function], Function]) -> None:
    """Replaces method ``name`` of ``owner`` by ``make(method)``, once in a process."""
    method = getattr(owner, name)
    if getattr(method, "_waymark", False):
        return
    wrapped = functools.wraps(method)(make(method))
    wrapped._waymark = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


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
