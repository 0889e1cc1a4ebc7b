"""Routing in the formats of others: golden files and random rows, in and out."""

from __future__ import annotations

import base64
import io
import json
import mmap
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waymark
import waymark.trainer
from test_documents import expect_same, part, random_rows
from waymark import Provenance, Reason, Rows

DATA = Path(__file__).resolve().parents[1] / "data" / "formats"
ROW, LAYER, K = np.ogrid[:5, :3, :2]
SMALL = (3 * ROW + 5 * LAYER + 7 * K) % 16
WIDE = 17 * (3 * ROW + 5 * LAYER + 7 * K) % 300
SGLANG = {"format": "sglang", "num_layers": 3, "top_k": 2, "layers": "moe"}

# What tests/data/formats/make.py wrote: (file, ids, first row, what the bytes do not say).
GOLDEN: list[tuple[str, Any, int, dict[str, Any]]] = [
    ("v1_u1.npy", SMALL, 0, {}),
    ("v2_u2.npy", WIDE, 0, {}),
    ("v3_i4.npy", WIDE, 0, {}),
    ("v1_i8.npy", WIDE, 0, {}),
    ("fortran_i2.npy", SMALL, 0, {}),
    ("vllm.json", SMALL, 0, {"layers": "moe"}),
    ("vllm.txt", SMALL, 0, {"moe_layers": "all"}),
    ("vllm_all_layers.json", SMALL, 0, {"moe_layers": [1, 2, 3]}),
    ("vllm_lists.json", SMALL, 0, {"format": "vllm-lists"}),
    ("sglang_i4.json", WIDE, 0, SGLANG),
    ("sglang_u2.json", WIDE[2:], 2, {**SGLANG, "field": "/meta_info/routed_experts"}),
    ("megatron.json", SMALL, 0, {}),
    ("megatron_ndarray.json", SMALL, 0, {}),
    ("nemo_rl.txt", SMALL, 0, {}),
    ("skyrl.json", SMALL, 0, {"layers": "moe"}),
    ("prime_rl.json", SMALL[2:], 2, {"layers": "moe"}),
    ("lmdeploy.json", WIDE, 0, {"format": "lmdeploy", "moe_layers": "all"}),
    ("lmdeploy.json", WIDE[:, 1:], 0, {"format": "lmdeploy", "moe_layers": [1, 2]}),
]


@pytest.mark.parametrize("name, ids, first, said", GOLDEN, ids=[f"{i}-{g[0]}" for i, g in enumerate(GOLDEN)])
def test_golden_files_are_read(name: str, ids: Any, first: int, said: dict[str, Any]) -> None:
    experts = 16 if ids.max() < 16 else 300
    data = (DATA / name).read_bytes()
    with open(DATA / name, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("error")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for source in (
            data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), mapped,
            io.BytesIO(data), file, DATA / name, str(DATA / name),
        ):  # fmt: skip
            rows = waymark.read(source, num_experts=experts, **{"moe_layers": "all", **said})
            assert (rows.ids == ids).all() and rows.ids.shape == ids.shape
            assert rows.first == first and rows.valid.all() and rows.ordered
            assert rows.shape.num_experts == experts
            assert not rows.infos["step"].any() and rows.ordered
            assert (rows.infos["version"] == waymark.UNKNOWN_VERSION).all()
            assert (rows.infos["provenance"] == Provenance.UNKNOWN).all()
    numbers = said.get("moe_layers", "all")
    assert rows.layer_ids == ((0, 1, 2) if numbers == "all" else tuple(numbers))


