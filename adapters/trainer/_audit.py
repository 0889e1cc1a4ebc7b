"""Proof from the routers' own choices that replayed ids belong to their rows; agreement of rows.

The ids of a token identify it: computed again with the same weights, it chooses more than 0.9 of
them; other tokens share near K / E. So the ids that a router was given are compared with those that
it would have chosen itself, for a sample of rows. Where they disagree, the rows are compared as the
usual mistakes would have moved them, and the mistake that explains them is named.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays import integers, layers_of, truths
from .._errors import InvalidArgumentError
from .._rows import Rows
from .._types import integer
from ._plan import Filled, Plan

Rows64 = npt.NDArray[np.int64]

# An error is named if the rows then agree at least so, and so much more than as they were given.
_EXPLAINED, _MORE = 0.7, 0.15
# A row is low if it agrees less than half way from chance to 1. Single rows tell something if they
# have so many ids; so many low rows of a sequence, at this share at least, are an error in part of
# it, for example behind a prompt that it shares with the sequence whose ids it has.
_TELLING_IDS, _LOW_ROWS, _LOW_SHARE = 16, 3, 0.03
# Ids that agree so much more than by chance, of what is left above it, are those of these tokens,
# by other weights. The next token of a text agrees 0.15 more than chance.
_SAME_TOKENS = 0.3
_TESTED_ROWS = 64  # that a hypothesis is tested on
_FAR_TOKENS = 4


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
    sequence: int = -1
    """The first sequence that has it; -1: all."""
    layer: int = -1
    """The first layer that has it, by its place in the tensors; -1: all."""
    by: int = 0
    """See ReplayError."""
    count: int = 1  # type: ignore[assignment]
    """Sequences, or layers, that have it."""
    agreement: float = 0.0
    """Agreement of these rows and layers as they were given."""
    explained: float = 0.0
    """Their agreement if the error is undone."""

    @property
    def text(self) -> str:
        """All of it in one sentence."""
        by, sequence = self.by, f"sequence {self.sequence}"
        layer = f"layer {self.layer}"
        what = {
            ReplayError.SHIFTED: f"{sequence} has the ids of the tokens {abs(by)} "
            + ("later" if by > 0 else "earlier"),
            ReplayError.LAYERS: f"{layer} has ids of none of these layers"
            if by < 0
            else f"{layer} has the ids of layer {by}",
            ReplayError.OTHER_SEQUENCE: f"{sequence} has ids of none of these sequences, or layers"
            if by < 0
            else f"the ids of {sequence} are in the rows of sequence {by}",
            ReplayError.BATCH_MAJOR: "the ids are in batch-major order, and the router's rows are "
            "in sequence-major order",
            ReplayError.SEQUENCE_MAJOR: "the ids are in sequence-major order, and the router's "
            "rows are in batch-major order",
            ReplayError.STALE_WEIGHTS: f"the ids of {layer if self.layer >= 0 else sequence} are "
            "of these tokens, but chosen by other weights",
        }[self.error]
        return (
            f"{what} (agreement {self.agreement:.2f}, so explained {self.explained:.2f}; "
            f"{self.count} with this error)"
        )


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
    sequence, the other order of a batch, stale weights.

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
    local: Rows64 = np.arange(plan.rows)
    if rows is not None:
        local = integers("rows", rows, "n").astype(np.int64)
    layers, _, top_k = given_ids.shape
    integer("num_experts", num_experts, top_k, 65535)
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
        wrong = np.argwhere((ids < 0) | (ids >= num_experts))
        if len(wrong):
            layer, at, _ = wrong[0].tolist()
            row = local[at] if name == "given" else sample[at]
            raise InvalidArgumentError(
                f"{name}: ids must be in [0, num_experts = {num_experts}), layer {layer}, row "
                f"{row} has another"
            )
    return _Auditor(plan, given_ids, replayed, own_ids, local, num_experts, least_agreement).run()


def _sample(usable: npt.NDArray[np.bool_], most: int) -> Rows64:
    """At most so many of them, evenly spread. Not at equal distances: sequences that take turns
    would be left out."""
    found = np.flatnonzero(usable)
    count = min(len(found), most)
    ends = np.arange(count + 1) * len(found) // max(count, 1)
    turns = np.random.default_rng(0).random(count)
    return found[(ends[:-1] + turns * np.diff(ends)).astype(np.int64)]


def _thin(samples: Rows64) -> Rows64:
    """At most _TESTED_ROWS of them."""
    count = min(len(samples), _TESTED_ROWS)
    return samples[np.arange(count) * len(samples) // max(count, 1)]


class _Auditor:
    """One call of audit(). Samples are numbered; ``rows`` are their local rows."""

    def __init__(
        self,
        plan: Plan,
        given: npt.NDArray[Any],
        replayed: npt.NDArray[np.bool_],
        own: npt.NDArray[Any],
        rows: Rows64,
        num_experts: int,
        least: float,
    ) -> None:
        self.plan, self.given, self.replayed = plan, given, replayed
        self.own, self.rows, self.least = own, rows, least
        self.top_k, self.even = own.shape[2], own.shape[2] / num_experts
        sequences, positions = plan.places()
        self.sequences, self.positions = sequences[rows], positions[rows]
        starts = np.cumsum([0, *plan.lengths])
        self.starts = starts[:-1]
        self.row_of: Rows64 = np.full(int(starts[-1]), -1)
        tokens = np.flatnonzero(sequences >= 0)
        self.row_of[self.starts[sequences[tokens]] + positions[tokens]] = tokens
        self.all = np.arange(len(rows))
        self.counted = np.ones(len(given), np.bool_)  # layers that no other layer explains
        self.alarms: list[Alarm] = []

    def shared(self, rows: Rows64, samples: Rows64) -> npt.NDArray[np.int64]:
        """[layers, n]: of the ids that rows were given, those that the routers chose in samples."""
        some = max(1, (1 << 24) // max(1, len(rows) * self.top_k**2))  # layers at a time
        counts = [
            (self.given[at : at + some, rows, :, None] == self.own[at : at + some, samples, None])
            .any(-1)
            .sum(-1)
            for at in range(0, len(self.given), some)
        ]
        return np.concatenate(counts)

    def enough(self, agreement: float, ids: int) -> bool:
        """Few ids may disagree by accident: two standard deviations are left to them."""
        spread = math.sqrt(self.least * (1 - self.least) / ids) if ids else math.inf
        return agreement >= self.least - 2 * spread

    def test(self, samples: Rows64, row_of: Rows64) -> float | None:
        """The mean agreement of samples if the ids of sample i are in row row_of[i] of the given
        tensors, over the layers that are counted. Those whose ids this rank does not have are left
        out; None if they are more than half."""
        thin = _thin(samples)
        rows = row_of[thin]
        there = (rows >= 0) & (rows < self.plan.rows)
        there[there] = self.replayed[rows[there]]
        if not there.any() or 2 * there.sum() < len(thin) or not self.counted.any():
            return None
        return float(self.shared(rows[there], thin[there])[self.counted].mean() / self.top_k)

    def as_given(self, samples: Rows64) -> float:
        value = self.test(samples, self.rows)
        return 1.0 if value is None else value

    def run(self) -> Audit:
        shares = self.shared(self.rows, self.all) / self.top_k  # [layers, samples]
        by_row = shares.mean(0)
        layers = shares.mean(1) if len(self.rows) else np.ones(len(shares))
        positions = np.full(self.plan.rows, -1.0)
        positions[self.rows] = by_row
        sequences = np.full(len(self.plan.lengths), -1.0)
        for sequence in np.unique(self.sequences):
            sequences[sequence] = by_row[self.sequences == sequence].mean()
        self.find_chance()
        self.find_order()
        if not self.alarms:
            self.find_layers(shares, layers)
            self.find_rows(shares)
        agreed = float(by_row.mean()) if len(self.rows) else 1.0
        return Audit(agreed, self.chance, len(self.rows), layers, positions, sequences, self.alarms)

    def find_chance(self) -> None:
        """Of tokens that are far apart, at other positions: sequences may share a prompt."""
        count = len(self.rows)
        one = self.all[:: 1 + count // _TESTED_ROWS]
        other = (one + count // 2 + one % 5) % max(count, 1)
        far = np.abs(self.positions[other] - self.positions[one]) >= _FAR_TOKENS
        shares = self.shared(self.rows[other[far]], one[far]) / self.top_k
        by_layer = shares.mean(1) if far.any() else np.zeros(len(shares))
        self.layer_chances = np.maximum(by_layer, self.even)
        self.chance = max(float(by_layer.mean()), self.even)

    def find_order(self) -> None:
        """All rows in the other order of a batch."""
        rows, batch = self.plan.rows, len(self.plan.lengths)
        if batch < 2 or rows % batch or rows == batch or not len(self.rows):
            return
        given, steps = self.as_given(self.all), rows // batch
        if given >= self.least:
            return
        for error, inner, outer in (
            (ReplayError.BATCH_MAJOR, batch, steps),
            (ReplayError.SEQUENCE_MAJOR, steps, batch),
        ):
            explained = self.test(self.all, self.rows % inner * outer + self.rows // inner)
            self.offer(error, explained, given, count=batch)

    def offer(self, error: ReplayError, explained: float | None, given: float, count: int) -> None:
        """An alarm if it explains more than the one that there is."""
        if explained is None or not _explains(explained, given):
            return
        if not self.alarms or explained > self.alarms[0].explained:
            self.alarms = [Alarm(error, count=count, agreement=given, explained=explained)]

    def find_layers(
        self, shares: npt.NDArray[np.float64], by_layer: npt.NDArray[np.float64]
    ) -> None:
        # Rows that are wrong in all layers say nothing of one. If most are low, all are asked; a
        # layer that is right shows that the rows are, too.
        all_ids = len(self.rows) * self.top_k
        asked = np.flatnonzero(shares.mean(0) >= (1 + self.chance) / 2)
        rows_are_right = 2 * len(asked) >= len(self.rows)
        if not rows_are_right:
            rows_are_right = any(self.enough(value, all_ids) for value in by_layer)
            asked = self.all
        tested = _thin(asked)
        found = []
        for layer, value in enumerate(by_layer):
            # By all rows that are asked: with K = 1, those that are tested are few ids.
            if self.enough(value, all_ids):
                continue
            given = float(shares[layer, asked].mean()) if len(asked) else 1.0
            if self.enough(given, len(asked) * self.top_k):
                continue
            of_layer = self.given[layer, self.rows[tested], :, None]
            values = (of_layer == self.own[:, tested, None, :]).any(-1).mean((1, 2))
            best, explained = int(values.argmax()), float(values.max())
            error = ReplayError.LAYERS
            if best == layer or not _explains(explained, given):
                if not rows_are_right:
                    continue  # the rows are asked next
                best, explained = -1, given
                if self.of_these_tokens(given, float(self.layer_chances[layer])):
                    error, best = ReplayError.STALE_WEIGHTS, 0
            alarm = Alarm(error, layer=layer, by=best, agreement=given, explained=explained)
            found.append(alarm)
        for alarm in found:
            self.counted[alarm.layer] = False
            self.add(alarm._replace(count=len(found)))

    def find_rows(self, shares: npt.NDArray[np.float64]) -> None:
        if not self.counted.any():
            return
        by_row = shares[self.counted].mean(0)
        row_ids = int(self.counted.sum()) * self.top_k
        unexplained: list[int] = []
        for sequence in np.unique(self.sequences).tolist():
            samples = np.flatnonzero(self.sequences == sequence)
            low = samples[by_row[samples] < (1 + self.chance) / 2]
            some_low = row_ids >= _TELLING_IDS and len(low) >= max(
                _LOW_ROWS, _LOW_SHARE * len(samples)
            )
            right = self.enough(float(by_row[samples].mean()), len(samples) * row_ids)
            if right and not some_low:
                continue
            wrong = low if some_low else samples
            if not self.find_rows_of(sequence, wrong):
                unexplained += wrong.tolist()
        if not unexplained:
            return
        given = self.as_given(np.array(unexplained))
        stale = self.of_these_tokens(given, self.chance)
        self.add(
            Alarm(
                ReplayError.STALE_WEIGHTS if stale else ReplayError.OTHER_SEQUENCE,
                sequence=int(self.sequences[unexplained[0]]),
                by=0 if stale else -1,
                agreement=given,
                explained=given,
            )
        )

    def find_rows_of(self, sequence: int, samples: Rows64) -> bool:
        given = self.as_given(samples)
        best = Alarm(ReplayError.STALE_WEIGHTS, sequence=sequence, agreement=given, explained=given)
        # The ids of a token are where those of the token `by` positions later should be.
        for error, by, of, shift in (
            *((ReplayError.SHIFTED, -by, sequence, by) for by in (1, -1, 2, -2)),
            *(
                (ReplayError.OTHER_SEQUENCE, other, other, 0)
                for other in range(len(self.plan.lengths))
                if other != sequence
            ),
        ):
            positions = self.positions + shift
            there = (positions >= 0) & (positions < self.plan.lengths[of])
            rows = np.full(len(positions), -1)
            rows[there] = self.row_of[self.starts[of] + positions[there]]
            explained = self.test(samples, rows)
            if explained is not None and explained > best.explained:
                best = best._replace(error=error, by=by, explained=explained)
        if not _explains(best.explained, given):
            return False
        self.add(best)
        return True

    def of_these_tokens(self, agreement: float, chance: float) -> bool:
        return agreement >= chance + _SAME_TOKENS * (1 - chance)

    def add(self, alarm: Alarm) -> None:
        """One of the same cause is counted with the first, with the mean over all that have it."""
        for i, known in enumerate(self.alarms):
            same = (known.error, known.by) == (alarm.error, alarm.by)
            if not same or alarm.error == ReplayError.LAYERS:
                continue
            n = known.count
            self.alarms[i] = known._replace(
                agreement=(known.agreement * n + alarm.agreement) / (n + 1),
                explained=(known.explained * n + alarm.explained) / (n + 1),
                count=n + 1,
            )
            return
        self.alarms.append(alarm)


def _explains(explained: float, given: float) -> bool:
    return explained >= _EXPLAINED and explained >= given + _MORE


def agreement(a: Rows, b: Rows) -> list[LayerAgreement]:
    """How two captures of the same tokens agree, layer by layer, on the positions that both have:
    what ``waymark diff`` computes. Releases the GIL. InvalidArgumentError unless both have the same
    layers and K, and some positions in common."""
    return [LayerAgreement(*layer) for layer in _core.agreement(a._native(), b._native())]
