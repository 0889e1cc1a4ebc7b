"""Why rows of ``routed_experts`` are missing."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._errors import InvalidArgumentError
from .._types import Reason


class Run(NamedTuple):
    """Rows [begin, end) of an array, all valid, or all missing for one reason."""

    begin: int
    end: int
    reason: Reason
    """NONE: they are valid. NOT_TOLD: the engine runs without the option ``reasons``."""


def coverage(array: npt.NDArray[Any]) -> list[Run]:
    """The runs of an ``outputs[i].routed_experts``, [tokens, layers, K]. A missing row is -1, or,
    with the option ``reasons``, -1 minus the number of its waymark.Reason."""
    if array.ndim != 3:
        raise InvalidArgumentError(f"array: [tokens, layers, K], got {list(array.shape)}")
    least = array.min(axis=(1, 2), initial=0).astype(np.int64)
    codes = np.where(least == -1, Reason.NOT_TOLD, np.where(least < -1, -1 - least, Reason.NONE))
    ends = [*(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    begins = [0, *ends[:-1]]
    return [Run(begin, end, Reason(int(codes[begin]))) for begin, end in zip(begins, ends)
            if begin < end]  # fmt: skip
