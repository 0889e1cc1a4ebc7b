"""Documents (docs/internals/format.md): rows in a file or in bytes, read in place."""

from __future__ import annotations

import functools
import os
import pickle
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._rows import Codec, Rows, _runs
from ._types import CoverageRun, Shape, at_least_one, layers_of
from ._versions import WeightVersions

__all__ = ["Document", "ReadDamage", "from_bytes", "open"]


class ReadDamage(NamedTuple):
    """Damage that a read found in rows that coverage() reports as valid. All 0: no damage."""

    damaged_chunks: int
    """Chunks with a wrong crc or in a wrong place: their rows are missing (not captured)."""
    absent_chunks: int
    """Chunks beyond the end of the bytes: missing (not captured)."""
    invalid_rows: int
    """Rows with an id that is not below E, or twice in a layer: missing (invalid id)."""


class Document(_core.Document):
    """Rows [first, last) of one sequence, in a document. Immutable; any thread.

    ``waymark.open(path)`` and ``waymark.from_bytes(buffer)`` make one and read only its header; a
    read touches only its rows and layers. Damaged rows, and chunks in wrong places, are missing,
    never wrong. A pickled document contains its bytes (out of band with protocol 5)
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
        at_least_one(max_rows=max_rows, max_bytes=max_bytes)
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
        begin = self.first if first is None else first
        end = self.last if last is None else last
        rows, _ = self._rows(begin, end, *layers_of(layers, self._shape[0]))
        return Rows._of(rows)

    def check(self) -> ReadDamage:
        """Reads everything and returns the damage, chunks in wrong places included."""
        _, damage = self._rows(self.first, self.last, 0, self._shape[0])
        return ReadDamage(*damage)

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
