"""waymark.verify: it names planted mistakes, and is silent where other kernels route near ties
differently; in random shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import waymark
from conftest import distinct_ids, refused
from waymark import InvalidArgumentError, Mistake, Reason

Rng = np.random.Generator
SHAPES = [(1, 1, 16), (1, 8, 64), (2, 2, 8), (4, 2, 8), (6, 1, 8), (16, 6, 8), (12, 4, 128), (27, 6, 64)]


def noisy(rng: Rng, ids: Any, experts: int, agreement: float) -> Any:
    """A share of the ids are others; where there are many layers, all of a layer at once."""
    if ids.shape[1] > 8:
        other = distinct_ids(rng, len(ids), *ids.shape[1:], experts)
        return np.where(rng.random(ids.shape[:2])[..., None] < 1 - agreement, other, ids)
    changed = np.where(rng.random(ids.shape) < 1 - agreement, rng.integers(experts, size=ids.shape), ids)
    ordered = np.sort(changed, -1)
    return np.where((ordered[..., 1:] == ordered[..., :-1]).any(-1, keepdims=True), ids, changed)


def rows_of(ids: Any, experts: int, steps: Any = None, mask: Any = None) -> waymark.Rows:
    rows = waymark.Rows.from_array(
        ids, num_experts=experts, layer_ids=range(ids.shape[1]), valid=mask
    )
    if steps is not None:
        infos = rows.infos.copy()
        infos["step"] = steps
        rows = waymark._rows._rows_of(tuple(rows.shape), 0, rows.ids.tobytes(), infos.tobytes())
    return rows


class Case:
    """Requests of random lengths, and what was captured of them."""

    def __init__(self, rng: Rng, shape: tuple[int, int, int] | None = None) -> None:
        self.rng = rng
        self.layers, self.k, self.experts = shape or SHAPES[int(rng.integers(len(SHAPES)))]
        # Enough ids that a mistake in one request shows.
        least = max(48, 400 // (self.layers * self.k))
        self.own = {f"r{i}": self.draw(int(rng.integers(least, 3 * least))) for i in range(5)}
        self.steps = {name: 1 + i * 100 + np.arange(len(ids)) // 24
                      for i, (name, ids) in enumerate(self.own.items())}  # fmt: skip
        self.exact = bool(rng.random() < 0.5)
        share = 1.0 if self.exact else 0.92
        self.taken = {name: noisy(rng, ids, self.experts, share) for name, ids in self.own.items()}

    def draw(self, count: int) -> Any:
        return distinct_ids(self.rng, count, self.layers, self.k, self.experts)

    def report(self) -> waymark.Report:
        rows = {n: rows_of(ids, self.experts, self.steps[n]) for n, ids in self.taken.items()}
        return waymark.verify(rows, self.own.__getitem__)


def in_steps(case: Case, order: Any) -> dict[str, Any]:
    """The ids of each step in another order of its rows."""
    cuts = {name: np.flatnonzero(np.diff(steps)) + 1 for name, steps in case.steps.items()}
    return {n: np.concatenate([order(part) for part in np.split(ids, cuts[n])])
            for n, ids in case.taken.items()}  # fmt: skip


def one(case: Case, ids: Any) -> dict[str, Any]:
    return {**case.taken, "r1": ids[: len(case.own["r1"])]}


def shifted(by: int) -> Any:
    def plant(case: Case) -> dict[str, Any]:
        ids, ends = case.taken["r1"], case.draw(abs(by))
        return one(case, np.concatenate([ids[by:], ends] if by > 0 else [ends, ids]))

    return Mistake.SHIFTED, by, plant


def mapped(case: Case) -> dict[str, Any]:
    maps = [case.rng.permutation(case.experts) for _ in range(case.layers)]
    case.map = np.array(maps)  # type: ignore[attr-defined]
    at = np.arange(case.layers)[:, None]
    return {n: np.array(maps)[at, ids] for n, ids in case.taken.items()}


# What is planted in r1, or in all, and how it is to be named.
KINDS: dict[str, tuple[Mistake, Any, Any]] = {
    **{f"shifted by {by}": shifted(by) for by in (1, -1, 2, -2, 16, -16)},
    "another request": (Mistake.OTHER_SEQUENCE, "r3", lambda case: one(
        case, np.concatenate([case.taken["r3"], case.taken["r1"][len(case.taken["r3"]) :]]))),
    "none of these": (Mistake.OTHER_SEQUENCE, -1, lambda case: one(case, case.draw(9999))),
    "a block of another": (Mistake.OTHER_SEQUENCE, "r4", lambda case: one(case, np.concatenate(
        [case.taken["r1"][:16], case.taken["r4"][16:32], case.taken["r1"][32:]]))),
    "layers": (Mistake.LAYERS, None, lambda case: {
        name: np.roll(ids, -1, 1) for name, ids in case.taken.items()}),
    "reversed": (Mistake.REVERSED, 0, lambda case: in_steps(case, lambda rows: rows[::-1])),
    "another order": (Mistake.ORDER, 0, lambda case: in_steps(case, case.rng.permutation)),
    "stale weights": (Mistake.STALE_WEIGHTS, 0, lambda case: {
        n: noisy(case.rng, ids, case.experts, 0.45) for n, ids in case.own.items()}),
    "physical ids": (Mistake.PHYSICAL_IDS, 0, mapped),
    "repeated": (Mistake.REPEATED, -1, lambda case: one(case, np.repeat(case.taken["r1"][::3], 3, 0))),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_mistake_is_named(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, *kind.encode()])
    error, by, planted = KINDS[kind]
    for number in range(12):
        case = Case(rng)
        telling = case.layers * case.k >= 16 and (case.k < 4 or case.experts >= 16)
        if kind in ("a block of another", "another order", "repeated") and not telling:
            continue  # a row, or a few, of few ids says nothing
        if kind == "layers" and case.layers == 1:
            continue
        if kind in ("stale weights", "physical ids") and case.experts < 2 * case.k:
            continue  # chance is as much
        if kind == "stale weights" and case.layers * case.k == 1:
            continue  # with one id a row another sequence looks the same
        case.taken = planted(case)
        report = case.report()
        what = f"seed {seed}, {number}: {case.layers, case.k, case.experts, case.exact}\n{report}"
        assert report.alarms and {alarm.error for alarm in report.alarms} == {error}, what
        for alarm in report.alarms:
            assert alarm.by == by or by is None, what
            assert by is not None or alarm.by == (alarm.layer + 1) % case.layers, what
            if alarm.mapping is not None:
                right = alarm.mapping[case.map[alarm.layer]]  # type: ignore[attr-defined]
                assert (right == np.arange(case.experts)).mean() > 0.9, what
        with pytest.raises(waymark.DataLossError, match="MISTAKE"):
            report.check()


def test_rows_of_other_kernels_are_no_mistake(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(150):
        case = Case(rng)
        if rng.random() < 0.5:  # few rows
            for name in case.own:
                count = int(rng.integers(1, 20))
                case.own[name], case.taken[name] = case.own[name][:count], case.taken[name][:count]
                case.steps[name] = case.steps[name][:count]
        report = case.report()
        assert not report.alarms, f"seed {seed}, {number}: {case.layers, case.k, case.experts}\n{report}"
        report.check()


def test_what_is_compared_and_what_is_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = distinct_ids(rng, 40, 3, 2, 16)
    mask = np.arange(39) % 4 != 0
    rows = rows_of(own[:-1], 16, mask=mask)
    report = waymark.verify([rows, rows[10:20]], [own, own])
    assert report.rows == 29 + 8 and report.missing == {Reason.NOT_CAPTURED: 12}
    assert report.agreement == 1 and report.requests == {0: 1, 1: 1} and not report.low
    assert "37 rows of 2 requests" in str(report) and "missing: 12 not captured" in str(report)
    again = rows_of(own, 16, mask=np.arange(40) > 4)
    assert waymark.verify({"a": rows}, {"a": again}).rows == 26
    document = waymark.from_bytes(rows.to_bytes())
    assert waymark.verify({7: document}, lambda name: own[: 39 * (name == 7)]).rows == 29
    one = own.copy()  # one row of other tokens, where all others are exact
    one[9] = (one[9] + 5) % 16
    long = np.concatenate([one, distinct_ids(rng, 80, 3, 2, 16)])
    right = np.concatenate([own, long[40:]])
    (alarm,) = waymark.verify([rows_of(long, 16)], [right]).alarms
    assert (alarm.error, alarm.sequence, alarm.by) == (Mistake.OTHER_SEQUENCE, 0, -1)
    assert waymark.verify([rows_of(long, 16)], [right]).low == {0: [9]}
    nothing = waymark.verify([rows_of(own, 16, mask=np.zeros(40, np.bool_))], [own])
    with pytest.raises(waymark.FailedPreconditionError, match="40 not captured"):
        nothing.check()
    wrong = own.copy()
    wrong[3, 1, 0] = 16
    other = rows_of(own[:, :2], 16)
    refused(
        InvalidArgumentError,
        (r"recomputed\[0\]: at least \[39, 3, 2\].*got \[38, 3, 2\]", lambda: waymark.verify([rows], [own[:38]])),
        (r"recomputed\['a'\]: at least \[39, 3, 2\]", lambda: waymark.verify({"a": rows}, {"a": own[:, 1:]})),
        (r"recomputed\[0\]: ids in \[0, 16\), got 16", lambda: waymark.verify([rows], [wrong])),
        (r"recomputed\[0\]: integers", lambda: waymark.verify([rows], [own * 1.0])),
        ("recomputed: 1 requests, got 2", lambda: waymark.verify([rows], [own, own])),
        ("rows: at least one request", lambda: waymark.verify([], [])),
        ("same layers", lambda: waymark.verify([rows, other], [own, own])),
        ("least_agreement: in .* got 1.5", lambda: waymark.verify([rows], [own], least_agreement=1.5)),
    )  # fmt: skip
