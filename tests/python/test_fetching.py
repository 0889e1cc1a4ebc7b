"""Rows by handle: publishers, sources, fetchers."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig, refused
from test_documents import expect_same, part, random_rows
from waymark import Rows


def from_zero(rows: Rows) -> Rows:
    return Rows(rows.shape, 0, rows.ids, rows.infos)


@pytest.fixture
def rows(seed: int) -> Rows:
    return from_zero(random_rows(np.random.default_rng(seed), 50))


@pytest.mark.parametrize("codec", ["raw", "set"])
def test_rows_by_handle(tmp_path: Path, seed: int, codec: Any) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(15):
        rows = from_zero(random_rows(rng, int(rng.integers(20, 90))))
        source = waymark.MemorySource()
        publisher = waymark.Publisher(source, rows.shape, codec=codec, store="engine-7")
        ticket = publisher.publish(rows)
        handle = ticket.wait(10)
        assert ticket.ready() and ticket.wait(0) == handle
        assert (handle.rows, handle.store) == (len(rows), "engine-7")
        assert handle.num_layers == rows.shape.num_layers and len(handle.head) == 16
        assert rows.handle(codec=codec, store="engine-7") == handle
        crossed = pickle.loads(pickle.dumps(handle, 5))
        assert type(crossed) is waymark.Handle and crossed == handle
        assert waymark.Handle(bytes(handle)) == handle and "engine-7" in repr(handle)
        path = tmp_path / "rows.wmk"
        rows.save(path, codec=codec, nodes=True)
        assert waymark.open(path).num_nodes > 0
        first = int(rng.integers(0, rows.last + 1))
        last = int(rng.integers(first, rows.last + 1))
        begin = int(rng.integers(0, rows.shape.num_layers))
        end = int(rng.integers(begin + 1, rows.shape.num_layers + 1))
        for one in (source, waymark.FileSource(path)):
            fetcher = waymark.Fetcher(one, whole_chunks=bool(rng.integers(2)))
            some = fetcher.fetch(crossed, first, last, layers=(begin, end), timeout=10)
            expect_same(some, part(rows, first, last), slice(begin, end), codec == "raw")
            got, report = fetcher.fetch_with_report(bytes(handle), timeout=10)
            expect_same(got, rows, ordered=codec == "raw")
            assert report.absent == report.damaged == report.source_status == 0
            again, report = fetcher.fetch_with_report(handle)
            expect_same(again, got)
            assert report.fetched == 0 and report.hits > 0
            assert fetcher.counts().fetched > 0
        stats = publisher.stats()
        assert stats.published == 1 and stats.pages == len(rows) // rows.shape.page_tokens
        assert stats.as_dict()["failed"] == 0


def rows_of_58_layers(rng: np.random.Generator, count: int) -> Rows:
    ids = rng.random((count, 58, 256)).argsort(-1)[..., :8]
    return Rows.from_array(ids, num_experts=256, layer_ids=tuple(range(3, 61)))


def test_crc_layers_of_what_is_written(tmp_path: Path, seed: int) -> None:
    rows = rows_of_58_layers(np.random.default_rng(seed), 40)
    path = tmp_path / "rows.wmk"
    handles = set()
    for crc_layers, written in ((None, 15), (1, 1), (np.int64(14), 14), (58, 58)):
        data = rows.to_bytes(crc_layers=crc_layers, nodes=True)
        rows.save(path, crc_layers=crc_layers, nodes=True)
        assert path.read_bytes() == data
        document = waymark.from_bytes(data)
        assert document.crc_layers == written
        expect_same(document.rows(layers=(15, 29)), rows, slice(15, 29))
        handle = rows.handle(crc_layers=crc_layers)
        publisher = waymark.Publisher(
            waymark.MemorySource(), rows.shape, crc_layers=crc_layers, codec="raw"
        )
        assert publisher.publish(rows).wait(10) == handle
        got = waymark.Fetcher(waymark.FileSource(path)).fetch(handle, layers=(15, 29))
        expect_same(got, rows, slice(15, 29))
        handles.add(handle)
    assert len(handles) == 4


@pytest.mark.parametrize("door", [
    lambda rows, path, n: rows.to_bytes(crc_layers=n),
    lambda rows, path, n: rows.save(path, crc_layers=n),
    lambda rows, path, n: rows.handle(crc_layers=n),
    lambda rows, path, n: waymark.Publisher(waymark.MemorySource(), rows.shape, crc_layers=n),
])  # fmt: skip
def test_crc_layers_are_checked(tmp_path: Path, door: Callable[[Rows, Path, Any], Any]) -> None:
    rows = rows_of_58_layers(np.random.default_rng(1), 4)
    path = tmp_path / "rows.wmk"
    for wrong in (0, -1, 59, 2**40):
        text = rf"crc_layers: an integer in \[1, 58\], got {wrong}"
        with pytest.raises(waymark.InvalidArgumentError, match=text):
            door(rows, path, wrong)
    for no_integer in (True, 1.0, "1", [1]):
        with pytest.raises(TypeError, match=r"crc_layers: an integer in \[1, 58\], got "):
            door(rows, path, no_integer)
    assert not path.exists()


def test_memory_of_a_fetch_is_bounded(rows: Rows) -> None:
    source = waymark.MemorySource()
    handle = waymark.Publisher(source, rows.shape).publish(rows).wait(10)
    text = "max_bytes = 99 bytes; it has 50 rows"
    with pytest.raises(waymark.ResourceExhaustedError, match=text):
        waymark.Fetcher(source, max_bytes=99).fetch(handle)


def test_turns_publish_what_is_new(rig: Rig) -> None:
    source = waymark.MemorySource()
    publisher = waymark.Publisher(source, rig.store.shape)
    blocks = list(range(1, 9))
    rig.write(waymark.slots_of(blocks, 4, 0, 20), blocks)
    assert publisher.publish(rig.read(blocks, 20), "request").wait(10).rows == 20
    put = publisher.stats().objects_put
    rig.write(waymark.slots_of(blocks, 4, 20, 30))
    handle = publisher.publish(rig.read(blocks, 30, 20), "request").wait(10)
    assert handle.rows == 30
    assert publisher.stats().objects_put - put <= 4
    rows = rig.read(blocks, 30)
    assert rows.handle() == handle and rows.handle(codec="set", store="a").store == "a"
    got = waymark.Fetcher(source).fetch(handle)
    assert got.valid.all() and (got.ids == rows.ids).all()
    assert (got.infos["step"] == rows.infos["step"]).all()
    publisher.forget("request")  # nobody knows where they go on
    with pytest.raises(waymark.FailedPreconditionError, match="not known"):
        publisher.publish(rig.read(blocks, 32, 30), "request").wait(10)


class SlowSource:
    """Takes objects when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def get(self, digests: list[bytes], timeout: float) -> list[Any]:
        return [None] * len(digests)

    def put(self, objects: list[Any], timeout: float) -> None:
        assert self.may.wait(30)


