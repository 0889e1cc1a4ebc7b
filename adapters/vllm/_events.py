"""What the two halves of the adapter send each other: plain data, pickled by vLLM in its own
messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]


class Start(NamedTuple):
    """A request has blocks: all of them, from its first token."""

    name: str
    life: int  # of the request: another number when its name comes again
    blocks: list[int]
    computed: int  # leading tokens whose KV is there
    keys: list[bytes]  # with a tier: of the leading blocks whose KV is there


@dataclass(slots=True)
class Schedule:
    """What happened to blocks up to a schedule, in the order in which the store is told, and its
    forward."""

    generation: int  # of the prefix cache: one more with each reset
    version: int  # of the weights of its forward
    rows: int = 0  # tokens of its forward; 0: there is none
    weights: str = ""  # what other engines call them; "": nobody has named them
    # With a tier: keys of blocks that are full of accepted tokens.
    seals: dict[int, bytes] = field(default_factory=dict)
    released: list[int] = field(default_factory=list)
    # Blocks that have a new life, and their first user; and those whose KV comes from a connector,
    # with their keys.
    bound: list[int] = field(default_factory=list)
    loaded: dict[int, bytes] = field(default_factory=dict)
    retained: list[int] = field(default_factory=list)  # that were hit
    copied: list[tuple[int, int, int]] = field(default_factory=list)  # on write: (from, to, rows)
    ended: list[str] = field(default_factory=list)
    grown: dict[str, list[int]] = field(default_factory=dict)  # blocks that requests got
    starts: list[Start] = field(default_factory=list)
    # Requests whose first output comes with this forward, and the first of their rows that have
    # not been returned: those in front of the forward are in pages.
    reads: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Output:
    """The rows of a step, [rows, layers, K]: those of request i end at end[i], and begin with
    token[i] where those of request i - 1 end."""

    names: list[str]
    lives: list[int]
    token: list[int]
    end: list[int]
    rows: Array
    late: dict[str, tuple[int, Array]]  # with rows from pages, too: the first token, and all rows
    lost: list[int]  # blocks of which rows are missing

    def of(self, i: int) -> tuple[int, Array]:
        """The first token, and the rows from it on, of request i."""
        if self.late and self.names[i] in self.late:
            return self.late[self.names[i]]
        return self.token[i], self.rows[self.end[i - 1] if i else 0 : self.end[i]]

    def values(self) -> list[Output]:
        """For vLLM's Ray executor, which copies arrays that it cannot write: `rows` of each."""
        return [self]
