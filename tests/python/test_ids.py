"""What ids may come in as: a type that holds every expert, as many columns as were said, whole rows,
and memory that stays as it is. What is not so is refused or missing, and says why."""

from __future__ import annotations

import io
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from conftest import distinct_ids, logged, refused
from waymark import Capture, InvalidArgumentError, Reason, Rows, late, trainer

EXPERTS, ROWS, LAYERS, K = 300, 4, 2, 2


def make(**options: Any) -> Capture:
    shape = {"num_layers": LAYERS, "top_k": K, "num_experts": EXPERTS, "num_blocks": 64,
             "page_tokens": ROWS}  # fmt: skip
    cap = Capture(**{**shape, **options})
    cap.bind(range(cap.shape.num_blocks))
    return cap


def chosen(seed: int = 0, top_k: int = K, experts: int = EXPERTS) -> npt.NDArray[np.int16]:
    return distinct_ids(np.random.default_rng(seed), ROWS, LAYERS, top_k, experts)


def buffers(cap: Capture, ids: Any) -> Any:
    return cap.step(1, 1, cap.buffer(np.arange(ROWS)), cap.buffer(ids))


def set_late(cap: Capture, ids: Any) -> None:
    cap.step(1, 1, range(ROWS)).ids = ids


def read(ids: npt.NDArray[Any], experts: int, **said: Any) -> Rows:
    file = io.BytesIO()
    np.save(file, ids)
    return waymark.read(file.getvalue(), num_experts=experts, moe_layers=range(LAYERS), **said)


def rows_of(experts: int) -> Rows:
    return Rows.from_array(chosen(experts=256), num_experts=experts, layer_ids=range(LAYERS))


def audit(own: npt.NDArray[Any], experts: int) -> Any:
    plan = trainer.Layout().plan([ROWS + 1])
    filled = plan.fill([rows_of(experts)], range(LAYERS))
    return trainer.audit(plan, filled, own.transpose(1, 0, 2), rows=range(ROWS), num_experts=experts)


# Every way in, with a number of experts.
DOORS: dict[str, Callable[[npt.NDArray[Any], int], Any]] = {
    "step": lambda ids, n: make(num_experts=n).step(1, 1, range(ROWS), ids),
    "step, layers first": lambda ids, n: make(num_experts=n, ids_layout="LNK").step(
        1, 1, range(ROWS), ids.transpose(1, 0, 2)),
    "step.ids": lambda ids, n: set_late(make(num_experts=n), ids),
    "buffer": lambda ids, n: buffers(make(num_experts=n), ids),
    "from_array": lambda ids, n: Rows.from_array(ids, num_experts=n, layer_ids=range(LAYERS)),
    "read": read,
    "collect": lambda ids, n: trainer.Layout().plan([ROWS]).collect(
        ids.transpose(1, 0, 2), num_experts=n, layer_ids=range(LAYERS)),
    "verify": lambda ids, n: waymark.verify([rows_of(n)], [ids]),
    "audit": audit,
}  # fmt: skip
TOO_SMALL = [("uint8", 257, 256), ("uint8", 300, 256), ("int16", 40000, 32768)]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("dtype, experts, held", TOO_SMALL)
def test_a_type_that_cannot_hold_the_experts_is_refused(
    door: str, dtype: str, experts: int, held: int
) -> None:
    """uint8 ids of 300 experts were stored cut, valid, and nothing said so."""
    ids = chosen(experts=256).astype(dtype)
    with pytest.raises(InvalidArgumentError, match=f"{dtype} holds {held} experts, .* {experts}"):
        DOORS[door](ids, experts)
    DOORS[door](ids, held)


def test_ids_of_a_device_are_as_large_as_the_experts() -> None:
    memory: Any = types.SimpleNamespace(device=None, host_ids=[types.SimpleNamespace(numpy=chosen)])
    with pytest.raises(InvalidArgumentError, match="int16 holds 32768 experts, .* 40000"):
        late.LateIds(memory, make(num_experts=40000), 1)


def test_types_that_the_writer_chooses_by_the_ids_are_read() -> None:
    """SkyRL's arrays of a model with 512 experts are uint8 where no id is larger."""
    skyrl = b'{"data": "AQIDBA==", "shape": [1, 2, 2], "dtype": "uint8"}'
    rows = waymark.read(skyrl, num_experts=512, moe_layers="all")
    assert rows.ids.tolist() == [[[1, 2], [3, 4]]]


