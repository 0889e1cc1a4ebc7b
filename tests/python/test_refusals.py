"""Arguments that were taken in silence, or failed with an error of Python's own: each is refused by
an error that names the argument, the rule and the value, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from waymark import Rows, trainer

LAYERS, EXPERTS, K = (0, 1, 2), 16, 4
LENGTHS = (6, 4)
IDS = np.random.default_rng(7).random((6, 3, EXPERTS)).argsort(-1)[..., :K]
ROWS = [Rows.from_array(IDS[: n - 1], num_experts=EXPERTS, layer_ids=LAYERS) for n in LENGTHS]
PLAN = trainer.Layout().plan(LENGTHS)
FILLED = PLAN.fill(ROWS, LAYERS)
PACKED = PLAN.fill(ROWS, LAYERS, packed=True)
VERL = trainer.FORMATS["verl"]
FLOATS: Any = (0.9, 1.5, 2.2)
KNOWN: dict[str, Any] = {"num_experts": EXPERTS, "layer_ids": LAYERS}


class Plain:
    """An object that numpy makes a new array of whenever it is asked."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.of, dtype)


def masked(ids: Any) -> Any:
    return np.ma.masked_array(ids, mask=np.ones(np.shape(ids), np.bool_))


def audit(given: Any = FILLED, own: Any = FILLED.ids, **more: Any) -> Any:
    return trainer.audit(PLAN, given, own, num_experts=EXPERTS, **more)


def expand(ids: Any, mask: Any = PACKED.mask, **more: Any) -> Any:
    return trainer.expand(ids, mask, num_experts=EXPERTS, **more)


CASES: list[tuple[str, Callable[[], Any]]] = [
    # Masks of numpy's own: what lies under them is no row, and was taken as one.
    ("ids: no masked array", lambda: Rows.from_array(masked(IDS), **KNOWN)),
    ("recorded: no masked array", lambda: PLAN.collect(masked(FILLED.ids), **KNOWN)),
    ("recorded[1]: no masked array",
     lambda: PLAN.collect([FILLED.ids[0], masked(FILLED.ids[1]), FILLED.ids[2]], **KNOWN)),
    ("own: no masked array", lambda: audit(own=masked(FILLED.ids))),
    ("out: no masked array", lambda: PLAN.fill(ROWS, LAYERS, out=masked(FILLED.ids))),
    ("out: no masked array", lambda: ROWS[0].astype(np.int64, out=masked(IDS[:5]))),
    ("lengths: no masked array", lambda: trainer.Layout().plan(masked(LENGTHS))),
    ("tokens: no masked array",
     lambda: trainer.Trajectory(masked(range(6)), [trainer.Part(ROWS[0], range(6))])),
    # Outputs that are copied and then left as they were.
    ("out: memory that can be written in place, got list",
     lambda: PLAN.fill(ROWS, LAYERS, out=FILLED.ids.tolist())),
    ("out: memory that can be written in place, got Plain",
     lambda: PLAN.fill(ROWS, LAYERS, out=Plain(FILLED.ids))),
    ("out: memory that can be written in place, got list",
     lambda: ROWS[0].astype(out=[[[0] * K] * 3])),  # type: ignore[arg-type]
    # Numbers that were cut.
    ("layer_ids: integers [n], got float64",
     lambda: Rows.from_array(IDS, num_experts=EXPERTS, layer_ids=FLOATS)),
    ("layer_ids: integers [n], got float64", lambda: ROWS[0].of_layers(FLOATS)),
    ("layer_ids: integers [n], got float64",
     lambda: VERL.write(ROWS, LENGTHS, layer_ids=FLOATS, num_layers=3)),
    ("rows: integers [n], got float64", lambda: audit(own=FILLED.ids[:, :2], rows=[0.2, 1.7])),
    # Integers as truth values.
    ("mask: bool [10], got int64 [10]", lambda: audit(FILLED.ids, mask=[5] * 10)),
    ("mask: bool [10], got bool [9]", lambda: audit(FILLED.ids, mask=[True] * 9)),
    # Sizes and ranges.
    ("context: an integer in [1, 2147483647], got 0", lambda: trainer.Layout(context=(0, 0)).plan([4])),
    ("tensor: an integer in [1, 2147483647], got 0", lambda: trainer.Layout(tensor=(0, 0)).plan([4])),
    ("context: (rank, size), got 2", lambda: trainer.Layout(context=2).plan([4])),  # type: ignore[arg-type]
    ("sequence_multiple: an integer in [1, ", lambda: trainer.Layout(sequence_multiple=0).plan([4])),
    ("total_multiple: an integer in [1, ", lambda: trainer.Layout(total_multiple=0).plan([4])),
    ("local_multiple: an integer in [1, ", lambda: trainer.Layout(local_multiple=0).plan([4])),
    ("packed: ids must be below 16, got 200 in row 0", lambda: expand(np.full_like(PACKED.ids, 200))),
    # -1 has no bits of its own in uint8: with 256 experts 255 is one.
    ("fill: must not be minus_one with ids of type uint8",
     lambda: PLAN.fill(ROWS, LAYERS, dtype=np.uint8, fill="minus_one")),
    ("fill: must not be minus_one with ids of type uint8",
     lambda: PLAN.fill(ROWS, LAYERS, out=np.empty((3, 10, K), np.uint8), fill="minus_one")),
    ("fill: must not be minus_one with ids of type uint8", lambda: ROWS[0].astype(np.uint8)),
    ("fill: must not be minus_one with ids of type uint8",
     lambda: expand(PACKED.ids, dtype=np.uint8, fill="minus_one")),
]  # fmt: skip


@pytest.mark.parametrize("text, call", CASES, ids=[text for text, _ in CASES])
def test_what_was_taken_in_silence_is_refused(text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(waymark.InvalidArgumentError) as refused:
        call()
    assert text in str(refused.value)


# Regression: their bytes were read in the order of this machine.
def test_lengths_of_another_byte_order_are_the_same_numbers() -> None:
    assert trainer.Layout().plan(np.array([4], ">i8")).lengths == (4,)


def test_nothing_is_written_into_a_refused_out() -> None:
    out = np.full((3, 10, K), 77, np.uint8)
    for fill, packed in (("minus_one", False), ("minus_one", True), ("spread", True)):
        with pytest.raises(waymark.InvalidArgumentError):
            PLAN.fill(ROWS, LAYERS, out=out, fill=fill, packed=packed)  # type: ignore[arg-type]
    wrong = PACKED.ids.copy()
    wrong[2, 1, 0] = EXPERTS
    with pytest.raises(waymark.InvalidArgumentError, match="packed: ids must be below 16, got 16 in row 2"):
        expand(wrong, out=out)
    assert (out == 77).all()
    wrong[2, 1, 0], wrong[5] = PACKED.ids[2, 1, 0], 200  # the last token: its row is not replayed
    marked = PLAN.fill(ROWS, LAYERS, fill="minus_one").ids
    assert not PACKED.mask[5] and (expand(wrong, fill="minus_one") == marked).all()


def test_outputs_of_other_kinds_are_written_in_place() -> None:
    memory = np.full((3, 10, K), 77, np.int64)
    view = memoryview(memory)
    assert PLAN.fill(ROWS, LAYERS, out=view).ids is view and (memory == FILLED.ids).all()
    empty = trainer.Layout().plan([0])
    none = Rows.from_array(IDS[:0], **KNOWN)
    assert empty.fill([none], LAYERS, out=np.empty((3, 0, K), np.int64)).ids.shape == (3, 0, K)
