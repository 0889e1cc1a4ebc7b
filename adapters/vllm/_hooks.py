"""Names of vLLM that are replaced, and methods that never raise into vLLM."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from .._hooks import Function, module

__all__ = ["Function", "Refused", "class_of", "guarded", "logger", "module", "put"]

logger = logging.getLogger("vllm.waymark")


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
