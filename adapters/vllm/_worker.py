"""The half in the worker: tells the store what happened to blocks and the rows of each step, in the
order of the forwards, where vLLM has their ids in host memory."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._capture import Capture, Taken
from .._errors import DeadlineExceededError
from .._rows import pack_ids
from .._types import Reason
from . import _routers, _tier
from ._checks import kv_group, steps_in_flight
from ._events import Array, Output, Schedule, Start
from ._hooks import guarded, logger, module, timed
from ._options import Options

_READ_SECONDS = 10.0


class _Head(NamedTuple):
    """The rows in front of a step's, with the first output of a request."""

    name: str
    first: int
    reads: list[Taken]
    """The first one in which all are valid, or the last."""
    tail: Array
    """The step's own."""


class Pending:
    """A forward whose ids are on their way to the host."""

    def __init__(self, connector: WorkerConnector, schedule: Schedule, batch: Any) -> None:
        names = batch.req_ids
        self._connector = connector
        self.schedule = schedule
        self.names = list(names)
        self.tokens = batch.num_computed_tokens_np[: len(names)].astype(np.int64)
        self.rows = batch.query_start_loc_np[: len(names) + 1].astype(np.int64)
        self._ids = connector.snapshot(int(self.rows[-1]))
        self.ids: Array
        self.sampled: Array
        self.rejected: Array

    def enqueue_cpu_copy(self, num_sampled: Array, num_rejected: Array) -> None:
        """On vLLM's stream for outputs, whose event is waited for before process_output()."""
        self.sampled, self.rejected = num_sampled, num_rejected
        self.ids = self._ids.to("cpu", non_blocking=True).numpy()

    def process_output(self) -> Output | None:
        """What the scheduler gets with the output of the step."""
        output: Output | None = self._connector.process_output(self)
        return output


