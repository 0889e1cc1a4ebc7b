"""A context that is captured: its hooks, its steps, and the rows of its requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import MegatronAdapter
from .._errors import ResourceExhaustedError
from .._session import CaptureSession
from .._store import Store
from .._types import Reason
from . import _versions
from ._capture import Capture
from ._finished import Finished, Part, Reader, Requests
from ._hooks import Function, Hooks, logger
from ._versions import Refused

_ATTACHED = "_waymark"


class BlockRouting(Mapping[int, "npt.NDArray[np.int16]"]):
    """In place of the allocator's ``block_routing``: rows of the blocks as they are now, int16
    [block tokens, L, K], missing rows -1. The engine's thread."""

    def __init__(self, attached: Attached) -> None:
        self._attached = attached

    def __getitem__(self, block: int) -> npt.NDArray[np.int16]:
        rows = self._attached._rows_of_block(int(block))
        if rows is None:
            raise KeyError(block)
        return rows

    def __iter__(self) -> Iterator[int]:
        return (block for block in range(self._attached.num_blocks) if block in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        # Megatron remembers the blocks of finished requests only if its store is not empty.
        return True

    def pop(self, block: int, default: Any = None) -> Any:
        """Megatron forgets a block that is allocated again; so does the store, by its bind."""
        return default

    def clear(self) -> None:
        """Megatron forgets all blocks in a reset; so does the store, by its reset."""


class Attached:
    """A DynamicInferenceContext that is captured. attach() makes one. The engine's thread, if a method
    does not say otherwise."""

    def __init__(
        self,
        context: Any,
        engine: Any,
        layers: Sequence[_versions.MoELayer],
        shape: dict[str, Any],
        arrays: bool,
        on_finished: Callable[[Finished], None] | None,
        store: dict[str, Any],
    ) -> None:
        allocator = context.kv_block_allocator
        block_tokens: int = context.block_size_tokens
        self.num_blocks = _versions.num_blocks(allocator)
        """Blocks of the pool, the dummy block included."""
        arguments: dict[str, Any] = {
            **shape,
            "num_blocks": self.num_blocks,
            "block_tokens": block_tokens,
            "page_tokens": 16 if block_tokens % 16 == 0 else block_tokens,
            "null_blocks": [allocator.dummy_block_idx],
            "max_step_rows": context.max_tokens,
            # Of small models: a step takes less time than the landing thread may wait for a core.
            "max_steps_in_flight": 64,
        }
        self.store = Store(**{**arguments, **store})
        """The store: its counters, log and findings."""
        self.session = CaptureSession(self.store, max_rows=context.max_tokens, num_buffers=1)
        """The capture session."""
        self.failure = ""
        """Why the capture has ended; else empty."""
        self.steps_without_ids = 0
        """Steps whose rows are missing because a router recorded nothing, or something else than a row
        for each token."""
        self.missing: dict[Reason, int] = {}
        """Rows that were missing in finished requests that have been read, by reason."""
        self.requests = Requests()
        self._context, self._engine = context, engine
        self._capture = Capture(context, list(layers)) if layers else None
        self._row_shape = (arguments["num_layers"], arguments["top_k"])
        self._arrays, self._on_finished = arrays, on_finished
        self._adapter = MegatronAdapter(self.session, dummy_block=allocator.dummy_block_idx)
        self._reader = Reader()
        self._tokens = _versions.Tokens(context, self._adapter)
        self._step = 0
        self._version = self._versions_seen = _versions.generation_epoch(engine)
        self._weights_changed = False
        self._matched: Any = None  # prefix hits of the request that is being added
        self._evicting = False
        self._detached = False
        self._hooks = Hooks()
        self._take_over()
        self._install()
        setattr(context, _ATTACHED, self)

    # -- what users call ----------------------------------------------------------------------
    def set_weight_version(self, version: int) -> None:
        """Steps from now on run under weights `version`, which must not be less than that before. The
        rows so far of running requests are kept: it is these with which their tokens were sampled. An
        engine's own generation epoch is followed without this call."""
        if version < self._version:
            raise ValueError(f"version: at least {self._version}, got {version}")
        self._guarded(self._change_weights, version)

    def forget(self, request_id: int) -> None:
        """A request that was evicted or suspended does not go on."""
        self.requests.forget(request_id)

    def detach(self) -> None:
        """Puts Megatron's own methods back, and gives its own store of routing the rows of all blocks
        (missing rows are -1 there). Requests that go on have their rows from there. A second call does
        nothing."""
        if self._detached:
            return
        routing = self._guarded(lambda: dict(BlockRouting(self))) or {}
        self._detached = True
        self._reader.stop()
        self._hooks.remove()
        delattr(self._context, _ATTACHED)
        self._context.kv_block_allocator.block_routing.update(routing)
        self.session.close()
        self.store.close()

    def _take_over(self) -> None:
        """Blocks that requests have already."""
        table = self._context.request_to_kv_block_ids.numpy()
        blocks, users = np.unique(table[table >= 0], return_counts=True)
        if len(blocks):
            self._adapter.allocate(blocks)
            self._adapter.match(np.repeat(blocks, users - 1))

    # -- the hooks ----------------------------------------------------------------------------
    def _install(self) -> None:
        context, engine, wrap = self._context, self._engine, self._hooks.wrap
        allocator = context.kv_block_allocator
        wrap(allocator, "allocate_memory_blocks", self._allocate)
        wrap(allocator, "release_memory_blocks", self._release)
        wrap(allocator, "register_kv_block_hashes", self._register)
        wrap(allocator, "reset", self._reset)
        if hasattr(allocator, "retain_memory_blocks"):  # main
            wrap(allocator, "retain_memory_blocks", self._retain)
        wrap(allocator, "store_routing_per_block", self._store_routing)
        wrap(allocator, "reconstruct_routing_from_blocks", self._reconstruct)
        self._hooks.replace(allocator, "block_routing", BlockRouting(self))
        wrap(context, "_compute_prefix_match", self._match)
        wrap(context, "add_request", self._add)
        wrap(context, "release_memory_blocks_from_request_indexes", self._leave)
        wrap(context, "evict_overflow_paused_requests", self._evict)
        wrap(context, "deallocate_inference_state_buffers", self._suspend)
        if self._capture is not None:
            wrap(context.moe_routing_metadata, "get_routing_indices", self._routing_indices)
            wrap(context.moe_routing_metadata, "enable_static_buffer_recording", self._begin_forward)
        if engine is not None:
            wrap(engine, "post_process_requests", self._post_process)
            wrap(engine, "reset", self._reset_engine)

    def _guarded(self, function: Function, *args: Any) -> Any:
        """Calls a function of ours: a failure ends the capture, and never reaches the engine."""
        if self.failure or self._detached:
            return None
        try:
            return function(*args)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            logger.error("waymark: capture ends: %s", self.failure, exc_info=error)
            return None

    def _allocate(self, function: Function) -> Function:
        def call(num_blocks: int) -> Any:
            blocks = function(num_blocks)
            if blocks is not None and num_blocks:
                # At once: they are a view of the pool's stack, which the next release writes over.
                self._guarded(self._adapter.allocate, blocks)
            return blocks

        return call

    def _release(self, function: Function) -> Function:
        def call(blocks: Any) -> Any:
            if blocks.numel():
                self._guarded(self._adapter.release, blocks)
            return function(blocks)

        return call

    def _register(self, function: Function) -> Function:
        def call(block_ids: Any, block_hashes: Any, *more: Any) -> Any:
            if block_ids:
                self._guarded(self._adapter.register, block_ids, block_hashes)
            return function(block_ids, block_hashes, *more)

        return call

    def _retain(self, function: Function) -> Function:
        def call(blocks: Any) -> Any:
            result = function(blocks)
            if len(blocks) and self._matched is None:
                self._guarded(self._adapter.match, blocks)
            return result

        return call

    def _reset(self, function: Function) -> Function:
        def call() -> Any:
            result = function()
            self._guarded(self._adapter.reset)
            return result

        return call

    def _match(self, function: Function) -> Function:
        """No method pins the blocks that a request hits: add_request counts them up itself, and may
        fail after it did and count them down again."""

        def call(*args: Any, **more: Any) -> Any:
            result = function(*args, **more)
            if self._matched is not None:
                self._matched = result[0]
            return result

        return call

    def _add(self, function: Function) -> Function:
        def call(request: Any, *args: Any, **more: Any) -> Any:
            self._matched = ()
            try:
                result = function(request, *args, **more)
                self._guarded(self._added, request, self._matched)
            finally:
                self._matched = None
            return result

        return call

    def _added(self, request: Any, matched: Any) -> None:
        if not request.finished_chunk_token_count:
            self.requests.admit(request.request_id, len(request.prompt_tokens))
        if len(matched):
            self._adapter.match(matched)

    def _store_routing(self, function: Function) -> Function:
        def call(flat_routing: Any) -> None:
            if self._detached:
                function(flat_routing)
            else:
                self._guarded(self._end_forward, flat_routing)

        return call

    def _begin_forward(self, function: Function) -> Function:
        def call() -> None:
            function()
            if not self._detached and self._capture is not None:
                self._guarded(self._capture.begin)

        return call

    def _routing_indices(self, function: Function) -> Function:
        def call() -> Any:
            if self._detached or self._capture is None:
                return function()
            return self._guarded(self._capture.get_routing_indices)

        return call

    def _leave(self, function: Function) -> Function:
        def call(request_indexes: Any) -> Any:
            self._guarded(self._left, request_indexes)
            return function(request_indexes)

        return call

    def _evict(self, function: Function) -> Function:
        def call(*args: Any, **more: Any) -> Any:
            self._evicting = True
            try:
                return function(*args, **more)
            finally:
                self._evicting = False

        return call

    def _suspend(self, function: Function) -> Function:
        def call(*args: Any, **more: Any) -> Any:
            if self._context.is_tensor_state_allocated and _versions.recompute_on_resume(self._context):
                self._guarded(self._keep_running, range(self._context.total_request_count))
            return function(*args, **more)

        return call

    def _reconstruct(self, function: Function) -> Function:
        def call(block_ids: Any, total_routing_tokens: int) -> Any:
            if self._detached:
                return function(block_ids, total_routing_tokens)
            return self._guarded(self._array_of_blocks, tuple(block_ids), total_routing_tokens)

        return call

    def _post_process(self, function: Function) -> Function:
        def call(*args: Any, **more: Any) -> Any:
            result = function(*args, **more)
            for record in result[1]:
                self._guarded(self._return, record)
            return result

        return call

    def _reset_engine(self, function: Function) -> Function:
        def call(*args: Any, **more: Any) -> Any:
            self.requests.clear()
            return function(*args, **more)

        return call

    # -- a step -------------------------------------------------------------------------------
    def _end_forward(self, ids: Any) -> None:
        """The forward of a step has run, and the context still has its batch."""
        rows = self._context.active_token_count
        if not rows:
            return
        self._step += 1
        self.requests.next_step()
        self._follow_weights()
        if ids is not None and ids.shape != (rows, *self._row_shape):
            logger.warning(
                "waymark: step %d is not captured: the ids are %s, expected %s",
                self._step, list(ids.shape), [rows, *self._row_shape],
            )  # fmt: skip
            ids = None
        self.steps_without_ids += ids is None
        self._tokens.lend(rows)
        self._adapter.step(self._step, self._version, rows, ids)
        if self._capture is not None:
            self._capture.forget()

    # -- weights ------------------------------------------------------------------------------
    def _follow_weights(self) -> None:
        epoch = _versions.generation_epoch(self._engine)
        if epoch > self._versions_seen:
            self._versions_seen = epoch
            self._change_weights(max(epoch, self._version))
        if self._weights_changed:
            # What a request hits may be of older weights, and a full hit of another request writes
            # its last block again under the new ones.
            context = self._context
            prefill = context.request_in_prefill_status_tensor[: context.total_request_count]
            self._keep_running([index for index, new in enumerate(prefill.tolist()) if new == 1])

    def _change_weights(self, version: int) -> None:
        if version == self._version:
            return
        self._version = version
        self._weights_changed = True
        self._keep_running(range(self._context.total_request_count))

    def _keep_running(self, indexes: Sequence[int]) -> None:
        """Keeps the rows so far of requests in the context, between two of its updates. What a paused
        request wrote in its last step is not in its offset yet."""
        context = self._context
        paused = context.paused_request_count
        offsets = context.request_kv_length_offsets
        lengths = context.request_query_lengths
        for index in indexes:
            rows = int(offsets[index]) + (int(lengths[index]) if index < paused else 0)
            request_id = int(context.request_ids[index])
            if rows > self.requests.rows_kept(request_id):
                self._keep(request_id, context.request_to_kv_block_ids[index], rows)

    # -- rows ---------------------------------------------------------------------------------
    def _left(self, request_indexes: Any) -> None:
        """Requests leave the context: finished, or evicted. Their blocks are released next."""
        context = self._context
        ids = context.request_ids[request_indexes].tolist()
        tables = context.request_to_kv_block_ids[request_indexes].numpy()
        lengths = (
            context.request_kv_length_offsets[request_indexes]
            + context.request_query_lengths[request_indexes]
        ).tolist()
        for request_id, table, rows in zip(ids, tables, lengths):
            if self._evicting:
                self._keep(request_id, table, rows)
                continue
            part = self._part(request_id, table, rows)
            if not self._arrays:
                self._reader.read(part)
            blocks = tuple(table[table >= 0].tolist())
            self.requests.finish(request_id, part, blocks, self.failure)

    def _keep(self, request_id: int, table: Any, rows: int) -> None:
        part = self._part(request_id, table, rows)
        self.requests.keep(request_id, part)
        self._reader.read(part)

    def _part(self, request_id: int, table: Any, rows: int) -> Part:
        """Rows [0, rows) as they are now."""
        try:
            self._adapter.checkpoint(request_id, table, rows)
        except ResourceExhaustedError as error:
            return Part(None, rows, str(error))
        return Part(self._adapter.take(request_id)[-1], rows)

    def _array_of_blocks(self, blocks: tuple[int, ...], count: int) -> Any:
        """What reconstruct_routing_from_blocks returns: of a finished request, or of blocks that
        the engine asks for before they are released."""
        finished = self.requests.with_blocks(blocks)
        if finished is None:
            part = Part(self.store.snapshot(blocks, 0, count), count)
            return Finished(-1, [part], count, "").array()
        finished.count = count
        if self._engine is None:
            self.requests.take(finished.request_id)
            return self._hand_over(finished)
        return self._read(finished) if self._arrays else None

    def _return(self, record: Any) -> None:
        """A request has finished, with `record`: Megatron returns no routing of one that was evicted."""
        request = record[-1]
        finished = self.requests.take(request.request_id)
        if finished is None:
            return
        finished.count = len(request.prompt_tokens) + len(request.generated_tokens) - 1
        request.routing_indices = self._hand_over(finished)

    def _hand_over(self, finished: Finished) -> Any:
        array = self._read(finished) if self._arrays else None
        if self._on_finished is not None:
            self._on_finished(finished)
        return array

    def _read(self, finished: Finished) -> Any:
        array = finished.array()
        if (array is None or (array < 0).any()) and array is not None:
            for reason, count in finished.coverage().missing.items():
                self.missing[reason] = self.missing.get(reason, 0) + count
        for line in self.store.take_log():
            logger.log(line.level, "waymark: %s", line.text)
        return array

    def _rows_of_block(self, block: int) -> npt.NDArray[np.int16] | None:
        """The rows of a block as it is now; None: it has none."""
        rows = Part(self.store.snapshot([block], 0, self._context.block_size_tokens), 0).read(10)
        if rows is None or not rows.valid.any():
            return None
        return rows.astype(np.int16, fill="minus_one")


def attach(
    target: Any,
    *,
    model: Any = None,
    layer_ids: Sequence[int] | None = None,
    top_k: int | None = None,
    num_experts: int | None = None,
    arrays: bool = True,
    on_finished: Callable[[Finished], None] | None = None,
    store: dict[str, Any] | None = None,
) -> Attached:
    """Captures the routing of a live engine from its next step on. The engine's thread, between two
    steps. Rows of tokens that were computed before are missing (never written).

    target: a DynamicInferenceEngine; or a DynamicInferenceContext, whose owner reads the rows by
    ``reconstruct_routing_from_blocks``, those of requests that were evicted excepted, which Megatron
    does not ask for. model: where the routers are; None: the engine's. Without engine and model,
    layer_ids (from 0), top_k and num_experts say what store_routing_per_block is given.
    arrays: a finished request gets its rows as ``routing_indices``; False: it gets None, and nothing is
    read on the engine's thread. on_finished: called on the engine's thread with the Finished of every
    request, which any thread may read later. store: further arguments of Store.

    Refused if it cannot be captured, or is attached already.
    """
    engine = target if hasattr(target, "post_process_requests") else None
    context = target.context if engine is not None else target
    _versions.check(context)
    if hasattr(context, _ATTACHED):
        raise Refused("waymark: the context is attached already: detach() what attach() returned first")
    if model is None and engine is not None:
        model = engine.controller.inference_wrapped_model.model
    layers: list[_versions.MoELayer] = []
    shape: dict[str, Any] = {"top_k": top_k, "num_experts": num_experts}
    if model is not None:
        config = model.config
        _versions.check_model(config)
        layers = _versions.moe_layers(model)
        layer_ids = [layer.layer_id for layer in layers]
        shape = {"top_k": config.moe_router_topk, "num_experts": config.num_moe_experts}
    if layer_ids is None or None in shape.values():
        raise Refused("waymark: without a model, layer_ids, top_k and num_experts have to be given")
    shape |= {"num_layers": len(layer_ids), "layer_ids": list(layer_ids)}
    return Attached(context, engine, layers, shape, arrays, on_finished, dict(store or {}))
