"""The half in the engine core's process: writes a schedule message for every SchedulerOutput, and
holds the last output of a request until the worker has sent its rows."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from .._versions import WeightVersions
from . import _results, _versions
from ._exchange import NEXT, ByKey, Ended, Result, Schedule
from ._hooks import logger, module, timed
from ._options import Options, asks, may_stop_at_string
from ._tier import Tails
from ._weights import FIRST_WEIGHTS, Weights
from ._writer import Blocks, Writer

_HOLD_SECONDS = 30.0


@dataclass(slots=True)
class _Life:
    """The rows of a request up to a preemption, or to its end."""

    tag: int
    limit: int  # rows behind it are of tokens that were not accepted


@dataclass(slots=True)
class _Request(Blocks):
    """A request that has blocks, or had blocks before a preemption."""

    asked: bool = True
    lives: list[_Life] = field(default_factory=list)
    hits: int = 0  # leading blocks of the present life whose KV was there, or is loaded whole
    hit_version: int = 0
    mixed: bool = False  # its KV is of several weights: no other engine's has its keys


@dataclass(slots=True)
class _Finished:
    """A finished request that waits for its rows."""

    request: Any
    lives: list[_Life]
    rows: int
    failure: str = ""  # why there are no rows
    output: Any = None
    since: float = field(default_factory=time.monotonic)


class SchedulerHalf:
    """Of one Scheduler. The thread of the engine core."""

    def __init__(self, scheduler: Any, options: Options) -> None:
        kv_cache_config = scheduler.kv_cache_config
        group = _versions.kv_group(kv_cache_config)
        self.versions, self._version = WeightVersions(), 0
        self.failure = ""
        # Rows of a step that is late are waited for.
        self._hold_seconds = _HOLD_SECONDS + _versions.late_seconds(scheduler.vllm_config)
        self._group = group.number
        self._block_tokens = group.block_tokens
        self._blocks_of = _versions.blocks_of_requests(scheduler, group)
        model_config = scheduler.vllm_config.model_config
        self._layers = model_config.get_total_num_hidden_layers() if options.layers == "all" else 0
        self._scheduler = scheduler
        self._publishes = bool(options.publish)
        hash_tokens = _versions.hash_block_tokens(scheduler, group)
        self._ended: list[Ended] = []  # since the last message, of requests that are published
        # Of blocks, where they are loaded.
        self._keys = bool(hash_tokens) and scheduler.vllm_config.kv_transfer_config is not None
        self._writer_of = kv_cache_config.num_blocks, group.block_tokens, hash_tokens
        self._tails: Tails | None = None
        if options.tier and self._keys:
            self._tails = Tails(options.tier, model_config.model, group.block_tokens, hash_tokens)
        # With a tier: the version of the KV of each block that has a key, and of all before it; 0:
        # of several. Read when the weights have changed since the prefix cache was reset.
        self._block_versions: list[int] = [0] * kv_cache_config.num_blocks
        self._changed = False
        self._sends_tails = self._tails is not None and _versions.sends_kv(scheduler.vllm_config)
        self._begin()
        self.executors: Weights | None = None
        """Whether the workers may have other weights; None: before the first request."""
        self._changes = 0
        self.weights(FIRST_WEIGHTS)
        self._step = 0
        self._next_tag = 0
        self._held: dict[int, _Finished] = {}  # by id() of the request: its name may come again
        # By name: requests finished whose outputs come with this step's.
        self._untaken: dict[str, _Finished] = {}
        self._without: dict[str, str] = {}  # requests that get no rows, since the capture had ended

    def _begin(self) -> None:
        """No request has blocks."""
        self._writer = Writer(*self._writer_of)
        self._tags: list[int] = []  # requested since the last message
        self._by_key: dict[int, ByKey] = {}  # of these
        self._reset = False  # since the last message
        self._requests: dict[str, _Request] = {}
        # Of a request whose first tokens are loaded: those found in the prefix cache, those loaded.
        self._cached: dict[str, tuple[int, int]] = {}
        self._loading: list[str] = []  # since the last schedule, by loads that do not end with it
        # Requests that began with, or behind, a load that ends with their forward: until the output
        # of that step nothing is known of it, and no block that they fill gets a key.
        self._unsure: set[str] = set()
        self._unsure_step = 0
        # By tag of a request that has not ended; None: not yet.
        self._results: dict[int, Result | None] = {}

    def fail(self, error: BaseException) -> None:
        """Ends the capture until the next reset of the prefix cache: requests that are there until
        then have no rows, with this reason."""
        if not self.failure:
            self.failure = f"{type(error).__name__}: {error}"
            logger.error("waymark: capture ends: %s", self.failure, exc_info=error)
            for held in self._held.values():
                held.failure = self.failure

    def _begin_again(self) -> None:
        """The prefix cache was reset, so that no block is known to be anything."""
        for known in self._requests.values():
            self._publish(known.lives, 0)
        preempted = module("vllm.v1.request").RequestStatus.PREEMPTED
        for name, request in self._scheduler.requests.items():
            if request.status == preempted:  # the rows of its first life are lost
                self._without[name] = self.failure
        self._begin()
        logger.warning("waymark: capture begins again, with the prefix cache: it had ended (%s)",
                       self.failure)  # fmt: skip
        self.failure = ""

    # -- what happens to requests -------------------------------------------------------------
    @timed("schedule")
    def scheduled(self, output: Any) -> None:
        """Writes the message of a schedule. One that changes no request's blocks has none."""
        tokens, cached = output.total_num_scheduled_tokens, output.scheduled_cached_reqs
        if self.executors is not None and self.executors.changes != self._changes:
            self.weights("")
        if tokens:
            self._step += 1
            if not (
                any(cached.new_block_ids)
                or output.scheduled_new_reqs
                or cached.resumed_req_ids
                or self._writer.pending
                or self._ended
                or self._loading
                or self._unsure
            ):
                output.waymark = self._unchanged
                return
        step, version = (self._step, self._version) if tokens else (0, 0)
        self._report(output, cached)
        messages = self._writer.messages(step, version)
        tags, self._tags = tuple(self._tags), []
        reset, self._reset = self._reset, False
        ended, self._ended = tuple(self._ended), []
        by_key, self._by_key = self._by_key, {}
        output.waymark = Schedule(
            messages, step, version, tags, self._next_tag, reset, ended, by_key,
            self._public_name(version),
        )  # fmt: skip

    def _report(self, output: Any, cached: Any) -> None:
        """The requests of a schedule whose blocks change."""
        group, requests = self._group, self._scheduler.requests
        scheduled = output.num_scheduled_tokens
        loading, self._loading = self._loading, []
        for name in loading:  # of no schedule until their loads have ended
            blocks = [block.block_id for block in self._blocks_of[name]]
            self._start(requests[name], blocks, sum(self._cached[name]), 0)
        began = {data.req_id for data in output.scheduled_new_reqs} | set(cached.resumed_req_ids)
        if self._cached and any(self._cached.get(name, (0, 0))[1] for name in began):
            self._unsure_step = self._step
            self._unsure |= began
        elif self._unsure:
            self._unsure |= began
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
            else:
                request, known = requests[name], self._requests[name]
                self._writer.append(known, blocks)
                self._seal(known, request, computed + tokens)

    def _start(self, request: Any, blocks: list[int], computed: int, scheduled: int) -> None:
        name, hashes = request.request_id, self._hashes(request)
        local, external = self._cached.pop(name, (computed, 0))
        known = self._requests.get(name)
        if known is None:
            known = self._requests[name] = _Request(asked=self.asks(request))
        else:  # was preempted, has loaded, or is a session with new input
            self._limit_lives(known, request)
        if not known.running:
            known.hits = (local + external) // self._block_tokens
            known.hit_version = self._version
            hits, versions = blocks[: local // self._block_tokens], self._block_versions
            known.mixed = self._changed and any(versions[one] != self._version for one in hits)
        self._writer.start(known, blocks, local, external, hashes)
        self._note_versions(known, blocks[local // self._block_tokens : known.sealed])
        self._seal(known, request, computed + scheduled)

    def _note_versions(self, known: _Request, blocks: list[int]) -> None:
        if self._tails is not None:
            for block in blocks:
                self._block_versions[block] = 0 if known.mixed else self._version

    def asks(self, request: Any) -> bool:
        """Whether a request gets rows."""
        return asks(request.sampling_params, request.resumable) and (
            request.request_id not in self._without
        )

    @staticmethod
    def _limit_lives(known: _Request, request: Any) -> None:
        """Outputs that were in flight at a preemption have arrived, or are dropped."""
        for life in known.lives:
            life.limit = min(life.limit, request.num_tokens - 1)

    def _tag(self, known: _Request, request: Any, rows: int, ends: bool) -> int:
        """A snapshot of rows [0, rows) is taken. ends: with the request."""
        self._next_tag = tag = self._next_tag + 1
        self._tags.append(tag)
        self._results[tag] = None
        if self._tails is not None:
            hashes = self._hashes(request)
            keys = self._writer.keys(hashes, known.hits)
            full = rows // self._block_tokens * self._block_tokens
            sends = ends and self._sends_tails and full < rows
            tail = self._tails.take(request, hashes, self._public_name(known.hit_version))
            if keys or tail or sends:
                by_key = ByKey(known.hit_version, keys, tail, full if sends else -1)
                self._by_key[tag] = by_key
        return tag

    def _hashes(self, request: Any) -> Any:
        """Of the hash blocks of a request. In a tier none of a LoRA adapter: they have its name,
        and not its revision."""
        if not self._keys or (self._tails is not None and request.lora_request is not None):
            return ()
        return request.block_hashes

    def _public_name(self, version: int) -> str:
        """What other engines call weights; nothing if nobody named them."""
        if self._tails is None:
            return ""
        name = self.versions.name(version)
        return self._tails.weights if name == FIRST_WEIGHTS else name

    def _seal(self, known: _Request, request: Any, computed: int) -> None:
        """The blocks that are full of accepted tokens."""
        if request.request_id not in self._unsure:
            full, sealed = min(computed, request.num_tokens), known.sealed
            mixed = known.mixed and self._tails is not None
            hashes = () if mixed else self._hashes(request)
            self._writer.seal(known, full, hashes)
            self._note_versions(known, known.blocks[sealed : known.sealed])

    @timed("preempt")
    def preempted(self, request: Any) -> None:
        """Before the blocks are freed."""
        known = self._requests.get(request.request_id)
        if known is None or not known.running:
            return
        rows = request.num_computed_tokens
        self._seal(known, request, rows)
        tag = self._tag(known, request, rows, False) if known.asked and rows > 0 else None
        self._writer.leave(known, rows, tag)
        if tag is not None:
            known.lives.append(_Life(tag, rows))

    @timed("finish")
    def finished(self, request: Any, with_rows: bool) -> None:
        """Before the blocks are freed. An aborted request has no rows."""
        name = request.request_id
        known = self._requests.pop(name, None)
        if known is None:
            return
        rows = 0
        if with_rows and known.asked and known.running:
            rows = min(request.num_computed_tokens, request.num_tokens - 1)
        tag = self._tag(known, request, rows, True) if rows > 0 else None
        if known.running:
            self._seal(known, request, request.num_computed_tokens)
            self._writer.leave(known, rows, tag)
        if not with_rows or not known.asked:
            for life in known.lives:
                del self._results[life.tag]
            self._publish(known.lives, 0)
            return
        self._limit_lives(known, request)
        if tag is not None:
            known.lives.append(_Life(tag, rows))
        if known.lives:
            lives = self._publish(known.lives, request.num_tokens - 1)
            held = _Finished(request, lives, request.num_tokens - 1)
            self._held[id(request)] = self._untaken[name] = held

    def _publish(self, lives: list[_Life], rows: int) -> list[_Life]:
        """The worker joins the lives of a request that has ended, and publishes so many rows: their
        handle is the result of the last life. Returns the lives that have results."""
        if not self._publishes or not lives:
            return lives
        self._ended.append(Ended(tuple((life.tag, life.limit) for life in lives), rows))
        for life in lives[:-1]:
            self._results.pop(life.tag, None)
        return lives[-1:]

    def ended(self, request: Any, aborted: bool, with_rows: bool) -> None:
        """Before the blocks are freed. An aborted request may have ended at a stop string: the
        front end waits for an output, with the rows, or drops it if a user aborted the request.
        Does not raise."""
        try:
            name = request.request_id
            stopped = aborted and may_stop_at_string(request.sampling_params, request.resumable)
            if not self.failure:
                try:
                    self.finished(request, with_rows or stopped)
                except Exception as error:
                    self.fail(error)
            failure = self._without.pop(name, self.failure)
            if self._cached.pop(name, None) and name in self._loading:
                self._loading.remove(name)
            if stopped:
                self._hold(request, failure).output = _results.stopped_output(request)
            elif failure and with_rows and self.asks(request):
                self._untaken[name] = self._hold(request, failure)  # its output has the reason
        except Exception as error:
            self.fail(error)

    def _hold(self, request: Any, failure: str) -> _Finished:
        return self._held.setdefault(id(request), _Finished(request, [], 0, failure))

    def copied(self, group: int, source: int, copy: int) -> None:
        """A hit ends inside a block, which is copied on write."""
        if group == self._group:
            self._writer.copy(source, copy)

    def reset(self) -> None:
        """The prefix cache was reset: no request has blocks."""
        if self.failure:
            self._begin_again()
        self._reset, self._changed = True, False
        self._writer.reset()

    def loads(self, name: str, local: int, external: int, later: bool) -> None:
        """A request got its blocks: its first `local` tokens are in the prefix cache, and a
        connector loads the next `external` ones. later: it is not scheduled before they are
        there."""
        self._cached[name] = local, external
        if later:
            self._loading.append(name)

    def freed(self, request: Any) -> None:
        """Before vLLM frees the blocks of a request that goes on, because its load failed."""
        known = self._requests.get(request.request_id)
        if known is not None and known.running:
            self._writer.leave(known, 0, None)

    def arrived(self, schedule: Schedule | None) -> None:
        """The output of a schedule: which of its loads failed is known."""
        if self._unsure and schedule is not None and schedule.step >= self._unsure_step:
            self._unsure.clear()

    def weights(self, name: str) -> None:
        """Steps from here on run with other weights; name "": nobody has named them."""
        if self.executors is not None:
            self._changes = self.executors.changes
        number = self.versions.number(name) if name else self.versions.unnamed()
        changed, self._version = self._version, number
        if changed not in (0, self._version):
            self._changed = True
            for known in self._requests.values():
                known.mixed = True
        self._unchanged = Schedule((), NEXT, self._version, (), 0, False)
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
            self.take(outputs)
            self._untaken.clear()
        # A worker without a forward has sent all rows that it was asked for, or there are none; and
        # it publishes for longer.
        idle = schedule is not None and not schedule.step and not self._publishes
        answered = schedule.last_tag if schedule is not None and idle else 0
        now = time.monotonic()
        for name, held in list(self._held.items()):
            if held.output is None:  # vLLM returns none
                del self._held[name]
                for life in held.lives:
                    self._results.pop(life.tag, None)
            elif (
                held.failure
                or all(self._results[one.tag] or one.tag <= answered for one in held.lives)
                or now > held.since + self._hold_seconds
            ):
                self._complete(held)
                _results.add_output(outputs, held.request.client_index, held.output)
                del self._held[name]

    def take(self, outputs: dict[int, Any]) -> None:
        """Takes the outputs that wait for rows, or for the reason why there are none."""
        for of_client in outputs.values():
            of_client.outputs = [
                one
                for one in of_client.outputs
                if one.finish_reason is None or not self._take(one)
            ]

    def release(self, outputs: dict[int, Any]) -> None:
        """Adds every output that waits, without rows. Does not raise: what cannot be added waits
        for the next step's outputs."""
        for name, held in list(self._held.items()):
            try:
                if held.output is not None:
                    _results.fill_failure(held.output, held.request, held.failure)
                    _results.add_output(outputs, held.request.client_index, held.output)
                    del self._held[name]
            except Exception as error:
                self.fail(error)

    def _take(self, output: Any) -> bool:
        held = self._untaken.get(output.request_id)
        if held is None or held.output is not None:
            return False
        held.output = output
        return True

    def _give_tail(self, held: _Finished, last: Result | None) -> None:
        if self._tails is not None and last is not None and last.tail:
            request = held.request
            self._tails.give(
                held.output, request, self._hashes(request), last.tail, self._public_name
            )

    def _complete(self, held: _Finished) -> None:
        try:
            lives = [(self._results.pop(life.tag, None), life.limit) for life in held.lives]
            self._give_tail(held, lives[-1][0] if lives else None)
            if held.failure or not lives:
                why = held.failure or "nothing was computed"
                _results.fill_failure(held.output, held.request, why)
                return
            _results.fill(
                held.output, held.request, lives, held.rows, self._names, self._layers
            )
        except Exception as error:
            self.fail(error)
            _results.fill_failure(held.output, held.request, self.failure)
