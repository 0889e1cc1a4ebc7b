"""A capture's store: options, what it counts and tells, one engine's thread, its end."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig, logged, until
from waymark import Reason

WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"top_k": 0}, "top_k"),
    ({"landing_cpus": [-1]}, "landing_cpus: must be CPUs that this process may run on, got -1"),
    ({"recorder": waymark.RecorderOptions(cpus=[1 << 20])}, "cpus: must be CPUs that this process"),
    ({"page_tokens": 0}, "page_tokens: an integer in [1, 2147483647], got 0"),
    ({"block_tokens": 0}, "block_tokens: an integer in [1, 2147483647], got 0"),
    ({"layer_ids": [1, 2]}, "layer_ids"),
    ({"max_steps_in_flight": 0}, "max_steps_in_flight"),
    ({"num_pages": -1}, "num_pages: an integer in [0, 2^32), got -1"),
    ({"num_pages": 1.5}, "num_pages: an integer in [0, 2^32), got 1.5"),
    ({"key_seed": 2**64}, "key_seed: an integer in [0, 2^64), got 18446744073709551616"),
    ({"audit": 0.5}, "audit: true or false, got 0.5"),
    ({"num_pages": True}, "num_pages: an integer in [0, 2^32), got True"),
    ({"ids_layout": "KLN"}, "ids_layout: one of NLK, LNK; got 'KLN'"),
    ({"spare_pages": -1}, "spare_pages"),
    ({"teardown_timeout": -1.0}, "teardown_timeout: seconds, at least 0, or none, got -1.0"),
    ({"ids_timeout": float("nan")}, "ids_timeout: seconds, at least 0, or none, got nan"),
    ({"audit_threshold": 1.5}, "audit_threshold: a number in (0, 1], or none, got 1.5"),
    ({"audit_threshold": 0.125}, "audit_threshold: must be above top_k / num_experts = 0.125"),
    ({"landing": 1}, "got landing"),
    ({"recorder": waymark.RecorderOptions(ring_bytes=100)}, "ring_bytes"),
]


@pytest.mark.parametrize("options, text", WRONG_OPTIONS)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {
        "num_layers": 3, "top_k": 2, "num_experts": 16, "num_blocks": 8, **options
    }  # fmt: skip
    with pytest.raises((waymark.InvalidArgumentError, waymark.OutOfRangeError)) as caught:
        waymark.Capture(**given)
    assert text in str(caught.value)


def test_options_of_every_type() -> None:
    rig = Rig(
        spare_pages=None, ids_timeout=None, teardown_timeout=np.float64(0.5), audit=np.bool_(False),
        num_pages=np.int64(7), overdue_after=1, audit_threshold=None,
    )  # fmt: skip
    rig.write([0], [0])
    assert rig.reasons([0], 1) == [Reason.NONE]
    assert (rig.store.stats().pages, rig.store.stats().spare_pages) == (7, 7)


def test_shape() -> None:
    store = waymark.Capture(
        num_layers=3, top_k=2, num_experts=300, num_blocks=8, page_tokens=4, block_tokens=8,
        layer_ids=[1, 3, 9],
    )  # fmt: skip
    assert store.shape == (3, 2, 300, 4, 8, 8, (1, 3, 9))
    assert store.shape.id_dtype == np.uint16
    narrow = waymark.Capture(num_layers=3, top_k=2, num_experts=256, num_blocks=8)
    assert narrow.shape.id_dtype == np.uint8
    with pytest.raises(TypeError):
        waymark.Capture(3, 2, 256, 8)  # type: ignore[misc]
    with pytest.raises(TypeError, match="audit: a number, a bool or None, got 'no'"):
        Rig(audit="no")


def test_counters(rig: Rig) -> None:
    rig.write([0, 1, -1], [0])
    rig.lose([2])
    rig.begin([3]).not_run()
    rig.store.wait_idle(10)
    stats = rig.store.stats()
    assert (stats.steps_begun, stats.steps_cancelled) == (3, 1)
    assert (stats.rows_landed, stats.rows_padding, stats.events) == (2, 1, 1)
    assert stats.missing == {Reason.NOT_CAPTURED: 1}
    assert stats.rows_missing[Reason.NOT_CAPTURED] == sum(stats.rows_missing) == 1
    assert stats.as_dict()["steps_begun"] == 3
    assert {name for name in stats.as_dict() if not hasattr(stats, name)} == set()
    assert stats.audit_agreement == 1.0 and stats.landing_lag_p99_ns >= stats.landing_lag_p50_ns > 0
    assert "steps_begun" in str(stats) and "3" in str(stats)
    assert rig.store.last_step == 3


def test_what_a_layer_did_not_write_is_told() -> None:
    rig = Rig(layer_names=["model.0", "model.1", "model.2"], layer_ids=[2, 4, 6])
    ids = rig.ids(2)
    ids[:, 2] = -1
    ids[1, 0] = 16
    rig.write([0, 1], [0], ids=ids)
    assert rig.reasons([0], 2) == [Reason.NOT_CAPTURED, Reason.INVALID_ID]
    assert rig.store.layer_stats() == [
        (2, "model.0", 0, 1), (4, "model.1", 0, 0), (6, "model.2", 2, 0),
    ]  # fmt: skip
    logged("model.2")
    assert rig.store.gather_stats() == (0, 0, 0)


def test_covered_prefix(rig: Rig) -> None:
    rig.write(waymark.slots_of([2, 5], 4, 0, 6), [2, 5])
    rig.store.wait_idle(10)
    for blocks in ([2, 5], np.array([2, 5]), np.array([2, 5], np.int32)):
        assert rig.store.covered_prefix(blocks, 8) == 6
    assert rig.store.covered_prefix([2, 5], 3) == 3
    assert rig.store.covered_prefix([5, 2], 8) == 2
    assert rig.store.covered_prefix([2, 5], 99) == 6
    with pytest.raises(waymark.InvalidArgumentError, match="rows: at least 0, got -1"):
        rig.store.covered_prefix([2, 5], -1)


def test_a_missed_bind_is_found_and_logged() -> None:
    rig = Rig(num_experts=128, top_k=4)
    slots = waymark.slots_of([3], 4, 0, 4)
    rig.write(slots, [3])
    rig.store.seal(3, b"key", 1)
    rig.write(slots)  # other rows into a sealed block that was never bound again
    rig.store.wait_idle(10)
    (finding,) = rig.store.take_findings()
    assert finding.block == 3 and finding.voided and finding.rows > 0
    assert finding.agreement < 0.5 and "3" in finding.text
    assert rig.store.take_findings() == []
    assert logged("block 3").levelno == logging.WARNING


def test_rows_are_fetched_while_an_earlier_step_waits(rig: Rig) -> None:
    first = rig.begin([0], [0])
    ids = rig.write([1])
    until(lambda: rig.store.stats().steps_ahead)
    assert rig.store.stats().steps_landed == 0
    first.not_run()
    rows = rig.read([0], 2)
    assert rows.valid.tolist() == [False, True] and (rows.ids[1] == ids[0]).all()
    assert rig.store.stats().steps_ahead == 1


def test_waiting_takes_a_timeout(rig: Rig) -> None:
    step = rig.begin([0], [0])
    taken = rig.store.take([0], 1)
    with pytest.raises(waymark.DeadlineExceededError, match="steps have not ended after 0.02 s"):
        rig.store.wait_idle(0.02)
    with pytest.raises(TimeoutError):
        rig.store.wait_idle(0)
    for wait in (rig.store.wait_idle, taken.result):
        for wrong in (-1, float("nan")):
            with pytest.raises(waymark.InvalidArgumentError, match="timeout"):
                wait(wrong)
        with pytest.raises(TypeError, match="timeout"):
            wait("soon")  # type: ignore[operator]
    step.ids = rig.ids(1)
    rig.store.wait_idle()


def test_waiting_can_be_interrupted(rig: Rig) -> None:
    import signal

    step = rig.begin([0], [0])
    taken = rig.store.take([0], 1)

    def alarm(*_: Any) -> None:
        raise InterruptedError("alarm")

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        for wait in (taken.result, rig.store.wait_idle):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(InterruptedError, match="alarm"):
                wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    step.lost()


def test_two_threads_are_not_the_engines_thread(rig: Rig) -> None:
    """While the first one is in wait_idle."""
    step = rig.begin([0], [0])
    started = threading.Event()

    def wait() -> None:
        started.set()
        with pytest.raises(waymark.DeadlineExceededError):
            rig.store.wait_idle(0.5)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    refused = 0
    calls = [
        lambda: rig.store.bind(1), lambda: rig.store.schedule(5, 1), rig.store.reset,
        lambda: rig.store.report(b""), rig.store.lose_rows,
        lambda: rig.store.step(5, 1, []), lambda: rig.store.take([0], 1), step.lost,
    ]  # fmt: skip
    while not refused:  # the thread may not be there yet
        try:
            rig.store.report(b"")
        except waymark.FailedPreconditionError:
            refused += 1
    for call in calls:
        with pytest.raises(waymark.FailedPreconditionError, match="engine's thread"):
            call()
    assert rig.store.covered_prefix([0], 1) == 0  # any thread
    thread.join()
    step.ids = rig.ids(1)
    rig.store.wait_idle(10)
    assert rig.store.covered_prefix([0], 1) == 1


def test_closing(rig: Rig) -> None:
    ids = rig.write([0, 1], [0])
    taken = rig.store.take([0], 2)
    step = rig.begin([2])
    shape = rig.store.shape
    with rig.store:
        assert rig.store.shape == shape
    assert rig.store.closed
    rig.store.close()
    calls = [
        rig.store.stats, rig.store.reset, lambda: rig.store.shape, lambda: rig.store.last_step,
        lambda: rig.store.step(9, 1, []), lambda: rig.store.take([0], 1), rig.store.layer_stats,
        rig.store.lose_rows, rig.store.check, rig.store.wait_idle,
        rig.store.take_findings, lambda: rig.store.covered_prefix([0], 1),
        lambda: rig.store.buffer(np.zeros(1, np.int64)), rig.store.gather_stats,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(waymark.FailedPreconditionError, match="is closed"):
            call()
    # The last release lands what was set; what was taken stays readable.
    assert (taken.result(10).ids == ids).all()
    for end in (step.lost, step.not_run, lambda: setattr(step, "ids", ids)):
        with pytest.raises(waymark.FailedPreconditionError, match="is closed"):
            end()
    with step:  # hides no exception of its forward
        pass


def test_what_was_told_and_taken_does_not_keep_the_python_object(rig: Rig) -> None:
    store = weakref.ref(rig.store)
    rig.store.bind([0])
    before = rig.store.take([0], 1)
    step = rig.begin([0])
    after = rig.store.take([0], 1)
    ids = rig.ids(1)
    del rig.store
    gc.collect()
    assert store() is None
    step.ids = ids
    assert not before.result(10).valid.any()
    assert (after.result(10).ids == ids).all()


def test_recorder(tmp_path: Path) -> None:
    rig = Rig(recorder=waymark.RecorderOptions(ring_bytes=1 << 20, ids=True))
    rig.write([0, 1], [0])
    rig.store.wait_idle(10)
    rig.store.check_recorder()
    rig.store.dump_flight(tmp_path / "flight")
    assert (tmp_path / "flight").stat().st_size > 100
    with pytest.raises(waymark.UnknownError):
        rig.store.dump_flight(tmp_path / "none" / "flight")
    for call in (Rig().store.check_recorder, lambda: Rig().store.dump_flight("nowhere")):
        with pytest.raises(waymark.FailedPreconditionError, match="without a recorder"):
            call()



def test_check_of_a_store_that_has_not_failed() -> None:
    store = Rig().store
    store.check()
    assert store.stats().exceptions == 0


def test_rows_by_key_are_of_the_weights_of_the_kv(rig: Rig) -> None:
    """A key vouches that the KV is of the step's version. A tier that outlives a weight change has
    the version in its keys: its older KV then gets no rows of the new weights."""
    for block, version in ((0, 1), (1, 2)):
        rig.store.bind(block)
        rig.store.seal(block, b"prompt" + bytes([version]))
        rig.write(range(4 * block, 4 * block + 4), version=version)
    rig.store.bind([2, 3], [b"prompt\x01", b"prompt\x02"])
    rig.write([], version=2)
    rig.store.bind(4, b"prompt\x02")
    rig.write([], version=3)
    runs = [(run.begin, run.reason, run.version) for run in rig.read([2, 3, 4], 12).coverage()]
    external = Reason.EXTERNAL_KV
    assert runs == [(0, external, 0), (4, Reason.NONE, 2), (8, external, 0)]
