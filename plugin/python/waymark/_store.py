"""The store: the rows of every KV block of an engine. Cursors."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import InvalidArgumentError
from ._snapshot import Snapshot
from ._types import Reason, Shape, integer, number_of

_LANDINGS = {"thread": 0, "caller": 1}
_LEVELS = {0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR}


@dataclasses.dataclass(frozen=True)
class StoreStats:
    """Counters over the life of the store. Times in nanoseconds, sizes in bytes."""

    steps_begun: int
    steps_landed: int
    steps_dropped: int
    steps_cancelled: int
    steps_refused_ring: int
    steps_ahead: int
    """Steps whose ids were fetched while an earlier step waited."""
    rows_landed: int
    rows_missing: tuple[int, ...]
    """By number of Reason."""
    rows_ignored: int
    rows_not_asked: int
    rows_padding: int
    rows_outside: int
    events: int
    events_on_null_blocks: int
    releases_below_zero: int
    hits_by_key: int
    second_seals: int
    pages: int
    pages_in_use: int
    pages_in_use_peak: int
    spare_pages: int
    pages_detached: int
    pages_detached_peak: int
    rows_without_page: int
    evictions: int
    copies_on_write: int
    no_page: int
    bytes: int
    bytes_touched_peak: int
    audited_rows: int
    audit_disagreements: int
    audit_voided_pages: int
    audit_voided_rows: int
    audit_agreement_sum: float
    snapshots_taken: int
    snapshots_live: int
    landing_lag_count: int
    landing_lag_p50_ns: int
    landing_lag_p99_ns: int
    log_records: int
    log_losses: int
    """Times that records were lost because the log was full."""
    snapshots_lost: int
    snapshots_given_up: int
    """Snapshots of messages: too many waited to be taken."""
    log_lag_count: int
    log_lag_p50_ns: int
    """From a call of begin_step until its record was applied."""
    log_lag_p99_ns: int
    exceptions: int
    """Steps whose ids could not be read, because a call threw an exception."""
    steps_overdue: int
    """Steps whose ids had not arrived overdue_after seconds after their submit."""

    @property
    def audit_agreement(self) -> float:
        """Mean agreement of the audited rows; 1.0 if there are none."""
        return self.audit_agreement_sum / self.audited_rows if self.audited_rows else 1.0

    @property
    def missing(self) -> dict[Reason, int]:
        """rows_missing by Reason, without zeros."""
        return {Reason(i): n for i, n in enumerate(self.rows_missing) if n}

    def as_dict(self) -> dict[str, Any]:
        """The counters by name."""
        return dataclasses.asdict(self)


class Finding(NamedTuple):
    """A finding of the audit: later writes of ``block`` contradicted the rows that were kept. It
    stands for one cause; the fields, but for ``pages`` and ``last_step``, are of the first page."""

    block: int
    """-1: two pages, and the second is of no block."""
    step: int
    """The step whose write disagreed: of two pages, the later one."""
    kept_step: int
    """The step that wrote the rows that were kept."""
    sealed_step: int
    """The step that the page was sealed with."""
    rows: int
    """The number of rows compared."""
    voided: bool
    """Agreement was under the threshold; the rows of the page are invalid."""
    agreement: float
    """Mean share of common ids, in [0, 1]."""
    text: str
    """The finding as one line."""
    two_pages: bool
    """Two pages were sealed with one key; else a block was written again."""
    pages: int
    """How many times it was found."""
    last_step: int
    """``step`` of the last time."""


class LogLine(NamedTuple):
    """A warning or error for the operator."""

    level: int
    """A level of the module logging: INFO, WARNING or ERROR."""
    text: str


@dataclasses.dataclass(frozen=True)
class RecorderOptions:
    """Options of a flight recorder, which keeps the latest steps of a store."""

    ring_bytes: int = 64 << 20
    """At least 32 KiB; a step's batch must fit in an eighth of it."""
    ids: bool = False
    """Record whole rows, not digests: for replays under other rules."""
    cpus: Sequence[int] = ()
    """CPUs that its thread may run on; empty: any."""


class Recorder:
    """A store's flight recorder. Any thread. Store(recorder=RecorderOptions()) makes one."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Writes the contents of the ring to a file, for ``waymark check``; recording continues.

        UnknownError if the file cannot be written; DataLossError if the recorder has lost
        records."""
        self._store._dump(os.fspath(path))

    def check(self) -> None:
        """Raises DataLossError with the reason if recording has stopped."""
        self._store._check_recorder()


