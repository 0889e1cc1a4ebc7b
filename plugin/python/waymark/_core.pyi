"""
Waymark's C ABI as classes. Use the package waymark, which derives from them.
"""

from typing import Any, overload

import numpy
import numpy.typing


def version() -> str: ...

def build_info() -> str: ...

def abi() -> tuple[int, int]: ...

def status_name(status: int) -> str: ...

def reason_name(reason: int) -> str: ...

def provenance_name(provenance: int) -> str: ...

class Store:
    def __init__(self, num_layers: int, top_k: int, num_experts: int, num_blocks: int, page_tokens: int, block_tokens: int, layer_ids: object, null_blocks: object, num_pages: int, max_steps_in_flight: int, max_step_rows: int, device_slots: bool, landing_caller: bool, audit: bool, audit_threshold: float, key_seed: int, landing_cpus: object, record: bool, ring_bytes: int, record_ids: bool, record_cpus: object, log_bytes: int, max_tagged_snapshots: int, spare_pages: object | None, teardown_timeout: object | None, overdue_after: object | None, ids_timeout: object | None, ahead_bytes: int) -> None: ...

    def bind(self, blocks: object, keys: object | None = None) -> None:
        """
        `blocks` are allocated: new lives. With keys: attaches the pages of those keys.

        keys: None; one key or a list of keys, each bytes (1 ... 32) or an int (8 bytes, little-endian), None for a block without a key; uint8 [blocks, key bytes]; or uint64 or int64 [blocks].
        """

    def retain(self, blocks: object) -> None:
        """Each block has one user more."""

    def release(self, blocks: object) -> None:
        """Each block has one user less. Below zero: ignored and counted."""

    def seal(self, blocks: object, keys: object, step: int | None = None) -> None:
        """
        `step` fills the blocks, whose rows are then protected, and found by their keys (as in bind; a block without a key is not found). step None: the step that is begun next.
        """

    def copy(self, src: object, dst: object, rows: object = -1) -> None:
        """
        Each block of dst gets rows [0, rows) of its block of src; rows: one count, or one per block; -1: all.
        """

    def move(self, src: object, dst: object) -> None:
        """
        Each block of dst takes over what its block of src is, all pairs at once: a swap is move([a, b], [b, a]).
        """

    def truncate(self, blocks: object, row: object, step: int) -> None:
        """
        Rows >= row of each block that steps <= step wrote are removed; row: one, or one per block.
        """

    def reset(self) -> None:
        """The block table and the key index are emptied."""

    def report(self, events: object) -> None:
        """
        Reports events in order: an array of event_dtype, or bytes of 56 per event. An invalid event: InvalidArgumentError, and none is reported.
        """

    def schedule(self, step: int, version: int) -> None:
        """
        Opens the schedule of `step` under weights `version`: events and snapshots belong to it until the step is begun. Optional, for engines that report events before the step begins and whose weights change, or that schedule ahead: begin_step of an earlier step is then refused (FailedPreconditionError). Engine's thread.
        """

    def report_message(self, message: object) -> None:
        """
        Reports a message of a ScheduleWriter in the scheduler's process, when its schedule is about to be begun.

        A message that was received before is ignored. If messages are missing before it, or it comes from another sender, all blocks lose their rows (capacity) before it is applied; tagged snapshots of a former sender are released. InvalidArgumentError (also if its step was begun before), AlreadyExistsError (a tag is in use) and ResourceExhaustedError: the message is refused, or the log is full: nothing of a refused message is applied, no snapshot can be taken under a tag that it names, and all blocks lose their rows. Engine's thread.
        """

    def forget_tag(self, tag: int) -> None:
        """
        Releases the snapshot that a message requested under `tag`, if there is one. Any thread.
        """

    def covered_prefix(self, blocks: object, rows: int) -> int:
        """
        The number of leading rows of [0, rows) of the sequence in `blocks` that are valid, as far as the store's thread has come: a hint to one scheduler, since it may be late and differ from rank to rank. Rows beyond the blocks do not count. Any thread.
        """

    def wait_idle(self, timeout: float | None = None) -> None:
        """
        Waits until every step begun so far has ended; releases the GIL. `timeout`: seconds, or None; DeadlineExceededError after it. With landing="caller" it lands submitted steps and never waits. Engine's thread.
        """

    def land_one(self) -> bool:
        """
        landing="caller" only: lands the step that was submitted first; False if there is none. Engine's thread.
        """

    def land(self, step: int) -> None:
        """
        landing="caller" only: lands exactly `step`. NotFoundError if it is not submitted, or has landed. Engine's thread.
        """

    @property
    def last_step(self) -> int:
        """The last step begun; 0: none. Engine's thread."""

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def close(self) -> None:
        """
        Releases the store. Submitted steps land first; snapshots stay readable; a session keeps its store. Engine's thread; no other thread may be in a call of the store.
        """

    def stats_text(self) -> str:
        """The main counters, one per line. Any thread."""

    def check(self) -> None:
        """
        Raises the reason if the store has failed, or FailedPreconditionError in a forked child.

        A store fails by an exception in its own work: ResourceExhaustedError if there was no memory. It then returns no row of its blocks any more: rows that have not landed, and those of later snapshots, are missing (capacity), and wait_idle() raises the reason. All else works as before, so that the engine runs on. Any thread.
        """

    @property
    def _shape(self) -> tuple[int, int, int, int, int, int, tuple[int, ...]]: ...

    def _stats(self) -> dict[str, Any]: ...

    def _next_finding(self) -> tuple[int, int, int, int, int, bool, float, str, bool, int, int] | None: ...

    def _take_log(self) -> tuple[list[tuple[int, str]], int]: ...

    @property
    def _recording(self) -> bool: ...

    def _dump(self, path: str) -> None: ...

    def _check_recorder(self) -> None: ...

