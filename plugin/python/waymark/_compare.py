"""Compares expert ids with those that are right, and names the mistake that explains a difference.

The ids of a token identify it: computed again with the same weights, it chooses more than 0.9 of
them; other tokens share near K / E. Where rows disagree, they are compared as the usual mistakes
would have moved them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _id_mistakes as of_ids
from ._errors import DataLossError, FailedPreconditionError

__all__ = ["Alarm", "Mistake"]

Array = npt.NDArray[Any]
Rows64 = npt.NDArray[np.int64]

# A mistake is named if the rows then agree at least so, and so much more than as they were given.
_EXPLAINED, _MORE = 0.7, 0.15
# A row is low if it agrees less than half way from chance to 1. More low rows of a sequence than
# accident makes, where _RIGHT of the ids agree, and so many at least, are a mistake in part of it;
# if nothing explains them, they must be such a share of it. One is enough if many others are exact.
_RIGHT, _LOW_ROWS, _LOW_SHARE, _EXACT_ROWS, _TELLING_IDS = 0.9, 3, 0.03, 64, 8
# Ids that agree so much more than by chance, of what is left above it, are these tokens' ids,
# by other weights. The next token of a text agrees 0.15 more than chance.
_SAME_TOKENS = 0.3
_TESTED_ROWS, _FAR_TOKENS = 64, 4  # that a hypothesis is tested on; that share no prompt
# Ids of rows whose place is looked for, among so many rows; pages of them, if places differ.
_SEARCHED_IDS, _SEARCHED_ROWS, _PAGES = 1024, 1 << 17, 3
_OWN = 0.02  # so much more must another sequence explain
# So much more must two maps explain than one, or half of what that does not. The replicas of a few
# experts are missed by accident, in other experts on each side of a cut.
_CHANGED = 0.1


class Mistake(IntEnum):
    """What can be wrong with expert ids."""

    SHIFTED = 0
    """They are the ids of the token ``by`` positions later (< 0: earlier)."""
    LAYERS = 1
    """Layer ``layer`` has the ids of layer ``by``; -1: of none of these."""
    OTHER_SEQUENCE = 2
    """Rows of ``sequence`` have the ids of sequence ``by``; -1: of none of these."""
    BATCH_MAJOR = 3
    """They are in batch-major order, and the router's rows are not."""
    SEQUENCE_MAJOR = 4
    """They are in sequence-major order, and the router's rows are not."""
    STALE_WEIGHTS = 5
    """They are of these tokens, but chosen by other weights, or other arithmetic."""
    REVERSED = 6
    """The rows of a step are in reverse order."""
    ORDER = 7
    """The rows of a step are in another order than its slots."""
    REPEATED = 8
    """Rows repeat those ``by`` positions later (< 0: earlier): a buffer was not written again."""
    PHYSICAL_IDS = 9
    """A layer has other numbers for its experts: see ``mapping``, which is of the first rows if
    they change: in step ``by``; 0: they do not; -1: it is not known when."""
    EIGHT_BITS = 10
    """No id is above 255, and the router's are: they were cut."""
    UNROUTED = 11
    """Expert ``by`` is in nearly every row and layer, as the router does not choose it."""
    COLUMN = 12
    """Column ``by`` of the K is not the router's. The others are."""
    LAYERS_REVERSED = 13
    """The layers are in reverse order."""
    EXCHANGED = 14
    """Layers and tokens are exchanged: [layers, tokens, K] was read as [tokens, layers, K]."""


_TEXT = {
    Mistake.SHIFTED: "{who} has the ids of the tokens {far}",
    Mistake.LAYERS: "{who} has the ids of layer {by}",
    Mistake.OTHER_SEQUENCE: "{who} has the ids of {noun} {by}",
    Mistake.BATCH_MAJOR: "the ids are in batch-major order, the router's rows in sequence-major",
    Mistake.SEQUENCE_MAJOR: "the ids are in sequence-major order, the router's rows in batch-major",
    Mistake.STALE_WEIGHTS: "the ids of {who} are of these tokens, but chosen by other weights",
    Mistake.REVERSED: "the rows of a step are in reverse order",
    Mistake.ORDER: "the rows of a step are in another order than its slots",
    Mistake.REPEATED: "{who} repeats the ids of the tokens {far}",
    Mistake.PHYSICAL_IDS: "{who} has other numbers for its experts (physical ids): {map}",
    Mistake.EIGHT_BITS: "no id is above 255, and the router's are: they were cut to 8 bits",
    Mistake.UNROUTED: "expert {by} is in nearly every row and layer, as the router does not choose "
    "it: a column that is not routed, e.g. of a shared expert",
    Mistake.COLUMN: "column {by} of the ids is not the router's, the others are",
    Mistake.LAYERS_REVERSED: "the layers are in reverse order",
    Mistake.EXCHANGED: "layers and tokens are exchanged: [L, N, K] was read as [N, L, K]",
}


