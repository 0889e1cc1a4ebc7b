"""The process of a ProcessSource: it serves a Python page source on a Unix socket, in the part of
Redis' protocol that RedisSource sends (GET, GETRANGE, SET, TOUCH, PING). A large value is in memory
that both processes have mapped, and its SET says where."""

from __future__ import annotations

import faulthandler
import importlib
import itertools
import mmap
import os
import queue
import re
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ._errors import DeadlineExceededError, UnavailableError, status_and_text_of

_PIECE = 1 << 20  # bytes of values that are put while more arrive, and sent while more are got
_LARGE = 1 << 16  # bytes of a value that is not copied once more
_END = 10.0  # a call that takes so many times its timeout ends the process

# The first two words of GET, TOUCH and SET, of which there are many.
_USUAL = re.compile(rb"\*([23])\r\n\$\d\r\n([A-Z]+)\r\n\$32\r\n([0-9a-f]{32})\r\n")

Command = list[bytes]
Piece = tuple[int, list[bytes]]


class Caller:
    """Calls the source on one thread. A call that takes longer than ``timeout`` is waited for no
    more, and until it has returned, others fail at once."""

    def __init__(self, source: Any, timeout: float, values: memoryview) -> None:
        self.timeout = timeout
        self._source = source
        self._values = values
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._begun = 0.0  # when the call began that runs; 0: none
        threading.Thread(target=self._run, name="waymark-source", daemon=True).start()

    def _run(self) -> None:
        os.nice(getattr(self._source, "NICENESS", 0))  # on Linux of this thread
        while True:
            call = self._calls.get()
            self._begun = time.monotonic()
            if not call.dropped:
                call.run(self._source, self.timeout, self._values)
            self._begun = 0.0
            del call

    @property
    def running(self) -> float:
        """How many seconds the call takes that runs."""
        begun = self._begun
        return time.monotonic() - begun if begun else 0.0

    def begin(self, batch: list[Command]) -> Call:
        call = Call(batch, time.monotonic() + self.timeout)
        if (running := self.running) > self.timeout:
            text = f"a call of the source has not returned for {running:.1f} s"
            call.pieces.put(UnavailableError(text))
        else:
            self._calls.put(call)
        return call


class Call:
    """Commands of one kind, which are one call of the source, and the replies to them."""

    def __init__(self, batch: list[Command], deadline: float) -> None:
        self.batch = batch
        self.deadline = deadline
        self.dropped = False  # nobody waits for it
        # Parts of so many replies, in their order; then None or the exception that ended the call.
        self.pieces: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()

    def replies(self) -> Iterator[list[bytes]]:
        """The parts of one for each command."""
        count = 0
        while True:
            try:
                piece = self.pieces.get(timeout=max(0.0, self.deadline - time.monotonic()))
            except queue.Empty:
                self.dropped = True
                piece = DeadlineExceededError("the source has not answered in time")
            if not isinstance(piece, tuple):
                break
            count += piece[0]
            yield piece[1]
        error = piece or ValueError(f"must return {len(self.batch)} items, got {count}")
        yield [_error(error)] * (len(self.batch) - count)

    def run(self, source: Any, timeout: float, values: memoryview) -> None:
        try:
            replies = itertools.islice(self._replies(source, timeout, values), len(self.batch))
            count, size, parts = 0, 0, list[bytes]()
            for reply in replies:
                parts += reply
                count += 1
                size += sum(map(len, reply))
                if size > _PIECE:
                    self.pieces.put((count, parts))
                    count, size, parts = 0, 0, []
            self.pieces.put((count, parts))
            self.pieces.put(None)
        except BaseException as error:  # noqa: B902
            self.pieces.put(error)

    def _replies(
        self, source: Any, timeout: float, values: memoryview
    ) -> Iterable[tuple[bytes, ...]]:
        kind = self.batch[0][0]
        digests = [bytes.fromhex(command[1].decode()) for command in self.batch[kind == b"PING" :]]
        if kind == b"GET":
            return map(_bulk, source.get(digests, timeout))
        if kind == b"GETRANGE":
            ranges = [(int(begin), int(last) + 1) for _, _, begin, last in self.batch]
            return map(_bulk, _ranges(source, digests, ranges, timeout))
        if kind == b"SET":
            put = [_value(values, *command[2:]) for command in self.batch]
            if not hasattr(source, "register_memory"):
                put = list(map(bytes, put))
            objects = list(zip(digests, put))
            source.put(objects, timeout)
            return itertools.repeat((b"+OK\r\n",))
        if kind == b"TOUCH":
            holds = getattr(source, "holds", None)
            held = holds(digests, timeout) if callable(holds) else itertools.repeat(False)
            return ((b":1\r\n" if one else b":0\r\n",) for one in held)
        if kind == b"PING":
            return itertools.repeat((b"+PONG\r\n",))
        raise NotImplementedError(kind.decode(errors="replace"))


def _value(values: memoryview, value: bytes, *place: bytes) -> bytes | memoryview:
    """The value of a SET; with a place, that which begins at number ``value`` in ``values``: its
    size, where the epoch of that memory is, and the epoch that it must still have."""
    if not place:
        return value
    begin, (count, at, epoch) = int(value), map(int, place)
    if epoch != int.from_bytes(values[at : at + 8], sys.byteorder):
        raise UnavailableError("SET: its memory has another value by now")
    if not 0 <= begin <= begin + count <= len(values):
        raise ValueError(f"SET: within {len(values)} bytes, got {count} from {begin} on")
    return values[begin : begin + count]


