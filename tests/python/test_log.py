"""What is reported takes effect in its order: events, schedules, steps and snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Events, Rig
from waymark import Reason


def reasons_and_ids(rig: Rig, blocks: list[int], rows: int) -> list[Any]:
    """Of each row the ids of layer 0, or the reason why it is missing."""
    with rig.store.snapshot(blocks, 0, rows) as snapshot:
        rig.store.wait_idle(10)
        snapshot.wait(10)
        read = snapshot.rows()
        return [
            read.ids[i, 0].tolist() if valid else Reason(int(read.reasons[i]))
            for i, valid in enumerate(read.valid)
        ]


class TestSnapshotBetweenReportAndBegin:
    """Pins a bug: events were kept in a builder until their step began, so that a snapshot that was
    taken in between returned the rows of a block's last owner as valid. Request A had blocks 0 and
    1 and has finished; request B has three rows in block 2."""

    @pytest.fixture(params=["thread", "caller"])
    def rig(self, request: pytest.FixtureRequest) -> Rig:
        rig = Rig(landing=request.param, num_blocks=8)
        rig.write(range(8), [0, 1], ids=np.full((3, 8, 2), [1, 2], np.int16))
        rig.store.release([0, 1])
        rig.write([8, 9, 10], [2], ids=np.full((3, 3, 2), [7, 8], np.int16))
        rig.store.wait_idle(10)
        return rig

    def test_bind(self, rig: Rig) -> None:
        assert reasons_and_ids(rig, [1], 4) == [[1, 2]] * 4
        rig.store.bind(1)
        assert reasons_and_ids(rig, [1], 4) == [Reason.NEVER_WRITTEN] * 4

    def test_bind_with_a_key_that_no_page_has(self, rig: Rig) -> None:
        rig.store.bind(1, b"unknown")
        assert reasons_and_ids(rig, [1], 4) == [Reason.EXTERNAL_KV] * 4

    def test_fork(self, rig: Rig) -> None:
        rig.store.bind(0)
        rig.store.copy(2, 0, 3)  # B is forked; the fork is aborted before its step begins
        want = [[7, 8]] * 3 + [Reason.NEVER_WRITTEN]
        assert reasons_and_ids(rig, [0], 4) == want
        rig.write([])
        assert reasons_and_ids(rig, [0], 4) == want

    def test_swap_in(self, rig: Rig) -> None:
        rig.store.move([2], [1])  # the rows of B come to where those of A were
        assert reasons_and_ids(rig, [1], 4) == [[7, 8]] * 3 + [Reason.NEVER_WRITTEN]
        assert reasons_and_ids(rig, [2], 4) == [Reason.NEVER_WRITTEN] * 4

    def test_truncate(self, rig: Rig) -> None:
        rig.store.truncate(2, 1, rig.step)
        assert reasons_and_ids(rig, [2], 4) == [[7, 8]] + [Reason.NEVER_WRITTEN] * 3

    def test_reset(self, rig: Rig) -> None:
        rig.store.reset()
        assert reasons_and_ids(rig, [2], 4) == [Reason.CAPACITY] * 4

    def test_covered_prefix(self, rig: Rig) -> None:
        """It shows what has been applied: it is a hint."""
        assert rig.store.covered_prefix([1], 4) == 4
        rig.store.bind(1)
        rig.store.wait_idle(10)
        assert rig.store.covered_prefix([1], 4) == 0

    def test_a_snapshot_does_not_see_what_is_reported_after_it(self, rig: Rig) -> None:
        with rig.store.snapshot([2], 0, 3) as snapshot:
            rig.store.bind(2)
            rig.write([8], ids=np.full((3, 1, 2), [5, 6], np.int16))
            rig.store.wait_idle(10)
            snapshot.wait(10)
            assert snapshot.read()[:, 0].tolist() == [[7, 8]] * 3


def forms(slots: np.ndarray[Any, Any], dtype: Any) -> list[dict[str, Any]]:
    """The rows of `slots` (block_tokens 4, the last two padding) in every
    form."""
    blocks, offsets = slots[:-2] // 4, slots[:-2] % 4
    padded = np.concatenate([blocks, [-1, -7]])
    half = ((padded * 2 + [*(offsets // 2), 0, 0]).astype(dtype), np.concatenate([offsets % 2, [0, 9]]).astype(dtype))
    return [
        {"slots": slots.astype(dtype)},
        {"slots": slots.tolist()},
        {"pairs": (padded.astype(dtype), np.concatenate([offsets, [0, 9]]).astype(dtype))},
        {"pairs": [padded.tolist(), [*offsets.tolist(), 0, 0]]},
        {"pairs": (padded.astype(np.int32), np.concatenate([offsets, [0, 0]]).astype(np.int64))},
        {"pairs": half, "block_tokens": 2},
    ]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("how", range(6))
def test_rows_in_every_form(rig: Rig, how: int, dtype: Any) -> None:
    slots = np.array([5, 4, 21, 18, 127, -1, -1])
    rows = forms(slots, dtype)[how]
    rig.store.bind([1, 4, 5, 31])
    ids = rig.ids(len(slots))
    assert rig.session.begin_step(1, 1, **rows)
    rig.session.view(1).array[:, : len(slots)] = ids
    rig.session.submit(1)
    rig.store.wait_idle(10)
    stats = rig.store.stats()
    assert (stats.rows_landed, stats.rows_padding) == (5, 2)
    for i, slot in enumerate(slots[:5]):
        block, row = divmod(int(slot), 4)
        assert reasons_and_ids(rig, [block], 4)[row] == ids[0, i].tolist()


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_rows_that_did_not_ask(rig: Rig, dtype: Any) -> None:
    rig.store.bind([1, 2])
    asked = np.array([1, 0], dtype)
    pairs = (np.array([1, 1], np.int32), np.array([0, 1], np.int32))
    rig.session.drop(rig.begin(None, pairs=pairs, asked=asked))
    rig.store.wait_idle(10)
    stats = rig.store.stats()
    assert (stats.missing[Reason.CAPACITY], stats.rows_not_asked) == (1, 1)


WRONG_ROWS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"pairs": ([1], [1]), "slots": [4]}, waymark.InvalidArgumentError, "in one form"),
    ({"pairs": ([1],)}, TypeError, "pairs must be (block_idx, local_position)"),
    ({"pairs": 5}, TypeError, "pairs must be (block_idx, local_position)"),
    ({"pairs": ([1, 2], [1])}, waymark.InvalidArgumentError, "got 1 of 2"),
    ({"pairs": ([1.5], [1])}, TypeError, "block_idx"),
    ({"pairs": ([32], [1])}, waymark.InvalidArgumentError, "32"),
    ({"pairs": ([1], [4])}, waymark.InvalidArgumentError, "local_position[0]"),
    ({"pairs": ([1], [0]), "block_tokens": 3}, waymark.InvalidArgumentError, "divisor"),
    ({"pairs": ([1], [0]), "block_tokens": "4"}, TypeError, "block_tokens"),
    ({"pairs": ([1], [0]), "asked": [1]}, TypeError, "asked must be an array"),
    ({"pairs": ([1], [0]), "asked": np.ones(2, bool)}, waymark.InvalidArgumentError, "got 2 of 1"),
    ({"slots": [1], "asked": np.ones(1, bool)}, waymark.InvalidArgumentError, "NOT_ASKED"),
]  # fmt: skip


@pytest.mark.parametrize("rows, kind, text", WRONG_ROWS)
def test_wrong_rows_begin_nothing(
    rig: Rig, rows: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        rig.session.begin_step(1, 1, **rows)
    assert text in str(caught.value), str(caught.value)
    assert rig.store.last_step == 0


def test_the_events_of_the_store_are_those_of_a_writer(make_rig: Callable[..., Rig]) -> None:
    """One event too many in block 32 is refused, so each method has reported what it should."""
    rig = make_rig(landing="caller")
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("bind", ([1, 2], [b"a", None])), ("retain", (1,)), ("release", ([1],)),
        ("copy", (1, 3, 2)), ("move", ([1, 2], [2, 1])), ("truncate", ([1, 2], 1, 1)),
        ("seal", (3, b"k")), ("seal", (2, b"k", 1)), ("reset", ()),
    ]  # fmt: skip
    rig.write([4])
    events = Events()
    for name, args in calls:
        before = len(events)
        getattr(rig.store, name)(*args)
        getattr(events, name)(*args)
        rig.store.report(events.array[before:])
    rig.store.wait_idle(10)
    assert rig.store.stats().events == 2 * len(events)
    with pytest.raises(waymark.InvalidArgumentError) as error:
        rig.store.bind([1, 32])
    assert (error.value.rule, error.value.index, error.value.value) == (4, 1, 32)
    rig.store.wait_idle(10)
    assert rig.store.stats().events == 2 * len(events)


def test_a_seal_without_a_step_is_of_the_step_that_is_begun_next(rig: Rig) -> None:
    rig.store.bind(1)
    rig.store.seal(1, b"key")
    ids = rig.write(range(4, 8))
    rig.write(range(4, 8), ids=ids)
    rig.store.wait_idle(10)
    assert rig.store.stats().rows_ignored == 4
    rig.store.bind(2, b"key")
    assert reasons_and_ids(rig, [2], 4) == ids[0].tolist()


def test_a_key_is_looked_up_under_the_version_of_the_schedule(rig: Rig) -> None:
    rig.store.bind(1)
    rig.store.seal(1, b"key")
    ids = rig.write(range(4, 8), version=1)
    rig.store.schedule(2, 2)
    rig.store.bind(2, b"key")
    assert reasons_and_ids(rig, [2], 4) == [Reason.EXTERNAL_KV] * 4
    rig.store.schedule(3, 1)
    rig.store.bind(3, b"key")
    assert reasons_and_ids(rig, [3], 4) == ids[0].tolist()
    with pytest.raises(waymark.FailedPreconditionError) as error:
        rig.session.begin_step(2, 1)
    assert (error.value.rule, error.value.value) == (15, 3)
    with pytest.raises(waymark.InvalidArgumentError):
        rig.store.schedule(2, 1)
    assert rig.session.begin_step(3, 1)


def test_a_second_thread_is_refused(rig: Rig) -> None:
    """While the first one is in a self-test."""
    entered, done = threading.Event(), threading.Event()

    def forward(view: waymark.View, rows: int) -> None:
        entered.set()
        assert done.wait(20)

    first = threading.Thread(target=lambda: rig.session.self_test(1, forward))
    first.start()
    assert entered.wait(20)
    calls: list[Callable[[], Any]] = [
        lambda: rig.store.bind(1), lambda: rig.store.schedule(5, 1), lambda: rig.store.reset(),
        lambda: rig.store.report(b""), lambda: rig.store.report_message(b""),
        lambda: rig.session.begin_step(5, 1), lambda: rig.store.snapshot([0], 0, 1),
        lambda: rig.store.covered_prefix([0], 1),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(waymark.FailedPreconditionError, match="one thread at a time"):
            call()
    done.set()
    first.join(20)
    assert not first.is_alive()
    rig.store.bind(1)


def test_a_scheduler_in_another_process(rig: Rig) -> None:
    writer = waymark.ScheduleWriter(32, 4)
    writer.begin(1, 1)
    writer.bind([1, 2])
    writer.seal(1, b"key")
    rig.store.report_message(writer.finish())
    ids = rig.write(range(4, 12))
    writer.begin(2, 1)
    writer.snapshot(7, [1, 2], 0, 8)
    writer.snapshot(8, [1], 0, 4)
    writer.forget(8)
    writer.release([1, 2])
    writer.bind([2, 5], [None, b"key"])
    message = writer.finish()
    for _ in range(2):  # the second time it is ignored
        rig.store.report_message(message)
    with rig.store.take_tagged(7) as snapshot:
        snapshot.wait(10)
        assert (snapshot.first, snapshot.last) == (0, 8)
        assert (snapshot.read(layout="LTK") == ids).all()
    for tag in (7, 8, 9):
        with pytest.raises(waymark.NotFoundError, match=str(tag)):
            rig.store.take_tagged(tag)
    assert reasons_and_ids(rig, [5, 2], 8) == ids[0, :4].tolist() + [Reason.NEVER_WRITTEN] * 4
    # A message that is missing: events are unknown, so all rows are gone.
    writer.begin(3, 1)
    writer.finish()
    writer.begin(3, 1)
    writer.snapshot(9, [5], 0, 4)
    rig.store.report_message(writer.finish())
    rig.store.forget_tag(9)
    rig.store.forget_tag(9)
    assert reasons_and_ids(rig, [5], 4) == [Reason.CAPACITY] * 4


def test_nothing_of_a_refused_message_is_applied(rig: Rig) -> None:
    """Pins a bug: its events were applied and its snapshot was taken."""
    writer = waymark.ScheduleWriter(32, 4)
    writer.begin(1, 1)
    writer.bind([1, 2])
    rig.store.report_message(writer.finish())
    rig.write(range(4, 12))
    rig.store.wait_idle(10)
    before = rig.store.stats()
    writer.begin(1, 1)  # late: step 1 has begun
    writer.bind(1)
    writer.snapshot(7, [1, 2], 0, 8)
    with pytest.raises(waymark.InvalidArgumentError, match="all blocks lose their rows"):
        rig.store.report_message(writer.finish())
    rig.store.wait_idle(10)
    after = rig.store.stats()
    assert (after.events, after.snapshots_taken) == (before.events, before.snapshots_taken)
    assert after.log_losses == before.log_losses + 1
    with pytest.raises(waymark.NotFoundError):
        rig.store.take_tagged(7)
    assert reasons_and_ids(rig, [1, 2], 8) == [Reason.CAPACITY] * 8


def test_a_scheduler_that_starts_again_may_use_the_tags_of_its_predecessor(rig: Rig) -> None:
    """Pins a bug: what was fetched under the tag was the former scheduler's snapshot, whose rows
    are another request's."""
    for block in (1, 2):
        writer = waymark.ScheduleWriter(32, 4)
        writer.begin(rig.step + 1, 1)
        writer.bind(block)
        rig.store.report_message(writer.finish())
        rig.write(range(4 * block, 4 * block + 4), ids=np.full((3, 4, 2), [0, block], np.int16))
        writer.begin(0, 0)
        writer.snapshot(1, [block], 0, 4)
        rig.store.report_message(writer.finish())
    with rig.store.take_tagged(1) as snapshot:
        snapshot.wait(10)
        assert snapshot.rows().ids[:, 0].tolist() == [[0, 2]] * 4
    assert rig.store.stats().snapshots_given_up == 1


