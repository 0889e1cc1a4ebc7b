"""Which tokens the rows of a rank's routers belong to, and the ids that they replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays import integers, layers_of, output
from .._documents import Document
from .._errors import InvalidArgumentError
from .._fetching import Fetcher
from .._rows import Fill, Rows
from .._types import FILLS, Reason, id_type_of, integer, number_of
from ._trajectory import RowSource, Trajectory

Order = Literal["packed", "sequence-major", "batch-major"]
ContextCut = Literal["zigzag", "contiguous", "stream"]
Source = Union[RowSource, Trajectory]
"""The rows of a sequence."""

_ORDERS = {"packed": 0, "sequence-major": 1, "batch-major": 2}
_CUTS = {"zigzag": 0, "contiguous": 1, "stream": 2}
_MOST = (1 << 31) - 1


def _size_and_rank(name: str, place: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(place, (tuple, list)) or len(place) != 2:
        raise InvalidArgumentError(f"{name}: (rank, size), got {place!r}")
    return integer(name, place[1], 1, _MOST), place[0]


def _place(name: str, place: tuple[int, int]) -> tuple[int, int]:
    """(size, rank) of (rank, size)."""
    size, rank = _size_and_rank(name, place)
    return size, integer(f"{name}[0]", rank, 0, size - 1)


class Segment(NamedTuple):
    """Tokens [position, position + count) of a sequence, in rows row, row + row_stride, ..."""

    sequence: int
    position: int
    count: int  # type: ignore[assignment]
    row: int
    row_stride: int

    @property
    def rows(self) -> slice:
        """Its rows in a tensor of the rank."""
        return slice(self.row, self.row + (self.count - 1) * self.row_stride + 1, self.row_stride)


class FillReport(NamedTuple):
    """What the rows of a rank got. The counts and those of missing add up to the rows."""

    replayed: int
    """Rows with the engine's ids."""
    padding: int
    """Rows of no token."""
    no_row: int
    """Last tokens of sequences: sampled, but never an input of the engine."""
    missing: dict[Reason, int]
    """Other rows without ids, by reason; reasons without rows are left out."""
    first_missing: tuple[int, int] | None
    """(sequence, position) of the first of them."""


class Filled(NamedTuple):
    """The tensors of a rank's routers."""

    ids: Any
    """[layers, rows, K]; ids[i] is the contiguous tensor of layer i. ``out``, if it was given."""
    mask: npt.NDArray[np.bool_]
    """bool [rows]: whether the row has the engine's ids. Others have the fill, and are to be routed
    as usual."""
    report: FillReport


def _input(source: Source, timeout: float | None) -> Any:
    """A source as the extension takes it."""
    if isinstance(source, Rows):
        infos = source.infos.view(np.uint8)
        return tuple(source.shape), source.first, source.ids, infos
    if isinstance(source, Document):
        return source
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], Fetcher):
        return source[0], source[1], timeout
    raise TypeError(
        "sources: Rows, Document, or (Fetcher, handle), got "
        f"{type(source).__name__}"
    )


def shape_of(source: Any) -> tuple[int, int] | None:
    """(K, E) of the rows of a sequence; None: it is no source, which fill() refuses."""
    if isinstance(source, (Rows, Document, Trajectory)):
        return source.shape.top_k, source.shape.num_experts
    if isinstance(source, tuple) and len(source) > 1:
        return _core.handle_info(source[1])[4:6]
    return None


