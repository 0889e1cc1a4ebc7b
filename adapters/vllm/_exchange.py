"""What travels between the scheduler half and the worker half, beside vLLM's own data."""

from __future__ import annotations

import json
from typing import NamedTuple

from .._rows import Rows


NEXT = -1


class Ended(NamedTuple):
    """A request that has ended, whose rows the worker publishes."""

    lives: tuple[tuple[int, int], ...]
    """Of each of its snapshots, the first life first: the tag, and the rows up to the limit."""
    rows: int
    """All of its rows; 0: nothing is published."""


class ByKey(NamedTuple):
    """What the rows of a snapshot that no step wrote are found by."""

    version: int
    """Of the weights when the blocks were hit."""
    keys: list[bytes | None]
    """Of its first blocks."""
    tail: bytes = b""
    """A document of rows that came with the request."""
    tail_first: int = -1
    """Rows from here on are sent back as a document, too (Result.tail)."""


class Schedule(NamedTuple):
    """Of a schedule, to the worker: the attribute ``waymark`` of SchedulerOutput."""

    messages: tuple[bytes, ...]
    """Store.report_message takes them, in order; none: nothing is to be reported."""
    step: int
    """0: no forward; NEXT: the one after the last."""
    version: int
    """Number of the weights."""
    tags: tuple[int, ...]
    """Of the snapshots that the message requests, whose rows the worker sends back."""
    last_tag: int
    """The last one requested so far."""
    reset: bool
    """Whether the prefix cache was reset since the last message."""
    ended: tuple[Ended, ...] = ()
    by_key: dict[int, ByKey] = {}
    """With a tier, by tag."""
    weights: str = ""
    """With a tier: what other engines call the weights; empty: they have no name."""


class Result(NamedTuple):
    """Of a snapshot, to the scheduler; a tuple of them is the attribute ``waymark`` of
    ModelRunnerOutput. The worker's reader makes it, so that the scheduler's thread needs not."""

    tag: int
    rows: Rows | None
    complete: bool
    """Whether every row is valid."""
    coverage: str
    """As coverage_text() writes it."""
    failure: str
    """Why there are no rows."""
    handle: bytes | None = None
    """Of rows that were published, of all lives of a request; empty: there are none."""
    tail: bytes = b""
    """ByKey.tail_first."""

    @classmethod
    def of(cls, tag: int, rows: Rows) -> Result:
        """Rows that were read."""
        return cls(tag, rows, bool(rows.valid.all()), coverage_text(rows, ""), "")

    @classmethod
    def none(cls, tag: int, failure: str) -> Result:
        """Rows that were not read."""
        return cls(tag, None, False, coverage_text(None, failure), failure)


def coverage_text(rows: Rows | None, failure: str) -> str:
    """JSON: runs of rows, the model's numbers of the layers, why there are no rows."""
    runs = rows._native().coverage() if rows is not None else []
    return json.dumps([runs, rows.layer_ids if rows is not None else [], failure])
