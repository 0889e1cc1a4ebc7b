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
from .._types import integer, number_of
from ._plan import FillReport, Layout, Plan, Segment, Source, part_of

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
    cu_seqlens. "routers": [local rows, K] of each router of a rank;
    Megatron's ``set_replay_data`` wants as many as there are instances, MTP's routers included,
    which have no rows: with those set the targets of each instance (``set_target_indices``), or
    use ``waymark.megatron.replay``."""
    last_row: bool
    """Whether the last token has a row: T rows of T tokens, else T - 1."""
    layers: FormatLayers
    """Which layers have a column. "all": the model's; dense ones are 0. "moe": those with
    experts. "every": the model's, each of which must have experts."""
    dtypes: tuple[str, ...]
    """The first that holds every expert of the model is taken."""
    native: bool
    """Whether the trainer itself routes a token whose row is missing, and is -1 then. Else it
    replays the fill, as of last tokens and padding: experts that no router chose
    (``Plan.fill()``, "spread")."""

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
        whole = lengths if isinstance(lengths, Plan) else Layout().plan(lengths)
        longest, first = _places(chosen, whole.lengths, length, starts)
        if not sources:
            raise InvalidArgumentError("sources: at least one, got 0")
        of = part_of(sources[0], "sources[0]").shape
        dtype = self._dtype(of.num_experts - 1)
        rows, tokens = self._tokens(chosen, whole, longest, first)
        # A last token has no route, whether a source has a row for it or not.
        counts = [min(s.count, whole.lengths[s.sequence] - 1 - s.position) for s in tokens]
        routed = [s._replace(count=count) for s, count in zip(tokens, counts) if count > 0]
        plan = whole._with(rows, routed)
        filled = plan.fill(sources, layer_ids, dtype=of.id_dtype, partial=partial, timeout=timeout)
        total = sum(s.count for s in tokens)
        report = filled.report._replace(
            padding=max(rows - total, 0), no_row=total - sum(s.count for s in routed)
        )
        if report.missing and missing == "refuse" and not self.native:
            raise FailedPreconditionError(self._refusal(report))
        values = np.zeros((rows, width, of.top_k), dtype)
        values[:, columns] = filled.ids.transpose(1, 0, 2)
        if self.native:
            values[~filled.mask & (plan.places()[0] >= 0)] = -1
        return self._arranged(chosen, plan, values, filled.mask, longest, report)

    def _tokens(
        self, form: Form, plan: Plan, longest: int, first: list[int]
    ) -> tuple[int, list[Segment]]:
        """The rows of the arrays together, and their tokens."""
        if form == "routers":
            return plan.rows, plan.segments
        if form == "batch":
            begins = [i * longest + begin for i, begin in enumerate(first)]
            rows = len(first) * longest
        else:
            *begins, rows = np.cumsum([0, *map(self._rows, plan.lengths)]).tolist()
        return rows, [Segment(i, 0, n, begins[i], 1) for i, n in enumerate(plan.lengths) if n]

    def _rows(self, length: int) -> int:
        """Of a sequence, without padding."""
        return length if self.last_row else max(length - 1, 0)

    def _arranged(
        self, form: Form, plan: Plan, values: Ids, mask: Mask, longest: int, report: FillReport
    ) -> ReplayData:
        """The rows of all sequences, [rows, columns, K], in a form."""
        if form == "routers":
            tensors = list(values.transpose(1, 0, 2).copy())
            return ReplayData(tensors, mask, None, None, report)
        if form == "batch":
            shape = len(plan.lengths), longest
            batch = values.reshape(*shape, *values.shape[1:])
            return ReplayData(batch, mask.reshape(shape), None, None, report)
        begins = np.cumsum([0, *map(self._rows, plan.lengths)], dtype=np.int32)
        spans = [slice(begin, end) for begin, end in zip(begins, begins[1:])]
        if form == "packed":
            padding = np.ones((len(spans), longest), np.bool_)
            for i, span in enumerate(spans):
                padding[i, longest - plan.lengths[i] :] = ~mask[span]
            return ReplayData(values, mask, begins, padding, report)
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

    def _refusal(self, report: FillReport) -> str:
        sequence, position = report.first_missing or (0, 0)
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.missing.items())
        return (
            f"sources[{sequence}]: no ids for token {position} (in all: {reasons}), where "
            f"{self.name} would replay experts that no router chose; with missing='fill' it does, "
            f"and these tokens have to be left out of the loss"
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


# name, version, forms, last_row, layers, dtypes, native
_KNOWN = (
    Format("megatron", "megatron-core 0.19.2", ("routers",), True, "moe", ("int64",), False),
    Format("verl", "0.9.1", ("list", "batch"), True, "all or moe", ("int16",), False),
    Format("nemo-rl", "7ea279a", ("list", "batch"), True, "all or moe",
           ("int8", "int16", "int32"), True),
    Format("skyrl", "0.4.0", ("packed",), True, "all", ("uint8", "int16", "int32"), False),
    Format("slime", "624b824", ("list",), False, "all", ("int32",), False),
    Format("miles", "31f1ca9", ("list",), False, "all", ("int32",), False),
    Format("prime-rl", "559b447", ("struct",), True, "all", ("uint8", "uint16"), False),
    Format("roll", "8eb27cc", ("batch",), True, "every", ("uint8", "int16"), False),
    Format("areal", "1.0.4", ("flat",), False, "all", ("int32",), False),
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
