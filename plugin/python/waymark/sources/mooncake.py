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
        self._memory = mmap.mmap(-1, buffer_bytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        code = code or self._store.register_buffer(self._address, buffer_bytes)
        if code != 0:
            raise UnavailableError(f"Mooncake: setup: {code}")

    def _keys(self, digests: Sequence[bytes]) -> list[str]:
        return [self._prefix + digest.hex() for digest in digests]

    def put(self, objects: list[tuple[bytes, bytes]], timeout: float) -> None:
        """Replaces the objects that are there."""
        end = time.monotonic() + timeout
        held = self.holds([digest for digest, _ in objects], timeout)
        for put, changed in ((self._store.batch_put_from, False),
                             (self._store.batch_upsert_from, True)):  # fmt: skip
            left = [one for one, there in zip(objects, held) if there == changed]
            while left:
                count, at = 0, [0]
                while count < len(left) and at[-1] + len(left[count][1]) <= len(self._memory):
                    self._memory[at[-1] : at[-1] + len(left[count][1])] = left[count][1]
                    at.append(at[-1] + len(left[count][1]))
                    count += 1
                if count == 0:
                    raise ResourceExhaustedError(
                        f"buffer_bytes: at least the {len(left[0][1])} bytes of an object, "
                        f"got {len(self._memory)}"
                    )
                group, left = left[:count], left[count:]
                codes = put(
                    self._keys([digest for digest, _ in group]),
                    [self._address + begin for begin in at[:-1]],
                    [len(value) for _, value in group],
                )
                if failed := [code for code in codes if code != 0]:
                    text = f"Mooncake: {len(failed)} of {count} objects were not put: {failed[0]}"
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


def _check_time(end: float) -> None:
    if time.monotonic() > end:
        raise DeadlineExceededError("Mooncake took too long")
