"""Rows: what is read, as values, merges, pickles."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig
from waymark import CoverageRun, Provenance, Reason, Rows


def written(rig: Rig, missing: bool = True) -> tuple[Rows, Any]:
    """Rows [0, 8), of which row 3 is missing, and the ids [8, L, K]."""
    slots = waymark.slots_of([1, 2], 4, 0, 8)
    if missing:
        slots[3] = waymark.NOT_ASKED(int(slots[3]))
    ids = rig.write(slots, [1, 2], version=6)
    return rig.read([1, 2], 8), ids


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("layout", ["TLK", "LTK"])
@pytest.mark.parametrize("fill", ["minus_one", "zeros"])
@pytest.mark.parametrize("experts", [16, 300])
def test_read(
    make_rig: Callable[..., Rig], dtype: Any, layout: Any, fill: Any, experts: int
) -> None:
    rig = make_rig(num_experts=experts)
    rows, ids = written(rig)
    if dtype is np.uint8 and (experts > 256 or fill == "minus_one"):
        with pytest.raises(waymark.InvalidArgumentError):
            rows.astype(dtype, layout=layout, fill=fill)
        return
    filled = {"minus_one": -1, "zeros": 0}[fill]
    want = ids.astype(np.int64)
    want[3] = filled
    want = want.astype(dtype)
    got = rows.astype(dtype, layout=layout, fill=fill)
    of_layout = want if layout == "TLK" else want.transpose(1, 0, 2)
    assert got.dtype == dtype and got.flags.c_contiguous and (got == of_layout).all()
    for part in (rows[2:6], rig.read([1, 2], 6, 2)):
        assert (part.first, part.last) == (2, 6)
        assert (part.astype(dtype, fill=fill) == want[2:6]).all()
    out = np.zeros_like(got)
    assert rows.astype(dtype, layout=layout, fill=fill, out=out) is out
    assert (out == of_layout).all()


def test_infos_and_coverage(rig: Rig) -> None:
    rows, _ = written(rig)
    infos = rows.infos[1:5]
    assert infos.dtype == waymark.row_info_dtype
    assert list(infos["reason"]) == [0, 0, Reason.NOT_CAPTURED, 0]
    assert list(infos["version"]) == [6, 6, 0, 6] and list(infos["step"]) == [1, 1, 0, 1]
    runs = [
        CoverageRun(0, 3, Reason.NONE, 6, Provenance.HERE),
        CoverageRun(3, 4, Reason.NOT_CAPTURED, 0, Provenance.HERE),
        CoverageRun(4, 8, Reason.NONE, 6, Provenance.HERE),
    ]
    assert rows.coverage() == runs
    assert [r.valid for r in runs] == [True, False, True]
    assert isinstance(rows.coverage()[0].reason, Reason)


def test_long_coverage(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(num_blocks=64)
    slots = waymark.slots_of(range(64), 4, 0, 256)
    slots[::2] = waymark.NOT_ASKED(slots[::2])
    rig.write(slots, range(64))
    assert len(rig.read(range(64), 256).coverage()) == 256


def test_wrong_reads(rig: Rig) -> None:
    rows, _ = written(rig)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"layout": "KLT"}, "layout: one of TLK, LTK; got 'KLT'"),
        ({"fill": 7}, "fill: one of minus_one, zeros; got 7"),
        ({"dtype": np.float32}, "dtype: one of uint8"),
        ({"dtype": ">i2"}, "dtype: one of uint8"),
        ({"out": np.zeros((8, 3, 2))}, "out: int16 [8, 3, 2], got float64"),
        ({"out": np.zeros((8, 3, 3), np.int16)}, "got int16 [8, 3, 3]"),
        ({"out": np.zeros((8, 3, 2), np.int16, order="F")}, "out: C order"),
        ({"out": np.frombuffer(bytes(96), np.int16).reshape(8, 3, 2)}, "out: C order and writable"),
    ]
    for options, text in cases:
        with pytest.raises(waymark.InvalidArgumentError) as caught:
            rows.astype(**options)
        assert text in str(caught.value)


def test_wrong_takes(rig: Rig) -> None:
    cases = [
        ([0], 0, 5, "last"), ([0], -1, 2, "first"), ([0], 3, 2, "last"), ([32], 0, 1, "32"),
        ([0], 0, -1, "last"),
    ]  # fmt: skip
    for blocks, first, tokens, text in cases:
        with pytest.raises((waymark.OutOfRangeError, waymark.InvalidArgumentError)) as caught:
            rig.store.take(blocks, tokens, first)
        assert text in str(caught.value)
    with pytest.raises(TypeError):
        rig.store.take("0", 1)
    assert len(rig.read([3, 5, 99, -1], 5)) == 5  # behind the rows nothing is looked at
    empty = rig.read([], 0)
    assert len(empty) == 0 and empty.ids.shape == empty.astype().shape == (0, 3, 2)


def test_rows_live_as_long_as_they_are_held(rig: Rig) -> None:
    rows, ids = written(rig, missing=False)
    rig.write(waymark.slots_of([1, 2], 4, 0, 8), [1, 2])
    rig.store.wait_idle(10)
    assert (rows.ids == ids).all() and (rows.astype() == ids).all()


def test_rows_are_arrays(make_rig: Callable[..., Rig]) -> None:
    for experts, dtype in ((16, np.uint8), (300, np.uint16)):
        rig = make_rig(num_experts=experts, layer_ids=[1, 3, 4])
        rows, ids = written(rig)
        assert (rows.first, rows.last, len(rows), rows.layer_ids) == (0, 8, 8, (1, 3, 4))
        assert rows.ids.dtype == dtype and rows.ids.shape == (8, 3, 2)
        assert not rows.ids.flags.writeable and not rows.infos.flags.writeable
        assert list(rows.valid) == [True] * 3 + [False] + [True] * 4
        assert list(rows.reasons) == [0, 0, 0, Reason.NOT_CAPTURED, 0, 0, 0, 0]
        want = ids[rows.valid]
        assert (rows.ids[rows.valid] == want).all()
        assert not rows.ids[3].any()
        kept, infos = rows.ids, rows.infos
        del rows, rig
        gc.collect()
        assert (kept[:3] == want[:3]).all()
        del kept
        again = Rig(num_experts=experts)
        assert written(again)[0].ids is not None  # takes memory that was freed
        assert list(infos["step"]) == [1, 1, 1, 0, 1, 1, 1, 1]
        assert list(infos["version"]) == [6, 6, 6, 0, 6, 6, 6, 6]


def test_rows_from_arrays(rig: Rig) -> None:
    rows, _ = written(rig)
    ids, infos = np.array(rows.ids), np.array(rows.infos)
    again = Rows(rows.shape, 5, ids, infos)
    assert again.ids.ctypes.data == ids.ctypes.data and (again.first, again.last) == (5, 13)
    assert (again.astype() == rows.astype()).all()
    shape = rows.shape
    few = shape._replace(num_experts=int(ids.max()))
    missing = infos.copy()
    missing[ids.max(axis=(1, 2)) == ids.max()] = (0, 0, waymark.Reason.CAPACITY, 0, 9)
    assert not Rows(few, 0, ids, missing).valid.all()  # the ids of missing rows are not looked at
    wrong: list[tuple[Any, str]] = [
        ((shape, 0, ids.astype(np.int16), infos), "ids: uint8 [8, 3, 2] in C order, got int16"),
        ((shape, 0, ids[:7], infos), "got uint8 [7, 3, 2]"),
        ((shape, 0, np.asfortranarray(ids), infos), "ids: uint8"),
        ((shape._replace(top_k=3), 0, ids, infos), "ids: uint8 [8, 3, 3]"),
        ((shape, 0, ids, np.zeros(8, np.uint8)), "infos: row_info_dtype"),
        ((shape, 0, ids[::2], infos[::2]), "ids"),
        ((shape, -1, ids, infos), "first: rows in [0, 2^31), got 8 rows from -1 on"),
        ((shape, (1 << 31) - 8, ids, infos), "first: rows in [0, 2^31), got 8 rows from 2147483640 on"),
        ((few, 0, ids, infos), f"ids: must be below num_experts ({few.num_experts}); row "),
    ]
    for arguments, text in wrong:
        with pytest.raises(waymark.InvalidArgumentError) as caught:
            Rows(*arguments)
        assert text in str(caught.value)
    for field, value in (("reason", 9), ("cause", 40), ("provenance", 77)):
        of_none = infos.copy()
        of_none[field][3] = value
        text = rf"infos\[3\]\.{field}: must be .*; it is {value}"
        with pytest.raises(waymark.InvalidArgumentError, match=text):
            Rows(shape, 0, ids, of_none)
    with pytest.raises(waymark.InvalidArgumentError):
        Rows(shape._replace(layer_ids=(2, 1, 0)), 0, ids, infos).coverage()
    with pytest.raises(waymark.InvalidArgumentError):
        Rows(shape._replace(layer_ids=(1,)), 0, ids, infos).coverage()


def test_the_padding_of_infos_means_nothing(rig: Rig) -> None:
    """Regression: np.empty() and np.array([(1, 1, 0, 0)], row_info_dtype) leave it undefined, and
    every use of the rows was refused."""
    rows = written(rig)[0]
    dtype = waymark.row_info_dtype
    infos = np.full(len(rows) * dtype.itemsize, 0xAB, np.uint8).view(dtype)
    for field in waymark.row_info_dtype.names or ():
        infos[field] = rows.infos[field]
    again = Rows(rows.shape, 0, np.array(rows.ids), infos)
    assert again.to_bytes() == rows.to_bytes() and again.handle() == rows.handle()
    assert again.coverage() == rows.coverage()
    assert (waymark.join(again, rows).infos == rows.infos).all()
    padding = infos.view(np.uint8).reshape(-1, 24)[:, 19:]
    assert (padding == 0xAB).all()  # the caller's stay as they are
    clean = np.zeros_like(infos)
    clean.view(np.uint8)[:] = rows.infos.view(np.uint8)
    assert np.shares_memory(Rows(rows.shape, 0, np.array(rows.ids), clean).infos, clean)


def test_join(rig: Rig) -> None:
    a, ids = written(rig)
    other = rig.write(waymark.slots_of([5, 6], 4, 0, 8), [5, 6], version=7)
    joined = waymark.join(a, rig.read([5, 6], 8, 2))
    assert len(joined) == 8 and joined.valid.all()
    assert list(joined.infos["version"]) == [6, 6, 6, 7, 6, 6, 6, 6]
    want = ids.copy()
    want[3] = other[3]
    assert (joined.ids == want).all()


def stages() -> tuple[list[Rows], Any]:
    rows, ids = [], []
    for layer_ids in ([0, 2], [3], [7, 8, 9]):
        read, of_stage = written(Rig(num_layers=len(layer_ids), layer_ids=layer_ids))
        rows.append(read)
        ids.append(of_stage)
    return rows, np.concatenate(ids, axis=1)


def test_join_layers() -> None:
    rows, ids = stages()
    joined = Rows.join_layers(rows)
    assert joined.layer_ids == (0, 2, 3, 7, 8, 9) and joined.shape.num_layers == 6
    want = ids.copy()
    want[3] = -1
    assert (joined.astype() == want).all()
    with pytest.raises(waymark.InvalidArgumentError):
        Rows.join_layers(rows[::-1])
    with pytest.raises(waymark.InvalidArgumentError):
        Rows.join_layers([])


def test_pickles_carry_the_arrays_out_of_band(rig: Rig) -> None:
    rows = written(rig)[0]
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(rows, 5, buffer_callback=buffers.append)
    assert len(buffers) == 2 and len(data) < 400
    assert buffers[0].raw().nbytes == rows.ids.nbytes
    # No copy when it is written: the buffers are the rows' own memory.
    address = np.frombuffer(buffers[0], np.uint8).ctypes.data
    assert address == rows.ids.ctypes.data
    received = [bytearray(b.raw()) for b in buffers]
    again = pickle.loads(data, buffers=received)
    # Nor when it is read.
    assert again.ids.ctypes.data == np.frombuffer(received[0], np.uint8).ctypes.data
    assert not again.ids.flags.writeable
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(rows, protocol))
        assert other.shape == rows.shape and other.first == rows.first
        assert (other.ids == rows.ids).all() and (other.infos == rows.infos).all()
        assert other.coverage() == rows.coverage()
        assert (waymark.join(other, rows).ids == rows.ids).all()
    assert len(pickle.loads(pickle.dumps(rig.read([], 0), 5))) == 0


def test_reused_rows(rig: Rig) -> None:
    """What the request hit, what it computed in two lives, and what a row says that has no step."""
    prefix, mine, resumed = [1], [2, 3], [4, 5]
    rig.write(waymark.slots_of(prefix, 4, 0, 4), prefix)  # another request
    first_step = rig.store.last_step + 1
    rig.store.retain(prefix)  # a hit: 4 rows
    blocks = prefix + mine
    rig.write(waymark.slots_of(blocks, 4, 4, 9), mine)
    life = rig.read(blocks, 9)
    assert life.reused(first_step).tolist() == [True] * 4 + [False] * 5
    # Preempted, and computed again behind the same hit: its own rows are not reused.
    rig.store.release(mine)
    blocks = prefix + resumed
    rig.write(waymark.slots_of(blocks, 4, 4, 10), resumed)
    whole = waymark.join(life, rig.read(blocks, 12))
    assert whole.valid.tolist() == [True] * 10 + [False] * 2
    assert whole.reused(first_step).tolist() == [True] * 4 + [False] * 8
    assert not whole.reused(0).any()
    no_steps = waymark.from_bytes(whole.to_bytes(steps=False)).rows()
    assert no_steps.valid.any() and not no_steps.reused(first_step).any()
    for bad in (-1, 1 << 64):
        with pytest.raises(waymark.InvalidArgumentError, match=f"first_step: .*got {bad}"):
            whole.reused(bad)


def test_names_of_weights(rig: Rig) -> None:
    versions = waymark.WeightVersions(["step-1000"])
    new = versions.number("step-1200")
    assert (versions.number("step-1000"), new, versions.number("step-1200")) == (1, 2, 2)
    assert versions.names == ("step-1000", "step-1200") and "step-1200" in repr(versions)
    rig.write(waymark.slots_of([1], 4, 0, 2), [1], version=versions.number("step-1000"))
    rig.write(waymark.slots_of([1], 4, 2, 3), version=new)
    rows = rig.read([1], 4)
    crossed = pickle.loads(pickle.dumps(versions))
    for read in (rows, waymark.from_bytes(rows.to_bytes())):
        runs = read.coverage(crossed)
        assert [(r.end - r.begin, r.version_name) for r in runs] == [
            (2, "step-1000"), (1, "step-1200"), (1, "")
        ]  # fmt: skip
        assert [r.version_name for r in read.coverage()] == ["", "", ""]
    assert versions.name(0) == versions.name(3) == versions.name(-1) == ""
    with pytest.raises(waymark.InvalidArgumentError, match="'a' twice"):
        waymark.WeightVersions(["a", "a"])
    for bad in ("", 7):
        with pytest.raises(waymark.InvalidArgumentError, match="name: a str that is not empty"):
            versions.number(bad)  # type: ignore[arg-type]


# ---- rows of arrays, and parts of rows ----


def array_rows(seed: int, count: int = 20, experts: int = 64) -> tuple[Rows, Any]:
    rng = np.random.default_rng(seed)
    ids = rng.random((count, 4, experts)).argsort(-1)[..., :3]
    return Rows.from_array(ids, num_experts=experts, layer_ids=(1, 2, 5, 6)), ids


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("experts", [64, 256, 300])
def test_from_array(dtype: Any, experts: int) -> None:
    experts = min(experts, 256) if dtype == np.uint8 else experts
    rng = np.random.default_rng(3)
    ids = rng.random((10, 2, min(experts, 250))).argsort(-1)[..., :3].astype(dtype)
    valid = np.ones(10, np.bool_)
    valid[4] = False
    ids[4] = 7  # not looked at
    rows = Rows.from_array(
        ids, num_experts=experts, layer_ids=(0, 1), valid=valid, first=5, version=3
    )
    assert (rows.first, rows.last, rows.shape.num_experts) == (5, 15, experts)
    assert rows.layer_ids == (0, 1) and (rows.valid == valid).all()
    assert (rows.ids[valid] == ids[valid]).all() and (rows.ids[4] == 0).all()
    assert (ids[4] == 7).all()  # the caller's array is as it was
    assert rows.reasons[4] == Reason.NOT_TOLD
    assert rows.coverage()[0].version == 3 and rows.coverage()[1].version == 0
    assert (rows.astype(np.int32)[4] == -1).all()
    whole = Rows.from_array(
        np.ascontiguousarray(ids[:4]), num_experts=experts, layer_ids=(0, 1)
    )
    assert np.shares_memory(whole.ids, ids) == (dtype == rows.shape.id_dtype) or dtype != np.uint8
    stored = np.ascontiguousarray(ids[:4].astype(rows.shape.id_dtype))
    whole = Rows.from_array(stored, num_experts=experts, layer_ids=(0, 1))
    assert np.shares_memory(whole.ids, stored)


def test_from_array_refuses_what_no_router_chooses() -> None:
    ids = np.array([[[0, 1, 2]], [[3, 4, 5]], [[6, 7, 8]]])
    for bad, text in ((-1, "got -1 in row 1"), (9, "got 9 in row 1"), (256, "got 256 in row 1")):
        wrong = ids.copy()
        wrong[1, 0, 2] = bad
        with pytest.raises(waymark.InvalidArgumentError, match=text):
            Rows.from_array(wrong, num_experts=9, layer_ids=[0])
        valid = np.array([True, False, True])
        rows = Rows.from_array(wrong, num_experts=9, layer_ids=[0], valid=valid)
        assert rows.valid.tolist() == valid.tolist()
    wrong = ids.copy()
    wrong[2, 0] = [6, 8, 6]
    with pytest.raises(waymark.InvalidArgumentError, match="row 2, layer 4"):
        Rows.from_array(wrong, num_experts=9, layer_ids=[4])
    for arguments, text in (
        ({"ids": ids[0]}, r"ids: integers \[T, L, K\]"),
        ({"ids": ids.astype(np.float32)}, "float32"),
        ({"valid": [1, 0, 1]}, "valid: bool"),
        ({"valid": [True]}, r"valid: bool \[3\]"),
        ({"layer_ids": [1, 2]}, "layer_ids"),
        ({"layer_ids": [-1]}, "layer_ids"),
        ({"num_experts": 2}, "top_k"),
        ({"num_experts": 0}, "num_experts"),
        ({"first": -1}, "first"),
        ({"version": -1}, "version"),
        ({"missing": Reason.NONE}, "missing"),
    ):
        with pytest.raises(waymark.InvalidArgumentError, match=text):
            Rows.from_array(**{"ids": ids, "num_experts": 9, "layer_ids": [0], **arguments})  # type: ignore[arg-type]
    assert len(Rows.from_array(ids[:0], num_experts=9, layer_ids=[0])) == 0


def test_the_layers_of_a_shape_are_those_of_the_ids() -> None:
    """Of rows with too few numbers the trainer's fill took layers 0, 1, ..."""
    rows, _ = stages()
    shape = rows[0].shape
    assert len(shape.layer_ids) > 1
    for numbers in (shape.layer_ids[:-1], shape.layer_ids[::-1], (-1, *shape.layer_ids[1:]),
                    (*shape.layer_ids[:-1], shape.layer_ids[-2])):  # fmt: skip
        with pytest.raises(waymark.InvalidArgumentError, match="layer_ids"):
            Rows(shape._replace(layer_ids=numbers), rows[0].first, rows[0].ids, rows[0].infos)


