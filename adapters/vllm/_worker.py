"""The half in the worker: tells the store what happened to blocks and the rows of each step, in the
order of the forwards, where vLLM has their ids in host memory."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from .._capture import Capture, Taken
from .._errors import DeadlineExceededError
from .._hooks import Part, ends, guarded, module
from .._metrics import Exported
from .._rows import pack_ids
from .._signed import missing, signed
from .._tables import Tables
from .._tier import Tier
from .._types import Reason
from . import _checks, _routers, _tier
from ._checks import logger
from ._events import Array, Output, Schedule
from ._options import Options, weights_of

_READ_SECONDS = 10.0

class _Head(NamedTuple):
    """The rows in front of a step's, with the first output of a request."""

    first: int
    rows: int
    reads: list[Taken]
    """The first one counts in which all are valid, or the last."""
    tail: Array
    """The step's own."""


class Pending:
    """A forward whose ids are on their way to the host."""

    ids: Array
    sampled: Array
    rejected: Array

    def __init__(self, connector: WorkerConnector, batch: Any) -> None:
        self._connector, self.names = connector, list(batch.req_ids)
        count = len(self.names)
        self.tokens = batch.num_computed_tokens_np[:count].astype(np.int64)
        self.rows = batch.query_start_loc_np[: count + 1].astype(np.int64)
        self._ids = connector.copy(int(self.rows[-1]))

    def enqueue_cpu_copy(self, num_sampled: Array, num_rejected: Array) -> None:
        """On vLLM's stream for outputs, whose event is waited for before process_output()."""
        self.sampled, self.rejected = num_sampled, num_rejected
        self.ids = self._ids.to("cpu", non_blocking=True).numpy()

    def process_output(self) -> Output | None:
        """What the scheduler gets with the output of the step."""
        return self._connector.process_output(self)


