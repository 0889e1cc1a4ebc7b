"""Exceptions: one class per status that the library returns, derived from WaymarkError."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ._handle import Handle

__all__ = [
    "AlreadyExistsError", "CancelledError", "DataLossError", "DeadlineExceededError",
    "FailedPreconditionError", "InternalError", "InvalidArgumentError", "NotFoundError",
    "OutOfRangeError", "PutFailedError", "ResourceExhaustedError", "UnavailableError",
    "UnimplementedError", "UnknownError", "WaymarkError",
]  # fmt: skip


class WaymarkError(Exception):
    """A call that failed. The text names argument, rule and value.

    Errors of events, and of the number and rows of a step, also have ``rule`` (the number of
    ``wm_rule`` in waymark.h, 0: none),
    ``index`` (the event or row) and ``value`` (the offending value).
    """

    status: ClassVar[int] = 2

    def __init_subclass__(cls, status: int | None = None) -> None:
        if status is not None:
            cls.status = status

    def __init__(self, text: str = "", rule: int = 0, index: int = 0, value: int = 0) -> None:
        super().__init__(text)
        self.rule = rule
        self.index = index
        self.value = value

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.rule, self.index, self.value)


class CancelledError(WaymarkError, status=1):
    """The call was cancelled."""


class UnknownError(WaymarkError, status=2):
    """Another failure, such as a file that cannot be written."""


class InvalidArgumentError(WaymarkError, ValueError, status=3):
    """An argument breaks a rule, in any state."""


class DeadlineExceededError(WaymarkError, TimeoutError, status=4):
    """A wait took longer than its timeout."""


class NotFoundError(WaymarkError, LookupError, status=5):
    """There is no such step, version or finding."""


class AlreadyExistsError(WaymarkError, status=6):
    """It exists already, such as a layer that is bound."""


class ResourceExhaustedError(WaymarkError, status=8):
    """Memory, or another fixed resource, is exhausted."""


class FailedPreconditionError(WaymarkError, RuntimeError, status=9):
    """Not allowed in this state, such as a call of a capture that is closed."""


class OutOfRangeError(WaymarkError, IndexError, status=11):
    """A row, a block or a number is outside its range."""


class UnimplementedError(WaymarkError, NotImplementedError, status=12):
    """This build of the library does not have it."""


class InternalError(WaymarkError, RuntimeError, status=13):
    """A defect of the library, or a failed allocation within a call."""


class UnavailableError(WaymarkError, RuntimeError, status=14):
    """Not available now, such as a device that does not exist."""


class DataLossError(WaymarkError, RuntimeError, status=15):
    """Data is damaged or incomplete."""


class PutFailedError(DataLossError):
    """The page source failed when rows were published: readers of ``handle`` miss rows."""

    def __init__(self, text: str, handle: Handle) -> None:
        super().__init__(text)
        self.handle = handle

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.handle)


_CLASSES: dict[int, type[WaymarkError]] = {c.status: c for c in WaymarkError.__subclasses__()}


def error_of(status: int, text: str, rule: int = 0, index: int = 0, value: int = 0) -> WaymarkError:
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
