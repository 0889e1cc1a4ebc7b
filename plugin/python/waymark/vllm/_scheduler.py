"""The half in the engine core's process: writes a schedule message for every SchedulerOutput, and
holds the last output of a request until the worker has sent its rows."""

from __future__ import annotations

import json
import time
from itertools import compress
from typing import Any

from .._core import VllmScheduler
from .._versions import WeightVersions
from . import _results, _versions
from ._exchange import NEXT, Result, Schedule
from ._hooks import Argument, logger, module, starting, timed, whole, wrap
from ._options import Options, asks, may_stop_at_string, of

_HOLD_SECONDS = 30.0


class _Request:
    """A request that has blocks, or had blocks before a preemption."""

    __slots__ = ("asked", "blocks", "lives", "number", "preempted")

    def __init__(self, number: int, asked: bool) -> None:
        self.number = number
        self.blocks = 0  # that were reported
        self.asked = asked
        self.preempted = False
        self.lives: list[_Life] = []


class _Life:
    """The rows of a request up to a preemption, or to its end."""

    __slots__ = ("limit", "tag")

    def __init__(self, tag: int, limit: int) -> None:
        self.tag = tag
        self.limit = limit  # rows behind it are of tokens that were not accepted


class _Finished:
    """A finished request that waits for its rows."""

    __slots__ = ("deadline", "lives", "output", "request", "rows")

    def __init__(self, request: Any, lives: list[_Life], rows: int) -> None:
        self.request = request
        self.lives = lives
        self.rows = rows
        self.output: Any = None
        self.deadline = time.monotonic() + _HOLD_SECONDS