def test_a_ticket_waits(rows: Rows) -> None:
    source = SlowSource()
    publisher = waymark.Publisher(source, rows.shape)
    ticket = publisher.publish(rows)
    with pytest.raises(waymark.DeadlineExceededError, match="are not published after"):
        ticket.wait(0.05)
    assert not ticket.ready()
    source.may.set()
    assert ticket.wait(10).rows == 50


def test_the_last_reference_of_a_publisher_waits_without_the_gil(rows: Rows) -> None:
    """It waits for the publication in progress."""
    source = SlowSource()
    publisher = waymark.Publisher(source, rows.shape)
    publisher.publish(rows)
    ended = threading.Event()

    def end() -> None:
        nonlocal publisher
        del publisher
        ended.set()

    thread = threading.Thread(target=end)
    thread.start()
    source.may.set()  # Python runs on beside it
    thread.join(60)
    assert ended.is_set()


def test_arguments_are_checked(tmp_path: Path) -> None:
    rows = from_zero(random_rows(np.random.default_rng(2), 40))
    source = waymark.MemorySource()
    later = Rows(rows.shape, 1, rows.ids, rows.infos)
    publisher, of = partial(waymark.Publisher, source), rows.shape._replace
    refused(
        waymark.InvalidArgumentError,
        ("max_waiting", lambda: publisher(rows.shape, max_waiting=0)),
        ("num_layers", lambda: publisher(of(num_layers=0, layer_ids=()))),
        ("layer_ids", lambda: publisher(of(layer_ids=(1,) * 9))),
        ("max_bytes", lambda: waymark.MemorySource(0)),
        ("max_bytes: at least 1, got 0", lambda: waymark.Fetcher(source, max_bytes=0)),
        ("cache_bytes", lambda: waymark.Fetcher(source, cache_bytes=0)),
        ("row 0", lambda: later.to_bytes(nodes=True)),
        ("shape", lambda: publisher(of(page_tokens=64)).publish(rows).wait(10)),
    )
    empty, handle = waymark.Fetcher(source), rows.handle()
    broken = handle[:-1] + bytes([handle[-1] ^ 1])
    refused(waymark.OutOfRangeError, ("41", lambda: empty.fetch(handle, 0, 41)))
    refused(waymark.DataLossError, ("handle", lambda: waymark.Handle(broken)))
    refused(waymark.InvalidArgumentError, ("handle", lambda: empty.fetch(b"")))
    refused(waymark.NotFoundError, ("nowhere", lambda: waymark.FileSource(tmp_path / "nowhere")))
    rows.save(tmp_path / "a.wmk")
    with pytest.raises(waymark.FailedPreconditionError, match="nodes"):
        waymark.FileSource(tmp_path / "a.wmk")
    rows.save(tmp_path / "a.wmk", nodes=True)
    read_only = waymark.FileSource(tmp_path / "a.wmk")
    read_only.check(), source.check(None)
    with pytest.raises(waymark.InvalidArgumentError, match="it is read only"):
        waymark.Publisher(read_only, rows.shape)


