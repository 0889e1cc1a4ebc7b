"""What an adversary who knew the public pages found, by topic. Each test names the defect that it was.

Two more have tests where their topic is: a snapshot between a report and a begin
(test_log.py, TestSnapshotBetweenReportAndBegin) and documents whose chunks were lost, repeated or
swapped (test_documents.py, test_chunks_in_wrong_places_are_missing)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig
from waymark import Reason

OK, CAPACITY = Reason.NONE, Reason.CAPACITY
NEVER, NOT_CAPTURED = Reason.NEVER_WRITTEN, Reason.NOT_CAPTURED

MakeRig = Callable[..., Rig]


def reasons(rig: Rig, blocks: list[int], rows: int) -> list[Reason]:
    """Of each row, NONE for valid ones."""
    with rig.store.snapshot(blocks, 0, rows) as snapshot:
        rig.store.wait_idle(10)
        snapshot.wait(10)
        return [Reason(int(reason)) for reason in snapshot.rows().reasons]


class TestReasons:
    """They were *never written* although a step had written the rows."""

    def test_rows_that_did_not_ask(self, rig: Rig) -> None:
        """Also in a block that no row of a request that asks has written."""
        slots = waymark.NOT_ASKED(waymark.slots_of([1, 2], 4, 0, 6))
        rig.write(slots, [1, 2])
        rig.write([2 * 4 + 2])
        assert reasons(rig, [1, 2], 8) == [NOT_CAPTURED] * 6 + [OK, NEVER]
        assert rig.store.stats().rows_not_asked == 6

    def test_a_reset_under_a_running_request(self, rig: Rig) -> None:
        rig.store.bind([1, 2])
        rig.store.seal(1, b"key")
        rig.write(waymark.slots_of([1, 2], 4, 0, 6))
        rig.store.reset()
        rig.write([2 * 4 + 2])
        assert reasons(rig, [1, 2], 7) == [CAPACITY] * 6 + [OK]

    @pytest.mark.parametrize("landed", [False, True])
    def test_a_dropped_device_step(self, make_rig: MakeRig, landed: bool) -> None:
        """It may have overwritten the KV of its whole range, of an earlier step's rows too."""
        rig = make_rig(device_slots=True)
        first = rig.begin(range(4), [0, 1], device_slots=True)
        rig.session.view(first).array[:, :4] = rig.ids(4)
        if landed:
            rig.session.submit_device_slots(first, np.arange(4))
            rig.store.wait_idle(10)
        second = rig.begin(range(8), device_slots=True)
        rig.session.drop(second)
        if not landed:
            rig.session.submit_device_slots(first, np.arange(4))
        assert reasons(rig, [0, 1], 8) == [CAPACITY] * 8

    def test_a_device_step_that_found_no_buffer(self, make_rig: MakeRig) -> None:
        rig = make_rig(device_slots=True, num_buffers=1)
        first = rig.begin(range(4), [0, 1], device_slots=True)
        assert not rig.session.begin_step(first + 1, 1, range(8), device_slots=True)
        rig.session.view(first).array[:, :4] = rig.ids(4)
        rig.session.submit_device_slots(first, np.arange(4))
        assert reasons(rig, [0, 1], 8) == [CAPACITY] * 8

    @pytest.mark.parametrize("landing", ["thread", "caller"])
    def test_a_cancelled_step_took_nothing(self, make_rig: MakeRig, landing: str) -> None:
        """A row that was there became missing (capacity)."""
        rig = make_rig(landing=landing)
        not_asked = waymark.NOT_ASKED(np.array([2]))
        ids = rig.write([0, 1], [0])
        rig.session.drop(rig.begin([1]))
        rig.write(not_asked)
        first, second = rig.begin(range(5), [1]), rig.begin([4])
        with rig.store.snapshot([0, 1], 0, 5) as snapshot:
            rig.session.cancel(second)
            rig.session.cancel(first)
            rig.store.wait_idle(10)
            snapshot.wait(10)
            rows = snapshot.rows()
        assert rows.reasons.tolist() == [OK, CAPACITY, NOT_CAPTURED, NEVER, NEVER]
        assert (rows.ids[0] == ids[:, 0]).all()

    def test_of_two_rows_of_a_slot_the_first_that_asked_counts(self, rig: Rig) -> None:
        slots = np.array([0, 0, 0, 1, 1, 1])
        slots[[0, 3]] = waymark.NOT_ASKED(slots[[0, 3]])
        ids = rig.write(np.concatenate([slots, [2, 2]]), [0])
        with rig.store.snapshot([0], 0, 3) as snapshot:
            snapshot.wait(10)
            rows = snapshot.rows()
        assert rows.valid.all() and (rows.ids == ids[:, [1, 4, 6]].transpose(1, 0, 2)).all()

    def test_a_cancelled_device_step_took_nothing(self, make_rig: MakeRig) -> None:
        rig = make_rig(device_slots=True)
        first = rig.begin(range(4), [0, 1], device_slots=True)
        rig.session.view(first).array[:, :4] = rig.ids(4)
        rig.session.cancel(rig.begin(range(8), device_slots=True))
        rig.session.submit_device_slots(first, np.arange(4))
        assert reasons(rig, [0, 1], 8) == [OK] * 4 + [NEVER] * 4


class TestForksByCopy:
    """A block that a copy gave its rows had no user, so that its page was evicted while its request
    ran, and its release went below zero."""

    @pytest.mark.parametrize("bind", [False, True])
    def test_the_copy_has_a_user(self, make_rig: MakeRig, bind: bool) -> None:
        rig = make_rig(num_blocks=8, num_pages=3, spare_pages=0)
        rig.write([0, 1, 4], [0, 1])
        rig.store.release(1)
        if bind:
            rig.store.bind(1)
        rig.store.copy(0, 1, 2)
        rig.write([6])
        assert reasons(rig, [1], 3) == [OK] * 3
        rig.write([8, 12], [2, 3])  # one page more than there are
        assert reasons(rig, [1], 3) == [OK] * 3
        rig.store.release(1)
        rig.write([])
        rig.store.wait_idle(10)
        assert rig.store.stats().releases_below_zero == 0


