"""Whose rows the blocks of HiCache's host pool stand for: keys under which the store finds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
_UNKNOWN = 1 << 62  # and a block: a key that no block was sealed with


class HostKeys:
    """A block that HiCache writes gets a key, which ends when the block is allocated again: KV that
    comes there from elsewhere has no rows. A page in a storage backend keeps the key of the block
    that was stored first, as a backend does not store a page again."""

    def __init__(self, pool: Any, page: int) -> None:
        self._pool, self._page, self._next = pool, page, 1
        self._keys = np.zeros(pool.size // page + 1, np.int64)
        self._pages: dict[str, int] = {}  # in the storage, by their hashes

    def _blocks(self, slots: Any) -> Keys:
        return np.asarray(slots.cpu(), np.int64)[:: self._page] // self._page

    def allocated(self, slots: Any, pool: Any) -> None:
        """Slots of a host pool have a new owner, whose KV is not known."""
        if slots is not None and pool is self._pool:
            self._keys[self._blocks(slots)] = 0

    def written(self, slots: Any) -> Keys:
        """KV goes from the device to host slots: keys to seal with."""
        blocks = self._blocks(slots)
        self._keys[blocks] = np.arange(self._next, self._next + len(blocks))
        self._next += len(blocks)
        return self._keys[blocks]

    def loaded(self, slots: Any) -> Keys:
        """KV goes from host slots to the device: keys to bind with."""
        blocks = self._blocks(slots)
        return np.where(self._keys[blocks] != 0, self._keys[blocks], _UNKNOWN + blocks)

    def stored(self, slots: Any, hashes: list[str]) -> None:
        """KV goes from host slots to the storage, in pages of these hashes."""
        for page, key in zip(hashes, self._keys[self._blocks(slots)].tolist()):
            if key:
                self._pages.setdefault(page, key)
        while len(self._pages) > 4 * len(self._keys):  # the store has no rows of the oldest
            del self._pages[next(iter(self._pages))]

    def fetched(self, slots: Any, hashes: list[str]) -> None:
        """KV comes from the storage to host slots."""
        blocks = self._blocks(slots)
        self._keys[blocks] = [self._pages.get(page, 0) for page in hashes[: len(blocks)]]

    def clear(self) -> None:
        """The storage is empty."""
        self._pages.clear()
