"""What travels between the scheduler half and the worker half, beside vLLM's own data."""

from __future__ import annotations

from typing import NamedTuple

from .._rows import Rows


class Schedule(NamedTuple):
    """Of a schedule, to the worker: the attribute ``waymark`` of SchedulerOutput."""

    message: bytes
    """Store.report_message takes it."""
    step: int
    """0: no forward."""
    version: int
    """Number of the weights."""
    tags: tuple[int, ...]
    """Of the snapshots that the message requests, whose rows the worker sends back."""
    last_tag: int
    """The last one requested so far."""


class Result(NamedTuple):
    """Of a snapshot, to the scheduler; a tuple of them is the attribute ``waymark`` of
    ModelRunnerOutput."""

    tag: int
    rows: Rows | None
    failure: str
    """Why there are no rows."""
