"""Rows: rows of a sequence that were read."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from typing import Any, Literal, Protocol, Union

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import check_type, columns_of, integers, numbers, output, truths
from ._errors import InvalidArgumentError
from ._handle import Handle
from ._types import (
    FILLS,
    LAYOUTS,
    UNKNOWN_VERSION,
    row_info_dtype,
    Code,
    CoverageRun,
    Provenance,
    Layers,
    Cause,
    Reason,
    RowCount,
    Sentinel,
    Shape,
    code_of,
    dtype_name_of,
    id_type_of,
    integer,
    layers_of,
    number_of,
    tell,
)
from ._versions import WeightVersions

__all__ = ["Collective", "HasRows", "Rows", "join", "pack_ids"]

Layout = Literal["TLK", "LTK"]
Fill = Literal["minus_one", "zeros"]
Codec = Literal["raw", "set"]


def _output(
    out: npt.NDArray[Any] | None, shape: tuple[int, int, int], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    if out is None:
        return np.empty(shape, dtype)
    array = output(out)
    if array.dtype != dtype or array.shape != shape:
        raise InvalidArgumentError(
            f"out: {dtype} {list(shape)}, got {array.dtype} {list(array.shape)}"
        )
    return array


def _runs(runs: list[Any], versions: WeightVersions | None) -> list[CoverageRun]:
    name = WeightVersions().name if versions is None else versions.name
    return [
        CoverageRun(b, e, Reason(r), v, Provenance(p), name(v), Cause(c))
        for b, e, r, v, p, c in runs
    ]


class Collective(Protocol):
    """An all-gather between ranks, supplied by the engine, for example over its process group."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def all_gather(self, data: bytes, /) -> Union[bytes, Sequence[bytes]]:
        """``data`` of every rank, in order of rank: a list, or one concatenation. Every rank calls
        it with the same number of bytes. Called on the thread that gathers, with the GIL; it may
        wait, and should raise at a deadline."""


class HasRows(Protocol):
    """What join() takes beside Rows: a Document."""

    def rows(self) -> Rows:
        """All rows."""