def test_whatever_goes_first() -> None:
    rows = from_zero(random_rows(np.random.default_rng(4), 60))
    publisher = waymark.Publisher(waymark.MemorySource(), rows.shape)
    tickets = [publisher.publish(rows, str(i)) for i in range(20)]
    del publisher
    gc.collect()
    assert all(ticket.wait(10).rows == 60 for ticket in tickets)  # a ticket keeps its publisher
    for _ in range(20):
        waymark.Publisher(waymark.MemorySource(), rows.shape).publish(rows)  # and nobody waits
    fetcher = waymark.Fetcher(waymark.MemorySource())
    gc.collect()
    assert not fetcher.fetch(rows.handle()).valid.any()


def test_a_key_of_publisher_and_fetcher(rows: Rows) -> None:
    key, other = bytes(range(16)), bytes(range(1, 65))
    source = waymark.MemorySource()
    handle = waymark.Publisher(source, rows.shape, key=key).publish(rows).wait(10)
    plain = waymark.Publisher(source, rows.shape).publish(rows).wait(10)
    assert handle.keyed and not plain.keyed and handle.head != plain.head
    expect_same(waymark.Fetcher(source, key=key).fetch(pickle.loads(pickle.dumps(handle))), rows)
    with pytest.raises(waymark.DataLossError, match="made with another key"):
        waymark.Fetcher(source, key=other).fetch(handle)
    with pytest.raises(waymark.DataLossError, match="it must be keyed, because the fetcher has a key"):
        waymark.Fetcher(source, key=key).fetch(plain)
    with pytest.raises(waymark.FailedPreconditionError, match="only with the key of its publisher"):
        waymark.Fetcher(source).fetch(handle)
    for bad in (b"short", bytes(65)):
        for use in (waymark.Fetcher, partial(waymark.Publisher, shape=rows.shape)):
            with pytest.raises(waymark.InvalidArgumentError, match=f"16 to 64.*it has {len(bad)}"):
                use(source, key=bad)
