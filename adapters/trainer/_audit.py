"""Proof from the routers' own choices that replayed ids belong to their rows; agreement of rows."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays import integers, layers_of, truths
from .._rows import Rows
from .._types import id_type_of
from ._plan import Filled, Plan


class ReplayError(IntEnum):
    """What can be wrong with ids that a router replays."""

    SHIFTED = 0
    """They are those of the token ``by`` positions later (< 0: earlier)."""
    LAYERS = 1
    """Layer ``layer`` has the ids of layer ``by``; -1: of none of these."""
    OTHER_SEQUENCE = 2
    """The ids of sequence ``sequence`` are in the rows of sequence ``by``; -1: of none."""
    BATCH_MAJOR = 3
    """They are in batch-major order, and the router's rows are not."""
    SEQUENCE_MAJOR = 4
    """They are in sequence-major order, and the router's rows are not."""
    STALE_WEIGHTS = 5
    """They are of these tokens, but chosen by other weights, or other arithmetic."""


class Alarm(NamedTuple):
    """One error, and what speaks for it."""

    error: ReplayError
    sequence: int
    """The first sequence that has it; -1: all."""
    layer: int
    """The first layer that has it, by its place in the tensors; -1: all."""
    by: int
    """See ReplayError."""
    count: int  # type: ignore[assignment]
    """Sequences, or layers, that have it."""
    agreement: float
    """Of the rows and layers meant, as they were given."""
    explained: float
    """The same, as the error says that they should have been."""
    text: str
    """All of it in one sentence."""


class Audit(NamedTuple):
    """What was found. Agreements are shares of the given ids that are the router's own."""

    agreement: float
    """Of all rows and layers that were compared. The same tokens and weights: above 0.9."""
    chance: float
    """Of the ids of different tokens, measured on these rows."""
    rows: int
    """Compared."""
    layers: npt.NDArray[np.float64]
    """[layers]"""
    positions: npt.NDArray[np.float64]
    """[rows of the plan]; -1: not compared. ``Plan.places()`` names their tokens."""
    sequences: npt.NDArray[np.float64]
    """[sequences]; -1: none of its rows was compared."""
    alarms: list[Alarm]
    """Empty: all is well."""


class LayerAgreement(NamedTuple):
    """How one layer of two captures of the same tokens agrees."""

    rows: int
    """Rows that are valid in both."""
    same_set: int
    """Of them, rows with the same experts, in any order."""
    same_order: int
    """Of them, rows with the same experts in the same order."""
    ids: int
    """Ids of these rows in one capture."""
    shared_ids: int
    """Of them, ids that are in both."""

    @property
    def agreement(self) -> float:
        """The share of the ids that are in both; 1 without rows."""
        return self.shared_ids / self.ids if self.ids else 1.0


def audit(
    plan: Plan,
    given: Filled | Any,
    own: Any,
    *,
    num_experts: int,
    mask: npt.ArrayLike | None = None,
    rows: npt.ArrayLike | None = None,
    least_agreement: float = 0.8,
    max_rows: int = 256,
) -> Audit:
    """Compares the ids that the routers of a rank were given with those that they would have chosen
    themselves, and names the likely error: ids shifted by a token, layers swapped, another
    sequence, the other order of a batch, stale weights. Releases the GIL.

    given: what Plan.fill() returned, or integers [layers, rows, K] or a tensor [rows, K] of each
    layer, and then mask: bool [rows], False for rows that were not replayed (None: all were). own:
    the routers' own choices in the same form, of the local rows ``rows`` (None: all), in any order;
    some hundred rows are enough. least_agreement: an alarm below it; of few ids, below it by two
    standard deviations. max_rows: that are compared.

    An error in a part of a sequence is found if layers * K is at least 16."""
    if isinstance(given, Filled):
        mask = given.mask
        given = given.ids
    given_ids = layers_of("given", given)
    own_ids = layers_of("own", own)
    replayed = truths("mask", np.ones(plan.rows, np.bool_) if mask is None else mask, plan.rows)
    local = integers("rows", () if rows is None else rows, "n").astype(np.int64)
    agreed, chance, compared, layers, positions, sequences, alarms = plan._audit(
        len(given_ids),
        given_ids.shape[2],
        num_experts,
        id_type_of(given_ids.dtype)[1],
        given_ids,
        np.ascontiguousarray(replayed).view(np.uint8),
        id_type_of(own_ids.dtype)[1],
        own_ids,
        local,
        least_agreement,
        max_rows,
    )
    named = [Alarm(ReplayError(alarm[0]), *alarm[1:]) for alarm in alarms]
    by_layer, by_row, by_sequence = map(np.frombuffer, (layers, positions, sequences))
    return Audit(agreed, chance, compared, by_layer, by_row, by_sequence, named)


def agreement(a: Rows, b: Rows) -> list[LayerAgreement]:
    """How two captures of the same tokens agree, layer by layer, on the positions that both have:
    what ``waymark diff`` computes. Releases the GIL. InvalidArgumentError unless both have the same
    layers and K, and some positions in common."""
    return [LayerAgreement(*layer) for layer in _core.agreement(a._native(), b._native())]
