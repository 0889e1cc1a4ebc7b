"""Arrays of other frameworks: DLPack, devices, tensors that are not numpy's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from conftest import Rig


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
@pytest.mark.parametrize("closed", [False, True])
def test_what_was_lent_is_given_back(form: str, closed: bool) -> None:
    rig = Rig(ahead_bytes=0)
    ids = rig.ids(4)
    alive = weakref.ref(ids)
    before = rig.begin([4], [0, 1])  # what is told behind it waits
    given = FORMS[form](ids)
    rig.begin(range(4), ids=given)
    del given, ids
    gc.collect()
    assert form != "numpy" or alive() is not None
    before.lost()
    if closed:
        rig.store.close()
    else:
        rig.store.wait_idle(10)
        assert rig.store.last_step == 2  # any call gives back what was read
    gc.collect()
    assert alive() is None


def test_ids_that_are_refused_are_given_back(rig: Rig) -> None:
    ids = np.zeros((4, 3, 2), np.float64)
    alive = weakref.ref(ids)
    step = rig.begin(range(4), [0])
    for wrong, kind in ((ids, TypeError), (ids[0], ValueError), (ids.astype(int)[:3], ValueError)):
        with pytest.raises(kind, match="ids"):
            step.ids = wrong
    del ids, wrong
    gc.collect()
    assert alive() is None
    step.ids = rig.ids(4)  # is open still
    assert rig.read([0], 4).valid.all()


def test_a_tensor_of_one_element_is_an_integer(rig: Rig) -> None:
    rig.store.bind(Tensor(np.array(1, np.int32)))
    with pytest.raises(waymark.InvalidArgumentError, match="one dimension, got 2"):
        rig.store.bind(Tensor(np.zeros((1, 1), np.int32)))


def test_device_memory_is_refused(rig: Rig) -> None:
    step = rig.begin([0, 1], [0])
    ids = np.zeros((2, 3, 2), np.int32)
    for wrong in (Tensor(ids, "cuda", 0), Tensor(ids, "cuda")):
        with pytest.raises(waymark.InvalidArgumentError, match="host memory"):
            step.ids = wrong
    with pytest.raises(waymark.InvalidArgumentError, match="device meta"):
        step.ids = Tensor(ids, "meta")
    with pytest.raises(TypeError, match="got kind 'f'"):
        step.ids = Tensor(np.zeros((2, 3, 2), np.float32))
    with pytest.raises(waymark.InvalidArgumentError, match="device memory"):
        rig.store.step(7, 1, Tensor(np.arange(2), "cuda", 0))
    step.not_run()


def test_odd_producers_raise_what_they_raise(rig: Rig) -> None:
    class Broken:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise KeyError("mine")

    step = rig.begin([0], [0])
    with pytest.raises(KeyError):
        step.ids = Broken()
    with pytest.raises(TypeError, match="must be an array"):
        step.ids = object()
    step.lost()


def test_tensors_of_torch(rig: Rig) -> None:
    torch = pytest.importorskip("torch")
    ids = rig.ids(4)
    slots, blocks = torch.arange(4), torch.tensor([0], dtype=torch.int32)
    rig.begin(slots, blocks, ids=torch.from_numpy(ids.astype(np.int64)))
    assert (rig.read(blocks, 4).ids == ids).all()
