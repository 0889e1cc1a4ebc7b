"""Which tokens the rows of a rank's routers belong to, and the ids that they replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays import check_type, integers, layers_of, numbers, output
from .._errors import InvalidArgumentError
from .._rows import Rows
from .._types import UNKNOWN_VERSION, Provenance, Reason, id_type_of, integer, number_of
from ._trajectory import Part, RowSource, Trajectory

Order = Literal["packed", "sequence-major", "batch-major"]
ContextCut = Literal["zigzag", "contiguous", "stream"]
Fill = Literal["spread", "minus_one"]
Source = Union[RowSource, Trajectory]
"""The rows of a sequence."""

_ORDERS = {"packed": 0, "sequence-major": 1, "batch-major": 2}
_CUTS = {"zigzag": 0, "contiguous": 1, "stream": 2}
_FILLS = {"spread": 0, "minus_one": 1}
_MOST = (1 << 31) - 1


def _place(name: str, place: tuple[int, int]) -> tuple[int, int]:
    """(size, rank) of (rank, size)."""
    if not isinstance(place, (tuple, list)) or len(place) != 2:
        raise InvalidArgumentError(f"{name}: (rank, size), got {place!r}")
    size = integer(name, place[1], 1, _MOST)
    return size, integer(f"{name}[0]", place[0], 0, size - 1)


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
    """What the rows of a rank got. All counts, ``missing`` included, add up to the rows."""

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
    """bool [rows]: whether the row has the engine's ids. Others have the fill; route them as usual,
    or leave them out of the loss."""
    report: FillReport


def part_of(source: Source, name: str) -> Part | Trajectory:
    """The rows of a sequence, and their shape; errors call them by the name."""
    if isinstance(source, Trajectory):
        return source
    try:
        return Part(source, None)
    except TypeError as error:
        raise TypeError(f"{name}: {str(error).removeprefix('source: ')}") from None


def _check(name: str, lengths: list[int], least: list[int]) -> None:
    for i, (length, lowest) in enumerate(zip(lengths, least)):
        if not lowest <= length <= _MOST:
            integer(f"{name}[{i}]", length, lowest, _MOST)


def _up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


class _Cutter:
    """Which tokens the rows of a rank belong to. The rules are of Megatron-Core's packed
    (THD) and padded (BSHD) batches and of the trainers around it. Data parallelism has other
    micro-batches; expert parallelism changes nothing; a pipeline stage has other layers and the
    same rows.

    Steps are (sequence, begin, end, to): positions [begin, end) of a padded sequence, of which the
    first is step ``to`` of what the context rank has."""

    def __init__(self, layout: Layout) -> None:
        number_of("order", layout.order, _ORDERS)
        number_of("context_cut", layout.context_cut, _CUTS)
        self.packed = layout.order == "packed"
        self.size, self.rank = _place("context", layout.context)
        self.tensor_size, self.tensor_rank = _place("tensor", layout.tensor)
        for name in ("sequence_multiple", "total_multiple", "local_multiple"):
            integer(name, getattr(layout, name), 1, _MOST)
        if not self.packed and layout.context_cut == "stream":
            raise InvalidArgumentError("context_cut: 'stream' is of packed sequences alone")
        if not self.packed and (layout.total_multiple, layout.local_multiple) != (1, 1):
            raise InvalidArgumentError(
                "total_multiple, local_multiple: 1 unless packed, got "
                f"{layout.total_multiple} and {layout.local_multiple}"
            )
        self.layout = layout

    def run(self, lengths: list[int], padded: list[int] | None) -> tuple[int, list[Segment]]:
        """The number of rows, and the tokens of the rank."""
        _check("lengths", lengths, [0] * len(lengths))
        if padded is None:
            padded = [_up(n, self.layout.sequence_multiple) for n in lengths]
        elif len(padded) != len(lengths):
            raise InvalidArgumentError(
                f"padded_lengths: one for each of {len(lengths)} sequences, got {len(padded)}"
            )
        elif not self.packed and len(set(padded)) > 1:
            raise InvalidArgumentError(f"padded_lengths: equal unless packed, got {padded}")
        _check("padded_lengths", padded, lengths)
        steps, count = self.of_packed(padded) if self.packed else self.of_batch(padded)
        begin, end = self.window(count)
        own = end - begin
        if not self.packed and own * len(lengths) > _MOST:
            raise InvalidArgumentError(
                f"lengths: fewer than 2^31 rows when padded, got {len(lengths)} sequences of {own}"
            )
        stride = len(lengths) if self.layout.order == "sequence-major" else 1
        apart = {"packed": 0, "sequence-major": 1, "batch-major": own}[self.layout.order]
        segments = []
        for sequence, first, last, to in steps:
            # The tensor rank's rows that are no padding.
            since = max(0, begin - to)
            until = min(min(last, lengths[sequence]) - first, end - to)
            if since < until:
                row = sequence * apart + (to + since - begin) * stride
                segments.append(Segment(sequence, first + since, until - since, row, stride))
        return own if self.packed else own * len(lengths), segments

    def of_packed(self, padded: list[int]) -> tuple[list[tuple[int, int, int, int]], int]:
        """The steps of packed sequences, and the number of rows of the context rank."""
        total = sum(padded)
        whole = _up(total, self.layout.total_multiple)
        if whole > _MOST:
            raise InvalidArgumentError(f"lengths: fewer than 2^31 tokens when padded, got {whole}")
        if padded:
            padded = [*padded[:-1], padded[-1] + whole - total]
        own = whole // self.size
        steps = []
        start = 0  # of the sequence: in the stream, or in what the context rank has
        stream = self.layout.context_cut == "stream"
        if stream:
            self.check_cut("the padded micro-batch", whole)
        for i, size in enumerate(padded):
            if stream:
                first = self.rank * own
                begin, end = (min(max(at - start, 0), size) for at in (first, first + own))
                steps.append((i, begin, end, start + begin - first))
                start += size
            else:
                self.check_cut("lengths[{}], padded", size, i)
                steps += [(i, begin, end, start + to) for begin, end, to in self.cut(size)]
                start += size // self.size
        return steps, _up(own, self.layout.local_multiple)

    def of_batch(self, padded: list[int]) -> tuple[list[tuple[int, int, int, int]], int]:
        """The steps of a padded batch, and the number of positions of the context rank."""
        longest = max(padded, default=0)
        self.check_cut("the padded length", longest)
        steps = [(i, *of) for i in range(len(padded)) for of in self.cut(longest)]
        return steps, longest // self.size

    def cut(self, size: int) -> list[tuple[int, int, int]]:
        """(begin, end, to) of what the context rank has of a padded sequence, first to last."""
        if self.size == 1:
            return [(0, size, 0)]
        zigzag = self.layout.context_cut == "zigzag"
        chunks = 2 * self.size if zigzag else self.size
        chunk = size // chunks
        mine = [self.rank, chunks - 1 - self.rank] if zigzag else [self.rank]
        return [(c * chunk, (c + 1) * chunk, i * chunk) for i, c in enumerate(mine)]

    def check_cut(self, name: str, size: int, i: int = 0) -> None:
        parts = 2 * self.size if self.layout.context_cut == "zigzag" else self.size
        if self.size > 1 and size % parts:
            raise InvalidArgumentError(
                f"{name.format(i)}: a multiple of {parts} to be cut between the context ranks, "
                f"got {size}"
            )

    def window(self, count: int) -> tuple[int, int]:
        """The steps [begin, end) that the tensor rank has."""
        if not self.layout.sequence_parallel:
            return 0, count
        if count % self.tensor_size:
            raise InvalidArgumentError(
                f"{'rows' if self.packed else 'positions'} of a context rank: a multiple of "
                f"{self.tensor_size} tensor ranks with sequence_parallel, got {count}"
            )
        part = count // self.tensor_size
        return self.tensor_rank * part, (self.tensor_rank + 1) * part


class Plan:
    """The rows of one rank for one micro-batch; ``Layout.plan()`` makes it."""

    __slots__ = ("layout", "lengths", "rows", "segments")

    layout: Layout
    """What it was made of."""
    lengths: tuple[int, ...]
    """The tokens of each sequence."""
    rows: int
    """Rows of this rank, padding included."""
    segments: list[Segment]
    """The tokens of this rank, by sequence and position. Rows in none are padding."""

    def __init__(
        self,
        layout: Layout,
        lengths: Sequence[int] | npt.NDArray[Any],
        padded_lengths: Sequence[int] | npt.NDArray[Any] | None = None,
    ) -> None:
        """As ``Layout.plan()``."""
        tokens = numbers("lengths", lengths)
        padded = None if padded_lengths is None else numbers("padded_lengths", padded_lengths)
        self.rows, self.segments = _Cutter(layout).run(tokens, padded)
        self.layout = layout
        self.lengths = tuple(tokens)

    def _with(self, rows: int, segments: list[Segment]) -> Plan:
        """Other rows of the same sequences."""
        plan = Plan.__new__(Plan)
        plan.layout, plan.lengths = self.layout, self.lengths
        plan.rows, plan.segments = rows, segments
        return plan

    def places(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """(sequence, position) of each row, -1 for padding: int32 and int64 [rows]."""
        sequences = np.full(self.rows, -1, np.int32)
        positions = np.full(self.rows, -1, np.int64)
        for segment in self.segments:
            sequences[segment.rows] = segment.sequence
            positions[segment.rows] = np.arange(segment.position, segment.position + segment.count)
        return sequences, positions

    def fill(
        self,
        sources: Sequence[Source],
        layer_ids: Sequence[int] | npt.NDArray[Any],
        *,
        dtype: npt.DTypeLike = np.int64,
        fill: Fill = "spread",
        partial: bool = False,
        packed: bool = False,
        out: Any = None,
        timeout: float | None = None,
    ) -> Filled:
        """The ids that this rank's routers replay: of rows in memory straight from where they are,
        of documents and handles this rank's rows and layers are read first. Releases the GIL.

        sources: one for each sequence, with the rows of all its tokens but the last (whose row may
        be there): Rows, a Document, (fetcher, handle), or a Trajectory. layer_ids: of the routers,
        by the model's numbers counted from 0 (``layer_number - 1`` in Megatron-Core), in the order
        of the tensors. dtype: of the ids, if ``out`` is None; Megatron-Core takes int64 and int32.
        fill: the ids of rows without routing, padding too. "spread": K experts, as dispatchers need
        them, others in each such row of the rank and in each layer, so that they load every rank of
        experts alike; a route as any other, which only the mask tells apart. "minus_one": -1 (not
        with uint8), which no router chooses, so that a trainer that ignores the mask fails.
        partial: a source may have fewer rows; they are missing. packed: the ids are [rows, layers,
        K] as rows are stored, uint8 up to 256 experts, else uint16: the fewest bytes to a device,
        where expand() makes the tensors of them. out: of this shape in C order, a numpy array or a
        tensor in host memory, pinned for instance. timeout: of each fetch, in seconds; rows that
        have not arrived are missing.

        InvalidArgumentError for a source with too few or too many rows, for a layer that it does
        not have, and for sources that differ in K or E. A row with an id out of range, or one twice
        in a layer, is missing (INVALID_ID). On an error nothing is written."""
        layers = integers("layer_ids", layer_ids, "n")
        if not sources:
            raise InvalidArgumentError("sources: at least one, got 0")
        parts = [part_of(source, f"sources[{i}]") for i, source in enumerate(sources)]
        inputs = self._inputs(parts, layers, timeout)
        of = parts[0].shape
        axes = (self.rows, len(layers)) if packed else (len(layers), self.rows)
        shape = (*axes, of.top_k)
        array = np.empty(shape, of.id_dtype if packed else dtype) if out is None else output(out)
        fill_number = number_of("fill", fill, _FILLS)
        _, id_type = id_type_of(array.dtype, fill)
        if array.shape != shape:
            order = "[rows, layers, K]" if packed else "[layers, rows, K]"
            raise InvalidArgumentError(f"out: {order} = {list(shape)}, got {list(array.shape)}")
        mask = np.zeros(self.rows, np.bool_)
        replayed, padding, no_row, missing, sequence, position = _core.fill_tensors(
            self.rows, self.lengths, np.array(self.segments, np.int64).ravel(), inputs, layers,
            id_type, fill_number, partial, packed, array, mask,
        )  # fmt: skip
        report = FillReport(
            replayed,
            padding,
            no_row,
            {Reason(i): rows for i, rows in enumerate(missing) if rows},
            None if sequence < 0 else (sequence, position),
        )
        return Filled(array if out is None else out, mask, report)

    def _inputs(
        self,
        sources: Sequence[Part | Trajectory],
        layers: npt.NDArray[Any],
        timeout: float | None,
    ) -> list[Any]:
        """The sources as the extension takes them: rows in memory. Of documents and handles this
        rank's rows are read."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for segment in self.segments:
            range_ = segment.position, segment.position + segment.count
            ranges.setdefault(segment.sequence, []).append(range_)
        inputs: list[Any] = []
        for i, source in enumerate(sources):
            if isinstance(source, Trajectory) and i < len(self.lengths):
                if len(source.tokens) != self.lengths[i]:
                    raise InvalidArgumentError(
                        f"sources[{i}]: a trajectory of {self.lengths[i]} tokens, as the sequence, "
                        f"got one of {len(source.tokens)}"
                    )
            rows = source._of_rank(ranges.get(i, []), layers, timeout)
            inputs.append((tuple(rows.shape), rows.first, rows.ids, rows.infos.view(np.uint8)))
        return inputs

    def collect(
        self,
        recorded: npt.ArrayLike | Sequence[Any],
        *,
        num_experts: int,
        layer_ids: Sequence[int],
        version: int = UNKNOWN_VERSION,
    ) -> list[Rows]:
        """The way back: rows of each sequence, from what the routers of this rank chose.

        recorded: integers [layers, rows, K], or a tensor [rows, K] of each layer. layer_ids: as in
        fill(), increasing. version: of the weights, if you know it. Rows of other ranks are missing
        (NEVER_WRITTEN): ``waymark.join()`` of the context and tensor ranks' rows has all,
        ``Rows.join_layers()`` has all stages'."""
        ids = layers_of("recorded", recorded)
        check_type("recorded", ids, num_experts)
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
                missing=Reason.NEVER_WRITTEN, provenance=Provenance.HERE,
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
    fill: Fill = "spread",
    stream: Any = None,
) -> Any:
    """The tensors of a rank's routers, [layers, rows, K], from what ``Plan.fill(packed=True)``
    returned, where it is: on a device the rows are widened by one launch on ``stream``, in the
    order of its work.

        filled = plan.fill(rows, layer_ids, packed=True)
        packed, mask = (torch.from_numpy(a).cuda() for a in (filled.ids, filled.mask))
        ids = torch.empty((len(layer_ids), plan.rows, top_k), dtype=torch.int32, device="cuda")
        trainer.expand(packed, mask, num_experts=256, out=ids, stream=torch.cuda.current_stream())

    packed: uint8 or uint16 [rows, layers, K]. mask: bool or uint8 [rows]. out: [layers, rows, K] in
    C order; with arrays in host memory None makes one of ``dtype``. All lie in host memory, or on
    the thread's current device. fill: of rows whose mask is False. "spread": what ``packed`` has
    for them, as Plan.fill() wrote it; "minus_one": -1. stream: an
    int, None (the default stream), or an object with cuda_stream. Returns out.

    InvalidArgumentError for other shapes or types, arrays that lie apart, a type of ids that does
    not hold every expert, and in host memory for ids that are not below num_experts;
    UnimplementedError on a device if Waymark was built without CUDA."""
    if out is None:
        rows, layers, top_k = np.shape(packed)
        out = np.empty((layers, rows, top_k), id_type_of(dtype, fill)[0])
    if not _core.expand(packed, mask, out, num_experts, number_of("fill", fill, _FILLS), stream):
        ids, given = np.asarray(out), np.asarray(packed)
        used = (np.asarray(mask) != 0) | (fill == "spread")
        beyond = np.flatnonzero((given >= num_experts).any((1, 2)) & used)
        if len(beyond):
            raise InvalidArgumentError(
                f"packed: ids must be below {num_experts}, got {given[beyond[0]].max()} in row "
                f"{beyond[0]}"
            )
        ids[:] = given.transpose(1, 0, 2)
        ids[:, ~used] = -1
    return out
