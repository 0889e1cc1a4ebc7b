"""Calls of other packages that an adapter wraps."""

from __future__ import annotations

import functools
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


@functools.lru_cache(maxsize=None)
def class_around(of: type, before: Function | None, after: Function) -> type:
    """A class like `of`, a class of torch's modules, around whose calls are ``before(module, args,
    kwargs)`` and ``after(module, out)``, which returns what the call returns: outside of all hooks,
    whoever sets them and when. A module gets it by its ``__class__``. What torch.compile made of it
    before does not run then, since that depends on classes, while it does not look at hooks. A copy
    of the module is of class `of`."""
    disable = module("torch").compiler.disable
    enter, leave = None if before is None else disable(before), disable(after)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if enter is not None:
            enter(self, args, kwargs)
        return leave(self, of.__call__(self, *args, **kwargs))  # type: ignore[operator]

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        kind, (_, *more), *state = of.__reduce_ex__(self, protocol)
        return (kind, (of, *more), *state)

    names = {"__call__": disable(__call__, recursive=False), "__reduce_ex__": __reduce_ex__}
    return type(of.__name__, (of,), {**names, "__module__": of.__module__})
