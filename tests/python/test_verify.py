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


def fused(rng: Rng, ids: Any, experts: int, sort: bool) -> Any:
    """A shared expert stands in the first column, or in any, where the router chose others."""
    ids[..., 0] = experts // 2
    return np.sort(ids, -1) if sort else ids


def rolled(rng: Rng, ids: Any, experts: int, sort: bool) -> Any:
    ids[..., 1] = np.roll(ids[..., 1], 5, 0)
    return ids


def in_half(rng: Rng, ids: Any, experts: int, sort: bool) -> Any:
    ids[len(ids) // 2 :] = ids[len(ids) // 2 :, ::-1]
    return ids


OF_IDS: dict[str, tuple[Mistake, Any]] = {
    "8 bits": (Mistake.EIGHT_BITS, lambda rng, ids, experts, sort: ids & 255),
    "a shared expert": (Mistake.UNROUTED, fused),
    "a column of others": (Mistake.COLUMN, rolled),
    "layers in reverse order": (Mistake.LAYERS_REVERSED, lambda rng, ids, e, sort: ids[:, ::-1]),
    "layers in reverse order in half of the rows": (Mistake.LAYERS_REVERSED, in_half),
    "[L, N, K] read as [N, L, K]": (Mistake.EXCHANGED, lambda rng, ids, experts, sort: (
        np.ascontiguousarray(ids.transpose(1, 0, 2)).reshape(ids.shape))),  # N = L: transposed
}


@pytest.mark.parametrize("kind", OF_IDS)
def test_a_mistake_in_the_ids_of_all_rows_is_named(kind: str, seed: int) -> None:
    """Also where all rows agree enough, one by one: 1 of 8 columns."""
    rng = np.random.default_rng([seed, *kind.encode()])
    error, planted = OF_IDS[kind]
    for requests, tokens, layers, k, experts in (
        (20, 40, 3, 4, 64), (5, 12, 3, 4, 64), (40, 6, 3, 4, 64), (8, 24, 24, 8, 128), (12, 20, 58, 8, 257),
        (20, 40, 6, 8, 300), (6, 30, 4, 2, 512),
    ):  # fmt: skip
        if experts < 257 and kind == "8 bits":
            continue
        own, rows = {}, {}
        for name in range(requests):
            own[name] = distinct_ids(rng, tokens, layers, k, experts)
            given = noisy(rng, own[name], experts, rng.choice([1.0, 0.96]))
            given = planted(rng, given.copy(), experts, bool(requests % 8))
            ordered = np.sort(given, -1)
            valid = (ordered[..., 1:] != ordered[..., :-1]).all((1, 2))
            rows[name] = rows_of(given, experts, mask=valid)
        report = waymark.verify(rows, own)
        assert [alarm.error for alarm in report.alarms] == [error], f"seed {seed}, {experts}\n{report}"
        if error == Mistake.UNROUTED:
            assert report.alarms[0].by == experts // 2
        if error == Mistake.COLUMN:
            assert report.alarms[0].by == 1


def replicas_behind(rng: Rng, ids: Any, experts: int) -> Any:
    """A quarter of the experts have a second number, for half of their tokens."""
    more = (ids < experts // 4) & (rng.random(ids.shape[:2]) < 0.5)[..., None]
    return np.where(more, ids + experts, ids)


def two_of_each(rng: Rng, ids: Any, experts: int) -> Any:
    return 2 * ids + (rng.random(ids.shape) < 0.5)


def other_map_later(rng: Rng, ids: Any, experts: int) -> Any:
    cut = int(len(ids) * rng.uniform(0.2, 0.8))
    first, second = rng.permutation(experts), rng.permutation(experts)
    return np.concatenate([first[ids[:cut]], second[ids[cut:]]])


@pytest.mark.parametrize("planted", [replicas_behind, two_of_each, other_map_later])
def test_physical_ids_with_replicas_and_a_map_that_changes(planted: Any, seed: int) -> None:
    rng = np.random.default_rng([seed, *planted.__name__.encode()])
    for layers, k, experts in ((4, 4, 64), (3, 8, 32), (12, 4, 64), (2, 2, 16)):
        own = distinct_ids(rng, 600, layers, k, experts)
        given = planted(rng, noisy(rng, own, experts, 0.97), experts)
        total = int(given.max()) + 1
        rows = [rows_of(given[:300], total, 1 + np.arange(300) // 8),
                rows_of(given[300:], total, 50 + np.arange(300) // 8)]  # fmt: skip
        report = waymark.verify(rows, [own[:300], own[300:]])
        what = f"seed {seed}, {layers, k, experts}\n{report}"
        assert {alarm.error for alarm in report.alarms} == {Mistake.PHYSICAL_IDS}, what
        assert "expert -1" not in str(report), what
        for alarm in report.alarms:
            later = planted is other_map_later
            assert later == (alarm.by > 0) == ("first, then others, from step" in alarm.text), what


def near_ties(rng: Rng, ids: Any, experts: int, share: float) -> Any:
    """The last of the K is another in such a share of all ids, as with other kernels."""
    changed = ids.copy()
    other = rng.random(ids.shape[:2]) < share * ids.shape[-1]
    changed[..., -1] = np.where(other, rng.integers(experts, size=other.shape), ids[..., -1])
    ordered = np.sort(changed, -1)
    return np.where((ordered[..., 1:] == ordered[..., :-1]).any(-1, keepdims=True), ids, changed)


def test_near_ties_are_no_mistake(seed: int) -> None:
    """1 to 6 % of the ids differ, in the last column; some experts are never chosen."""
    rng = np.random.default_rng(seed)
    for number in range(120):
        layers, k = int(rng.integers(1, 28)), int(rng.integers(1, 9))
        experts = int(rng.choice([16, 64, 128, 300, 512]))
        used = rng.permutation(experts)[: int(rng.integers(min(experts, 2 * k), experts + 1))]
        own = [used[distinct_ids(rng, int(n), layers, k, len(used))]
               for n in rng.integers(1, rng.choice([4, 30, 400]), 1 + number % 6)]  # fmt: skip
        share = rng.uniform(0, 0.06)
        given = [near_ties(rng, ids, experts, share) for ids in own]
        if number % 2:
            given = [np.sort(ids, -1) for ids in given]
        report = waymark.verify([rows_of(ids, experts, np.arange(len(ids))) for ids in given], own)
        assert not report.alarms, f"seed {seed}, {number}: {layers, k, experts, share}\n{report}"


def test_all_rows_together_are_judged(seed: int) -> None:
    """Each request and layer is near enough, all together are not; a few ids are too few to tell."""
    rng = np.random.default_rng(seed)
    own = [distinct_ids(rng, 12, 3, 4, 64) for _ in range(8)]
    given = [np.sort(ids, -1) for ids in own]
    for ids in given:  # a fourth of the ids, in any column
        wrong = rng.permuted(np.broadcast_to(np.arange(4) == 0, ids.shape), axis=-1)
        ids[wrong] = (ids[wrong] + 17) % 64
    valid = [(np.diff(np.sort(ids, -1)) > 0).all((1, 2)) for ids in given]
    report = waymark.verify([rows_of(i, 64, mask=v) for i, v in zip(given, valid)], own)
    assert 0.74 < report.agreement < 0.79, report
    with pytest.raises(waymark.DataLossError, match="chosen by other weights"):
        report.check()
    one, other = np.tile([0, 1, 2, 3], (1, 3, 1)), np.tile([9, 1, 2, 3], (1, 3, 1))
    few = waymark.verify([rows_of(one, 64)], [other])
    assert not few.alarms
    with pytest.raises(waymark.FailedPreconditionError, match="too few to tell"):
        few.check()


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
        if report.agreement >= 0.8:
            report.check()


def test_what_is_compared_and_what_is_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = distinct_ids(rng, 40, 3, 2, 16)
    mask = np.arange(39) % 4 != 0
    rows = rows_of(own[:-1], 16, mask=mask)
    report = waymark.verify([rows, rows[10:20]], [own, own])
    assert report.rows == 29 + 8 and report.missing == {Reason.NOT_TOLD: 12}
    assert report.agreement == 1 and report.requests == {0: 1, 1: 1} and not report.low
    assert "37 rows of 2 requests" in str(report) and "missing: 12 not told" in str(report)
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
    with pytest.raises(waymark.FailedPreconditionError, match="40 not told"):
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
