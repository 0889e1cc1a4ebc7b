"""Which row of a plan each row of a forward is."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from .._errors import InvalidArgumentError
from ..trainer import Plan

Place = Optional[npt.NDArray[np.int64]]
"""int64 [rows of the forward]: the row of the plan, -1 for padding. None: they are the plan's."""


def place_of(plan: Plan, attention_mask: Any) -> Place:
    """The rows of a forward with this attention mask, bool or integers [B, S], padded on any side:
    the tokens of sequence b are the nonzeros of line b. None, and another mask than one of tokens
    (4-D, or one for each kind of layer): the rows are the plan's, whose order must then be
    transformers'. InvalidArgumentError if it is not, or if the mask has other tokens."""
    place = _by_mask(plan, attention_mask)
    if place is None and plan.layout.order == "sequence-major" and len(plan.lengths) > 1:
        raise InvalidArgumentError(
            "plan: 'batch-major' or 'packed', as the rows of a forward without a 2-D attention "
            "mask, got 'sequence-major'"
        )
    return place


def _by_mask(plan: Plan, attention_mask: Any) -> Place:
    if attention_mask is None or len(getattr(attention_mask, "shape", ())) != 2:
        return None
    if hasattr(attention_mask, "detach"):
        attention_mask = attention_mask.detach().cpu()
    tokens = np.asarray(attention_mask) != 0
    if len(tokens) != len(plan.lengths):
        if tokens.all() and tokens.size == plan.rows:  # packed: one line of several sequences
            return None
        raise InvalidArgumentError(
            f"attention_mask: {len(plan.lengths)} sequences, as the plan has, got {len(tokens)}"
        )
    sequences, positions = plan.places()
    rows = np.flatnonzero(sequences >= 0)
    rows = rows[np.lexsort((positions[rows], sequences[rows]))]
    planned = np.bincount(sequences[rows], minlength=len(tokens))
    given = tokens.sum(1)
    if (planned != given).any():
        at = int(np.flatnonzero(planned != given)[0])
        raise InvalidArgumentError(
            f"attention_mask: {planned[at]} tokens in sequence {at}, as the plan has, got "
            f"{given[at]}"
        )
    place = np.full(tokens.size, -1, np.int64)
    place[tokens.reshape(-1)] = rows
    return place


def same(a: Place, b: Place) -> bool:
    """Whether two forwards have the same rows."""
    return a is b if a is None or b is None else np.array_equal(a, b)


def rows_of(plan: Plan, place: Place) -> npt.NDArray[np.int64]:
    """int64 [rows of the plan]: the row of the forward that each is, -1 if it is none."""
    if place is None:
        return np.arange(plan.rows)
    rows = np.full(plan.rows, -1, np.int64)
    rows[place[place >= 0]] = np.flatnonzero(place >= 0)
    return rows
