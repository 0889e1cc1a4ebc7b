"""Proof from the routers' own choices that replayed ids belong to their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import check_choices, check_type, integers, layers_of, truths
from .._compare import Audit, Comparison, Mistake, Places
from .._errors import InvalidArgumentError
from .._types import integer
from ._plan import Filled, Plan

Rows64 = npt.NDArray[np.int64]


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
    themselves, and names the likely Mistake.

    given: what Plan.fill() returned, or integers [layers, rows, K] or a tensor [rows, K] of each
    layer, and then mask: bool [rows], False for rows that were not replayed (None: all were). own:
    the routers' own choices in the same form, of the local rows ``rows`` (None: all), in any order;
    some hundred rows are enough. least_agreement: an alarm below it, as in waymark.verify.
    max_rows: that are compared."""
    if isinstance(given, Filled):
        mask = given.mask
        given = given.ids
    given_ids = layers_of("given", given)
    own_ids = layers_of("own", own)
    replayed = truths("mask", np.ones(plan.rows, np.bool_) if mask is None else mask, plan.rows)
    local: Rows64 = np.arange(plan.rows)
    if rows is not None:
        local = integers("rows", rows, "n").astype(np.int64)
    layers, _, top_k = given_ids.shape
    integer("num_experts", num_experts, top_k, 65535)
    check_type("own", own_ids, num_experts)
    integer("max_rows", max_rows, 1, (1 << 63) - 1)
    if not 0 <= least_agreement <= 1:
        raise InvalidArgumentError(f"least_agreement: in [0, 1], got {least_agreement}")
    for name, ids, count in (("given", given_ids, plan.rows), ("own", own_ids, len(local))):
        wanted = [layers, count, top_k]
        if list(ids.shape) != wanted or not layers or not top_k:
            raise InvalidArgumentError(
                f"{name}: must be [layers, rows, K] = {wanted}, at least one layer and id, got "
                f"{list(ids.shape)}"
            )
    if ((local < 0) | (local >= plan.rows)).any():
        raise InvalidArgumentError(f"rows: in [0, {plan.rows}), got {local.min()} to {local.max()}")
    sample = _sample(replayed[local] & (plan.places()[0][local] >= 0), max_rows)
    own_ids, local = own_ids[:, sample], local[sample]
    for name, ids in (("given", given_ids[:, local]), ("own", own_ids)):
        check_choices(name, ids, num_experts, range(layers))
    batch, orders = len(plan.lengths), []
    if batch > 1 and plan.rows % batch == 0 and plan.rows > batch:
        steps = plan.rows // batch
        orders = [
            (Mistake.BATCH_MAJOR, local % batch * steps + local // batch),
            (Mistake.SEQUENCE_MAJOR, local % steps * batch + local // steps),
        ]
    tested = Places(given_ids, replayed, *plan.places(), range(batch), plan.lengths)
    return Comparison(tested, own_ids, local, num_experts, least_agreement, orders=orders).run()


def _sample(usable: npt.NDArray[np.bool_], most: int) -> Rows64:
    """At most so many of them, evenly spread. Not at equal distances: sequences that take turns
    would be left out."""
    found = np.flatnonzero(usable)
    count = min(len(found), most)
    ends = np.arange(count + 1) * len(found) // max(count, 1)
    turns = np.random.default_rng(0).random(count)
    return found[(ends[:-1] + turns * np.diff(ends)).astype(np.int64)]
