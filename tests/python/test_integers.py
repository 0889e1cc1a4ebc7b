"""Integer arguments: what is taken, and what an exception says of those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Events, Rig

I32, I64, U64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1), (0, 2**64 - 1)
OPTIONS = {"num_layers": 3, "top_k": 2, "num_experts": 16, "num_blocks": 8}


def capture_of(**options: Any) -> waymark.Capture:
    return waymark.Capture(**{**OPTIONS, **options})


IDS = np.zeros((1, 3, 2), np.int16)
# (what the exception calls it, the range of the argument, the call).
CALLS: list[tuple[str, tuple[int, int], Callable[[Rig, Any], Any]]] = [
    *((name, I32, lambda rig, x, name=name: capture_of(**{name: x}))
      for name in ("num_layers", "top_k", "num_experts", "num_blocks")),
    *((name, (1, 2**31 - 1), lambda rig, x, name=name: capture_of(**{name: x}))
      for name in ("page_tokens", "block_tokens")),
    ("step", U64, lambda rig, x: rig.store.schedule(x, 1)),
    ("version", U64, lambda rig, x: rig.store.schedule(9, x)),
    ("rows", I64, lambda rig, x: rig.store.covered_prefix([0], x)),
    ("first", I64, lambda rig, x: rig.store.take([0], 1, x)),
    ("tokens", I64, lambda rig, x: rig.store.take([0], x)),
    ("step", (1, 2**64 - 1), lambda rig, x: rig.store.seal(0, b"k", x)),
    ("step", U64, lambda rig, x: rig.store.truncate(0, 0, x)),
    ("number", U64, lambda rig, x: rig.store.step(x, 1, [0], IDS)),
    ("version", U64, lambda rig, x: rig.store.step(9, x, [0], IDS)),
    ("count", I64, lambda rig, x: rig.store.step(9, 1, [0], IDS, count=x)),
    ("block_tokens", I32, lambda rig, x: rig.store.step(9, 1, ([0], [0]), IDS, block_tokens=x)),
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
    version: Any = np.uint64(2**64 - 1)
    number: Any = np.int32(1)
    count: Any = np.int8(1)
    rig.store.step(number, version, [0], rig.ids(1), count=count)
    assert rig.read([0], np.int64(1)).infos["version"][0] == version
    shape = capture_of(num_blocks=np.int64(8), page_tokens=np.int8(4)).shape
    assert (shape.num_blocks, shape.page_tokens) == (8, 4)


def test_lists_of_blocks_and_slots(rig: Rig) -> None:
    for wrong in ([True], [1.5], [None], ["1"], np.zeros(2), np.zeros(2, bool)):
        with pytest.raises(TypeError, match="blocks must hold integers, got"):
            rig.store.retain(wrong)
        with pytest.raises(TypeError, match="slots must hold integers, got"):
            rig.store.step(1, 1, wrong)
    text = "blocks: does not fit int32, got -2147483649"
    with pytest.raises(waymark.OutOfRangeError, match=text):
        rig.store.retain([-(2**31) - 1])
    text = "slots: does not fit int64, got 9223372036854"
    with pytest.raises(waymark.OutOfRangeError, match=text):
        rig.store.step(1, 1, [2**63])
    events = Events()
    with pytest.raises(TypeError, match="rows must hold integers"):
        events.copy(1, 2, True)
    assert len(events) == 0
