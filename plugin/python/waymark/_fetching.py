"""Rows in page sources: sources, publishers, fetchers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

from . import _core, _logging, _metrics
from ._core import PublisherStats, Ticket
from ._errors import InvalidArgumentError
from ._rows import Codec, Rows
from ._types import Shape, at_least_one, code_of, integer, layers_of

if TYPE_CHECKING:
    from ._tier import Tier

__all__ = ["BundleSource", "FetchReport", "Fetcher", "FileSource", "FolderSource", "MemorySource",
           "PageSource", "Publisher", "PublisherStats", "RedisSource", "Ticket"]  # fmt: skip


class MemorySource(_core.Source):
    """Objects in the memory of this process; the least recently used are evicted. Any thread."""

    __slots__ = ()

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        """max_bytes: of all objects, plus about 128 bytes for each."""
        if max_bytes < 1:
            raise InvalidArgumentError(f"max_bytes: at least 1, got {max_bytes}")
        super().__init__(max_bytes, False)


class FileSource(_core.Source):
    """Objects of a document with nodes (``rows.save(path, nodes=True)``); read only, so that no
    Publisher takes it. Any thread."""

    __slots__ = ()

    def __init__(self, path: str | os.PathLike[str], *, memory_map: bool = False) -> None:
        """memory_map and errors: as open(); FailedPreconditionError if the document has no
        nodes."""
        super().__init__(os.fspath(path), memory_map)


def _count_of(name: str, seconds: float, per_second: int, *, zero: bool = False) -> int:
    """Seconds as a number of shorter units, rounded up."""
    count = seconds * per_second
    if not 0 <= count < 1 << 31 or (count == 0 and not zero):
        least = "at least" if zero else "above"
        raise InvalidArgumentError(
            f"{name}: {least} 0 s and below {(1 << 31) // per_second} s, got {seconds}"
        )
    return math.ceil(count)


class FolderSource(_core.FolderSource):
    """Objects in a folder, a file each, for processes of one machine, or of machines that share a
    file system (it needs hard links). Any thread.

    Making it does not touch the folder; check() and the first publication make it, but not its
    parents. Files have mode 0600 and folders 0700: processes that share it run as one user, and
    routes nearly reveal prompts. An object that is there is not replaced. A folder that cannot be
    used costs rows, as a Redis server does. A file system that does not answer, such as NFS without
    its server, holds a call beyond its timeout."""

    __slots__ = ("_path",)

    def __init__(
        self, path: str | os.PathLike[str], *, max_bytes: int = 0, time_to_live: float = 0
    ) -> None:
        """max_bytes: of all objects in the folder; beyond it the oldest are deleted, down to nine
        tenths. Each source may exceed it by a tenth; 0: no limit. time_to_live: seconds; objects
        expire this long after they were last put, or found by a publisher; 0: never."""
        self._path = os.fspath(path)
        if not self._path or "\0" in self._path:
            raise InvalidArgumentError(f"path: a folder, got {self._path!r}")
        most = integer("max_bytes", max_bytes, 0, (1 << 64) - 1)
        seconds = _count_of("time_to_live", time_to_live, 1, zero=True)
        super().__init__(self._path, most, seconds)

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        raise TypeError("a FolderSource cannot be pickled: make one where it is used")

    def __repr__(self) -> str:
        return f"FolderSource({self._path!r})"


class RedisSource(_core.RedisSource):
    """Objects in a Redis server. Objects that it evicts, expires or loses are missing rows. Any
    thread; threads take turns on one connection.

    Making it does not connect; check() does. An unreachable server, or a refused password, costs
    rows: publishers and fetchers log it at their first use, and the FetchReport and PutFailedError
    have the reason. No message and no repr contains the user or the password. It
    cannot be pickled: pass a Handle to the other process, and make a source there."""

    __slots__ = ("_where",)
    _values_file = -1  # through which a ProcessSource hands over large values

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 6379,
        *,
        unix_socket: str | os.PathLike[str] | None = None,
        user: str | None = None,
        password: str | None = None,
        database: int = 0,
        key_prefix: str = "waymark:",
        tls: bool = False,
        tls_ca_file: str | os.PathLike[str] | None = None,
        tls_certificate_file: str | os.PathLike[str] | None = None,
        tls_key_file: str | os.PathLike[str] | None = None,
        tls_server_name: str | None = None,
        time_to_live: float = 0,
        connect_timeout: float = 1.0,
        command_timeout: float = 5.0,
        initial_back_off: float = 0.05,
        max_back_off: float = 5.0,
    ) -> None:
        """unix_socket: instead of host and port. user: with a password, from Redis 6 on. tls: use
        TLS, with certificate files (PEM) and a server name; default: the system's certificates. The
        name in the server's certificate is not checked: trust an authority of your own. Times are
        seconds. time_to_live: objects expire this long after they were last put, or found by a
        publisher; 0: never. connect_timeout, command_timeout (of each reply): in addition to the
        timeout of each call. initial_back_off: no connection is tried for this long after a
        failure, doubled after each further one, up to max_back_off.

        UnimplementedError if the library was built without hiredis (``build_info()["redis"]`` is
        "none"), or without its TLS."""
        texts: Any = {
            "host": host, "unix_socket": unix_socket, "user": user, "password": password,
            "key_prefix": key_prefix, "tls_ca_file": tls_ca_file,
            "tls_certificate_file": tls_certificate_file, "tls_key_file": tls_key_file,
            "tls_server_name": tls_server_name,
        }  # fmt: skip
        words: Any = tuple("" if text is None else os.fspath(text) for text in texts.values())
        for name, word in zip(texts, words):
            if "\0" in word:
                raise InvalidArgumentError(f"{name}: no character NUL, got one")
        numbers: Any = (
            integer("port", port, 1, 65535),
            integer("database", database, 0, (1 << 31) - 1),
            _count_of("time_to_live", time_to_live, 1, zero=True),
            _count_of("connect_timeout", connect_timeout, 1000),
            _count_of("command_timeout", command_timeout, 1000),
            _count_of("initial_back_off", initial_back_off, 1000),
            _count_of("max_back_off", max_back_off, 1000),
            self._values_file,
        )
        super().__init__(words, tls, numbers)
        self._where = f"unix_socket={words[1]!r}" if words[1] else f"{host!r}, {port}"

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: make one where it is used")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"


class PageSource(Protocol):
    """A page source of your own: any object with these methods, given to a Publisher or a Fetcher
    in place of a source of this package::

        class DictSource:
            def __init__(self):
                self.objects = {}

            def get(self, digests, timeout):
                return [self.objects.get(digest) for digest in digests]

            def put(self, objects, timeout):
                self.objects.update(objects)

    It holds immutable objects, each under a digest of 16 bytes. Two more methods are optional:

    ``get_ranges(ranges, timeout)``: the bytes of each ``(digest, begin, end)``, or None; a range
    that ends beyond its object is absent. Without it, whole objects are fetched.

    ``holds(digests, timeout)``: for each digest whether the object is there; it is then not put
    again. Without it, every object is put.

    ``timeout``: the seconds that are left to the caller. A method that takes longer delays the
    caller; what it returns is still used, and no further method is called for that fetch or
    publication.

    Methods are called with the GIL, by the publisher's thread and by threads that fetch, several at
    once. An exception becomes the status and the text of a FetchReport (TimeoutError,
    NotImplementedError, MemoryError, OSError and this package's own have a status of their own;
    others count as unknown); the rows are then missing. The first exception of an object is also
    passed to sys.unraisablehook. The object lives as long as the publishers and fetchers that use
    it. When the interpreter exits, no method is called any more.
    """

    def get(self, digests: list[bytes], timeout: float, /) -> Iterable[Any]:
        """The object of each digest: bytes, or anything with the buffer protocol; None: absent."""

    def put(self, objects: list[tuple[bytes, bytes]], timeout: float, /) -> Any:
        """Stores objects: (digest, bytes) each."""


class BundleSource(_core.BundleSource):
    """A source on top of another one, for stores that want few large objects: the chunks that are
    put together are packed into bundles. A reader that has read a node finds its chunks; a chunk is
    read with its bundle. Publishers and fetchers of a store must all use it, or none. Any
    thread."""

    __slots__ = ()

    def __init__(
        self, store: Source, *, bundle_bytes: int = 1 << 21, max_places: int = 1 << 18
    ) -> None:
        """store: whose put() replaces objects. bundle_bytes: the most bytes of a bundle of several
        chunks. max_places: of how many chunks it remembers where they are, about 150 bytes each;
        those of others are found again when their node is got."""
        at_least_one(bundle_bytes=bundle_bytes, max_places=max_places)
        super().__init__(_native_source(store), bundle_bytes, max_places)


Source = Union[MemorySource, FileSource, FolderSource, RedisSource, BundleSource, PageSource]


def _native_source(source: Source) -> _core.Source:
    if isinstance(source, _core.Source):
        return source
    for name in ("get", "put"):
        if not callable(getattr(source, name, None)):
            raise TypeError(
                f"source: a source of waymark, or an object with get() and put(); "
                f"{type(source).__name__} has no {name}()"
            )
    return _core.CallbackSource(source)


class Publisher(_core.Publisher):
    """Writes rows as objects to a source, on its own thread, and makes their handles. Objects are
    put once. Any thread. The end of the last reference to it and its tickets waits for the
    publication in progress; publications in the queue are dropped."""

    __slots__ = ()

    def __init__(
        self,
        source: Source,
        shape: Shape,
        *,
        codec: Codec = "raw",
        ordered: bool | None = None,
        crc_layers: int | None = None,
        store: str = "",
        max_waiting: int = 256,
        max_sequences: int = 1024,
        source_timeout: float | None = 10.0,
        cpus: Sequence[int] = (),
        key: bytes = b"",
    ) -> None:
        """shape: of all rows (``store.shape``, ``rows.shape``). codec, ordered, crc_layers: as
        Rows.to_bytes(); a Fetcher that reads some layers fetches all that share a crc with them.
        store: the name of the store in handles. max_waiting: publications in the queue.
        max_sequences: sequences that can be continued. source_timeout: seconds for the source,
        per publication. cpus: CPUs that its thread may run on; empty: any. key: 16 to 64 secret
        bytes: only fetchers with the same key accept its handles and objects; empty: digests
        without a key, which find damage and no forgery."""
        at_least_one(max_waiting=max_waiting, max_sequences=max_sequences)
        _logging.start()
        super().__init__(
            _native_source(source), (*shape,),
            code_of(codec, ordered, crc_layers, shape.num_layers), store, max_waiting,
            max_sequences, source_timeout, cpus, key,
        )  # fmt: skip

    def publish(self, rows: Rows, sequence: str = "") -> Ticket:
        """Publishes rows of a sequence; the handle names rows [0, last). Rows that begin at row 0
        are the whole sequence; others continue the rows of the same ``sequence``. forget() a
        name when its request ends: a name that two requests had while it was remembered
        (max_sequences) cannot be continued (FailedPreconditionError by Ticket.wait()). Two show in
        a whole sequence with fewer rows than the one before, or with rows of other steps. A
        sequence named "" cannot be continued. Never waits for the source."""
        return self._publish(sequence, rows._native())

    def metrics(self, labels: Mapping[str, str] | None = None) -> str:
        """stats() as OpenMetrics text: waymark_publisher_..., each sample with ``labels``."""
        families = _metrics.attributes(self.stats(), self.stats().as_dict())
        return _metrics.text_of("publisher", families, labels)


class FetchReport(NamedTuple):
    """The work of fetching. Objects include ranges of them."""

    fetched: int
    """Objects that the source returned."""
    fetched_bytes: int
    hits: int
    """Objects from the cache."""
    absent: int
    """Objects that the source did not return."""
    damaged: int
    """Objects that do not match their digest, or have another key: treated as absent."""
    source_status: int
    """The first status of the source that is not 0 (OK)."""
    source_message: str
    """The text of that status."""


class Fetcher(_core.Fetcher):
    """Reads rows by handle from a source, and caches objects. Any thread."""

    __slots__ = ()

    def __init__(
        self,
        source: Source,
        *,
        cache_bytes: int = 1 << 28,
        batch_bytes: int = 1 << 28,
        max_rows: int = 1 << 24,
        max_bytes: int = 1 << 28,
        whole_chunks: bool = False,
        key: bytes = b"",
        tier: Tier | None = None,
    ) -> None:
        """cache_bytes: of cached objects, the least recently used evicted first. batch_bytes:
        requested from the source at a time; if it is at least max_bytes, no fetch makes more than
        four calls of the source. max_rows, max_bytes: of the rows that one call returns, because a
        handle of 4 KiB can name 2^31 rows; ResourceExhaustedError beyond them. whole_chunks: fetch
        whole chunks even if only some layers are wanted, and compare all 128 bits of their digests;
        of ranges the crcs, and 32 bits of the digest. key: as the publishers have. With a key,
        chunks are always fetched whole, and handles without it, or with another, are refused
        (DataLossError); without, keyed handles are (FailedPreconditionError). tier: of the engines,
        for rows whose pages handles have by name (Tier.look_up); without it they are missing
        (external KV). A fetch asks it for at most tier.timeout."""
        at_least_one(
            cache_bytes=cache_bytes, batch_bytes=batch_bytes, max_rows=max_rows, max_bytes=max_bytes
        )
        _logging.start()
        super().__init__(
            _native_source(source), cache_bytes, batch_bytes, max_rows, max_bytes, whole_chunks,
            key, None if tier is None else tier._native(),
        )  # fmt: skip

    def fetch(
        self,
        handle: bytes,
        first: int = 0,
        last: int | None = None,
        *,
        layers: tuple[int, int] | None = None,
        timeout: float | None = None,
    ) -> Rows:
        """Rows [first, last) (None: to the end) of captured layers [begin, end). Releases the GIL.
        Waits for the source until ``timeout`` (seconds) and then returns what has arrived: other
        rows are missing (capacity). OutOfRangeError outside the handle; errors as Handle()."""
        return self.fetch_with_report(handle, first, last, layers=layers, timeout=timeout)[0]

    def fetch_with_report(
        self,
        handle: bytes,
        first: int = 0,
        last: int | None = None,
        *,
        layers: tuple[int, int] | None = None,
        timeout: float | None = None,
    ) -> tuple[Rows, FetchReport]:
        """(rows, report): as fetch(), with a report."""
        rows, _, _, num_layers, *_ = _core.handle_info(handle)
        layer_begin, layer_end = layers_of(layers, num_layers)
        end = rows if last is None else last
        got, report = self._fetch(handle, first, end, layer_begin, layer_end, timeout)
        return Rows._of(got), FetchReport(*report)

    def counts(self) -> FetchReport:
        """The sum over all calls."""
        return FetchReport(*self._counts())

    def metrics(self, labels: Mapping[str, str] | None = None) -> str:
        """counts() as OpenMetrics text: waymark_fetcher_..., each sample with ``labels``."""
        counts = self.counts()
        meanings = {
            "fetched": "objects that the source returned", "fetched_bytes": "their bytes",
            "hits": "objects from the cache", "absent": "objects that the source did not return",
            "damaged": "objects that do not match their digest, or have another key",
        }  # fmt: skip
        families = [(name, text, [("", getattr(counts, name))]) for name, text in meanings.items()]
        return _metrics.text_of("fetcher", families, labels)
