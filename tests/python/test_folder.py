"""FolderSource, and source_of, which makes sources by URL."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import waymark
from test_documents import expect_same
from test_redis import Server, needs_server, rows_of, run
from waymark import source_of

FETCHES = """
import pickle, sys, waymark
handle, rows = pickle.load(sys.stdin.buffer)
got, report = waymark.Fetcher(waymark.FolderSource(sys.argv[1])).fetch_with_report(handle)
assert (got.ids == rows.ids).all() and (got.infos == rows.infos).all() and report.absent == 0
"""


def test_published_here_and_fetched_there(tmp_path: Path, seed: int) -> None:
    rows = rows_of(seed)
    source = waymark.FolderSource(tmp_path / "objects", max_bytes=1 << 30, time_to_live=3600)
    handle = waymark.Publisher(source, rows.shape).publish(rows).wait(30)
    process = run(FETCHES, str(tmp_path / "objects"), stdin=subprocess.PIPE)
    process.communicate(pickle.dumps((handle, rows)), timeout=60)
    assert process.returncode == 0
    # What is there is not put again.
    publisher = waymark.Publisher(waymark.FolderSource(str(tmp_path / "objects")), rows.shape)
    assert publisher.publish(rows).wait(30) == handle
    assert publisher.stats().objects_put == 0 and publisher.stats().objects_held > 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "objects").stat().st_mode) == 0o700
    # The options are those of the sweep.
    for path in files:
        os.utime(path, (1, 1))
    late = waymark.FolderSource(tmp_path / "objects", time_to_live=3600)
    assert not waymark.Fetcher(late).fetch(handle).valid.any()
    one_byte = waymark.FolderSource(tmp_path / "objects", max_bytes=1)
    waymark.Publisher(one_byte, rows.shape).publish(rows).wait(30)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_arguments_are_checked(tmp_path: Path) -> None:
    refused: list[tuple[str, Any, dict[str, Any]]] = [
        ("path", "", {}),
        ("path", "a\0b", {}),
        ("max_bytes", tmp_path, {"max_bytes": -1}),
        ("max_bytes", tmp_path, {"max_bytes": 1 << 64}),
        ("time_to_live", tmp_path, {"time_to_live": -1}),
        ("time_to_live", tmp_path, {"time_to_live": float("nan")}),
    ]
    for name, path, options in refused:
        with pytest.raises(waymark.InvalidArgumentError, match=f"^{name}: "):
            waymark.FolderSource(path, **options)
    with pytest.raises(TypeError):
        waymark.FolderSource(tmp_path, max_bytes=1.5)  # type: ignore[arg-type]
    with pytest.raises(waymark.UnavailableError, match="nowhere/objects': No such file"):
        waymark.FolderSource(tmp_path / "nowhere" / "objects").check()
    source = waymark.FolderSource(tmp_path)
    assert repr(source) == f"FolderSource({str(tmp_path)!r})"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(source)


# ---- source_of


class Recorded:
    """Stands for a source, to see what it is made with."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.args = args
        told = {name: value for name, value in options.items() if value is not None}
        self.options = {name: value for name, value in told.items() if value is not False}