def test_rules_of_schedule_writers() -> None:
    with pytest.raises(waymark.InvalidArgumentError, match="num_blocks"):
        waymark.ScheduleWriter(0)
    writer = waymark.ScheduleWriter(8, 4, max_bytes=4096, max_snapshots=1)
    for call in (writer.finish, writer.reset, lambda: writer.bind(1), lambda: writer.forget(1)):
        with pytest.raises(waymark.FailedPreconditionError):
            call()
    writer.begin(5, 1)
    with pytest.raises(waymark.FailedPreconditionError):
        writer.begin(5, 1)
    for wrong in (lambda: writer.bind(8), lambda: writer.seal(1, b"k", 6),
                  lambda: writer.copy(1, 2, 5), lambda: writer.snapshot(1, [8], 0, 1),
                  lambda: writer.snapshot(1, [1], 0, 5)):  # fmt: skip
        with pytest.raises(waymark.InvalidArgumentError):
            wrong()
    writer.snapshot(1, [1], 0, 4)
    with pytest.raises(waymark.ResourceExhaustedError):
        writer.snapshot(2, [1], 0, 4)
    with pytest.raises(waymark.ResourceExhaustedError):
        writer.bind([1] * 4096)
    data = writer.finish()
    rig = Rig(num_blocks=8)
    for cut in range(0, len(data), 7):
        with pytest.raises(waymark.InvalidArgumentError):
            rig.store.report_message(data[:cut])
    with pytest.raises(waymark.InvalidArgumentError):
        writer.begin(4, 1)
    with pytest.raises(TypeError, match="message"):
        rig.store.report_message(object())


