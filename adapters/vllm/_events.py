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
    keys: list[bytes]
    """With a tier: of the leading blocks whose KV is there."""


@dataclass(slots=True)
class Schedule:
    """What happened to blocks up to a schedule, in the order in which the store is told, and its
    forward."""

    generation: int
    """Of the prefix cache: one more with each reset."""
    version: int
    """Of the weights of its forward."""
    rows: int = 0
    """Tokens of its forward; 0: there is none."""
    weights: str = ""
    """What other engines call them; "": nobody has named them."""
    seals: dict[int, bytes] = field(default_factory=dict)
    """With a tier: keys of blocks that are full of accepted tokens."""
    released: list[int] = field(default_factory=list)
    bound: list[int] = field(default_factory=list)
    """Blocks that have a new life, and their first user."""
    loaded: dict[int, bytes] = field(default_factory=dict)
    """Further ones, whose KV comes from a connector or is not known here, with their keys."""
    retained: list[int] = field(default_factory=list)
    """Blocks that were hit."""
    copied: list[tuple[int, int, int]] = field(default_factory=list)
    """(source, copy, rows) of copies on write."""
    ended: list[str] = field(default_factory=list)
    grown: dict[str, list[int]] = field(default_factory=dict)
    """Blocks that requests got beside those that they have."""
    starts: list[Start] = field(default_factory=list)
    reads: dict[str, int] = field(default_factory=dict)
    """Requests whose first output comes with this forward, and the first of their rows that have
    not been returned: those in front of the forward are in pages."""


@dataclass(slots=True)
class Output:
    """The rows of a step, [rows, layers, K]: those of request i end at end[i], and begin with
    token[i] where those of request i - 1 end."""

    names: list[str]
    lives: list[int]
    token: list[int]
    end: list[int]
    rows: Array
    late: dict[str, tuple[int, Array]]
    """Of requests that have rows from pages, too: the first token, and all rows."""
    lost: list[int]
    """Blocks of which rows are missing."""

    def of(self, i: int) -> tuple[int, Array]:
        """The first token, and the rows from it on, of request i."""
        if self.late and self.names[i] in self.late:
            return self.late[self.names[i]]
        return self.token[i], self.rows[self.end[i - 1] if i else 0 : self.end[i]]

    def values(self) -> list[Output]:
        """For vLLM's Ray executor, which copies arrays that it cannot write: `rows` of each."""
        return [self]


def missing(like: Array, rows: int, code: int = -1) -> Array:
    """Rows that are missing, [rows, layers, K] with the layers and K of another array."""
    return np.full((rows, *like.shape[1:]), code, np.int16)
