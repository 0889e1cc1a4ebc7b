"""The blocks of a worker's requests, as arrays: of an engine that schedules in another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
_REQUEST = [("life", np.int64), ("blocks", np.int64), ("cursor", np.int64)]


class StepRows(NamedTuple):
    """The rows of a step, request by request."""

    life: Integers  # of each request
    first: Integers  # token of each request
    request: Integers  # of each row, its number in the step
    offset: Integers  # of each row, behind the first of its request
    slot: Integers


class Tables:
    """Of each request its blocks, from its first token, its life (a name may come again), and its
    cursor: the tokens whose rows have come. One thread at a time."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._at: dict[str, int] = {}  # the place of each request
        self._free = list(range(16))
        self._requests = np.zeros(16, _REQUEST)
        self._blocks = np.zeros((16, 64), np.int64)
        self._last: tuple[list[str], Integers] = [], np.zeros(0, np.int64)  # names, places

    def __len__(self) -> int:
        return len(self._at)

    def start(self, name: str, life: int, blocks: Sequence[int], cursor: int) -> None:
        """A request has these blocks, in the place of those that it had."""
        self.end(name)
        if not self._free:
            self._free = list(range(len(self._blocks), 2 * len(self._blocks)))
            self._blocks = np.concatenate((self._blocks, np.zeros_like(self._blocks)))
            self._requests = np.concatenate((self._requests, np.zeros_like(self._requests)))
        at = self._at[name] = self._free.pop()
        self._requests[at] = life, 0, cursor
        self.grow(name, blocks)

    def grow(self, name: str, blocks: Sequence[int]) -> None:
        """A request has further blocks. KeyError if it has none yet."""
        at = self._at[name]
        first = self._requests["blocks"][at]
        last = self._requests["blocks"][at] = first + len(blocks)
        while last > self._blocks.shape[1]:
            more = np.zeros_like(self._blocks)
            self._blocks = np.concatenate((self._blocks, more), axis=1)
        self._blocks[at, first:last] = blocks

    def end(self, name: str) -> None:
        """A request has no blocks any more, if it had any."""
        at = self._at.pop(name, -1)
        if at >= 0:
            self._blocks[at] = 0
            self._free.append(at)
            self._last = [], np.zeros(0, np.int64)

    def clear(self) -> None:
        """No request has blocks any more."""
        for name in list(self._at):
            self.end(name)

    def blocks(self, name: str) -> Integers:
        """Of a request."""
        at = self._at[name]
        return self._blocks[at, : self._requests["blocks"][at]]

    def cursor(self, name: str) -> int:
        """Of a request."""
        return int(self._requests["cursor"][self._at[name]])

    def step(self, names: list[str], first: Integers, count: Integers) -> StepRows:
        """A step computes `count` rows of each request, from the token `first` on, or from the
        cursor on if that is less: an engine may count drafts that were rejected. Moves the
        cursors. The caller does not change `names` afterwards. KeyError for unknown ones."""
        if names != self._last[0]:
            places = np.fromiter((self._at[one] for one in names), np.int64, len(names))
            self._last = names, places
        at = self._last[1]
        first = np.minimum(first, self._requests["cursor"][at])
        self._requests["cursor"][at] = first + count
        request = np.repeat(np.arange(len(names)), count)
        offset = np.arange(len(request)) - (np.cumsum(count) - count)[request]
        token = first[request] + offset
        block = self._blocks[at[request], token // self._block_tokens]
        slot = block * self._block_tokens + token % self._block_tokens
        return StepRows(self._requests["life"][at], first, request, offset, slot)