class ScheduleWriter:
    """
    Writes what a scheduler in another process than the store reports, as one message per schedule.

    The scheduler sends finish() to the worker with the schedule, and the worker calls Store.report_message before it begins the step. Every message must be sent, in order. One thread at a time. FailedPreconditionError if no message is open (begin: if one is open); ResourceExhaustedError if the message would exceed max_bytes or max_snapshots: finish it, and begin another of the same step.
    """

    def __init__(self, num_blocks: int, block_tokens: int = 16, *, max_bytes: int = 0, max_snapshots: int = 0) -> None:
        """
        num_blocks, block_tokens: those of the worker's store. max_bytes: of a message; 0: 16 MiB. max_snapshots: in a message; 0: 4096.
        """

    def begin(self, step: int, version: int) -> None:
        """
        Opens a message of the schedule of `step`, which is not below that of any message before. step 0: a message without a step, for an engine that goes idle; version is then 0.
        """

    def bind(self, blocks: object, keys: object | None = None) -> None:
        """
        `blocks` are allocated: new lives. With keys: attaches the pages of those keys.

        keys: None; one key or a list of keys, each bytes (1 ... 32) or an int (8 bytes, little-endian), None for a block without a key; uint8 [blocks, key bytes]; or uint64 or int64 [blocks].
        """

    def retain(self, blocks: object) -> None:
        """Each block has one user more."""

    def release(self, blocks: object) -> None:
        """Each block has one user less. Below zero: ignored and counted."""

    def seal(self, blocks: object, keys: object, step: int | None = None) -> None:
        """
        `step` fills the blocks, whose rows are then protected, and found by their keys (as in bind; a block without a key is not found). step None: the step that is begun next.
        """

    def copy(self, src: object, dst: object, rows: object = -1) -> None:
        """
        Each block of dst gets rows [0, rows) of its block of src; rows: one count, or one per block; -1: all.
        """

    def move(self, src: object, dst: object) -> None:
        """
        Each block of dst takes over what its block of src is, all pairs at once: a swap is move([a, b], [b, a]).
        """

    def truncate(self, blocks: object, row: object, step: int) -> None:
        """
        Rows >= row of each block that steps <= step wrote are removed; row: one, or one per block.
        """

    def reset(self) -> None:
        """The block table and the key index are emptied."""

    def report(self, events: object) -> None:
        """
        Reports events in order: an array of event_dtype, or bytes of 56 per event. An invalid event: InvalidArgumentError, and none is reported.
        """

    def snapshot(self, tag: int, blocks: object, first: int, last: int) -> None:
        """
        Requests what Store.snapshot would take here; the worker fetches it with Store.take_tagged(tag). No other snapshot may have this tag until it was fetched or forgotten.
        """

    def forget(self, tag: int) -> None:
        """
        The snapshot `tag` will not be fetched (an abort): the worker's store releases it.
        """

    def finish(self) -> bytes:
        """Closes the message; its bytes."""

