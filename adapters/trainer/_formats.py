"""The arrays that trainers take for replay: one description of them, and a table of nine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays import numbers
from .._errors import FailedPreconditionError, InvalidArgumentError
from .._rows import Fill
from .._types import integer, number_of
from ._plan import FillReport, Layout, Plan, Source, filler, part_of

Form = Literal["list", "flat", "struct", "batch", "packed", "routers"]
FormatLayers = Literal["all", "all or moe", "moe", "every"]
IfMissing = Literal["refuse", "fill"]
Lengths = Union[Sequence[int], npt.NDArray[Any], Plan]
Ids = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_IF_MISSING = {"refuse": 0, "fill": 1}


class ReplayData(NamedTuple):
    """What a trainer takes."""

    ids: Any
    """An array, or a list of them: see Format.forms."""
    mask: Any
    """bool, as ids without layers and K: whether the row has the engine's ids."""
    cu_seqlens: npt.NDArray[np.int32] | None
    """[sequences + 1], with "packed": where each sequence begins. None otherwise."""
    router_padding_mask: Mask | None
    """[sequences, length], with "packed": padded on the left, True for padding and for rows without
    the engine's ids. None otherwise."""
    report: FillReport
    """How many rows of which kind, last tokens included, and the first that is missing."""


@dataclass(frozen=True)
class Format:
    """The array that a trainer takes, as facts. Immutable."""

    name: str
    """Of the trainer."""
    version: str
    """The version or the commit that the facts are of."""
    forms: tuple[Form, ...]
    """The first is the default. "list": [rows, layers, K] of each sequence. "flat": [rows, layers *
    K] of each. "struct": {data, shape, dtype} of each, where data are the bytes of [rows, layers,
    K]. "batch": [sequences, length, layers, K]. "packed": [rows of all sequences, layers, K] and
    cu_seqlens. "routers": [local rows, K] of each router of a rank."""
    last_row: bool
    """Whether the last token has a row: T rows of T tokens, else T - 1."""
    layers: FormatLayers
    """Which layers have a column. "all": the model's; dense ones are 0. "moe": those with
    experts. "every": the model's, each of which must have experts."""
    dtypes: tuple[str, ...]
    """The first that holds the ids is taken."""
    dtype_by: Literal["experts", "ids"]
    """The ids that it must hold: all of the model, or those in the array."""
    unused: Fill
    """The row of a last token, and of padding."""
    missing: Fill
    """The row of another token without ids."""
    native: bool
    """Whether the trainer routes such a token itself. Else it replays ids that no router chose."""

    def write(
        self,
        sources: Sequence[Source],
        lengths: Lengths,
        *,
        layer_ids: Sequence[int],
        num_layers: int | None = None,
        missing: IfMissing = "refuse",
        partial: bool = False,
        form: Form | None = None,
        length: int | None = None,
        starts: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> ReplayData:
        """The rows of sequences as this trainer takes them.

        sources, partial, timeout: as in Plan.fill(). lengths: the tokens of each sequence; with
        "routers" also a Plan. layer_ids: the layers with experts by the model's numbers counted
        from 0, increasing ("routers": in the order of the routers). num_layers: of the model, dense
        ones included; needed if all layers have a column. missing: "fill" accepts missing rows that
        the trainer replays with ids that no router chose; leave these tokens out of the loss. form:
        one of ``forms``. length: of "batch" and of router_padding_mask; None: the longest sequence.
        starts: of "batch": where each sequence begins; None: at 0, so that padding is on the right.

        FailedPreconditionError for such missing rows with missing="refuse". InvalidArgumentError as
        Plan.fill(), and for layers, ids and lengths that the array cannot express."""
        chosen = self.forms[0] if form is None else form
        number_of("form", chosen, dict.fromkeys(self.forms, 0))
        columns, width = self._columns(layer_ids, num_layers, chosen)
        number_of("missing", missing, _IF_MISSING)
        if isinstance(lengths, Plan) and chosen != "routers":
            raise InvalidArgumentError(
                f"lengths: the tokens of each sequence ({self.name} cuts rows itself), got a Plan"
            )
        plan = lengths if isinstance(lengths, Plan) else Layout().plan(lengths)
        longest, first = _places(chosen, plan.lengths, length, starts)
        if not sources:
            raise InvalidArgumentError("sources: at least one, got 0")
        of = part_of(sources[0]).shape
        filled = plan.fill(
            sources, layer_ids, dtype=of.id_dtype, fill="zeros", partial=partial, timeout=timeout
        )
        ids: Ids = filled.ids.transpose(1, 0, 2)
        sequence, position = plan.places()
        last = (sequence >= 0) & (position == np.array(plan.lengths)[sequence] - 1)
        mask = filled.mask & ~last
        lost = ~filled.mask & ~last & (sequence >= 0)
        # Last tokens without a row, or with one that is not used; those whose row a source calls
        # missing are counted with it.
        counted = sum(filled.report.missing.values()) - int(lost.sum())
        report = filled.report._replace(replayed=int(mask.sum()), no_row=int(last.sum()) - counted)
        if lost.any() and missing == "refuse" and not self.native:
            first_lost = min(zip(sequence[lost].tolist(), position[lost].tolist()))
            raise FailedPreconditionError(self._refusal(report, first_lost))
        rows, _, top_k = ids.shape
        by_experts = self.dtype_by == "experts"
        greatest = of.num_experts - 1 if by_experts else int(ids[mask].max(initial=0))
        dtype = self._dtype(greatest)
        values = np.zeros((rows, width, top_k), dtype)
        values[:, columns] = ids
        values[~mask] = filler(self.unused, top_k, dtype)
        values[lost] = filler(self.missing, top_k, dtype)
        return self._arranged(chosen, plan, values, mask, (longest, first), report)

    def _arranged(
        self,
        form: Form,
        plan: Plan,
        values: Ids,
        mask: Mask,
        places: tuple[int, list[int]],
        report: FillReport,
    ) -> ReplayData:
        """The rows of all sequences, [rows, columns, K], in a form."""
        longest, first = places
        if form == "routers":
            tensors = list(values.transpose(1, 0, 2).copy())
            return ReplayData(tensors, mask, None, None, report)
        ends = np.cumsum(plan.lengths, dtype=np.int32)
        spans = [slice(end - n, end) for end, n in zip(ends, plan.lengths)]
        if form == "packed":
            padding = np.ones((len(spans), longest), np.bool_)
            for i, span in enumerate(spans):
                padding[i, longest - plan.lengths[i] :] = ~mask[span]
            begins = np.concatenate((np.zeros(1, np.int32), ends))
            return ReplayData(values, mask, begins, padding, report)
        if form == "batch":
            batch = np.empty((len(spans), longest, *values.shape[1:]), values.dtype)
            batch[:] = filler(self.unused, values.shape[2], values.dtype)
            used = np.zeros((len(spans), longest), np.bool_)
            for i, span in enumerate(spans):
                at = slice(first[i], first[i] + plan.lengths[i])
                batch[i, at], used[i, at] = values[span], mask[span]
            return ReplayData(batch, used, None, None, report)
        if not self.last_row:
            spans = [slice(span.start, max(span.start, span.stop - 1)) for span in spans]
        parts = [_shaped(values[span].copy(), form) for span in spans]
        return ReplayData(parts, [mask[span] for span in spans], None, None, report)

    def _columns(
        self, layer_ids: Sequence[int], num_layers: int | None, form: Form
    ) -> tuple[list[int], int]:
        """The column of each layer, and the number of columns."""
        layers = numbers("layer_ids", layer_ids)
        if form == "routers":
            return list(range(len(layers))), len(layers)
        if not layers or layers[0] < 0 or any(b <= a for a, b in zip(layers, layers[1:])):
            raise InvalidArgumentError(
                f"layer_ids: at least one, from 0 on, increasing, got {layers}"
            )
        if num_layers is not None and layers[-1] >= num_layers:
            raise InvalidArgumentError(
                f"layer_ids: below num_layers = {num_layers}, got {layers[-1]}"
            )
        if self.layers == "every":
            total = len(layers) if num_layers is None else num_layers
            if layers != list(range(total)):
                raise InvalidArgumentError(
                    f"layer_ids: 0 to {total - 1}, because {self.name} counts routers from the "
                    f"first layer of a stage, and a dense layer shifts them; got {layers}"
                )
        elif num_layers is not None:
            return layers, num_layers
        elif self.layers == "all":
            raise InvalidArgumentError(
                f"num_layers: of the model, each of which has a column for {self.name}; got None"
            )
        return list(range(len(layers))), len(layers)

    def _dtype(self, greatest: int) -> np.dtype[Any]:
        for name in self.dtypes:
            if greatest <= np.iinfo(name).max:
                return np.dtype(name)
        raise InvalidArgumentError(
            f"ids: up to {np.iinfo(self.dtypes[-1]).max}, because {self.name} takes "
            f"{self.dtypes[-1]}; got {greatest}"
        )

    def _refusal(self, report: FillReport, first: tuple[int, int]) -> str:
        sequence, position = first
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.missing.items())
        replayed = "expert 0 K times" if self.missing == "zeros" else "the experts 0 to K - 1"
        return (
            f"sources[{sequence}]: no ids for token {position} (in all: {reasons}), where "
            f"{self.name} would replay {replayed}; with missing='fill' it does, and these tokens "
            f"have to be left out of the loss"
        )


