"""Routing: against a plain numpy reference, and recorded through a session."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from conftest import Rig
from waymark import RoutingMethod

Floats = npt.NDArray[np.float64]


def sigmoid(x: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-x))


def keys_of(method: RoutingMethod, x: Floats, bias: Floats) -> Floats:
    """What experts are selected by; of NaN: -inf. In float32, which decides ties."""
    biased = method in (RoutingMethod.DEEPSEEK_V3, RoutingMethod.MINIMAX2)
    keys = sigmoid(x) + bias if biased else x
    return np.where(np.isnan(keys), -np.inf, keys).astype(np.float32)


def reference(
    method: RoutingMethod, logits: Any, top_k: int, *, bias: Any = None, num_groups: int = 1,
    topk_groups: int = 1, scale: float = 1.0, normalize: bool = True,
) -> tuple[Any, Floats]:  # fmt: skip
    """(ids, weights) by numpy, a row at a time."""
    x = np.asarray(logits, np.float64)
    x = np.where(np.isnan(x), -np.inf, x)
    added = np.zeros(x.shape[1]) if bias is None else np.asarray(bias, np.float64)
    ids, weights = [], []
    for row in x:
        keys = keys_of(method, row, added)
        if num_groups > 1:
            groups = keys.reshape(num_groups, -1)
            best = np.sort(groups, axis=1)[:, -2:].sum(axis=1)
            kept = np.argsort(-best, kind="stable")[:topk_groups]
            mask = np.full(groups.shape, True)
            mask[kept] = False
            order = np.lexsort((np.arange(len(keys)), -keys, mask.ravel()))
        else:
            order = np.argsort(-keys, kind="stable")
        chosen = order[:top_k]
        s = sigmoid(row[chosen])
        if method == RoutingMethod.DEFAULT:
            of = np.exp(row - row.max())
            w = of[chosen] / of.sum()
        elif method in (RoutingMethod.RENORMALIZE, RoutingMethod.RENORMALIZE_NAIVE):
            of = np.exp(row[chosen] - row[chosen].max())
            w = of / of.sum()
        elif method in (RoutingMethod.DEEPSEEK_V3, RoutingMethod.MINIMAX2):
            w = scale * s / s.sum()
        elif method == RoutingMethod.SIGMOID_RENORM:
            w = s / s.sum() if normalize else s
        elif method == RoutingMethod.TOP_K:
            w = row[chosen]
        else:
            w = s
        ids.append(chosen)
        weights.append(w)
    return np.array(ids).reshape(len(x), top_k), np.array(weights).reshape(len(x), top_k)


def logits_of(rng: np.random.Generator, rows: int, experts: int) -> npt.NDArray[np.float32]:
    """Well apart, so that the rounding of a sigmoid decides no order."""
    order = np.argsort(rng.random((rows, experts)), axis=1)
    return (order * (8.0 / experts) - 4.0).astype(np.float32)


@pytest.mark.parametrize("method", list(RoutingMethod))
@pytest.mark.parametrize("experts", [8, 130, 256])
def test_every_method_is_its_definition(method: RoutingMethod, experts: int) -> None:
    rng = np.random.default_rng(5)
    logits = logits_of(rng, 33, experts)
    top_k = 1 if method == RoutingMethod.LLAMA4 else 4
    options: dict[str, Any] = {}
    if method in (RoutingMethod.DEEPSEEK_V3, RoutingMethod.MINIMAX2):
        options = {"bias": rng.normal(size=experts).astype(np.float32), "scale": 2.5}
    if method == RoutingMethod.DEEPSEEK_V3:
        options |= {"num_groups": 2, "topk_groups": 1}
    ids, weights = reference(method, logits, top_k, **options)
    got = waymark.route(logits, top_k=top_k, method=method, **options)
    assert got.topk_ids.dtype == np.int32 and got.topk_weights.dtype == np.float32
    assert got.routed is None
    np.testing.assert_array_equal(got.topk_ids, ids)
    np.testing.assert_allclose(got.topk_weights, weights, rtol=2e-6)
    # By name; and logits of half the width give the same for what it can hold.
    name: Any = method.name.lower()
    halves = logits.astype(np.float16)
    got = waymark.route(halves, top_k=top_k, method=name, **options)
    ids, weights = reference(method, halves, top_k, **options)
    np.testing.assert_array_equal(got.topk_ids, ids)
    np.testing.assert_allclose(got.topk_weights, weights, rtol=2e-6)


def test_without_normalize() -> None:
    logits = logits_of(np.random.default_rng(6), 9, 16)
    got = waymark.route(logits, top_k=3, method="sigmoid_renorm", normalize=False)
    want = reference(RoutingMethod.SIGMOID_RENORM, logits, 3, normalize=False)
    np.testing.assert_allclose(got.topk_weights, want[1], rtol=2e-6)
    assert got.topk_weights.sum(axis=1).max() > 1


def test_ties_go_to_the_lowest_id() -> None:
    logits = np.zeros((2, 200), np.float32)
    logits[1, [7, 150, 199]] = 1.0
    got = waymark.route(logits, top_k=4)
    np.testing.assert_array_equal(got.topk_ids, [[0, 1, 2, 3], [7, 150, 199, 0]])
    # -0 and +0 are equal.
    logits[0, ::2] = -0.0
    np.testing.assert_array_equal(waymark.route(logits, top_k=4).topk_ids[0], [0, 1, 2, 3])


def test_nan_counts_as_minus_infinity() -> None:
    logits = np.full((3, 8), -np.inf, np.float32)
    logits[0, :] = np.nan
    logits[1, 5] = 2.0
    logits[2, [1, 6]] = [np.nan, 3.0]
    got = waymark.route(logits, top_k=3)
    np.testing.assert_array_equal(got.topk_ids, [[0, 1, 2], [5, 0, 1], [6, 0, 1]])
    assert np.isfinite(got.topk_weights).all()
    np.testing.assert_allclose(got.topk_weights[0], 1 / 3, rtol=1e-6)


def test_replay_uses_what_was_recorded() -> None:
    logits = logits_of(np.random.default_rng(7), 6, 32)
    replay_out = np.empty((6, 4), np.int16)
    first = waymark.route(logits, top_k=4, replay_out=replay_out)
    np.testing.assert_array_equal(replay_out, first.topk_ids)
    replay_in = replay_out[:, ::-1].copy()
    replay_in[2, 1] = -1  # missing
    replay_in[4] = [3, 9, 3, 1]  # one id twice
    replay_in[5, 0] = 32  # no expert
    got = waymark.route(logits, top_k=4, replay_in=replay_in)
    np.testing.assert_array_equal(got.routed, [0, 0, 1, 0, 1, 1])
    replayed = got.routed == 0
    np.testing.assert_array_equal(got.topk_ids[replayed], replay_in[replayed])
    np.testing.assert_array_equal(got.topk_ids[~replayed], first.topk_ids[~replayed])
    # The same bits: of a sum over the selected, in their order.
    chosen = np.take_along_axis(logits.astype(np.float64), got.topk_ids, axis=1)
    terms = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        got.topk_weights, terms / terms.sum(axis=1, keepdims=True), rtol=2e-6
    )


def test_strided_rows_given_outputs_and_no_rows() -> None:
    wide = logits_of(np.random.default_rng(8), 10, 64)
    ids = np.full((12, 2), -5, np.int32)
    weights = np.full((12, 4), -5, np.float32)[:, :2]
    got = waymark.route(wide[::2, :16], top_k=2, topk_ids=ids, topk_weights=weights)
    assert got.topk_ids is ids and got.topk_weights is weights
    want = waymark.route(np.ascontiguousarray(wide[::2, :16]), top_k=2)
    np.testing.assert_array_equal(ids[:5], want.topk_ids)
    np.testing.assert_array_equal(weights[:5], want.topk_weights)
    assert (ids[5:] == -5).all() and (weights[5:] == -5).all()
    none = waymark.route(wide[:0], top_k=2)
    assert none.topk_ids.shape == (0, 2)


class Tensor:
    """A tensor of another framework, bfloat16 too: data_ptr(), shape, stride(), dtype, device."""

    def __init__(self, array: Any, dtype: str, device: str = "cpu") -> None:
        self.array, self.shape = array, array.shape
        self.dtype = "framework." + dtype
        self.device = type("Device", (), {"type": device, "index": 0})()

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def element_size(self) -> int:
        return int(self.array.itemsize)


class Capsule:
    """Another framework's array of bfloat16, by DLPack alone."""

    def __init__(self, array: npt.NDArray[np.uint16]) -> None:
        self.array = array
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        # DLTensor: data, device, ndim, dtype (code 4: bfloat16), shape, strides, offset;
        # then DLManagedTensor's context and deleter.
        self.memory = (ctypes.c_uint64 * 8)(
            array.ctypes.data, 1, array.ndim | (4 << 32) | (16 << 40) | (1 << 48),
            ctypes.addressof(self.shape), 0, 0, 0, 0,
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.memory), b"dltensor", None)