class Rows:
    def __init__(self, num_layers: int, top_k: int, num_experts: int, page_tokens: int, layer_ids: object, first: int, ids: object, infos: object, ordered: bool) -> None: ...

    @property
    def first(self) -> int: ...

    @property
    def ordered(self) -> bool: ...

    @property
    def shape(self) -> tuple[int, int, int, int, int, int, tuple[int, ...]]: ...

    @property
    def ids(self) -> numpy.typing.NDArray[Any]: ...

    @property
    def infos(self) -> numpy.typing.NDArray[numpy.uint8]: ...

    def document(self, code: tuple[int, int, int, int, int], steps: bool, nodes: bool) -> bytes: ...

    def write_document(self, path: str, code: tuple[int, int, int, int, int], steps: bool, nodes: bool) -> None: ...

    def handle(self, code: tuple[int, int, int, int, int], store: str) -> bytes: ...

    def write(self, layout: int, id_type: int, fill: int, out: object) -> None: ...

    def coverage(self) -> list[tuple[int, int, int, int, int]]: ...

    def reused(self, first_step: int, out: object) -> None: ...

    @staticmethod
    def join(reads: list[Rows]) -> Rows: ...

    @staticmethod
    def join_layers(stages: list[Rows]) -> Rows: ...

    def gather_layers(self, all_gather: object, rank: int, ranks: int) -> Rows: ...

    def gather(self, all_gather: object, rank: int, ranks: int) -> Rows: ...

def _read_tagged(store: Store, tags: object, timeout: float | None) -> list[tuple[Rows | None, str, bool, str]]: ...

class Snapshot:
    @overload
    def __init__(self, store: Store, blocks: object, first: int, last: int) -> None: ...

    @overload
    def __init__(self, store: Store, tag: int) -> None: ...

    @property
    def first(self) -> int:
        """The first row, counted from the first of the sequence."""

    @property
    def last(self) -> int:
        """One past the last row."""

    def __len__(self) -> int: ...

    def ready(self) -> bool:
        """
        Whether it can be read: every step begun before it has ended. Never waits.
        """

    def wait(self, timeout: float | None = None) -> None:
        """
        Waits until it is ready, without the GIL. `timeout`: seconds, or None; DeadlineExceededError after it.
        """

    def release(self) -> None:
        """Unpins the pages now. A second call does nothing."""

    @property
    def released(self) -> bool:
        """Whether release() was called."""

    @property
    def _row_shape(self) -> tuple[int, int, int]: ...

    def _read(self, begin: int, end: int, layout: int, id_type: int, fill: int, out: object, infos: object | None) -> None: ...

    def _coverage(self) -> list[tuple[int, int, int, int, int]]: ...

    def _rows(self) -> Rows: ...