def _error(error: BaseException) -> bytes:
    text = " ".join(status_and_text_of(error)[1].split())
    return b"-ERR %b\r\n" % text.encode(errors="replace")


def _bulk(item: Any) -> tuple[bytes, ...]:
    """An object as a reply; None: absent; an exception: it could not be got."""
    if isinstance(item, Exception):
        return (_error(item),)
    if item is None:
        return (b"$-1\r\n",)
    data = memoryview(item).cast("B")
    return (b"$%d\r\n" % len(data), data, b"\r\n")  # type: ignore[return-value]


def _ranges(
    source: Any, digests: list[bytes], ranges: list[tuple[int, int]], timeout: float
) -> Iterable[Any]:
    """What get_ranges of the source returns; of objects that are got whole if it has none."""
    if callable(method := getattr(source, "get_ranges", None)):
        words = [(digest, *part) for digest, part in zip(digests, ranges)]
        found: Iterable[Any] = method(words, timeout)
        return found
    once = list(dict.fromkeys(digests))
    got = dict(zip(once, source.get(once, timeout), strict=True))
    return (
        whole
        if (whole := got[digest]) is None or isinstance(whole, Exception)
        else memoryview(whole).cast("B")[begin:end]
        for digest, (begin, end) in zip(digests, ranges)
    )


class Connection:
    """Reads the commands of a client and sends it replies. A client writes all commands of a call
    before it reads a reply, so sending goes on reading."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._bytes = bytearray()
        self._at = 0

    def _wait(self, events: int, milliseconds: int | None = None) -> int:
        poll = select.poll()
        poll.register(self._socket, events)
        found = poll.poll(milliseconds)
        return found[0][1] if found else 0

    def _read(self) -> None:
        if not (read := self._socket.recv(1 << 18)):
            raise EOFError
        del self._bytes[: self._at]
        self._at = 0
        self._bytes += read

    def _word(self, size: int) -> bytes:
        while len(self._bytes) < self._at + size + 2:
            self._read()
        begin, self._at = self._at, self._at + size + 2
        return bytes(memoryview(self._bytes)[begin : begin + size])

    def _number(self) -> int:
        while (end := self._bytes.find(b"\r\n", self._at)) < 0:
            self._read()
        number = int(self._bytes[self._at + 1 : end])
        self._at = end + 2
        return number

    def command(self) -> Command:
        if (usual := _USUAL.match(self._bytes, self._at)) is not None:
            count, kind, name = usual.groups()
            self._at = usual.end()
            return [kind, name] if count == b"2" else [kind, name, self._word(self._number())]
        return [self._word(self._number()) for _ in range(self._number())]

    def _follows(self) -> bool:
        """Whether another command follows at once."""
        return self._at < len(self._bytes) or self._wait(select.POLLIN, 0) != 0

    def batches(self) -> Iterator[list[Command]]:
        """The commands: each time those of one kind that arrived together, an empty list if none
        follows at once."""
        batch: list[Command] = []
        size = 0
        while True:
            if batch and not self._follows():
                yield batch
                yield []
                batch = []
            command = self.command()
            if batch and (command[0] != batch[0][0] or size > _PIECE):
                yield batch
                batch = []
            size = (size if batch else 0) + len(command[-1])
            batch.append(command)

    def send(self, piece: list[bytes]) -> None:
        for large, parts in itertools.groupby(piece, lambda part: len(part) > _LARGE):
            for part in parts if large else (b"".join(parts),):
                left = memoryview(part)
                while left:
                    if self._wait(select.POLLIN | select.POLLOUT) & select.POLLOUT:
                        left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
                    else:
                        self._read()

    def serve(self, caller: Caller) -> None:
        """Until the client goes."""
        call: Call | None = None  # runs while the next commands are read
        try:
            for batch in self.batches():
                for piece in call.replies() if call else ():
                    self.send(piece)
                call = caller.begin(batch) if batch else None
        except (EOFError, OSError):
            self._socket.close()


def serve(
    folder: str, factory: str, options: Mapping[str, Any], timeout: float, values_file: int
) -> None:
    """Serves ``factory(**options)`` on the socket in ``folder`` until stdin ends, with the process
    that has its other end. Large values are in ``values_file``: put() gets copies of them, or, if
    the source has register_memory(memory), which is then called first, parts of that memory. Does
    not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other process
    module, _, name = factory.partition(":")
    source = getattr(importlib.import_module(module), name)(**options)
    values = memoryview(mmap.mmap(values_file, 0))
    if register := getattr(source, "register_memory", None):
        register(values)
    caller = Caller(source, timeout, values)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, "new"))
    listener.listen(64)
    # Before this nobody connects, and nobody waits for a source that is being made.
    os.rename(os.path.join(folder, "new"), os.path.join(folder, "socket"))
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    poll.register(listener, select.POLLIN)
    log = sys.stderr or open(os.devnull, "w")
    while caller.running < _END * timeout:
        # Ends the process, too, if a call of the source keeps the GIL.
        faulthandler.dump_traceback_later(_END * timeout + 1, exit=True, file=log)
        found = [fd for fd, _ in poll.poll(1000)]
        if sys.stdin.fileno() in found:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
        if listener.fileno() in found:
            connection = Connection(listener.accept()[0])
            threading.Thread(target=connection.serve, args=(caller,), daemon=True).start()
    faulthandler.dump_traceback(log)
    os._exit(1)
