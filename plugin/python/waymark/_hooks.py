"""Arguments of methods of other packages that an adapter wraps."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

Function = Callable[..., Any]


def module(name: str) -> Any:
    """A module of another package, whose types are not ours."""
    return importlib.import_module(name)


class Argument:
    """Of a method's calls: a parameter, by position or by name, whatever others there are."""

    __slots__ = ("_default", "_name", "_place")

    def __init__(self, known: Sequence[inspect.Parameter], wanted: inspect.Parameter) -> None:
        """known: parameters of the method, without self. One that is wanted with a default need not
        be there; another one: LookupError."""
        self._name, self._place, self._default = wanted.name, -1, wanted.default
        for place, parameter in enumerate(known):
            if parameter.name == wanted.name:
                self._default = parameter.default
                if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                    self._place = place
                return
        if wanted.default is inspect.Parameter.empty:
            raise LookupError(wanted.name)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Its value; Parameter.empty in a call that lacks it. args, kwargs: of a call, behind
        self."""
        if 0 <= self._place < len(args):
            return args[self._place]
        return kwargs.get(self._name, self._default)

    def put(
        self, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call with another value."""
        if 0 <= self._place < len(args):
            return (*args[: self._place], value, *args[self._place + 1 :]), kwargs
        return args, {**kwargs, self._name: value}


def parameters(function: Function, behind: int) -> list[inspect.Parameter]:
    """Of a function, without the first `behind`."""
    return list(inspect.signature(function).parameters.values())[behind:]