class Document:
    def __init__(self, source: object, max_rows: int, max_bytes: int, memory_map: bool) -> None: ...

    @property
    def first(self) -> int:
        """The first row, counted from the first of the sequence."""

    @property
    def last(self) -> int:
        """One past the last row."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Size of the whole document in bytes."""

    @property
    def has_steps(self) -> bool:
        """Whether it has steps; else every step is 0."""

    @property
    def has_places(self) -> bool:
        """
        Whether a chunk in the place of another is found, and reads as damaged. False for documents of version 1.0: rows can be wrong if whole chunks of them were lost, repeated or swapped.
        """

    @property
    def truncated(self) -> bool:
        """
        Whether bytes are missing at its end: their rows are missing (not captured).
        """

    @property
    def num_nodes(self) -> int:
        """Above 0: FileSource can open it."""

    @property
    def _shape(self) -> tuple[int, int, int, int, int, int, tuple[int, ...]]: ...

    @property
    def _code(self) -> tuple[int, int, int, int, int]: ...

    def _read(self, begin: int, end: int, layer_begin: int, layer_end: int, layout: int, id_type: int, fill: int, out: object, infos: object | None) -> tuple[int, int, int]: ...

    def _rows(self, begin: int, end: int, layer_begin: int, layer_end: int) -> tuple[Rows, tuple[int, int, int]]: ...

    def _coverage(self) -> list[tuple[int, int, int, int, int]]: ...

    def _chunk(self, row: int) -> tuple[int, numpy.typing.NDArray[numpy.uint8]]: ...

def handle_info(handle: object) -> tuple[int, int, bytes, int, int, int, int, str, bool]: ...

class Source:
    def __init__(self, of: object, memory_map: bool) -> None: ...

class RedisSource(Source):
    def __init__(self, texts: tuple[str, str, str, str, str, str, str, str, str], tls: bool, numbers: tuple[int, int, int, int, int, int, int, int], presence_cache_entries: int) -> None: ...

class Ticket:
    def ready(self) -> bool:
        """Whether it has its result, a handle or an error. Never waits."""

    def _wait(self, timeout: object | None) -> bytes: ...

class Publisher:
    def __init__(self, source: Source, shape: tuple[int, int, int, int, int, int, tuple[int, ...]], code: tuple[int, int, int, int, int], store: str, max_waiting: int, max_pages: int, max_sequences: int, landing_timeout: float | None, source_timeout: float | None, cpus: object, key: object) -> None: ...

    def _publish_rows(self, sequence: str, rows: Rows) -> Ticket: ...

    def _publish_snapshot(self, sequence: str, snapshot: Snapshot) -> Ticket: ...

    def forget(self, sequence: str) -> None:
        """
        Forgets what is remembered of a sequence, a request that ended: its name can then be that of another request. Takes its turn after the publications in the queue; rows that are published after it begin at row 0. Handles and objects stay as they are. Never waits.
        """

    def _stats(self) -> tuple[int, int, int, int, int, int, int, int, int, int]: ...

class Fetcher:
    def __init__(self, source: Source, cache_bytes: int, batch_bytes: int, max_rows: int, max_bytes: int, whole_chunks: bool, key: object) -> None: ...

    def _fetch(self, handle: object, begin: int, end: int, layer_begin: int, layer_end: int, timeout: float | None) -> tuple[Rows, tuple[int, int, int, int, int, int, str]]: ...

    def _counts(self) -> tuple[int, int, int, int, int, int, str]: ...

class CallbackSource(Source):
    def __init__(self, source: object) -> None: ...

def from_format(data: object, format: str, row_count: str, layers: str, sentinel: str, dtype: str, num_layers: int, max_bytes: int, field: str, first: int | None, moe_layers: object, all_moe: bool, top_k: int, num_experts: int) -> tuple[Rows, list[str]]: ...

def to_format(rows: Rows, format: str, row_count: str, layers: str, sentinel: str, dtype: str, num_layers: int, max_bytes: int) -> tuple[bytes, list[str]]: ...

