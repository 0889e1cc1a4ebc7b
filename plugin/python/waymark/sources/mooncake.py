"""A page source in a Mooncake Store (``pip install mooncake-transfer-engine-non-cuda``, or with
CUDA ``mooncake-transfer-engine``)::

    import waymark.sources.mooncake
    source = waymark.sources.mooncake.source("10.0.0.7:50051", "http://10.0.0.7:8080/metadata")
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .._errors import DeadlineExceededError, ResourceExhaustedError, UnavailableError
from .._fetching import BundleSource
from .._process_source import ProcessSource

__all__ = ["MooncakeSource", "source"]

_GROUP = 8  # large objects that are got at a time, while those before are sent


def source(master: str, metadata: str, *, timeout: float = 5.0, **options: Any) -> BundleSource:
    """A MooncakeSource with these options in a process of its own, with bundles, because Mooncake
    takes 50 to 120 us for each of its objects: many times what 8 kB take to cross. A call that
    takes longer than ``timeout`` seconds fails, and no other is made before it has returned."""
    options = {"master": master, "metadata": metadata, **options}
    return BundleSource(ProcessSource(f"{__name__}:MooncakeSource", options, timeout=timeout))


class MooncakeSource:
    """A PageSource, which source() makes in a process of its own. One thread at a time. get()
    returns an exception in place of an object that is there and does not come."""

    NICENESS = 10  # Mooncake's client polls until its bytes are there: who has work goes first

    def __init__(
        self,
        master: str,
        metadata: str,
        *,
        host: str = "127.0.0.1",
        protocol: str = "tcp",
        devices: str = "",
        segment_bytes: int = 0,
        buffer_bytes: int = 1 << 26,
        key_prefix: str = "waymark:",
    ) -> None:
        """master: its address and port. metadata: its URL. host: the name of this machine by which
        others reach it, with a port or without. protocol, devices: as Mooncake's setup().
        segment_bytes: of the memory of this process that the store may use. buffer_bytes: for what
        is put, and again for what is got; no object can be larger. UnavailableError if the store
        cannot be reached."""
        if protocol == "tcp":
            os.environ.setdefault("MC_FORCE_TCP", "true")
        from mooncake.store import MooncakeDistributedStore  # type: ignore

        self._prefix = key_prefix
        self._store = MooncakeDistributedStore()
        if ":" not in host:
            with socket.socket() as free:
                free.bind(("", 0))
                host = f"{host}:{free.getsockname()[1]}"
        code = self._store.setup(
            host, metadata, segment_bytes, buffer_bytes, protocol, devices, master
        )
        if code != 0:
            raise UnavailableError(f"Mooncake: setup: {code}")
        self._memory = mmap.mmap(-1, buffer_bytes)
        self.register_memory(memoryview(self._memory))

    def register_memory(self, memory: memoryview) -> None:
        """A value of put() that is a memoryview is put from where it is: in memory that has been
        registered."""
        code = self._store.register_buffer(_address(memory), len(memory))
        if code != 0:
            raise UnavailableError(f"Mooncake: register_buffer: {code}")

    def _keys(self, digests: Sequence[bytes]) -> list[str]:
        return [self._prefix + digest.hex() for digest in digests]

    def put(self, objects: Sequence[tuple[bytes, bytes | memoryview]], timeout: float) -> None:
        """Replaces the objects that are there."""
        end = time.monotonic() + timeout
        while objects:
            used, where = 0, list[int]()
            for _, value in objects:
                if not isinstance(value, memoryview):
                    if used + len(value) > len(self._memory):
                        break
                    self._memory[used : used + len(value)] = value
                    used, value = used + len(value), memoryview(self._memory)[used:]
                where.append(_address(value))
            if not where:
                raise ResourceExhaustedError(
                    f"buffer_bytes: at least the {len(objects[0][1])} bytes of an object, "
                    f"got {len(self._memory)}"
                )
            group, objects = objects[: len(where)], objects[len(where) :]
            keys, sizes = self._keys([digest for digest, _ in group]), [len(v) for _, v in group]
            codes = self._store.batch_upsert_from(keys, where, sizes)
            if failed := [code for code in codes if code != 0]:
                text = f"Mooncake: {len(failed)} of {len(group)} objects were not put: {failed[0]}"
                raise UnavailableError(text)
            _check_time(end)

    def get(self, digests: list[bytes], timeout: float) -> Iterator[Any]:
        """Yields the objects as they arrive."""
        end = time.monotonic() + timeout
        first, count = 0, _GROUP
        while first < len(digests):
            group = digests[first : first + count]
            keys = self._keys(group)
            got = self._store.batch_get_buffer(keys)
            missing = [digest for digest, one in zip(group, got) if one is None]
            held = dict(zip(missing, self.holds(missing, timeout)))
            for digest, key, one in zip(group, keys, got):
                if one is None and held[digest]:
                    # The memory may have been too small for all of them together.
                    one = self._store.get_buffer(key)
                    one = one or UnavailableError(f"Mooncake: {key} is there, and does not come")
                yield one
            first += count
            small = sum(len(memoryview(one)) for one in got if one is not None) < 1 << 20
            count = min(2 * count, 256) if small else _GROUP
            _check_time(end)

    def holds(self, digests: list[bytes], timeout: float) -> list[bool]:
        """UnavailableError if the master does not say."""
        codes = self._store.batch_is_exist(self._keys(digests)) if digests else []
        if any(code < 0 for code in codes):
            raise UnavailableError(f"Mooncake: batch_is_exist: {min(codes)}")
        return [code == 1 for code in codes]


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) if memory else 0


def _check_time(end: float) -> None:
    if time.monotonic() > end:
        raise DeadlineExceededError("Mooncake took too long")
