"""The keys of blocks, by which rows are found in a tier."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class Keys:
    """The keys of a context's blocks. The engine's thread.

    A key is SHA-256 of all tokens up to the end of the block. Megatron's own hash is 63 bits of
    that, for which prompts can be made that collide. A block has a key only if its KV and all KV
    before it are of one version of the weights: Megatron's prefix cache outlives the weights, and a
    tier has the rows of passes under one version."""

    def __init__(self, block_tokens: int, version: int, earlier: Iterable[int]) -> None:
        """earlier: blocks whose KV was computed before, with the weights of `version`."""
        self._block_tokens = block_tokens
        # None: weights without a name of their own, whose blocks get no keys.
        self._version: int | None = version
        self._numbers = {version}
        self._earlier = set(earlier)
        self._keys: dict[int, bytes] = {}
        # In force when a block was allocated.
        self._versions: dict[int, int | None] = dict.fromkeys(self._earlier, version)
        self._registered: dict[int, None] = {}

    def change_weights(self, version: int, told: bool) -> bool:
        """Steps from now on run under weights `version`. told: by somebody, who knows their name.
        False: they have no name of their own, also if other weights may have had the number."""
        new = told and version not in self._numbers
        self._numbers.add(version)
        self._version = version if new else None
        return new

    def allocate(self, blocks: Iterable[int]) -> None:
        """Blocks begin a new life."""
        for block in blocks:
            self._keys.pop(block, None)
            self._registered.pop(block, None)
            self._earlier.discard(block)
            self._versions[block] = self._version

    def register(self, blocks: Iterable[int]) -> None:
        """The next step fills these blocks of a request that is being admitted."""
        self._registered.update(dict.fromkeys(blocks))

    def admit(self, prompt: Any, table: Sequence[int]) -> None:
        """A request was admitted, or its next chunk: its full blocks get keys."""
        tokens: Any = None
        before, version = bytes(32), self._version
        for index, block in enumerate(table):
            key, own = self._keys.get(block), self._versions.get(block)
            if key is None:
                filled = block in self._registered and own == self._version
                pure = own is not None and (not index or own == version)
                if not pure or not (filled or block in self._earlier):
                    return
                if tokens is None:
                    host = prompt.cpu() if hasattr(prompt, "cpu") else prompt
                    tokens = np.asarray(host, np.int64)
                end = (index + 1) * self._block_tokens
                content = tokens[end - self._block_tokens : end].tobytes()
                key = self._keys[block] = hashlib.sha256(before + content).digest()
            before, version = key, own

    def write(self, blocks: Iterable[int]) -> None:
        """A step writes KV of prompts into blocks: if they began with other weights, it is of
        two."""
        for block in blocks:
            if self._versions.get(block) != self._version:
                self._keys.pop(block, None)

    def seals(self) -> tuple[list[int], list[bytes | None]]:
        """What is full after the step that is told next."""
        blocks = list(self._registered)
        self._registered.clear()
        return blocks, self.of(blocks)

    def of(self, blocks: Iterable[Any]) -> list[bytes | None]:
        """None: not looked up."""
        return [self._keys.get(int(block)) for block in blocks]

    def forget_earlier(self) -> None:
        """The weights of these blocks are not known any more."""
        for block in self._earlier:
            self._keys.pop(block, None)
        self._earlier.clear()
