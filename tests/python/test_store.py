"""Stores: options, what they count and tell, one engine's thread, their end."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig

WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"num_layers": 0}, "num_layers"),
    ({"top_k": 0}, "top_k"),
    ({"top_k": 17}, "top_k"),
    ({"num_experts": 0}, "num_experts"),
    ({"num_experts": 70000}, "num_experts"),
    ({"num_blocks": 0}, "num_blocks"),
    ({"landing_cpus": [-1]}, "landing_cpus: must be CPUs that this process may run on, got -1"),
    ({"recorder": waymark.RecorderOptions(cpus=[1 << 20])}, "cpus: must be CPUs that this process"),
    ({"page_tokens": 0}, "page_tokens: an integer in [1, 2147483647], got 0"),
    ({"page_tokens": 5000}, "page_tokens"),
    ({"block_tokens": 0}, "block_tokens: an integer in [1, 2147483647], got 0"),
    ({"page_tokens": 16, "block_tokens": 24}, "block_tokens"),
    ({"layer_ids": [1, 2]}, "layer_ids"),
    ({"layer_ids": [3, 2, 1]}, "layer_ids"),
    ({"max_steps_in_flight": 0}, "max_steps_in_flight"),
    ({"max_step_rows": 0}, "max_step_rows"),
    ({"num_pages": -1}, "num_pages"),
    ({"spare_pages": -1}, "spare_pages"),
    ({"num_pages": 4, "spare_pages": 2**32 - 5}, "spare_pages"),
    ({"teardown_timeout": -1.0}, "teardown_timeout: seconds >= 0, got -1.0"),
    ({"overdue_after": -0.5}, "overdue_after: seconds >= 0, got -0.5"),
    ({"ids_timeout": -2.0}, "ids_timeout: seconds >= 0, got -2.0"),
    ({"ahead_bytes": -1}, "ahead_bytes"),
    ({"audit_threshold": 0.0}, "audit_threshold"),
    ({"audit_threshold": 1.5}, "audit_threshold"),
    ({"audit_threshold": 0.125}, "audit_threshold: must be above top_k / num_experts = 0.125"),
    ({"num_experts": 3, "audit_threshold": 0.5}, "audit_threshold: must be above"),
    ({"landing": "later"}, "landing: one of thread, caller; got 'later'"),
    ({"recorder": waymark.RecorderOptions(ring_bytes=0)}, "ring_bytes"),
    ({"recorder": waymark.RecorderOptions(ring_bytes=100)}, "ring_bytes"),
]


@pytest.mark.parametrize("options, text", WRONG_OPTIONS)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {
        "num_layers": 3, "top_k": 2, "num_experts": 16, "num_blocks": 8, **options
    }  # fmt: skip
    with pytest.raises((waymark.InvalidArgumentError, waymark.OutOfRangeError)) as caught:
        waymark.Store(**given)
    assert text in str(caught.value)


def test_shape() -> None:
    store = waymark.Store(
        num_layers=3, top_k=2, num_experts=300, num_blocks=8, page_tokens=4, block_tokens=8,
        layer_ids=[1, 3, 9],
    )  # fmt: skip
    assert store.shape == (3, 2, 300, 4, 8, 8, (1, 3, 9))
    assert store.shape.id_dtype == np.uint16 and store.shape.row_bytes == 12
    narrow = waymark.Store(num_layers=3, top_k=2, num_experts=256, num_blocks=8)
    assert narrow.shape.id_dtype == np.uint8
    with pytest.raises(TypeError):
        waymark.Store(3, 2, 256, 8)  # type: ignore[misc]


def test_counters(rig: Rig) -> None:
    rig.write([0, 1, -1], [0])
    rig.session.drop(rig.begin([2]))
    rig.session.cancel(rig.begin([3]))
    rig.store.wait_idle(10)
    stats = rig.store.stats()
    assert (stats.steps_begun, stats.steps_dropped, stats.steps_cancelled) == (3, 1, 1)
    assert (stats.rows_landed, stats.rows_padding, stats.events) == (2, 1, 1)
    assert stats.missing[waymark.Reason.CAPACITY] == 1
    assert stats.as_dict()["steps_begun"] == 3
    assert stats.audit_agreement == 1.0
    assert "3" in rig.store.stats_text()
    assert rig.store.last_step == 3


def test_covered_prefix(rig: Rig) -> None:
    rig.write(waymark.slots_of([2, 5], 4, 0, 6), [2, 5])
    rig.store.wait_idle(10)
    for blocks in ([2, 5], np.array([2, 5]), np.array([2, 5], np.int32)):
        assert rig.store.covered_prefix(blocks, 8) == 6
    assert rig.store.covered_prefix([2, 5], 3) == 3
    assert rig.store.covered_prefix([5, 2], 8) == 2
    assert rig.store.covered_prefix([2, 5], 99) == 6
    with pytest.raises(waymark.WaymarkError, match="rows: at least 0, got -1"):
        rig.store.covered_prefix([2, 5], -1)


def test_a_missed_bind_is_found_and_logged(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(num_experts=128, top_k=4)
    slots = waymark.slots_of([3], 4, 0, 4)
    rig.write(slots, [3])
    rig.store.seal(3, b"key", 1)
    rig.write(slots)  # other rows into a sealed block that was never bound again
    rig.store.wait_idle(10)
    (finding,) = rig.store.take_findings()
    assert finding.block == 3 and finding.voided and finding.rows > 0
    assert finding.agreement < 0.5 and "3" in finding.text
    assert rig.store.take_findings() == []
    log = rig.log()
    assert all(line.level in (logging.INFO, logging.WARNING, logging.ERROR) for line in log)
    assert all(isinstance(line.text, str) and line.text for line in log)
    assert rig.store.take_log() == [] and rig.store.log_lost == 0


def test_the_caller_lands(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(landing="caller")
    assert rig.store.land_one() is False
    rig.write([0], [0])
    rig.write([1])
    snapshot = rig.store.snapshot([0], 0, 2)
    assert not snapshot.ready()
    with pytest.raises(waymark.DeadlineExceededError):
        snapshot.wait(0.01)
    with pytest.raises(waymark.FailedPreconditionError):
        snapshot.read()
    with pytest.raises(waymark.NotFoundError, match="got 2"):
        rig.store.land(2)  # not before the first one
    rig.store.land(1)
    with pytest.raises(waymark.NotFoundError, match="got 1"):
        rig.store.land(1)
    assert not snapshot.ready()
    assert rig.store.land_one() is True
    snapshot.wait(0)
    assert snapshot.ready()
    with pytest.raises(waymark.FailedPreconditionError, match="caller"):
        Rig().store.land_one()


def test_rows_are_fetched_while_an_earlier_step_waits(rig: Rig) -> None:
    first = rig.begin([0], [0])
    ids = rig.write([1])
    deadline = time.monotonic() + 10
    while rig.store.stats().steps_ahead == 0:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert rig.store.stats().steps_landed == 0
    rig.session.cancel(first)
    with rig.store.snapshot([0], 0, 2) as snapshot:
        snapshot.wait(10)
        rows = snapshot.rows()
    assert rows.valid.tolist() == [False, True]
    assert (rows.ids[1] == ids[:, 0]).all()
    assert rig.store.stats().steps_ahead == 1


def test_waiting_takes_a_timeout(rig: Rig) -> None:
    rig.begin([0], [0])
    with pytest.raises(waymark.DeadlineExceededError, match="steps have not ended after 0.02 s"):
        rig.store.wait_idle(0.02)
    with pytest.raises(TimeoutError):
        rig.store.wait_idle(0)
    for wrong in (-1, float("nan")):
        with pytest.raises(waymark.InvalidArgumentError, match="timeout"):
            rig.store.wait_idle(wrong)
    with pytest.raises(TypeError, match="timeout"):
        rig.store.wait_idle("soon")  # type: ignore[arg-type]
    rig.session.submit(1)
    rig.store.wait_idle()


def test_two_threads_are_not_the_engines_thread(rig: Rig) -> None:
    rig.begin([0], [0])
    started = threading.Event()

    def wait() -> None:
        started.set()
        with pytest.raises(waymark.DeadlineExceededError):
            rig.store.wait_idle(0.3)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    refused = 0
    while thread.is_alive():
        try:
            rig.store.covered_prefix([0], 1)
        except waymark.FailedPreconditionError as error:
            assert "engine's thread" in str(error)
            refused += 1
    thread.join()
    assert refused > 0
    assert rig.store.covered_prefix([0], 1) == 0
    rig.session.view(1).array[:, :1] = rig.ids(1)
    rig.session.submit(1)
    rig.store.wait_idle(10)
    assert rig.store.covered_prefix([0], 1) == 1


def test_closing(rig: Rig) -> None:
    ids = rig.write([0, 1], [0])
    snapshot = rig.store.snapshot([0], 0, 2)
    rig.session.close()
    assert rig.session.closed
    with rig.store:
        pass
    assert rig.store.closed
    rig.store.close()
    for call in (rig.store.stats, rig.store.stats_text, rig.store.reset, lambda: rig.store.shape, rig.session.stats,
                 lambda: rig.session.begin_step(9, 1), lambda: rig.store.snapshot([0], 0, 1),
                 lambda: waymark.CaptureSession(rig.store, 4)):  # fmt: skip
        with pytest.raises(waymark.FailedPreconditionError, match="is closed"):
            call()
    # The last release lands what was submitted; snapshots stay readable.
    assert (snapshot.read(layout="LTK") == ids).all()


def test_a_session_keeps_its_store(rig: Rig) -> None:
    ids = rig.ids(1)
    store = weakref.ref(rig.store)
    snapshot = rig.store.snapshot([0], 0, 1)
    session = rig.session
    rig.store.bind([0])
    del rig.store
    gc.collect()
    assert store() is None
    assert session.begin_step(1, 1, [0])
    session.view(1).array[:, :1] = ids
    session.submit(1)
    session.close()
    snapshot.wait(10)
    assert not np.any(snapshot.rows().valid)  # taken before the step


def test_recorder(tmp_path: Path) -> None:
    rig = Rig(recorder=waymark.RecorderOptions(ring_bytes=1 << 20, ids=True))
    rig.write([0, 1], [0])
    rig.store.wait_idle(10)
    recorder = rig.store.recorder
    assert recorder is not None
    recorder.check()
    recorder.dump(tmp_path / "flight")
    assert (tmp_path / "flight").stat().st_size > 100
    with pytest.raises(waymark.UnknownError):
        recorder.dump(tmp_path / "none" / "flight")
    del rig.store, rig.session
    recorder.dump(tmp_path / "again")
    assert Rig().store.recorder is None


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
    with rig.store.snapshot([2, 3, 4], 0, 12) as snapshot:
        snapshot.wait(10)
        runs = [(run.begin, run.reason, run.version) for run in snapshot.coverage()]
    external = waymark.Reason.EXTERNAL_KV
    assert runs == [(0, external, 0), (4, waymark.Reason.NONE, 2), (8, external, 0)]