def made(url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    of = sys.modules["waymark._source_url"]
    for name in ("FolderSource", "RedisSource"):
        monkeypatch.setattr(of, name, Recorded)
    source: Any = source_of(url)
    return source.args, source.options


def test_what_each_url_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    where = {
        "redis://h": (("h", 6379), {"database": 0}),
        "redis://h/": (("h", 6379), {"database": 0}),
        "redis://h:7/3": (("h", 7), {"database": 3}),
        "redis://[::1]:7": (("::1", 7), {"database": 0}),
        "redis://:a%40b%2F%3F%23@h": (("h", 6379), {"database": 0, "password": "a@b/?#"}),
        "redis://u%3A:p:w@h": (("h", 6379), {"database": 0, "user": "u:", "password": "p:w"}),
        "redis://u:p@w@h": (("h", 6379), {"database": 0, "user": "u", "password": "p@w"}),
        "redis://h?ttl=60&prefix=a%40%26+": (
            ("h", 6379), {"database": 0, "time_to_live": 60, "key_prefix": "a@&+"}),
        "redis://h?prefix=": (("h", 6379), {"database": 0, "key_prefix": ""}),
        "rediss://u:p@h:7?ca_file=/a%20b": (
            ("h", 7), {"database": 0, "user": "u", "password": "p", "tls": True,
                       "tls_ca_file": "/a b"}),
        "unix:///run/a%3Fb": ((), {"unix_socket": "/run/a?b"}),
        "unix://u:p@/run/a?ttl=1&database=2": (
            (), {"unix_socket": "/run/a", "user": "u", "password": "p", "time_to_live": 1,
                 "database": 2}),
        "file:///a%20b/c@d": (("/a b/c@d",), {}),
        "file:///a?ttl=1&max_bytes=18446744073709551615": (
            ("/a",), {"time_to_live": 1, "max_bytes": (1 << 64) - 1}),
    }  # fmt: skip
    for url, right in where.items():
        assert made(url, monkeypatch) == right, url


WRONG = [
    "", "redis", "redis:", "redis:h", "redis://", "redis:///1", "redis://h/a", "redis://h:port",
    "redis://h:1/2/3", "redis://[::1", "redis://h?ttl", "redis://h?ttl=", "http://h",
    "redis://h?ttl=1.5", "redis://h?ttl=-1", "redis://h?ttl=1&ttl=2", "redis://h?max_bytes=1",
    "redis://h?password=sesame", "redis://h?ca_file=a", "redis://h:99999", "redis://h?ttl=1#a",
    "unix://", "unix://run", "unix://h/run", "unix:///a?max_bytes=1", "unix:///a?database=one",
    "file://", "file://folder", "file:folder", "/folder", "file:///a?prefix=b", "file:///a#b",
    "file:///a?max_bytes=1k", "mooncake://a",
]  # fmt: skip


def test_wrong_urls_are_refused() -> None:
    for url in WRONG:
        with pytest.raises(waymark.InvalidArgumentError) as error:
            source_of(url)
        assert "sesame" not in str(error.value)
        assert error.value.__cause__ is error.value.__context__ is None, url
    with pytest.raises(waymark.InvalidArgumentError, match=r"^url: .* got 'redis://h/a'$"):
        source_of("redis://u:sesame@h/a")
    with pytest.raises(waymark.InvalidArgumentError, match=r"of ttl, prefix; 'time' is not"):
        source_of("redis://h?time=5")
    with pytest.raises(waymark.InvalidArgumentError, match=r"^url: .* got '/folder'$"):
        source_of("/folder")


def test_no_error_has_the_password() -> None:
    shapes = ["{}@h", ":{}@h", "u:{}@h", "u:{}", "u:{}@", "u:{}@/a", "{}:1@h"]
    splits = ["sesame", "se/same", "se?same", "se#same", "se@same", "se:same", "se%same", "se&same",
              "se?x=1&same", "se[same", "se same", "s\0esame"]  # fmt: skip
    tails = ["", "?bad=1", "/x", ":x", "?ttl=x", "#x", "?ttl=1&ttl=2"]
    schemes = ["redis://", "rediss://", "unix://", "http://", "redis:", ""]
    refused = 0
    for parts in itertools.product(schemes, shapes, splits, tails):
        if parts[1:3] == ("u:{}", "se@same"):  # "same" is the host
            continue
        try:
            source_of(parts[0] + parts[1].format(parts[2]) + parts[3])
        except waymark.WaymarkError as error:
            refused += 1
            assert "same" not in str(error), parts
    assert refused > 1000


def test_python_sources_are_made_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["waymark._source_url"], "ProcessSource", Recorded)
    source: Any = source_of("python:package.module:factory")
    assert source.args == ("package.module:factory",) and source.options == {}


@needs_server
def test_sources_of_urls_hold_what_is_published(tmp_path: Path) -> None:
    server = Server("--requirepass", "se/same")
    try:
        rows = rows_of(4)
        at = f"default:se%2Fsame@127.0.0.1:{server.port}"
        by_socket = f"unix://:se%2Fsame@{server.unix_socket}?database=3&prefix=a"
        urls = [f"redis://{at}/3?prefix=a", by_socket]
        handle = waymark.Publisher(source_of(urls[0]), rows.shape).publish(rows).wait(30)
        for url in urls:
            expect_same(waymark.Fetcher(source_of(url)).fetch(handle, timeout=30), rows)
            assert "same" not in repr(source_of(url))
        for url in (f"redis://{at}/2?prefix=a", f"redis://{at}/3"):
            assert not waymark.Fetcher(source_of(url)).fetch(handle, timeout=30).valid.any()
        folder = source_of(f"file://{tmp_path}/a%20b")
        assert waymark.Publisher(folder, rows.shape).publish(rows).wait(30) == handle
        expect_same(waymark.Fetcher(source_of(f"file://{tmp_path}/a%20b")).fetch(handle), rows)
    finally:
        server.kill()
        shutil.rmtree(server.folder)
