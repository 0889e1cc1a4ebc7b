"""What an array of a caller may be, in one place. Every error is an InvalidArgumentError that names
the argument, the rule and the value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import InvalidArgumentError


def array_of(name: str, value: Any) -> npt.NDArray[Any]:
    """An array of the host as one of numpy, without a copy."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgumentError(f"{name}: no masked array, whose mask would be ignored")
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:  # numpy's and torch's own
        text = f"{name}: an array in host memory, got {type(value).__name__} ({error})"
        raise InvalidArgumentError(text) from error


def integers(name: str, value: Any, *dims: str) -> npt.NDArray[Any]:
    """Integers of these dimensions. An empty list is integers, too."""
    array = array_of(name, value)
    empty = array.shape == (0,)
    if array.ndim != len(dims) or not (empty or array.dtype.kind in "iu"):
        raise InvalidArgumentError(
            f"{name}: integers [{', '.join(dims)}], got {array.dtype} {list(array.shape)}"
        )
    return array


def check_type(name: str, array: npt.NDArray[Any], num_experts: int) -> None:
    """Whether the type of an array can hold the ids of so many experts."""
    most, text = _core.experts_held(array.dtype.itemsize, array.dtype.kind == "i")
    if num_experts > most:
        raise InvalidArgumentError(f"{name}: {text}, num_experts is {num_experts}")


def numbers(name: str, value: Any) -> list[int]:
    """Integers [n], as ints."""
    listed: list[int] = integers(name, value, "n").tolist()
    return listed


def columns_of(layer_ids: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """Where chosen layers, named by the model's numbers, are among those of layer_ids."""
    column = {number: place for place, number in enumerate(layer_ids)}
    wanted = numbers("layer_ids", chosen)
    increasing = all(a < b for a, b in zip(wanted, wanted[1:]))
    if not wanted or not increasing or not column.keys() >= set(wanted):
        raise InvalidArgumentError(
            f"layer_ids: of the layers {list(layer_ids)}, at least one, increasing, got {wanted}"
        )
    return [column[number] for number in wanted]


def truths(name: str, value: Any, count: int) -> npt.NDArray[np.bool_]:
    """bool [count]; integers are none."""
    array = array_of(name, value)
    if array.dtype != np.bool_ or array.shape != (count,):
        raise InvalidArgumentError(f"{name}: bool [{count}], got {array.dtype} {list(array.shape)}")
    return array


def layers_of(name: str, ids: Any) -> npt.NDArray[Any]:
    """Integers [layers, rows, K] in C order, of one array or of a list of layers; no copy of an
    array in that order."""
    if isinstance(ids, (list, tuple)):
        layers = [array_of(f"{name}[{i}]", layer) for i, layer in enumerate(ids)]
        shapes = {layer.shape for layer in layers}
        if len(shapes) != 1:
            raise InvalidArgumentError(
                f"{name}: layers of one shape [rows, K], got {sorted(shapes)}"
            )
        ids = np.stack(layers)
    return np.ascontiguousarray(integers(name, ids, "layers", "rows", "K"))


def output(out: Any) -> npt.NDArray[Any]:
    """The memory of `out`, which is written in place."""
    array = array_of("out", out)
    # What numpy had to copy is another copy each time.
    if array.size and not np.may_share_memory(array, np.asarray(out)):
        raise InvalidArgumentError(
            f"out: memory that can be written in place, got {type(out).__name__}"
        )
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise InvalidArgumentError("out: C order and writable")
    return array


def check_choices(
    name: str,
    ids: npt.NDArray[Any],
    num_experts: int,
    layer_ids: Sequence[int],
    mask: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Whether the ids of each row (of mask, bool [rows]), integers [layers, rows, K], are what a
    router may choose: in range, and distinct."""
    if mask is not None:
        ids = ids[:, mask]
    if not ids.size:
        return
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= num_experts:
        raise InvalidArgumentError(
            f"{name}: ids in [0, {num_experts}), got {least if least < 0 else most}"
        )
    in_order = np.sort(ids, axis=-1)
    twice = np.argwhere(in_order[..., 1:] == in_order[..., :-1])
    if len(twice):
        layer, row, at = twice[0]
        given = row if mask is None else np.flatnonzero(mask)[row]
        raise InvalidArgumentError(
            f"{name}: distinct ids in a row, got {in_order[layer, row, at]} twice in row {given} "
            f"of layer {layer_ids[layer]}"
        )