class Alarm(NamedTuple):
    """One mistake, and what speaks for it."""

    error: Mistake
    sequence: Any = -1
    """The first sequence that has it, by number, or by name in a Report; -1: all."""
    layer: int = -1
    """The first layer that has it, by its place; -1: all."""
    by: Any = 0
    """See Mistake."""
    count: int = 1  # type: ignore[assignment]
    """Sequences, or layers, that have it."""
    agreement: float = 0.0
    """Agreement of the first of them as it was given."""
    explained: float = 0.0
    """Its agreement if the mistake is undone."""
    mapping: npt.NDArray[np.int64] | None = None
    """[E]: the expert that each physical id of ``layer`` stands for, several with replicas; -1: not
    seen."""
    text: str = ""
    """All of it in one sentence."""


class Places(NamedTuple):
    """Ids by row, and which token each row belongs to."""

    ids: Array  # [layers, rows, K]
    there: npt.NDArray[np.bool_]  # [rows]
    sequences: Array  # [rows]; -1: none
    positions: Array  # [rows]
    names: Sequence[Any]  # of the sequences
    lengths: Sequence[int]  # in tokens


class Audit(NamedTuple):
    """What was found. Agreements are shares of the given ids that are the router's own."""

    agreement: float
    """Of all rows and layers that were compared; -1: none. The same tokens and weights: above
    0.9."""
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
    """Empty: no mistake was found."""
    least_agreement: float
    """As it was given."""

    def check(self) -> None:
        """DataLossError with the texts of the alarms; FailedPreconditionError if no row was
        compared, or the rows agree too little, but are too few to tell."""
        check("audit", self, "\n".join(alarm.text for alarm in self.alarms))


def check(name: str, of: Any, text: str) -> None:
    """Audit.check() and Report.check()."""
    if of.alarms:
        raise DataLossError(f"{name}: {text}")
    if not of.rows:
        raise FailedPreconditionError(f"{name}: no row was compared. {text}")
    if of.agreement < of.least_agreement:
        raise FailedPreconditionError(
            f"{name}: agreement {of.agreement:.3f}, wanted {of.least_agreement}, of {of.rows} "
            f"rows, which are too few to tell. {text}"
        )


def evenly(samples: Rows64, most: int = _TESTED_ROWS) -> Rows64:
    """At most so many of them, evenly spread."""
    count = min(len(samples), most)
    return samples[np.arange(count) * len(samples) // max(count, 1)]


def _explains(explained: float, given: float) -> bool:
    return explained >= _EXPLAINED and explained >= given + _MORE


def _lucky(explained: float, chance: float, ids: int, tries: int) -> bool:
    """Whether the best of so many tries may agree so by accident."""
    p, q = min(explained, 0.999), max(chance, 0.001)
    gain = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)) if p > q else 0
    return ids * gain < math.log(1000 * tries)