class View:
    """
    Where one forward writes: int16 [L, max_rows, K], every id -1 before.

    Valid until its step is submitted, dropped or cancelled; later writes are lost, or land in another step. Keeps its session. Kernels may write disjoint parts from any thread.
    """

    @property
    def array(self) -> numpy.typing.NDArray[numpy.int16]:
        """
        numpy int16 [L, max_rows, K], writable, no copy. Host transport only (FailedPreconditionError otherwise).
        """

    def layer(self, layer: int) -> numpy.typing.NDArray[numpy.int16]:
        """
        int16 [max_rows, K] of a layer, contiguous: numpy, or a DLPack object of the device.
        """

    @property
    def step(self) -> int:
        """Its step; 0: no step, nothing that is written there lands."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(L, max_rows, K)."""

    @property
    def layer_stride(self) -> int:
        """The distance between layers, in ids."""

    def data_ptr(self) -> int:
        """The address of layer 0."""

    def __dlpack__(self, **kwargs: Any) -> Any:
        """
        No copy; `stream` is ignored, because views are written in stream order.
        """

    def __dlpack_device__(self) -> tuple[int, int]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

    def __array__(self, *args: Any, **kwargs: Any) -> numpy.typing.NDArray[numpy.int16]: ...

class CaptureSession:
    def __init__(self, store: Store, max_rows: int, num_buffers: int, num_ids_steps: int, transport: int, device: int, one_view: bool, all_gather: object | None, rank: int, ranks: int) -> None: ...

    def _bind_layer(self, layer: int, module: str, capture: int) -> None: ...

    def set_stream(self, stream: object | None) -> None:
        """
        The CUDA stream of the forwards from here on: an int (cudaStream_t), an object with cuda_stream or __cuda_stream__(), or None (the default stream). It is valid until the call that replaces it has returned. Engine's thread.
        """

    def begin_step(self, step: int, version: int, slots: object | None = None, *, events: object | None = None, pairs: tuple[object, object] | None = None, asked: object | None = None, block_tokens: int | None = None, written_rows: int = 0, device_slots: bool = False, derive_events: bool = False) -> bool:
        """
        Begins a step and takes a buffer for its forward. Engine's thread; keeps the GIL.

        step: above every earlier step. version: of the weights. events: an array of event_dtype, or bytes of 56 per event; reported before the step begins.

        The rows of the forward, in its order, are given in one form, numpy arrays of the named types without a copy. slots: int64 [rows]: block * block_tokens + offset, -1 (padding), or NOT_ASKED(slot). pairs: (block_idx, local_position), both int32 or int64 [rows]; a negative block is padding. asked, with pairs: bool or uint8 [rows], 0: the row's request did not ask for routing. block_tokens: of the blocks of pairs; None: the store's, else a divisor of it (kernel blocks).

        written_rows: rows that the forward writes, graph padding included; 0: the number of rows. device_slots: the rows are all that the step may write, in any order. derive_events: a Bind of each block of which the step writes the first row and no other, and a Seal of each whose last row it writes, follow from the rows and are applied behind `events`; not with drafts or keys, nor where requests share a block that is not full; refused with device_slots and with blocks of one token.

        False: the step was dropped (capacity) and has ended; its forward runs as usual. InvalidArgumentError: nothing was done.
        """

    def begin_ids_step(self, step: int, version: int, slots: object | None = None, *, events: object | None = None, pairs: tuple[object, object] | None = None, asked: object | None = None, block_tokens: int | None = None, derive_events: bool = False) -> bool:
        """
        Like begin_step, for ids of all layers in one array (submit_ids); takes no buffer.
        """

    def view(self, step: int) -> View:
        """
        The view of the forward of `step`; the scratch view for a step without a buffer. Engine's thread.
        """

    def scratch_view(self) -> View:
        """
        The view of forwards outside any step. Nothing in it lands. Engine's thread.
        """

    def hand_over(self, view: object, layer: int, ids: object, *, first_row: int = 0) -> None:
        """
        Copies the first K columns of `ids` into the len(ids) rows of a layer from first_row on: micro-batches of one step hand over their rows one after the other.

        view: a View of this session, or the step. layer: bound as "hands_over", or not bound. ids: int16, int32 or int64 [rows, >= K], any strides, in the transport's memory; on a device in stream order, without synchronisation, and allowed during graph capture. NotFoundError: the step of the view has ended, or was not begun. Engine's thread.
        """

    def submit(self, step: int, written_rows: int = 0) -> None:
        """
        The forward of `step` has written its view (host), or has been launched (device). NotFoundError: the step has no buffer here. Engine's thread; keeps the GIL.
        """

    def submit_device_slots(self, step: int, slots: object, rows: object | None = None, written_rows: int = 0) -> None:
        """
        Submits a step with device_slots: row i has slot slots[i]. slots: int64 [>= rows], contiguous, in the transport's memory, read in stream order. Engine's thread.
        """

    def _submit_ids(self, step: int, ids: object, layers_first: bool) -> bool: ...

    def landed(self, step: int) -> bool:
        """
        Whether the array that submit_ids was given for `step` may be written again: it has been read, or there is none. Steps may land in another order than they were submitted. Engine's thread.
        """

    def drop(self, step: int) -> None:
        """
        The ids of `step` are lost: its rows are missing (capacity). Engine's thread.
        """

    def cancel(self, step: int) -> None:
        """
        `step` did not run: no kernel that writes KV was issued. It has no effect, and its seals have none: report them again with the step that runs. Engine's thread.
        """

    def discard(self, written_rows: int) -> None:
        """
        A forward outside any step has written rows [0, written_rows) of the scratch view. Engine's thread.
        """

    def _self_test(self, rows: int, forward: object) -> tuple[list[tuple[int, int, int, int, int]], str]: ...

    def check(self) -> None:
        """
        Raises the reason if the transport has failed permanently, or row_gather is not called any more (4096 steps waited for it); every step is then dropped when it begins. Any thread.
        """

    def stats_text(self) -> str:
        """
        The counters, and one line per layer with a silent or invalid row, as text. Any thread.
        """

    def silent_batch_sizes(self, layer: int) -> list[int]:
        """
        Rows, padding included, of the forwards in which `layer` was silent; ascending. Any thread.
        """

    def close(self) -> None:
        """
        Drops the steps that have a buffer here and have not ended; submitted steps land. Remaining views keep the session. Engine's thread.
        """

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def _stats(self) -> dict[str, int]: ...

    def _layer_stats(self, layer: int) -> tuple[int, str, int, int, int]: ...

