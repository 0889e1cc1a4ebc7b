"""Types that the other modules share: enums, numpy dtypes, slots."""

from __future__ import annotations

import operator
import warnings
from enum import IntEnum
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeVar, Union

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import InvalidArgumentError

__all__ = ["ALL_ROWS", "NOT_ASKED", "PADDING_SLOT", "UNKNOWN_VERSION", "Cause", "CoverageRun",
           "EventType", "FormatWarning", "Provenance", "Reason", "Shape", "event_dtype",
           "row_info_dtype", "slots_of"]  # fmt: skip

ALL_ROWS = -1
"""Capture.copy: copy every row."""

PADDING_SLOT = -1
"""The slot of a row that writes no KV."""


class Reason(IntEnum):
    """Why a row is missing. NONE: it is valid."""

    NONE = 0
    NEVER_WRITTEN = 1
    NOT_CAPTURED = 2
    EXTERNAL_KV = 3
    CAPACITY = 4
    INVALID_ID = 5
    AUDIT = 6
    RELEASED = 7
    NOT_TOLD = 8
    """The array from which the row was read does not say."""

    def __str__(self) -> str:
        return _core.reason_name(int(self))


class Cause(IntEnum):
    """What CAPACITY stands for; wm_row_info of waymark.h says when each is meant. A later library
    may have more."""

    NONE = 0
    NO_BUFFER = 1
    STEP_DROPPED = 2
    OTHER_RANK = 3
    LOG_FULL = 4
    EVENTS_LOST = 5
    RESET = 6
    NO_PAGE = 7
    HELD_BY_READERS = 8
    EVICTED = 9
    NO_MEMORY = 10
    STORE_FAILED = 11
    UNREACHABLE = 12
    ABSENT = 13
    DAMAGED = 14
    TIMEOUT = 15
    SKIPPED = 16
    REFUSED = 17
    UNNAMED = 18

    @classmethod
    def _missing_(cls, value: object) -> Cause | None:
        if not isinstance(value, int) or not 0 <= value < 32:
            return None
        unknown = int.__new__(cls, value)
        unknown._name_, unknown._value_ = f"UNKNOWN_{value}", value
        return unknown

    def __str__(self) -> str:
        return _core.cause_name(int(self))


class Provenance(IntEnum):
    """Where a row comes from."""

    HERE = 0
    KEPT = 1
    BY_KEY = 2
    UNKNOWN = 3
    """The array from which the row was read does not say."""

    def __str__(self) -> str:
        return _core.provenance_name(int(self))


class EventType(IntEnum):
    """The field ``type`` of event_dtype."""

    BIND = 1
    RETAIN = 2
    RELEASE = 3
    SEAL = 4
    COPY = 5
    MOVE = 6
    TRUNCATE = 7
    RESET = 8


event_dtype: np.dtype[np.void] = np.dtype(
    [
        ("type", "<u2"),
        ("key_size", "u1"),
        ("more", "u1"),
        ("block", "<i4"),
        ("src", "<i4"),
        ("rows", "<i4"),
        ("step", "<u8"),
        ("key", "u1", (32,)),
    ]
)
"""An event, 56 bytes: wm_event of waymark.h."""

row_info_dtype: np.dtype[np.void] = np.dtype(
    {
        "names": ["step", "version", "reason", "provenance", "cause"],
        "formats": ["<u8", "<u8", "u1", "u1", "u1"],
        "offsets": [0, 8, 16, 17, 18],
        "itemsize": 24,
    }
)
"""One row that was read, 24 bytes: wm_row_info of waymark.h. ``reason``, ``provenance`` and
``cause`` are numbers of Reason, Provenance and Cause; a missing row has step 0 and version 0."""

UNKNOWN_VERSION = (1 << 64) - 1
"""The version of a valid row whose array does not say it; no step has it."""


