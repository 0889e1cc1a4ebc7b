"""Every call that takes blocks, slots, rows or ids takes arrays of every framework: objects that
have nothing but DLPack, or nothing but a buffer, and tensors that are no arrays of numpy. None is
imported."""

from __future__ import annotations

import array
import ast
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from test_arrays import Legacy, Tensor

BLOCK, LAYERS, K, DUMMY = 4, 2, 2, 15


class Buffer:
    """Memory, and nothing that says so but the buffer protocol (a memoryview of array.array)."""

    CODES = {"int32": "i", "int64": "q", "uint8": "B", "int16": "h"}

    @staticmethod
    def of(values: np.ndarray[Any, Any]) -> memoryview:
        flat = array.array(Buffer.CODES[str(values.dtype)], values.reshape(-1).tolist())
        view = memoryview(flat)
        return view if values.ndim == 1 else view.cast("B").cast(flat.typecode, values.shape)


FORMS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "dlpack": Legacy,
    "buffer": Buffer.of,
    "tensor": Tensor,
}
Of = Callable[..., Any]  # of(values, dtype): an array in one of these forms
CALLS: dict[Callable[[Of], Any], tuple[str, ...]] = {}


def takes(*arguments: str) -> Callable[[Callable[[Of], Any]], Callable[[Of], Any]]:
    """The arguments ("Class.method.name", of waymark._core) that a function gives arrays for. It
    returns what shows that they were understood."""

    def add(function: Callable[[Of], Any]) -> Callable[[Of], Any]:
        CALLS[function] = arguments
        return function

    return add


def make_capture() -> waymark.Capture:
    return waymark.Capture(
        num_layers=LAYERS, top_k=K, num_experts=256, num_blocks=16, block_tokens=BLOCK,
        page_tokens=BLOCK, null_blocks=[DUMMY], audit=False,
    )  # fmt: skip


def ids_of(rows: int, first: int = 0, dtype: str = "int16") -> Any:
    token = first + np.arange(rows)[:, None, None]
    return (token + 50 * np.arange(LAYERS)[:, None] + np.arange(K)).astype(dtype)


EVENTS = (
    "bind.blocks", "retain.blocks", "release.blocks", "seal.blocks", "copy.src", "copy.dst",
    "copy.rows", "move.src", "move.dst", "truncate.blocks", "truncate.row",
)  # fmt: skip


def read(capture: waymark.Capture, blocks: Any, rows: int) -> Any:
    found = capture.take(blocks, rows).result(10)
    return found.ids.tolist(), found.reasons.tolist()


@takes(
    *(f"Capture.{name}" for name in (*EVENTS, "covered_prefix.blocks")), "Capture._take.blocks",
    "Capture.step.ids", "Capture.step.asked", "Capture.buffer.array",
)  # fmt: skip
def events_and_steps_of_a_capture(of: Of) -> Any:
    with make_capture() as capture:
        capture.bind(of([3, 4]), [70, 80])
        capture.bind(of([0, 1]))
        capture.retain(of([0, 1]))
        capture.release(of([0, 1]))
        capture.seal(of([0]), [7])
        capture.step(1, 1, of([0, 1, 2, 3, 4, 5, -1], "int64"), of(ids_of(7), "int16"))
        capture.copy(of([0]), of([2]), of([3]))
        capture.move(of([2]), of([5]))
        capture.truncate(of([5]), of([1]), 1)
        pairs = of([1, 1]), of([2, 3])
        step = capture.step(2, 1, pairs, asked=of([1, 0], "uint8"))
        step.ids = of(ids_of(2, 9), "int32")
        slots, ids = capture.buffer(of([12], "int64")), capture.buffer(of(ids_of(1, 7)))
        capture.step(None, 1, slots, ids)
        capture.wait_idle(10)
        stats = capture.stats()
        return (
            read(capture, of([0, 1]), 8), read(capture, of([5]), 4), read(capture, of([3]), 1),
            capture.covered_prefix(of([0, 1]), 8), stats.releases_below_zero, stats.hits_by_key,
        )  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_every_call_takes_every_form(call: Callable[[Of], Any], form: str) -> None:
    """A tensor of torch has __index__, which was taken for an integer: blocks were refused."""

    def plain(values: Any, dtype: str = "int32") -> Any:
        return np.asarray(values, dtype)

    wanted = call(plain)
    assert call(lambda values, dtype="int32": FORMS[form](plain(values, dtype))) == wanted


def test_slots_of_takes_every_form() -> None:
    for form in (Legacy, Buffer.of):
        assert waymark.slots_of(form(np.array([2, 1], np.int32)), 4, 3, 6).tolist() == [11, 4, 5]


# Blocks, slots, rows, and what lies beside them. Arguments of other names are numbers of one
# element, bytes, objects, or arrays that the caller makes for Waymark to write to. The rows of a
# step, an array or a tuple, are given above too.
NAMES = {"blocks", "src", "dst", "keys", "asked", "ids", "array"}
# Rows, pack_ids and fill_tensors take arrays that the package made (test_rows.py, test_trainer.py). Keys are in
# a list or an array of numpy.
ELSEWHERE = {
    "Capture.bind.keys", "Capture.seal.keys", "Capture._take.keys",
    "Rows.__init__.ids", "check_arrays.ids", "check_ids.ids", "fill_tensors.ids", "pack_ids.ids",
}  # fmt: skip


def test_every_call_is_in_the_list() -> None:
    stub = ast.parse((pathlib.Path(waymark.__file__).parent / "_core.pyi").read_text())
    found = set()
    classes = [(node.name + ".", node.body) for node in stub.body if isinstance(node, ast.ClassDef)]
    for scope, body in [("", stub.body), *classes]:
        for function in body:
            if isinstance(function, ast.FunctionDef):
                arguments = [a.arg for a in function.args.args + function.args.kwonlyargs]
                found |= {f"{scope}{function.name}.{name}" for name in arguments if name in NAMES}
    named = {argument for arguments in CALLS.values() for argument in arguments}
    others = {argument for argument in named if argument.rsplit(".", 1)[1] not in NAMES}
    assert others == {"Capture.copy.rows", "Capture.truncate.row"}
    assert found - ELSEWHERE == named - others
