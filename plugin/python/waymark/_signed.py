"""Arrays of ids whose missing rows are below 0, as engines return them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._errors import InvalidArgumentError
from ._types import Reason


class Run(NamedTuple):
    """Rows [begin, end) of an array, all valid, or all missing for one reason."""

    begin: int
    end: int
    reason: Reason
    """NONE: they are valid. NOT_TOLD: the array does not say why they are missing."""


def coverage(array: npt.NDArray[Any]) -> list[Run]:
    """The runs of an array that an adapter gave to its engine, [tokens, layers, K]. A missing row
    is -1, or, with the adapter's option ``reasons``, -1 minus the number of its waymark.Reason."""
    if array.ndim != 3:
        raise InvalidArgumentError(f"array: [tokens, layers, K], got {list(array.shape)}")
    least = array.min(axis=(1, 2), initial=0).astype(np.int64)
    codes = np.where(least == -1, Reason.NOT_TOLD, np.where(least < -1, -1 - least, Reason.NONE))
    ends = [*(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    begins = [0, *ends[:-1]]
    return [Run(begin, end, Reason(int(codes[begin]))) for begin, end in zip(begins, ends)
            if begin < end]  # fmt: skip


def signed(
    rows: npt.NDArray[Any], reasons: npt.NDArray[Any] | None, say: bool
) -> npt.NDArray[Any]:
    """Rows [rows, layers, K] with -1 in the missing ones, or, if it is to say why, -1 minus the
    number of the reason. reasons: uint8 [rows], 0 for valid ones; None: all are."""
    if reasons is None or not reasons.any():
        return rows
    rows = rows.astype(np.int16 if rows.max(initial=0) < 1 << 15 else np.int32)
    for reason in np.unique(reasons[reasons != 0]).tolist():
        rows[reasons == reason] = -1 - reason if say else -1
    return rows


def missing(like: npt.NDArray[Any], rows: int, code: int = -1) -> npt.NDArray[Any]:
    """Rows that are missing, [rows, layers, K] with the layers and K of another array."""
    return np.full((rows, *like.shape[1:]), code, np.int16)
