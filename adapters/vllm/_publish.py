"""Handles in place of rows: the worker publishes what it has read of a request that has ended, and
sends the handle."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core import Ticket
from .._errors import DeadlineExceededError, PutFailedError
from .._fetching import Publisher
from .._rows import Rows
from .._source_url import source_of
from ._exchange import Ended, Result, coverage_text
from ._results import joined

_MOST_WAITING = 64  # publications, each with its rows
_IDLE_SECONDS = 0.01  # that an engine without other work waits at a time


class _Publication(NamedTuple):
    tag: int
    rows: Rows
    failure: str  # of the rows
    ticket: Ticket
    deadline: float
    tail: bytes


class Publications:
    """Of the worker whose output goes to the scheduler. Any thread."""

    def __init__(self, url: str, seconds: float) -> None:
        """seconds: the most that an output waits for its publication."""
        self._source = source_of(url)
        self._seconds = seconds
        self._publisher: Publisher | None = None
        self._lock = threading.Lock()
        self._read: dict[int, Result] = {}  # of requests that have not ended
        self._ended: list[Ended] = []  # whose rows have not been read
        self._open: list[_Publication] = []

    @property
    def waits(self) -> bool:
        """Whether a request that has ended has no result."""
        return bool(self._ended or self._open)

    def end(self, ended: Sequence[Ended]) -> None:
        """Requests that have ended, whose snapshots are read, or will be."""
        with self._lock:
            self._ended += ended

    def results(self, read: Sequence[Result], idle: bool) -> tuple[Result, ...]:
        """What goes to the scheduler. read: what was read since the last call; what could not be
        sent comes again. idle: everything has been read, and nobody waits for the output."""
        with self._lock:
            done = [one for one in read if one.handle is not None]
            self._read.update((one.tag, one) for one in read if one.handle is None)
            left = []
            for one in self._ended:
                if idle or all(tag in self._read for tag, _ in one.lives):
                    self._publish(one, done)
                else:
                    left.append(one)
            self._ended = left
            if idle and not done and self._open:
                with contextlib.suppress(Exception):
                    self._open[0].ticket.wait(_IDLE_SECONDS)
            now, still = time.monotonic(), []
            for publication in self._open:
                if publication.ticket.ready() or now > publication.deadline:
                    done.append(self._result(publication))
                else:
                    still.append(publication)
            self._open = still
        return tuple(done)

    def _publish(self, ended: Ended, done: list[Result]) -> None:
        lives = [(self._read.pop(tag, None), limit) for tag, limit in ended.lives]
        last = lives[-1][0]
        tag, failure = ended.lives[-1][0], ""
        try:
            if not ended.rows:
                return
            rows, failure = joined(lives)
            if rows is not None:
                rows = rows.resized(ended.rows)
                if self._publisher is None:
                    self._publisher = Publisher(
                        self._source, rows.shape,
                        max_waiting=_MOST_WAITING, source_timeout=self._seconds,
                    )  # fmt: skip
                ticket, deadline = self._publisher.publish(rows), time.monotonic() + self._seconds
                tail = last.tail if last else b""
                self._open.append(_Publication(tag, rows, failure, ticket, deadline, tail))
                return
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        done.append(Result.none(tag, failure)._replace(handle=b""))

    def _result(self, one: _Publication) -> Result:
        failure = one.failure
        handle: bytes
        try:
            handle = one.ticket.wait(0)
        except PutFailedError as error:  # the handle is right
            handle, failure = error.handle, f"not all rows were stored: {error}"
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            if isinstance(error, DeadlineExceededError):
                failure = f"the rows were not stored in {self._seconds:g} s"
            handle = one.rows.handle()  # what was not stored may still be
        complete = bool(one.rows.valid.all())
        text = coverage_text(one.rows, failure)
        return Result(one.tag, None, complete, text, failure, handle, one.tail)

    def stats(self) -> dict[str, Any]:
        """Counters of the publisher."""
        return self._publisher.stats().as_dict() if self._publisher is not None else {}
