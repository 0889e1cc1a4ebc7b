"""The half in the engine core: hears of blocks where vLLM schedules them, and hands out the rows
that come back with the output of a step."""

from __future__ import annotations

from itertools import compress
from typing import Any

from .._hooks import Part, ends, guarded
from .._signed import missing
from . import _checks, _tier
from ._checks import logger
from ._events import Array, Output, Schedule, Start
from ._options import Options, asks, weights_of


class _Request:
    """A request from its first schedule to its end, preemptions included."""

    __slots__ = ("asked", "blocks", "emitted", "life", "loaded", "mixed", "request", "sealed")

    def __init__(self, request: Any, life: int) -> None:
        self.request, self.life = request, life
        self.asked = asks(request.sampling_params, request.resumable)
        self.blocks: list[int] | None = None  # that the worker knows; None: it has none
        # Rows that need not be returned, or have been.
        start = getattr(request.sampling_params, "routed_experts_prompt_start", 0)
        self.emitted: int = min(start, request.num_prompt_tokens)
        # With a tier: blocks that have been sealed; leading blocks that were loaded; whether KV is
        # of other weights than those of now, or of an adapter, so that it has no keys.
        self.sealed, self.loaded, self.mixed = 0, 0, False


class SchedulerConnector(Part):
    """In the place of vLLM's AuxOutputSchedulerConnector. The thread of the engine core."""

    log = logger

    def __init__(self, scheduler: Any, options: Options) -> None:
        cache = scheduler.kv_cache_manager
        self._group, self._block = _checks.kv_group(scheduler.kv_cache_config)
        self._blocks_of = cache.coordinator.single_type_managers[self._group].req_to_blocks
        self._evict = cache.evict_blocks
        self._hash = getattr(scheduler, "hash_block_size", None) or self._block
        self._keys = bool(options.tier)
        self._generation = self._lives = 0
        self.version, self._weights = 1, weights_of(options)
        self._changes = _tier.changes()
        self._output: Output | None = None  # of which `at` has the places of requests
        self._at: dict[str, int] = {}
        self._like: Array | None = None  # an array with the layers and K of this model
        self._requests: dict[str, _Request] = {}
        # Whose tokens the rows of a block's page are: the hashes of the request that was given the
        # block, and the block's place in it.
        blocks = scheduler.kv_cache_config.num_blocks
        self._owner: list[Any] = [None] * blocks
        self._place: list[int] = [-1] * blocks
        # With a tier: of the KV of a block, and of all before; 0: of several.
        self._versions: list[int] = [0] * blocks
        # Tokens that were found here, and until where a connector has more.
        self._external: dict[str, tuple[int, int]] = {}
        connector = getattr(scheduler, "connector", None)
        if connector is not None and not _checks.asks_before_loads():
            self._hear_of_loads(connector)
        elif connector is not None and not self._keys:
            logger.warning("waymark: nothing is loaded by a KV connector, since its rows would "
                           "be missing: give the option tier")  # fmt: skip
        self._begin()

    def _hear_of_loads(self, connector: Any) -> None:
        """vLLM 0.32 tells its KV connector alone what the three methods below tell in 0.33."""
        ask, tell = connector.get_num_new_matched_tokens, connector.update_state_after_alloc

        def asked(request: Any, num_computed_tokens: int) -> Any:
            self._external[request.request_id] = num_computed_tokens, num_computed_tokens
            return ask(request, num_computed_tokens)

        def told(request: Any, blocks: Any, num_external_tokens: int) -> Any:
            if num_external_tokens:
                local, _ = self._external[request.request_id]
                self._external[request.request_id] = local, local + num_external_tokens
                self.request_loading(request, local + num_external_tokens)
            return tell(request, blocks, num_external_tokens)

        connector.get_num_new_matched_tokens, connector.update_state_after_alloc = asked, told

    def _begin(self) -> None:
        self._next = Schedule(self._generation, self.version)
        self._prefilling: set[str] = set()
        self._loading: list[tuple[Any, int]] = []  # requests, and tokens of which KV will be there

    # -- blocks -------------------------------------------------------------------------------
    @guarded
    def build_connector_meta(self, output: Any, requests: dict[str, Any]) -> Schedule | None:
        """What the worker has to know before the forward of this schedule. None: the capture has
        ended."""
        if self._keys and self._changes != _tier.changes():
            self.name_weights("")
        copies = {dst: src for src, dst in getattr(output, "kv_cache_block_copies", None) or ()}
        starts = [(one, [block.block_id for block in self._blocks_of[one.request_id]], tokens)
                  for one, tokens in self._loading]  # fmt: skip
        self._loading.clear()
        starts += [(requests[new.req_id], new.block_ids[self._group], new.num_computed_tokens)
                   for new in output.scheduled_new_reqs]  # fmt: skip
        cached = output.scheduled_cached_reqs
        given = cached.new_block_ids
        for i in compress(range(len(given)), given):  # most are None
            name, blocks = cached.req_ids[i], given[i][self._group]
            if name in cached.resumed_req_ids:
                starts.append((requests[name], blocks, cached.num_computed_tokens[i]))
            elif blocks:
                self._grow(name, blocks)
        # They may hit what has just been given to others, in whatever order vLLM names them.
        for request, blocks, computed in starts:
            local, _ = self._external.get(request.request_id, (computed, computed))
            self._own(request, blocks, local // self._block)
        for request, blocks, computed in starts:
            self._start(request, blocks, computed, copies)
        # Requests that are prefilled to their end.
        for name in [one for one in self._prefilling if one in output.num_scheduled_tokens]:
            request, known = requests[name], self._requests[name]
            count = output.num_scheduled_tokens[name]
            if request.num_computed_tokens + count >= request.num_tokens:
                self._prefilling.discard(name)
                if known.asked:
                    self._next.reads[name] = known.emitted
        schedule = self._next
        schedule.rows, schedule.version = output.total_num_scheduled_tokens, self.version
        schedule.weights = self._weights
        self._next = Schedule(self._generation, self.version)
        return schedule

    def _start(
        self, request: Any, blocks: list[int], computed: int, copies: dict[int, int]
    ) -> None:
        name, event = request.request_id, self._next
        known = self._requests.get(name)
        if known is None or known.request is not request:
            self._lives += 1
            known = self._requests[name] = _Request(request, self._lives)
        before = known.blocks or []  # a load that has ended, or a session that goes on
        same = next((i for i, pair in enumerate(zip(before, blocks)) if pair[0] != pair[1]),
                    min(len(before), len(blocks)))  # fmt: skip
        event.released += before[same:]
        local, until = self._external.pop(name, (computed, computed))
        hits = local // self._block
        loads = -(-until // self._block) if until > local else hits
        known.loaded = max(known.loaded, until // self._block)
        fresh = set()
        for place in range(same, len(blocks)):
            block, end = blocks[place], (place + 1) * self._block
            if place < hits and self._is(block, request, place, end):
                event.retained.append(block)
                continue
            self._versions[block] = 0  # nobody knows of which weights, if it was hit
            if place >= hits:
                fresh.add(block)
            if hits <= place < loads and (end - 1) // self._hash < len(request.block_hashes):
                event.loaded[block] = self._key(request, place)
            else:
                event.bound.append(block)
        if local % self._block and until == local and hits >= same and blocks[hits] in copies:
            source = copies[blocks[hits]]
            if self._is(source, request, hits, local):
                event.copied.append((source, blocks[hits], local % self._block))
        self._own(request, blocks, same)
        known.blocks = list(blocks)
        keys = self._start_keys(known, blocks, computed, fresh) if self._keys else []
        event.starts.append(Start(name, known.life, list(blocks), computed, keys))
        self._prefilling.add(name)

    def _grow(self, name: str, blocks: list[int]) -> None:
        known = self._requests[name]
        assert known.blocks is not None
        for block in blocks:
            self._versions[block] = 0 if known.mixed else self.version
        first = len(known.blocks)
        known.blocks += blocks
        self._own(known.request, known.blocks, first)
        self._next.bound += blocks
        self._next.grown[name] = blocks

    def _own(self, request: Any, blocks: list[int], first: int) -> None:
        for place in range(first, len(blocks)):
            self._owner[blocks[place]] = request.block_hashes
            self._place[blocks[place]] = place

    def _is(self, block: int, request: Any, place: int, end: int) -> bool:
        """Whether the page of a block has the rows of a request's tokens from place * block size
        to `end`: it was given to a request with the same hash there. Not known is no."""
        theirs, ours = self._owner[block], request.block_hashes
        if theirs is None or self._place[block] != place:
            return False
        at = (end - 1) // self._hash
        return theirs is ours or (at < min(len(theirs), len(ours)) and theirs[at] == ours[at])

    @guarded
    def request_finished(self, request: Any) -> None:
        """A request has ended, or is preempted."""
        name = request.request_id
        known = self._requests.get(name)
        if known is None or known.request is not request:
            return
        if known.blocks is not None:
            self._next.released += known.blocks
            known.blocks, known.loaded = None, 0
            self._prefilling.discard(name)
            self._next.ended.append(name)
        if request.is_finished():
            del self._requests[name]
            self._external.pop(name, None)

    def reset(self) -> None:
        """The prefix cache was reset, and no request has blocks: a capture that has ended begins
        again."""
        if self.failure:
            logger.warning("waymark: capture begins again, with the prefix cache: it had ended "
                           "(%s)", self.failure)  # fmt: skip
        self.failure = ""
        self._generation += 1
        self._owner[:] = [None] * len(self._owner)
        for name, known in list(self._requests.items()):
            known.blocks, known.loaded = None, 0
            if known.request.is_finished():  # while the capture had ended
                del self._requests[name]
        self._begin()

    # -- vLLM 0.33: what may be hit, and loaded -------------------------------------------------
    def max_cache_hit(self, request: Any) -> int:
        """Tokens that may be found in the prefix cache, in which no block lacks rows."""
        self._external.pop(request.request_id, None)
        return int(request.num_tokens) - 1

    def cap_external_hit(self, request: Any, num_local: int, num_external: int) -> int:
        """Of the tokens that a KV connector has: those that may be loaded."""
        if not self._keys and not self.failure:
            return 0
        self._external[request.request_id] = num_local, num_local + num_external
        return num_external

    def request_loading(self, request: Any, num_tokens: int) -> None:
        """KV is loaded into the blocks of a request that is scheduled when it is there."""
        self._loading.append((request, num_tokens))

    # -- with a tier --------------------------------------------------------------------------
    def name_weights(self, name: str) -> None:
        """Steps from here on run with other weights; "": nobody has named them."""
        self.version, self._weights, self._changes = self.version + 1, name, _tier.changes()
        for known in self._requests.values():
            known.mixed |= known.blocks is not None

    def _start_keys(
        self, known: _Request, blocks: list[int], computed: int, fresh: set[int]
    ) -> list[bytes]:
        full = known.sealed = max(computed // self._block, known.loaded)
        known.mixed = known.request.lora_request is not None or any(
            self._versions[block] != self.version for block in blocks[:full] if block not in fresh
        )
        for block in (*blocks[full:], *fresh):
            self._versions[block] = 0 if known.mixed else self.version
        return [] if known.mixed else [self._key(known.request, place) for place in range(full)]

    def _key(self, request: Any, place: int) -> bytes:
        return bytes(request.block_hashes[((place + 1) * self._block - 1) // self._hash])

    def _seal(self, known: _Request) -> None:
        """An output has come: nothing in front of its token was rejected, and no load of it has
        failed."""
        if known.blocks is None or known.mixed:
            return
        full = min((known.request.num_tokens - 1) // self._block, len(known.blocks))
        for place in range(known.sealed, full):
            self._next.seals[known.blocks[place]] = self._key(known.request, place)
        known.sealed = max(known.sealed, full)

    # -- rows ---------------------------------------------------------------------------------
    @ends
    def take_output(self, request: Any, output: Output | None) -> Array | None:
        """The rows of the tokens up to the last but one that no call has returned yet, in the order
        of the tokens: vLLM puts them one behind the other."""
        known = self._requests.get(request.request_id)
        if known is None or known.request is not request:
            return None
        if self._keys:
            self._seal(known)
        if not known.asked:
            return None
        if output is not None and output is not self._output:
            self._output, self._like = output, output.rows[:0]
            self._at = {name: i for i, name in enumerate(output.names)}
            self._evict(set(output.lost))  # from the prefix cache: nobody hits them any more
        first, last = known.emitted, request.num_tokens - 1
        if last <= first or self._like is None:
            return None
        known.emitted = last
        i = -1 if output is None else self._at.get(request.request_id, -1)
        if output is None or i < 0 or output.lives[i] != known.life:
            return missing(self._like, last - first)
        token, rows = output.of(i)
        if not token <= first < last <= token + len(rows):
            return missing(self._like, last - first)
        return rows[first - token : last - token]
