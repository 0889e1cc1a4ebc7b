"""One sequence of a trainer, assembled from the rows of the requests that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays import columns_of, integers
from .._documents import Document
from .._errors import InvalidArgumentError, OutOfRangeError
from .._fetching import Fetcher
from .._rows import Rows
from .._types import Cause, Provenance, Reason, Shape, integer, number_of, row_info_dtype
from .._versions import WeightVersions

RowSource = Union[Rows, Document, tuple[Fetcher, bytes]]
"""Where rows of a sequence are; (fetcher, handle): those that a handle names."""
Choose = Literal["sampled", "newest"]

_CHOICES = {"sampled": 0, "newest": 1}
_NO_PART = -1
_LIKELY: dict[type, str] = {  # why it is no source
    type(None): ": the engine captured no rows (vLLM: is WAYMARK_VLLM=1 set, and waymark not False "
    "in extra_args?)",
    np.ndarray: ": an array does not say what its rows are; Rows.from_array(ids, num_experts=, "
    "layer_ids=, valid=) does",
}


class PartRun(NamedTuple):
    """Rows [begin, end) of a trajectory that are alike."""

    begin: int
    end: int
    reason: Reason
    version: int
    provenance: Provenance
    version_name: str
    """The name of the version, if coverage() was given WeightVersions that have it."""
    part: int
    """The index, in ``Trajectory.parts``, of the part that they are from; -1: missing."""
    sampled_by: int
    """Part that sampled the next tokens; -1 if unknown. Where it is not
    ``part``, the log-probabilities were computed with other rows than these."""
    cause: Cause
    """Of CAPACITY; else NONE."""

    @property
    def valid(self) -> bool:
        """Whether the rows are valid."""
        return self.reason == Reason.NONE


class Part:
    """Rows of one request, with the tokens that they belong to. Immutable; any thread; may be part
    of many trajectories."""

    __slots__ = (
        "_source", "first", "last", "num_tokens", "ordered", "prompt_tokens", "shape", "tokens",
    )  # fmt: skip

    shape: Shape
    """The shape of its rows."""
    first: int
    """The first row, counted from the first token of the request."""
    last: int
    """One past the last row."""
    num_tokens: int
    """The tokens of the request, prompt included."""
    prompt_tokens: int | None
    """As given."""
    tokens: npt.NDArray[np.int64] | None
    """As given, read-only."""

    def __init__(
        self, source: RowSource, tokens: npt.ArrayLike | None, prompt_tokens: int | None = None
    ) -> None:
        """source: its rows: ``Rows``, a ``Document``, or ``(fetcher, handle)``. Row i is
        token i's of the request, counted from the first token of its prompt. Of a handle nothing is
        fetched before rows are asked for.

        tokens: integers [n], the prompt's and then those that were sampled. Rows are used
        for a sequence only as far as its tokens are these, because the routing of a token depends
        on every token before it. None: you vouch that every sequence that the part
        is given to has its tokens.

        prompt_tokens: how many of them the engine was given; it sampled the others. Needed to know
        which of several rows of a token its log-probability was computed with. None: not known.

        InvalidArgumentError if there are rows of more tokens than were given."""
        if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], Fetcher):
            none = source[0].fetch(source[1], 0, 0)  # their shape; fetches nothing
            self.first, self.last = 0, int(_core.handle_info(source[1])[0])
            self.shape, self.ordered = none.shape, none.ordered
        elif isinstance(source, (Rows, Document)):
            self.first, self.last = source.first, source.last
            self.shape, self.ordered = source.shape, source.ordered
        else:
            raise TypeError(
                f"source: Rows, Document, or (Fetcher, handle), got {type(source).__name__}"
                + _LIKELY.get(type(source), "")
            )
        self._source = source
        self.tokens = None if tokens is None else _token_ids("tokens", tokens)
        self.num_tokens = self.last + 1 if self.tokens is None else len(self.tokens)
        if self.last > self.num_tokens:
            raise InvalidArgumentError(
                f"tokens: one for each row, at least {self.last}, got {self.num_tokens}"
            )
        if prompt_tokens is not None:
            prompt_tokens = integer("prompt_tokens", prompt_tokens, 0, self.num_tokens)
        self.prompt_tokens = prompt_tokens

    def _agreed(self, tokens: npt.NDArray[np.int64]) -> int:
        """How many leading tokens of a sequence are this part's."""
        most = min(len(tokens), self.num_tokens)
        if self.tokens is None:
            return most
        differ = np.flatnonzero(self.tokens[:most] != tokens[:most])
        return int(differ[0]) if len(differ) else most

    def _read(self, first: int, last: int, begin: int, end: int, timeout: float | None) -> Rows:
        """Rows [first, last), which it has, of captured layers [begin, end)."""
        if isinstance(self._source, Rows):
            rows = self._source[first - self.first : last - self.first]
            return rows.of_layers(self.shape.layer_ids[begin:end])
        if isinstance(self._source, Document):
            return self._source.rows(first, last, layers=(begin, end))
        fetcher, handle = self._source
        return fetcher.fetch(handle, first, last, layers=(begin, end), timeout=timeout)

    def _take(
        self, first: int, last: int, columns: list[int], timeout: float | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.void]]:
        """(ids, infos) of rows [first, last); a row of which layers did not arrive is missing."""
        adjacent = np.asarray(columns) - np.arange(len(columns))
        reads = [
            self._read(first, last, columns[begin], columns[end - 1] + 1, timeout)
            for begin, end in _equal_runs(adjacent)
        ]
        if len(reads) == 1:
            return reads[0].ids, reads[0].infos
        infos = reads[0].infos.copy()
        for rows in reads[1:]:
            worse = (infos["reason"] == 0) & (rows.infos["reason"] != 0)
            infos[worse] = rows.infos[worse]
        return np.concatenate([rows.ids for rows in reads], axis=1), infos

    def _of_rank(
        self, ranges: Sequence[tuple[int, int]], layer_ids: npt.NDArray[Any], timeout: float | None
    ) -> Rows:
        """All rows, of which only those in ``ranges`` are read; of these layers, in any order. Rows
        in memory as they are."""
        if isinstance(self._source, Rows):
            return self._source
        columns = columns_of(self.shape.layer_ids, sorted(set(layer_ids.tolist())))
        buffer = _Buffer(self.shape, columns, self.first, self.last)
        for begin, end in ranges:
            begin, end = max(begin, self.first), min(end, self.last)
            if begin < end:
                buffer.add(0, begin, *self._take(begin, end, columns, timeout))
        return buffer.rows(self.ordered)

    def __repr__(self) -> str:
        return (
            f"Part(rows=[{self.first}, {self.last}), tokens={self.num_tokens}, "
            f"prompt_tokens={self.prompt_tokens})"
        )


