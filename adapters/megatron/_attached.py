"""A context that is captured: its hooks, its steps, and the rows of its requests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._capture import Capture
from .._errors import DeadlineExceededError, ResourceExhaustedError
from .._rows import Rows
from .._tier import Tier
from .._types import Reason
from . import _versions
from ._capture import Ids
from ._finished import BlockRouting, Finished, Part, Requests
from ._hooks import Function, Hooks, Refused, logger
from ._keys import Keys

_ATTACHED = "_waymark"
_SET = {"num_layers", "layer_ids", "top_k", "num_experts", "num_blocks", "block_tokens",
        "null_blocks", "max_step_rows", "ids_layout"}  # fmt: skip
_ENGINE_SECONDS = 1.0  # for rows of the step that has just run, on the engine's thread


class Attached:
    """A DynamicInferenceContext that is captured. attach() makes one. The engine's thread, if a
    method does not say otherwise."""

    store: Capture
    """Its counters: ``store.stats()``; its findings: ``store.take_findings()``."""
    num_blocks: int
    """Blocks of the pool, the dummy block included."""
    failure: str
    """Why the capture has ended; else empty. The engine runs on without rows: ``routing_indices``
    are None, and blocks have no rows. detach() puts Megatron's own store back, after which the
    context can be attached again."""
    steps_without_ids: int
    """Steps whose rows are missing because a router recorded nothing, or something else than a row
    for each token."""
    missing: dict[Reason, int]
    """Rows that were missing in finished requests, by reason: a request's count once, when they
    are read first."""

    def __init__(
        self,
        context: Any,
        engine: Any,
        model: Any,
        layers: Sequence[_versions.MoELayer],
        shape: dict[str, Any],
        arrays: bool,
        on_finished: Callable[[Finished], None] | None,
        *,
        store: dict[str, Any],
        tier: Tier | None,
        weights: Callable[[int], str] | None,
        same_weights: bool,
    ) -> None:
        allocator = context.kv_block_allocator
        self._context, self._engine = context, engine
        self._capture = Ids(context, list(layers))
        self.requests = Requests()
        self._hooks = Hooks()
        self._prepare_hooks()
        self.num_blocks = _versions.num_blocks(allocator)
        self.failure = ""
        self.steps_without_ids = 0
        self.missing = {}
        self._missing_lock = threading.Lock()  # with arrays=False other threads read
        self._row_shape = (shape["num_layers"], shape["top_k"])
        self._arrays, self._on_finished = arrays, on_finished
        self._step = 0
        self._epoch = _versions.generation_epoch(engine)
        self._version = self._least_version = self._epoch or 0
        self._weights_changed = False
        self._digest = _versions.Digest(model)
        self._matched: Any = None  # prefix hits of the request that is being added
        self._evicting = self._detached = False
        self._weights = weights
        self._keys: Keys | None = None  # without a tier
        block_tokens: int = context.block_size_tokens
        arguments: dict[str, Any] = {
            **shape,
            "num_blocks": self.num_blocks,
            "block_tokens": block_tokens,
            "page_tokens": 16 if block_tokens % 16 == 0 else block_tokens,
            "null_blocks": [allocator.dummy_block_idx],
            "max_step_rows": context.max_tokens,
            # Of small models: a step takes less time than the landing thread may wait for a core.
            "max_steps_in_flight": 64,
            "engine": f"megatron-core {_versions.version()}",
        }
        self.store = Capture(**{**arguments, **store, "tier": tier})
        try:
            self._tokens = _versions.Tokens(context)
            self._take_over()
            if tier is not None:
                self._take_keys(same_weights)
            self._hooks.install()
            setattr(context, _ATTACHED, self)
        except BaseException:
            self._end()
            raise

    # -- what users call ----------------------------------------------------------------------
    def set_weight_version(self, version: int) -> None:
        """Steps from now on run under weights `version`: at least that before, and any after a
        reset of the engine or its context. The rows so far of running requests are kept: it is
        these with which their tokens were sampled. An engine's own generation epoch is followed
        without this call."""
        if version < self._least_version:
            raise ValueError(f"version: at least {self._least_version}, got {version}")
        self._guarded(self._change_weights, version)

    def forget(self, request_id: int) -> None:
        """A request that was evicted or suspended does not continue: releases its rows so far. Only
        memory depends on this call, and only where a request is given up behind Megatron's back:
        one that Megatron fails is forgotten without it, a reset forgets all, and a request with the
        same number and other tokens never has these rows."""
        self.requests.forget(request_id)

    def detach(self) -> None:
        """Puts Megatron's own methods back, and gives its own store of routing the rows of all
        blocks (missing rows are -1 there). Requests that go on have their rows from there. A second
        call does nothing."""
        if self._detached:
            return
        routing = self._guarded(lambda: dict(BlockRouting(self)))
        if routing is None:
            routing = self._no_rows()
        self._end()
        self._context.kv_block_allocator.block_routing.update(routing)

    def _end(self) -> None:
        self._detached = True
        self._hooks.remove()
        vars(self._context).pop(_ATTACHED, None)
        self.store.close()

    def _no_rows(self) -> dict[int, npt.NDArray[np.int16]]:
        """Of the blocks of the requests that run: where a block has no rows at all, Megatron fills
        zeros in, which are an expert."""
        table = self._context.request_to_kv_block_ids.numpy()
        shape = (self._context.block_size_tokens, *self._row_shape)
        blocks = np.unique(table[table >= 0]).tolist()
        return {block: np.full(shape, -1, np.int16) for block in blocks}

    def _take_over(self) -> None:
        """Blocks that requests have already."""
        table = self._context.request_to_kv_block_ids.numpy()
        blocks, users = np.unique(table[table >= 0], return_counts=True)
        if len(blocks):
            self.store.bind(blocks)
            self.store.retain(np.repeat(blocks, users - 1))

    def _take_keys(self, same_weights: bool) -> None:
        table = self._context.request_to_kv_block_ids.numpy()
        of_hash = getattr(self._context.kv_block_allocator, "kv_hash_to_block_id", {})
        cached = [int(block) for block in of_hash.values()] if same_weights else []
        unused = np.setdiff1d(np.array(cached, np.int32), table)
        if len(unused):
            self.store.bind(unused)
            self.store.release(unused)
        self._keys = Keys(self._context.block_size_tokens, self._version, cached)
        self._name_weights()

    def _name_weights(self) -> None:
        if self._weights is None:
            return
        try:
            self.store.name_weights(self._version, self._weights(self._version))
        except Exception as error:  # without a name their rows are for this process alone
            logger.error("waymark: weights failed: %s", error, exc_info=error)

    # -- the hooks ----------------------------------------------------------------------------
    def _prepare_hooks(self) -> None:
        context, engine, wrap = self._context, self._engine, self._wrap
        allocator, metadata = context.kv_block_allocator, context.moe_routing_metadata
        wrap(allocator, "allocate_memory_blocks", self._allocate)
        wrap(allocator, "release_memory_blocks", before=lambda blocks: self.store.release(blocks))
        wrap(allocator, "register_kv_block_hashes", before=self._register)
        wrap(allocator, "reset", after=self._reset)
        if hasattr(allocator, "retain_memory_blocks"):  # main
            wrap(allocator, "retain_memory_blocks", after=self._retain)
        wrap(allocator, "store_routing_per_block", self._store_routing)
        wrap(allocator, "reconstruct_routing_from_blocks", self._reconstruct)
        self._hooks.replace(allocator, "block_routing", BlockRouting(self))
        wrap(context, "_compute_prefix_match", self._match)
        wrap(context, "add_request", self._add)
        wrap(context, "release_memory_blocks_from_request_indexes", before=self._left)
        wrap(context, "evict_overflow_paused_requests", self._evict)
        wrap(context, "deallocate_inference_state_buffers", self._suspend)
        wrap(context, "reset", self._reset_context)
        wrap(metadata, "get_routing_indices", self._routing_indices)
        wrap(metadata, "enable_static_buffer_recording", after=self._capture.begin)
        if engine is not None:
            wrap(engine, "post_process_requests", self._post_process)
            wrap(engine, "_handle_failed_request", after=self.requests.forget)
            wrap(engine, "reset", after=self._begin_again)
            wrap(engine.controller, "_dynamic_step_forward_logits", self._forward)

    def _wrap(
        self, owner: Any, name: str, hook: Function | None = None, *,
        before: Function | None = None, after: Function | None = None,
    ) -> None:  # fmt: skip
        """As Hooks.wrap; before, after: instead of a hook, what is called around the method, with
        arguments of it."""

        def around(call: Function, *args: Any) -> Any:
            if before is not None:
                self._guarded(before, *args)
            result = call()
            if after is not None:
                self._guarded(after, *args)
            return result

        self._hooks.wrap(owner, name, hook or around, before or after)

    def _guarded(self, function: Function, *args: Any) -> Any:
        """Calls a function of ours: a failure ends the capture, and never reaches the engine."""
        if self.failure or self._detached:
            return None
        try:
            return function(*args)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            logger.error("waymark: capture ends: %s", self.failure, exc_info=error)
            with contextlib.suppress(Exception):
                self.requests.clear()
            return None

    # The parameters, but for `call`, are parameters of Megatron's method: Hooks.wrap.
    def _allocate(self, call: Function) -> Any:
        blocks = call()
        if blocks is not None:
            # At once: they are a view of the pool's stack, which the next release writes over.
            self._guarded(self.store.bind, blocks)
            if self._keys is not None:
                self._guarded(self._keys.allocate, blocks.tolist())
        return blocks

    def _register(self, block_ids: Any, block_hashes: Any) -> None:
        if self._keys is None:
            self.store.seal(block_ids, block_hashes)
        else:
            self._keys.register(block_ids)

    def _retain(self, block_ids: Any) -> None:
        if self._matched is None:
            self.store.retain(block_ids)

    def _reset(self) -> None:
        if self._keys is not None:
            self._keys.allocate(range(self.num_blocks))
        self._digest.unsure = True
        self.store.reset()

    def _match(self, call: Function) -> Any:
        """No method pins the blocks that a request hits: add_request counts them up itself, and may
        fail after it did and count them down again."""
        result = call()
        if self._matched is not None:
            self._matched = result
        return result

    def _add(self, call: Function, req: Any) -> Any:
        self._matched = ()
        try:
            result = call()
            self._guarded(self._added, req, self._matched)
        finally:
            self._matched = None
        return result

    def _added(self, request: Any, matched: Any) -> None:
        self._digest.unsure |= self._context.total_request_count == 1  # it was idle
        if not request.finished_chunk_token_count:
            self.requests.admit(request)
        if len(matched):
            self.store.retain(matched[0])
        row = self._context.total_request_count - 1
        if self._keys is not None and self._context.request_ids[row] == request.request_id:
            table = self._context.request_to_kv_block_ids[row].tolist()
            self._keys.admit(request.prompt_tokens, table)

    def _store_routing(self, call: Function, flat_routing: Any) -> None:
        self._guarded(self._end_forward, flat_routing)

    def _forward(self, call: Function) -> Any:
        """A forward that throws has written KV, or may have: its rows are lost."""
        try:
            return call()
        except BaseException:
            self._guarded(self._end_forward, None)
            raise

    def _routing_indices(self, call: Function) -> Any:
        return self._guarded(self._capture.get_routing_indices)

    def _evict(self, call: Function) -> Any:
        self._evicting = True
        try:
            return call()
        finally:
            self._evicting = False

    def _suspend(self, call: Function) -> Any:
        context = self._context
        self._digest.unsure = True
        if context.is_tensor_state_allocated and _versions.recompute_on_resume(context):
            self._guarded(self._keep_running, range(context.total_request_count))
        return call()

    def _reset_context(self, call: Function, preserve_prefix_cache: bool = False) -> Any:
        # Megatron also resets it after a forward without requests: of each CUDA graph that it
        # captures, and of an idle rank, which keeps the cache. Nobody takes what these recorded.
        graph = self._context.is_creating_cuda_graphs
        result = call()
        self._guarded(self._capture.forget)
        if not (graph or preserve_prefix_cache):
            self._guarded(self._begin_again)
        return result

    def _reconstruct(self, call: Function, block_ids: Any, total_routing_tokens: int) -> Any:
        return self._guarded(self._array_of_blocks, block_ids, total_routing_tokens)

    def _post_process(self, call: Function) -> Any:
        result = call()
        self._guarded(self._return, result)
        return result

    def _begin_again(self) -> None:
        """There are no requests, no block has rows, and the numbers of weights may begin again."""
        self.requests.clear()
        self._epoch = None
        self._least_version = 0
        self._weights_changed = False

    # -- a step -------------------------------------------------------------------------------
    def _end_forward(self, ids: Any) -> None:
        """The forward of a step has run, and the context still has its batch."""
        rows = self._context.active_token_count
        if not rows:
            return
        self.requests.next_step()
        self._follow_weights()
        self._step += 1
        if ids is not None and ids.shape != (rows, *self._row_shape):
            logger.warning(
                "waymark: step %d is not captured: the ids are %s, expected %s",
                self._step, list(ids.shape), [rows, *self._row_shape],
            )  # fmt: skip
            ids = None
        self.steps_without_ids += ids is None
        self.store.step(self._step, self._version, self._tokens.pairs(), ids, count=rows)
        self._capture.forget()

    # -- weights ------------------------------------------------------------------------------
    def _follow_weights(self) -> None:
        keys, epoch = self._keys, _versions.generation_epoch(self._engine)
        if epoch is not None and epoch != self._epoch:
            self._epoch = epoch
            self._change_weights(epoch)
        if self._digest.differs():
            self._change_weights(self._digest.unnamed, told=False)
        context, indexes = self._context, []
        if self._weights_changed:
            # What a request hits may be of older weights, and a full hit of another request writes
            # its last block again under the new ones.
            prefill = context.request_in_prefill_status_tensor[: context.total_request_count]
            indexes = [index for index, new in enumerate(prefill.tolist()) if new == 1]
            self._keep_running(indexes)
        if keys is None:
            return
        size = context.block_size_tokens
        for index in indexes:
            first = int(context.request_kv_length_offsets[index])
            last = first + int(context.request_query_lengths[index])
            table = context.request_to_kv_block_ids[index]
            keys.write(table[first // size : -(-last // size)].tolist())
        self.store.seal(*keys.seals())  # just before the step is told

    def _change_weights(self, version: int, told: bool = True) -> None:
        self._least_version = version if told else self._least_version
        if version == self._version:
            return
        if told:
            self._digest.told()
        if self._keys is not None and not self._step:  # which all blocks so far are taken to be of
            self._keys.forget_earlier()
        self._version = version
        self._weights_changed = True
        self._keep_running(range(self._context.total_request_count))
        if self._keys is not None and self._keys.change_weights(version, told):
            self._name_weights()

    def _keep_running(self, indexes: Sequence[int]) -> None:
        """Keeps the rows so far of requests in the context, between two of its updates. What a
        paused request wrote in its last step is not in its offset yet."""
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
            part = self._life(request_id, table, rows)
            blocks = tuple(table[table >= 0].tolist())
            self.requests.finish(request_id, part, blocks, self._count_missing)

    def _keep(self, request_id: int, table: Any, rows: int) -> None:
        self.requests.keep(request_id, self._life(request_id, table, rows))

    def _life(self, request_id: int, table: Any, rows: int) -> Part:
        part = self._part(table, rows)
        part.first = self.requests.rows_kept(request_id) if self._weights_changed else 0
        return part

    def _part(self, blocks: Any, rows: int, last_step: int = 0) -> Part:
        """Rows [0, rows) as they are now. last_step: as of Capture.take(); 0: of a request."""
        keys: Any = None
        if self._keys is not None and not last_step:
            last_step = self._step + 1
            keys = self._keys.of(blocks[: rows // self._context.block_size_tokens])
        try:
            taken = self.store.take(
                blocks, rows, last_step=last_step, keys=keys, version=self._version
            )
            return Part(taken, rows)
        except ResourceExhaustedError as error:
            return Part(None, rows, str(error))

    def _array_of_blocks(self, block_ids: Any, count: int) -> Any:
        """What reconstruct_routing_from_blocks returns: of a request that has finished since the
        last step, or of blocks that the engine asks for before they are released."""
        blocks = tuple(block_ids)
        finished = self.requests.with_blocks(blocks)
        if finished is None:
            return self._current_array(blocks, count)
        finished.count = count
        if self._engine is None:
            self.requests.take(finished.request_id)
            return self._hand_over(finished)
        finished.asked = True
        return self._array_of(finished)

    def _return(self, result: Any) -> None:
        """Requests have finished: Megatron returns no routing of one that was evicted."""
        for record in result[1]:
            request = record[-1]
            finished = self.requests.take(request.request_id)
            if finished is None:
                continue
            finished.count = len(request.prompt_tokens) + len(request.generated_tokens) - 1
            array = self._hand_over(finished)
            if not finished.asked:
                request.routing_indices = array

    def _hand_over(self, finished: Finished) -> Any:
        """The array, if it has not been read; and what a user wants to know of the request."""
        array = None if finished.asked else self._array_of(finished)
        if self._on_finished is None:
            finished.release()
            return array
        try:
            self._on_finished(finished)
        except Exception as error:
            logger.error("waymark: on_finished failed: %s", error, exc_info=error)
        return array

    def _array_of(self, finished: Finished) -> Any:
        if not self._arrays:
            return None
        return self._array(finished, f"request {finished.request_id}")

    def _array(self, finished: Finished, whose: str) -> Any:
        """None: its rows have not landed; a user may read them later."""
        try:
            return finished.array(_ENGINE_SECONDS)
        except DeadlineExceededError:
            logger.warning(
                "waymark: the rows of %s have not landed in %g s, and are not returned",
                whose, _ENGINE_SECONDS,
            )  # fmt: skip
            return None

    def _count_missing(self, rows: Rows) -> None:
        """Any thread."""
        if rows.valid.all():
            return
        reasons, counts = np.unique(rows.reasons[~rows.valid], return_counts=True)
        with self._missing_lock:
            for reason, count in zip(map(Reason, reasons), counts.tolist()):
                self.missing[reason] = self.missing.get(reason, 0) + count

    def _rows_of_block(self, block: int) -> npt.NDArray[np.int16] | None:
        """The rows of a block as it is now; None: it has none, or they have not landed."""
        if not 0 <= block < self.num_blocks:
            return None
        # Of whoever wrote them: a block of the prefix cache has no users.
        array = self._current_array((block,), self._context.block_size_tokens, (1 << 64) - 1)
        return None if array is None or (array < 0).all() else array

    def _current_array(self, blocks: tuple[int, ...], count: int, last_step: int = 0) -> Any:
        finished = Finished(-1, [self._part(blocks, count, last_step)], count)
        array = self._array(finished, f"blocks {list(blocks)}")
        finished.release()
        return array


def attach(
    target: Any,
    *,
    model: Any = None,
    arrays: bool = True,
    on_finished: Callable[[Finished], None] | None = None,
    store: dict[str, Any] | None = None,
    tier: Tier | None = None,
    weights: Callable[[int], str] | None = None,
    same_weights: bool = False,
) -> Attached:
    """Captures the routing of a live engine from its next step on. The engine's thread, between two
    steps. Rows of tokens that were computed before are missing (never written).

    target: a DynamicInferenceEngine; or a DynamicInferenceContext, whose owner reads the rows of a
    finished request by ``reconstruct_routing_from_blocks`` before the next step (Megatron does not
    ask for the rows of evicted requests). model: where the routers are; required with a
    context, by default the engine's. arrays: a finished request gets its rows as
    ``routing_indices``, or None if they have not landed after a second; False: it gets None, and
    nothing is read on the engine's thread. on_finished: called on the engine's thread with the
    Finished of every request, which any thread may read later; what it raises is logged. store:
    further arguments of Capture.

    tier: where rows are found of KV that the engine has, and this capture has no rows of. weights:
    the name that all engines have for the weights of a version; called on the engine's thread, once
    for each; None: no other process finds the rows. same_weights: all KV that the engine has was
    computed with the present weights; else its rows are not looked up.

    Refused, before anything is changed, if it cannot be captured, if a method, a parameter or an
    attribute that is needed is not there, or if it is attached already.
    """
    engine = target if hasattr(target, "controller") else None
    context = target if engine is None else _versions.read(engine, "context")
    _versions.check(context)
    if hasattr(context, _ATTACHED):
        raise Refused(
            "waymark: the context is attached already: detach() what attach() returned first"
        )
    if model is None and engine is None:
        raise Refused("waymark: model is refused: a context is captured with its model, got None")
    if model is None:
        model = _versions.read(engine, "controller", "inference_wrapped_model", "model")
    config = _versions.read(model, "config")
    _versions.check_model(config)
    layers = _versions.moe_layers(model)
    _versions.check_names(context, engine, layers)
    if given := sorted(_SET & set(store or {})):
        raise Refused(f"waymark: store: {given[0]!r} is no option: model and context decide it")
    if "tier" in (store or {}):
        raise Refused("waymark: store: 'tier' is refused: it is an argument of attach()")
    if not (on_finished is None or callable(on_finished)):
        raise Refused(f"waymark: on_finished: a function, got {on_finished!r}")
    layer_ids = [layer.layer_id for layer in layers]
    shape = {"num_layers": len(layers), "layer_ids": layer_ids, "top_k": config.moe_router_topk,
             "num_experts": config.num_moe_experts}  # fmt: skip
    return Attached(
        context, engine, model, layers, shape, arrays, on_finished, store=store or {},
        tier=tier, weights=weights, same_weights=same_weights,
    )  # fmt: skip
