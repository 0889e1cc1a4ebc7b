"""Integer arguments: what is taken, and what an exception says of those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Events, Rig

I32, I64, U32, U64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1), (0, 2**32 - 1), (0, 2**64 - 1)
OPTIONS = {"num_layers": 3, "top_k": 2, "num_experts": 16, "num_blocks": 8}


def store_of(**options: Any) -> waymark.Store:
    return waymark.Store(**{**OPTIONS, **options})


# (what the exception calls it, the range of the argument, the call).
CALLS: list[tuple[str, tuple[int, int], Callable[[Rig, Any], Any]]] = [
    *((name, I32, lambda rig, x, name=name: store_of(**{name: x}))
      for name in ("num_layers", "top_k", "num_experts", "num_blocks")),
    *((name, (1, 2**31 - 1), lambda rig, x, name=name: store_of(**{name: x}))
      for name in ("page_tokens", "block_tokens", "max_steps_in_flight", "max_step_rows")),
    *((name, U32, lambda rig, x, name=name: store_of(**{name: x}))
      for name in ("num_pages", "spare_pages", "max_tagged_snapshots")),
    ("key_seed", U64, lambda rig, x: store_of(key_seed=x)),
    ("log_bytes", U64, lambda rig, x: store_of(log_bytes=x)),
    ("step", U64, lambda rig, x: rig.store.schedule(x, 1)),
    ("version", U64, lambda rig, x: rig.store.schedule(9, x)),
    ("tag", U64, lambda rig, x: rig.store.forget_tag(x)),
    ("tag", U64, lambda rig, x: rig.store.take_tagged(x)),
    ("rows", I64, lambda rig, x: rig.store.covered_prefix([0], x)),
    ("step", U64, lambda rig, x: rig.store.land(x)),
    ("first", I64, lambda rig, x: rig.store.snapshot([0], x, 1)),
    ("last", I64, lambda rig, x: rig.store.snapshot([0], 0, x)),
    ("first", (0, 2**63 - 1), lambda rig, x: waymark.Cursor(rig.store, x)),
    ("step", (1, 2**64 - 1), lambda rig, x: rig.store.seal(0, b"k", x)),
    ("step", U64, lambda rig, x: rig.store.truncate(0, 0, x)),
    ("max_rows", I32, lambda rig, x: waymark.CaptureSession(rig.store, x)),
    ("num_buffers", (1, 2**31 - 1),
     lambda rig, x: waymark.CaptureSession(rig.store, 4, num_buffers=x)),
    ("num_ids_steps", I32, lambda rig, x: waymark.CaptureSession(rig.store, 4, num_ids_steps=x)),
    ("device", I32, lambda rig, x: waymark.CaptureSession(rig.store, 4, device=x)),
    ("layer", I32, lambda rig, x: rig.session.bind_layer(x, "m")),
    ("step", U64, lambda rig, x: rig.session.begin_step(x, 1)),
    ("version", U64, lambda rig, x: rig.session.begin_step(9, x)),
    ("written_rows", I32, lambda rig, x: rig.session.begin_step(9, 1, written_rows=x)),
    ("block_tokens", I32,
     lambda rig, x: rig.session.begin_step(9, 1, pairs=([0], [0]), block_tokens=x)),
    ("step", U64, lambda rig, x: rig.session.begin_ids_step(x, 1)),
    ("version", U64, lambda rig, x: rig.session.begin_ids_step(9, x)),
    ("step", U64, lambda rig, x: rig.session.view(x)),
    ("step", U64, lambda rig, x: rig.session.hand_over(x, 0, np.zeros((1, 2), np.int16))),
    ("layer", I32, lambda rig, x: rig.session.hand_over(0, x, np.zeros((1, 2), np.int16))),
    ("step", U64, lambda rig, x: rig.session.submit(x)),
    ("written_rows", I32, lambda rig, x: rig.session.submit(9, x)),
    ("step", U64, lambda rig, x: rig.session.submit_device_slots(x, np.zeros(1, np.int64))),
    ("rows", (0, 1),
     lambda rig, x: rig.session.submit_device_slots(9, np.zeros(1, np.int64), x)),
    ("step", U64, lambda rig, x: rig.session.submit_ids(x, np.zeros((1, 3, 2), np.int16))),
    ("step", U64, lambda rig, x: rig.session.landed(x)),
    ("step", U64, lambda rig, x: rig.session.drop(x)),
    ("step", U64, lambda rig, x: rig.session.cancel(x)),
    ("written_rows", I32, lambda rig, x: rig.session.discard(x)),
    ("rows", I32, lambda rig, x: rig.session.self_test(x, print)),
    ("layer", I32, lambda rig, x: rig.session.layer_stats(x)),
    ("layer", I32, lambda rig, x: rig.session.silent_batch_sizes(x)),
    ("layer", I32, lambda rig, x: rig.session.scratch_view().layer(x)),
]  # fmt: skip


@pytest.mark.parametrize("name, limits, call", CALLS)
def test_exceptions_name_argument_rule_and_value(
    rig: Rig, name: str, limits: tuple[int, int], call: Callable[[Rig, Any], Any]
) -> None:
    for wrong in (1.5, np.float32(2), "1", True, np.bool_(True), [1], object()):
        with pytest.raises(TypeError) as caught:
            call(rig, wrong)
        text = str(caught.value)
        assert name in text and f"an integer in [{limits[0]}, {limits[1]}]" in text, text
        assert repr(wrong)[:80] in text, text
    for wrong in (limits[0] - 1, limits[1] + 1, -(2**200), 2**200):
        with pytest.raises(waymark.InvalidArgumentError) as refused:
            call(rig, wrong)
        text = str(refused.value)
        assert name in text and f"[{limits[0]}, {limits[1]}]" in text and repr(wrong)[:80] in text


def test_integers_of_numpy_are_taken(rig: Rig) -> None:
    rig.store.bind(np.uint8(0))
    assert rig.session.begin_step(np.int32(1), np.uint64(2**64 - 1), [0], written_rows=np.int8(1))
    rig.session.hand_over(np.int64(1), np.uint8(0), np.zeros((1, 2), np.int16))
    rig.session.drop(np.uint16(1))
    assert store_of(num_blocks=np.int64(8), page_tokens=np.int8(4)).shape.num_blocks == 8


def test_lists_of_blocks_and_slots(rig: Rig) -> None:
    for wrong in ([True], [1.5], [None], ["1"], np.zeros(2), np.zeros(2, bool)):
        with pytest.raises(TypeError, match="blocks must hold integers, got"):
            rig.store.retain(wrong)
        with pytest.raises(TypeError, match="slots must hold integers, got"):
            rig.session.begin_step(1, 1, wrong)
    with pytest.raises(waymark.OutOfRangeError, match="blocks: does not fit int32, got -2147483649"):
        rig.store.retain([-(2**31) - 1])
    with pytest.raises(waymark.OutOfRangeError, match="slots: does not fit int64, got 9223372036854"):
        rig.session.begin_step(1, 1, [2**63])
    events = Events()
    with pytest.raises(TypeError, match="rows must hold integers"):
        events.copy(1, 2, True)
    assert len(events) == 0
