"""Methods of Megatron's objects that are replaced as long as a context is attached."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("waymark.megatron")

Function = Callable[..., Any]


def module(name: str) -> Any:
    """A module of Megatron or torch, whose types are not ours."""
    return importlib.import_module(name)


class Hooks:
    """The attributes of objects that were replaced."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, bool, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        """Replaces method ``name`` of the object ``owner`` by ``make(method)``."""
        method = getattr(owner, name)
        self.replace(owner, name, functools.wraps(method)(make(method)))

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute of the object ``owner``."""
        own = name in vars(owner)
        self._replaced.append((owner, name, value, own, getattr(owner, name)))
        setattr(owner, name, value)

    def remove(self) -> None:
        """Puts back what was there. What somebody else has replaced since stays: it may call the
        hook, which then only calls what it replaced."""
        for owner, name, value, own, before in reversed(self._replaced):
            if vars(owner).get(name) is not value:
                continue
            if own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)
        self._replaced.clear()
