"""Hits clipped at the blocks that have rows: tokens whose KV a connector would load, or has loaded
for a request without rows, are computed instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ._hooks import Function, around, wrap


class Clip:
    """Of one scheduler. The thread of the engine core. Without the option it only listens."""

    def __init__(self, group: int, block_tokens: int, hash_tokens: int) -> None:
        """group: the KV cache group whose blocks carry rows. hash_tokens: of one hash."""
        self._group, self._block_tokens = group, block_tokens
        self._hash_tokens = hash_tokens or block_tokens
        self._loaded: set[int] = set()  # blocks with tokens that were not computed here
        self._clipped: dict[str, int] = {}  # tokens, of requests that have not started
        self.tokens = 0
        """That were computed, because the KV that there was has no rows."""

    def load(self, blocks: Iterable[int]) -> None:
        """A connector fills these blocks."""
        self._loaded.update(blocks)

    def compute(self, blocks: Iterable[int]) -> None:
        """All tokens of these blocks are computed."""
        self._loaded.difference_update(blocks)

    def copy(self, source: int, copy: int) -> None:
        """A block is copied on write."""
        (self.load if source in self._loaded else self.compute)((copy,))

    def reset(self) -> None:
        """No block is known to be anything."""
        self._loaded.clear()

    def start(self, name: str) -> None:
        """A request got its blocks."""
        self.tokens += self._clipped.pop(name, 0)

    def forget(self, name: str) -> None:
        """A request has ended."""
        self._clipped.pop(name, None)

    def hashes_of(self, blocks: Any) -> int | None:
        """How many hashes of a request lead to blocks with rows. blocks: its hits, as vLLM's
        KVCacheBlocks. None: all of them."""
        ids = blocks.get_block_ids()[self._group] if self._loaded else ()
        first = next((i for i, block in enumerate(ids) if block in self._loaded), None)
        return None if first is None else first * self._block_tokens // self._hash_tokens

    def clip(self, name: str, tokens: int) -> None:
        """So many tokens behind the hits of a request have KV without rows; 0: a new lookup."""
        self._clipped[name] = max(self._clipped.get(name, 0), tokens) if tokens else 0


def hook(
    find: Callable[[Any, Any], Clip | None], manager: type, connector: type | None = None
) -> None:
    """Wraps the lookups of a scheduler. find: (owner, request) -> the clip, where it applies.
    manager: the class of the KVCacheManager."""

    def local(call: Function, owner: Any, request: Any) -> Any:
        clip, found = find(owner, request), call()
        if clip is None:
            return found
        clip.clip(request.request_id, 0)
        keep = clip.hashes_of(found[0])
        if keep is None:
            return found
        hashes, request.block_hashes = request.block_hashes, request.block_hashes[:keep]
        try:
            clipped = call()
        finally:
            request.block_hashes = hashes
        clip.clip(request.request_id, found[1] - clipped[1])
        return clipped

    def external(call: Function, owner: Any, request: Any) -> Any:
        found = call()
        clip = find(owner, request)
        if clip is None or not found[0]:
            return found
        clip.clip(request.request_id, found[0])
        return 0, False

    wrap(manager, "get_computed_blocks", around(local))
    if connector is not None:
        wrap(connector, "get_num_new_matched_tokens", around(external))
