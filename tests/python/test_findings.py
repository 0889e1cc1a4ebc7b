"""What an adversary who knew the public pages found, by topic. Each test names its defect.

Two more have tests where their topic is: a take between a report and a step
(test_log.py, TestTakeBetweenReportAndStep) and documents whose chunks were lost, repeated or
swapped (test_documents.py, test_chunks_in_wrong_places_are_missing)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import waymark
from conftest import Rig
from waymark import Reason

OK, CAPACITY = Reason.NONE, Reason.CAPACITY
NEVER, NOT_CAPTURED = Reason.NEVER_WRITTEN, Reason.NOT_CAPTURED

MakeRig = Callable[..., Rig]


class TestReasons:
    """They were *never written* although a step had written the rows."""

    def test_rows_that_did_not_ask(self, rig: Rig) -> None:
        """Also in a block that no row of a request that asks has written."""
        slots = waymark.NOT_ASKED(waymark.slots_of([1, 2], 4, 0, 6))
        rig.write(slots, [1, 2])
        rig.write([2 * 4 + 2])
        assert rig.reasons([1, 2], 8) == [NOT_CAPTURED] * 6 + [OK, NEVER]
        assert rig.store.stats().rows_not_asked == 6

    def test_a_reset_under_a_running_request(self, rig: Rig) -> None:
        rig.store.bind([1, 2])
        rig.store.seal(1, b"key")
        rig.write(waymark.slots_of([1, 2], 4, 0, 6))
        rig.store.reset()
        rig.write([2 * 4 + 2])
        assert rig.reasons([1, 2], 7) == [CAPACITY] * 6 + [OK]

    def test_a_step_that_did_not_run_took_nothing(self, rig: Rig) -> None:
        """A row that was there became missing (capacity)."""
        ids = rig.write([0, 1], [0])
        rig.lose([1])
        rig.write(waymark.NOT_ASKED(np.array([2])))
        first, second = rig.begin(range(5), [1]), rig.begin([4])
        taken = rig.store.take([0, 1], 5)
        second.not_run()
        first.not_run()
        rows = taken.result(10)
        assert rows.reasons.tolist() == [OK, NOT_CAPTURED, NOT_CAPTURED, NEVER, NEVER]
        assert (rows.ids[0] == ids[0]).all()

    def test_of_two_rows_of_a_slot_the_first_that_asked_counts(self, rig: Rig) -> None:
        slots = np.array([0, 0, 0, 1, 1, 1])
        slots[[0, 3]] = waymark.NOT_ASKED(slots[[0, 3]])
        ids = rig.write(np.concatenate([slots, [2, 2]]), [0])
        rows = rig.read([0], 3)
        assert rows.valid.all() and (rows.ids == ids[[1, 4, 6]]).all()


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
        assert rig.reasons([1], 3) == [OK] * 3
        rig.write([8, 12], [2, 3])  # one page more than there are
        assert rig.reasons([1], 3) == [OK] * 3
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
            rig.write([0], [0, 1], number=first)
            rig.store.wait_idle(10)
            rig.write([4], number=first + jump)
            infos = rig.read([0, 1], 5).infos
            assert infos["reason"][[0, 4]].tolist() == [OK, OK]
            assert infos["step"][[0, 4]].tolist() == [first, first + jump]

    @pytest.mark.parametrize("first", [2**56, 2**56 + 2**55, 2**63 - 5, 2**63, 2**63 + 10])
    def test_large_numbers_are_refused(self, rig: Rig, first: int) -> None:
        with pytest.raises(waymark.InvalidArgumentError, match=f"below 2\\^56; .* it is {first}"):
            rig.store.step(first, 1, [0])

    @pytest.mark.parametrize("first, jump", [(1, 2**27 + 1), (1, 2**55), (2**55, 2**55 - 1)])
    def test_a_jump_is_refused_with_its_rule(self, rig: Rig, first: int, jump: int) -> None:
        rig.write([0], [0, 1], number=first)
        with pytest.raises(waymark.InvalidArgumentError, match="2\\^27"):
            rig.store.step(first + jump, 1, [4])
        assert rig.reasons([0, 1], 5) == [OK] + [NEVER] * 4

    @pytest.mark.parametrize("first", [1, 2**55, 2**56 - 2])
    def test_a_rejected_draft_that_lands_late(self, rig: Rig, first: int) -> None:
        draft = rig.begin([0], [0], number=first)
        rig.store.truncate(0, 0, draft.number)
        kept = rig.begin([0])
        taken = rig.store.take([0], 1)
        ids = rig.ids(2)
        draft.ids = ids[:1]
        kept.ids = ids[1:]
        rows = taken.result(10)
        assert rows.valid.all() and (rows.ids == ids[1:]).all()