def route(logits: object, topk_ids: object | None, topk_weights: object | None, bias: object | None, replay_in: object | None, routed: object | None, replay_out: object | None, method: int, top_k: int, num_groups: int, topk_groups: int, scale: float, normalize: bool, view: object | None, layer: int, stream: object | None) -> None:
    """One call of a router; waymark.route is what is for use."""

class MegatronAdapter:
    """
    Reports to a store what an engine like Megatron does with its KV blocks, as it happens, and keeps the snapshots of requests that have lost their blocks. blocks: one, or an array, tensor or list of them. Engine's thread.
    """

    def __init__(self, session: CaptureSession, dummy_block: int) -> None:
        """
        session: a CaptureSession, of a store of which dummy_block, the block of tokens without KV, is a null block.
        """

    def allocate(self, blocks: object) -> None:
        """
        Blocks were allocated. Read at once: a view of the allocator's free list will do.
        """

    def match(self, blocks: object) -> None:
        """The blocks of a prefix match were pinned, once each."""

    def release(self, blocks: object) -> None:
        """Blocks were released; ids may repeat, once for each owner."""

    def register(self, blocks: object, hashes: object) -> None:
        """
        hashes, integers of 64 bits, were registered for blocks, when their request was admitted: the steps from the next one on fill them.
        """

    def reset(self) -> None:
        """
        The allocator was reset: no request has blocks, and no prefix is found any more.
        """

    def lend_tokens(self, token_to_block_idx: object, token_to_local_position_within_kv_block: object) -> None:
        """
        The arrays of the context, int64 and int32 [max_tokens], in host memory: kept, and read in begin_step and step. Again when the context has made others.
        """

    def begin_step(self, step: int, version: int, active_tokens: int, padded_tokens: int = 0) -> bool:
        """
        CaptureSession.begin_step with the first active_tokens of the lent arrays, before a forward that writes the view of the session, padded_tokens rows with the padding of graphs. Tokens of the dummy block are padding.
        """

    def step(self, step: int, version: int, active_tokens: int, ids: object) -> bool:
        """
        A whole step in one call, after its forward and before its blocks are released: CaptureSession.begin_ids_step and submit_ids. Returns whether its rows will land.

        ids: integers [active_tokens, layers, columns] in host memory, which must not change until they have landed; None: they are lost, and the rows are missing (capacity). An exception: no step was begun, or it was dropped since its ids cannot be submitted.
        """

    def checkpoint(self, request: int, blocks: object, rows: int) -> None:
        """
        Keeps a snapshot of rows [0, rows) of a request, whose KV is in `blocks` in this order; entries behind those rows are not read. Before the blocks of a request are released, for whatever reason, and for every request that runs when the weights change.
        """

    def take(self, request: int) -> list[Any]:
        """
        The snapshots (waymark.Snapshot) that are kept of a request, the oldest first; then none is kept. Its routing is waymark.join of their rows. Any thread may read them.
        """

    def forget(self, request: int) -> None:
        """The request was aborted: releases its snapshots."""