def test_slices_are_views() -> None:
    rows, ids = array_rows(1)
    part = rows[3:9]
    assert (part.first, part.last) == (3, 9) and (part.ids == ids[3:9]).all()
    assert np.shares_memory(part.ids, rows.ids)
    assert (part[2:4].ids == ids[5:7]).all() and part[2:4].first == 5
    assert (rows[-4:].ids == ids[-4:]).all() and rows[-4:].first == 16
    assert len(rows[9:3]) == 0 and rows[9:3].first == 9 and len(rows[:]) == 20
    assert (part.astype(np.int64, layout="LTK") == ids[3:9].transpose(1, 0, 2)).all()
    assert (waymark.from_bytes(part.to_bytes()).rows().ids == ids[3:9]).all()
    assert (waymark.join(rows[:3], part, rows[9:]).ids == ids).all()
    assert (pickle.loads(pickle.dumps(part, 5)).ids == ids[3:9]).all()
    with pytest.raises(waymark.InvalidArgumentError, match="a step of 1"):
        rows[::2]
    with pytest.raises(TypeError, match="a slice"):
        rows[3]  # type: ignore[index]


def test_of_layers() -> None:
    rows, ids = array_rows(2)
    part = rows.of_layers([2, 5])
    assert part.layer_ids == (2, 5) and (part.ids == ids[:, 1:3]).all()
    assert np.shares_memory(part.ids, rows.ids)
    apart = rows.of_layers([1, 6])
    assert apart.layer_ids == (1, 6) and (apart.ids == ids[:, [0, 3]]).all()
    for of in (part, apart, part[4:7]):
        assert (of.astype(np.int64) == of.ids).all()
        assert (waymark.from_bytes(of.to_bytes()).rows().ids == of.ids).all()
        for protocol in (2, 5):
            assert (pickle.loads(pickle.dumps(of, protocol)).ids == of.ids).all()
    assert (Rows.join_layers([rows.of_layers([1, 2]), rows.of_layers([5, 6])]).ids == ids).all()
    assert (rows.astype(np.int16, layers=(1, 3)) == ids[:, 1:3]).all()
    assert (rows.astype(np.int16, layers=(0, 4)) == ids).all()
    for bad in ([3], [], [2, 1], [2, 2]):
        with pytest.raises(waymark.InvalidArgumentError, match="layer_ids"):
            rows.of_layers(bad)
    with pytest.raises(waymark.InvalidArgumentError, match="layers"):
        rows.astype(np.int16, layers=(2, 2))