class Shape(NamedTuple):
    """The shape of the rows of a store. ``block_tokens`` and ``num_blocks`` are 0 for rows that
    were read."""

    num_layers: int
    top_k: int
    num_experts: int
    page_tokens: int
    block_tokens: int
    num_blocks: int
    layer_ids: tuple[int, ...]

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Of a stored id: uint8 up to 256 experts, else uint16."""
        return np.dtype(np.uint8 if self.num_experts <= 256 else np.uint16)


class CoverageRun(NamedTuple):
    """Rows [begin, end), counted from the first of the sequence, that are alike."""

    begin: int
    end: int
    reason: Reason
    version: int
    provenance: Provenance
    version_name: str = ""
    """The name of the version, if coverage() was given WeightVersions that have it."""
    cause: Cause = Cause.NONE
    """Of CAPACITY; NONE: another reason, or rows of a format that had no causes."""

    @property
    def why(self) -> str:
        """Why the rows are missing, e.g. "capacity: the page was evicted"; "valid"."""
        return f"{self.reason}: {self.cause}" if self.cause else str(self.reason)

    @property
    def valid(self) -> bool:
        """Whether the rows are valid."""
        return self.reason == Reason.NONE


_SlotT = TypeVar("_SlotT", bound=Union[int, npt.NDArray[np.int64]])


def NOT_ASKED(slot: _SlotT) -> _SlotT:
    """The slot, or slots, of rows that write KV but did not ask for routing; padding (-1) stays
    padding. InvalidArgumentError for what is no slot, e.g. NOT_ASKED of one."""
    lowest = int(slot.min(initial=0)) if isinstance(slot, np.ndarray) else slot
    if isinstance(lowest, (int, np.integer)) and lowest < PADDING_SLOT:
        raise InvalidArgumentError(f"slot: at least {PADDING_SLOT}, got {lowest}")
    return -2 - slot  # type: ignore[return-value]


def slots_of(
    blocks: npt.ArrayLike, block_tokens: int, first: int, last: int
) -> npt.NDArray[np.int64]:
    """int64 [last - first]: the slots of rows [first, last) of the sequence whose block i has
    tokens [i, i + 1) * block_tokens. Rows of negative (null) blocks are padding."""
    if block_tokens < 1:
        raise InvalidArgumentError(f"block_tokens: at least 1, got {block_tokens}")
    given = np.asarray(blocks)
    if given.dtype == object and hasattr(blocks, "__dlpack__"):  # numpy does not ask for it itself
        given = np.from_dlpack(blocks)  # type: ignore[arg-type]
    if given.ndim != 1:
        raise InvalidArgumentError(f"blocks: one dimension, got {given.ndim}")
    if given.size > 0 and given.dtype.kind not in "iu":
        raise InvalidArgumentError(f"blocks: integers below 2^31, got {given.dtype} {given[0]!r}")
    if given.size > 0 and given.max() >= 2**31:
        raise InvalidArgumentError(f"blocks: integers below 2^31, got {given.max()}")
    ids = given.astype(np.int64)
    if not 0 <= first <= last <= len(ids) * block_tokens:
        raise InvalidArgumentError(
            f"first, last: 0 <= first <= last <= {len(ids) * block_tokens}, as {len(ids)} "
            f"block{'s' * (len(ids) != 1)} of {block_tokens} tokens have, got {first}, {last}"
        )
    rows = np.arange(first, last, dtype=np.int64)
    block = ids[rows // block_tokens]
    slots = block * block_tokens + rows % block_tokens
    return np.where(block < 0, PADDING_SLOT, slots)


LAYOUTS = {"TLK": 0, "LTK": 1}
FILLS = {"minus_one": 0, "zeros": 1}
ID_TYPES: dict[np.dtype[Any], int] = {
    np.dtype(t): i for i, t in enumerate((np.uint8, np.uint16, np.int16, np.int32, np.int64))
}


def integer(name: str, value: object, least: int, most: int) -> int:
    """`value` as an int in [least, most]: an int, or anything with __index__, but no bool.
    TypeError and InvalidArgumentError name argument, rule and value."""
    text = f"{name}: an integer in [{least}, {most}], got {value!r}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(text)
    number = operator.index(value)
    if not least <= number <= most:
        raise InvalidArgumentError(text)
    return number


def at_least_one(**values: int) -> None:
    """InvalidArgumentError names the first argument that is below 1."""
    for name, value in values.items():
        if value < 1:
            raise InvalidArgumentError(f"{name}: at least 1, got {value}")


def number_of(name: str, value: object, names: dict[str, int]) -> int:
    """The number of a name; InvalidArgumentError lists the names."""
    if isinstance(value, str) and value in names:
        return names[value]
    raise InvalidArgumentError(f"{name}: one of {', '.join(names)}; got {value!r}")


def id_type_of(dtype: npt.DTypeLike, fill: str = "") -> tuple[np.dtype[Any], int]:
    """A dtype and its number; InvalidArgumentError lists the dtypes. fill: of rows without ids."""
    wanted = np.dtype(dtype)
    if fill == "minus_one" and wanted == np.uint8:
        raise InvalidArgumentError(
            "fill: must not be minus_one with ids of type uint8, where it is 255 and may be an "
            "expert"
        )
    if wanted not in ID_TYPES:
        raise InvalidArgumentError(
            f"dtype: one of {', '.join(str(t) for t in ID_TYPES)}; got {wanted}"
        )
    return wanted, ID_TYPES[wanted]


RowCount = Literal["tokens-1", "tokens"]
Layers = Literal["moe", "all"]
Sentinel = Literal["none", "-1", "255", "65535", "zeros", "arange"]


class FormatWarning(UserWarning):
    """Information that a format does not contain, or rows that were lost in a conversion."""


def tell(lines: list[str], notes: list[str] | None) -> None:
    """Appends to the list of the caller's caller, or warns with its line."""
    if notes is not None:
        notes.extend(lines)
        return
    for line in lines:
        warnings.warn(line, FormatWarning, stacklevel=3)


