"""ProcessSource: page sources in a process of their own, which hangs, crashes and stops."""

from __future__ import annotations

import ctypes
import gc
import glob
import os
import pickle
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import DictSource, distinct_ids, failed_put, logged, refused, stop, until
from test_documents import expect_same
from test_redis import BUILT_IN, run
from waymark import Reason, Rows

needs_hiredis = pytest.mark.skipif(not BUILT_IN, reason="no hiredis in the build")


def rows_of(seed: int, count: int = 200) -> Rows:
    shape = waymark.Shape(4, 2, 256, 16, 0, 0, (0, 1, 2, 3))
    ids = distinct_ids(np.random.default_rng(seed), count, *shape[:3]).astype(np.uint8)
    return Rows(shape, 0, ids, np.zeros(count, waymark.row_info_dtype))


class Told(DictSource):
    """What its process does, it does to files in a folder: pid, and the calls. While there is a file
    of that name, it does: `hang`, `hang_put`, `hang_with_gil`, `raise`, `short`."""

    def __init__(self, folder: str, ranges: bool = False) -> None:
        super().__init__()
        self.folder = Path(folder)
        (self.folder / "new").write_text(str(os.getpid()))
        (self.folder / "new").rename(self.folder / "pid")
        if ranges:
            self.get_ranges = self._get_ranges

    def _call(self, name: str) -> None:
        with open(self.folder / "calls", "a") as file:
            file.write(f"{name} {threading.get_ident()}\n")
        while (self.folder / "hang").exists() or (
            name.startswith("put") and (self.folder / "hang_put").exists()
        ):
            time.sleep(0.01)
        if (self.folder / "hang_with_gil").exists():
            ctypes.PyDLL(None).sleep(600)
        if (self.folder / "raise").exists():
            raise ConnectionResetError("gone\r\nand away")

    def get(self, digests: list[bytes], timeout: float) -> list[Any]:
        self._call("get")
        got = super().get(digests, timeout)
        return got[:-1] if (self.folder / "short").exists() else got

    def _get_ranges(self, ranges: list[tuple[bytes, int, int]], timeout: float) -> list[Any]:
        self._call("get_ranges")
        got = super().get([digest for digest, _, _ in ranges], timeout)
        return [memoryview(g)[begin:end] if g else None for g, (_, begin, end) in zip(got, ranges)]

    def put(self, objects: list[tuple[bytes, bytes]], timeout: float) -> None:
        self._call(f"put:{len(objects)}")
        super().put(objects, timeout)

    def holds(self, digests: list[bytes], timeout: float) -> list[bool]:
        self._call("holds")
        return [digest in self.objects for digest in digests]


class Fixture:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, timeout: float = 30.0, **options: Any) -> waymark.ProcessSource:
        options = {"folder": str(self.folder), **options}
        return waymark.ProcessSource("test_process_source:Told", options, timeout=timeout)

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().split("\n")[:-1]

    def tell(self, what: str) -> Path:
        (self.folder / what).touch()
        return self.folder / what