@pytest.mark.parametrize("experts", [8, 256, 300])
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_pack_ids(experts: int, dtype: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    every = np.tile(np.arange(experts), (40, 3, 1))
    ids = random.permuted(every, axis=2)[:, :, :5].astype(dtype)
    wide = np.full((40, 4, 6), 99, dtype)
    wide[:, :3, :5] = ids
    for given in (ids, wide[:, :3, :5], np.ascontiguousarray(ids.transpose(1, 0, 2)).transpose(1, 0, 2)):
        rows, reasons = waymark.pack_ids(given, experts)
        assert reasons is None and (rows == ids).all()
        assert rows.dtype == (np.uint8 if experts <= 256 else np.uint16)
    ids[3, 1], ids[5, 2, 0], ids[7, 0, 1], ids[9, 1, 2] = -1, experts, ids[7, 0, 0], -1
    rows, reasons = waymark.pack_ids(ids, experts)
    assert reasons is not None
    found = {int(row): waymark.Reason(int(reasons[row])) for row in np.flatnonzero(reasons)}
    wrong = waymark.Reason.INVALID_ID
    assert found == {3: waymark.Reason.NOT_CAPTURED, 5: wrong, 7: wrong, 9: wrong}
    assert (rows[reasons == 0] == ids[reasons == 0]).all()
    empty, reasons = waymark.pack_ids(ids[:0], experts)
    assert empty.shape == (0, 3, 5) and reasons is None


def test_pack_ids_refuses_what_is_no_array_of_ids() -> None:
    with pytest.raises(waymark.InvalidArgumentError, match="ids: "):
        waymark.pack_ids(np.zeros((2, 3), np.int16), 8)
    with pytest.raises(waymark.InvalidArgumentError, match="num_experts"):
        waymark.pack_ids(np.zeros((2, 3, 2), np.int16), 0)
    with pytest.raises(waymark.InvalidArgumentError, match="top_k"):
        waymark.pack_ids(np.zeros((2, 3, 9), np.int16), 8)
