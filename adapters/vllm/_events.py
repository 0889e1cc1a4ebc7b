"""What the two halves of the adapter send each other: plain data, pickled by vLLM in its own
messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Start(NamedTuple):
    """A request has blocks: all of them, from its first token."""

    name: str
    life: int
    """Of the request: another number when its name comes again."""
    blocks: list[int]
    computed: int
    """Leading tokens whose KV is there."""
    emitted: int
    """Rows that need not be returned, or have been."""
    known: int
    """Leading blocks that the worker has of it already."""
    fresh: list[int]
    """Of the other blocks: those that have a new life."""
    loaded: dict[int, bytes]
    """Further ones, whose KV is not known here or comes from a connector, with their keys."""
    copied: tuple[int, int, int] | None
    """(source, copy, rows): of these one is a copy on write of another block."""
    keys: list[bytes]
    """With a tier: of the leading blocks whose KV is there."""


@dataclass(slots=True)
class Schedule:
    """What happened to blocks up to a schedule, in this order: seals, ends, a reset, what grew,
    starts, and its forward."""

    generation: int
    """Of the prefix cache: one more with each reset."""
    version: int
    """Of the weights of its forward."""
    rows: int
    """Tokens of its forward; 0: there is none."""
    weights: str = ""
    """What other engines call them; "": nobody has named them."""
    seals: dict[int, bytes] = field(default_factory=dict)
    """With a tier: keys of blocks that are full of accepted tokens."""
    ended: list[str] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    grown: dict[str, list[int]] = field(default_factory=dict)
    """Blocks that requests got beside those that they have."""
    reads: list[str] = field(default_factory=list)
    """Requests whose first output comes with this forward, behind rows that are in pages."""


class Output:
    """The rows of a step. rows: [rows, layers, K] of the step, those of request i in
    [begin[i], end[i]), the first of them of token token[i]."""

    __slots__ = ("_of", "begin", "end", "late", "lives", "lost", "names", "rows", "token")

    def __init__(
        self, names: list[str], lives: list[int], token: list[int], begin: list[int],
        end: list[int], rows: Array, late: dict[str, tuple[int, Array]], lost: list[int],
    ) -> None:  # fmt: skip
        self.names, self.lives = names, lives
        self.token, self.begin, self.end, self.rows = token, begin, end, rows
        self.late = late
        """By name, of requests that have rows from pages: the first token, and all rows."""
        self.lost = lost
        """Blocks of which rows are missing."""
        self._of: dict[str, int] | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__[1:])

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._of = None
        for name, value in zip(self.__slots__[1:], state):
            setattr(self, name, value)

    def of(self, name: str, life: int) -> tuple[int, Array] | None:
        """The first token, and the rows from it on, of a request. None: there are none."""
        if self._of is None:
            self._of = {one: i for i, one in enumerate(self.names)}
        i = self._of.get(name, -1)
        if i < 0 or self.lives[i] != life:
            return None
        if self.late and name in self.late:
            return self.late[name]
        return self.token[i], self.rows[self.begin[i] : self.end[i]]

    def values(self) -> list[Output]:
        """For vLLM's Ray executor, which copies arrays that it cannot write: `rows` of each."""
        return [self]


def missing(like: Array, rows: int, code: int = -1) -> Array:
    """Rows that are missing, [rows, layers, K] with the layers and K of another array."""
    return np.full((rows, *like.shape[1:]), code, np.int16)
