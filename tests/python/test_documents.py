"""Documents: rows to bytes and files and back, lent chunks, damage, pickles."""

from __future__ import annotations

import gc
import os
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import distinct_ids
from waymark import Reason, Rows


def random_rows(rng: np.random.Generator, count: int, *, experts: int = 0) -> Rows:
    """Rows of a random shape, some of them missing; from a row that is not 0 in most."""
    layers, k = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    experts = experts or int(rng.choice([k, 16, 256, 257, 300]))
    page = int(rng.integers(1, 17))
    ids = np.sort(np.argsort(rng.random((count, layers, experts)), axis=2)[:, :, :k], axis=2)
    rng.permuted(ids, axis=2, out=ids)
    shape = waymark.Shape(layers, k, experts, page, 0, 0, tuple(range(3, 3 + layers)))
    infos = np.zeros(count, waymark.row_info_dtype)
    infos["step"] = np.sort(rng.integers(1, 50, count))
    infos["version"] = 1 + np.arange(count) // 20
    infos["provenance"] = rng.integers(0, 3, count)
    missing = rng.random(count) < 0.2
    infos["reason"][missing] = rng.integers(1, 7, int(missing.sum()))
    infos["step"][missing] = infos["version"][missing] = infos["provenance"][missing] = 0
    ids[missing] = 0
    return Rows(shape, int(rng.integers(0, 30)), ids.astype(shape.id_dtype), infos)


def expect_same(got: Rows, want: Rows, layers: slice = slice(None), ordered: bool = True) -> None:
    assert got.first == want.first and len(got) == len(want)
    assert got.layer_ids == want.layer_ids[layers]
    assert got.ordered == (want.ordered and ordered)
    ids = want.ids[:, layers]
    assert (got.ids == (ids if ordered else np.sort(ids, axis=2))).all()
    assert (got.infos == want.infos).all()


def part(rows: Rows, first: int, last: int) -> Rows:
    at = slice(first - rows.first, last - rows.first)
    return Rows(rows.shape, first, rows.ids[at], rows.infos[at])


def test_an_order_that_was_lost_is_not_claimed_again(seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), 20)
    assert rows.ordered
    sets = waymark.from_bytes(rows.to_bytes(codec="set")).rows()
    assert not sets.ordered
    for again in (sets, pickle.loads(pickle.dumps(sets, 2)), pickle.loads(pickle.dumps(sets, 5))):
        assert not waymark.from_bytes(again.to_bytes()).ordered
        with pytest.raises(waymark.InvalidArgumentError, match="ordered"):
            again.to_bytes(ordered=True)
    assert not waymark.join(rows, sets).ordered


@pytest.mark.parametrize("codec", ["raw", "set"])
@pytest.mark.parametrize("ordered", [None, False])
def test_there_and_back(tmp_path: Path, seed: int, codec: Any, ordered: bool | None) -> None:
    rng = np.random.default_rng(seed)
    keeps = codec == "raw" and ordered is None
    for _ in range(40):
        rows = random_rows(rng, int(rng.integers(0, 60)))
        data = rows.to_bytes(codec=codec, ordered=ordered)
        path = tmp_path / "rows.wmk"
        rows.save(path, codec=codec, ordered=ordered)
        assert path.read_bytes() == data
        for document in (waymark.from_bytes(data), waymark.open(path), waymark.open(str(path))):
            assert (document.first, document.last) == (rows.first, rows.last)
            assert len(document) == len(rows) and document.nbytes == len(data)
            assert document.shape == rows.shape and document.has_steps
            assert (document.codec, document.ordered) == (codec, keeps)
            assert not document.truncated and document.num_nodes == 0
            assert document.coverage() == rows.coverage()
            expect_same(document.rows(), rows, ordered=keeps)
            assert document.check() == (0, 0, 0)
            first = int(rng.integers(rows.first, rows.last + 1))
            last = int(rng.integers(first, rows.last + 1))
            begin = int(rng.integers(0, rows.shape.num_layers))
            end = int(rng.integers(begin + 1, rows.shape.num_layers + 1))
            some = document.rows(first, last, layers=(begin, end))
            expect_same(some, part(rows, first, last), slice(begin, end), keeps)