def _places(
    form: Form, lengths: Sequence[int], length: int | None, starts: Sequence[int] | None
) -> tuple[int, list[int]]:
    """The length of a padded sequence, and where each begins in it."""
    if length is not None and form not in ("batch", "packed"):
        raise InvalidArgumentError(f"length: only with form 'batch' or 'packed', got {length}")
    if starts is not None and form != "batch":
        raise InvalidArgumentError(f"starts: only with form 'batch', got {starts}")
    first = [0] * len(lengths) if starts is None else numbers("starts", starts)
    if len(first) != len(lengths):
        raise InvalidArgumentError(f"starts: of {len(lengths)} sequences, got {len(first)}")
    ends = [start + n for start, n in zip(first, lengths)]
    longest = max(ends, default=0)
    if length is not None:
        longest = integer("length", length, 0, (1 << 31) - 1)
    for start, end in zip(first, ends):
        if start < 0 or end > longest:
            name = "length" if starts is None else "starts"
            raise InvalidArgumentError(
                f"{name}: sequences within [0, {longest}), got [{start}, {end})"
            )
    return longest, first


def _shaped(array: Ids, form: Form) -> Any:
    """[rows, layers, K] of a sequence in the form "list", "flat" or "struct"."""
    if form == "flat":
        return array.reshape(len(array), array.shape[1] * array.shape[2])
    if form == "struct":
        return {"data": array.tobytes(), "shape": list(array.shape), "dtype": array.dtype.name}
    return array


