"""RedisSource against a real server on the loopback: across processes, and when it is lost."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import failed_put, until
from test_documents import expect_same, random_rows
from test_fetching import from_zero
from waymark import Reason, Rows

BUILT_IN = waymark.build_info()["redis"] != "none"
# Debian's redis-tools has the program under the second name alone; by its first word it knows what
# it is to be.
PROGRAM = shutil.which("redis-server") or shutil.which("redis-check-rdb")
needs_server = pytest.mark.skipif(
    not BUILT_IN or PROGRAM is None, reason="no hiredis in the build, or no redis-server here"
)


class Server:
    """A server of our own on the loopback, without a file on disk."""

    def __init__(self, *more: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="waymark_redis_")
        self.unix_socket = os.path.join(self.folder, "socket")
        self.more = more
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.start()

    def start(self) -> None:
        words = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port)]
        words += ["--unixsocket", self.unix_socket, "--save", "", "--appendonly", "no"]
        words += ["--dir", self.folder, *self.more]
        # What a sanitizer preloads is for Python.
        env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self.process = subprocess.Popen(
            words, executable=PROGRAM, env=env, stdout=subprocess.DEVNULL
        )
        until(lambda: self.answers() or self.process.poll() is not None)
        assert self.process.poll() is None

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as to:
            try:
                to.connect(self.unix_socket)
                to.sendall(b"PING\r\n")
                return to.recv(1) in (b"+", b"-")
            except OSError:
                return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        Path(self.unix_socket).unlink(missing_ok=True)

    def source(self, **options: Any) -> waymark.RedisSource:
        options = {"initial_back_off": 0.001, "max_back_off": 0.02, **options}
        return waymark.RedisSource("127.0.0.1", self.port, **options)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.kill()
    shutil.rmtree(one.folder)


def rows_of(seed: int, count: int = 200) -> Rows:
    # Of few experts all pages may be equal, which is one object: nothing would be left to lose.
    return from_zero(random_rows(np.random.default_rng(seed), count, experts=256))


PUBLISHES = """
import pickle, sys, numpy as np, waymark
shape, ids, infos = pickle.load(sys.stdin.buffer)
rows = waymark.Rows(waymark.Shape(*shape), 0, ids, infos)
source = waymark.RedisSource("127.0.0.1", int(sys.argv[1]))
handle = waymark.Publisher(source, rows.shape, store="engine-7").publish(rows).wait(30)
sys.stdout.buffer.write(pickle.dumps(handle))
"""


def run(code: str, *words: str, **more: Any) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], env={**os.environ, "PYTHONPATH": paths}, **more
    )


@needs_server
def test_published_here_and_fetched_there(server: Server, seed: int) -> None:
    rows = rows_of(seed)
    process = run(PUBLISHES, str(server.port), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    sent = pickle.dumps((tuple(rows.shape), rows.ids, rows.infos))
    handle = pickle.loads(process.communicate(sent, timeout=60)[0])
    assert process.returncode == 0 and handle.store == "engine-7"
    by_socket = waymark.RedisSource(unix_socket=server.unix_socket)
    for source in (server.source(), by_socket):
        got, report = waymark.Fetcher(source).fetch_with_report(handle, timeout=30)
        expect_same(got, rows)
        assert report.absent == report.damaged == report.source_status == 0
        assert report.fetched > 0 and report.source_message == ""
    # What one process has put, no other puts again.
    publisher = waymark.Publisher(by_socket, rows.shape, store="engine-7")
    assert publisher.publish(rows).wait(30) == handle
    stats = publisher.stats()
    assert stats.objects_put == 0 and stats.objects_held > 0
    # Other keys, another database: nothing there.
    for source in (server.source(key_prefix=""), server.source(database=3)):
        got, report = waymark.Fetcher(source).fetch_with_report(handle, timeout=30)
        assert not got.valid.any() and report.absent > 0 and report.source_status == 0


@needs_server
def test_a_server_that_is_killed_costs_rows_and_is_found_again(server: Server) -> None:
    rows = rows_of(1)
    source = server.source()
    publisher, fetcher = waymark.Publisher(source, rows.shape), waymark.Fetcher(source)
    handle = publisher.publish(rows).wait(30)
    server.kill()
    got, report = fetcher.fetch_with_report(handle, timeout=30)
    assert report.source_status == waymark.UnavailableError.status
    assert report.source_message.startswith("redis: ") and not got.valid.any()
    assert (got.reasons == Reason.CAPACITY).all()
    assert failed_put(publisher.publish(rows)).handle == handle
    with pytest.raises(waymark.UnavailableError, match=f"connecting to 127.0.0.1:{server.port}: "):
        server.source().check()
    server.start()
    server.source().check()

    def published() -> bool:
        try:
            return publisher.publish(rows).wait(30) == handle
        except waymark.PutFailedError:  # it is too soon to try again
            return False

    until(published)
    expect_same(fetcher.fetch(handle, timeout=30), rows)


@needs_server
def test_objects_expire(server: Server) -> None:
    rows = rows_of(4)
    handle = waymark.Publisher(server.source(time_to_live=1), rows.shape).publish(rows).wait(30)
    expect_same(waymark.Fetcher(server.source()).fetch(handle, timeout=30), rows)
    source = server.source()
    until(lambda: not waymark.Fetcher(source).fetch(handle, timeout=30).valid.any())


def test_arguments_are_checked() -> None:
    """The rules are those of RedisOptions: here, what Python alone can give."""
    refused: list[tuple[str, dict[str, Any]]] = [
        ("port", {"port": 65536}),
        ("time_to_live", {"time_to_live": float("nan")}),
        ("command_timeout", {"command_timeout": float("inf")}),
        ("tls", {"tls_ca_file": Path("ca.pem")}),
        ("max_back_off", {"initial_back_off": 1, "max_back_off": 0.5}),
    ]
    for name, options in refused:
        with pytest.raises(waymark.InvalidArgumentError, match=name):
            waymark.RedisSource(**options)
    with pytest.raises(TypeError):
        waymark.RedisSource(password=b"bytes")  # type: ignore[arg-type]
    if BUILT_IN:
        source = waymark.RedisSource(password="sesame")
        assert "sesame" not in repr(source)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(source)


def test_a_build_that_has_it_not_says_so() -> None:
    redis = waymark.build_info()["redis"]
    if redis == "none":
        with pytest.raises(waymark.UnimplementedError, match="has no hiredis"):
            waymark.RedisSource()
    else:
        assert redis.startswith("hiredis-")
        assert repr(waymark.RedisSource()) == "RedisSource('127.0.0.1', 6379)"
        assert repr(waymark.RedisSource(unix_socket="/a")) == "RedisSource(unix_socket='/a')"
    if not redis.endswith("+tls"):
        with pytest.raises(waymark.UnimplementedError, match="TLS|hiredis"):
            waymark.RedisSource(tls=True)