class Plan(_core.TrainerPlan):
    """The rows of one rank for one micro-batch; ``Layout.plan()`` makes it."""

    __slots__ = ("layout", "lengths")

    layout: Layout
    """What it was made of."""
    lengths: tuple[int, ...]
    """The tokens of each sequence."""

    def __init__(
        self,
        layout: Layout,
        lengths: Sequence[int] | npt.NDArray[Any],
        padded_lengths: Sequence[int] | npt.NDArray[Any] | None = None,
    ) -> None:
        """As ``Layout.plan()``."""
        super().__init__(
            lengths,
            padded_lengths,
            number_of("order", layout.order, _ORDERS),
            number_of("context_cut", layout.context_cut, _CUTS),
            *_size_and_rank("context", layout.context),
            *_size_and_rank("tensor", layout.tensor),
            layout.sequence_parallel,
            integer("sequence_multiple", layout.sequence_multiple, 1, _MOST),
            integer("total_multiple", layout.total_multiple, 1, _MOST),
            integer("local_multiple", layout.local_multiple, 1, _MOST),
        )
        self.layout = layout
        self.lengths = tuple(int(n) for n in lengths)

    @property
    def segments(self) -> list[Segment]:
        """The tokens of this rank, by sequence and position. Rows in none are padding."""
        return [Segment(*segment) for segment in self._segments()]

    def places(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """(sequence, position) of each row, -1 for padding: int32 and int64 [rows]."""
        sequences = np.full(self.rows, -1, np.int32)
        positions = np.full(self.rows, -1, np.int64)
        for segment in self.segments:
            sequences[segment.rows] = segment.sequence
            positions[segment.rows] = np.arange(
                segment.position, segment.position + segment.count
            )
        return sequences, positions

    def fill(
        self,
        sources: Sequence[Source],
        layer_ids: Sequence[int] | npt.NDArray[Any],
        *,
        dtype: npt.DTypeLike = np.int64,
        fill: Fill = "arange",
        partial: bool = False,
        packed: bool = False,
        out: Any = None,
        timeout: float | None = None,
    ) -> Filled:
        """The ids that this rank's routers replay, straight from where the rows are: only this
        rank's rows and layers are read. Releases the GIL.

        sources: one for each sequence, with the rows of all its tokens but the last (whose row may
        be there): Rows, a Document, (fetcher, handle), or a Trajectory. layer_ids: of
        the routers, by the model's numbers counted from 0 (``layer_number - 1`` in
        Megatron-Core), in the order of the tensors. dtype: of the ids, if ``out`` is None;
        Megatron-Core takes int64 and int32. fill: the ids of rows without routing;
        its dispatchers need distinct ones, hence "arange"; not "minus_one" with uint8. partial: a
        source may have fewer rows; they are missing. packed: the ids are [rows, layers, K] as rows
        are stored, uint8 up to 256 experts, else uint16: the fewest bytes to a device, where
        expand() makes the tensors of them. out: of this shape in C order, a numpy array or a tensor
        in host memory, pinned for instance. timeout: of the fetchers, in seconds; rows that have
        not arrived are missing.

        InvalidArgumentError for a source with too few or too many rows, for a layer that it does
        not have, and for sources that differ in K or E. A row with an id out of range, or one twice
        in a layer, is missing (INVALID_ID). On an error nothing is written."""
        layers = integers("layer_ids", layer_ids, "n")
        sources = self._of_rank(sources, layers, timeout)
        inputs = [_input(source, timeout) for source in sources]
        if not sources:
            raise InvalidArgumentError("sources: at least one, got 0")
        top_k, num_experts = shape_of(sources[0]) or (0, 0)
        axes = (self.rows, len(layers)) if packed else (len(layers), self.rows)
        shape = (*axes, top_k)
        stored = np.uint8 if num_experts <= 256 else np.uint16
        array = np.empty(shape, stored if packed else dtype) if out is None else output(out)
        _, id_type = id_type_of(array.dtype, fill)
        if array.shape != shape:
            order = "[rows, layers, K]" if packed else "[layers, rows, K]"
            raise InvalidArgumentError(f"out: {order} = {list(shape)}, got {list(array.shape)}")
        mask = np.zeros(self.rows, np.bool_)
        replayed, padding, no_row, missing, sequence, position = self._fill(
            inputs, layers, id_type, number_of("fill", fill, FILLS), partial, packed, array, mask
        )
        report = FillReport(
            replayed,
            padding,
            no_row,
            {Reason(i): rows for i, rows in enumerate(missing) if rows},
            None if sequence < 0 else (sequence, position),
        )
        return Filled(array if out is None else out, mask, report)

    def _of_rank(
        self, sources: Sequence[Source], layers: npt.NDArray[Any], timeout: float | None
    ) -> list[RowSource]:
        """The sources; of trajectories, the rows of this rank."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        if any(isinstance(source, Trajectory) for source in sources):
            for segment in self.segments:
                range_ = segment.position, segment.position + segment.count
                ranges.setdefault(segment.sequence, []).append(range_)
        found: list[RowSource] = []
        for i, source in enumerate(sources):
            if not isinstance(source, Trajectory):
                found.append(source)
                continue
            if i < len(self.lengths) and len(source.tokens) != self.lengths[i]:
                raise InvalidArgumentError(
                    f"sources[{i}]: a trajectory of {self.lengths[i]} tokens, as the sequence, got "
                    f"one of {len(source.tokens)}"
                )
            found.append(source._of_rank(ranges.get(i, []), layers, timeout))
        return found

    def collect(
        self,
        recorded: npt.ArrayLike | Sequence[Any],
        *,
        num_experts: int,
        layer_ids: Sequence[int],
        version: int = 0,
    ) -> list[Rows]:
        """The way back: rows of each sequence, from what the routers of this rank chose.

        recorded: integers [layers, rows, K], or a tensor [rows, K] of each layer. layer_ids: as in
        fill(), increasing. Rows of other ranks are missing (NEVER_WRITTEN): ``waymark.join()`` of
        the context and tensor ranks' rows has all, ``Rows.join_layers()`` those of all stages."""
        ids = layers_of("recorded", recorded)
        if ids.shape[:2] != (len(layer_ids), self.rows):
            raise InvalidArgumentError(
                f"recorded: [layers, rows, K] of {len(layer_ids)} layers and {self.rows} rows, got "
                f"{list(ids.shape)}"
            )
        sequences = []
        for length in self.lengths:
            shape = (length, len(layer_ids), ids.shape[2])
            sequences.append((np.zeros(shape, ids.dtype), np.zeros(length, np.bool_)))
        for segment in self.segments:
            rows, valid = sequences[segment.sequence]
            at = slice(segment.position, segment.position + segment.count)
            rows[at] = ids[:, segment.rows].transpose(1, 0, 2)
            valid[at] = True
        return [
            Rows.from_array(
                rows, num_experts=num_experts, layer_ids=layer_ids, valid=valid, version=version,
                missing=Reason.NEVER_WRITTEN,
            )  # fmt: skip
            for rows, valid in sequences
        ]

    def __repr__(self) -> str:
        return f"Plan(rows={self.rows}, sequences={len(self.lengths)}, layout={self.layout})"


@dataclass(frozen=True)
class Layout:
    """The place of a rank, and how a trainer pads, orders and cuts the tokens of a micro-batch."""

    order: Order = "packed"
    """"packed": THD, sequence after sequence, each padded and cut by itself. "sequence-major":
    BSHD, row s * batch + b (Megatron-Core). "batch-major": BSHD, row b * length + s (Hugging
    Face)."""
    context: tuple[int, int] = (0, 1)
    """(rank, size) of context parallelism."""
    context_cut: ContextCut = "zigzag"
    """Of a padded sequence, between C ranks. "zigzag": 2 C equal chunks, rank r has chunks r and
    2 C - 1 - r. "contiguous": C equal chunks. "stream": packed only, C equal chunks of all padded
    sequences together."""
    tensor: tuple[int, int] = (0, 1)
    """(rank, size) of tensor parallelism."""
    sequence_parallel: bool = False
    """Whether tensor ranks cut the rows (packed) or positions (BSHD) of their context rank into
    equal contiguous parts. False: each has all of them."""
    sequence_multiple: int = 1
    """Each sequence (packed), or the longest (BSHD), is padded to a multiple of it."""
    total_multiple: int = 1
    """Packed: all padded sequences together, behind the last one."""
    local_multiple: int = 1
    """Packed: the rows of a context rank, behind the last one, before they are cut."""

    def plan(
        self,
        lengths: Sequence[int] | npt.NDArray[Any],
        padded_lengths: Sequence[int] | npt.NDArray[Any] | None = None,
    ) -> Plan:
        """The rows of this rank for a micro-batch. lengths: the tokens of each sequence, in the
        trainer's order. padded_lengths: those after padding, for a trainer with rules of its own.
        InvalidArgumentError, naming field, rule and value, unless the ranks get equal parts."""
        return Plan(self, lengths, padded_lengths)


def stage_layers(
    num_layers: int,
    *,
    pipeline: tuple[int, int] = (0, 1),
    virtual: tuple[int, int] = (0, 1),
    first_stage_layers: int = 0,
    last_stage_layers: int = 0,
) -> range:
    """The layers of a model chunk of a pipeline stage, by the model's numbers counted from 0.

    num_layers: decoder layers of the model, dense ones included. pipeline: (rank, size). virtual:
    (chunk, chunks) of an interleaved pipeline. first_stage_layers, last_stage_layers: of these
    stages, all chunks together; 0: as the others. A layout that is given as a text, or that counts
    the embedding or the loss as a layer, has other rules: take the numbers from the routers."""
    layers = integer("num_layers", num_layers, 1, _MOST)
    stages, stage = _place("pipeline", pipeline)
    chunks, chunk = _place("virtual", virtual)
    first = integer("first_stage_layers", first_stage_layers, 0, _MOST)
    last = integer("last_stage_layers", last_stage_layers, 0, _MOST)
    others = stages - (first > 0) - (last > 0)
    left = layers - first - last
    if others < 0:
        raise InvalidArgumentError("pipeline: 2 stages, a first and a last one, at least, got 1")
    if left < 0 or left % max(others, 1) or (left and not others):
        raise InvalidArgumentError(
            "num_layers: those of the first and the last stage and as many for each of "
            f"{others} others, got {layers}"
        )
    sizes = [left // others if others else 0] * others
    sizes = [*([first] if first else []), *sizes, *([last] if last else [])]
    for size in sizes:
        if size % chunks:
            raise InvalidArgumentError(
                f"virtual: a divisor of the {size} layers of a stage, got {chunks}"
            )
    # Chunk v of all stages comes before chunk v + 1 of any.
    begin = (chunk * layers + sum(sizes[:stage])) // chunks
    return range(begin, begin + sizes[stage] // chunks)


def expand(
    packed: Any,
    mask: Any,
    *,
    num_experts: int,
    out: Any = None,
    dtype: npt.DTypeLike = np.int64,
    fill: Fill = "arange",
    stream: Any = None,
) -> Any:
    """The tensors of a rank's routers, [layers, rows, K], from what ``Plan.fill(packed=True)``
    returned, where it is: on a device the rows are widened by one launch on ``stream``, in the
    order of its work.

        filled = plan.fill(rows, layer_ids, packed=True)
        packed, mask = (torch.from_numpy(a).cuda() for a in (filled.ids, filled.mask))
        ids = torch.empty((len(layer_ids), plan.rows, top_k), dtype=torch.int32, device="cuda")
        trainer.expand(packed, mask, num_experts=256, out=ids, stream=torch.cuda.current_stream())

    packed: uint8 or uint16 [rows, layers, K]. mask: bool or uint8 [rows]; False: the row gets the
    fill. out: [layers, rows, K] in C order; with arrays in host memory None makes one of ``dtype``.
    All lie in host memory, or on the thread's current device. fill: as in Plan.fill(). stream: an
    int, None (the default stream), or an object with cuda_stream. Returns out.

    InvalidArgumentError for other shapes or types, arrays that lie apart, a type of ids that does
    not hold every expert, and in host memory for ids that are not below num_experts;
    UnimplementedError on a device if Waymark was built without CUDA."""
    if out is None:
        rows, layers, top_k = np.shape(packed)
        out = np.empty((layers, rows, top_k), id_type_of(dtype, fill)[0])
    _core.expand(packed, mask, out, num_experts, number_of("fill", fill, FILLS), stream)
    return out
