"""Documents (docs/format.md): rows in a file or in bytes, read in place."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import InvalidArgumentError
from ._rows import Codec, Fill, Layout, Read, Rows, _out_shape, _output, _runs
from ._types import (
    FILLS,
    LAYOUTS,
    row_info_dtype,
    CoverageRun,
    Shape,
    id_type_of,
    layers_of,
    number_of,
)
from ._versions import WeightVersions


class ReadDamage(NamedTuple):
    """Damage that a read found in rows that coverage() reports as valid. All 0: no damage."""

    damaged_chunks: int
    """Chunks with a wrong crc or in a wrong place: their rows are missing (not captured)."""
    absent_chunks: int
    """Chunks beyond the end of the bytes: missing (not captured)."""
    invalid_rows: int
    """Rows with an id that is not below E, or twice in a layer: missing (invalid id)."""


class Chunk(NamedTuple):
    """Rows of a document, in place."""

    first: int
    """The first row, counted from the first of the sequence."""
    ids: npt.NDArray[Any]
    """uint8 or uint16 [L, T, K], read-only, over the document's own bytes. Missing rows are 0. The
    ids are not checked; rows() does that."""


class Document(_core.Document):
    """Rows [first, last) of one sequence, in a document. Immutable; any thread.

    ``waymark.open(path)`` and ``waymark.from_bytes(buffer)`` make one and read only its header; a
    read touches only its rows and layers. Damaged rows are missing, never wrong (has_places: chunks
    in wrong places included). A pickled document contains its bytes (out of band with protocol 5)
    or, if it is from a file, its path.
    """

    __slots__ = ("_memory_map", "_source")

    _source: Any
    _memory_map: bool

    def __init__(
        self,
        source: object,
        *,
        max_rows: int = 1 << 24,
        max_bytes: int = 1 << 32,
        memory_map: bool = False,
    ) -> None:
        """source: a path (str, os.PathLike), or a buffer, which is kept and must not change.
        max_rows: of one read. max_bytes: allocated by one call, a file that is read into memory
        included. ResourceExhaustedError beyond them. memory_map: as open()."""
        if max_rows < 1 or max_bytes < 1:
            raise InvalidArgumentError(
                f"max_rows, max_bytes: at least 1, got {max_rows}, {max_bytes}"
            )
        if isinstance(source, os.PathLike):
            source = os.fspath(source)
        kept: Any = source
        if isinstance(source, (pickle.PickleBuffer, memoryview)):
            kept = np.frombuffer(kept, np.uint8)
        super().__init__(kept, max_rows, max_bytes, memory_map)
        self._source = kept
        self._memory_map = memory_map

    @property
    def shape(self) -> Shape:
        """The shape of the rows; block_tokens and num_blocks are 0."""
        return Shape(*self._shape)

    @property
    def codec(self) -> Codec:
        """How the ids are written: "raw" or "set"."""
        return "set" if self._code[0] == 1 else "raw"

    @property
    def ordered(self) -> bool:
        """Whether the K ids of a row and layer are in the router's order."""
        return self._code[0] == 0 and not self._code[1]

    @property
    def crc_layers(self) -> int:
        """How many layers share a crc: reading some layers reads all that share one with them."""
        return self._code[2]

    def coverage(self, versions: WeightVersions | None = None) -> list[CoverageRun]:
        """The coverage as written, whether or not bytes are damaged."""
        return _runs(self._coverage(), versions)

    def rows(
        self,
        first: int | None = None,
        last: int | None = None,
        *,
        layers: tuple[int, int] | None = None,
    ) -> Rows:
        """A copy of rows [first, last) (None: all) of captured layers [begin, end), in a shape of
        those layers. OutOfRangeError outside the document."""
        rows, _ = self._rows(*self._range(first, last), *self._layers(layers))
        return Rows._of(rows)

    def read(
        self,
        begin: int | None = None,
        end: int | None = None,
        *,
        layers: tuple[int, int] | None = None,
        layout: Layout = "TLK",
        dtype: npt.DTypeLike = np.int16,
        fill: Fill = "minus_one",
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """The ids of rows [begin, end) of some layers: dtype [T, L, K], or [L, T, K] with
        layout="LTK".

        begin, end: counted from the first row of the sequence; None: all. dtype: uint8, uint16,
        int16, int32 or int64; it must hold every id. fill: the ids of missing rows: -1 (not with
        uint8, where it is 255 and may be an expert), 0, or 0 ... K - 1; read_with_info() and
        coverage() report which rows are missing, the fill does not. out: an array of that shape and
        dtype to write to, instead of a new one. Releases the GIL for more than a few rows.
        InvalidArgumentError for types and shapes that do not match."""
        return self._read_ids(begin, end, layers, layout, dtype, fill, out, None)

    def read_with_info(
        self,
        begin: int | None = None,
        end: int | None = None,
        *,
        layers: tuple[int, int] | None = None,
        layout: Layout = "TLK",
        dtype: npt.DTypeLike = np.int16,
        fill: Fill = "minus_one",
        out: npt.NDArray[Any] | None = None,
    ) -> Read:
        """(ids, infos): as read(), and row_info_dtype [T]."""
        first, last = self._range(begin, end)
        infos = np.empty(max(last - first, 0), row_info_dtype)
        return self._read_ids(begin, end, layers, layout, dtype, fill, out, infos), infos

    def _read_ids(
        self,
        begin: int | None,
        end: int | None,
        layers: tuple[int, int] | None,
        layout: Layout,
        dtype: npt.DTypeLike,
        fill: Fill,
        out: npt.NDArray[Any] | None,
        infos: npt.NDArray[np.void] | None,
    ) -> npt.NDArray[Any]:
        first, last = self._range(begin, end)
        layer_begin, layer_end = self._layers(layers)
        layout_number = number_of("layout", layout, LAYOUTS)
        fill_number = number_of("fill", fill, FILLS)
        wanted, id_type = id_type_of(dtype, fill)
        rows = max(last - first, 0)
        shape = _out_shape(layout_number, rows, layer_end - layer_begin, self._shape[1])
        array = _output(out, shape, wanted)
        info_bytes = None if infos is None else infos.view(np.uint8)
        self._read(
            first, last, layer_begin, layer_end, layout_number, id_type, fill_number, array,
            info_bytes,
        )  # fmt: skip
        return array

    def chunk(self, row: int) -> Chunk:
        """The chunk that has row ``row``, without a copy. Its crcs are checked.
        FailedPreconditionError unless the codec is "raw"; DataLossError if it is damaged."""
        first, ids = self._chunk(row)
        return Chunk(first, ids.view(self.shape.id_dtype))

    def chunks(self) -> Iterator[Chunk]:
        """chunk() of every page, in order."""
        row = self.first
        while row < self.last:
            chunk = self.chunk(row)
            yield chunk
            row += chunk.ids.shape[1]

    def check(self) -> ReadDamage:
        """Reads everything and returns the damage. Chunks in wrong places are found if
        has_places."""
        _, damage = self._rows(self.first, self.last, 0, self._shape[0])
        return ReadDamage(*damage)

    def _range(self, first: int | None, last: int | None) -> tuple[int, int]:
        return self.first if first is None else first, self.last if last is None else last

    def _layers(self, layers: tuple[int, int] | None) -> tuple[int, int]:
        return layers_of(layers, self._shape[0])

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        source = self._source
        if isinstance(source, str):
            mapped = functools.partial(Document, memory_map=True)
            return mapped if self._memory_map else Document, (source,)
        if int(protocol) >= 5:
            return Document, (pickle.PickleBuffer(source),)
        return Document, (bytes(memoryview(source)),)

    def __repr__(self) -> str:
        return f"Document(first={self.first}, last={self.last}, codec={self.codec!r})"


def open(path: str | os.PathLike[str], *, memory_map: bool = False) -> Document:
    """The document in a file, which is read into memory. memory_map: it is mapped instead, so that
    only the bytes that are used are read; if another process then truncates the file, this process
    receives SIGBUS.

    NotFoundError, UnavailableError; InvalidArgumentError if it is no document, or no regular file
    (a folder, a FIFO, a device); DataLossError for a damaged header; ResourceExhaustedError if it
    is read and has more than max_bytes (see Document)."""
    return Document(os.fspath(path), memory_map=memory_map)


def from_bytes(buffer: object) -> Document:
    """The document in bytes, or in an object with the buffer protocol, which is kept, not
    copied."""
    if isinstance(buffer, (str, os.PathLike)):
        raise TypeError(f"buffer must be bytes or a buffer, got {type(buffer).__name__}")
    return Document(buffer)
