"""Wrapping methods of vLLM's classes, so that nothing of ours raises into vLLM; times of the
hooks."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._hooks import Argument, Function, module, parameters

__all__ = ["Argument", "Function", "Refused", "argument", "around", "class_of", "forget_times",
           "hook_times", "logger", "module", "starting", "timed", "whole", "wrap"]  # fmt: skip

logger = logging.getLogger("vllm.waymark")

TIMES = os.environ.get("WAYMARK_VLLM_TIMES", "0") == "1"
_times: defaultdict[str, list[int]] = defaultdict(list)
_LATEST = 100_000


class Refused(ValueError):
    """vLLM is configured in a way that cannot be captured, or lacks what the plugin needs; names
    what and why."""


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """What is raised while an engine starts says whose it is."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        text = f"waymark: the capture cannot start: {type(error).__name__}: {error}"
        raise Refused(text) from error


_pending: dict[tuple[type, str], Function] | None = None  # within whole(): what is to be there


def wrap(owner: type, name: str, make: Callable[[Function], Function]) -> None:
    """Replaces method ``name`` of ``owner`` by ``make(method)``, once in a process. Refused if it
    is not there."""
    method = getattr(owner, name, None)
    if method is None:
        raise Refused(f"waymark: this vLLM is refused: {owner.__qualname__}.{name} is not there")
    if getattr(method, "_waymark", False):
        return
    wrapped = functools.wraps(method)(make(method))
    wrapped._waymark = True  # type: ignore[attr-defined]
    if _pending is None:
        setattr(owner, name, wrapped)
    else:
        _pending[owner, name] = wrapped


def class_of(name: str) -> Any:
    """A class of vLLM, by its module and its name. Refused if it is not there."""
    where, _, kind = name.rpartition(".")
    owner = getattr(module(where), kind, None)
    if owner is None:
        raise Refused(f"waymark: this vLLM is refused: {name} is not there")
    return owner


@contextlib.contextmanager
def whole(install: bool = True) -> Iterator[None]:
    """Methods that are wrapped in it are replaced at its end, or, if something is refused, none.
    install: False: none, but what would be refused is."""
    global _pending
    before, _pending = _pending, {}
    try:
        yield
        for (owner, name), wrapped in _pending.items() if install else ():
            if before is None:
                setattr(owner, name, wrapped)
            else:
                before[owner, name] = wrapped
    finally:
        _pending = before


def argument(method: Function, name: str) -> Argument:
    """Argument ``name`` of a method of a class. Refused if the method has no such argument."""
    return _argument(method, inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD))


def _argument(method: Function, wanted: inspect.Parameter) -> Argument:
    try:
        return Argument(parameters(method, 1), wanted)
    except LookupError:
        raise Refused(
            f"waymark: this vLLM is refused: {method.__qualname__} has no argument {wanted.name!r}"
        ) from None


def around(hook: Function) -> Callable[[Function], Function]:
    """For wrap(): ``hook(call, self, ...)`` runs in place of a method. ``call()`` is vLLM's method
    with all arguments of the caller. The other parameters of the hook are arguments of the method;
    one for which the hook has a default need not exist."""

    def make(function: Function) -> Function:
        read = [_argument(function, wanted) for wanted in parameters(hook, 2)]

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = [one(args, kwargs) for one in read]
            return hook(functools.partial(function, self, *args, **kwargs), self, *given)

        return call

    return make


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