class WorkerConnector:
    """In the place of vLLM's AuxOutputWorkerConnector. vLLM's own capturer fills its buffer, on the
    device. begin_step() and prepare_output() are called by the worker's thread, process_output()
    by the one that reads outputs, in the order of the steps."""

    def __init__(
        self, model: Any, vllm_config: Any, kv_cache_config: Any, options: Options
    ) -> None:
        layers = _routers.moe_layers(model)
        capturing = module("vllm.model_executor.layers.fused_moe.routed_experts_capturer")
        most_rows = vllm_config.scheduler_config.max_num_batched_tokens
        self._capturer = capturing.RoutedExpertsCapturer(
            max_num_batched_tokens=most_rows, vllm_config=vllm_config
        )
        capturing.bind_routed_experts_capturer(model, self._capturer)
        self._buffer = self._capturer.device_buffer
        self._int16 = module("torch").int16
        self._schedule: Schedule | None = None
        self._open = False  # a forward was begun that has no output
        self.failure = ""
        self.store: Capture | None = None
        if not module("vllm.distributed.parallel_state").get_tp_group().is_first_rank:
            return
        group = kv_group(kv_cache_config)
        self._block = block = group.block_tokens
        numbers = [layer.layer_id for layer in layers]
        every = range(self._buffer.shape[1])
        self._columns = None if numbers == list(every) else np.array(numbers)
        self._zeros = self._columns is not None and options.layers == "all"
        arguments: dict[str, Any] = {
            "num_layers": len(layers),
            "top_k": self._buffer.shape[2],
            "num_experts": _routers.experts_of(layers, vllm_config),
            "num_blocks": kv_cache_config.num_blocks,
            "block_tokens": block,
            "page_tokens": 16 if block % 16 == 0 else block,
            "null_blocks": [0],
            "layer_ids": numbers,
            "layer_names": [layer.name for layer in layers],
            "max_step_rows": most_rows,
            "max_steps_in_flight": steps_in_flight(vllm_config),
        }
        tier = None
        if options.tier:
            tier = _tier.tier_of(options.tier, vllm_config.model_config.model)
        self.store = Capture(engine=None, tier=tier, **arguments | options.store)
        self._digest: Callable[[], list[int]] | None = None
        if tier is not None:
            experts = self.store.shape.num_experts
            self._digest = functools.partial(_tier.digest, model, experts)
        self._weights = (1, 0), self._digest() if self._digest else []
        if name := _tier.first_name(options.tier):
            self.store.name_weights(1 << 20, name)
        self._keys: dict[str, list[bytes]] = {}
        self._shape = self.store.shape
        self._reasons = options.reasons
        self._lock = threading.Lock()
        self._queue: deque[Schedule | Pending] = deque()  # that the store has not been told
        self._generation = 0
        self._last: tuple[list[str], Array] = [], np.zeros(0, np.int64)
        self._at: dict[str, int] = {}  # the place of each request in the tables
        self._free: list[int] = []
        self._taken: dict[str, tuple[int, Taken]] = {}
        self._table = np.zeros((0, 64), np.int64)  # blocks; 0 is vLLM's null block
        self._length = np.zeros(0, np.int64)  # of them
        self._cursor = np.zeros(0, np.int64)  # tokens whose rows have come
        self._emitted = np.zeros(0, np.int64)
        self._life = np.zeros(0, np.int64)
        self._lost: set[int] = set()  # blocks, since the last output

    def fail(self, error: BaseException) -> None:
        """Ends the capture until the prefix cache is reset."""
        if not self.failure:
            self.failure = f"{type(error).__name__}: {error}"
            self._queue.clear()
            logger.error("waymark: capture ends: %s", self.failure, exc_info=error)

    # -- a step, on the worker's thread ---------------------------------------------------------
    @timed("begin step")
    def begin_step(self, schedule: Schedule | None) -> None:
        """Before the forward of a schedule, or in the place of it."""
        try:
            self._schedule = schedule
            if schedule is not None and schedule.rows:
                # So that a layer that writes nothing has nothing: a forward left its ids there.
                self._buffer[: schedule.rows].fill_(-1)
            if self.store is not None:
                with self._lock:
                    self._begin(schedule)
        except Exception as error:
            self.fail(error)

    def _begin(self, schedule: Schedule | None) -> None:
        if schedule is None:
            raise RuntimeError("the half in the engine core has ended the capture")
        if self.failure and schedule.generation > self._generation:
            logger.warning("waymark: capture begins again, with the prefix cache")
            self.failure, self._open = "", False
        if self.failure:
            return
        if self._open:
            raise RuntimeError("a forward has no output: nobody knows which KV it wrote")
        self._open = schedule.rows > 0
        self._queue.append(schedule)
        self._tell()

    @timed("prepare output")
    @guarded
    def prepare_output(self, batch: Any) -> Pending | None:
        """Behind the forward: its ids, which the next forward will overwrite."""
        if self.store is None or self._schedule is None:
            return None
        pending = Pending(self, self._schedule, batch)
        with self._lock:
            self._open = False
            self._queue.append(pending)
        return pending

    def snapshot(self, rows: int) -> Any:
        """int16: vLLM's own type for outputs cannot tell -1 from an expert."""
        return self._buffer[:rows].to(self._int16)

    def close(self) -> None:
        """Ends the capture, with the worker."""
        if self.store is not None:
            with self._lock:
                self.store.close()
                self.store = None

    # -- what the store is told, in the order of the forwards -----------------------------------
    @timed("process output")
    def process_output(self, pending: Pending) -> Output | None:
        """The ids of a step are there."""
        try:
            with self._lock:
                if self.failure or self.store is None or pending not in self._queue:
                    return None
                self._tell(pending)
                output, heads = self._step(pending)
                self._tell()
            for head in heads:  # begin_step() does not wait for what is read
                self._add_head(output, head)
            return output
        except Exception as error:
            self.fail(error)
            return None

    def _tell(self, until: Pending | None = None) -> None:
        """Tells the store what it can be told: the schedules in front of the first forward whose
        ids are not there. until: that forward, which is taken out; ones before it have none."""
        try:
            while self._queue and (until is not None or isinstance(self._queue[0], Schedule)):
                one = self._queue.popleft()
                if one is until:
                    return
                if isinstance(one, Schedule):
                    self._hear(one)
                else:
                    raise RuntimeError("vLLM did not read the output of a step")
        except Exception as error:
            if until is not None:
                raise
            self.fail(error)

    def _hear(self, schedule: Schedule) -> None:
        store = self.store
        assert store is not None
        if self._digest is not None:
            self._name_weights(schedule)
        if schedule.seals:
            blocks, keys = list(schedule.seals), list(schedule.seals.values())
            store.seal(blocks, keys, step=store.last_step)
        for name in schedule.ended:
            self._end(name)
        if schedule.generation > self._generation:
            self._generation = schedule.generation
            for name in list(self._at):
                self._end(name)
            store.reset()
        for name, blocks in schedule.grown.items():
            row = self._at[name]
            self._put(row, int(self._length[row]), blocks)
            store.bind(blocks)
        self._bind(schedule.starts)
        for start in schedule.starts:
            self._start(start)
        for name in schedule.reads:
            row = self._at[name]
            first, last = int(self._emitted[row]), int(self._cursor[row])
            if first < last:
                taken = self._take(name, row, first, last, self._version(schedule))
                self._taken[name] = last, taken

    def _name_weights(self, schedule: Schedule) -> None:
        """With a tier: the version of the store's rows is the scheduler's, and how often the
        weights have changed since without a call: looked at when nothing runs, and at a reset."""
        assert self.store is not None and self._digest is not None
        (version, changes), before = self._weights
        named = version != schedule.version
        if named or schedule.starts and not self._at or schedule.generation > self._generation:
            now = self._digest()
            changes = 0 if named else changes + (now != before)
            self._weights = (schedule.version, changes), now
            if named and schedule.weights:
                self.store.name_weights(self._version(schedule), schedule.weights)

    def _version(self, schedule: Schedule) -> int:
        return (schedule.version << 20) + (self._weights[0][1] if self._digest else 0)

    def _bind(self, starts: list[Start]) -> None:
        """All of them, before one is hit; what a session gives back may be another's already."""
        assert self.store is not None
        for start in starts:
            if (row := self._at.get(start.name, -1)) >= 0:
                self.store.release(self._table[row, start.known : self._length[row]])
        for start in starts:
            self.store.bind(start.fresh)
            self.store.bind(list(start.loaded), list(start.loaded.values()))

    def _start(self, start: Start) -> None:
        store = self.store
        assert store is not None
        row = self._at.get(start.name, -1)
        if row < 0:
            if not self._free:
                self._more()
            row = self._at[start.name] = self._free.pop()
            self._last = [], self._last[1]
        fresh = {*start.fresh, *start.loaded}
        store.retain([block for block in start.blocks[start.known :] if block not in fresh])
        if start.copied is not None:
            source, copy, rows = start.copied
            store.copy(source, copy, rows)
        self._table[row, : self._length[row]] = 0
        self._put(row, 0, start.blocks)
        self._cursor[row] = start.computed
        self._emitted[row], self._life[row] = start.emitted, start.life
        if start.keys:
            self._keys[start.name] = start.keys

    def _put(self, row: int, at: int, blocks: list[int]) -> None:
        end = at + len(blocks)
        if end > self._table.shape[1]:
            more = np.zeros((len(self._table), max(end, self._table.shape[1])), np.int64)
            self._table = np.concatenate((self._table, more), axis=1)
        self._table[row, at:end] = blocks
        self._length[row] = end

    def _more(self) -> None:
        rows = len(self._table)
        grown = max(16, rows)
        self._free = list(range(rows + grown - 1, rows - 1, -1))
        self._table = np.concatenate((self._table, np.zeros((grown, self._table.shape[1]), int)))
        for name in ("_length", "_cursor", "_emitted", "_life"):
            setattr(self, name, np.concatenate((getattr(self, name), np.zeros(grown, np.int64))))

    def _end(self, name: str) -> None:
        row = self._at.pop(name, -1)
        self._taken.pop(name, None)
        self._keys.pop(name, None)
        if row >= 0:
            assert self.store is not None
            self.store.release(self._table[row, : self._length[row]])
            self._table[row, : self._length[row]] = self._length[row] = 0
            self._free.append(row)
            self._last = [], self._last[1]

    def _take(self, name: str, row: int, first: int, last: int, version: int) -> Taken:
        assert self.store is not None
        blocks = self._table[row, : self._length[row]]
        keys = self._keys.get(name, ())[: last // self._block]
        if not keys:
            return self.store.take(blocks, last, first)
        step = max(self.store.last_step, 1)
        return self.store.take(blocks, last, first, last_step=step, keys=keys, version=version)

    # -- a step, and its rows -------------------------------------------------------------------
    def _step(self, pending: Pending) -> tuple[Output, list[_Head]]:
        store, names = self.store, pending.names
        assert store is not None
        if names != self._last[0]:
            self._last = names, np.fromiter((self._at[one] for one in names), np.int64, len(names))
        row = self._last[1]
        begin, end = pending.rows[:-1], pending.rows[1:] - pending.rejected
        # vLLM counts drafts as computed until it knows that they were rejected.
        first = np.minimum(pending.tokens, self._cursor[row])
        count = end - begin
        last = first + count
        self._cursor[row] = last
        ids = pending.ids
        if len(ids) == len(names) and count.all():  # a row each
            of, token = row, first
        else:
            which = np.repeat(np.arange(len(names)), count)
            behind = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
            of, token = row[which], first[which] + behind
            if len(which) < len(ids):
                ids = ids[begin[which] + behind]
                begin = np.cumsum(count) - count
                end = begin + count
        slots = self._table[of, token // self._block] * self._block + token % self._block
        if self._columns is not None:
            ids = ids[:, self._columns]
        step = store.step(None, self._version(pending.schedule), slots, ids)
        rows, wrong = self._checked(ids)
        if step.dropped or wrong is not None:
            bad = slots if step.dropped else slots[wrong != 0]
            self._lost.update((bad // self._block).tolist())
        return self._output(pending, row, first, begin, end, rows, wrong)

    def _checked(self, ids: Array) -> tuple[Array, Array | None]:
        """Rows as they are returned, and, if some are missing, the reason of each."""
        rows, wrong = pack_ids(ids, self._shape.num_experts)
        return self._widened(rows if wrong is None else self._coded(rows, wrong)), wrong

    def _coded(self, rows: Array, reasons: Array) -> Array:
        """With what stands for a missing row."""
        rows = rows.astype(np.int16 if self._shape.num_experts <= 1 << 15 else np.int32)
        for reason in np.unique(reasons[reasons != 0]).tolist():
            rows[reasons == reason] = -1 - reason if self._reasons else -1
        return rows

    def _widened(self, rows: Array) -> Array:
        """With the option, columns of layers without a router, which are 0."""
        if not self._zeros:
            return rows
        every = np.zeros((len(rows), self._buffer.shape[1], rows.shape[2]), rows.dtype)
        every[:, self._columns] = rows
        return every

    def _output(
        self, pending: Pending, row: Array, first: Array, begin: Array, end: Array, rows: Array,
        wrong: Array | None,
    ) -> tuple[Output, list[_Head]]:  # fmt: skip
        names, sampled = pending.names, pending.sampled[: len(pending.names)] > 0
        last, version = first + end - begin, self._version(pending.schedule)
        emitted = self._emitted[row]
        heads = []
        for i in np.flatnonzero(sampled & (emitted < first)).tolist():
            since, until = int(emitted[i]), int(first[i])
            reads = [taken for last, taken in [self._taken.pop(names[i], (-1, None))]
                     if taken is not None and last == until]  # fmt: skip
            # Rows that this step itself has written, in a block that another request hit, were not
            # there when the first was taken.
            if not reads or not reads[0].done() or not reads[0].result().valid.all():
                reads.append(self._take(names[i], row[i], since, until, version))
            heads.append(_Head(names[i], since, reads, rows[begin[i] : end[i]]))
        if not sampled.all() or heads:  # only rows of this output are sent
            sent = sampled & (emitted >= first)
            count = np.where(sent, end - begin, 0)
            which = np.repeat(np.arange(len(names)), count)
            behind = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
            rows = rows[begin[which] + behind]
            begin = np.cumsum(count) - count
            end = begin + count
        self._emitted[row] = np.where(sampled, np.maximum(emitted, last), emitted)
        lost, self._lost = list(self._lost), set()
        return Output(names, self._life[row].tolist(), first.tolist(), begin.tolist(), end.tolist(),
                      rows, {}, lost), heads  # fmt: skip

    def _add_head(self, output: Output, head: _Head) -> None:
        try:
            found = head.reads[0].result(_READ_SECONDS)
            for read in head.reads[1:]:
                found = found if found.valid.all() else read.result(_READ_SECONDS)
            rows, reasons = found.ids, found.reasons
        except DeadlineExceededError:
            like, count = self._shape, output.token[output.names.index(head.name)] - head.first
            rows = np.zeros((count, like.num_layers, like.top_k), like.id_dtype)
            reasons = np.full(count, Reason.CAPACITY, np.uint8)
        rows = self._widened(self._coded(rows, reasons) if reasons.any() else rows)
        output.late[head.name] = head.first, np.concatenate((rows, head.tail))