def array_in(format: str) -> bytes:
    """[5, 3, 2] in a format, row 2 missing."""
    ids = SMALL.astype(np.int16)
    ids[2] = -1
    if format in ("skyrl", "prime-rl"):
        data = base64.b64encode(ids.tobytes()).decode()
        said = {"data": data, "shape": list(ids.shape), "dtype": "int16"}
        return json.dumps({**said, **({"start": 0} if format == "prime-rl" else {})}).encode()
    if format == "lmdeploy":
        return json.dumps(ids.tolist()).encode()
    rows = Rows.from_array(ids, num_experts=16, layer_ids=range(3), valid=ids[:, 0, 0] >= 0)
    how: dict[str, Any] = {"row_count": "tokens-1"} if format == "nemo-rl" else {}
    return rows.to_format(format, sentinel="-1", layers="moe", notes=[], **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("format", [
    "npy", "vllm", "vllm-lists", "sglang", "megatron", "megatron-ndarray", "nemo-rl", "skyrl",
    "prime-rl", "lmdeploy", "an array"])  # fmt: skip
def test_what_an_array_does_not_say_is_unknown(format: str, tmp_path: Path) -> None:
    """Not "never written", "version 0" or "here", which are facts."""
    if format == "an array":
        rows = Rows.from_array(SMALL, num_experts=16, layer_ids=range(3), valid=np.arange(5) != 2)
    else:
        said: dict[str, Any] = {**(SGLANG if format == "sglang" else {}), "row_count": "tokens-1"}
        said = {**said, "format": format, "layers": "moe", "moe_layers": range(3), "sentinel": "-1"}
        rows = waymark.read(array_in(format), num_experts=16, **said)
    again = waymark.from_bytes(rows.to_bytes())  # a document keeps it
    for read in (rows, again.rows(), waymark.join(rows[:3], rows), Rows.join_layers([rows])):
        reasons = [Reason.NONE] * 5
        reasons[2] = Reason.NOT_TOLD
        assert read.reasons.tolist() == reasons and (read.ids[3] == SMALL[3]).all()
        assert (read.infos["provenance"] == Provenance.UNKNOWN).all()
        assert (read.infos["version"][read.valid] == waymark.UNKNOWN_VERSION).all()
        assert not read.infos["step"].any() and str(Reason.NOT_TOLD) == "not told"
    # What is known of a row stands for what is not.
    told = rows.infos.copy()
    told["reason"][2] = Reason.EXTERNAL_KV
    known = waymark.join(rows, Rows(rows.shape, 0, rows.ids, told))
    assert known.reasons[2] == Reason.EXTERNAL_KV
    # The last token was never an input: nobody asks why it has no row.
    report = waymark.trainer.Layout().plan([3]).fill([rows[:3]], range(3)).report
    assert report.no_row == 1 and not report.missing


def test_a_field_is_found_where_it_is_said_to_be() -> None:
    reply = json.dumps({"choices": [{"routes": SMALL.tolist()}, {"routes": WIDE.tolist()}]}).encode()
    for at, ids in ((0, SMALL), (1, WIDE)):
        rows = waymark.read(reply, num_experts=300, moe_layers="all", field=f"/choices/{at}/routes")
        assert (rows.ids == ids).all()
    with pytest.raises(waymark.NotFoundError, match="/choices/2"):
        waymark.read(reply, num_experts=300, field="/choices/2/routes")


def test_bare_ids_of_the_moe_layers_have_as_many_columns() -> None:
    said: dict[str, Any] = {**SGLANG, "num_layers": 61, "moe_layers": [3, 5, 60]}
    rows = waymark.read(DATA / "sglang_i4.json", num_experts=300, **said)
    assert (rows.ids == WIDE).all() and rows.layer_ids == (3, 5, 60)


@pytest.mark.parametrize("missing", [False, True])
def test_an_answer_of_a_model_with_a_dense_layer(missing: bool) -> None:
    """Numbered 0, 1, 2, a stage would get the ids of other layers."""
    ids = SMALL.astype(np.int16 if missing else np.uint8)
    if missing:
        ids[2] = -1
    file, wide = io.BytesIO(), io.BytesIO()
    np.save(file, ids)
    np.save(wide, np.concatenate([ids[:, :1] * 0, ids], 1))  # of all layers: dense ones are 0
    for array in (file, wide):
        answer = json.dumps(
            {"choices": [{"routed_experts": base64.b64encode(array.getvalue()).decode()}]}
        ).encode()
        said: dict[str, Any] = {"num_experts": 16, "field": "/choices/0/routed_experts"}
        for too_little in ({}, {"layers": "moe"}, {"layers": "moe", "num_layers": 5}):
            with pytest.raises(waymark.InvalidArgumentError, match="moe_layers"):
                waymark.read(answer, **said, sentinel="-1", **too_little)
        for sentinel in ("-1", -1):
            rows = waymark.read(answer, **said, moe_layers=range(1, 4), sentinel=sentinel)
            assert rows.layer_ids == (1, 2, 3) and rows.valid.tolist() == (ids[:, 0, 0] >= 0).tolist()
            plan = waymark.trainer.Layout().plan([6])
            assert (plan.fill([rows], (1, 2)).ids[0][:2] == ids[:2, 0]).all()
        if missing:
            with pytest.raises(waymark.InvalidArgumentError, match="the sentinel is -1"):
                waymark.read(answer, **said, moe_layers=range(1, 4))


def test_lists_of_two_formats_are_not_guessed() -> None:
    with pytest.raises(waymark.InvalidArgumentError, match=r"vllm-lists.*lmdeploy"):
        waymark.read(DATA / "lmdeploy.json", num_experts=300)
    for said in ({"layers": "moe", "num_layers": 3}, {"moe_layers": [3, 4, 5]}, {"moe_layers": "all"}):
        assert (waymark.read(DATA / "lmdeploy.json", num_experts=300, **said).ids == WIDE).all()


def test_numpy_and_json_agree() -> None:
    rows = waymark.read(DATA / "v1_u1.npy", num_experts=16, moe_layers="all")
    assert (np.load(io.BytesIO(rows.to_format("npy", dtype=np.int32))) == SMALL).all()
    assert np.load(io.BytesIO(rows.to_format("npy"))).dtype == np.uint8
    assert json.loads(rows.to_format("megatron")) == SMALL.tolist()
    vllm = json.loads(rows.to_format("vllm", layers="moe"))["routed_experts"]
    assert (np.load(io.BytesIO(base64.b64decode(vllm))) == SMALL).all()
    every = json.loads(rows.to_format("sglang", num_layers=5))
    columns = np.frombuffer(base64.b64decode(every["routed_experts"]), every["routed_experts_dtype"])
    assert (columns.reshape(5, 5, 2)[:, :3] == SMALL).all()


def test_a_document_is_a_format(tmp_path: Path, seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), 40)
    rows.save(tmp_path / "a.wmk")
    for source in (tmp_path / "a.wmk", rows.to_bytes()):
        expect_same(waymark.read(source), rows)
        expect_same(waymark.read(source, "waymark"), rows)
    said: dict[str, Any] = {"num_experts": rows.shape.num_experts, "top_k": rows.shape.top_k,
                            "moe_layers": rows.layer_ids, "first": rows.first}  # fmt: skip
    expect_same(waymark.read(tmp_path / "a.wmk", **said), rows)
    for name, wrong in (("num_experts", 400), ("top_k", 63), ("moe_layers", [7]), ("first", 99)):
        with pytest.raises(waymark.InvalidArgumentError, match=f"{name}.* must be .*document's"):
            waymark.read(tmp_path / "a.wmk", **{**said, name: wrong})
    for name, wrong in (("moe_layers", "all"), ("num_layers", rows.layer_ids[-1])):
        with pytest.raises(waymark.InvalidArgumentError, match=f"{name}.* document's"):
            waymark.read(tmp_path / "a.wmk", **{name: wrong})
    waymark.read(tmp_path / "a.wmk", num_layers=rows.layer_ids[-1] + 1)
    with pytest.raises(waymark.InvalidArgumentError, match="layers is for arrays"):
        waymark.read(tmp_path / "a.wmk", layers="moe")
    with pytest.warns(waymark.FormatWarning, match="order"):
        waymark.read(rows.to_bytes(codec="set"))
    # The last byte is an id of the last row; damage to a chunk without a valid row is not counted.
    rows = part(rows, rows.first, rows.first + int(np.flatnonzero(rows.valid)[-1]) + 1)
    damaged = bytearray(rows.to_bytes())
    damaged[-1] ^= 1
    notes: list[str] = []
    got = waymark.read(damaged, notes=notes)
    assert len(notes) == 1 and "damaged or in a wrong place: 1, that are cut off: 0" in notes[0]
    assert (~got.valid).sum() > 0 and (got.ids[got.valid] == rows.ids[got.valid]).all()