# name, version, forms, last_row, layers, dtypes, dtype_by, unused, missing, native
_KNOWN = (
    Format("megatron", "megatron-core 0.19.2", ("routers",), True, "moe",
           ("int64",), "ids", "arange", "arange", False),
    Format("verl", "0.9.1", ("list", "batch"), True, "all or moe",
           ("int16",), "ids", "zeros", "zeros", False),
    Format("nemo-rl", "7ea279a", ("list", "batch"), True, "all or moe",
           ("int8", "int16", "int32"), "experts", "arange", "minus_one", True),
    Format("skyrl", "0.4.0", ("packed",), True, "all",
           ("uint8", "int16", "int32"), "ids", "arange", "arange", False),
    Format("slime", "624b824", ("list",), False, "all",
           ("int32",), "ids", "arange", "arange", False),
    Format("miles", "31f1ca9", ("list",), False, "all",
           ("int32",), "ids", "minus_one", "minus_one", False),
    Format("prime-rl", "559b447", ("struct",), True, "all",
           ("uint8", "uint16"), "experts", "zeros", "zeros", False),
    Format("roll", "8eb27cc", ("batch",), True, "every",
           ("uint8", "int16"), "ids", "zeros", "zeros", False),
    Format("areal", "1.0.4", ("flat",), False, "all",
           ("int32",), "ids", "arange", "arange", False),
)  # fmt: skip


class _Formats(dict[str, Format]):
    def __missing__(self, name: str) -> Format:
        arrays = ", ".join(self)
        if name in _core.format_names()[0]:
            raise KeyError(
                f"{name!r} is a format of bytes: waymark.read() and Rows.to_format() have it; the "
                f"arrays are {arrays}"
            )
        raise KeyError(f"{name!r}: the arrays are {arrays}")


_FACTS = {known.name: known for known in _KNOWN}
FORMATS: Mapping[str, Format] = _Formats({name: _FACTS[name] for name in _core.format_names()[1]})
"""By the name of the trainer. docs/training.md tells where each fact is from."""