def dtype_name_of(dtype: npt.DTypeLike | None) -> str:
    """The library's name of a dtype; "": None."""
    if dtype is None:
        return ""
    wanted = np.dtype(dtype)
    if not wanted.isnative:
        raise InvalidArgumentError(f"dtype: in native byte order, got {wanted}")
    return wanted.name


CODECS = {"raw": 0, "set": 1}
Code = tuple[int, bool, int]


def code_of(codec: str, ordered: bool | None, crc_layers: int | None, num_layers: int) -> Code:
    """(codec, whether ids are ascending, crc_layers), or an error that names the argument."""
    number = number_of("codec", codec, CODECS)
    if number == CODECS["set"] and ordered:
        raise InvalidArgumentError("ordered: not with codec='set', which keeps no order")
    crc = 0 if crc_layers is None else integer("crc_layers", crc_layers, 1, num_layers)
    return number, number == CODECS["raw"] and ordered is False, crc


def layers_of(layers: tuple[int, int] | None, num_layers: int) -> tuple[int, int]:
    """(begin, end) of captured layers; None: all. InvalidArgumentError for an empty range."""
    if layers is None:
        return 0, num_layers
    begin, end = layers
    if not 0 <= begin < end <= num_layers:
        raise InvalidArgumentError(
            f"layers: 0 <= begin < end <= {num_layers}, got ({begin}, {end})"
        )
    return begin, end


def event_bytes(events: object) -> npt.NDArray[np.uint8]:
    """The bytes of events that are given as bytes, or as an array that is not in order. Called by
    the extension."""
    if isinstance(events, (bytes, bytearray, memoryview)):
        if len(events) % event_dtype.itemsize:
            raise InvalidArgumentError(
                f"events: {event_dtype.itemsize} bytes per event, got {len(events)} bytes"
            )
        return np.frombuffer(events, np.uint8)
    array = np.asarray(events)
    if array.dtype != event_dtype or array.ndim != 1:
        raise TypeError(
            "events must be an array of event_dtype with one dimension, or bytes, got "
            f"{type(events).__name__} of dtype {array.dtype}"
        )
    return np.ascontiguousarray(array).view(np.uint8)