def test_a_full_log_costs_rows_and_raises_nothing() -> None:
    rig = Rig(landing="caller", num_blocks=8, log_bytes=1 << 16)
    rig.write([0, 1, 2, 3], [0], ids=np.full((3, 4, 2), [1, 2], np.int16))
    assert reasons_and_ids(rig, [0], 4) == [[1, 2]] * 4
    rig.store.retain(np.zeros(100_000, np.int32))  # more than the log and its overflow hold
    assert reasons_and_ids(rig, [0], 4) == [Reason.CAPACITY] * 4
    assert rig.store.stats().log_losses == 1
    rig.write([0, 1, 2, 3], [0], ids=np.full((3, 4, 2), [3, 4], np.int16))
    assert reasons_and_ids(rig, [0], 4) == [[3, 4]] * 4
    with rig.store.snapshot(np.zeros(400_000, np.int32), 0, 1_600_000) as snapshot:  # it raised
        assert snapshot.ready()
        runs = [(run.begin, run.end, run.reason) for run in snapshot.coverage()]
        assert runs == [(0, 1_600_000, Reason.CAPACITY)]
    assert (rig.store.stats().log_losses, rig.store.stats().snapshots_lost) == (1, 1)
    assert reasons_and_ids(rig, [0], 4) == [[3, 4]] * 4
