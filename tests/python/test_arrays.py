"""Arrays of other frameworks: DLPack both ways, devices, tensors that are not numpy's."""

from __future__ import annotations

import array
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from conftest import Events, Rig


class Legacy:
    """Gives DLPack's first capsules, as producers from before max_version do."""

    def __init__(self, of: npt.NDArray[Any]) -> None:
        self.of = of

    def __dlpack__(self, stream: object = None) -> Any:
        return self.of.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Versioned(Legacy):
    """Gives what it is asked for."""

    def __dlpack__(self, *, stream: object = None, max_version: Any = None, **_: Any) -> Any:
        try:
            return self.of.__dlpack__(max_version=max_version)
        except TypeError:  # numpy 1
            return self.of.__dlpack__()


class Tensor:
    """Looks like torch's tensors."""

    class Device:
        def __init__(self, kind: str, index: int | None) -> None:
            self.type, self.index = kind, index

    class Type:
        def __init__(self, name: str) -> None:
            self.name = name

        def __str__(self) -> str:
            return "frame.work." + self.name

    def __init__(self, of: npt.NDArray[Any], device: str = "cpu", index: int | None = None) -> None:
        self.of = of
        self.shape = of.shape
        self.dtype = Tensor.Type(str(of.dtype))
        self.device = Tensor.Device(device, index)

    def data_ptr(self) -> int:
        return int(self.of.ctypes.data)

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.of.itemsize for s in self.of.strides)

    def element_size(self) -> int:
        return self.of.itemsize

    def __index__(self) -> int:
        if self.of.size != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.of.reshape(-1)[0])


class OnDevice:
    """An array of a CUDA device: nobody may look at its memory here."""

    def __init__(self, shape: tuple[int, ...], typestr: str = "<i4") -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (0xDEAD0000, False),
            "strides": None,
            "version": 3,
        }


FORMS: dict[str, Callable[[npt.NDArray[Any]], Any]] = {
    "numpy": lambda a: a,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "memoryview": lambda a: memoryview(np.ascontiguousarray(a)),
    "legacy dlpack": Legacy,
    "versioned dlpack": Versioned,
    "capsule": lambda a: a.__dlpack__(),
    "tensor": Tensor,
    "strided tensor": lambda a: Tensor(np.asfortranarray(a)),
}


@pytest.mark.parametrize("form", FORMS)
def test_ids_of_every_framework(make_rig: Callable[..., Rig], form: str) -> None:
    rig = make_rig(layers=[(i, f"m.{i}", "hands_over") for i in range(3)])
    ids = rig.ids(4)
    step = rig.begin(range(4), [0])
    for layer in range(3):
        rig.session.hand_over(step, layer, FORMS[form](ids[layer].astype(np.int32)))
    rig.session.submit(step)
    snapshot = rig.store.snapshot([0], 0, 4)
    snapshot.wait(10)
    assert (snapshot.read(layout="LTK") == ids).all()

    rig.step += 1
    rig.store.bind([1])
    rig.session.begin_ids_step(rig.step, 1, range(4, 8))
    rig.session.submit_ids(rig.step, FORMS[form](ids), layout="LTK")
    gc.collect()
    snapshot = rig.store.snapshot([1], 0, 4)
    snapshot.wait(10)
    assert (snapshot.read(layout="LTK") == ids).all()


@pytest.mark.parametrize("form", FORMS)
def test_what_was_lent_is_given_back(rig: Rig, form: str) -> None:
    ids = np.ascontiguousarray(rig.ids(4).transpose(1, 0, 2))
    alive = weakref.ref(ids)
    rig.step += 1
    rig.store.bind([0])
    rig.session.begin_ids_step(rig.step, 1, range(4))
    given = FORMS[form](ids)
    rig.session.submit_ids(rig.step, given)
    del given, ids
    rig.store.wait_idle(10)
    rig.store.close()
    rig.session.close()
    gc.collect()
    assert alive() is None


def test_slots_and_blocks_of_every_framework(rig: Rig) -> None:
    slots = np.arange(3)
    for form in (Legacy(slots), Versioned(slots), Tensor(slots), Tensor(slots[::-1]),
                 array.array("q", [0, 1, 2])):  # fmt: skip
        rig.session.drop(rig.begin(form))
    rig.store.wait_idle(10)
    assert rig.store.stats().missing[waymark.Reason.CAPACITY] == 15
    events = Events()
    events.bind(Tensor(np.arange(3, dtype=np.int32)))
    assert list(events.array["block"]) == [0, 1, 2]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("form", ["legacy dlpack", "versioned dlpack", "memoryview", "strided", "tensor"])