def test_what_is_lost_is_told() -> None:
    lists = b"[[[0,7]],[[5,5]],[[-1,-1]]]"
    with pytest.warns(waymark.FormatWarning, match="twice") as caught:
        rows = waymark.read(lists, num_experts=8, moe_layers=[5], sentinel=-1)
    assert caught[0].filename == __file__
    assert rows.reasons.tolist() == [Reason.NONE, Reason.INVALID_ID, Reason.NOT_TOLD]
    with pytest.raises(waymark.FailedPreconditionError, match="sentinel"):
        rows.to_format("npy")
    with pytest.warns(waymark.FormatWarning, match="missing") as caught:
        rows.to_format("npy", sentinel="255", dtype="uint8")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows.to_format("npy", sentinel="255", dtype="uint8", notes=[])
        # The first dtype that has the sentinel, too.
        array = np.load(io.BytesIO(rows.to_format("npy", sentinel="-1", notes=[])))
    assert array.dtype == np.int16 and array[:, 0].tolist() == [[0, 7], [-1, -1], [-1, -1]]


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    npy = (DATA / "v1_u1.npy").read_bytes()
    invalid: list[tuple[dict[str, Any], str]] = [
        ({}, "num_experts is required"),
        ({"num_experts": -1}, "num_experts"),
        ({"num_experts": 16, "format": "nope"}, "'nope'"),
        ({"num_experts": 16, "format": "npy\0"}, "format must be npy"),
        ({"num_experts": 16}, "moe_layers is required"),
        ({"num_experts": 16, "sentinel": "7"}, "sentinel"),
        ({"num_experts": 16, "dtype": np.float32}, "float32"),
        ({"num_experts": 16, "dtype": ">i4"}, "byte order"),
        ({"num_experts": 16, "moe_layers": "some"}, "moe_layers"),
        ({"num_experts": 16, "first": -1}, "first"),
        ({"num_experts": 16, "max_bytes": 0}, "max_bytes"),
        ({"num_experts": 16, "field": "/a"}, "field is for JSON"),
    ]
    for said, word in invalid:
        with pytest.raises(waymark.InvalidArgumentError, match=word):
            waymark.read(npy, **said)
    for source, error, word in (
        (b"", waymark.NotFoundError, "no bytes"),
        (b"hello", waymark.NotFoundError, "no format"),
        ('{"routed_experts": 1}', waymark.InvalidArgumentError, "a str is a path"),
        ("k05VTVBZ" * 999, waymark.InvalidArgumentError, "a str is a path"),
        (tmp_path / "nowhere", waymark.NotFoundError, "nowhere"),
        (tmp_path, waymark.UnavailableError, str(tmp_path)),
        (memoryview(npy)[::2], waymark.InvalidArgumentError, "source"),
        (io.StringIO("x"), TypeError, "binary"),
        (5, TypeError, "source"),
    ):
        with pytest.raises(error, match=word):
            waymark.read(source)  # type: ignore[arg-type]
    for source in (npy, io.BytesIO(npy), DATA / "v1_u1.npy"):
        with pytest.raises(waymark.ResourceExhaustedError):
            waymark.read(source, num_experts=16, max_bytes=10)
    for source in (io.BytesIO(npy), DATA / "v1_u1.npy"):  # one byte too few for the file
        with pytest.raises(waymark.ResourceExhaustedError, match="source"):
            waymark.read(source, num_experts=16, max_bytes=len(npy) - 1)
    rows = waymark.read(npy, num_experts=16, num_layers=3)
    for name, said, word in (
        ("", {}, "format"),
        ("waymark", {}, "format"),
        ("skyrl", {}, "cannot be written"),
        ("vllm", {}, "num_layers"),
        ("nemo-rl", {"dtype": np.uint8}, "dtype"),
        ("npy", {"num_layers": -1}, "num_layers"),
    ):
        with pytest.raises(waymark.InvalidArgumentError, match=word):
            rows.to_format(name, **said)
    with pytest.raises(waymark.FailedPreconditionError, match="sentinel"):
        rows.to_format("npy", row_count="tokens")
    with pytest.raises(waymark.ResourceExhaustedError):
        rows.to_format("npy", max_bytes=10)


def test_other_threads_run_meanwhile() -> None:
    text = b"[" + b",".join([b"[[0,1],[2,3]]"] * 300_000) + b"]"
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    rows = waymark.read(text, num_experts=4, moe_layers="all")
    while_reading = ticks - before
    before = ticks
    rows.to_format("megatron")
    while_writing = ticks - before
    done.set()
    thread.join()
    assert while_reading > 2 and while_writing > 2
    assert isinstance(rows, Rows) and len(rows) == 300_000
    # Longer than what is read of a file at a time.
    assert len(text) > 1 << 22
    again = waymark.read(io.BytesIO(text), num_experts=4, moe_layers="all")
    assert (again.ids == rows.ids).all()