class Comparison:
    """One comparison of ids by place, `tested`, with those that are right: `own`, [layers, n, K],
    of the rows `rows`. Samples are numbered; ``rows`` are their rows.

    truth: the right ids of all places, if they are known: tested samples are looked for there, and
    else the right samples among the tested rows. orders: for mistakes in the order of all rows,
    where the ids of each sample are then. steps: of each row, if known. page: tokens of a page.
    arrays: which rows may have been one array; 0: none."""

    def __init__(
        self, tested: Places, own: Array, rows: Rows64, num_experts: int, least: float, *,
        orders: Sequence[tuple[Mistake, Rows64]] = (), truth: Places | None = None,
        steps: Array | None = None, page: int = 16, arrays: Sequence[Array] = (),
    ) -> None:  # fmt: skip
        self.tested, self.own, self.rows, self.num_experts = tested, own, rows, num_experts
        self.least, self.orders, self.truth, self.steps = least, orders, truth, steps
        self.page, self.arrays = page, arrays
        self.noun = "sequence" if truth is None else "request"
        self.table = tested if truth is None else truth  # what is searched
        self.sought = own if truth is None else tested.ids[:, rows]
        self.top_k: int = own.shape[2]
        self.sequences, self.positions = tested.sequences[rows], tested.positions[rows]
        self.all = np.arange(len(rows))
        self.counted = np.ones(len(own), np.bool_)  # layers that no other layer explains
        self.cuts = list(range(1, 8))  # eighths of the rows at which a map may change
        self.alarms: list[Alarm] = []

    def shared(self, rows: Rows64, samples: Rows64) -> npt.NDArray[np.int64]:
        """[layers, n]: of the ids in rows of the table, those that are in samples."""
        some = max(1, (1 << 24) // max(1, len(rows) * self.top_k**2))  # layers at a time
        parts = [slice(at, at + some) for at in range(0, len(self.own), some)]
        ids, sought = self.table.ids, self.sought
        equal = (ids[at, rows, :, None] == sought[at, samples, None] for at in parts)
        return np.concatenate([pairs.any(-1).sum(-1) for pairs in equal])

    def enough(self, agreement: float, ids: int) -> bool:
        """Few ids may disagree by accident: 3 standard deviations of half of them are left."""
        spread = math.sqrt(2 * self.least * (1 - self.least) / ids) if ids else math.inf
        return agreement >= self.least - 3 * spread

    def agreement(self, samples: Rows64, row_of: Rows64 | None = None) -> float:
        """The mean over the layers that are counted, as given, or if the ids of sample i are in row
        row_of[i] of the table. If more than half of them are not there: 1, or 0."""
        thin = evenly(samples)
        rows = (self.rows if row_of is None else row_of)[thin]
        there = self.table.there[rows]
        if not there.any() or 2 * there.sum() < len(thin) or not self.counted.any():
            return float(row_of is None)
        return float(self.shared(rows[there], thin[there])[self.counted].mean()) / self.top_k

    def judge(self, by_row: Array, row_ids: int) -> None:
        """How likely a right row is low. What disagrees may do so in several layers at once, so
        half of a row's ids count."""
        others = by_row[by_row >= self.limit]
        right = float(others.mean()) if len(others) else _RIGHT
        right = right if row_ids >= 32 else min(right, _RIGHT)  # of few ids the others tell little
        self.tail = 0.0
        for n in (min(row_ids, 64), max(1, min(row_ids, 64) // 2)):
            chances = (math.comb(n, i) * right**i * (1 - right) ** (n - i) for i in range(n))
            self.tail = max(self.tail, sum(list(chances)[: math.ceil(self.limit * n)]))
        # Rows of few ids are low as soon as they are not exact.
        self.exact = len(others) >= _EXACT_ROWS and bool((others == 1).all())
        self.exact = self.exact and math.ceil(self.limit * row_ids) < row_ids

    def low_of(self, samples: Rows64, by_row: Array) -> Rows64:
        """The low rows of samples, if they are more than accident makes."""
        low: Rows64 = samples[by_row[samples] < self.limit]
        accident = len(samples) * self.tail
        most = 1 if self.exact else max(_LOW_ROWS, accident + 5 * math.sqrt(accident))
        return low if len(low) >= most else low[:0]

    def run(self) -> Audit:
        wanted = self.least
        shares = self.shared(self.rows, self.all) / self.top_k  # [layers, samples]
        by_row = shares.mean(0)
        layers = shares.mean(1) if len(self.rows) else np.full(len(shares), -1.0)
        agreed = float(by_row.mean()) if len(self.rows) else -1.0
        positions = np.full(len(self.tested.there), -1.0)
        positions[self.rows] = by_row
        sequences = np.full(len(self.tested.lengths), -1.0)
        for sequence in np.unique(self.sequences):
            sequences[sequence] = by_row[self.sequences == sequence].mean()
        self.find_chance()
        if len(self.rows):
            self.find_in_ids(agreed)
            of_ids_alone = len(self.alarms)
            shares = self.shared(self.rows, self.all) / self.top_k
            self.find_order(shares.mean(0), len(shares) * self.top_k)
            if len(self.alarms) == of_ids_alone:
                self.find_layers(shares, shares.mean(1))
                self.find_rows(shares)
            if not self.alarms and self.is_low(agreed, wanted):
                alarm = self.of_unexplained(self.all)
                self.add(alarm._replace(agreement=agreed, explained=agreed))
        alarms = [self.named(alarm) for alarm in self.alarms]
        return Audit(
            agreed, self.chance, len(self.rows), layers, positions, sequences, alarms, wanted
        )

    def is_low(self, agreed: float, wanted: float) -> bool:
        """Whether all ids together agree less than is wanted, and not by accident: the ids of a
        layer may disagree together."""
        right = (1 + wanted) / 2
        spread = math.sqrt(right * (1 - right) / (len(self.rows) * len(self.own)))
        return agreed < min(wanted, right - 3 * spread)

    def find_in_ids(self, agreed: float) -> None:
        """Mistakes that are the same in all rows: they are undone, and others looked for."""
        for _ in range(3):
            thin = evenly(self.all, 4096)
            given, own = self.tested.ids[:, self.rows[thin]], self.own[:, thin]
            alarm = Alarm(Mistake.EIGHT_BITS, -1, -1, 0, len(np.unique(self.sequences)), agreed)
            expert = column = -1
            if of_ids.cut_to_8_bits(given, own):
                self.own = self.own & 255
                if self.truth is not None:
                    self.truth = self.table = self.truth._replace(ids=self.truth.ids & 255)
            elif (expert := of_ids.unrouted(given, own, self.num_experts, self.chance)) >= 0:
                alarm = alarm._replace(error=Mistake.UNROUTED, by=expert)
            elif (column := of_ids.foreign_column(given, own, self.chance)) >= 0:
                alarm = alarm._replace(error=Mistake.COLUMN, by=column)
            else:
                return
            if max(expert, column) >= 0:
                self.tested = self.tested._replace(
                    ids=of_ids.without(self.tested.ids, expert, column)
                )
                self.top_k -= 1
            self.table = self.tested if self.truth is None else self.truth
            self.sought = self.own if self.truth is None else self.tested.ids[:, self.rows]
            shares = self.shared(self.rows, self.all) / self.top_k
            self.add(alarm._replace(explained=float(shares.mean())))

    def find_chance(self) -> None:
        """Of tokens that are far apart, at other positions: sequences may share a prompt."""
        count = len(self.rows)
        one = self.all[:: 1 + count // _TESTED_ROWS]
        other = (one + count // 2 + one % 5) % max(count, 1)
        far = np.abs(self.positions[other] - self.positions[one]) >= _FAR_TOKENS
        shared = self.shared(self.rows[other[far]], one[far]) if far.any() else np.zeros(1)
        self.chance = max(float(shared.mean()), self.top_k**2 / self.num_experts) / self.top_k
        self.limit = (1 + self.chance) / 2  # rows below it are low
        self.same_tokens = self.chance + _SAME_TOKENS * (1 - self.chance)
        self.least = max(self.least, min(self.limit, _RIGHT))

    def find_order(self, by_row: Array, row_ids: int) -> None:
        """All rows, or all low ones, in another order."""
        self.judge(by_row, row_ids)
        asked = self.all
        if self.agreement(asked) >= self.least:
            asked = self.low_of(asked, by_row)
        given, count = self.agreement(asked), len(np.unique(self.sequences[asked]))
        found = [(self.agreement(asked, row_of), error) for error, row_of in self.orders]
        for array in self.arrays if len(self.own) > 1 else ():
            turned = of_ids.exchanged(self.tested.ids, array, self.own, self.rows, asked)
            if not _lucky(turned, self.chance, len(asked) * row_ids, 1):
                found.append((turned, Mistake.EXCHANGED))
        explained, error = max(found, default=(0.0, Mistake.ORDER))
        if _explains(explained, given):
            self.add(Alarm(error, -1, -1, 0, count, given, explained))

    def find_layers(self, shares: Array, by_layer: Array) -> None:
        # Rows that are wrong in all layers say nothing of one. If most are low, all are asked; a
        # layer that is right shows that the rows are, too.
        all_ids = len(self.rows) * self.top_k
        asked = np.flatnonzero(shares.mean(0) >= self.limit)
        rows_are_right = 2 * len(asked) >= len(self.rows)
        if not rows_are_right:
            rows_are_right = any(self.enough(value, all_ids) for value in by_layer)
            asked = self.all
        found = []
        for layer, value in enumerate(by_layer):
            # By all rows that are asked: with K = 1, those that are tested are few ids.
            if self.enough(value, all_ids):
                thin = evenly(self.all, 4096)
                ids, own = self.tested.ids[layer, self.rows[thin]], self.own[layer, thin]
                if of_ids.unknown_to(ids, own, self.num_experts) is not None:
                    alarm = self.map_alarm(layer, float(value), self.all)
                    found += [] if alarm is None else [alarm]
                continue
            given = float(shares[layer, asked].mean()) if len(asked) else 1.0
            if not self.enough(given, len(asked) * self.top_k):
                found += self.layer_alarms(layer, given, asked, rows_are_right)
        last = len(by_layer) - 1
        if last > 1 and len(found) == last + last % 2 and all(
            (alarm.error, alarm.by) == (Mistake.LAYERS, last - alarm.layer) for alarm in found
        ):
            reverse = found[0]._replace(error=Mistake.LAYERS_REVERSED, layer=-1, by=0)
            self.counted[[alarm.layer for alarm in found]] = False
            self.add(reverse._replace(count=len(found)))
            found = []
        for alarm in found:
            self.counted[alarm.layer] = False
            self.add(alarm._replace(count=len(found)) if alarm.error == Mistake.LAYERS else alarm)

    def layer_alarms(
        self, layer: int, given: float, asked: Rows64, rows_are_right: bool
    ) -> list[Alarm]:
        thin = evenly(asked)
        tested = self.tested.ids[layer, self.rows[thin], :, None]
        values = (tested == self.own[:, thin, None, :]).any(-1).mean((1, 2))
        best, explained = int(values.argmax()), float(values.max())
        if best != layer and _explains(explained, given):
            return [Alarm(Mistake.LAYERS, -1, layer, best, 1, given, explained)]
        alarm = self.map_alarm(layer, given, asked)
        if alarm is not None:
            return [alarm]
        if not rows_are_right:
            return []  # the rows are asked next
        error, by = Mistake.LAYERS, -1
        if self.repeats(asked, -1, np.arange(len(self.own)) == layer):
            error = Mistake.REPEATED
        elif given >= self.same_tokens:
            error, by = Mistake.STALE_WEIGHTS, 0
        return [Alarm(error, -1, layer, by, 1, given, given)]

    def map_alarm(self, layer: int, given: float, asked: Rows64) -> Alarm | None:
        """PHYSICAL_IDS, if a map explains the layer, or two, one behind the other."""
        rows = evenly(asked, 4096)
        if self.steps is not None:
            rows = rows[np.argsort(self.steps[self.rows[rows]], kind="stable")]
        experts, own = self.num_experts, self.own[layer, rows]
        ids = self.tested.ids[layer, self.rows[rows]]
        explained, unknown = of_ids.mapped(ids, own, experts), of_ids.unknown_to(ids, own, experts)
        alarm = Alarm(Mistake.PHYSICAL_IDS, -1, layer, 0, 1, given, explained)
        if unknown is not None and of_ids.mapped(ids, own, experts, unknown) >= _EXPLAINED:
            return alarm._replace(mapping=of_ids.mapping(ids, own, experts))
        # In one layer it shows whether, and where, the map changes.
        thin = np.arange(len(rows))[:: 1 + len(rows) // 1024]
        found = []
        for cut in self.cuts:
            parts = np.split(thin, [len(thin) * cut // 8])
            values = [of_ids.mapped(ids[part], own[part], experts) for part in parts]
            found.append(((cut * values[0] + (8 - cut) * values[1]) / 8, cut))
        value, cut = max(found, default=(0.0, 0))
        more = max(_OWN, min(_CHANGED, (1 - explained) / 2))
        self.cuts = [cut] if _explains(value, given) and value >= explained + more else []
        if not self.cuts:
            alarm = alarm._replace(mapping=of_ids.mapping(ids, own, experts))
            return alarm if _explains(explained, given) else None
        at = len(rows) * cut // 8
        step = -1 if self.steps is None else int(self.steps[self.rows[rows[at]]])
        first = of_ids.mapping(ids[:at], own[:at], experts)
        return alarm._replace(by=step, explained=value, mapping=first)

    def repeats(self, samples: Rows64, by: int, layers: Array) -> bool:
        """Whether most of these rows are equal to the tested row `by` positions later, and the
        right ones are not."""
        width = 3 * max(self.tested.lengths)
        keys = self.tested.sequences * width + self.tested.positions
        keys = np.where(self.tested.there, keys, -width)
        order = np.argsort(keys)
        wanted = self.sequences[samples] * width + self.positions[samples] + by
        before = order[np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)]
        rows = self.rows[samples]
        kept = (keys[before] == wanted) & (before != rows)

        def equal(ids: Array) -> float:
            pairs = ids[layers][:, rows[kept]] == ids[layers][:, before[kept]]
            return float(pairs.all((0, 2)).mean())

        if 2 * kept.sum() < len(samples):
            return False
        few = self.truth is None and layers.sum() * self.top_k < 16  # may be equal by accident
        right = 0.0 if self.truth is None else equal(self.truth.ids)
        return not few and equal(self.tested.ids) >= max(0.5, 2 * right)

    def find_rows(self, shares: Array) -> None:
        if not self.counted.any():
            return
        by_row = shares[self.counted].mean(0)
        row_ids = int(self.counted.sum()) * self.top_k
        self.judge(by_row, row_ids)
        unexplained: list[int] = []
        for sequence in np.unique(self.sequences).tolist():
            samples = np.flatnonzero(self.sequences == sequence)
            low = self.low_of(samples, by_row)
            right = self.enough(float(by_row[samples].mean()), len(samples) * row_ids)
            if right and not len(low):
                continue
            few = right and len(low) < _LOW_SHARE * len(samples) and not self.exact
            wrong = low if len(low) else samples
            if not self.find_rows_of(sequence, wrong) and not few:
                # Low rows of few ids are all that disagree.
                all_low = right or self.exact or row_ids >= 2 * _TELLING_IDS
                unexplained += (wrong if all_low else samples).tolist()
        if unexplained:
            self.add(self.of_unexplained(np.array(unexplained)))

    def of_unexplained(self, samples: Rows64) -> Alarm:
        given, of = self.agreement(samples), self.sequences[samples]
        alarm = Alarm(Mistake.ORDER, -1, -1, 0, len(np.unique(of)), given, given)
        thin = evenly(samples, 4096)
        ids, own = self.tested.ids[:, self.rows[thin]], self.own[:, thin]
        as_given, turned = (of_ids.is_in(one, own).mean((0, 2)) for one in (ids, ids[::-1]))
        low = as_given < self.limit
        explained = float(turned[low].mean()) if low.any() else 0.0
        if len(own) > 1 and _explains(explained, float(as_given[low].mean()) if low.any() else 1.0):
            return alarm._replace(error=Mistake.LAYERS_REVERSED, explained=explained)
        if self.steps is not None and int(self.counted.sum()) * self.top_k >= _TELLING_IDS:
            # Is another row of the step better than one of another step?
            thin = evenly(samples, 32)
            steps = self.steps[self.rows[thin]][:, None]
            rows = np.flatnonzero(np.isin(self.steps, steps) & self.table.there)
            same = self.steps[rows] == steps
            other = np.roll(same, len(rows) // 2, 1) & ~same
            scores = self.scores(thin, rows)
            best, control = (float(np.where(at, scores, 0).max(1).mean()) for at in (same, other))
            if other.any() and _explains(best, max(given, control)):
                return alarm._replace(explained=best)
        if given >= self.same_tokens:
            return alarm._replace(error=Mistake.STALE_WEIGHTS, sequence=int(of[0]))
        return alarm._replace(error=Mistake.OTHER_SEQUENCE, sequence=int(of[0]), by=-1)

    def find_rows_of(self, sequence: int, samples: Rows64) -> bool:
        """Whether one mistake explains these rows: all together, or most of some pages of them."""
        given = self.agreement(samples)
        alarm = Alarm(Mistake.REPEATED, sequence, -1, -1, 1, given, given)
        if self.repeats(samples, -1, self.counted):
            self.add(alarm)
            return True
        found = [self.place_of(samples, given)]
        if found[0] is None:
            pages = self.positions[samples] // self.page
            some = evenly(np.unique(pages), 0 if self.truth is None else _PAGES)
            found = [self.place_of(samples[pages == page], given) for page in some]
        places = [place for place in found if place is not None]
        if 2 * len(places) <= len(found):
            return False
        explained, of, shift = max(places, key=lambda at: [p[1:] for p in places].count(at[1:]))
        alarm = alarm._replace(explained=explained, by=-shift if self.truth is None else shift)
        if of != sequence:
            ends = (of, sequence) if self.truth is None else (sequence, of)
            alarm = alarm._replace(error=Mistake.OTHER_SEQUENCE, sequence=ends[0], by=ends[1])
        elif not self.repeats(samples, shift, self.counted):
            alarm = alarm._replace(error=Mistake.SHIFTED)
        self.add(alarm)
        return True

    def scores(self, samples: Rows64, rows: Rows64) -> Array:
        """[samples, rows]: agreement with rows of the table, in the layers that are counted, or in
        some of them."""
        most = -(-_SEARCHED_IDS // self.top_k // len(samples))
        layers = evenly(np.flatnonzero(self.counted), most)
        total: Array = np.zeros((len(samples), len(rows)), np.float32)
        for layer in layers:
            lookup = np.zeros((len(samples), self.num_experts), np.bool_)
            lookup[np.arange(len(samples))[:, None], self.sought[layer, samples]] = True
            for ids in self.table.ids[layer, rows].T:
                total += lookup[:, ids]
        total /= len(layers) * self.top_k
        return total

    def place_of(self, samples: Rows64, given: float) -> tuple[float, int, int] | None:
        """(agreement, sequence, shift): where these rows are to be found at one distance, in their
        own sequence and those that are next to it."""
        row_ids, own = int(self.counted.sum()) * self.top_k, int(self.sequences[samples[0]])
        thin = evenly(samples, min(_TESTED_ROWS, max(8, _SEARCHED_IDS // row_ids)))
        known = np.flatnonzero(self.table.there & (self.table.sequences >= 0))
        near = np.argsort(abs(self.table.sequences[known] - own), kind="stable")
        known = known[near[:_SEARCHED_ROWS]]
        shifts = self.table.positions[known] - self.positions[thin][:, None]
        width = 2 * max(self.table.lengths) + 1
        keys = (self.table.sequences[known] * width + shifts).ravel()
        places, at, counts = np.unique(keys, return_inverse=True, return_counts=True)
        sums = np.bincount(at, self.scores(thin, known).ravel())
        of = (places + width // 2) // width
        # At the same positions, rows behind the end of a shorter sequence say nothing.
        most = (2 * counts >= len(thin)) & (places == of * width)
        size = np.where(most, counts, len(thin))
        means = (sums + (size - counts) * self.chance) / size
        best = int((means + _OWN * (of == own)).argmax())
        explained, ids = float(means[best]), min(_SEARCHED_IDS, int(counts[best]) * row_ids)
        if not _explains(explained, given) or _lucky(explained, self.chance, ids, len(sums)):
            return None
        shift = int(places[best] - of[best] * width)
        return float(sums[best] / counts[best]), int(of[best]), shift

    def add(self, alarm: Alarm) -> None:
        """One of the same cause is counted with the first."""
        for i, known in enumerate(self.alarms):
            other = self.truth is not None and alarm.error == Mistake.OTHER_SEQUENCE
            same = known.by == alarm.by or (other and min(known.by, alarm.by) >= 0)
            if known.error == alarm.error != Mistake.LAYERS and same:
                self.alarms[i] = known._replace(count=known.count + alarm.count)
                return
        self.alarms.append(alarm)

    def named(self, alarm: Alarm) -> Alarm:
        """With names of sequences, and the text."""
        by, text, names, mapped = alarm.by, _TEXT[alarm.error], self.tested.names, ""
        if alarm.sequence >= 0:
            alarm = alarm._replace(sequence=names[alarm.sequence])
        who = f"layer {alarm.layer}" if alarm.layer >= 0 else f"{self.noun} {alarm.sequence}"
        if by < 0 and alarm.error in (Mistake.LAYERS, Mistake.OTHER_SEQUENCE):
            text = "{who} has ids of none of these {noun}s, or layers"
        elif alarm.error == Mistake.OTHER_SEQUENCE:
            alarm = alarm._replace(by=names[by])
        if alarm.mapping is not None:
            moved = np.flatnonzero(alarm.mapping != np.arange(self.num_experts))
            moved = moved[alarm.mapping[moved] >= 0][:3]
            mapped = ", ".join(f"{i} is expert {alarm.mapping[i]}" for i in moved)
            if by != 0:
                mapped += " first, then others" + f", from step {by} on" * (by > 0)
        far = f"{abs(by)} {'later' if by > 0 else 'earlier'}"
        what = text.format(who=who, noun=self.noun, by=alarm.by, map=mapped, far=far)
        what += f" (agreement {alarm.agreement:.2f}"
        if alarm.explained > alarm.agreement:
            what += f", if undone {alarm.explained:.2f}"
        return alarm._replace(text=f"{what}; {alarm.count} with this mistake)")