def test_bfloat16_by_dlpack_and_by_tensor() -> None:
    exact = logits_of(np.random.default_rng(9), 20, 64)
    halves = (exact.view(np.uint32) >> 16).astype(np.uint16)
    as_float = (halves.astype(np.uint32) << 16).view(np.float32)
    want = waymark.route(as_float, top_k=5)
    for make in (Capsule, lambda array: Tensor(array, "bfloat16")):
        ids = np.empty((20, 5), np.int32)
        weights = np.empty((20, 5), np.float32)
        waymark.route(make(halves), top_k=5, topk_ids=ids, topk_weights=weights)
        np.testing.assert_array_equal(ids, want.topk_ids)
        np.testing.assert_array_equal(weights, want.topk_weights)
    weights16 = np.empty((20, 5), np.uint16)
    waymark.route(as_float, top_k=5, topk_weights=Tensor(weights16, "bfloat16"))
    near = (weights16.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(near, want.topk_weights, rtol=2**-8)


def test_what_a_view_records_is_what_lands(make_rig: Callable[..., Rig]) -> None:
    layers = [(layer, f"model.{layer}", "routing_kernel") for layer in range(3)]
    rig = make_rig(layers=layers)
    rng = np.random.default_rng(11)
    rows = 8
    step = rig.begin(list(range(rows)), [0, 1])
    view = rig.session.view(step)
    routed = []
    for layer in range(3):
        logits = logits_of(rng, rows + 3, 16)  # three rows of padding
        if layer == 2:  # by the session, and the step
            routed.append(rig.session.route(step, layer, logits, top_k=2, method="sigmoid"))
        else:
            routed.append(waymark.route(logits, top_k=2, view=view, layer=layer))
        want = reference(RoutingMethod.RENORMALIZE, logits, 2)[0]
        np.testing.assert_array_equal(routed[-1].topk_ids, want)
        np.testing.assert_array_equal(view.layer(layer)[: rows + 3], want)
    rig.session.submit(step)
    with rig.store.snapshot([0, 1], 0, rows) as snapshot:
        snapshot.wait(10)
        ids, infos = snapshot.read_with_info(layout="LTK")
    assert set(infos["step"]) == {step} and not infos["reason"].any()
    for layer in range(3):
        np.testing.assert_array_equal(ids[layer], routed[layer].topk_ids[:rows])


def test_what_is_wrong_is_named(make_rig: Callable[..., Rig]) -> None:
    logits = np.zeros((4, 16), np.float32)
    route: Any = waymark.route

    def refused(text: str, *args: Any, error: Any = waymark.InvalidArgumentError, **named: Any) -> None:
        options = {"top_k": 2, **named}
        with pytest.raises(error, match=text):
            route(*(args or (logits,)), **options)

    refused(r"top_k must be at most 16, got 17", top_k=17)
    refused(r"top_k must be at least 1, got -1", top_k=-1)
    refused(r"method: one of default, ", method="best")
    refused(r"method must be in \[0, 9\], got 77", method=77)
    refused(r"bias must not be given", bias=np.zeros(16, np.float32))
    refused(r"bias must have 16 elements, got 15", method="minimax2", bias=np.zeros(15, np.float32))
    refused(r"num_groups, topk_groups: at least 1", num_groups=0)
    refused(r"num_groups must be at most 1, got 2", num_groups=2)
    refused(r"num_groups must divide", method="deepseek_v3", num_groups=3)
    refused(r"scale: not 0", scale=0)
    refused(r"scale must not be given", scale=2.0)
    refused(r"normalize must not be given", normalize=False)
    refused(r"logits must have rank 2", np.zeros(4, np.float32), topk_ids=np.zeros((4, 2), np.int32))
    refused(r"logits: one or two dimensions, got 3", np.zeros((1, 4, 16), np.float32))
    refused(r"logits has a type", logits.astype(np.int32))
    refused(r"logits must be of a type", logits.astype(np.float64), error=TypeError)
    refused(r"logits must have adjacent", np.zeros((16, 4), np.float32).T)
    refused(r"logits must be an array", [[1.0]], error=TypeError)
    refused(r"topk_ids has a type", topk_ids=np.zeros((4, 2), np.int64))
    refused(r"topk_ids must have 4 rows or more, got 3", topk_ids=np.zeros((3, 2), np.int32))
    refused(r"topk_weights must have 2 columns, got 3", topk_weights=np.zeros((4, 3), np.float32))
    sealed = np.zeros((4, 2), np.int32)
    sealed.flags.writeable = False
    refused(r"topk_ids: must be writable", topk_ids=sealed)
    refused(r"routed must not be given", routed=np.zeros(4, np.uint8))
    refused(r"replay_in has a type", replay_in=np.zeros((4, 2), np.int32))
    refused(r"replay_out must have 4 rows", replay_out=np.zeros((3, 2), np.int16))
    refused(r"topk_ids must be given", Tensor(logits, "float32"))
    refused(r"topk_ids must be on the host", topk_ids=Tensor(np.zeros((4, 2), np.int32), "int32", "cuda"))

    rig = make_rig(layers=[(0, "model.0", "routing_kernel"), (1, "model.1", "hands_over")])
    step = rig.begin([0, 1], [0])
    view = rig.session.view(step)
    refused(r"view, layer: both or neither", view=view)
    refused(r"view, layer: both or neither", layer=0)
    refused(r"stream: not with a view", view=view, layer=0, stream=1)
    refused(r"view must be a View", view=step, layer=0, error=TypeError)
    refused(r"layer: must be in \[0, 3\)", view=view, layer=3)
    refused(r"routing kernel", view=view, layer=1, error=waymark.FailedPreconditionError)
    refused(r"top_k must be the session's, 2, got 3", view=view, layer=0, top_k=3)
    refused(r"experts, 16, got 8", np.zeros((4, 8), np.float32), view=view, layer=0)
    refused(r"replay_out must have 65 rows or more, got 64", np.zeros((65, 16), np.float32),
            view=view, layer=0)  # fmt: skip
    refused(r"replay_out must not be given", view=view, layer=0, replay_out=np.zeros((4, 2), np.int16))
    with pytest.raises(waymark.InvalidArgumentError) as error:
        route(logits, top_k=3, view=view, layer=0)
    assert (error.value.rule, error.value.value, error.value.limit) == (145, 3, 2)
    assert (view.array == -1).all()
    rig.session.cancel(step)
    refused(r"step must have been begun", view=view, layer=0, error=waymark.NotFoundError)


def test_device_arrays_need_cuda() -> None:
    if "cuda=none" not in waymark.build_info():
        pytest.skip("CUDA is built in")
    on_device = Tensor(np.zeros((4, 16), np.float32), "float32", "cuda")
    with pytest.raises(waymark.UnimplementedError, match="CUDA was not built"):
        waymark.route(on_device, top_k=2, stream=0)
    with pytest.raises(TypeError, match="stream must be"):
        waymark.route(on_device, top_k=2, stream="main")
