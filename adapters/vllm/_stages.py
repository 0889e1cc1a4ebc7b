"""Rows of pipeline stages: every stage reads its layers' rows and sends them to the last one,
whose output goes to the scheduler."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from .._documents import from_bytes
from .._rows import Rows

_START_SECONDS = 60.0
_HELLO = struct.Struct("<16sI")  # the key of this start, and the rank
_TAG = struct.Struct("<Q")  # a document of the rows follows, or nothing
_MOST_BYTES = 1 << 32


class Stages:
    """The links of a rank. All stages have the same snapshots in the same order. Made by the
    worker's threads of all stages together; then used by the reader's thread alone."""

    def __init__(
        self, pipeline: Any, seconds: float, start_seconds: float = _START_SECONDS
    ) -> None:
        """pipeline: vLLM's group of the stages, in order of layers. seconds: to wait for rows.
        start_seconds: to wait for the other stages here; then TimeoutError."""
        self._earlier: list[_Link] = []
        self._last: Connection | None = None
        key = secrets.token_bytes(16)
        self.engine = hashlib.sha256(key).hexdigest()
        """The same on all stages, and no other engine's."""
        last = pipeline.world_size - 1
        if last == 0:
            return
        rank = pipeline.rank_in_group
        if rank < last:
            address, key = pipeline.broadcast_object(src=last)
            self.engine = hashlib.sha256(key).hexdigest()
            self._last = _connected(address, _HELLO.pack(key, rank), rank, start_seconds)
            return
        host = socket.gethostbyname(socket.gethostname())
        with socket.create_server((host, 0), backlog=last) as listener:
            pipeline.broadcast_object((listener.getsockname(), key), src=last)
            ranks = _accepted(listener, key, last, start_seconds)
        self._earlier = [_Link(ranks[rank], seconds) for rank in range(last)]

    @property
    def joins(self) -> bool:
        """Whether there are other stages, for whose rows this rank waits, or which wait for its
        own."""
        return self._last is not None or bool(self._earlier)

    @property
    def returns(self) -> bool:
        """Whether this rank's output goes to the scheduler."""
        return self._last is None

    def joined(self, tag: int, rows: Rows | None) -> Rows | None:
        """Of the last stage: the rows of all layers; of others: what they sent. None: a stage has
        no rows. TimeoutError if a stage is late."""
        if self._last is not None:
            document = b"" if rows is None else rows.to_bytes()
            self._last.send_bytes(_TAG.pack(tag) + document)
        stages = [*(link.rows_of(tag) for link in self._earlier), rows]
        if any(stage is None for stage in stages):
            return None
        return Rows.join_layers(stages) if len(stages) > 1 else rows  # type: ignore[arg-type]


class _Link:
    """What an earlier stage sends."""

    def __init__(self, link: Connection, seconds: float) -> None:
        self._link = link
        self._seconds = self._wait = seconds
        # A message with a later tag than the one that was asked for.
        self._ahead: bytes | None = None

    def rows_of(self, tag: int) -> Rows | None:
        while self._ahead is not None or self._link.poll(self._wait):
            message, self._ahead = self._ahead, None
            if message is None:
                message, self._wait = self._link.recv_bytes(_MOST_BYTES), self._seconds
            (sent,) = _TAG.unpack_from(message)
            if sent == tag:
                document = memoryview(message)[_TAG.size :]
                return from_bytes(document).rows() if len(document) else None
            if sent > tag:
                self._ahead = message
                break
        else:
            self._wait = 0  # once is enough for a stage that is gone: until it sends something
        raise TimeoutError("a pipeline stage sent no rows in time")


def _connected(address: Any, hello: bytes, rank: int, seconds: float) -> Connection:
    try:
        link = socket.create_connection(tuple(address), seconds)
    except OSError as error:
        raise TimeoutError(
            f"waymark: pipeline stage {rank} cannot reach the last stage at "
            f"{address[0]}:{address[1]}: {error}"
        ) from error
    link.sendall(hello)
    link.settimeout(None)
    return Connection(link.detach())


def _accepted(
    listener: socket.socket, key: bytes, count: int, seconds: float
) -> dict[int, Connection]:
    """The links to stages 0 ... count - 1, by rank; whoever does not know the key is not one."""
    ranks: dict[int, Connection] = {}
    deadline = time.monotonic() + seconds
    try:
        while len(ranks) < count:
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            link, _ = listener.accept()
            link.settimeout(max(deadline - time.monotonic(), 0.001))
            rank = _greeted(link, key)
            if rank is None or rank >= count:
                link.close()
                continue
            link.settimeout(None)
            ranks[rank] = Connection(link.detach())
    except TimeoutError:
        absent = ", ".join(str(rank) for rank in range(count) if rank not in ranks)
        raise TimeoutError(
            f"waymark: pipeline stages did not connect to the last one in {seconds:g} s: {absent}"
        ) from None
    return ranks


def _greeted(link: socket.socket, key: bytes) -> int | None:
    hello = b""
    try:
        while len(hello) < _HELLO.size and (part := link.recv(_HELLO.size - len(hello))):
            hello += part
    except OSError:
        return None
    if len(hello) < _HELLO.size:
        return None
    given, rank = _HELLO.unpack(hello)
    return rank if hmac.compare_digest(given, key) else None
