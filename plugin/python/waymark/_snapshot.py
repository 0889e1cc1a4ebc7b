"""Snapshots: pinned rows of a sequence, and how they are read."""

from __future__ import annotations

import pickle
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._documents import from_bytes
from ._handle import Handle
from ._rows import Codec, Fill, Layout, Read, Rows, _out_shape, _output, _runs
from ._types import FILLS, LAYOUTS, row_info_dtype, CoverageRun, id_type_of, number_of
from ._versions import WeightVersions


class Snapshot(_core.Snapshot):
    """Rows [first, last) of one sequence, pinned. Immutable, except that the audit may invalidate
    rows.

    ``store.snapshot(...)`` makes one on the engine's thread. Any thread may use it; threads that
    use the same snapshot wait for each other. It may outlive its store. Its pages are pinned until
    release(), the end of a ``with`` block, or the end of the last reference.

    A pickled snapshot is unpickled as the Document of its rows; protocol 5 passes the bytes out of
    band. FailedPreconditionError before it is ready.
    """

    __slots__ = ()

    def read(
        self,
        begin: int | None = None,
        end: int | None = None,
        *,
        layout: Layout = "TLK",
        dtype: npt.DTypeLike = np.int16,
        fill: Fill = "minus_one",
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """The ids of rows [begin, end): dtype [T, L, K], or [L, T, K] with layout="LTK".

        begin, end: counted from the first row of the sequence; None: the range of the snapshot.
        dtype: uint8, uint16, int16, int32 or int64; it must hold every id. fill: the ids of missing
        rows: -1 (not with uint8, where it is 255 and may be an expert), 0, or 0 ... K - 1. out: an
        array of that shape and dtype to write to, instead of a new one. Releases the GIL for more
        than a few rows.

        FailedPreconditionError before it is ready; OutOfRangeError outside the range;
        InvalidArgumentError for types and shapes that do not match. read_with_info() and coverage()
        report which rows are missing; the fill does not.
        """
        return self._read_ids(begin, end, layout, dtype, fill, out, None)

    def read_with_info(
        self,
        begin: int | None = None,
        end: int | None = None,
        *,
        layout: Layout = "TLK",
        dtype: npt.DTypeLike = np.int16,
        fill: Fill = "minus_one",
        out: npt.NDArray[Any] | None = None,
    ) -> Read:
        """(ids, infos): as read(), and row_info_dtype [T] of the same moment."""
        rows = (self.last if end is None else end) - (self.first if begin is None else begin)
        infos = np.empty(max(rows, 0), row_info_dtype)
        ids = self._read_ids(begin, end, layout, dtype, fill, out, infos)
        return ids, infos

    def _read_ids(
        self,
        begin: int | None,
        end: int | None,
        layout: Layout,
        dtype: npt.DTypeLike,
        fill: Fill,
        out: npt.NDArray[Any] | None,
        infos: npt.NDArray[np.void] | None,
    ) -> npt.NDArray[Any]:
        first = self.first if begin is None else begin
        last = self.last if end is None else end
        layout_number = number_of("layout", layout, LAYOUTS)
        fill_number = number_of("fill", fill, FILLS)
        wanted, id_type = id_type_of(dtype, fill)
        num_layers, top_k, _ = self._row_shape
        shape = _out_shape(layout_number, max(last - first, 0), num_layers, top_k)
        array = _output(out, shape, wanted)
        info_bytes = None if infos is None else infos.view(np.uint8)
        self._read(first, last, layout_number, id_type, fill_number, array, info_bytes)
        return array

    def coverage(self, versions: WeightVersions | None = None) -> list[CoverageRun]:
        """Runs of rows with equal reason, version and provenance, over the whole range."""
        return _runs(self._coverage(), versions)

    def rows(self) -> Rows:
        """A copy of all rows, in the store's id type."""
        return Rows._of(self._rows())

    def to_bytes(
        self,
        *,
        codec: Codec = "raw",
        ordered: bool | None = None,
        crc_layers: int | None = None,
        steps: bool = True,
        nodes: bool = False,
    ) -> bytes:
        """The rows as a document: Rows.to_bytes()."""
        return self.rows().to_bytes(
            codec=codec, ordered=ordered, crc_layers=crc_layers, steps=steps, nodes=nodes
        )

    def handle(
        self,
        *,
        codec: Codec = "raw",
        ordered: bool | None = None,
        crc_layers: int | None = None,
        store: str = "",
    ) -> Handle:
        """The handle of the rows, which begin at row 0: Rows.handle(). Publishes nothing; a
        Publisher does that."""
        return self.rows().handle(
            codec=codec, ordered=ordered, crc_layers=crc_layers, store=store
        )

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        data = self.to_bytes()
        return from_bytes, (pickle.PickleBuffer(data) if int(protocol) >= 5 else data,)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Snapshot(first={self.first}, last={self.last})"