class Trajectory:
    """The rows of one sequence of a trainer, from the parts that it was made of: turns, a partial
    rollout and what resumed it, a prompt and its samples, prefill and decode on two engines.
    ``Plan.fill()`` takes it as a source. Immutable; any thread; reads and fetches nothing until
    rows are asked for, and then those alone.

    A row of a part is used only if all tokens up to its own are the sequence's: behind the
    first token that differs (a chat template that tokenised a turn again, another branch), and
    behind the end of the sequence, a part has no rows for it. Several parts may have rows of the
    same token, each right for the pass that computed it:

    - choose="sampled": the rows in force when the tokens were sampled. The row of token i is from
      the part that sampled token i + 1, because the log-probability of token i + 1 was computed
      from the logits of token i. Where token i + 1 was given (in a prompt, by a tool), it is from
      the part that sampled the next token behind it, which was computed with the KV of token i. Of
      several parts that sampled the same token the last one counts: the
      repetition of a turn.
    - choose="newest": of the parts that have the row, the last one: one pass over as much as
      possible, by the newest weights.

    What that part does not have, or reports as missing, is from the nearest part before it that has
    the row, else from the first one behind it, else from ``others``."""

    __slots__ = (
        "_choose", "_owners", "_usable", "agreed", "parts", "sampled_by", "shape", "tokens",
    )  # fmt: skip

    tokens: npt.NDArray[np.int64]
    """int64 [T], read-only."""
    parts: tuple[Part, ...]
    """The parts, and behind them the others."""
    agreed: tuple[int, ...]
    """How many leading tokens of each part are the sequence's."""
    sampled_by: npt.NDArray[np.int32]
    """int32 [len(self)], read-only: the index of the part that sampled the token behind each row;
    -1: none that is known."""
    shape: Shape
    """The shape of the rows."""

    def __init__(
        self,
        tokens: npt.ArrayLike,
        parts: Sequence[Part],
        others: Sequence[Part] = (),
        *,
        choose: Choose = "sampled",
    ) -> None:
        """tokens: integers [T], of the sequence as it is trained on. parts: the requests that it
        was made of, in the order of time. others: requests that only share tokens with it, and did
        not sample them for it: attempts that were given up, other branches. There are rows of all
        tokens but the last, and one of the last if a part has it.

        InvalidArgumentError without tokens or parts, and unless all parts have the same layers, K
        and E."""
        self._choose = number_of("choose", choose, _CHOICES)
        self.tokens = _token_ids("tokens", tokens)
        if not len(self.tokens):
            raise InvalidArgumentError("tokens: at least one, got 0")
        self.parts = (*parts, *others)
        for part in self.parts:
            if not isinstance(part, Part):
                raise TypeError(f"parts, others: Part, got {type(part).__name__}")
        if not parts:
            raise InvalidArgumentError("parts: at least one, got 0")
        self.shape = self.parts[0].shape
        for i, part in enumerate(self.parts):
            wanted = (self.shape.top_k, self.shape.num_experts, self.shape.layer_ids)
            if (part.shape.top_k, part.shape.num_experts, part.shape.layer_ids) != wanted:
                raise InvalidArgumentError(
                    f"parts: of one model and the same layers; part 0 has K = {wanted[0]}, E = "
                    f"{wanted[1]}, layers {list(wanted[2])}, and part {i} has K = "
                    f"{part.shape.top_k}, E = {part.shape.num_experts}, layers "
                    f"{list(part.shape.layer_ids)}"
                )
        self.agreed = tuple(part._agreed(self.tokens) for part in self.parts)
        self._usable = [
            (part.first, min(part.last, agreed)) for part, agreed in zip(self.parts, self.agreed)
        ]
        tokens_with_row = max(last for _, last in self._usable)
        rows = max(len(self.tokens) - 1, tokens_with_row)
        self.sampled_by = np.full(rows, _NO_PART, np.int32)
        for i, part in enumerate(parts):
            if part.prompt_tokens is not None:
                self.sampled_by[max(part.prompt_tokens - 1, 0) : max(self.agreed[i] - 1, 0)] = i
        self.sampled_by.flags.writeable = False
        self._owners = self._owner_runs(len(parts))

    def _owner_runs(self, num_parts: int) -> list[tuple[int, int, list[int]]]:
        """(begin, end, parts in the order in which they are asked) over all rows."""
        others = [*range(num_parts, len(self.parts))]
        if self._choose == _CHOICES["newest"]:
            return [(0, len(self), [*reversed(range(num_parts)), *others])]
        owner = self.sampled_by[::-1]  # from the back: of the next sampled token
        known = np.maximum.accumulate(np.where(owner != _NO_PART, np.arange(len(owner)), -1))
        owner = np.where(known >= 0, owner[np.maximum(known, 0)], _NO_PART)[::-1]
        # The parts before a request are what it found in the prefix cache.
        return [
            (begin, end, [*reversed(range(o + 1)), *range(o + 1, num_parts), *others])
            for begin, end in _equal_runs(owner)
            for o in [int(owner[begin])]
        ]

    def __len__(self) -> int:
        """The number of rows: one less than tokens, or as many, if a part has the last token's."""
        return len(self.sampled_by)

    def rows(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        layer_ids: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Rows:
        """Rows [first, last) (None: all) of these layers, by the model's numbers, increasing (None:
        all). Rows that no part has are missing (NEVER_WRITTEN); those that parts report as missing
        have the reason of the first of them. timeout: of each fetch, in seconds; rows that have not
        arrived are looked for in the other parts, else they are missing (CAPACITY).

        OutOfRangeError outside the rows; InvalidArgumentError for a layer that the parts do not
        have; errors as Fetcher.fetch()."""
        return self._read(first, last, layer_ids, timeout)[0]

    def coverage(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        versions: WeightVersions | None = None,
        layer_ids: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> list[PartRun]:
        """Where rows() has its rows from: runs of rows with equal reason, version, provenance, part
        and sampler. Reads them, so give it the layers that are read anyway: what a fetcher has
        cached it does not fetch again. versions: the names of the versions."""
        rows, part_of = self._read(first, last, layer_ids, timeout)
        name = (WeightVersions() if versions is None else versions).name
        fields = [rows.infos[name] for name in ("reason", "version", "provenance", "cause")]
        columns = *fields, part_of, self.sampled_by[rows.first : rows.last]
        runs = []
        for begin, end in _equal_runs(*columns):
            reason, version, how, cause, part, by = (int(column[begin]) for column in columns)
            runs.append(PartRun(
                rows.first + begin, rows.first + end, Reason(reason), version, Provenance(how),
                name(version), part, by, Cause(cause),
            ))  # fmt: skip
        return runs

    def _read(
        self, first: int, last: int | None, layer_ids: Sequence[int] | None, timeout: float | None
    ) -> tuple[Rows, npt.NDArray[np.int32]]:
        """rows(), and of each row the index of the part that it is from."""
        last = len(self) if last is None else last
        if not 0 <= first <= last <= len(self):
            raise OutOfRangeError(
                f"first, last: 0 <= first <= last <= {len(self)}, got {first}, {last}"
            )
        columns = list(range(self.shape.num_layers))
        if layer_ids is not None:
            columns = columns_of(self.shape.layer_ids, layer_ids)
        return self._assemble(first, last, [(first, last)], columns, timeout)

    def _of_rank(
        self, ranges: Sequence[tuple[int, int]], layer_ids: npt.NDArray[Any], timeout: float | None
    ) -> Rows:
        """All rows; only rows of tokens in ``ranges`` are read; of these layers, in any
        order."""
        columns = columns_of(self.shape.layer_ids, sorted(set(layer_ids.tolist())))
        return self._assemble(0, len(self), ranges, columns, timeout)[0]

    def _assemble(
        self,
        first: int,
        last: int,
        ranges: Sequence[tuple[int, int]],
        columns: list[int],
        timeout: float | None,
    ) -> tuple[Rows, npt.NDArray[np.int32]]:
        """Rows [first, last), of which only those in ``ranges`` are read, and the part of each."""
        buffer = _Buffer(self.shape, columns, first, last)
        for owner_begin, owner_end, order in self._owners:
            for range_begin, range_end in ranges:
                begin, end = max(owner_begin, range_begin), min(owner_end, range_end)
                for i in order if begin < end else ():
                    usable_begin, usable_end = self._usable[i]
                    gaps = buffer.gaps(max(begin, usable_begin), min(end, usable_end))
                    for gap_begin, gap_end in gaps:
                        read = self.parts[i]._take(gap_begin, gap_end, columns, timeout)
                        buffer.add(i, gap_begin, *read)
                    if not buffer.gaps(begin, end):
                        break
        used = np.unique(buffer.part_of)
        ordered = all(self.parts[i].ordered for i in used if i != _NO_PART)
        return buffer.rows(ordered), buffer.part_of

    def __repr__(self) -> str:
        return f"Trajectory(tokens={len(self.tokens)}, parts={len(self.parts)})"


class _Buffer:
    """Rows that are put together, and which part each is from."""

    __slots__ = ("first", "ids", "infos", "part_of", "shape")

    def __init__(self, shape: Shape, columns: list[int], first: int, last: int) -> None:
        layer_ids = tuple(shape.layer_ids[c] for c in columns)
        self.shape = shape = shape._replace(num_layers=len(columns), layer_ids=layer_ids)
        self.first = first
        # Memory of rows that are not read is not touched.
        self.ids = np.zeros((last - first, shape.num_layers, shape.top_k), shape.id_dtype)
        self.infos = np.zeros(last - first, row_info_dtype)
        self.infos["reason"] = Reason.NEVER_WRITTEN
        self.part_of = np.full(last - first, _NO_PART, np.int32)

    def gaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The longest ranges of rows in [begin, end) that are missing."""
        if begin >= end:
            return []
        missing = self.part_of[begin - self.first : end - self.first] == _NO_PART
        return [(begin + a, begin + b) for a, b in _equal_runs(missing) if missing[a]]

    def add(
        self, part: int, begin: int, ids: npt.NDArray[Any], infos: npt.NDArray[np.void]
    ) -> None:
        """Rows of a part from row ``begin`` on, which are missing here."""
        at = slice(begin - self.first, begin - self.first + len(infos))
        valid = infos["reason"] == 0
        known, told = self.infos["reason"][at], infos["reason"] != Reason.NEVER_WRITTEN
        better = valid | (known == Reason.NEVER_WRITTEN) | ((known == Reason.NOT_TOLD) & told)
        self.infos[at][better] = infos[better]
        if valid.all():
            self.ids[at] = ids
        else:
            self.ids[at][valid] = ids[valid]
        self.part_of[at][valid] = part

    def rows(self, ordered: bool) -> Rows:
        rows = Rows.__new__(Rows)  # of rows that have been checked
        rows._set(self.shape, self.first, self.ids, self.infos, ordered)
        return rows


def _token_ids(name: str, tokens: npt.ArrayLike) -> npt.NDArray[np.int64]:
    copy = integers(name, tokens, "n").astype(np.int64)
    copy.flags.writeable = False
    return copy


def _equal_runs(*arrays: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """[begin, end) of the longest runs in which every array has one value."""
    size = len(arrays[0])
    differs = np.zeros(max(size - 1, 0), np.bool_)
    for array in arrays:
        differs |= array[1:] != array[:-1]
    ends = [*(np.flatnonzero(differs) + 1).tolist(), *([size] if size else [])]
    return zip([0, *ends], ends)