def test_blocks_of_every_framework_in_every_call(rig: Rig, form: str, dtype: type) -> None:
    """A tensor of torch has __index__, which was taken for an integer: blocks were refused."""
    store = rig.store

    def of(*values: int) -> Any:
        return FORMS[form](np.array(values, dtype))

    store.bind(of(0, 1))
    store.retain(of(0, 1))
    store.release(of(0, 1))
    store.seal(of(0), FORMS[form](np.array([7], np.int64)))
    store.copy(of(0), of(2), of(1))
    store.move(of(2), of(3))
    store.truncate(of(3), of(0), 1)
    with store.snapshot(of(0, 1), 0, 2) as snapshot:
        snapshot.wait(10)
        assert len(snapshot.rows()) == 2
    assert store.covered_prefix(of(0, 1), 2) == 0
    if form != "tensor":  # which is no array to numpy
        assert waymark.slots_of(of(0, 1), store.shape.block_tokens, 0, 2).tolist() == [0, 1]
    rig.session.cancel(rig.begin(of(0, 1)))
    rig.step += 1
    pairs = of(0, 0), of(0, 1)
    assert rig.session.begin_ids_step(rig.step, 1, pairs=pairs, block_tokens=store.shape.block_tokens)
    rig.session.cancel(rig.step)


def test_a_tensor_of_one_element_is_an_integer(rig: Rig) -> None:
    rig.store.bind(Tensor(np.array(1, np.int32)))
    with pytest.raises(waymark.InvalidArgumentError, match="one dimension, got 2"):
        rig.store.bind(Tensor(np.zeros((1, 1), np.int32)))


def test_device_memory_is_refused_by_a_host_transport(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(layers=[(0, "m.0", "hands_over")], device_slots=True)
    step = rig.begin([0, 1], [0])
    two = np.zeros((2, 2), np.int32)
    for ids in (OnDevice((2, 2)), Tensor(two, "cuda", 0), Tensor(two, "cuda")):
        with pytest.raises(waymark.InvalidArgumentError, match="host memory"):
            rig.session.hand_over(step, 0, ids)
    for wrong in (OnDevice((2, 3, 2)), Tensor(np.zeros((2, 3, 2), np.int32), "cuda", 0)):
        with pytest.raises(waymark.InvalidArgumentError, match="host memory"):
            rig.session.submit_ids(step, wrong)
    with pytest.raises(waymark.InvalidArgumentError, match="device meta"):
        rig.session.hand_over(step, 0, Tensor(two, "meta"))
    with pytest.raises(waymark.InvalidArgumentError, match="device memory"):
        rig.session.begin_step(7, 1, Tensor(np.arange(2), "cuda", 0))
    rig.session.cancel(step)
    step = rig.begin([0, 1], device_slots=True)
    with pytest.raises(waymark.InvalidArgumentError, match="host memory"):
        rig.session.submit_device_slots(step, OnDevice((2,), "<i8"))
    with pytest.raises(TypeError, match="got kind 'f'"):
        rig.session.submit_ids(step, Tensor(np.zeros((2, 3, 2), np.float32)))


def test_odd_producers_raise_what_they_raise(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(layers=[(0, "m.0", "hands_over")])
    step = rig.begin([0], [0])

    class Broken:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rig.session.hand_over(step, 0, Broken())

    class Nothing:
        __cuda_array_interface__ = 3

    with pytest.raises((TypeError, RuntimeError)):
        rig.session.hand_over(step, 0, Nothing())

    class Empty:
        __cuda_array_interface__: dict[str, Any] = {}

    with pytest.raises(KeyError):
        rig.session.hand_over(step, 0, Empty())


def test_torch_both_ways(make_rig: Callable[..., Rig]) -> None:
    torch = pytest.importorskip("torch")
    rig = make_rig(layers=[(i, f"m.{i}", "hands_over") for i in range(3)])
    ids = rig.ids(4)
    step = rig.begin(torch.arange(4), torch.tensor([0], dtype=torch.int32))
    for layer in range(2):
        rig.session.hand_over(step, layer, torch.from_numpy(ids[layer].astype(np.int64)))
    view = torch.from_dlpack(rig.session.view(step))
    assert view.shape == (3, 64, 2) and view.dtype == torch.int16
    view[2, :4] = torch.from_numpy(ids[2])
    rig.session.submit(step)
    snapshot = rig.store.snapshot([0], 0, 4)
    snapshot.wait(10)
    assert (snapshot.read(layout="LTK") == ids).all()
