"""Page sources that are Python objects."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import (
    LOG, DictSource, failed_put, in_threads, logged, output_of,
)  # fmt: skip
from test_documents import expect_same, random_rows
from test_fetching import from_zero
from waymark import Reason, Rows


class FullSource(DictSource):
    def get_ranges(self, ranges: list[tuple[bytes, int, int]], timeout: float) -> list[Any]:
        self.calls.append("get_ranges")
        got: list[Any] = []
        for digest, begin, end in ranges:
            whole = self.objects.get(digest, b"")
            got.append(memoryview(whole)[begin:end] if end <= len(whole) else None)
        return got

    def holds(self, digests: list[bytes], timeout: float) -> Iterator[bool]:
        self.calls.append("holds")
        return (digest in self.objects for digest in digests)  # any iterable will do


@pytest.fixture
def rows() -> Rows:
    return from_zero(random_rows(np.random.default_rng(5), 90))


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(args.exc_type))
    return seen


def publish(rows: Rows, source: waymark.PageSource, **options: Any) -> waymark.Handle:
    return waymark.Publisher(source, rows.shape, **options).publish(rows).wait(10)


@pytest.mark.parametrize("kind", [DictSource, FullSource])
def test_a_dict_is_a_source(kind: Callable[[], DictSource], rows: Rows) -> None:
    source = kind()
    publisher = waymark.Publisher(source, rows.shape)
    handle = publisher.publish(rows).wait(10)
    assert handle == rows.handle()
    assert publisher.stats().objects_put == len(source.objects) > 2
    got, report = waymark.Fetcher(source).fetch_with_report(handle, timeout=60)
    expect_same(got, rows)
    assert report.absent == report.source_status == 0 and report.source_message == ""
    assert 0 < min(source.timeouts) and max(source.timeouts) <= 60
    # Some layers: ranges, or whole objects that are cut.
    some = waymark.Fetcher(source).fetch(handle, 20, 60, layers=(1, 2))
    assert (some.ids == rows.ids[20:60, 1:2]).all()
    assert ("get_ranges" in source.calls) == (kind is FullSource)
    # What is damaged or lost is missing.
    whole = dict(source.objects)
    source.objects = {d: b[:-1] + bytes([b[-1] ^ 1]) for d, b in whole.items()}
    damaged, report = waymark.Fetcher(source).fetch_with_report(handle)
    assert report.damaged > 0 and (damaged.reasons[rows.valid] == Reason.CAPACITY).all()
    source.objects = {handle.head: whole[handle.head]}
    lost, report = waymark.Fetcher(source).fetch_with_report(handle)
    assert report.absent > 0 and report.source_status == 0 and not lost.valid.all()
    source.objects = whole
    # What it holds is not put again.
    publisher = waymark.Publisher(source, rows.shape)
    assert publisher.publish(rows).wait(10) == handle
    held = publisher.stats().objects_held
    assert (held == len(source.objects)) if kind is FullSource else held == 0


class Broken(waymark.UnavailableError):
    pass


@pytest.mark.parametrize(
    "error, status",
    [
        (KeyError("k"), waymark.UnknownError.status),
        (TimeoutError("late"), waymark.DeadlineExceededError.status),
        (ConnectionResetError("gone"), waymark.UnavailableError.status),
        (NotImplementedError("no"), waymark.UnimplementedError.status),
        (MemoryError("full"), waymark.ResourceExhaustedError.status),
        (Broken("down"), waymark.UnavailableError.status),
        (waymark.DataLossError("torn"), waymark.DataLossError.status),
        (SystemExit(3), waymark.UnknownError.status),
        (KeyboardInterrupt(), waymark.UnknownError.status),
    ],
)
def test_what_it_raises_is_reported(
    error: BaseException, status: int, rows: Rows, unraisable: list[Any]
) -> None:
    class Raises(DictSource):
        def get(self, digests: list[bytes], timeout: float) -> list[Any]:
            raise error

        def put(self, objects: list[tuple[bytes, bytes]], timeout: float) -> None:
            raise error

    source = Raises()
    publisher = waymark.Publisher(source, rows.shape)
    failed = failed_put(publisher.publish(rows))
    handle, stats = failed.handle, publisher.stats()
    assert handle == rows.handle() and stats.puts_failed > 0 and stats.incomplete == 1
    assert str(failed).endswith(f": {type(error).__name__}: {error}")
    again = pickle.loads(pickle.dumps(failed))
    assert (str(again), again.handle) == (str(failed), handle)
    assert unraisable == [type(error)]  # once per publisher and object, not once per call
    failed_put(publisher.publish(rows))
    assert len(unraisable) == 1
    fetcher = waymark.Fetcher(source)
    for _ in range(3):
        got, report = fetcher.fetch_with_report(handle)
        assert report.source_status == status
        assert report.source_message == f"{type(error).__name__}: {error}"
        assert not got.valid.any() and (got.reasons[rows.valid] == Reason.CAPACITY).all()
    assert len(unraisable) == 2
    assert logged("rows are missing, because the page source failed: ").levelname == "WARNING"
    assert sum("page source failed" in line.getMessage() for line in LOG.records) == 1


@pytest.mark.parametrize(
    "returned, message",
    [
        (lambda asked: [], "get: must return "),
        (lambda asked: [None] * (len(asked) + 1), "get: must return "),
        (lambda asked: None, "TypeError: "),
        (lambda asked: [7] * len(asked), "TypeError: get must be"),
        (lambda asked: ["text"] * len(asked), "TypeError: get must be"),
    ],
)
def test_wrong_returns_are_refused(
    returned: Callable[[list[bytes]], Any], message: str, rows: Rows, unraisable: list[Any]
) -> None:
    class Wrong(DictSource):
        def get(self, digests: list[bytes], timeout: float) -> Any:
            return returned(digests)

    got, report = waymark.Fetcher(Wrong()).fetch_with_report(rows.handle())
    assert not got.valid.any()
    assert message in report.source_message and report.source_status != 0
    assert len(unraisable) == 1


def test_ranges_of_another_length_are_refused(rows: Rows, unraisable: list[Any]) -> None:
    class Shorter(FullSource):
        def get_ranges(self, ranges: list[tuple[bytes, int, int]], timeout: float) -> list[Any]:
            return [bytes(end - begin - 1) for _, begin, end in ranges]

    source = Shorter()
    handle = publish(rows, source)
    got, report = waymark.Fetcher(source).fetch_with_report(handle, layers=(0, 1))
    assert report.source_status == waymark.InvalidArgumentError.status
    assert "get_ranges: item 0 must have " in report.source_message
    assert not got.valid[: rows.shape.page_tokens].any() and len(unraisable) == 1


def test_a_slow_source_is_called_no_more(rows: Rows) -> None:
    class Slow(DictSource):
        def get(self, digests: list[bytes], timeout: float) -> list[Any]:
            assert timeout > 0
            over = time.monotonic() + timeout
            while time.monotonic() <= over:
                time.sleep(0.001)
            return super().get(digests, timeout)

    source = Slow()
    handle = publish(rows, source)
    source.calls.clear()
    got, report = waymark.Fetcher(source).fetch_with_report(handle, timeout=0.02)
    assert source.calls == ["get"]
    assert report.fetched > 0, "what came late is used"
    assert report.source_status == waymark.DeadlineExceededError.status
    # The last node and the tail are asked for together; chunks are not asked for any more.
    pages = len(rows) // rows.shape.page_tokens * rows.shape.page_tokens
    lost = rows.valid & (np.arange(len(rows)) < pages)
    assert lost.any() and (got.reasons[lost] == Reason.CAPACITY).all()
    assert (got.infos[~lost] == rows.infos[~lost]).all()


def test_threads_fetch_together(rows: Rows) -> None:
    meet = threading.Barrier(4)
    names = set()

    class Meeting(DictSource):
        def get(self, digests: list[bytes], timeout: float) -> list[Any]:
            names.add(threading.get_ident())
            if "met" not in self.calls:
                meet.wait(30)  # all four are in here at once
            self.calls.append("met")
            return super().get(digests, timeout)

    source = Meeting()
    handle = publish(rows, source)
    results = in_threads(4, lambda: waymark.Fetcher(source).fetch(handle))
    assert len(names) == 4
    for got in results:
        expect_same(got, rows)


def test_it_lives_as_long_as_what_uses_it(rows: Rows) -> None:
    source = DictSource()
    alive = weakref.ref(source)
    fetcher = waymark.Fetcher(source)
    publisher = waymark.Publisher(source, rows.shape)
    handle = publisher.publish(rows).wait(10)
    del source
    gc.collect()
    assert alive() is not None
    expect_same(fetcher.fetch(handle), rows)
    del publisher
    gc.collect()
    assert alive() is not None
    del fetcher
    gc.collect()
    assert alive() is None


def test_arguments_are_checked(rows: Rows) -> None:
    class GetAlone:
        def get(self, digests: list[bytes], timeout: float) -> list[Any]:
            return []

    wrong: Any
    for wrong in (None, 7, "path", {}, object(), GetAlone()):
        for use in (waymark.Fetcher, partial(waymark.Publisher, shape=rows.shape)):
            with pytest.raises(TypeError, match="source: a source of waymark, or an object with"):
                use(wrong)


PROGRAM = """
import sys, threading, time, waymark
import numpy as np
entered = threading.Event()
class Source:
    def get(self, digests, timeout):
        return [None] * len(digests)
    def put(self, objects, timeout):
        entered.set()
        {put}