class SchedulerHalf:
    """Of one Scheduler. The thread of the engine core."""

    def __init__(self, scheduler: Any, options: Options) -> None:
        kv_cache_config = scheduler.kv_cache_config
        group = _versions.kv_group(kv_cache_config)
        self.versions = WeightVersions()
        self.failure = ""
        self._group = group.number
        self._block_tokens = group.block_tokens
        self._derives = _versions.derives_decodes(scheduler.vllm_config, group)
        self._blocks_of = _versions.blocks_of_requests(scheduler, group)
        model_config = scheduler.vllm_config.model_config
        self._layers = model_config.get_total_num_hidden_layers() if options.layers == "all" else 0
        self._scheduler = scheduler
        hash_tokens = _versions.hash_block_tokens(scheduler, group)
        self._keys = bool(hash_tokens) and not self._derives  # of blocks
        self._writer = VllmScheduler(kv_cache_config.num_blocks, group.block_tokens, hash_tokens)
        self.weights(_versions.FIRST_WEIGHTS)
        self._step = 0
        self._last_number = 0
        self._next_tag = 0
        self._tags: list[int] = []  # requested since the last message
        self._kept = False  # the writer has something for the next message
        self._requests: dict[str, _Request] = {}
        self._external: dict[str, int] = {}  # tokens that a connector loads
        self._held: dict[str, _Finished] = {}
        self._untaken = False  # requests finished whose outputs come with this step's
        self._results: dict[int, Result | None] = {}  # by tag of a request that has not ended; None: not yet

    def fail(self, error: BaseException) -> None:
        """Ends the capture: later requests have no rows, with this reason."""
        if not self.failure:
            self.failure = f"{type(error).__name__}: {error}"
            logger.error("waymark: capture ends: %s", self.failure, exc_info=error)

    # -- what happens to requests -------------------------------------------------------------
    @timed("schedule")
    def scheduled(self, output: Any) -> None:
        """Writes the message of a schedule. One of decodes alone has none: the worker's store knows
        from their slots which blocks they begin and fill."""
        tokens, cached = output.total_num_scheduled_tokens, output.scheduled_cached_reqs
        if tokens:
            self._step += 1
            if (
                self._decodes is not None
                and not self._kept
                and tokens == len(output.num_scheduled_tokens)
                and not output.scheduled_new_reqs
                and not cached.resumed_req_ids
            ):
                output.waymark = self._decodes
                return
        step, version = (self._step, self._version) if tokens else (0, 0)
        self._kept = False
        self._writer.begin(step, version)
        self._report(output, cached)
        message = self._writer.finish_message()
        tags, self._tags = tuple(self._tags), []
        output.waymark = Schedule(message, step, version, tags, self._next_tag)

    def _report(self, output: Any, cached: Any) -> None:
        """The requests of a schedule whose blocks change."""
        group, requests = self._group, self._scheduler.requests
        scheduled = output.num_scheduled_tokens
        for data in output.scheduled_new_reqs:  # runner V2: also those that are resumed
            name = data.req_id
            blocks, computed = data.block_ids[group], data.num_computed_tokens
            self._start(requests[name], blocks, computed, scheduled[name])
        blocks_of = cached.new_block_ids
        for i in compress(range(len(blocks_of)), blocks_of):  # most are None
            name, blocks = cached.req_ids[i], blocks_of[i][group]
            computed, tokens = cached.num_computed_tokens[i], scheduled[name]
            if name in cached.resumed_req_ids:
                self._start(requests[name], blocks, computed, tokens)
            elif not (self._derives and tokens == 1):
                request, known = requests[name], self._requests[name]
                self._extend(known, name, computed)
                known.blocks += len(blocks)
                self._writer.append(known.number, blocks, 0, ())
                self._seal(known, request, computed + tokens)

    def _extend(self, known: _Request, name: str, computed: int) -> None:
        """Before other blocks, or the end of a request: those in which decodes have begun."""
        if self._derives:
            begun = -(-computed // self._block_tokens)
            if begun > known.blocks:
                blocks = self._blocks_of.get(name, ())[known.blocks : begun]
                self._writer.extend(known.number, [block.block_id for block in blocks])
                known.blocks = begun

    def _start(self, request: Any, blocks: list[int], computed: int, scheduled: int) -> None:
        name, hashes = request.request_id, request.block_hashes if self._keys else ()
        external = min(self._external.pop(name, 0), computed)
        known = self._requests.get(name)
        if known is None:
            self._last_number = number = self._last_number + 1
            known = self._requests[name] = _Request(number, self._asks(request))
            self._writer.new(known.number, blocks, computed - external, external, hashes)
        else:  # was preempted, or is a session with new input
            if not known.preempted:
                self._extend(known, name, computed)
            known.preempted = False
            self._limit_lives(known, request)
            self._writer.resume(known.number, blocks, computed - external, external, hashes)
        known.blocks = len(blocks)
        self._seal(known, request, computed + scheduled)

    @staticmethod
    def _asks(request: Any) -> bool:
        return asks(request.sampling_params, request.resumable)

    @staticmethod
    def _limit_lives(known: _Request, request: Any) -> None:
        """Outputs that were in flight at a preemption have arrived, or are dropped."""
        for life in known.lives:
            life.limit = min(life.limit, request.num_tokens - 1)

    def _tag(self) -> int:
        self._next_tag = tag = self._next_tag + 1
        self._tags.append(tag)
        self._kept = True
        self._results[tag] = None
        return tag

    def _seal(self, known: _Request, request: Any, computed: int) -> None:
        """The blocks that are full of accepted tokens."""
        if not self._derives:
            full = min(computed, request.num_tokens)
            hashes = request.block_hashes if self._keys else ()
            self._writer.append(known.number, [], full, hashes)

    @timed("preempt")
    def preempted(self, request: Any) -> None:
        """Before the blocks are freed."""
        known = self._requests.get(request.request_id)
        if known is None or known.preempted:
            return
        known.preempted = True
        rows = request.num_computed_tokens
        self._extend(known, request.request_id, rows)
        self._seal(known, request, rows)
        tag = self._tag() if known.asked and rows > 0 else None
        self._kept = True
        self._writer.preempt(known.number, rows, tag)
        if tag is not None:
            known.lives.append(_Life(tag, rows))

    @timed("finish")
    def finished(self, request: Any, with_rows: bool) -> None:
        """Before the blocks are freed. An aborted request has no rows."""
        name = request.request_id
        self._external.pop(name, None)
        known = self._requests.pop(name, None)
        if known is None:
            return
        rows = 0
        if with_rows and known.asked and not known.preempted:
            rows = min(request.num_computed_tokens, request.num_tokens - 1)
        tag = self._tag() if rows > 0 else None
        self._kept = True
        if not known.preempted:
            self._extend(known, name, request.num_computed_tokens)
            self._seal(known, request, request.num_computed_tokens)
        self._writer.finish(known.number, rows, tag)
        if not with_rows or not known.asked:
            for life in known.lives:
                del self._results[life.tag]
            return
        self._limit_lives(known, request)
        if tag is not None:
            known.lives.append(_Life(tag, rows))
        if known.lives:
            self._held[name] = _Finished(request, known.lives, request.num_tokens - 1)
            self._untaken = True

    def ended(self, request: Any, aborted: bool, with_rows: bool) -> None:
        """Before the blocks are freed. An aborted request may have ended at a stop string: the front
        end waits for an output, with the rows, or drops it if a user aborted the request. Does not
        raise."""
        try:
            stopped = aborted and may_stop_at_string(request.sampling_params, request.resumable)
            if not self.failure:
                try:
                    self.finished(request, with_rows or stopped)
                except Exception as error:
                    self.fail(error)
            if stopped:
                self._hold(request).output = _results.stopped_output(request)
            elif self.failure and with_rows and self._asks(request):
                self._hold(request)  # its output has the reason
                self._untaken = True
        except Exception as error:
            self.fail(error)

    def _hold(self, request: Any) -> _Finished:
        return self._held.setdefault(request.request_id, _Finished(request, [], 0))

    def copied(self, group: int, source: int, copy: int) -> None:
        """A hit ends inside a block, which is copied on write."""
        if group == self._group:
            self._kept = True
            self._writer.copy(source, copy)

    def reset(self) -> None:
        """The prefix cache was reset."""
        self._kept = True
        self._writer.reset()

    def loads(self, name: str, tokens: int) -> None:
        """A connector loads tokens of a request."""
        self._external[name] = tokens

    def weights(self, name: str) -> None:
        """Steps from here on run with other weights."""
        self._version = self.versions.number(name)
        self._decodes = Schedule(None, NEXT, self._version, (), 0) if self._derives else None
        self._names = json.dumps(self.versions.names)

    # -- rows ---------------------------------------------------------------------------------
    @property
    def holds(self) -> bool:
        """Whether an output waits for its rows."""
        return bool(self._held)

    @timed("outputs")
    def outputs(
        self, schedule: Schedule | None, results: tuple[Result, ...], outputs: dict[int, Any]
    ) -> None:
        """Takes outputs that wait for rows out of ``outputs``, which belong to ``schedule``; adds
        those whose rows are there."""
        for result in results:
            if result.tag in self._results:
                self._results[result.tag] = result
        if not self._held:
            return
        if self._untaken:
            self._untaken = False
            self.take(outputs)
        # A worker without a forward has sent all rows that it was asked for, or there are none.
        answered = schedule.last_tag if schedule is not None and not schedule.step else 0
        now = time.monotonic()
        for name, held in list(self._held.items()):
            if held.output is None:  # vLLM returns none
                del self._held[name]
                for life in held.lives:
                    del self._results[life.tag]
            elif (
                all(self._results[one.tag] or one.tag <= answered for one in held.lives)
                or self.failure
                or now > held.deadline
            ):
                del self._held[name]
                self._complete(held)
                _results.add_output(outputs, held.request.client_index, held.output)

    def take(self, outputs: dict[int, Any]) -> None:
        """Takes the outputs that wait for rows, or for the reason why there are none."""
        for of_client in outputs.values():
            of_client.outputs = [
                one
                for one in of_client.outputs
                if one.finish_reason is None or not self._take(one)
            ]

    def release(self, outputs: dict[int, Any]) -> None:
        """Adds every output that waits, without rows."""
        held, self._held = self._held, {}
        for one in held.values():
            if one.output is not None:
                _results.fill_failure(one.output, self.failure)
                _results.add_output(outputs, one.request.client_index, one.output)

    def _take(self, output: Any) -> bool:
        held = self._held.get(output.request_id)
        if held is None or held.output is not None:
            return False
        held.output = output
        return True

    def _complete(self, held: _Finished) -> None:
        try:
            lives = [(self._results.pop(life.tag), life.limit) for life in held.lives]
            if not lives or (self.failure and any(one is None for one, _ in lives)):
                _results.fill_failure(held.output, self.failure or "nothing was computed")
                return
            _results.fill(
                held.output, held.request, lives, held.rows, self._names, self._layers
            )
        except Exception as error:
            self.fail(error)


def attach(scheduler: Any, options: Options) -> None:
    """Starts the capture of a Scheduler that was just made."""
    half = SchedulerHalf(scheduler, options)
    manager = scheduler.kv_cache_manager
    scheduler._waymark = manager.block_pool._waymark = half
    hook_pool(type(manager.block_pool))
    for one in manager.coordinator.single_type_managers:
        hook_manager(type(one))
    if scheduler.connector is not None:
        hook_connector(type(scheduler.connector), scheduler.connector, half)
    hook_weights(module("vllm.v1.engine.core").EngineCore)


def _half(owner: Any) -> SchedulerHalf | None:
    half: SchedulerHalf | None = getattr(owner, "_waymark", None)
    return None if half is None or half.failure else half


def hook(scheduler: type) -> None:
    """Wraps the methods of a scheduler's class, before one is made."""

    def init(function: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> None:
            function(self, *args, **kwargs)
            options = of(self.vllm_config)
            if options is None or hasattr(self, "_waymark"):  # by the class that this one extends
                return
            with starting(), whole():
                attach(self, options)

        return call

    def schedule(function: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = function(self, *args, **kwargs)
            if half := _half(self):
                try:
                    half.scheduled(output)
                except Exception as error:
                    half.fail(error)
            return output

        return call

    def preempt(function: Any) -> Any:
        def call(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if half := _half(self):
                try:
                    half.preempted(request)
                except Exception as error:
                    half.fail(error)
            return function(self, request, *args, **kwargs)

        return call

    def free(function: Any) -> Any:
        status = module("vllm.v1.request").RequestStatus
        without = {status.FINISHED_ABORTED, status.FINISHED_IGNORED, status.FINISHED_ERROR}

        def call(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            half: SchedulerHalf | None = getattr(self, "_waymark", None)
            if half is not None:
                aborted = request.status == status.FINISHED_ABORTED
                half.ended(request, aborted, request.status not in without)
            return function(self, request, *args, **kwargs)

        return call

    def update_from_output(function: Any) -> Any:
        def call(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
            outputs = function(self, scheduler_output, model_runner_output)
            half = getattr(self, "_waymark", None)
            results = getattr(model_runner_output, "waymark", ())
            if half is not None and (results or half.holds):
                try:
                    half.outputs(getattr(scheduler_output, "waymark", None), results, outputs)
                except Exception as error:
                    half.fail(error)
                    half.take(outputs)
                    half.release(outputs)
            return outputs

        return call

    def has_finished_requests(function: Any) -> Any:
        def call(self: Any) -> bool:
            half = getattr(self, "_waymark", None)
            return (half is not None and half.holds) or bool(function(self))

        return call

    wrap(scheduler, "__init__", init)
    wrap(scheduler, "schedule", schedule)
    wrap(scheduler, "_preempt_request", preempt)
    wrap(scheduler, "_free_request", free)
    wrap(scheduler, "update_from_output", update_from_output)
    wrap(scheduler, "has_finished_requests", has_finished_requests)


def hook_pool(pool: type) -> None:
    """Wraps the reset of the prefix cache."""

    def reset_prefix_cache(function: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            done = function(self, *args, **kwargs)
            if done and (half := _half(self)):
                try:
                    half.reset()
                except Exception as error:
                    half.fail(error)
            return done

        return call

    wrap(pool, "reset_prefix_cache", reset_prefix_cache)


def hook_weights(core: type) -> None:
    """Wraps what names the weights."""

    def set_weight_version(function: Any) -> Any:
        name = Argument(function, "weight_version")

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(self, *args, **kwargs)
            if half := _half(self.scheduler):
                try:
                    half.weights(name(args, kwargs))
                except Exception as error:
                    half.fail(error)
            return result

        return call

    wrap(core, "set_weight_version", set_weight_version)


def hook_manager(manager: type) -> None:
    """Wraps the copy on write of a KV cache manager."""

    def apply_cow(function: Any) -> Any:
        source, copy = Argument(function, "source_block"), Argument(function, "cow_block")

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if half := _half(self.block_pool):
                try:
                    blocks = [one(args, kwargs).block_id for one in (source, copy)]
                    half.copied(self.kv_cache_group_id, *blocks)
                except Exception as error:
                    half.fail(error)
            return function(self, *args, **kwargs)

        return call

    wrap(manager, "_apply_cow", apply_cow)


def hook_connector(kind: type, connector: Any, half: SchedulerHalf) -> None:
    """Wraps what tells a connector how many tokens of a request it loads."""

    def update_state_after_alloc(function: Any) -> Any:
        def call(self: Any, request: Any, blocks: Any, tokens: int) -> Any:
            if tokens and (half := _half(self)):
                half.loads(request.request_id, tokens)
            return function(self, request, blocks, tokens)

        return call

    connector._waymark = half
    wrap(kind, "update_state_after_alloc", update_state_after_alloc)