@pytest.fixture
def told(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def publish(source: waymark.PageSource, rows: Rows) -> waymark.Handle:
    return waymark.Publisher(source, rows.shape).publish(rows).wait(30)


def published(source: waymark.PageSource, rows: Rows) -> bool:
    try:
        return publish(source, rows) == rows.handle()
    except waymark.PutFailedError:
        return False


@needs_hiredis
@pytest.mark.parametrize("ranges", [False, True])
def test_published_and_fetched(told: Fixture, ranges: bool, seed: int) -> None:
    source = told.source(ranges=ranges)
    source.check()
    assert repr(source) == "ProcessSource('test_process_source:Told')" and told.pid != os.getpid()
    rows = rows_of(seed, 300)
    handle = publish(source, rows)
    assert handle == rows.handle()
    got, report = waymark.Fetcher(source).fetch_with_report(handle, timeout=30)
    expect_same(got, rows)
    assert report.absent == report.damaged == report.source_status == 0
    some, report = waymark.Fetcher(source).fetch_with_report(handle, 20, 60, layers=(1, 2))
    assert (some.ids == rows.ids[20:60, 1:2]).all() and report.source_status == 0
    assert any(call.startswith("get_ranges") for call in told.calls) == ranges
    # What it holds is not put again, and what it has not is absent.
    publisher = waymark.Publisher(source, rows.shape)
    assert publisher.publish(rows).wait(30) == handle
    assert publisher.stats().objects_put == 0 and publisher.stats().objects_held > 0
    got, report = waymark.Fetcher(source).fetch_with_report(rows_of(seed + 1).handle())
    assert not got.valid.any() and report.absent > 0 and report.source_status == 0


@needs_hiredis
def test_large_objects_and_many_of_them(told: Fixture, seed: int) -> None:
    """Both ways more than sockets hold, in one call each."""
    source = told.source()
    rng = np.random.default_rng(seed)
    infos = np.zeros(64 * 256, waymark.row_info_dtype)
    for shape, count in (
        (waymark.Shape(512, 8, 256, 256, 0, 0, tuple(range(512))), 4 * 256),  # chunks of 1 MiB
        (waymark.Shape(2, 2, 256, 1, 0, 0, (0, 1)), 64 * 256),  # 16384 chunks
    ):
        ids = (rng.integers(0, 256, (count, shape.num_layers, 1)) + 29 * np.arange(shape.top_k)) % 256
        rows = Rows(shape, 0, ids.astype(np.uint8), infos[:count])
        got, report = waymark.Fetcher(source).fetch_with_report(publish(source, rows), timeout=60)
        expect_same(got, rows)
        assert report.source_status == 0
    gets = [call for call in told.calls if call.startswith("get ")]
    assert len(gets) < 16, "commands that arrive together are one call"


@needs_hiredis
def test_a_process_that_is_killed_is_started_again(told: Fixture) -> None:
    source = told.source()
    rows = rows_of(1)
    handle = publish(source, rows)
    first = told.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first))
    got, report = waymark.Fetcher(source).fetch_with_report(handle, timeout=30)
    assert not got.valid.any() and (got.reasons[rows.valid] == Reason.CAPACITY).all()
    assert report.source_status == 14
    assert "the process of source test_process_source:Told has ended (-9)" in logged(
        "is started again in 0.1 s"
    ).getMessage()
    until(lambda: published(source, rows))
    assert told.pid != first
    expect_same(waymark.Fetcher(source).fetch(handle), rows)


@needs_hiredis
def test_a_process_that_is_stopped_costs_no_more_than_the_deadline(told: Fixture) -> None:
    source = told.source()
    rows = rows_of(2)
    handle = publish(source, rows)
    fetcher = waymark.Fetcher(source)
    stop(told.pid)
    got, report = fetcher.fetch_with_report(handle, timeout=0.2)
    assert not got.valid.any() and report.source_status == 4
    os.kill(told.pid, signal.SIGCONT)
    until(lambda: waymark.Fetcher(source).fetch(handle, timeout=30).valid.any())


@needs_hiredis
def test_a_call_that_hangs_is_one_thread_and_the_others_fail_at_once(told: Fixture) -> None:
    source = told.source(timeout=1.0)
    rows = rows_of(3)
    handle = publish(source, rows)
    before = len(told.calls)
    hang = told.tell("hang")
    fetcher = waymark.Fetcher(source)
    got, report = fetcher.fetch_with_report(handle, timeout=30)
    assert not got.valid.any() and report.source_status == 14
    assert "DeadlineExceededError: the source has not answered in time" in report.source_message
    for _ in range(20):
        report = fetcher.fetch_with_report(handle, timeout=30)[1]
        assert "a call of the source has not returned for" in report.source_message
        assert "a call of the source" in str(failed_put(publisher_of(source, rows)))
    assert len(told.calls) == before + 1, "one call, one thread"
    hang.unlink()
    until(lambda: fetcher.fetch(handle, timeout=30).valid.any())
    assert len({call.split()[1] for call in told.calls}) == 1
    expect_same(fetcher.fetch(handle, timeout=30), rows)


def publisher_of(source: waymark.PageSource, rows: Rows) -> waymark.Ticket:
    return waymark.Publisher(source, rows.shape).publish(rows)