def test_steps_may_stay_behind(seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), 40)
    document = waymark.from_bytes(rows.to_bytes(steps=False))
    assert not document.has_steps
    assert (document.rows().infos["step"] == 0).all()
    assert (document.rows().infos["version"] == rows.infos["version"]).all()


def test_words_and_ranges_are_checked(seed: int, tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(seed), 40)
    document = waymark.from_bytes(rows.to_bytes())
    cases: list[tuple[Any, str | None, Callable[[], Any]]] = [
        (waymark.InvalidArgumentError, "codec: one of raw", lambda: rows.to_bytes(codec="zip")),
        (waymark.InvalidArgumentError, "ordered", lambda: rows.to_bytes(codec="set", ordered=True)),
        (waymark.UnavailableError, None, lambda: rows.save(tmp_path / "no" / "where")),
        (waymark.NotFoundError, None, lambda: waymark.open(tmp_path / "nowhere.wmk")),
        (waymark.InvalidArgumentError, None, lambda: waymark.from_bytes(b"x" * 100)),
        (TypeError, None, lambda: waymark.from_bytes("a path")),
        (waymark.OutOfRangeError, None, lambda: document.rows(rows.first, rows.last + 1)),
        (waymark.OutOfRangeError, None, lambda: document.rows(rows.last, rows.first)),
    ]
    for kind, match, call in cases:
        with pytest.raises(kind, match=match):
            call()
    for layers in ((0, 0), (-1, 1), (0, 9), (1, 0)):
        with pytest.raises(waymark.InvalidArgumentError, match="layers"):
            document.rows(layers=layers)
    small = waymark.Document(rows.to_bytes(), max_rows=3)
    with pytest.raises(waymark.ResourceExhaustedError):
        small.rows()
    assert len(small.rows(rows.first, rows.first + 3)) == 3
    damaged = bytearray(rows.to_bytes())
    damaged[20] ^= 1
    with pytest.raises(waymark.DataLossError):
        waymark.from_bytes(damaged)
    assert waymark.from_bytes(rows.to_bytes()[:-1]).truncated
    if len(rows.ids[rows.valid]) and rows.shape.top_k > 1:
        twice = rows.ids.copy()
        twice[:] = 0
        with pytest.raises(waymark.InvalidArgumentError):
            Rows(rows.shape, rows.first, twice, rows.infos).to_bytes(codec="set")


def test_a_document_keeps_its_bytes() -> None:
    class Owned(np.ndarray):  # type: ignore[type-arg]
        """An array that can be watched."""

    rows = random_rows(np.random.default_rng(3), 30)
    owned = np.frombuffer(rows.to_bytes(), np.uint8).copy().view(Owned)
    watch = weakref.ref(owned)
    document = waymark.from_bytes(owned)
    del owned
    gc.collect()
    expect_same(document.rows(), rows)
    del document
    gc.collect()
    assert watch() is None