class TestStepNumbers:
    """Numbers from 2^63 on, and jumps to them, gave rows of steps that were never begun, and drafts
    that had been rejected."""

    @pytest.mark.parametrize("first", [1, 2**55, 2**56 - 2**28])
    def test_every_row_has_the_step_that_wrote_it(self, make_rig: MakeRig, first: int) -> None:
        for jump in (1, 10, 2**20, 2**27):
            rig = make_rig()
            rig.step = first - 1
            rig.write([0], [0, 1])
            rig.store.wait_idle(10)
            rig.step = first + jump - 1
            rig.write([4])
            rig.store.wait_idle(10)
            with rig.store.snapshot([0, 1], 0, 5) as snapshot:
                snapshot.wait(10)
                infos = snapshot.rows().infos
            assert infos["reason"][[0, 4]].tolist() == [OK, OK]
            assert infos["step"][[0, 4]].tolist() == [first, first + jump]

    @pytest.mark.parametrize("first", [2**56, 2**56 + 2**55, 2**63 - 5, 2**63, 2**63 + 10])
    def test_large_numbers_are_refused(self, rig: Rig, first: int) -> None:
        with pytest.raises(waymark.InvalidArgumentError, match=f"below 2\\^56; it is {first}"):
            rig.session.begin_step(first, 1, [0])

    @pytest.mark.parametrize("first, jump", [(1, 2**27 + 1), (1, 2**55), (2**55, 2**55 - 1)])
    def test_a_jump_is_refused_with_its_rule(self, rig: Rig, first: int, jump: int) -> None:
        rig.step = first - 1
        rig.write([0], [0, 1])
        with pytest.raises(waymark.InvalidArgumentError, match="2\\^27"):
            rig.session.begin_step(first + jump, 1, [4])
        assert reasons(rig, [0, 1], 5) == [OK] + [NEVER] * 4

    @pytest.mark.parametrize("first", [1, 2**55, 2**56 - 2])
    def test_a_rejected_draft_that_lands_late(self, make_rig: MakeRig, first: int) -> None:
        rig = make_rig(landing="caller")
        rig.step = first - 1
        draft = rig.begin([0], [0])
        rig.store.truncate(0, 0, draft)
        kept = rig.begin([0])
        rig.session.view(draft).array[:, :1] = [7, 8]
        rig.session.view(kept).array[:, :1] = [1, 2]
        rig.session.submit(draft)
        rig.session.submit(kept)
        while rig.store.land_one():
            pass
        with rig.store.snapshot([0], 0, 1) as snapshot:
            snapshot.wait(10)
            rows = snapshot.rows()
        assert rows.valid.all() and rows.ids[0, 0].tolist() == [1, 2]


FORKED = """
import gc, os, sys, waymark

store = waymark.Store(num_layers=2, top_k=2, num_experts=16, num_blocks=8)
session = waymark.CaptureSession(store, max_rows=64)
source = waymark.MemorySource()
publisher = waymark.Publisher(source, store.shape)
fetcher = waymark.Fetcher(source)
store.bind([0])
session.begin_step(1, 1, [0])
session.submit(1)
handle = publisher.publish(store.snapshot([0], 0, 1)).wait(10)
child = os.fork()
if child == 0:
    for call in (lambda: publisher.publish(fetcher.fetch(handle)), lambda: publisher.stats(),
                 lambda: publisher.forget("a")):
        try:
            call()
        except waymark.FailedPreconditionError:
            continue
        os._exit(1)
    if sys.argv[1] == "references":
        del publisher, fetcher, session, store, call
        gc.collect()
        os._exit(0)
    sys.exit(0)  # the interpreter is finalised
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert len(fetcher.fetch(handle)) == 1
"""


@pytest.mark.parametrize("end", ["exit", "references"])
def test_a_forked_child_ends(end: str) -> None:
    """The exit of a child of a process with a publisher hung for ever; steps that a child submitted
    never landed."""
    subprocess.run([sys.executable, "-c", FORKED, end], check=True, timeout=60)


def test_the_last_reference_of_a_publisher_waits_without_the_gil(rig: Rig) -> None:
    """It waits for the publication in progress, whose snapshot may never become readable."""
    step = rig.begin([4], [1])
    publisher = waymark.Publisher(waymark.MemorySource(), rig.store.shape, landing_timeout=None)
    publisher.publish(rig.store.snapshot([1], 0, 1))
    ended = threading.Event()

    def end() -> None:
        nonlocal publisher
        del publisher
        ended.set()

    thread = threading.Thread(target=end)
    thread.start()
    # Python runs on beside it: only this call lets the snapshot become readable.
    rig.session.submit(step)
    thread.join(60)
    assert ended.is_set()


def test_arguments_are_refused_by_name(rig: Rig) -> None:
    """Rows with ids that no expert has, or before the sequence, were taken."""
    infos = np.zeros(1, waymark.row_info_dtype)
    ids: Any = np.full((1, 3, 2), 16, np.uint8)
    with pytest.raises(waymark.InvalidArgumentError, match="ids: below num_experts"):
        waymark.Rows(rig.store.shape, 0, ids, infos)
    with pytest.raises(waymark.InvalidArgumentError, match="first: 0 to"):
        waymark.Rows(rig.store.shape, -1, ids % 16, infos)
