"""Calls of other packages that an adapter wraps."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from ._errors import FailedPreconditionError

Function = Callable[..., Any]
Method = TypeVar("Method", bound=Function)


class Refused(ValueError):
    """An engine or a model cannot be captured, or replayed, as it is; names what and why."""


def module(name: str) -> Any:
    """A module of another package, whose types are not ours."""
    return importlib.import_module(name)


def name_of(name: str) -> Any:
    """A name of another package's module. Refused if it is not there."""
    where, _, last = name.rpartition(".")
    found = getattr(module(where), last, None)
    if found is None:
        raise Refused(f"waymark: this {name.partition('.')[0]} is refused: {name} is not there")
    return found


def put(owner: Any, name: str, around: Function) -> None:
    """Calls of a function of a class or module become ``around(function, *args, **kwargs)``, once
    in a process. Refused if it is not there."""
    function = getattr(owner, name, None)
    if function is None:
        raise Refused(f"waymark: {owner.__name__} is refused: it has no {name}")
    if not getattr(function, "_waymark", False):

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return around(function, *args, **kwargs)

        call._waymark = True  # type: ignore[attr-defined]
        setattr(owner, name, call)


class Part:
    """A part of an adapter that never raises into its engine: what its methods raise ends the
    capture."""

    failure = ""
    """Why the capture has ended."""
    log: logging.Logger

    def fail(self, error: BaseException) -> None:
        """Ends the capture."""
        if not self.failure:
            self.failure = f"{type(error).__name__}: {error}"
            self.log.error("waymark: capture ends: %s", self.failure, exc_info=error)


def ends(method: Method) -> Method:
    """A method of a Part that returns None if it raises, and ends the capture."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **more: Any) -> Any:
        try:
            return method(self, *args, **more)
        except Exception as error:
            self.fail(error)
            return None

    return cast(Method, call)


def guarded(method: Method) -> Method:
    """The same, which does nothing when the capture has ended."""
    ending = ends(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        return None if self.failure else ending(self, *args)

    return cast(Method, call)


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


_around: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # (after, before)


def put_around(of: Any, after: Function, before: Function | None = None) -> Function:
    """Around the calls of a module of torch are ``before(args, kwargs)`` and ``after(out)``, which
    returns what the call returns: outside of all hooks, whoever sets them and when. The module has
    another class until the function is called that is returned. What torch.compile made of it does
    not run then, since that depends on classes, while it does not look at hooks."""
    if of in _around:
        raise FailedPreconditionError(
            f"{type(of).__name__} is replayed or recorded already: leave that context first"
        )
    own: Any = type(of)
    ours = _class_around(own)
    _around[of] = after, before
    of.__class__ = ours

    def end() -> None:
        del _around[of]
        if type(of) is ours:  # else somebody has derived a class from it, which passes by
            of.__class__ = own

    return end


@functools.lru_cache(maxsize=None)
def _class_around(of: Any) -> type:
    def enter(self: Any, args: Any, kwargs: Any) -> None:
        _, before = _around.get(self, (None, None))
        if before is not None:
            before(args, kwargs)

    def leave(self: Any, out: Any) -> Any:
        after, _ = _around.get(self, (None, None))
        return out if after is None else after(out)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        not_traced[0](self, args, kwargs)
        return not_traced[1](self, of.__call__(self, *args, **kwargs))

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # a copy is of the module's own class
        kind, (_, *more), *state = of.__reduce_ex__(self, protocol)
        return (kind, (of, *more), *state)

    disable = module("torch").compiler.disable
    not_traced = disable(enter), disable(leave)
    names = {"__call__": disable(__call__, recursive=False), "__reduce_ex__": __reduce_ex__}
    return type(of.__name__, (of,), {**names, "__module__": of.__module__})