class WorkerConnector(Part):
    """In the place of vLLM's AuxOutputWorkerConnector. vLLM's own capturer fills its buffer, on the
    device. begin_step() and prepare_output() are called by the worker's thread, process_output()
    by the one that reads outputs, in the order of the steps."""

    log = logger

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
        self._buffer, self._int16 = self._capturer.device_buffer, module("torch").int16
        self._schedule: Schedule | None = None
        self._open = False  # a forward was begun that has no output
        self.store: Capture | None = None
        self._queue: deque[Schedule | Pending] = deque()  # that the store has not been told
        if not module("vllm.distributed.parallel_state").get_tp_group().is_first_rank:
            return
        _, self._block = _checks.kv_group(kv_cache_config)
        numbers = [layer.layer_id for layer in layers]
        every = numbers == list(range(self._buffer.shape[1]))
        self._columns = None if every else np.array(numbers)
        self._zeros = not every and options.layers == "all"
        self._reasons = options.reasons
        arguments: dict[str, Any] = {
            "num_layers": len(layers),
            "top_k": self._buffer.shape[2],
            "num_experts": _routers.experts_of(layers, vllm_config),
            "num_blocks": kv_cache_config.num_blocks,
            "block_tokens": self._block,
            "page_tokens": 16 if self._block % 16 == 0 else self._block,
            "null_blocks": [0],
            "layer_ids": numbers,
            "layer_names": [layer.name for layer in layers],
            "max_step_rows": most_rows,
            "max_steps_in_flight": _checks.steps_in_flight(vllm_config),
        }
        space = vllm_config.model_config.model
        tier = Tier._of(options.tier, space) if options.tier else None
        self.store = Capture(engine=None, tier=tier, **arguments | options.store)
        self._shape = self.store.shape
        self._weights = _tier.Weights(self.store, model, weights_of(options)) if tier else None
        self._exported, self._lock = Exported(), threading.Lock()
        self._generation, self._version = 0, 1  # of the schedule that was told last
        self._tables = Tables(self._block)
        self._keys: dict[str, list[bytes]] = {}
        self._reads: dict[str, tuple[int, int, Taken]] = {}  # rows [first, last) of requests

    def fail(self, error: BaseException) -> None:
        """Ends the capture until the prefix cache is reset."""
        super().fail(error)
        self._queue.clear()

    # -- a step, on the worker's thread ---------------------------------------------------------
    @ends
    def begin_step(self, schedule: Schedule | None) -> None:
        """Before the forward of a schedule, or in the place of it."""
        self._schedule = schedule
        if schedule is not None and schedule.rows:
            # So that a layer that writes nothing has nothing: a forward left its ids there.
            self._buffer[: schedule.rows].fill_(-1)
        if self.store is not None:
            with self._lock:
                self._begin(schedule)

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

    @guarded
    def prepare_output(self, batch: Any) -> Pending | None:
        """Behind the forward: its ids, which the next forward will overwrite."""
        if self.store is None or self._schedule is None:
            return None
        pending = Pending(self, batch)
        with self._lock:
            self._open = False
            self._queue.append(pending)
        return pending

    def copy(self, rows: int) -> Any:
        """Of the ids, as int16: vLLM's own type for outputs cannot tell -1 from an expert."""
        return self._buffer[:rows].to(self._int16)

    def close(self) -> None:
        """Ends the capture, with the worker."""
        if self.store is not None:
            with self._lock:
                self.store.close()
                self.store = None

    # -- what the store is told, in the order of the forwards -----------------------------------
    @ends
    def process_output(self, pending: Pending) -> Output | None:
        """The ids of a step are there."""
        with self._lock:
            if self.failure or self.store is None or pending not in self._queue:
                return None
            self._tell()
            if self._queue.popleft() is not pending:
                raise RuntimeError("vLLM did not read the output of a step")
            output, heads = self._step(pending)
            self._tell()
        for name, head in heads.items():  # begin_step() does not wait for what is read
            output.late[name] = head.first, np.concatenate((self._read(head), head.tail))
        self._exported.update(self.store.stats)
        return output

    def _tell(self) -> None:
        """The schedules in front of the first forward whose ids are not there."""
        while self._queue and isinstance(schedule := self._queue[0], Schedule):
            self._queue.popleft()
            self._hear(schedule)

    def _hear(self, schedule: Schedule) -> None:
        store = self.store
        assert store is not None
        self._version = schedule.version
        if self._weights is not None:
            self._version = self._weights.version(schedule, idle=not self._tables)
        if schedule.generation > self._generation:
            self._generation = schedule.generation
            self._tables.clear()
            self._reads.clear()
            store.reset()
        if schedule.seals:
            blocks, keys = list(schedule.seals), list(schedule.seals.values())
            store.seal(blocks, keys, step=store.last_step)
        for name in schedule.ended:
            self._end(name)
        store.release(schedule.released)
        store.bind(schedule.bound)  # before one of them is hit
        store.bind(list(schedule.loaded), list(schedule.loaded.values()))
        store.retain(schedule.retained)
        for source, copy, rows in schedule.copied:
            store.copy(source, copy, rows)
        for name, blocks in schedule.grown.items():
            self._tables.grow(name, blocks)
        for start in schedule.starts:
            self._tables.start(start.name, start.life, start.blocks, start.computed)
            self._keys[start.name] = start.keys
        for name, first in schedule.reads.items():
            last = self._tables.cursor(name)
            if first < last:
                self._reads[name] = first, last, self._take(name, first, last)

    def _end(self, name: str) -> None:
        self._tables.end(name)
        self._reads.pop(name, None)
        self._keys.pop(name, None)

    def _take(self, name: str, first: int, last: int) -> Taken:
        assert self.store is not None
        blocks = self._tables.blocks(name)
        if not self._keys[name]:
            return self.store.take(blocks, last, first)
        return self.store.take(blocks, last, first, last_step=max(self.store.last_step, 1),
                               keys=self._keys[name], version=self._version)  # fmt: skip

    # -- a step, and its rows -------------------------------------------------------------------
    def _step(self, pending: Pending) -> tuple[Output, dict[str, _Head]]:
        store, names = self.store, pending.names
        assert store is not None
        count = np.diff(pending.rows) - pending.rejected
        step = self._tables.step(names, pending.tokens, count)
        ids = pending.ids
        if len(step.slot) < len(ids):  # without rejected drafts
            ids = ids[pending.rows[step.request] + step.offset]
        if self._columns is not None:
            ids = ids[:, self._columns]
        told = store.step(None, self._version, step.slot, ids)
        rows, reasons = pack_ids(ids, self._shape.num_experts)
        lost = step.slot[:0] if reasons is None else step.slot[reasons != 0]
        sampled = pending.sampled[: len(names)] > 0
        if not sampled.all():  # only rows of outputs are sent
            sent = sampled[step.request]
            rows, reasons = rows[sent], None if reasons is None else reasons[sent]
            count = np.where(sampled, count, 0)
        output = Output(names, step.life.tolist(), step.first.tolist(), np.cumsum(count).tolist(),
                        self._returned(rows, reasons), {},
                        np.unique((step.slot if told.dropped else lost) // self._block).tolist()
                        )  # fmt: skip
        return output, self._heads(output, sampled) if self._reads else {}

    def _heads(self, output: Output, sampled: Array) -> dict[str, _Head]:
        heads = {}
        for i in np.flatnonzero(sampled).tolist():
            name = output.names[i]
            if name not in self._reads:
                continue
            first, last, taken = self._reads.pop(name)
            token, tail = output.of(i)
            reads = [taken] if last == token else []
            # Rows that this step itself has written, in a block that another request hit, were not
            # there when the first was taken.
            if not reads or not taken.done() or not taken.result().valid.all():
                reads.append(self._take(name, first, token))
            heads[name] = _Head(first, token - first, reads, tail)
        return heads

    def _read(self, head: _Head) -> Array:
        try:
            found = head.reads[0].result(_READ_SECONDS)
            for read in head.reads[1:]:
                found = found if found.valid.all() else read.result(_READ_SECONDS)
            return self._returned(found.ids, found.reasons)
        except DeadlineExceededError:
            code = -1 - Reason.CAPACITY if self._reasons else -1
            return missing(head.tail, head.rows, code)

    def _returned(self, rows: Array, reasons: Array | None) -> Array:
        """Rows with what stands for missing ones; with the option, columns of layers without a
        router, which are 0."""
        rows = signed(rows, reasons, self._reasons)
        if not self._zeros:
            return rows
        every = np.zeros((len(rows), self._buffer.shape[1], rows.shape[2]), rows.dtype)
        every[:, self._columns] = rows
        return every
