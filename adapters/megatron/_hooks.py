"""Methods of Megatron's objects that are replaced as long as a context is attached."""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

from .._errors import FailedPreconditionError
from .._hooks import Argument, Function, Refused, module, parameters, put_around

__all__ = ["Function", "Hooks", "Refused", "keep_choice", "logger", "module"]

logger = logging.getLogger("waymark.megatron")


class Hooks:
    """Attributes of objects that are replaced: prepared one by one, installed as a whole."""

    def __init__(self) -> None:
        self._prepared: list[tuple[Any, str, Any]] = []
        self._replaced: list[tuple[Any, str, Any, bool, Any]] = []
        self._active = False

    def wrap(self, owner: Any, name: str, hook: Function, reads: Function | None = None) -> None:
        """Prepares that ``hook(call, ...)`` runs in place of method ``name`` of ``owner``.
        ``call()`` is Megatron's method with all arguments of the caller. The other parameters of
        the hook, or those of ``reads``, are parameters of the method, found by their names; one
        with a default need not exist. Refused if the method, or one of its parameters, does not
        exist."""
        method = getattr(owner, name, None)
        if method is None:
            raise Refused(f"waymark: {type(owner).__name__} is refused: it has no {name}")
        # Megatron calls it with the names of its class, whatever has replaced the method since.
        own = getattr(type(owner), name, None)
        known = parameters(own.__get__(owner) if inspect.isfunction(own) else method, 0)
        try:
            wanted = parameters(hook, 1) if reads is None else parameters(reads, 0)
            read = [Argument(known, one) for one in wanted]
        except LookupError as error:
            raise Refused(
                f"waymark: {type(owner).__name__} is refused: its {name} has no parameter "
                f"{error.args[0]}"
            ) from None

        @functools.wraps(method)
        def call(*args: Any, **more: Any) -> Any:
            function = functools.partial(method, *args, **more)
            if not self._active:
                return function()
            values = [value(args, more) for value in read]
            if any(value is inspect.Parameter.empty for value in values):
                return function()  # which raises a TypeError
            return hook(function, *values)

        self.replace(owner, name, call)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Prepares that an attribute of the object ``owner`` is replaced."""
        self._prepared.append((owner, name, value))

    def install(self) -> None:
        """Replaces what was prepared. If it fails, remove() puts back what was there."""
        for owner, name, value in self._prepared:
            before = getattr(owner, name)
            self._replaced.append((owner, name, value, name in vars(owner), before))
            setattr(owner, name, value)
        self._prepared.clear()
        self._active = True

    def remove(self) -> None:
        """Puts back what was there. What somebody else has replaced since stays: it may call the
        hook, which then only calls what it replaced."""
        self._active = False
        for owner, name, value, own, before in reversed(self._replaced):
            if vars(owner).get(name) is not value:
                continue
            if own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)
        self._replaced.clear()


def keep_choice(router: Any, name: str) -> Function:
    """What a router chooses goes to its experts: an error in the forward, if a hook or a wrapper
    replaces it on the way. Until the function is called that is returned."""
    chosen: list[Any] = []
    megatron = router.routing

    def routing(*args: Any, **more: Any) -> Any:
        out = megatron(*args, **more)
        chosen[:] = out[1], _writes(out[1])
        return out

    def check(out: Any) -> Any:
        if chosen and (out[1] is not chosen[0] or _writes(out[1]) != chosen[1]):
            raise FailedPreconditionError(
                f"replay: what a router chooses goes to its experts, got {name} with a hook, or a "
                "wrapper, that returns other experts"
            )
        chosen.clear()
        return out

    end = put_around(router, check)
    router.routing = routing

    def let_go() -> None:
        del router.routing
        end()

    return let_go


def _writes(tensor: Any) -> int:
    return 0 if tensor.is_inference() else tensor._version
