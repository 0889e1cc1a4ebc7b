"""The front object: what an engine calls."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from . import _core, _logging, _metrics
from ._core import StoreStats
from ._errors import DeadlineExceededError, InvalidArgumentError
from ._rows import Collective, Rows
from ._tier import Tier
from ._types import Reason, Shape, integer, number_of

__all__ = ["Capture", "Finding", "LayerStats", "RecorderOptions", "StoreStats", "Taken"]

IDS_LAYOUTS = {"NLK": 0, "LNK": 1}
_MEANS = ("audit_agreement", "log_lag_p50_ns", "log_lag_p99_ns", "landing_lag_p50_ns",
          "landing_lag_p99_ns")  # fmt: skip


def _option(name: str, value: object) -> str:
    """An option of a store as the library reads it."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name}: a number, a bool or None, got {value!r}")
    default = "0" if name == "num_pages" else "none"
    return default if value is None else str(value)


def _recording(recorder: object) -> tuple[int, bool, Sequence[int]] | None:
    """The options of a recorder as the library reads them."""
    if recorder is None:
        return None
    if not isinstance(recorder, RecorderOptions):
        raise TypeError(f"recorder: RecorderOptions or None, got {recorder!r}")
    return recorder.ring_bytes, recorder.ids, recorder.cpus


class Taken:
    """Rows that Capture.take has taken, which a thread of the library reads: a future, whose
    result(), exception(), done() and add_done_callback() mean what they do in
    ``concurrent.futures.Future``. Any thread."""

    __slots__ = ("_native", "_rows")

    def __init__(self, native: _core.TakenRows) -> None:
        self._native = native
        self._rows: list[Rows] = []  # the first of them, whichever thread was first

    def done(self) -> bool:
        """Whether the rows have been read, or it is known why they cannot be."""
        return self._native.done()

    def result(self, timeout: float | None = None) -> Rows:
        """The rows. DeadlineExceededError, a TimeoutError, if they are not there after `timeout`
        seconds, or if the steps before them did not end in time (ids_timeout)."""
        if not self._rows:
            self._rows.append(Rows._of(self._native._result(timeout)))
        return self._rows[0]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why there are no rows; None: there are. DeadlineExceededError after `timeout`."""
        try:
            self.result(timeout)
        except DeadlineExceededError as error:
            if not self.done():
                raise
            return error
        except Exception as error:
            return error
        return None

    def add_done_callback(self, function: Callable[[Taken], Any]) -> None:
        """Calls ``function(self)`` once the rows are there: on a thread of the library, or at once.
        What it raises is logged. It should return soon, as other rows wait for it, and may call
        what any thread may call. It may also have the last reference to the capture, or close it
        while the engine's thread is in no call: the thread then ends when the callback has
        returned. The exit of the interpreter (atexit) waits for one that runs; none begins after
        it."""

        def call() -> None:
            try:
                function(self)
            except Exception:
                logging.getLogger("waymark").exception("waymark: a callback of rows failed")

        self._native._when_done(call)


class Finding(NamedTuple):
    """A finding of the audit: later writes of ``block`` contradicted the rows that were kept. It
    stands for one cause; fields except ``pages`` and ``last_step`` are of the first page."""

    block: int
    """-1: two pages, and the second is of no block."""
    step: int
    """The step whose write disagreed: of two pages, the later one."""
    kept_step: int
    """The step that wrote the rows that were kept."""
    sealed_step: int
    """The step that the page was sealed with."""
    rows: int
    """The number of rows compared; if the page stays, of those that are invalid."""
    voided: bool
    """The rows of the page are invalid, or these rows alone."""
    agreement: float
    """Mean share of common ids of these rows, in [0, 1]."""
    text: str
    """The finding as one line."""
    two_pages: bool
    """Two pages were sealed with one key; else a block was written again."""
    pages: int
    """How many times it was found."""
    last_step: int
    """``step`` of the last time."""


@dataclasses.dataclass(frozen=True)
class RecorderOptions:
    """Options of a flight recorder, which keeps the latest steps of a store."""

    ring_bytes: int = 64 << 20
    """At least 32 KiB; a step's batch must fit in an eighth of it."""
    ids: bool = False
    """Record whole rows, not digests: for replays under other rules."""
    cpus: Sequence[int] = ()
    """CPUs that its thread may run on; empty: any."""


class LayerStats(NamedTuple):
    """Counters of one layer."""

    layer_id: int
    """The model's number of the layer."""
    name: str
    """Empty if layer_names does not name it."""
    rows_silent: int
    """Landed rows in which every id of the layer was -1."""
    rows_invalid: int
    """Landed rows in which it had an id out of range (a part of them -1, too), or one twice."""