class TrainerPlan:
    def __init__(self, lengths: object, padded_lengths: object | None, order: int, context_cut: int, context_size: int, context_rank: int, tensor_size: int, tensor_rank: int, sequence_parallel: bool, sequence_multiple: int, total_multiple: int, local_multiple: int) -> None: ...

    @property
    def rows(self) -> int: ...

    def _segments(self) -> list[tuple[int, int, int, int, int]]: ...

    def _fill(self, sources: list[Any], layers: object, id_type: int, fill: int, partial: bool, packed: bool, ids: object, mask: object) -> tuple[int, int, int, tuple[int, ...], int, int]: ...

    def _audit(self, num_layers: int, top_k: int, num_experts: int, given_type: int, given: object, mask: object, own_type: int, own: object, rows: object, least_agreement: float, max_rows: int, layers: object, positions: object, sequences: object) -> tuple[float, float, int, list[tuple[int, int, int, int, int, float, float, str]]]: ...

def expand(packed: object, mask: object, out: object, num_experts: int, fill: int, stream: object | None) -> None:
    """waymark.trainer.expand is what is for use."""

def check_ids(rows: tuple[Any, ...]) -> None: ...

def agreement(a: Rows, b: Rows) -> list[tuple[int, int, int, int, int]]: ...

def stage_layers(num_layers: int, pipeline_size: int, pipeline_rank: int, virtual_size: int, virtual_rank: int, first_stage_layers: int, last_stage_layers: int) -> tuple[int, int]: ...