@pytest.mark.parametrize("extra", [0, 1])
def test_columns_that_are_dropped_are_asked_for(extra: int) -> None:
    """A capture made for K = 6 and fed 8 columns took 6 of them in silence."""
    ids = chosen(top_k=K + 1)
    cap = make(extra_columns=extra)
    for wide in (K, K + 1, K + 2):
        given = chosen(top_k=wide)
        if wide == K + extra:
            cap.step(None, 1, range(ROWS), given)
            continue
        with pytest.raises(InvalidArgumentError, match=f"{K + extra},? .*extra_columns.* {wide}"):
            cap.step(None, 1, range(ROWS, 2 * ROWS), given)
    rows = cap.take([0, 1], 2 * ROWS).result(5)
    assert rows.valid.tolist() == [True] * ROWS + [False] * ROWS
    assert (rows.ids[:ROWS] == chosen(top_k=K + extra)[..., :K]).all() and ids.shape[2] == K + 1


def test_a_row_with_an_id_missing_is_invalid_and_its_ids_are_shown() -> None:
    """It was called silent, as if the layer had written nothing."""
    cap, ids = make(), chosen()
    ids[1, 0, 1], ids[2, 1] = -1, -1
    cap.step(1, 1, range(ROWS), ids)
    rows = cap.take([0], ROWS).result(5)
    assert rows.reasons.tolist() == [0, Reason.INVALID_ID, Reason.NOT_CAPTURED, 0]
    assert f"{ids[1, 0, 0]} -1, of 300" in logged("layer 0 (model layer 0): an id").getMessage()
    logged("layer 1 (model layer 1): silent")
    assert [(of.rows_silent, of.rows_invalid) for of in cap.layer_stats()] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("late_ids", [False, True])
def test_ids_that_are_written_again_before_done_are_not_captured(late_ids: bool) -> None:
    """784 of 800 rows were those of a later step, valid, and nothing said so."""
    cap, ids = make(ahead_bytes=0), chosen(1)
    first = cap.step(1, 1, range(ROWS))  # what is behind it waits
    then = cap.step(2, 1, range(ROWS, 2 * ROWS), ... if late_ids else ids)
    if late_ids:
        then.ids = ids
    cap.step(3, 1, range(2 * ROWS, 3 * ROWS), chosen(3))
    ids[:] = chosen(2)
    first.ids = chosen()
    rows = cap.take(range(3), 3 * ROWS).result(5)
    assert rows.reasons.tolist() == [0] * ROWS + [Reason.NOT_CAPTURED] * ROWS + [0] * ROWS
    assert "step 2" in logged("were written again before they were read").getMessage()


def test_padded_ids_may_come_late() -> None:
    cap, ids = make(), chosen()
    cap.step(1, 1, range(ROWS), count=2).ids = ids
    assert cap.take([0], ROWS).result(5).valid.tolist() == [True, True, False, False]
    with pytest.raises(InvalidArgumentError, match=r"at least \[3, 2, 2\], got \[2, 2, 2\]"):
        cap.step(2, 1, range(ROWS), count=3).ids = ids[:2]


def test_errors_say_what_has_become_of_the_step() -> None:
    cap, ids = make(), chosen(top_k=3).repeat(2, 0)
    refused(
        InvalidArgumentError,
        (r"ids: \[3, 2, 2\], got \[5, 2, 2\]: step 3 is told, its rows are missing \(not captured\)",
         lambda: cap.step(3, 1, range(3), ids[:5, :, :2])),
        ("the last one was 3; it is 3", lambda: cap.step(3, 1, range(3), ids[:3, :, :2])),
        (r"got \[2, 4, 2\], ids_layout='LNK'\?: step 4 is told",
         lambda: cap.step(4, 1, range(4), chosen().transpose(1, 0, 2))),
        ("uint8 holds 256 experts, the capture has 300: step 5 is told",
         lambda: cap.step(5, 1, range(3), ids[:3, :, :2].astype(np.uint8))),
        ("positions are within the block",
         lambda: cap.step(6, 1, (np.array([0, 1]), np.array([3, 4])))),
        ("1 block of 16 tokens .*, got 0, 20", lambda: waymark.slots_of([0], 16, 0, 20)),
        ("a handle.*Fetcher", lambda: waymark.read(bytes(rows_of(300).handle()))),
    )  # fmt: skip
    with pytest.raises(TypeError, match="ids must be .*: step 7 is told"):
        cap.step(7, 1, range(3), ids[:3, :, :2].astype(float))
    cap.step(None, 1, range(3), ids[:3, :, :2])
    assert cap.last_step == 8


def test_none_is_the_default() -> None:
    assert make(num_pages=None).stats().bytes == make(num_pages=64).stats().bytes


def test_what_an_object_shows() -> None:
    cap = make()
    cap.step(1, 1, range(2), chosen()[:2])
    rows = cap.take([0], 4).result(5)
    assert "missing={'never written': 2}" in repr(rows)
    assert "missing={}" in repr(rows[:2])
    assert "Capture(Shape(num_layers=2, top_k=2, num_experts=300" in repr(cap)
    cap.close()
    assert "closed" in repr(cap)