class Rows:
    """Rows [first, last) of one sequence that were read: ids as the store keeps them, and one info
    each. Immutable; any thread.

    ``Capture.take`` and the joins make them; so does ``Rows(shape, first, ids, infos)`` from
    arrays, which it does not copy. Pickle protocol 5 passes the arrays out of band, without copies
    on either side.
    """

    __slots__ = ("_ids", "_infos", "_names", "_native_rows", "first", "ordered", "shape")

    _ids: npt.NDArray[Any]
    _infos: npt.NDArray[np.void]
    shape: Shape
    """The shape of the rows; block_tokens and num_blocks are 0."""
    first: int
    """The first row, counted from the first of the sequence."""
    ordered: bool
    """Whether the K ids of every layer are in the router's order. False after codec="set"."""

    def __init__(
        self,
        shape: Shape,
        first: int,
        ids: npt.NDArray[Any],
        infos: npt.NDArray[np.void],
        ordered: bool = True,
    ) -> None:
        """ids: uint8 (up to 256 experts) or uint16 [T, L, K]; infos: row_info_dtype [T]; both C
        order. They must not change as long as these rows exist. Infos whose padding bytes are not 0
        are copied. InvalidArgumentError if they do not match, ``shape.layer_ids`` are not one for
        each layer, increasing, ``first`` is not in [0, 2^31), a reason or a provenance is none, or
        a valid row has an id that is not below ``shape.num_experts``."""
        wanted = (len(infos), shape.num_layers, shape.top_k)
        if ids.dtype != shape.id_dtype or ids.shape != wanted or not ids.flags.c_contiguous:
            raise InvalidArgumentError(
                f"ids: {shape.id_dtype} {list(wanted)} in C order, got {ids.dtype} "
                f"{list(ids.shape)}"
            )
        if infos.dtype != row_info_dtype or infos.ndim != 1 or not infos.flags.c_contiguous:
            raise InvalidArgumentError("infos: row_info_dtype [T] in C order")
        if (infos.view(np.uint64)[2::3] >> 24).any():  # the padding, which no field reaches
            given, infos = infos, np.zeros(len(infos), row_info_dtype)
            for field in row_info_dtype.names or ():
                infos[field] = given[field]
        _core.check_arrays(shape, first, ids, infos.view(np.uint8))
        self._set(shape, first, ids, infos, ordered)

    @classmethod
    def from_array(
        cls,
        ids: npt.ArrayLike,
        *,
        num_experts: int,
        layer_ids: Sequence[int],
        valid: npt.ArrayLike | None = None,
        first: int = 0,
        version: int = UNKNOWN_VERSION,
        ordered: bool = True,
        missing: Reason = Reason.NOT_TOLD,
        provenance: Provenance = Provenance.UNKNOWN,
    ) -> Rows:
        """Rows of an array: what a trainer recorded, or a format that ``read()`` does not know.

        ids: integers [T, L, K]. An array of the stored type (uint8 up to 256 experts, else uint16)
        in C order is not copied and must not change as long as these rows exist; others are
        converted. layer_ids: the model's number of each layer, from 0, increasing, dense layers
        counted. valid: bool [T]; None: every row is valid. A row that is not is missing, for the
        reason ``missing``; its ids are not looked at, and read as 0. first: the position of the
        first row. version: of the weights that chose the ids. provenance: of all. Rows have step 0.
        What an array does not say stays unknown, unless you know it.

        InvalidArgumentError if the type of ids cannot hold every expert (uint8 with more than 256:
        what wrote them may have cut them), or a valid row has an id that is not in
        [0, num_experts), or one twice in a layer: no router chooses that, and trainers take it in
        silence."""
        array = integers("ids", ids, "T", "L", "K")
        num_rows, num_layers, top_k = array.shape
        layers = tuple(numbers("layer_ids", layer_ids))
        if missing == Reason.NONE:
            raise InvalidArgumentError("missing: a reason, got NONE")
        weights = integer("version", version, 0, (1 << 64) - 1)
        mask = truths("valid", np.ones(num_rows, np.bool_) if valid is None else valid, num_rows)
        shape = Shape(num_layers, top_k, num_experts, 16, 0, 0, layers)
        _core.check_arrays(shape, first, b"", b"")
        check_type("ids", array, num_experts)
        whole = bool(mask.all())
        if array.size:
            used = array if whole else array[mask]
            if used.size and not (0 <= int(used.min()) and int(used.max()) < num_experts):
                bad = ((array < 0) | (array >= num_experts)).any(axis=(1, 2)) & mask
                row = int(np.flatnonzero(bad)[0])
                wrong = array[row][(array[row] < 0) | (array[row] >= num_experts)]
                raise InvalidArgumentError(
                    f"ids: in [0, num_experts = {num_experts}) in a valid row, got {wrong[0]} in "
                    f"row {row}" + ("; valid= tells which rows are missing" * bool(wrong[0] == -1))
                )
        stored = np.ascontiguousarray(array, dtype=shape.id_dtype)
        if not whole and stored[~mask].any():
            if stored is array or np.shares_memory(stored, array):
                stored = stored.copy()
            stored[~mask] = 0
        infos = np.zeros(num_rows, row_info_dtype)
        infos["reason"] = np.where(mask, Reason.NONE, missing)
        infos["version"] = np.where(mask, np.uint64(weights), np.uint64(0))
        infos["provenance"] = provenance
        _core.check_ids(shape, stored, infos.view(np.uint8))
        return cls(shape, first, stored, infos, ordered)

    def _set(
        self,
        shape: Shape,
        first: int,
        ids: npt.NDArray[Any],
        infos: npt.NDArray[np.void],
        ordered: bool,
        names: bytes = b"",
    ) -> None:
        self._names = names  # of pages whose rows are found by key, as the library has them
        self.shape = shape._replace(block_tokens=0, num_blocks=0)
        self.first = first
        self.ordered = ordered
        self._ids = ids.view()
        self._ids.flags.writeable = False
        self._infos = infos.view()
        self._infos.flags.writeable = False
        self._native_rows: _core.Rows | None = None

    @classmethod
    def _of(cls, native: _core.Rows) -> Rows:
        infos = native.infos.reshape(-1).view(row_info_dtype)
        rows = cls.__new__(cls)  # the library has checked them
        shape = Shape(*native.shape)
        rows._set(shape, native.first, native.ids, infos, native.ordered, native.names)
        rows._native_rows = native
        return rows

    def _native(self) -> _core.Rows:
        """The library's own rows; a copy if they did not come from it."""
        native = self._native_rows
        if native is None:
            native = _core.Rows(
                (*self.shape,),
                self.first,
                np.ascontiguousarray(self._ids),
                self._infos.view(np.uint8),
                self.ordered,
                self._names,
            )
            self._native_rows = native
        return native

    def _code(self, codec: Codec, ordered: bool | None, crc_layers: int | None) -> Code:
        if ordered and not self.ordered:
            raise InvalidArgumentError("ordered: the router's order of these rows is not known")
        return code_of(codec, ordered, crc_layers, self.shape.num_layers)

    @property
    def last(self) -> int:
        """One past the last row."""
        return self.first + len(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    @property
    def ids(self) -> npt.NDArray[Any]:
        """uint8 or uint16 [T, L, K], read-only, no copy. Missing rows are 0: see valid. In C order,
        except some layers of other rows (of_layers)."""
        return self._ids

    @property
    def infos(self) -> npt.NDArray[np.void]:
        """row_info_dtype [T], read-only, no copy."""
        return self._infos

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """bool [T]: whether the row is valid."""
        return np.asarray(self._infos["reason"] == Reason.NONE)

    @property
    def reasons(self) -> npt.NDArray[np.uint8]:
        """uint8 [T]: numbers of Reason."""
        reasons: npt.NDArray[np.uint8] = self._infos["reason"]
        return reasons

    @property
    def causes(self) -> npt.NDArray[np.uint8]:
        """uint8 [T]: numbers of Cause, of rows that are missing for CAPACITY."""
        causes: npt.NDArray[np.uint8] = self._infos["cause"]
        return causes

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model's number of each captured layer."""
        return self.shape.layer_ids

    def __getitem__(self, part: slice) -> Rows:
        """``rows[a:b]``: rows by index, of which 0 is row ``first``, as a view: copies nothing.
        InvalidArgumentError for a step other than 1."""
        if not isinstance(part, slice):
            raise TypeError(f"rows[a:b]: a slice, got {part!r}")
        if part.step not in (None, 1):
            raise InvalidArgumentError(f"rows[a:b]: a step of 1, got {part.step}")
        begin, end, _ = part.indices(len(self))
        end = max(begin, end)
        return self._view(
            self.shape, self.first + begin, self._ids[begin:end], self._infos[begin:end]
        )

    def resized(self, count: int) -> Rows:
        """The first `count` rows, as a view; rows behind the last are added as missing (not
        captured)."""
        there = len(self)
        if count <= there:  # what the library has read needs no other of its own
            return self[:count] if count < there else self
        ids = np.zeros((count, *self._ids.shape[1:]), self._ids.dtype)
        infos = np.zeros(count, row_info_dtype)
        ids[:there], infos[:there] = self._ids, self._infos
        infos["reason"][there:] = Reason.NOT_CAPTURED
        return self._view(self.shape, self.first, ids, infos)

    def of_layers(self, layer_ids: Sequence[int]) -> Rows:
        """The rows of these layers only, which are named by the model's numbers, increasing. Layers
        that are adjacent here are a view, which copies nothing; others are copied.
        InvalidArgumentError for a layer that these rows do not have."""
        columns = columns_of(self.layer_ids, layer_ids)
        begin, end = columns[0], columns[-1] + 1
        ids = self._ids[:, begin:end]
        if len(columns) != end - begin:
            ids = np.take(self._ids, columns, axis=1)  # in C order, unlike an index
        chosen = tuple(self.layer_ids[c] for c in columns)
        shape = self.shape._replace(num_layers=len(columns), layer_ids=chosen)
        return self._view(shape, self.first, ids, self._infos)

    def _view(
        self, shape: Shape, first: int, ids: npt.NDArray[Any], infos: npt.NDArray[np.void]
    ) -> Rows:
        rows = Rows.__new__(Rows)  # parts of what has been checked
        names = self._names if shape.num_layers == self.shape.num_layers else b""
        rows._set(shape, first, ids, infos, self.ordered, names)
        return rows

    def astype(
        self,
        dtype: npt.DTypeLike = np.int16,
        *,
        layout: Layout = "TLK",
        fill: Fill = "minus_one",
        layers: tuple[int, int] | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """The ids in another type and layout: dtype [T, L, K], or [L, T, K] with layout="LTK".

        dtype: uint8, uint16, int16, int32 or int64; it must hold every id. fill: the ids of missing
        rows: -1 (not with uint8, where it is 255 and may be an expert) or 0; valid says which rows
        are missing, the fill does not. For the rows of a trainer see ``trainer.Plan.fill()``.
        layers: captured layers [begin, end); None: all. out: an array of that shape and dtype to
        write to, instead of a new one. Releases the GIL for more than a few rows.
        InvalidArgumentError for types and shapes that do not match."""
        if layers is not None:
            begin, end = layers_of(layers, self.shape.num_layers)
            if (begin, end) != (0, self.shape.num_layers):
                part = self.of_layers(self.layer_ids[begin:end])
                return part.astype(dtype, layout=layout, fill=fill, out=out)
        layout_number = number_of("layout", layout, LAYOUTS)
        fill_number = number_of("fill", fill, FILLS)
        wanted, id_type = id_type_of(dtype, fill)
        layers_rows = self.shape.num_layers, len(self)
        shape = (*(layers_rows if layout_number else layers_rows[::-1]), self.shape.top_k)
        array = _output(out, shape, wanted)
        self._native().write(layout_number, id_type, fill_number, array)
        return array

    def coverage(self, versions: WeightVersions | None = None) -> list[CoverageRun]:
        """Runs of rows with equal reason, cause, version and provenance, over the whole range.
        versions: the names of the versions."""
        return _runs(self._native().coverage(), versions)

    def reused(self, first_step: int) -> npt.NDArray[np.bool_]:
        """bool [T]: whether the row is known to be reused by the request whose first step was
        ``first_step`` (of the first of its lives, if it was preempted): another request computed
        it, because its step is earlier. Never True for a row that the request computed. False also
        for a row that another request computed since (a hit after a preemption), and for rows
        without steps. Steps of other engines cannot be compared: call it before join() with their
        rows."""
        if not 0 <= first_step < 1 << 64:
            raise InvalidArgumentError(f"first_step: 0 to {(1 << 64) - 1}, got {first_step}")
        reused: npt.NDArray[np.bool_] = np.empty(len(self), np.bool_)
        self._native().reused(first_step, reused.view(np.uint8))
        return reused

    @staticmethod
    def join_layers(stages: Sequence[Rows]) -> Rows:
        """Joins pipeline stages, in order of layers, into rows of all layers. A row whose steps
        differ is missing (not captured). So is a row without steps (0) whose versions differ; that
        such rows of one version are of one step, you vouch. Call it before join()."""
        return Rows._of(_core.Rows.join_layers([stage._native() for stage in stages]))

    def to_bytes(
        self,
        *,
        codec: Codec = "raw",
        ordered: bool | None = None,
        crc_layers: int | None = None,
        steps: bool = True,
        nodes: bool = False,
    ) -> bytes:
        """The rows as a document (docs/internals/format.md), which from_bytes() reads.

        codec: "raw", as stored; "set", in fewer bits, without the order of the K ids. ordered:
        False: raw, ids ascending; None: as they are; True: InvalidArgumentError if they are not
        ordered. crc_layers: 1 to L: layers that share a crc; readers of some layers read all that
        share one with them (docs/training.md); None: a quarter of the layers, rounded up. steps:
        False: without steps, so that join_layers() cannot tell rows of other steps. nodes: True:
        FileSource can open it; the rows must begin at row 0. Releases the GIL. InvalidArgumentError
        for ids that the codec cannot write: a set contains no id twice.
        """
        return self._native().document(self._code(codec, ordered, crc_layers), steps, nodes)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        codec: Codec = "raw",
        ordered: bool | None = None,
        crc_layers: int | None = None,
        steps: bool = True,
        nodes: bool = False,
    ) -> None:
        """Writes to_bytes() to a temporary file that then replaces ``path``, so that no reader sees
        a part of it. UnavailableError if it cannot be written."""
        code = self._code(codec, ordered, crc_layers)
        self._native().write_document(os.fspath(path), code, steps, nodes)

    def to_format(
        self,
        format: str,
        *,
        row_count: RowCount | None = None,
        layers: Layers | None = None,
        sentinel: Sentinel | None = None,
        dtype: npt.DTypeLike | None = None,
        num_layers: int = 0,
        max_bytes: int = 1 << 32,
        notes: list[str] | None = None,
    ) -> bytes:
        """The rows in a format of an engine or a trainer (docs/formats.md), which read() reads.

        format: its name there. row_count, layers, sentinel: as in read(); None: what the format's
        readers expect. dtype: of the ids; None: the first of the format's types that holds them
        all. num_layers: all layers of the model, with layers="all". max_bytes: of each intermediate
        text and array. notes: a list to which what the bytes do not contain is appended (reasons,
        steps, versions, the first row), one sentence each; None: warnings (FormatWarning). Releases
        the GIL.

        FailedPreconditionError if rows are missing and there is no sentinel; InvalidArgumentError
        for a format that can only be read, or ids that the dtype cannot hold.
        """
        data, lines = _core.to_format(
            self._native(),
            format,
            row_count or "",
            layers or "",
            sentinel or "",
            dtype_name_of(dtype),
            num_layers,
            max_bytes,
        )
        tell(lines, notes)
        return data

    def handle(
        self,
        *,
        codec: Codec = "raw",
        ordered: bool | None = None,
        crc_layers: int | None = None,
        store: str = "",
    ) -> Handle:
        """The handle that publishing these rows, which begin at row 0, would make. Publishes
        nothing. A file of save(nodes=True) with the same codec, ordered and crc_layers is a source
        of it."""
        return Handle(self._native().handle(self._code(codec, ordered, crc_layers), store))

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        if int(protocol) < 5:
            return _rows_of, (tuple(self.shape), self.first, self._ids.tobytes(),
                              self._infos.tobytes(), self.ordered)
        # Bytes, because not every pickler accepts a buffer of structs.
        ids = pickle.PickleBuffer(self._ids.reshape(-1).view(np.uint8).data)
        infos = pickle.PickleBuffer(self._infos.view(np.uint8).data)
        return _rows_of, (tuple(self.shape), self.first, ids, infos, self.ordered)

    def __repr__(self) -> str:
        counts = np.bincount(self.reasons, minlength=2).tolist()
        missing = {str(Reason(reason)): n for reason, n in enumerate(counts) if n and reason}
        return (
            f"Rows(first={self.first}, last={self.last}, layers={self.shape.num_layers}, "
            f"top_k={self.shape.top_k}, missing={missing})"
        )


def _rows_of(
    shape: tuple[Any, ...], first: int, ids: Any, infos: Any, ordered: bool = True
) -> Rows:
    """Rows over buffers of pickle; copies nothing."""
    of = Shape(*shape)
    info_array = np.frombuffer(infos, np.uint8).view(row_info_dtype)
    id_array = np.frombuffer(ids, of.id_dtype)
    id_array = id_array.reshape(len(info_array), of.num_layers, of.top_k)
    return Rows(of, first, id_array, info_array, ordered)


def join(*reads: Rows | HasRows) -> Rows:
    """Merges reads of one sequence, the earliest first: rows, documents. At
    each position the first valid row wins; if there is none, the first reason that is not "never
    written". The result covers all ranges.

    A request that was preempted and computed again has a read for each of its lives:
    ``join(first_life, second_life, last_life)`` has the rows with which its tokens were sampled.
    InvalidArgumentError unless all have the same layers, K and E."""
    for read in reads:
        if not isinstance(read, Rows) and not hasattr(read, "rows"):
            raise TypeError(f"reads: rows (of Taken: its result), got {type(read).__name__}")
    rows = [read if isinstance(read, Rows) else read.rows() for read in reads]
    return Rows._of(_core.Rows.join([one._native() for one in rows]))


def pack_ids(
    ids: npt.ArrayLike, num_experts: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8] | None]:
    """Ids of a step, integers [N, L, K] with any strides, as a store would have them, for an
    adapter that returns them at once: uint8 (up to 256 experts) or uint16 [N, L, K], and the Reason
    of each row, uint8 [N]; None: all rows are valid. A row is NOT_CAPTURED if every id of its first
    layer with a fault is -1, else INVALID_ID; its ids are unspecified."""
    array = integers("ids", ids, "N", "L", "K")
    stored = np.empty(array.shape, np.uint8 if num_experts <= 256 else np.uint16)
    reasons = np.empty(len(array), np.uint8)
    wrong = _core.pack_ids(array, num_experts, stored, reasons)
    return stored, reasons if wrong else None