sys.unraisablehook = lambda args: print("unraisable", args.exc_type.__name__, flush=True)
shape = waymark.Shape(2, 2, 8, 16, 0, 0, (0, 1))
infos = np.zeros(64, waymark.row_info_dtype)
def rows(first):
    ids = np.tile(np.array([first, first + 1], np.uint8), (64, 2, 1))
    return waymark.Rows(shape, 0, ids, infos)
publisher = waymark.Publisher(Source(), shape)
tickets = [publisher.publish(rows(first)) for first in (0, 1, 2, 3, 4, 6, 0)]
{then}
print("end", flush=True)
"""


@pytest.mark.parametrize(
    "put, then, out, log",
    [
        ("time.sleep(0.3)", "entered.wait()", "end\n", ""),  # a callback is in Python at exit
        ("pass", "tickets = None", "end\n", ""),  # the publisher's thread is at work at exit
        ("raise ValueError", "while not tickets[6].ready(): pass", "unraisable ValueError\nend\n",
         "waymark: readers may miss rows that are published: ValueError: \n"),
    ],
)  # fmt: skip
def test_the_interpreter_may_end_under_it(put: str, then: str, out: str, log: str) -> None:
    assert output_of(PROGRAM.format(put=put, then=then)) == (out, log)


def test_no_method_is_called_after_the_exit_has_begun() -> None:
    program = """
import atexit
def late():  # registered before waymark's own function, so it runs after it
    before = len(calls)
    ticket = publisher.publish(rows(5))
    while not ticket.ready(): pass
    print(len(calls) - before, publisher.stats().puts_failed)
atexit.register(late)
calls = []
""" + PROGRAM.format(put="calls.append(1)", then="tickets[6].wait(10)")
    assert output_of(program) == ("end\n0 1\n", "")


def test_ctrl_c_ends_a_fetch() -> None:
    program = """
import os, signal, threading, waymark
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background begin without
entered, leave = threading.Event(), threading.Event()
class Source:
    def get(self, digests, timeout):
        entered.set()
        leave.wait()
        return [None] * len(digests)
    def put(self, objects, timeout):
        pass
def interrupt():
    entered.wait()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
import numpy as np
shape = waymark.Shape(1, 1, 8, 4, 0, 0, (0,))
rows = waymark.Rows(shape, 0, np.zeros((9, 1, 1), np.uint8), np.zeros(9, waymark.row_info_dtype))
try:
    waymark.Fetcher(Source()).fetch(rows.handle())
except KeyboardInterrupt:
    print("interrupted")
leave.set()
"""
    assert output_of(program) == ("interrupted\n", "")