class Capture(_core.Capture):
    """The rows of every KV block of an engine; one per model and rank that stores. What an engine
    calls:

    ::

        cap = waymark.Capture(num_layers=58, top_k=8, num_experts=256, num_blocks=4096,
                              layer_ids=range(3, 61))      # the model's numbers
        cap.bind(blocks)                             # events of KV blocks, in the engine's order
        with cap.step(None, None, slots) as step:    # a forward, and the rows that it writes
            step.ids = forward()                     # integers [N, L, K]
        taken = cap.take(blocks, tokens)             # before the blocks are released
        cap.release(blocks)
        rows = taken.result(timeout=5)               # rows.ids, rows.valid, rows.reasons

    What the engine's thread reports is appended to a log and takes effect in that order: the events
    (bind ... reset, report), schedules, steps, and what is taken, which sees what was reported
    before it, and nothing later. Every event method takes one block or many: an int, a list, or an
    integer array of one dimension (int32 without a copy). An invalid event raises
    InvalidArgumentError, and nothing of the call is reported. If the log is full, because the
    store's thread gets no CPU, calls succeed and the store loses its rows (capacity), counted in
    ``log_losses``.

    ``logging.getLogger("waymark")`` gets a line that the capture is on (INFO), and warnings and
    errors, at most 20 lines in 10 seconds, on a thread of their own: pages that the audit
    invalidated, a layer that wrote no ids, a step whose ids do not come.

    Threads: methods marked "engine's thread" are called by one thread at a time
    (FailedPreconditionError if two threads are in one at once); other methods by any thread.
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
        layer_names: Sequence[str] = (),
        null_blocks: object = (),
        landing_cpus: Sequence[int] = (),
        ids_layout: Literal["NLK", "LNK"] = "NLK",
        row_gather: Collective | None = None,
        extra_columns: int = 0,
        recorder: RecorderOptions | None = None,
        engine: str | None = "",
        tier: Tier | None = None,
        **options: float | bool | None,
    ) -> None:
        """Commits the memory of the rows' stamps, and starts the landing thread.

        num_layers: captured MoE layers (L), 1 ... 1024. top_k: experts per token and layer (K), 1
        ... 64. num_experts: logical experts per layer (E), 1 ... 65535. num_blocks: block ids are
        in [0, num_blocks). page_tokens: rows of a page. block_tokens: tokens of a KV block, a
        multiple of page_tokens; None: page_tokens. layer_ids: the model's number of each layer,
        increasing, dense layers counted; empty: 0 ... L - 1, which is wrong where the first layers
        of the model are dense: trainers ask for layers by these numbers. layer_names: of the
        layers' modules, for reports. null_blocks: the engine's placeholder block ids. landing_cpus:
        CPUs that the landing thread may run on; empty: all that the process could use when waymark
        was imported. ids_layout: of the ids of a step: [rows, layers, K], or [layers, rows, K].
        extra_columns: of ids, behind the K (shared experts); another number of columns is refused.
        recorder: for dump_flight(). engine: named in the log's line; None: no such line. tier:
        where rows are found by key.

        row_gather: sequence parallelism: the ranks that share the rows of each forward. Every rank
        tells the same steps, of the same rows, in the same order; a step has the rows of all ranks,
        padding included (slots of -1), a multiple of the ranks; the ids of rank r are its part of
        them. The ranks exchange packed rows on a thread of the library, one all_gather a step, and
        every store gets all rows. What a rank loses is missing on all, for its reason. all_gather
        has a deadline; if it raises, that is logged, and the rows are missing (not captured).

        options, by name (the fields of StoreOptions in blockstore/store/store_options.h):

        - max_steps_in_flight (16): steps without ids, and also steps whose ids have not been read;
          one more is dropped. A loop whose forward takes no time calls wait_idle(), or sets 1024.
        - max_step_rows (8192): rows of one step, padding included.
        - num_pages (0, None: one for each page of each block); spare_pages (None: as many), for
          pages that only readers hold any more: address space until they are used.
        - audit (True), audit_threshold: compare ignored writes with the rows that are kept, and
          invalidate rows that differ in more than near ties explain, and pages that agree less
          than the threshold: above top_k / num_experts (chance), at most 1; None: halfway between.
        - ids_timeout (60 s): Taken.result waits so long, and 5 s more, for steps that were told
          before the take and have no ids; with row_gather, a step whose rows have not come so long
          after its ids were set is lost (not captured). More than the longest forward; None: never.
          overdue_after (10 s): such a step is logged and counted then.
        - teardown_timeout (5 s): how long close() waits for rows that have not come; None: a year.
        - log_bytes (0: 8 MiB, and at least four steps of max_step_rows): of the log that the
          engine's thread appends to.
        - ahead_bytes (64 MiB): of rows fetched while the ids of an earlier step are late; 0: none.
        - key_seed (0: random).

        InvalidArgumentError names rule and value; ResourceExhaustedError: no memory.
        """
        integer("page_tokens", page_tokens, 1, 2**31 - 1)
        integer("block_tokens", 1 if block_tokens is None else block_tokens, 1, 2**31 - 1)
        of = row_gather
        gather = None if of is None else (of.all_gather, of.rank, of.size)
        super().__init__(
            num_layers, top_k, num_experts, num_blocks, page_tokens, block_tokens or 0,
            layer_ids, null_blocks, landing_cpus,
            {name: _option(name, value) for name, value in options.items()},
            _recording(recorder), gather, number_of("ids_layout", ids_layout, IDS_LAYOUTS) == 1,
            extra_columns, engine, tier._native() if tier else None)  # fmt: skip
        _logging.start()
        self._name_layers(layer_names)

    def _name_layers(self, names: Sequence[str]) -> None:
        if names and len(names) != self.shape.num_layers:
            raise InvalidArgumentError(f"layer_names: one for each layer, got {len(names)}")
        for layer, module in enumerate(names):
            self._name_layer(layer, module)

    @property
    def shape(self) -> Shape:
        """The shape of the rows."""
        return Shape(*self._shape)

    def dump_flight(self, path: str | os.PathLike[str]) -> None:
        """Writes what the recorder has to a file, for ``waymark check``; recording continues.
        FailedPreconditionError if there is no recorder; UnknownError if the file cannot be written;
        DataLossError if the recorder has lost records. Any thread."""
        self._dump(os.fspath(path))

    def take(
        self,
        blocks: object,
        tokens: int,
        first: int = 0,
        *,
        last_step: int = 0,
        keys: object = None,
        version: int | None = None,
    ) -> Taken:
        """Takes rows [first, tokens) of the sequence whose block i has tokens [i, i + 1) *
        block_tokens, before the blocks are released: rows of a block without users are missing
        (released). Blocks behind those rows are not looked at. Returns at once: the rows are read
        on a thread of the library, so that nothing is pinned longer than that takes.

        last_step, keys: for blocks that may have been released, and may have another owner, whose
        rows are then missing (released). last_step: in which the request ran; rows of later steps
        are another's. keys: of the first blocks, those that are full, as in bind(): a block that
        was sealed under another key is another's. Only with last_step: keys do not say whose the
        blocks behind them are.

        With a tier, rows that no step wrote are looked up by these keys, and come a little later.
        version: of the weights when the null blocks among them were hit, and blocks that were bound
        since the last step; None: the last step's.

        OutOfRangeError and InvalidArgumentError name the range, the block or the key. While the
        log is full all rows are missing (capacity). Engine's thread."""
        return Taken(self._take(blocks, tokens, first, last_step, keys, version))

    def layer_stats(self) -> list[LayerStats]:
        """The counters of each captured layer. Any thread."""
        return [LayerStats(*layer) for layer in self._layer_stats()]

    def metrics(self, labels: Mapping[str, str] | None = None) -> str:
        """stats(), rows_missing by ``reason`` and layer_stats() by ``layer`` as OpenMetrics text:
        waymark_store_..., each sample with ``labels``. Any thread."""
        stats, layers = self.stats(), self.layer_stats()
        missing = [(f'reason="{Reason(i)}"', n) for i, n in enumerate(stats.rows_missing) if i]
        families = _metrics.attributes(stats, [*stats.as_dict(), *_MEANS])
        families.append(("rows_missing", "rows that became missing", missing))
        for name in ("rows_silent", "rows_invalid"):
            samples = [(f'layer="{of.layer_id}"', getattr(of, name)) for of in layers]
            families.append((name, f"landed rows in which the layer was {name[5:]}", samples))
        text = _metrics.text_of("store", families, labels)
        tier = self.tier_stats()
        counts = _metrics.attributes(tier, tier.as_dict() if self._has_tier else ())
        return text.removesuffix("# EOF\n") + _metrics.text_of("tier", counts, labels)

    def take_findings(self) -> list[Finding]:
        """The findings of the audit that no call has returned yet, one for each cause. Any
        thread."""
        return [Finding(*found) for found in self._take_findings()]

    def __enter__(self) -> Capture:
        return self

    def __repr__(self) -> str:
        return f"Capture({'closed' if self.closed else self.shape})"

    def __exit__(self, *_: object) -> None:
        self.close()