@needs_hiredis
@pytest.mark.parametrize("how", ["hang", "hang_with_gil"])
def test_a_call_that_hangs_for_ever_ends_the_process(told: Fixture, how: str) -> None:
    source = told.source(timeout=0.1)
    rows = rows_of(4)
    handle = rows.handle()
    first = told.pid
    hang = told.tell(how)
    waymark.Fetcher(source).fetch(handle, timeout=0.2)
    until(lambda: not alive(first))
    hang.unlink()
    until(lambda: told.pid != first)
    until(lambda: waymark.Fetcher(source).fetch_with_report(handle, timeout=30)[1].source_status == 0)


@needs_hiredis
def test_what_it_raises_and_returns_is_reported(told: Fixture) -> None:
    source = told.source()
    rows = rows_of(5)
    handle = publish(source, rows)
    raises = told.tell("raise")
    report = waymark.Fetcher(source).fetch_with_report(handle)[1]
    assert report.source_status == 14
    assert report.source_message == "redis: ERR ConnectionResetError: gone and away"
    assert str(failed_put(publisher_of(source, rows))).endswith("gone and away")
    raises.unlink()
    told.tell("short")
    got, report = waymark.Fetcher(source, batch_bytes=1).fetch_with_report(handle)
    assert "ValueError: must return 2 items, got 1" in report.source_message
    assert report.absent > 0 and report.damaged == 0


class Views(Told):
    """Keeps what it was given, as what it was given."""

    def register_memory(self, memory: memoryview) -> None:
        assert len(memory) == 1 << 26

    def put(self, objects: list[tuple[bytes, bytes]], timeout: float) -> None:
        kinds = {type(value).__name__ for _, value in objects if len(value) >= 1 << 16}
        self._call("put:" + ",".join(sorted(kinds)))
        DictSource.put(self, [(digest, bytes(value)) for digest, value in objects], timeout)


def large_rows(seed: int, chunks: int) -> Rows:
    shape = waymark.Shape(512, 8, 256, 256, 0, 0, tuple(range(512)))  # chunks of 1 MiB
    ids = np.random.default_rng(seed).integers(0, 256, (chunks * 256, 512, 1)) + 29 * np.arange(8)
    return Rows(shape, 0, (ids % 256).astype(np.uint8), np.zeros(len(ids), waymark.row_info_dtype))


@needs_hiredis
def test_large_values_are_handed_over_in_memory(told: Fixture, seed: int) -> None:
    options = {"folder": str(told.folder)}
    source = waymark.ProcessSource("test_process_source:Views", options, timeout=2.0)
    rows = large_rows(seed, 66)  # more than the memory has
    expect_same(waymark.Fetcher(source).fetch(publish(source, rows), timeout=60), rows)
    kinds = [call.split()[0] for call in told.calls if call.startswith("put:")]
    assert {"memoryview", "bytes"} <= set(",".join(kinds).replace("put:", "").split(","))
    # A call that is not waited for any more reads its values still: they stay as they are.
    rows = large_rows(seed + 1, 8)
    publisher = waymark.Publisher(source, rows.shape)
    source.check()
    hang = told.tell("hang_put")
    failed_put(publisher.publish(rows))
    for other in range(2, 5):
        failed_put(publisher.publish(large_rows(seed + other, 8)))
    hang.unlink()
    until(lambda: published(source, rows))
    stored = (told.folder / "calls").read_text()
    got, report = waymark.Fetcher(source).fetch_with_report(rows.handle(), timeout=30)
    expect_same(got, rows)
    assert report.damaged == report.absent == 0
    assert publisher.publish(rows).wait(30) == rows.handle() and publisher.stats().objects_held > 0
    # And memory is used again.
    rows = large_rows(seed + 9, 2)
    expect_same(waymark.Fetcher(source).fetch(publish(source, rows), timeout=60), rows)
    assert "put:memoryview" in (told.folder / "calls").read_text()[len(stored) :]