class Store(_core.Store):
    """The rows of every KV block of an engine; one per rank that stores.

    What the engine's thread reports is appended to a log and takes effect in that order: the events
    (bind ... reset, report), schedules, steps of a session, and snapshots. A snapshot reads what was
    reported before it, and nothing later. Every event method takes one block or many: an int, a
    list, or an integer array of one dimension (int32 without a copy). An invalid event raises
    InvalidArgumentError, and nothing of the call is reported. If the log is full, because the
    store's thread gets no CPU, calls succeed and the store loses its rows (capacity), counted in
    ``log_losses``; of a snapshot that is taken then, all rows are missing (capacity).

    Threads: methods marked "engine's thread" are called by one thread at a time, for the store and
    all its sessions (FailedPreconditionError if two threads are in one at once); other methods by
    any thread.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        top_k: int,
        num_experts: int,
        num_blocks: int,
        page_tokens: int = 16,
        block_tokens: int | None = None,
        layer_ids: object = (),
        null_blocks: object = (),
        num_pages: int = 0,
        max_steps_in_flight: int = 16,
        max_step_rows: int = 8192,
        device_slots: bool = False,
        landing: Literal["thread", "caller"] = "thread",
        audit: bool = True,
        audit_threshold: float | None = None,
        key_seed: int = 0,
        landing_cpus: Sequence[int] = (),
        recorder: RecorderOptions | None = None,
        log_bytes: int = 0,
        max_tagged_snapshots: int = 0,
        spare_pages: int | None = None,
        teardown_timeout: float | None = 5.0,
        overdue_after: float | None = 10.0,
        ids_timeout: float | None = 60.0,
        ahead_bytes: int = 64 << 20,
    ) -> None:
        """Commits the memory of the rows' stamps, and starts the landing thread.

        num_layers: captured MoE layers (L), 1 ... 1024. top_k: experts per token and layer (K),
        1 ... 64. num_experts: logical experts per layer (E), 1 ... 65535. num_blocks: block ids are
        in [0, num_blocks). page_tokens: rows of a page. block_tokens: tokens of a KV block, a
        multiple of page_tokens; None: page_tokens. layer_ids: the model's number of each layer,
        increasing; empty: 0 ... L - 1. null_blocks: the engine's placeholder block ids. num_pages:
        0: one for each page of each block. max_steps_in_flight: steps that can be open (begun,
        and neither submitted, dropped nor cancelled); a step beyond that is dropped.
        max_step_rows: rows of one step, padding included. device_slots: steps may have slots that
        only the device knows. landing: "caller": no landing thread; land() and land_one() land
        the oldest step begun.
        audit, audit_threshold: compare ignored writes with the rows that are kept, and invalidate
        rows that agree less than the threshold: above top_k / num_experts, what chance gives, and
        at most 1; None: halfway between. key_seed: of the key index's hash; 0: random. landing_cpus:
        CPUs that the landing thread may run on; empty: all that the process could use when waymark
        was imported. recorder: record a flight. log_bytes: of the log that the engine's thread
        appends to; 0: 8 MiB, and at least four steps of max_step_rows. max_tagged_snapshots:
        snapshots of messages that wait for take_tagged(); for one more the oldest is given up; 0:
        4096. spare_pages: beside num_pages, for pages that only snapshots hold
        any more; a spare page costs address space until it is used; None: as many as num_pages.
        teardown_timeout: seconds for which the end of the store waits for ids that have not arrived,
        and that of a session for its device and its row_gather; then the rows are missing (not
        captured), and buffers that the device may still write stay allocated; None: a year, so that
        close() does not return while one of them hangs.
        overdue_after: a step whose ids have not arrived these seconds after its submit is logged
        once, by its number, and counted (steps_overdue); None: never.
        ids_timeout: a step whose ids have not arrived these seconds after its submit is lost: its
        rows are missing (not captured), and what was told behind it goes on; more than the longest
        forward, if an engine submits before it; None: never. ahead_bytes: of rows that are fetched
        because the ids of an earlier step have not arrived, so that their buffers are free; 0: none.

        InvalidArgumentError names argument, rule and value; ResourceExhaustedError if memory cannot
        be allocated, or the tables would exceed that of the machine.
        """
        for name, value in (("page_tokens", page_tokens), ("max_step_rows", max_step_rows),
                            ("max_steps_in_flight", max_steps_in_flight)):
            integer(name, value, 1, 2**31 - 1)
        if block_tokens is not None:
            integer("block_tokens", block_tokens, 1, 2**31 - 1)
        if audit_threshold is not None and not 0 < audit_threshold <= 1:
            raise InvalidArgumentError(f"audit_threshold: in (0, 1], got {audit_threshold}")
        if recorder is not None:
            integer("ring_bytes", recorder.ring_bytes, 32768, 2**64 - 1)
        super().__init__(
            num_layers,
            top_k,
            num_experts,
            num_blocks,
            page_tokens,
            block_tokens or 0,
            layer_ids,
            null_blocks,
            num_pages,
            max_steps_in_flight,
            max_step_rows,
            device_slots,
            number_of("landing", landing, _LANDINGS) == 1,
            audit,
            audit_threshold or 0.0,
            key_seed,
            landing_cpus,
            recorder is not None,
            recorder.ring_bytes if recorder is not None else 0,
            recorder.ids if recorder is not None else False,
            recorder.cpus if recorder is not None else (),
            log_bytes,
            max_tagged_snapshots,
            spare_pages,
            teardown_timeout,
            overdue_after,
            ids_timeout,
            ahead_bytes,
        )
        self._log_lost = 0

    @property
    def shape(self) -> Shape:
        """The shape of the rows."""
        return Shape(*self._shape)

    @property
    def recorder(self) -> Recorder | None:
        """The flight recorder, or None."""
        return Recorder(self) if self._recording else None

    def snapshot(self, blocks: object, first: int, last: int) -> Snapshot:
        """Pins rows [first, last) of the sequence whose block i has tokens [i, i + 1) *
        block_tokens. Copies nothing and never waits. While the log is full all its rows are missing
        (capacity). OutOfRangeError and InvalidArgumentError name the range or the block. Engine's
        thread."""
        return Snapshot(self, blocks, first, last)

    def take_tagged(self, tag: int) -> Snapshot:
        """Takes the snapshot that a message requested under ``tag``, once. NotFoundError if there
        is none: it was forgotten, taken before, given up (max_tagged_snapshots), or requested by a
        former scheduler. Any thread."""
        return Snapshot(self, tag)

    def stats(self) -> StoreStats:
        """The counters, as far as the store's thread has come. Any thread."""
        return StoreStats(**self._stats())

    def take_findings(self) -> list[Finding]:
        """The findings of the audit that no call has returned yet, one for each cause. Any thread,
        one at a time."""
        findings = []
        while (found := self._next_finding()) is not None:
            findings.append(Finding(*found))
        return findings

    def take_log(self) -> list[LogLine]:
        """Warnings and errors of the store and its sessions that no call has returned yet, oldest
        first: pages that the audit invalidated, a layer that wrote no ids, a transport that failed.
        The last 1,000 lines are kept; ``log_lost`` counts the others. Any thread.

        The landing thread only queues lines, because calling Python there would make it wait for
        the GIL. To pass them to the module logging::

            for line in store.take_log():
                logging.getLogger("waymark").log(*line)
        """
        lines, lost = self._take_log()
        self._log_lost += lost
        return [LogLine(_LEVELS[level], text) for level, text in lines]

    @property
    def log_lost(self) -> int:
        """The number of lines that were dropped before take_log() was called."""
        return self._log_lost

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Cursor:
    """Reads a sequence as it grows: each snapshot starts where the last one ended. Engine's
    thread."""

    __slots__ = ("_next", "_store")

    def __init__(self, store: Store, first: int = 0) -> None:
        """Starts at row ``first``."""
        self._store = store
        self._next = integer("first", first, 0, 2**63 - 1)

    @property
    def next(self) -> int:
        """The first row of the next snapshot."""
        return self._next

    def snapshot(self, blocks: object, last: int) -> Snapshot:
        """A snapshot of rows [next, last). If it fails, ``next`` stays the same."""
        taken = self._store.snapshot(blocks, self._next, last)
        self._next = last
        return taken
