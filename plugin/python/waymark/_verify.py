"""Compares rows of finished requests with a recompute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._arrays import check_choices, check_type, integers
from ._compare import Alarm, Comparison, Mistake, Places, check
from ._errors import InvalidArgumentError
from ._rows import HasRows, Rows
from ._types import Reason

__all__ = ["Report", "verify"]

# What an engine's author looks at.
_LOOK = {
    Mistake.SHIFTED: "the first position of the slots; the offset in the block; ids that are late",
    Mistake.LAYERS: "which module's ids go to which layer",
    Mistake.OTHER_SEQUENCE: "binds, copies; is the take before the release?; the block table; keys",
    Mistake.STALE_WEIGHTS: "the weights of both; other kernels or batch shapes",
    **dict.fromkeys((Mistake.REVERSED, Mistake.ORDER), "the order of the slots and of the ids"),
    Mistake.REPEATED: "a buffer of ids that a forward did not write",
    Mistake.PHYSICAL_IDS: "capture before the load balancer's map",
    Mistake.EIGHT_BITS: "the type of the ids on their way from the router",
    Mistake.UNROUTED: "shared experts that are fused into the ids: capture the router's columns",
    Mistake.COLUMN: "the columns of the array that the router wrote; extra columns",
    Mistake.LAYERS_REVERSED: "the order in which modules are registered, or run",
    Mistake.EXCHANGED: "the axes of the array: [tokens, layers, K]",
}


class Report(NamedTuple):
    """What verify() found. Agreements are shares of the captured ids that were recomputed, too."""

    agreement: float
    """Of all rows that were compared; -1: none."""
    least_agreement: float
    """As it was given."""
    chance: float
    """The agreement of different tokens, measured on these rows."""
    rows: int
    """Compared."""
    missing: dict[Reason, int]
    """Rows that were not compared, by reason."""
    layers: npt.NDArray[np.float64]
    """[layers]"""
    requests: dict[Any, float]
    """By name; -1: none of its rows was compared."""
    low: dict[Any, list[int]]
    """Positions of rows that agree less than half way from chance to 1, by name."""
    alarms: list[Alarm]
    """Mistakes, each with its text; empty: none was found."""

    def check(self) -> None:
        """DataLossError with the text of the report, if there is a mistake;
        FailedPreconditionError if no row was compared, or the rows agree less than is wanted, but
        are too few to tell."""
        check("verify", self, str(self))

    def __str__(self) -> str:
        lines = [
            f"{self.rows} rows of {len(self.requests)} requests were compared: agreement "
            f"{self.agreement:.3f} (wanted: {self.least_agreement}; different tokens: "
            f"{self.chance:.3f})"
        ]
        if self.missing:
            lines.append("missing: " + ", ".join(f"{n} {r}" for r, n in self.missing.items()))
        lines += [f"MISTAKE: {one.text}. Look at: {_LOOK[one.error]}." for one in self.alarms]
        for name, rows in sorted(self.low.items(), key=lambda one: -len(one[1]))[:4]:
            some = ", ".join(map(str, rows[:8])) + ", ..." * (len(rows) > 8)
            lines.append(f"request {name}: {len(rows)} rows agree little: {some}")
        if self.rows and self.agreement < 1:
            least = sorted(enumerate(self.layers.tolist()), key=lambda one: one[1])[:4]
            lines.append("least by layer: " + ", ".join(f"{n}: {of:.3f}" for n, of in least))
        return "\n".join(lines)


def _right(name: str, given: Any, rows: Rows) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """(ids, whether they are there) of positions 0 ... of the recompute of a request."""
    layers, top_k, experts = rows.shape[:3]
    other = given if isinstance(given, Rows) else None
    ids = integers(name, given if other is None else other.ids, "tokens", "layers", "K")
    if ids.shape[1:] != (layers, top_k) or (other is None and len(ids) < rows.last):
        raise InvalidArgumentError(
            f"{name}: at least [{rows.last}, {layers}, {top_k}], from the request's first token "
            f"on, got {list(ids.shape)}"
        )
    there = np.ones(len(ids), np.bool_) if other is None else other.valid
    check_type(name, ids, experts)
    check_choices(name, ids.transpose(1, 0, 2), experts, rows.layer_ids, there)
    first = 0 if other is None else other.first
    right = np.zeros((max(first + len(ids), rows.last), layers, top_k), rows.ids.dtype)
    known = np.zeros(len(right), np.bool_)
    right[first : first + len(ids)], known[first : first + len(ids)] = ids, there
    return right, known


def verify(
    rows: Mapping[Any, Rows | HasRows] | Sequence[Rows | HasRows],
    recomputed: Mapping[Any, Any] | Sequence[Any] | Callable[[Any], Any],
    *,
    least_agreement: float = 0.8,
) -> Report:
    """Compares the rows of finished requests with ids of the same tokens that were computed without
    a cache, and names the mistake of the integration that a difference looks like: ids shifted by
    some tokens, another request's or layer's, another order, stale weights, physical ids, a buffer
    that repeats (docs/proving.md).

    rows: by the name of the request, or a list. recomputed: the ids of each in the same form, or a
    function of the name or number: integers [tokens, layers, K] from the request's first token on,
    or Rows of another capture. Missing rows are counted, and not compared. Rows of another request
    can only be named if that is among these. least_agreement: an alarm below it, and below half way
    from chance to 1, if that is more; of few ids, below it by some standard deviations. Equal
    kernels agree in 1, others in more than 0.9."""
    if not 0 <= least_agreement <= 1:
        raise InvalidArgumentError(f"least_agreement: in [0, 1], got {least_agreement}")
    given = dict(rows) if isinstance(rows, Mapping) else dict(enumerate(rows))
    reads = {name: one if isinstance(one, Rows) else one.rows() for name, one in given.items()}
    if len({read.shape[:3] for read in reads.values()}) != 1:
        raise InvalidArgumentError("rows: at least one request, all with the same layers, K and E")
    if not callable(recomputed) and len(recomputed) != len(reads):
        raise InvalidArgumentError(f"recomputed: {len(reads)} requests, got {len(recomputed)}")
    of = recomputed if callable(recomputed) else recomputed.__getitem__
    right = [_right(f"recomputed[{name!r}]", of(name), read) for name, read in reads.items()]
    lengths = [len(ids) for ids, _ in right]
    truth = Places(
        np.concatenate([ids for ids, _ in right]).transpose(1, 0, 2),
        np.concatenate([there for _, there in right]), np.repeat(np.arange(len(reads)), lengths),
        np.concatenate([np.arange(length) for length in lengths]), list(reads), lengths,
    )  # fmt: skip
    steps, valid = np.zeros(len(truth.there), np.uint64), np.zeros(len(truth.there), np.bool_)
    ids, reading = np.zeros_like(truth.ids), np.zeros(len(truth.there), np.int64)
    for read, start in zip(reads.values(), np.cumsum([0, *lengths])):
        at = slice(start + read.first, start + read.last)
        reading[at] = start + 1
        ids[:, at] = read.ids.transpose(1, 0, 2)
        valid[at], steps[at] = read.valid, read.infos["step"]
    turned = np.empty(len(steps), np.int64)  # where a row is if each step's are in reverse
    turned[np.argsort(steps, kind="stable")] = np.lexsort((-np.arange(len(steps)), steps))
    samples, shape = np.flatnonzero(valid & truth.there), next(iter(reads.values())).shape
    found = Comparison(
        truth._replace(ids=ids, there=valid), truth.ids[:, samples], samples, shape.num_experts,
        least_agreement, orders=[(Mistake.REVERSED, turned[samples])], truth=truth,
        steps=steps, page=shape.page_tokens, arrays=(reading, steps),
    ).run()  # fmt: skip
    few = (found.positions >= 0) & (found.positions < (1 + found.chance) / 2)
    low = [truth.positions[few & (truth.sequences == n)].tolist() for n in range(len(reads))]
    reasons = Counter(reason for read in reads.values() for reason in read.reasons.tolist())
    return Report(
        found.agreement, least_agreement, found.chance, found.rows,
        {Reason(reason): count for reason, count in sorted(reasons.items()) if reason},
        found.layers, dict(zip(reads, found.sequences.tolist())),
        {name: positions for name, positions in zip(reads, low) if positions}, found.alarms,
    )  # fmt: skip