@needs_hiredis
def test_it_lives_as_long_as_what_uses_it(told: Fixture) -> None:
    source = told.source()
    publisher = waymark.Publisher(source, rows_of(7).shape)
    fetcher = waymark.Fetcher(source)
    pid, folder = told.pid, Path(cmdline(told.pid)[-1])
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(TypeError, match="a ProcessSource cannot be pickled"):
        pickle.dumps(source)
    del source
    gc.collect()
    rows = rows_of(7)
    handle = publisher.publish(rows).wait(30)
    del publisher
    gc.collect()
    expect_same(fetcher.fetch(handle), rows)
    assert alive(pid)
    del fetcher
    gc.collect()
    until(lambda: not alive(pid) and not folder.exists())


def cmdline(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


PARENT = """
import sys, waymark
source = waymark.ProcessSource("test_process_source:Told", {"folder": sys.argv[1]})
source.check()
print("up", flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
"""


@needs_hiredis
@pytest.mark.parametrize("how", ["exit", "wait"])
def test_it_ends_with_its_parent(told: Fixture, how: str) -> None:
    parent = run(
        PARENT, str(told.folder), how, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
    folder = Path(cmdline(told.pid)[-1]) if how == "wait" else None
    if how == "wait":
        parent.kill()
    parent.wait()
    until(lambda: not alive(told.pid) and (folder is None or not folder.exists()))


@needs_hiredis
@pytest.mark.parametrize("factory", ["test_process_source:Nothing", "no_such_module:f"])
def test_a_factory_that_fails_is_logged(factory: str) -> None:
    source = waymark.ProcessSource(factory)
    logged(f"the process of source {factory} has ended (1)")
    with pytest.raises(waymark.UnavailableError):
        source.check()


@needs_hiredis
def test_a_client_that_reads_late_does_not_stop_the_reading(told: Fixture) -> None:
    """RedisSource writes all commands of a call before it reads a reply."""
    source = told.source()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(cmdline(told.pid)[-1] + "/socket")
        value = bytes(range(256)) * 4 + b"\r\n$-1\r\n"
        name = b"0a0d2a24" * 4
        client.sendall(b"*3\r\n$3\r\nSET\r\n$32\r\n%b\r\n$%d\r\n%b\r\n" % (name, len(value), value))
        assert client.recv(5) == b"+OK\r\n"
        client.settimeout(60)
        # The first ones are answered, 4 MB, before most are written.
        for count in (4000, 60000):
            client.sendall(b"*2\r\n$3\r\nGET\r\n$32\r\n%b\r\n" % name * count)
            until(lambda: any(call.startswith("get") for call in told.calls))
        wanted = b"$%d\r\n%b\r\n" % (len(value), value) * 64000
        got = bytearray()
        while len(got) < len(wanted):
            got += client.recv(1 << 20)
        assert got == wanted
        put = b"*6\r\n$3\r\nSET\r\n$32\r\n%b\r\n$1\r\n1\r\n$8\r\n67108864\r\n$1\r\n0\r\n$1\r\n%d\r\n"
        client.sendall(put % (name, 0))
        assert client.recv(100) == b"-ERR ValueError: SET: within 67108864 bytes, got 67108864 from 1 on\r\n"
        client.sendall(put % (name, 7))  # what was there when its put failed is not read any more
        assert client.recv(100) == (
            b"-ERR UnavailableError: SET: its memory has another value by now\r\n"
        )
        client.sendall(b"*2\r\n$4\r\nKEYS\r\n$32\r\n%b\r\n" % name)
        assert client.recv(100) == b"-ERR NotImplementedError: KEYS\r\n"
    assert repr(source)


def test_arguments_are_checked() -> None:
    refused(
        waymark.InvalidArgumentError,
        ("factory: 'module:function'", lambda: waymark.ProcessSource("module")),
        ("factory: 'module:function'", lambda: waymark.ProcessSource(":f")),
        ("timeout: above 0 s", lambda: waymark.ProcessSource("a:b", timeout=0)),
    )
    refused(TypeError, ("JSON", lambda: waymark.ProcessSource("a:b", {"a": {1}})))


def test_a_build_without_hiredis_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if BUILT_IN:
        pytest.skip("this build has hiredis")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(waymark.UnimplementedError, match="has no hiredis"):
        waymark.ProcessSource("test_process_source:Told")
    assert not glob.glob(str(tmp_path / "*"))