def test_chunks_in_wrong_places_are_missing(seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), 60, experts=300)
    rows = Rows(rows.shape._replace(page_tokens=10), 0, rows.ids, rows.infos)
    data = rows.to_bytes()
    document = waymark.from_bytes(data)
    assert document.check() == (0, 0, 0)
    size = len(data) - int.from_bytes(data[12:16], "little")
    assert size % 6 == 0
    chunks = [data[-size + i * size // 6 :][: size // 6] for i in range(6)]
    chunks[1], chunks[4] = chunks[4], chunks[1]
    swapped = waymark.from_bytes(data[:-size] + b"".join(chunks))
    assert swapped.check() == (2, 0, 0)
    got = swapped.rows()
    lost = np.arange(60) // 10 % 3 == 1
    assert not got.valid[lost].any() and (got.infos[~lost] == rows.infos[~lost]).all()


@pytest.mark.parametrize("experts, k", [(16, 2), (64, 6), (256, 8), (300, 4), (600, 10)])
def test_an_id_twice_in_a_row_is_no_choice(experts: int, k: int, seed: int) -> None:
    """Regression: as capture and Plan.fill() call it; such a row was read as valid."""
    rng = np.random.default_rng(seed)
    shape = waymark.Shape(3, k, experts, 4, 0, 0, (0, 1, 2))
    ids = distinct_ids(rng, 30, 3, k, experts).astype(shape.id_dtype)
    infos = np.zeros(30, waymark.row_info_dtype)
    infos["reason"][7] = Reason.CAPACITY
    ids[7] = 0
    where = rng.permutation([row for row in range(30) if row != 7])[:5]
    for row in where:
        a, b = rng.permutation(k)[:2]
        layer = rng.integers(3)
        ids[row, layer, a] = ids[row, layer, b]
    rows = Rows(shape, 0, ids, infos)
    source = waymark.MemorySource()
    handle = waymark.Publisher(source, shape).publish(rows).wait(10)
    fetched = waymark.Fetcher(source).fetch(handle)
    wrong = np.isin(np.arange(30), where)
    for ordered in (True, False):
        document = waymark.from_bytes(rows.to_bytes(ordered=ordered))
        for got in (document.rows(), fetched):
            assert (got.valid == (infos["reason"] == 0) & ~wrong).all()
            assert (got.reasons[wrong] == Reason.INVALID_ID).all() and not got.ids[wrong].any()
            kept = ids[got.valid]
            assert (np.sort(got.ids[got.valid], axis=2) == np.sort(kept, axis=2)).all()
        assert document.check().invalid_rows == 5


def test_files_are_read_unless_mapping_is_asked_for(tmp_path: Path, seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), 50)
    rows = Rows(rows.shape, 0, rows.ids, rows.infos)
    path = tmp_path / "rows.wmk"
    rows.save(path, nodes=True)
    document = waymark.open(path)
    source = waymark.FileSource(path)
    mapped = waymark.open(path, memory_map=True)
    expect_same(pickle.loads(pickle.dumps(mapped)).rows(), rows)
    mapped_source = waymark.FileSource(path, memory_map=True)
    expect_same(waymark.Fetcher(mapped_source).fetch(rows.handle()), rows)
    os.truncate(path, 0)  # by its owner: a mapping of it would end this process now
    expect_same(document.rows(), rows)
    expect_same(waymark.Fetcher(source).fetch(rows.handle()), rows)
    os.mkfifo(tmp_path / "fifo")
    others = (tmp_path / "fifo", "a FIFO"), (tmp_path, "a folder"), ("/dev/zero", "a device")
    for other, kind in others:
        for use in (waymark.open, waymark.FileSource):
            with pytest.raises(waymark.InvalidArgumentError, match=f"a regular file; it is {kind}"):
                use(other)
    rows.save(path)
    with pytest.raises(waymark.ResourceExhaustedError, match="max_bytes = 100 bytes"):
        waymark.Document(path, max_bytes=100)


def test_documents_are_pickled(tmp_path: Path, seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), 40)
    document = waymark.from_bytes(rows.to_bytes())
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(document, 5, buffer_callback=buffers.append)
    assert len(data) < 200 and len(buffers) == 1
    received = [bytes(buffer.raw()) for buffer in buffers]
    again = pickle.loads(data, buffers=received)
    assert isinstance(again, waymark.Document)
    expect_same(again.rows(), rows)
    assert again._source is received[0]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        expect_same(pickle.loads(pickle.dumps(again, protocol)).rows(), rows)
    rows.save(tmp_path / "a.wmk")
    mapped = waymark.open(tmp_path / "a.wmk")
    expect_same(pickle.loads(pickle.dumps(mapped)).rows(), rows)
