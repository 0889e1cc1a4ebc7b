"""Capture sessions: steps and their ends, how ids are captured, self-test."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Events, Rig
from waymark import LayerCapture, Reason


def read(rig: Rig, blocks: Any, last: int) -> tuple[Any, Any]:
    snapshot = rig.store.snapshot(blocks, 0, last)
    snapshot.wait(10)
    return snapshot.read_with_info(layout="LTK")


def test_a_view_is_the_buffer(rig: Rig) -> None:
    step = rig.begin([0, 1], [0])
    view = rig.session.view(step)
    array = view.array
    assert array.dtype == np.int16 and array.shape == (3, 64, 2) == view.shape
    assert (array == -1).all() and array.flags.writeable and view.step == step
    assert array.ctypes.data == view.data_ptr() == np.asarray(view).ctypes.data
    assert view.layer(2).ctypes.data == array[2].ctypes.data
    assert view.layer(2).shape == (64, 2) and view.layer_stride >= 128
    assert view.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(view).ctypes.data == array.ctypes.data
    assert not hasattr(view, "__cuda_array_interface__")
    with pytest.raises(waymark.OutOfRangeError, match=r"layer: in \[0, 3\), got 3"):
        view.layer(3)
    ids = rig.ids(2)
    view.layer(0)[:2], array[1, :2], np.from_dlpack(rig.session.view(step))[2, :2] = ids
    rig.session.submit(step)
    got, infos = read(rig, [0], 2)
    assert (got == ids).all() and set(infos["step"]) == {step}


def test_a_views_array_keeps_the_session() -> None:
    rig = Rig()
    session = weakref.ref(rig.session)
    array = rig.session.view(rig.begin([0], [0])).array
    del rig
    gc.collect()
    assert session() is None
    array[:] = 5
    assert (array == 5).all()


def test_slots_in_every_form(rig: Rig) -> None:
    forms: list[Any] = [
        [0, 1],
        (0, 1),
        range(2),
        np.array([0, 1]),
        np.array([0, 1], np.int32),
        np.array([0, 9, 1, 9])[::2],
    ]
    for form in forms:
        rig.write(form, [0])
    got, _ = read(rig, [0], 2)
    assert (got >= 0).all()
    with pytest.raises(TypeError, match="slots must hold integers"):
        rig.begin(["0"])
    with pytest.raises(TypeError, match="slots must hold integers"):
        rig.begin(np.array([0.5]))
    with pytest.raises(waymark.InvalidArgumentError, match="one dimension"):
        rig.begin(np.zeros((1, 1), np.int64))


def test_events_in_every_form(rig: Rig) -> None:
    events = Events()
    events.bind([0])
    for form in (events.array, np.repeat(events.array, 2)[::2], None, events.array.tobytes(),
                 memoryview(events.array.tobytes()), bytearray(events.array.tobytes())):  # fmt: skip
        rig.session.cancel(rig.begin([0], events=form))
        if form is not None:
            rig.store.report(form)
    rig.store.wait_idle(10)
    assert rig.store.stats().events == 10
    for wrong in (np.zeros(3), [1, 2], "bind", np.zeros((1, 1), waymark.event_dtype)):
        with pytest.raises(TypeError, match="events must be"):
            rig.session.begin_step(99, 1, events=wrong)
    with pytest.raises(waymark.InvalidArgumentError, match="56 bytes per event, got 57"):
        rig.session.begin_step(99, 1, events=b"x" * 57)


def test_errors_of_the_step_path_say_what_and_where(rig: Rig) -> None:
    rig.begin([0], [0])
    with pytest.raises(waymark.InvalidArgumentError) as step:
        rig.session.begin_step(1, 1)
    assert (step.value.rule, step.value.value) == (1, 1)
    with pytest.raises(waymark.WaymarkError) as slot:
        rig.session.begin_step(2, 1, [0, 32 * 4])
    assert (slot.value.rule, slot.value.index, slot.value.value) == (11, 1, 128)
    with pytest.raises(waymark.WaymarkError) as block:
        rig.store.bind([0, 32])
    assert (block.value.rule, block.value.index, block.value.value) == (4, 1, 32)
    assert "32" in str(block.value)
    with pytest.raises(waymark.InvalidArgumentError) as rows:
        rig.session.begin_step(2, 1, np.full(65, -1))
    assert (rows.value.rule, rows.value.value) == (2, 65)
    with pytest.raises(waymark.NotFoundError) as flight:
        rig.session.submit(7)
    assert (flight.value.rule, flight.value.value) == (13, 7)
    for end in (rig.session.drop, rig.session.cancel):
        with pytest.raises(waymark.NotFoundError):
            end(7)


def test_a_step_without_a_buffer_is_dropped(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(num_buffers=1, landing="caller")
    rig.begin([0], [0])
    assert rig.session.begin_step(2, 1, [1]) is False
    rig.step = 2
    assert rig.session.view(2).step == 0
    rig.session.view(2).array[:] = 3  # the scratch view is always safe to write
    rig.session.discard(64)
    rig.session.drop(1)
    rig.store.wait_idle(10)
    _, infos = read(rig, [0], 2)
    assert list(infos["reason"]) == [Reason.CAPACITY] * 2
    assert rig.session.stats().ring_overflows == 1


def test_ends(rig: Rig) -> None:
    rig.session.drop(rig.begin([0], [0]))
    rig.session.cancel(rig.begin([1]))
    rig.write([waymark.NOT_ASKED(2), 3, -1])
    _, infos = read(rig, [0], 4)
    assert list(infos["reason"]) == [
        Reason.CAPACITY, Reason.NEVER_WRITTEN, Reason.NOT_CAPTURED, Reason.NONE,
    ]  # fmt: skip
    stats = rig.session.stats()
    assert (stats.steps_begun, stats.steps_submitted) == (3, 1)
    assert (stats.steps_dropped, stats.steps_cancelled) == (1, 1)
    assert stats.as_dict()["steps_begun"] == 3


def test_layers_are_bound_by_module(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(
        layers=[(0, "model.0", "kernel_writes_view"), (1, "model.1", LayerCapture.HANDS_OVER)],
        layer_ids=[2, 4, 6],
    )
    rig.session.bind_layer(2, "model.2", 1)  # type: ignore[arg-type]
    with pytest.raises(waymark.AlreadyExistsError):
        rig.session.bind_layer(2, "model.3")
    with pytest.raises(waymark.InvalidArgumentError):
        rig.session.bind_layer(3, "model.3")
    with pytest.raises(waymark.InvalidArgumentError, match="capture: one of"):
        rig.session.bind_layer(2, "model.3", "magic")  # type: ignore[arg-type]
    ids = rig.ids(2)
    step = rig.begin([0, 1], [0], written_rows=4)
    view = rig.session.view(step)
    view.layer(0)[:2] = ids[0]
    rig.session.hand_over(view, 1, ids[1])
    with pytest.raises(waymark.FailedPreconditionError):
        rig.session.bind_layer(0, "late")
    rig.session.submit(step)  # layer 2 was silent
    got, infos = read(rig, [0], 2)
    assert list(infos["reason"]) == [Reason.NOT_CAPTURED] * 2
    layer = rig.session.layer_stats(2)
    assert layer == (6, "model.2", LayerCapture.HANDS_OVER, 2, 0)
    assert rig.session.silent_batch_sizes(2) == [4]
    assert rig.session.silent_batch_sizes(0) == []
    assert "model.2" in rig.session.stats_text()
    assert any("model.2" in line.text for line in rig.log())
    for call in (rig.session.layer_stats, rig.session.silent_batch_sizes):
        with pytest.raises(waymark.WaymarkError, match=r"layer: in \[0, 3\), got 3"):
            call(3)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("by_step", [True, False])
def test_hand_over(make_rig: Callable[..., Rig], dtype: Any, by_step: bool) -> None:
    rig = make_rig(layers=[(i, f"m.{i}", "hands_over") for i in range(3)])
    ids = rig.ids(4)
    step = rig.begin(range(4), [0])
    where: Any = step if by_step else rig.session.view(step)
    wide = np.full((8, 5), -7, dtype)  # shared experts behind the first K columns
    wide[::2, :2] = ids[0]
    rig.session.hand_over(where, 0, wide[::2])
    rig.session.hand_over(where, 1, np.asfortranarray(ids[1].astype(dtype)))
    rig.session.hand_over(where, 2, ids[2][::-1].astype(dtype)[::-1])
    rig.session.submit(step)
    got, _ = read(rig, [0], 4)
    assert (got == ids).all()
    assert rig.session.stats().rows_handed_over == 12


def test_what_cannot_be_handed_over(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(layers=[(0, "m.0", "hands_over"), (1, "m.1", "kernel_writes_view")])
    step = rig.begin([0, 1], [0])
    ids = np.zeros((2, 2), np.int32)
    cases: list[tuple[Any, int, Any, type[Exception], str]] = [
        (step, 0, np.zeros((2, 2), np.float32), TypeError, "ids must be"),
        (step, 0, np.zeros((2, 2), np.uint8), waymark.InvalidArgumentError, "type"),
        (step, 0, np.zeros(2, np.int32), waymark.InvalidArgumentError, "got 1 dimensions"),
        (step, 0, np.zeros((2, 1), np.int32), waymark.InvalidArgumentError, ""),
        (step, 0, np.zeros((65, 2), np.int32), waymark.InvalidArgumentError, "65"),
        (step, 0, [[0, 1]], TypeError, "ids must be an array"),
        (step, 0, None, TypeError, ""),
        (step, 3, ids, waymark.WaymarkError, "3"),
        (step, 1, ids, waymark.WaymarkError, "1"),
        ("now", 0, ids, TypeError, "view, or step: an integer"),
        (Rig().session.scratch_view(), 0, ids, waymark.InvalidArgumentError, "of another"),
    ]
    for where, layer, wrong, kind, text in cases:
        with pytest.raises(kind) as caught:
            rig.session.hand_over(where, layer, wrong)
        assert text in str(caught.value)
    rig.session.cancel(step)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("layout", ["TLK", "LTK"])
def test_submit_ids(rig: Rig, dtype: Any, layout: Any) -> None:
    ids = rig.ids(4)
    rig.step += 1
    rig.store.bind([0])
    assert rig.session.begin_ids_step(rig.step, 1, range(4))
    array = np.zeros((3, 6, 4), dtype)
    array[:, :4, :2] = ids
    given = array[:, :4] if layout == "LTK" else array[:, :4].transpose(1, 0, 2)
    rig.session.submit_ids(rig.step, given, layout=layout)
    got, _ = read(rig, [0], 4)
    assert (got == ids).all()


def test_ids_of_another_number_of_rows_are_refused(make_rig: Callable[..., Rig]) -> None:
    """The rest of the rows was not captured, and rows too many were dropped, without a word."""
    forms: list[dict[str, Any]] = [
        {"slots": [0, 1, -1]}, {"pairs": ([0, 0, -1], [0, 1, 0])},
    ]  # fmt: skip
    for begin in ("begin_ids_step", "begin_step"):
        rig = make_rig(landing="caller")
        rig.store.bind([0])
        for step, rows in enumerate(forms, 1):
            assert getattr(rig.session, begin)(step, 1, **rows)
            for count in (0, 1, 2, 4, 5):
                with pytest.raises(waymark.InvalidArgumentError) as caught:
                    rig.session.submit_ids(step, np.zeros((count, 3, 2), np.int16))
                assert str(caught.value) == (
                    f"ids: 3 rows, as many as step {step} has here; got {count}"
                )
            assert rig.session.submit_ids(step, np.zeros((3, 3, 2), np.int16))
            with pytest.raises(waymark.NotFoundError):
                rig.session.submit_ids(step, np.zeros((1, 3, 2), np.int16))
        rig.store.wait_idle(10)


def test_submitted_ids_are_kept_until_they_landed_and_no_longer(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(landing="caller")
    alive = []
    for _ in range(3):
        ids = np.ascontiguousarray(rig.ids(4).transpose(1, 0, 2))
        rig.step += 1
        rig.store.bind([0])
        rig.session.begin_ids_step(rig.step, 1, range(4))
        rig.session.submit_ids(rig.step, ids)
        alive.append(weakref.ref(ids))
        del ids
    assert all(a() is not None for a in alive)
    for landed in range(1, 4):
        rig.store.land(landed)
        assert rig.store.last_step == 3  # any call gives back what was read
        assert [a() is None for a in alive] == [i < landed for i in range(3)]


def test_submit_ids_drops_a_step_rather_than_fail(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(landing="caller", num_ids_steps=1)
    rig.store.bind([0, 1, 2])
    arrays = [np.ascontiguousarray(rig.ids(4).transpose(1, 0, 2)) for _ in range(3)]
    for step in (1, 2, 3):
        assert rig.session.begin_ids_step(step, 1, range(4 * step - 4, 4 * step))
        assert rig.session.landed(step)  # no array is lent
    assert rig.session.submit_ids(1, arrays[0]) is True
    assert not rig.session.landed(1)
    assert rig.session.submit_ids(2, arrays[1]) is False
    assert rig.session.landed(2)
    with pytest.raises(waymark.NotFoundError):
        rig.session.drop(2)
    rig.store.land(1)
    assert rig.session.landed(1)
    assert rig.session.submit_ids(3, arrays[2]) is True
    rig.store.wait_idle(10)
    got, infos = read(rig, [0, 1, 2], 12)
    assert list(infos["reason"]) == [0] * 4 + [Reason.CAPACITY] * 4 + [0] * 4
    assert (got[:, 8:] == arrays[2].transpose(1, 0, 2)).all()
    assert rig.session.stats().steps_dropped == rig.store.stats().steps_dropped == 1


def test_hand_over_to_a_step_that_was_not_begun_or_a_layer_that_was_not_bound(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(num_buffers=1)
    ids = np.array([[1, 2]], np.int16)
    for where in (1, rig.session.view(1)):
        with pytest.raises(waymark.NotFoundError, match="it is 1"):
            rig.session.hand_over(where, 0, ids)
    step = rig.begin([0], [0])
    for layer in range(3):
        rig.session.hand_over(step, layer, ids)
    assert rig.session.begin_step(2, 1, [1]) is False
    rig.session.hand_over(2, 0, ids)  # dropped: its forward runs as usual
    rig.session.submit(step)
    got, infos = read(rig, [0], 1)
    assert infos["reason"][0] == Reason.NONE and (got[:, 0] == ids[0]).all()


def test_ids_that_are_refused_are_given_back(rig: Rig) -> None:
    ids = np.zeros((4, 3, 2), np.int16)
    alive = weakref.ref(ids)
    with pytest.raises(waymark.NotFoundError):
        rig.session.submit_ids(5, ids)
    with pytest.raises(waymark.InvalidArgumentError, match="dimensions"):
        rig.session.submit_ids(5, ids[0])
    with pytest.raises(waymark.InvalidArgumentError, match="layout"):
        rig.session.submit_ids(5, ids, layout="KLT")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ids must be"):
        rig.session.submit_ids(5, ids.astype(np.float64))
    del ids
    gc.collect()
    assert alive() is None


def test_device_slots(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(device_slots=True)
    ids = rig.ids(4)
    step = rig.begin(range(4), [0], device_slots=True)
    rig.session.view(step).array[:, :4] = ids
    slots = np.array([2, 0, -1, -1], np.int64)
    with pytest.raises(waymark.InvalidArgumentError, match="slots: int64"):
        rig.session.submit_device_slots(step, slots.astype(np.int32))
    with pytest.raises(waymark.InvalidArgumentError, match="rows: an integer in"):
        rig.session.submit_device_slots(step, slots, 5)
    rig.session.submit_device_slots(step, slots, 2, written_rows=4)
    got, infos = read(rig, [0], 4)
    assert (got[:, [2, 0]] == ids[:, :2]).all()
    assert list(infos["reason"] == 0) == [True, False, True, False]


def test_self_test(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(layers=[(i, f"m.{i}", "kernel_writes_view") for i in range(3)])

    def good(view: waymark.View, rows: int) -> None:
        view.array[:, :rows] = rig.ids(rows)

    def bad(view: waymark.View, rows: int) -> None:
        good(view, rows)
        view.array[0, 1:rows] = -1
        view.array[1, 2] = 16
        view.array[2, :rows] = 0

    report = rig.session.self_test(8, good)
    assert report.ok and report.rows == 8
    report = rig.session.self_test(8, bad)
    assert not report.ok and "m.0" in str(report)
    assert report.findings == [
        (0, 0, waymark.Fault.SILENT, 7, 1),
        (1, 1, waymark.Fault.OUT_OF_RANGE, 1, 2),
        (1, 1, waymark.Fault.REPEATING, 1, 2),
        (2, 2, waymark.Fault.ALL_ZERO, 8, 0),
    ]
    assert (rig.session.scratch_view().array == -1).all()

    def raises(view: waymark.View, rows: int) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rig.session.self_test(8, raises)
    with pytest.raises(waymark.InvalidArgumentError):
        rig.session.self_test(65, good)
    # A forward calls the session, on the thread that is in self_test.
    assert rig.session.self_test(4, lambda view, rows: good(rig.session.scratch_view(), rows)).ok


def test_streams(rig: Rig) -> None:
    class Torch:
        cuda_stream = 0

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 0)

    for stream in (0, None, Torch(), Protocol()):
        rig.session.set_stream(stream)
    for wrong in ("0", -1, object()):
        with pytest.raises(TypeError, match="stream must be"):
            rig.session.set_stream(wrong)


def test_wrong_options(rig: Rig) -> None:
    for options, text in (
        ({"max_rows": 0}, "max_rows"),
        ({"max_rows": 2**21}, "max_rows"),
        ({"max_rows": 4, "num_buffers": 0}, "num_buffers: an integer in [1, 2147483647], got 0"),
        ({"max_rows": 4, "transport": "rdma"}, "transport: one of host, cuda; got 'rdma'"),
    ):
        with pytest.raises(waymark.InvalidArgumentError) as caught:
            waymark.CaptureSession(rig.store, **options)  # type: ignore[arg-type]
        assert text in str(caught.value)
    with pytest.raises(TypeError):
        waymark.CaptureSession(None, 4)  # type: ignore[arg-type]
    if waymark.build_info()["cuda"] == "none":
        with pytest.raises(waymark.UnimplementedError):
            waymark.CaptureSession(rig.store, 4, transport="cuda")
    rig.session.check()
