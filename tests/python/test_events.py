"""Events: every argument that Python programs have, and what they become."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Events, Rig
from waymark import EventType, event_dtype


@pytest.fixture
def events() -> Events:
    return Events()


def test_an_event_is_56_bytes() -> None:
    assert event_dtype.itemsize == 56


BLOCK_FORMS: list[Any] = [
    [3, 5, 7],
    (3, 5, 7),
    range(3, 8, 2),
    (b for b in (3, 5, 7)),
    np.array([3, 5, 7], np.int32),
    np.array([3, 5, 7], np.int64),
    np.array([3, 5, 7], np.uint8),
    np.array([3, 5, 7], np.uint64),
    np.array([3, 0, 5, 0, 7], np.int32)[::2],
    np.array([7, 5, 3], np.int64)[::-1],
    array.array("i", [3, 5, 7]),
    memoryview(array.array("q", [3, 5, 7])),
    [np.int64(3), np.int32(5), 7],
    [3, np.int64(5), 7],
]


@pytest.mark.parametrize("blocks", BLOCK_FORMS, ids=lambda b: type(b).__name__)
def test_blocks_in_every_form(events: Events, blocks: Any) -> None:
    events.retain(blocks)
    assert list(events.array["block"]) == [3, 5, 7]
    assert set(events.array["type"]) == {EventType.RETAIN}


@pytest.mark.parametrize("one", [4, np.int64(4), np.uint8(4)], ids=lambda b: type(b).__name__)
def test_one_block(events: Events, one: Any) -> None:
    events.release(one)
    assert list(events.array["block"]) == [4]
    events.release([])
    events.release(np.array([]))
    assert len(events) == 1


def test_read_only_arrays_are_taken() -> None:
    blocks = np.arange(3, dtype=np.int32)
    blocks.flags.writeable = False
    events = Events()
    events.retain(blocks)
    assert list(events.array["block"]) == [0, 1, 2]


def test_keys_in_every_form() -> None:
    hashes = np.array([1, 2**63 + 5], np.uint64)
    want = [hashes[:1].tobytes(), hashes[1:].tobytes()]
    forms: list[Any] = [
        want,
        tuple(want),
        [1, 2**63 + 5],
        [1, 2**63 + 5 - 2**64],  # as hash() gives it
        [bytearray(want[0]), memoryview(want[1])],
        hashes,
        hashes.astype(np.int64),
        hashes.view(np.uint8).reshape(2, 8),
    ]
    for keys in forms:
        events = Events()
        events.seal([8, 9], keys, 3)
        assert list(events.array["key_size"]) == [8, 8]
        assert [bytes(k[:8]) for k in events.array["key"]] == want
        assert not events.array["key"][:, 8:].any()
        assert list(events.array["step"]) == [3, 3]


# Regression: one integer of numpy was "not iterable", and a bytearray was refused.
@pytest.mark.parametrize("key", [np.uint64(7), np.int64(7), bytearray((7).to_bytes(8, "little"))])
def test_one_key_in_other_forms(events: Events, key: Any) -> None:
    events.bind(3, key)
    assert bytes(events.array["key"][0, :8]) == (7).to_bytes(8, "little")


def test_one_key_and_blocks_without(events: Events) -> None:
    events.bind(3, b"k" * 32)
    events.bind([4, 5], [None, 77])
    events.bind([6, 7])
    assert list(events.array["key_size"]) == [32, 0, 8, 0, 0]


def test_seals_without_a_key_are_alike() -> None:
    for keys in (None, [None, None]):
        events = Events()
        events.seal([4, 5], keys, 7)
        assert list(events.array["type"]) == [EventType.SEAL] * 2
        assert list(events.array["key_size"]) == [0, 0]
        assert list(events.array["step"]) == [7, 7]
        events.seal([], keys and [])
        assert len(events) == 2


def test_copy_move_truncate_reset(events: Events) -> None:
    events.copy([1, 2], [3, 4], [5, 6])
    events.copy(1, [5, 6])
    events.move([7, 8], [8, 7])
    events.truncate([1, 2], [3, 0], 9)
    events.truncate([1, 2], 2, 10)
    events.reset()
    a = events.array
    assert [int(t) for t in a["type"]] == [5, 5, 5, 5, 6, 6, 7, 7, 7, 7, 8]
    assert list(a["src"][:6]) == [1, 2, 1, 1, 7, 8]
    assert list(a["block"][:6]) == [3, 4, 5, 6, 8, 7]
    assert list(a["rows"][:4]) == [5, 6, waymark.ALL_ROWS, waymark.ALL_ROWS]
    assert list(a["more"]) == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert list(a["rows"][6:10]) == [3, 0, 2, 2]
    assert list(a["step"][6:10]) == [9, 9, 10, 10]


WRONG: list[tuple[Any, tuple[type[Exception], ...], str]] = [
    (lambda e: e.bind("ab"), (TypeError,), "blocks must be integers"),
    (lambda e: e.bind(b"ab"), (TypeError,), "blocks must be integers"),
    (lambda e: e.bind(None), (TypeError,), "blocks"),
    (lambda e: e.bind([1.5]), (TypeError,), "blocks must hold integers, got float"),
    (lambda e: e.bind(np.array([1.0])), (TypeError,), "blocks must hold integers"),
    (lambda e: e.bind(np.zeros((2, 2), np.int32)), (ValueError,), "one dimension, got 2"),
    (lambda e: e.bind(2**31), (IndexError,), "int32, got 2147483648"),
    (lambda e: e.bind(np.array([2**40])), (IndexError,), "int32, got 1099511627776"),
    (lambda e: e.bind(2**70), (IndexError,), "int64"),
    (lambda e: e.bind([1, 2**31]), (waymark.OutOfRangeError,), "int32, got 2147483648"),
    (lambda e: e.bind([1, 2**70]), (waymark.OutOfRangeError,), ""),
    (lambda e: e.bind([1, 2.5]), (TypeError,), "blocks must hold integers, got float"),
    (lambda e: e.bind([1, True]), (TypeError,), "blocks must hold integers, got bool"),
    (lambda e: e.bind(1, b""), (ValueError,), "keys: 1 ... 32 bytes, got 0"),
    (lambda e: e.bind(1, b"x" * 33), (ValueError,), "keys: 1 ... 32 bytes, got 33"),
    (lambda e: e.bind([1, 2], [b"x"]), (ValueError,), "got 1 keys of 2 blocks"),
    (lambda e: e.bind([1, 2], b"x"), (ValueError,), "got 1 keys of 2 blocks"),
    (lambda e: e.bind(1, 2**64), (IndexError,), "64 bits"),
    (lambda e: e.bind(1, [1.5]), (TypeError,), "keys"),
    (lambda e: e.bind(1, "k"), (TypeError,), "keys: bytes, integers"),
    (lambda e: e.bind([1], np.zeros((1, 40), np.uint8)), (ValueError,), "got 40"),
    (lambda e: e.bind([1], np.zeros((1, 4), np.int32)), (ValueError,), "keys"),
    (lambda e: e.bind([1, 2], bytearray(b"ab")), (ValueError,), "keys"),
    (lambda e: e.bind([1, 2], np.zeros(2, np.uint8)), (ValueError,), "keys"),
    (lambda e: e.bind([1], np.zeros(1)), (ValueError,), "keys"),
    (lambda e: e.seal([1], [b"k"], -1), (ValueError,), "step: an integer in [1, 18446744073709551"),
    (lambda e: e.seal([1], [b"k"], 0), (ValueError,), "step: an integer in [1, 18446744073709551"),
    (lambda e: e.copy([1, 2], [3, 4, 5]), (ValueError,), "src"),
    (lambda e: e.copy([1, 2], [3, 4], [1, 2, 3]), (ValueError,), "rows"),
    (lambda e: e.move([1], [2, 3]), (ValueError,), "as many as dst, got 1 and 2"),
    (lambda e: e.truncate([1, 2], [1, 2, 3], 4), (ValueError,), "row"),
]


@pytest.mark.parametrize("call, kinds, text", WRONG)
def test_wrong_arguments_add_nothing(
    events: Events, call: Any, kinds: tuple[type[Exception], ...], text: str
) -> None:
    with pytest.raises(kinds) as caught:
        call(events)
    assert text in str(caught.value)
    assert len(events) == 0


def test_events_of_a_step_in_every_form(events: Events, rig: Rig) -> None:
    events.bind([0])
    data = events.array.tobytes()
    twice = np.repeat(events.array, 2)
    for form in (events.array, twice[::2], None, data, memoryview(data), bytearray(data)):
        rig.begin([0], events=form).not_run()
        if form is not None:
            rig.store.report(form)
    rig.store.wait_idle(10)
    assert rig.store.stats().events == 10
    for wrong in (np.zeros(3), [1, 2], "bind", np.zeros((1, 1), waymark.event_dtype)):
        with pytest.raises(TypeError, match="events must be"):
            rig.store.step(99, 1, [], events=wrong)
    with pytest.raises(waymark.InvalidArgumentError, match="56 bytes per event, got 57"):
        rig.store.step(99, 1, [], events=b"x" * 57)
    assert rig.store.last_step == 6
