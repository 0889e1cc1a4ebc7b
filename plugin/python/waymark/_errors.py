"""Exceptions: one class per status of the library, derived from WaymarkError."""

from __future__ import annotations

from typing import ClassVar


class WaymarkError(Exception):
    """A call that failed. The text names argument, rule and value.

    Errors of events, and of the number and rows of a step, also have ``rule`` (the number of
    ``wm_rule`` in waymark.h, 0: none),
    ``index`` (the event or row) and ``value`` (the offending value).
    """

    status: ClassVar[int] = 2

    def __init__(self, text: str = "", rule: int = 0, index: int = 0, value: int = 0) -> None:
        super().__init__(text)
        self.rule = rule
        self.index = index
        self.value = value

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.rule, self.index, self.value)


class CancelledError(WaymarkError):
    """The call was cancelled."""

    status = 1


class UnknownError(WaymarkError):
    """Another failure, such as a file that cannot be written."""

    status = 2


class InvalidArgumentError(WaymarkError, ValueError):
    """An argument breaks a rule, in any state."""

    status = 3


class DeadlineExceededError(WaymarkError, TimeoutError):
    """A wait took longer than its timeout."""

    status = 4


class NotFoundError(WaymarkError, LookupError):
    """There is no such step, version or finding."""

    status = 5


class AlreadyExistsError(WaymarkError):
    """It exists already, such as a layer that is bound."""

    status = 6


class PermissionDeniedError(WaymarkError, PermissionError):
    """The operating system denies it."""

    status = 7


class ResourceExhaustedError(WaymarkError):
    """Memory, or another fixed resource, is exhausted."""

    status = 8


class FailedPreconditionError(WaymarkError, RuntimeError):
    """Not allowed in this state, such as a call of a capture that is closed."""

    status = 9


class AbortedError(WaymarkError):
    """Another rank could not take part."""

    status = 10


class OutOfRangeError(WaymarkError, IndexError):
    """A row, a block or a number is outside its range."""

    status = 11


class UnimplementedError(WaymarkError, NotImplementedError):
    """This build of the library does not have it."""

    status = 12


class InternalError(WaymarkError, RuntimeError):
    """A defect of the library, or a failed allocation within a call."""

    status = 13


class UnavailableError(WaymarkError, RuntimeError):
    """Not available now, such as a device that does not exist."""

    status = 14


class DataLossError(WaymarkError, RuntimeError):
    """Data is damaged or incomplete."""

    status = 15


_CLASSES: dict[int, type[WaymarkError]] = {
    c.status: c for c in WaymarkError.__subclasses__()
}


def error_of(
    status: int, text: str, rule: int = 0, index: int = 0, value: int = 0
) -> WaymarkError:
    """The exception of a status. Called by the extension."""
    return _CLASSES.get(status, WaymarkError)(text, rule, index, value)


def status_and_text_of(error: BaseException) -> tuple[int, str]:
    """The status of an exception that a page source raised, and its text. Called by the
    extension."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, WaymarkError):
        return error.status, text
    for kinds, status in (
        (TimeoutError, DeadlineExceededError.status),
        (NotImplementedError, UnimplementedError.status),
        (MemoryError, ResourceExhaustedError.status),
        (OSError, UnavailableError.status),
    ):
        if isinstance(error, kinds):
            return status, text
    return UnknownError.status, text
