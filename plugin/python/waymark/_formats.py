"""Routing in the formats of engines and trainers (docs/formats.md): rows from their bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any, Literal, Union

import numpy.typing as npt

from . import _core
from ._errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError, UnavailableError
from ._rows import Rows
from ._types import Layers, RowCount, Sentinel, at_least_one, dtype_name_of, tell

_PIECE = 1 << 22
MoeLayers = Union[Sequence[int], npt.NDArray[Any], Literal["all"]]


def _whole(file: IO[bytes], max_bytes: int) -> bytearray:
    data = bytearray()
    while True:  # in pieces: read(n) allocates n bytes
        piece = file.read(_PIECE)
        if not isinstance(piece, bytes):
            raise TypeError(f"source: a file must be open in binary mode, got {type(piece)}")
        data += piece
        if len(data) > max_bytes:
            raise ResourceExhaustedError(f"source: at most max_bytes = {max_bytes} bytes")
        if not piece:
            return data


def _bytes(source: Any, max_bytes: int) -> Any:
    """An object with the buffer protocol."""
    if not isinstance(source, (str, os.PathLike)):
        try:
            return memoryview(source)
        except TypeError:
            return _whole(source, max_bytes) if hasattr(source, "read") else source
    path = os.fspath(source)
    try:
        with open(path, "rb") as file:
            return _whole(file, max_bytes)
    except OSError as error:
        if len(path) > 4096 or str(path).lstrip().startswith(("{", "[", '"')):
            raise InvalidArgumentError(
                "source: a str is a path; give a text as bytes, source.encode()"
            ) from error
        if not isinstance(error, FileNotFoundError):
            raise UnavailableError(f"source: '{path}': {error.strerror}") from error
        raise NotFoundError(f"source: '{path}': {error.strerror}") from error


def read(
    source: str | os.PathLike[str] | IO[bytes] | Any,
    format: str | None = None,
    *,
    num_experts: int = 0,
    num_layers: int = 0,
    moe_layers: MoeLayers | None = None,
    top_k: int = 0,
    row_count: RowCount | None = None,
    layers: Layers | None = None,
    sentinel: Sentinel | int | None = None,
    dtype: npt.DTypeLike | None = None,
    first: int | None = None,
    field: str = "",
    max_bytes: int = 1 << 32,
    notes: list[str] | None = None,
) -> Rows:
    """The rows in a file or in bytes, in any format of docs/formats.md.

    source: a path; a file that is open in binary mode, read to its end; bytes, or any object with
    the buffer protocol. format: its name there, such as "vllm" or "nemo-rl", or "waymark" for a
    document; None: detected, which works for most formats. A document describes itself; arguments
    that contradict it are an error. For an array the other arguments supply what its bytes do not
    contain; nothing is guessed:

    num_experts: E, which no array contains. moe_layers: the model's numbers of its layers with
    experts, from 0, increasing, dense layers counted; "all": every layer. It may be left out if the
    array has num_layers columns. num_layers: all layers of the model. top_k, dtype: of bare ids
    ("sglang"). row_count: "tokens-1" (the last token has no row) or "tokens" (its row is a
    placeholder). layers: the layers that have a column: "moe" or "all"; None: "moe" if the columns
    are as many as moe_layers. sentinel: the contents of a missing row: "none", "-1", "255",
    "65535", "zeros" or "arange"; if the array's type cannot hold it, no row is missing. None, for
    these three, otherwise: what the format's writers do. first: the position of the first row, if
    the bytes do not contain it. field: a JSON pointer to the array in a larger text. max_bytes: of
    a file, and of each intermediate text and array.

    notes: a list to which remarks on the conversion are appended, one sentence each: for example,
    rows that are missing because an id occurs twice in a layer. None: warnings (FormatWarning).
    Releases the GIL, except while it reads files.

    What an array does not say is unknown: of all rows the provenance (UNKNOWN), of valid ones the
    version (UNKNOWN_VERSION; their step is 0), and why others are missing (NOT_TOLD).
    InvalidArgumentError names what is malformed,
    ambiguous or not given; NotFoundError if no format matches, or there is no file;
    ResourceExhaustedError beyond max_bytes.
    """
    at_least_one(max_bytes=max_bytes)
    all_moe = isinstance(moe_layers, str)
    if all_moe and moe_layers != "all":
        raise InvalidArgumentError(f"moe_layers: numbers, or 'all'; got {moe_layers!r}")
    rows, lines = _core.from_format(
        _bytes(source, max_bytes), format or "", row_count or "", layers or "",
        "" if sentinel is None else str(sentinel), dtype_name_of(dtype), num_layers, max_bytes,
        field, first, () if all_moe or moe_layers is None else moe_layers, all_moe, top_k,
        num_experts,
    )  # fmt: skip
    tell(lines, notes)
    return Rows._of(rows)