class VllmScheduler:
    """
    Writes what the scheduler of an engine like vLLM did as schedule messages, from the lists of each schedule.

    Once per schedule: begin, one call for each request whose blocks changed, finish_message, again as long as there is `more`; the bytes go to the worker with the schedule, and every message must be sent, in order. Requests that are preempted or have finished are reported before their blocks are freed, copies on write when they are decided; without an open message these are kept for the next one. A request is an integer that the caller chooses, known from new to finish. One thread at a time. A refused call changes nothing; but preempt and finish have released the blocks, without a snapshot, if they raise ResourceExhaustedError: no message can hold it.
    """

    def __init__(self, num_blocks: int, block_tokens: int, hash_block_tokens: int = 0, *, null_block: int = 0, max_bytes: int = 0, max_snapshots: int = 0) -> None:
        """
        num_blocks, block_tokens: those of the worker's store. hash_block_tokens: tokens of a block hash, a divisor of block_tokens; 0: block_tokens. null_block: the block that stands for no block. max_bytes: of a message; 0: 16 MiB. max_snapshots: in a message; 0: 4096.
        """

    def begin(self, step: int, version: int) -> None:
        """
        Opens the message of the schedule of `step`, which is not below that of any message before. step 0: a schedule without tokens; version is then 0.
        """

    def new(self, request: int, blocks: object, local_tokens: int, external_tokens: int, hashes: object) -> None:
        """
        A request is scheduled for the first time, with all its blocks: the KV of its first `local_tokens` was found in the prefix cache, that of the next `external_tokens` is loaded.

        hashes: those of all hash blocks of the request so far, a sequence of bytes, of which few are read; empty: the engine has no prefix cache.
        """

    def resume(self, request: int, blocks: object, local_tokens: int, external_tokens: int, hashes: object) -> None:
        """
        The same for a request that was preempted: `blocks` replace its former ones. One that was not (a session with new input) goes on with its blocks, which are in front of `blocks`.
        """

    def append(self, request: int, blocks: object, full_tokens: int, hashes: object) -> None:
        """
        Appends blocks to those of a request, and seals every block that ends at or before `full_tokens`, the leading tokens that are computed and accepted after this step. hashes: as in new. Without blocks also while no message is open: so the last full block of a request is sealed before it leaves.
        """

    def finish_message(self) -> bytes:
        """
        Closes the message, or writes the next one of a schedule that needs several; its bytes.
        """

    @property
    def more(self) -> bool:
        """
        Whether the schedule has another message, since one would have more than max_bytes or max_snapshots: finish_message must be called again before begin.
        """

    def preempt(self, request: int, rows: int, tag: int | None) -> None:
        """
        A request is preempted, and its blocks are about to be freed: requests a snapshot of its rows [0, rows) under `tag` (None: no snapshot) and releases the blocks.
        """

    def finish(self, request: int, rows: int, tag: int | None) -> None:
        """
        The same for a request that has finished or was aborted. `rows` of a preempted request: 0.
        """

    def extend(self, request: int, blocks: object) -> None:
        """
        Appends blocks to those of a request, and writes no event: the worker derives them from the slots of the decodes that begin and fill these blocks (VllmWorker).
        """

    def snapshot(self, request: int, first: int, last: int, tag: int) -> None:
        """Requests a snapshot of rows [first, last) of a request that continues."""

    def forget(self, tag: int) -> None:
        """
        The snapshot `tag` will not be fetched: the worker's store releases it.
        """

    def copy(self, src: int, dst: int) -> None:
        """
        The engine copies block `src` to `dst`, which a request of this schedule gets: a prefix hit that ends inside a block.
        """

    def truncate(self, request: int, position: int, step: int) -> None:
        """
        The tokens of a request from `position` on that steps <= `step` computed were rejected.
        """

    def reset(self) -> None:
        """The prefix cache is reset, and no request has blocks."""

    def sealed(self, request: int) -> int:
        """The leading blocks of a request that are sealed, or were prefix hits."""

class VllmWorker:
    """
    Reports the steps of a worker of an engine like vLLM, each in one call after its forward. Engine's thread.
    """

    def __init__(self, session: CaptureSession, slots: object, derive_events: bool) -> None:
        """
        session: a CaptureSession. slots: int64 numpy array whose front has the slots of the rows after every forward; it is kept, and read in step. derive_events: as in CaptureSession.begin_step; blocks that decodes begin are then reported by VllmScheduler.extend alone, and none is sealed. False: the scheduler reports all.
        """

    def add_buffer(self, array: object, columns: int) -> int:
        """
        Adds memory for the ids of a step, and returns its number. array: integers in host memory, one dimension, contiguous; kept as long as the store. columns: ids of a row in it, at least K.
        """

    def step(self, step: int, version: int, rows: int, buffer: int, forward_rows: int, message: bytes | None = None) -> int:
        """
        Store.report_message, CaptureSession.begin_ids_step and submit_ids in one call; returns a buffer that may be written now, or -1.

        rows: those of the step. buffer: has [L, forward_rows, columns] ids in front, of which `rows` of each layer are read; below 0: the ids are lost, and the step is dropped (capacity). message: of the step's schedule; None: it has none, or it was reported.

        An exception: the message was refused, and no step begun; or the step was refused, or dropped since its ids cannot be submitted.
        """
