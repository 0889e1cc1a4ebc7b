"""What is reported takes effect in its order: events, schedules, steps and takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig
from waymark import Reason


def reasons_and_ids(rig: Rig, blocks: list[int], rows: int) -> list[Any]:
    """Of each row the ids of layer 0, or the reason why it is missing."""
    return reasons_and_ids_of(rig.read(blocks, rows))


def reasons_and_ids_of(read: waymark.Rows | None) -> list[Any]:
    assert read is not None
    return [
        read.ids[i, 0].tolist() if valid else Reason(int(read.reasons[i]))
        for i, valid in enumerate(read.valid)
    ]


def of_rows(rows: int, *ids: int) -> Any:
    """The same ids in every row and layer."""
    return np.full((rows, 3, 2), ids, np.int16)


def test_what_is_reported_holds_before_the_next_step() -> None:
    """Pins a bug: events were kept in a builder until their step began, so that a take in between
    returned the rows of a block's last owner as valid. Request A had blocks 0 and 1 and has
    finished; request B has three rows in block 2."""
    rig = Rig(num_blocks=8)
    rig.write(range(8), [0, 1], ids=of_rows(8, 1, 2))
    rig.store.release([0, 1])
    rig.write([8, 9, 10], [2], ids=of_rows(3, 7, 8))
    rig.store.wait_idle(10)
    of_b = [[7, 8]] * 3 + [Reason.NEVER_WRITTEN]
    assert reasons_and_ids(rig, [1], 4) == [Reason.RELEASED] * 4
    assert rig.store.covered_prefix([2], 3) == 3  # a hint: it shows what has been applied
    rig.store.bind(1)
    assert reasons_and_ids(rig, [1], 4) == [Reason.NEVER_WRITTEN] * 4
    rig.store.bind(0, b"unknown")
    assert reasons_and_ids(rig, [0], 4) == [Reason.EXTERNAL_KV] * 4
    rig.store.copy(2, 1, 3)  # B is forked; the fork is aborted before its step begins
    assert reasons_and_ids(rig, [1], 4) == of_b
    taken = rig.store.take([2], 4)
    rig.store.truncate(2, 1, rig.store.last_step)
    assert reasons_and_ids(rig, [2], 4) == [[7, 8]] + [Reason.NEVER_WRITTEN] * 3
    assert reasons_and_ids_of(taken.result(10)) == of_b  # of what was reported before it alone
    rig.store.move([1], [0])
    assert reasons_and_ids(rig, [0], 4) == of_b
    assert reasons_and_ids(rig, [1], 4) == [Reason.NEVER_WRITTEN] * 4
    rig.store.reset()
    # The last row was never written: it is not lost.
    assert reasons_and_ids(rig, [0], 4) == [*[Reason.CAPACITY] * 3, Reason.NEVER_WRITTEN]
    rig.store.wait_idle(10)
    assert rig.store.covered_prefix([0], 3) == 0


def forms(slots: Any, dtype: Any) -> list[tuple[Any, dict[str, Any]]]:
    """The rows of `slots` (block_tokens 4, the last two padding) in every form."""
    blocks = np.where(slots < 0, [-1] * 6 + [-7], slots // 4).astype(dtype)
    offsets = np.where(slots < 0, 9, slots % 4).astype(dtype)
    half = np.where(slots < 0, -1, slots // 2).astype(dtype)
    return [
        (slots.astype(dtype), {}),
        (slots.tolist(), {}),
        (np.repeat(slots.astype(dtype), 2)[::2], {}),
        ((blocks, offsets), {}),
        ((blocks.tolist(), offsets.tolist()), {}),
        ((blocks.astype(np.int32), offsets.astype(np.int64)), {}),
        ((half, (slots % 2).astype(dtype)), {"block_tokens": 2}),
        ((blocks, offsets), {"asked": np.ones(len(slots), np.bool_)}),
    ]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("how", range(8))
def test_rows_in_every_form(rig: Rig, how: int, dtype: Any) -> None:
    slots = np.array([5, 4, 21, 18, 127, -1, -1])
    rows, more = forms(slots, dtype)[how]
    rig.store.bind([1, 4, 5, 31])
    ids = rig.ids(len(slots))
    rig.store.step(1, 1, rows, ids, **more)
    rig.store.wait_idle(10)
    stats = rig.store.stats()
    assert (stats.rows_landed, stats.rows_padding) == (5, 2)
    for i, slot in enumerate(slots[:5]):
        block, row = divmod(int(slot), 4)
        assert reasons_and_ids(rig, [block], 4)[row] == ids[i, 0].tolist()


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_rows_that_did_not_ask(rig: Rig, dtype: Any) -> None:
    pairs = (np.array([1, 1], np.int32), np.array([0, 1], np.int32))
    rig.begin(pairs, [1, 2], asked=np.array([1, 0], dtype), ids=rig.ids(2))
    rig.store.wait_idle(10)
    stats = rig.store.stats()
    assert (stats.rows_landed, stats.rows_not_asked) == (1, 1)


WRONG_ROWS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (([1],), {}, TypeError, "pairs must be (block_idx, local_position)"),
    ("0", {}, TypeError, "slots"),
    (["0"], {}, TypeError, "slots must hold integers"),
    (np.array([0.5]), {}, TypeError, "slots must hold integers"),
    (np.zeros((1, 1), np.int64), {}, waymark.InvalidArgumentError, "one dimension"),
    (([1, 2], [1]), {}, waymark.InvalidArgumentError, "got 1 of 2"),
    (([1.5], [1]), {}, TypeError, "block_idx"),
    (([32], [1]), {}, waymark.InvalidArgumentError, "32"),
    (([1], [4]), {}, waymark.InvalidArgumentError, "local_position[0]"),
    (([1], [0]), {"block_tokens": 3}, waymark.InvalidArgumentError, "divisor"),
    (([1], [0]), {"block_tokens": "4"}, TypeError, "block_tokens"),
    (([1], [0]), {"asked": [1]}, TypeError, "asked must be an array"),
    (([1], [0]), {"asked": np.ones(2, bool)}, waymark.InvalidArgumentError, "got 2 of 1"),
    ([1], {"asked": np.ones(1, bool)}, waymark.InvalidArgumentError, "NOT_ASKED"),
    ([1], {"block_tokens": 4}, waymark.InvalidArgumentError, "block_tokens: with pairs, got 4"),
]


@pytest.mark.parametrize("rows, more, kind, text", WRONG_ROWS)
def test_wrong_rows_are_no_step(
    rig: Rig, rows: Any, more: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        rig.store.step(1, 1, rows, **more)
    assert text in str(caught.value), str(caught.value)
    assert rig.store.last_step == 0


def test_errors_of_the_step_path_say_what_and_where(rig: Rig) -> None:
    rig.write([0], [0])
    cases: list[tuple[Any, type[Exception], tuple[int, int, int]]] = [
        (lambda: rig.store.step(1, 1, []), waymark.InvalidArgumentError, (1, 1, 1)),
        (lambda: rig.store.step(2, 1, [0, 32 * 4]), waymark.InvalidArgumentError, (11, 1, 128)),
        (lambda: rig.store.bind([0, 32]), waymark.InvalidArgumentError, (4, 1, 32)),
        (lambda: rig.store.step(2, 1, np.full(8193, -1)), waymark.InvalidArgumentError,
         (2, 0, 8193)),
    ]  # fmt: skip
    for call, kind, where in cases:
        with pytest.raises(kind) as caught:
            call()
        error: Any = caught.value
        assert (error.rule, error.index, error.value) == where
        assert str(where[2]) in str(error)


def test_a_seal_without_a_step_is_of_the_step_that_is_told_next(rig: Rig) -> None:
    rig.store.bind(1)
    rig.store.seal(1, b"key")
    ids = rig.write(range(4, 8))
    rig.write(range(4, 8), ids=ids)
    rig.store.wait_idle(10)
    assert rig.store.stats().rows_ignored == 4
    rig.store.bind(2, b"key")
    assert reasons_and_ids(rig, [2], 4) == ids[:, 0].tolist()


def test_a_key_is_looked_up_under_the_version_of_the_schedule(rig: Rig) -> None:
    rig.store.bind(1)
    rig.store.seal(1, b"key")
    ids = rig.write(range(4, 8), version=1)
    rig.store.schedule(2, 2)
    rig.store.bind(2, b"key")
    assert reasons_and_ids(rig, [2], 4) == [Reason.EXTERNAL_KV] * 4
    rig.store.schedule(3, 1)
    rig.store.bind(3, b"key")
    assert reasons_and_ids(rig, [3], 4) == ids[:, 0].tolist()
    with pytest.raises(waymark.FailedPreconditionError) as error:
        rig.store.step(2, 1, [])
    assert (error.value.rule, error.value.value) == (15, 3)
    with pytest.raises(waymark.InvalidArgumentError):
        rig.store.schedule(2, 1)
    rig.store.step(3, 1, [])


def test_lost_events_cost_all_rows_and_no_user(rig: Rig) -> None:
    ids = rig.write(range(4, 8), [1])
    rig.store.retain(1)
    before = rig.store.take([1], 4)
    rig.store.lose_rows()
    assert reasons_and_ids(rig, [1], 4) == [Reason.CAPACITY] * 4
    rig.store.bind(2)  # behind the loss
    told = rig.write(range(8, 12))
    assert reasons_and_ids(rig, [2], 4) == told[:, 0].tolist()
    rig.store.release(1)
    rig.store.wait_idle(10)
    assert rig.store.stats().releases_below_zero == 0
    assert rig.store.stats().log_losses == 1
    assert reasons_and_ids_of(before.result(10)) == ids[:, 0].tolist()


def test_a_full_log_costs_rows_and_raises_nothing() -> None:
    rig = Rig(num_blocks=8, log_bytes=1 << 16)
    rig.write([0, 1, 2, 3], [0], ids=of_rows(4, 1, 2))
    assert reasons_and_ids(rig, [0], 4) == [[1, 2]] * 4
    rig.store.retain(np.zeros(100_000, np.int32))  # more than the log and its overflow hold
    assert reasons_and_ids(rig, [0], 4) == [Reason.CAPACITY] * 4
    assert rig.store.stats().log_losses == 1
    rig.write([0, 1, 2, 3], [0], ids=of_rows(4, 3, 4))
    assert reasons_and_ids(rig, [0], 4) == [[3, 4]] * 4
    runs = rig.read(np.zeros(400_000, np.int32), 1_600_000).coverage()  # it raised
    assert [run[:3] for run in runs] == [(0, 1_600_000, Reason.CAPACITY)]
    assert (rig.store.stats().log_losses, rig.store.stats().snapshots_lost) == (1, 1)
    assert reasons_and_ids(rig, [0], 4) == [[3, 4]] * 4
