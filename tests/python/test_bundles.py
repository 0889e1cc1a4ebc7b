"""BundleSource, and the source of a Mooncake Store on a module that stands in for Mooncake's."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import numpy as np
import pytest
import waymark
import waymark.sources.mooncake
from conftest import DictSource, failed_put, refused
from test_documents import expect_same
from test_process_source import rows_of
from waymark import Reason, Rows


class Store(DictSource):
    asked = 0  # for how many objects

    def holds(self, digests: list[bytes], timeout: float) -> list[bool]:
        self.calls.append("holds")
        self.asked += len(digests)
        return [digest in self.objects for digest in digests]

    def bundles(self) -> list[bytes]:
        return [name for name, value in self.objects.items() if value[4:8] != b"WMKN"
                and value[:4] != b"\0\0\0\0" and b"WMKN" not in value]  # fmt: skip


def publish(source: waymark.BundleSource, rows: Rows, name: str = "") -> waymark.Handle:
    return waymark.Publisher(source, rows.shape).publish(rows, name).wait(30)


def test_chunks_are_packed_and_found_by_others(seed: int) -> None:
    rows = rows_of(seed, 2000)  # 125 pages of 144 bytes in two nodes
    store = Store()
    handle = publish(waymark.BundleSource(store), rows)
    assert len(store.bundles()) == 1 and len(store.objects) < 6
    assert [call for call in store.calls] == ["holds", "put"], "of a publication that is not long"
    assert store.asked == 2, "the nodes: chunks are not under their digests"
    reader = waymark.BundleSource(store)
    got, report = waymark.Fetcher(reader).fetch_with_report(handle)
    expect_same(got, rows)
    assert report.absent == report.damaged == report.source_status == 0
    # Some rows and layers; one chunk of a bundle of which little is used.
    some = waymark.Fetcher(waymark.BundleSource(store)).fetch(handle, 20, 60, layers=(1, 2))
    assert (some.ids == rows.ids[20:60, 1:2]).all() and some.valid.all()
    # What is there is not put again, whoever has put it.
    for source in (reader, waymark.BundleSource(store)):
        publisher = waymark.Publisher(source, rows.shape)
        assert publisher.publish(rows).wait(30) == handle
        assert publisher.stats().objects_put == 0


def test_chunks_that_are_known_or_twice_there_are_packed_once(seed: int) -> None:
    """Their memory is not one piece."""
    rows = rows_of(seed, 96 * 16)
    store = Store()
    source = waymark.BundleSource(store)
    publish(source, rows[: 40 * 16])
    pages = [0, 5, 41, 41, 70, 41, 90, 5, 91, *range(92, 96)]
    ids = np.concatenate([rows.ids[16 * page : 16 * page + 16] for page in pages])
    mixed = Rows(rows.shape, 0, ids, rows.infos[: len(ids)])
    handle = publish(source, mixed)
    expect_same(waymark.Fetcher(waymark.BundleSource(store)).fetch(handle), mixed)
    assert sorted(len(store.objects[name]) for name in store.bundles()) == [8 * 144, 40 * 144]


def test_bundles_have_their_size_and_places_may_be_forgotten(seed: int) -> None:
    rows = rows_of(seed, 64 * 16)
    store = Store()
    handle = publish(waymark.BundleSource(store, bundle_bytes=1000), rows)
    assert 9 < len(store.bundles()) < 22
    assert all(len(store.objects[name]) <= 1000 for name in store.bundles())
    expect_same(waymark.Fetcher(waymark.BundleSource(store)).fetch(handle), rows)
    # Of 64 chunks it remembers 8: those of the others are missing rows, never others' rows.
    forgets = waymark.BundleSource(store, max_places=8)
    got, report = waymark.Fetcher(forgets).fetch_with_report(handle)
    assert got.valid.sum() == 8 * 16 and report.damaged == 0
    assert (got.reasons[~got.valid] == Reason.CAPACITY).all()


def test_a_sequence_that_grows_refers_to_earlier_bundles(seed: int) -> None:
    whole = rows_of(seed, 60 * 16)
    store = Store()
    publisher = waymark.Publisher(waymark.BundleSource(store), whole.shape)
    for first in range(0, 60 * 16, 20 * 16):
        handle = publisher.publish(whole[first : first + 20 * 16], "s").wait(30)
    assert len(store.bundles()) == 3
    assert publisher.stats().bytes_put < 2 * whole.ids.nbytes
    expect_same(waymark.Fetcher(waymark.BundleSource(store)).fetch(handle), whole)


def test_a_bundle_that_is_lost_is_missing_rows_and_put_again(seed: int) -> None:
    rows = rows_of(seed, 64 * 16)
    store = Store()
    source = waymark.BundleSource(store, bundle_bytes=1000)
    handle = publish(source, rows)
    del store.objects[store.bundles()[3]]
    readers = [source, waymark.BundleSource(store)]
    for reader in readers:
        got, report = waymark.Fetcher(reader).fetch_with_report(handle)
        lost = ~got.valid
        assert 0 < lost.sum() < len(rows) and (got.ids[~lost] == rows.ids[~lost]).all()
        assert report.damaged == report.source_status == 0
    for publisher in (waymark.BundleSource(store), source):  # of another engine, and of this
        assert publish(publisher, rows) == handle
        for reader in (*readers, waymark.BundleSource(store)):
            expect_same(waymark.Fetcher(reader).fetch(handle), rows)
        for name in store.bundles():
            del store.objects[name]


def test_what_a_store_damages_is_no_row(seed: int) -> None:
    rows = rows_of(seed, 40 * 16)
    rng = np.random.default_rng(seed)
    store = Store()
    handle = publish(waymark.BundleSource(store, bundle_bytes=1000), rows)
    right = dict(store.objects)
    for _ in range(200):
        name = list(right)[rng.integers(len(right))]
        value = bytearray(right[name])
        if rng.random() < 0.5:
            value = value[: rng.integers(len(value))]
        else:
            value[rng.integers(min(len(value), 200))] ^= 1 << int(rng.integers(8))
        store.objects = {**right, name: bytes(value)}
        got = waymark.Fetcher(waymark.BundleSource(store)).fetch(handle)
        assert (got.ids[got.valid] == rows.ids[got.valid]).all()


def test_a_node_that_was_damaged_once_places_no_chunk_for_ever(seed: int) -> None:
    """What is in front of a node is not under the node's digest: places that were read from damaged
    bytes were kept, and the fetcher, which had the node, never asked for it again."""
    rows = rows_of(seed, 40 * 16)
    store = Store()
    handle = publish(waymark.BundleSource(store, bundle_bytes=1000), rows)
    right = dict(store.objects)
    nodes = [name for name, value in right.items() if b"WMKN" in value]
    for at in (0, 4, 20, 24, 36, 40, 43):  # of the head and of the first place
        fetcher = waymark.Fetcher(waymark.BundleSource(store))
        store.objects = dict(right)
        for name in nodes:
            value = bytearray(right[name])
            value[at] ^= 8
            store.objects[name] = bytes(value)
        damaged = fetcher.fetch(handle)
        assert (damaged.ids[damaged.valid] == rows.ids[damaged.valid]).all()
        store.objects = right
        expect_same(fetcher.fetch(handle), rows)


class FakeMooncake:
    """What MooncakeSource uses of MooncakeDistributedStore: memory is addressed, and has to be
    registered."""

    objects: dict[str, bytes] = {}
    code = 0  # of every put; < 0: is_exist fails, too
    lost: set[str] = set()  # are there, and do not come
    most = 1 << 30  # bytes that one batch can get
    calls: list[str] = []
    memory: list[range] = []  # that was registered

    def setup(self, *words: Any) -> int:
        return self.code

    def register_buffer(self, address: int, size: int) -> int:
        self.memory.append(range(address, address + size))
        return 0

    def batch_upsert_from(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        for key, address, size in zip(keys, addresses, sizes):
            assert not size or any(address in r and address + size <= r.stop for r in self.memory)
            if not self.code:
                self.objects[key] = ctypes.string_at(address, size)
        return [self.code] * len(keys)

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return [-1 if self.code < -500 else int(key in self.objects) for key in keys]

    def get_buffer(self, key: str) -> Any:
        return None if key in self.lost else self.objects.get(key)

    def batch_get_buffer(self, keys: list[str]) -> list[Any]:
        self.calls.append(f"get {len(keys)}")
        left, got = self.most, []
        for key in keys:
            one = self.get_buffer(key)
            left -= len(one or b"")
            got.append(one if left >= 0 else None)
        return got


@pytest.fixture
def mooncake(monkeypatch: pytest.MonkeyPatch) -> type[FakeMooncake]:
    class Fresh(FakeMooncake):
        objects: dict[str, bytes] = {}
        lost: set[str] = set()
        calls: list[str] = []
        memory: list[range] = []

    module = types.ModuleType("mooncake.store")
    module.MooncakeDistributedStore = Fresh  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mooncake", types.ModuleType("mooncake"))
    monkeypatch.setitem(sys.modules, "mooncake.store", module)
    return Fresh


def make(**options: Any) -> waymark.sources.mooncake.MooncakeSource:
    return waymark.sources.mooncake.MooncakeSource("master:1", "http://meta", **options)


def test_mooncake_is_a_source(mooncake: type[FakeMooncake], seed: int) -> None:
    source = make(key_prefix="p:", buffer_bytes=1 << 16)
    name, other = b"\0" * 15 + b"a", b"b" * 16
    binary = bytes(range(256)) * 100
    source.put([(name, binary), (other, b"")], 5)
    assert mooncake.objects == {"p:" + name.hex(): binary, "p:" + other.hex(): b""}
    assert [g and bytes(g) for g in source.get([other, b"x" * 16, name], 5)] == [b"", None, binary]
    assert source.holds([b"x" * 16, name], 5) == [False, True]
    source.put([(name, b"new"), (b"c" * 16, b"c")], 5)
    assert mooncake.objects["p:" + name.hex()] == b"new"
    # More than the buffer holds: in several batches. Larger than it: refused.
    many = [(bytes([i]) * 16, bytes([i]) * 30000) for i in range(7)]
    source.put(many, 5)
    mooncake.most = 70000
    assert [bytes(g) for g in source.get([d for d, _ in many], 5)] == [v for _, v in many]
    refused(
        waymark.ResourceExhaustedError,
        ("at least the 65537 bytes", lambda: source.put([(name, bytes(65537))], 5)),
    )
    # From memory that the process has with another, next to bytes.
    shared = memoryview(bytearray(b"shared memory"))
    source.register_memory(shared)
    source.put([(name, shared[7:]), (other, b"bytes"), (b"c" * 16, shared[:6])], 5)
    assert [bytes(g) for g in source.get([name, other, b"c" * 16], 5)] == [b"memory", b"bytes", b"shared"]
    # Through bundles.
    rows = rows_of(seed, 3000)
    handle = publish(waymark.BundleSource(make(key_prefix="q:")), rows)
    expect_same(waymark.Fetcher(waymark.BundleSource(make(key_prefix="q:"))).fetch(handle), rows)


def test_small_objects_of_mooncake_are_got_many_at_a_time(mooncake: type[FakeMooncake]) -> None:
    source = make()
    names = [i.to_bytes(16, "little") for i in range(1000)]
    source.put([(name, name) for name in names], 5)
    assert list(source.get(names, 5)) == names
    assert len(mooncake.calls) < 10


def test_what_fails_in_mooncake_is_reported(
    mooncake: type[FakeMooncake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda args: None)
    source = make()
    one = (b"a" * 16, b"1")
    source.put([one], 5)
    mooncake.lost.add("waymark:" + one[0].hex())
    there, absent = source.get([one[0], b"b" * 16], 5)
    assert isinstance(there, waymark.UnavailableError) and absent is None
    assert "is there, and does not come" in str(there)
    mooncake.code = -200
    refused(waymark.UnavailableError,
            ("1 of 1 objects were not put: -200", lambda: source.put([(b"c" * 16, b"1")], 5)))  # fmt: skip
    mooncake.code = -900
    refused(waymark.UnavailableError,
            ("batch_is_exist: -1", lambda: source.holds([b"c" * 16], 5)),
            ("setup: -900", make))  # fmt: skip
    mooncake.code = 0
    refused(waymark.DeadlineExceededError, ("too long", lambda: list(source.get([b"c" * 16], -1))))
    failed = waymark.BundleSource(make(key_prefix="f:"))
    mooncake.code = -200
    rows = rows_of(1)
    assert "not put" in str(failed_put(waymark.Publisher(failed, rows.shape).publish(rows)))
