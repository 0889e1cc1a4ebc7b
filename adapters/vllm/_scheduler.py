"""The half in the engine core: hears of blocks where vLLM schedules them, and hands out the rows
that come back with the output of a step."""

from __future__ import annotations

from itertools import compress
from typing import Any

from . import _tier
from ._checks import kv_group
from ._events import Array, Output, Schedule, Start, missing
from ._hooks import guarded, logger, timed
from ._options import Options, asks


class _Request:
    """A request from its first schedule to its end, preemptions included."""

    __slots__ = ("asked", "blocks", "emitted", "life", "mixed", "request", "sealed")

    def __init__(self, request: Any, life: int) -> None:
        self.request, self.life = request, life
        self.asked = asks(request.sampling_params, request.resumable)
        self.blocks: list[int] | None = None
        """That the worker knows; None: it has none."""
        start = getattr(request.sampling_params, "routed_experts_prompt_start", 0)
        self.emitted: int = min(start, request.num_prompt_tokens)
        """Rows that need not be returned, or have been."""
        self.sealed = 0  # blocks
        self.mixed = False
        """Its KV is not of the weights of now alone, or of an adapter: it has no keys."""


class SchedulerConnector:
    """In the place of vLLM's AuxOutputSchedulerConnector. The thread of the engine core."""

    def __init__(self, scheduler: Any, options: Options) -> None:
        cache = scheduler.kv_cache_manager
        self._group, self._block = kv_group(scheduler.kv_cache_config)
        self._blocks_of = cache.coordinator.single_type_managers[self._group].req_to_blocks
        self._cached_block = cache.block_pool.get_cached_block
        self._hash = getattr(scheduler, "hash_block_size", None) or self._block
        self._keys = bool(options.tier)
        self.failure = ""
        self._generation = 0
        self.version, self._weights = 1, _tier.first_name(options.tier)
        self._changes = _tier.changes()
        self._lives = 0
        self._like: Array | None = None  # an array with the layers and K of this model
        self._requests: dict[str, _Request] = {}
        # Whose tokens the rows of a block's page are: the hashes of the request that was given the
        # block, and the block's place in it.
        blocks = scheduler.kv_cache_config.num_blocks
        self._owner: list[Any] = [None] * blocks
        self._place: list[int] = [-1] * blocks
        self._lost: set[int] = set()  # blocks of which rows were lost since
        # With a tier: of the KV of a block, and of all before; 0: of several.
        self._versions: list[int] = [0] * blocks
        self._local: dict[str, int] = {}  # tokens in front of those that a connector may load
        self._loaded: dict[str, int] = {}  # blocks of a request when its load was allocated
        if getattr(scheduler, "connector", None) is not None:
            self._hear_of_loads(scheduler.connector)
            if not self._keys:
                logger.warning("waymark: nothing is loaded by a KV connector, since its rows would "
                               "be missing (vLLM 0.33): give the option tier")  # fmt: skip
        self._begin()

    def _hear_of_loads(self, connector: Any) -> None:
        """A KV connector is asked what it has behind the tokens that were found here, and told what
        was allocated for it: nobody knows of whose KV the blocks will be."""
        ask, tell = connector.get_num_new_matched_tokens, connector.update_state_after_alloc

        def asked(request: Any, num_computed_tokens: int) -> Any:
            self._local[request.request_id] = num_computed_tokens
            self._loaded.pop(request.request_id, None)  # of a load that failed
            return ask(request, num_computed_tokens)

        def told(request: Any, blocks: Any, num_external_tokens: int) -> Any:
            if num_external_tokens:
                self._load(request.request_id, blocks)
            return tell(request, blocks, num_external_tokens)

        connector.get_num_new_matched_tokens, connector.update_state_after_alloc = asked, told

    @guarded
    def _load(self, name: str, blocks: Any) -> None:
        if (known := self._requests.get(name)) is not None and known.blocks is not None:
            return  # request_loading() has told them
        allocated = blocks.get_block_ids()[self._group]
        self._loaded[name] = len(allocated)
        for block in allocated[self._local[name] // self._block :]:
            self._owner[block] = None

    def _begin(self) -> None:
        self._next = Schedule(self._generation, self.version, 0)
        self._prefilling: set[str] = set()
        self._asked: list[Any] = []  # requests that were asked about since the last schedule

    def fail(self, error: BaseException) -> None:
        """Ends the capture until the prefix cache is reset."""
        if not self.failure:
            self.failure = f"{type(error).__name__}: {error}"
            logger.error("waymark: capture ends: %s", self.failure, exc_info=error)

    # -- blocks -------------------------------------------------------------------------------
    @timed("schedule")
    @guarded
    def build_connector_meta(self, output: Any, requests: dict[str, Any]) -> Schedule | None:
        """What the worker has to know before the forward of this schedule. None: the capture has
        ended."""
        if self._keys and self._changes != _tier.changes():
            self.name_weights("")
        copies = {dst: src for src, dst in getattr(output, "kv_cache_block_copies", None) or ()}
        starts = [(new.req_id, new.block_ids[self._group], new.num_computed_tokens)
                  for new in output.scheduled_new_reqs]  # fmt: skip
        cached = output.scheduled_cached_reqs
        given = cached.new_block_ids
        for i in compress(range(len(given)), given):  # most are None
            name, blocks = cached.req_ids[i], given[i][self._group]
            if name in cached.resumed_req_ids:
                starts.append((name, blocks, cached.num_computed_tokens[i]))
            elif blocks:
                self._grow(name, blocks)
        # They may hit what has just been given to others, in whatever order vLLM names them.
        for name, blocks, computed in starts:
            old = max(computed // self._block, self._loaded.get(name, 0))
            for place in range(old, len(blocks)):
                self._own(blocks[place], requests[name], place)
        for name, blocks, computed in starts:
            self._start(requests[name], blocks, computed, copies)
        self._asked.clear()
        self._read(output.num_scheduled_tokens, requests)
        schedule = self._next
        schedule.rows, schedule.version = output.total_num_scheduled_tokens, self.version
        schedule.weights = self._weights
        self._next = Schedule(self._generation, self.version, 0)
        return schedule

    def _start(
        self, request: Any, blocks: list[int], computed: int, copies: dict[int, int]
    ) -> None:
        name = request.request_id
        known = self._requests.get(name)
        if known is None or known.request is not request:
            self._lives += 1
            known = self._requests[name] = _Request(request, self._lives)
        before = known.blocks or []  # a load that has ended, or a session that goes on
        same = next((i for i, pair in enumerate(zip(before, blocks)) if pair[0] != pair[1]),
                    min(len(before), len(blocks)))  # fmt: skip
        hits = computed // self._block
        self._local.pop(name, None)
        # Blocks of a load may be full behind them, too: of the last token the KV is computed again.
        old = max(hits, self._loaded.pop(name, 0))
        fresh, loaded = [], {}
        for i in range(same, len(blocks)):
            end = (i + 1) * self._block
            if i < old and self._is(blocks[i], request, i, end):
                continue
            if i < old and (end - 1) // self._hash < len(request.block_hashes):
                loaded[blocks[i]] = self._key(request, i)
            else:
                fresh.append(blocks[i])
        copied, rows = None, computed % self._block
        if rows and hits >= same and blocks[hits] in copies:
            source = copies[blocks[hits]]
            if self._is(source, request, hits, computed):
                copied = source, blocks[hits], rows
        for i in range(same, len(blocks)):
            self._own(blocks[i], request, i)
        self._lost.difference_update(fresh, loaded)
        known.blocks = list(blocks)
        keys = self._start_keys(known, blocks, computed, {*fresh, *loaded}) if self._keys else []
        self._next.starts.append(Start(name, known.life, list(blocks), computed, known.emitted,
                                       same, fresh, loaded, copied, keys))  # fmt: skip
        self._prefilling.add(name)

    def _grow(self, name: str, blocks: list[int]) -> None:
        known = self._requests[name]
        assert known.blocks is not None
        for i, block in enumerate(blocks, len(known.blocks)):
            self._own(block, known.request, i)
            self._versions[block] = 0 if known.mixed else self.version
        self._lost.difference_update(blocks)
        known.blocks += blocks
        self._next.grown[name] = blocks

    def _own(self, block: int, request: Any, place: int) -> None:
        self._owner[block], self._place[block] = request.block_hashes, place

    # -- with a tier --------------------------------------------------------------------------
    def name_weights(self, name: str) -> None:
        """Steps from here on run with other weights; "": nobody has named them."""
        self.version, self._weights, self._changes = self.version + 1, name, _tier.changes()
        for known in self._requests.values():
            known.mixed |= known.blocks is not None

    def _start_keys(
        self, known: _Request, blocks: list[int], computed: int, fresh: set[int]
    ) -> list[bytes]:
        full = computed // self._block
        known.sealed = full
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

    def _is(self, block: int, request: Any, place: int, end: int) -> bool:
        """Whether the page of a block has the rows of a request's tokens from place * block size
        to `end`: it was given to a request with the same hash there. Not known is no."""
        theirs, ours = self._owner[block], request.block_hashes
        if theirs is None or self._place[block] != place:
            return False
        at = (end - 1) // self._hash
        return theirs is ours or (at < min(len(theirs), len(ours)) and theirs[at] == ours[at])

    def _read(self, scheduled: dict[str, int], requests: dict[str, Any]) -> None:
        """Requests that are prefilled to their end."""
        for name in [one for one in self._prefilling if one in scheduled]:
            request = requests[name]
            if request.num_computed_tokens + scheduled[name] >= request.num_tokens:
                self._prefilling.discard(name)
                if self._requests[name].asked:
                    self._next.reads.append(name)

    @guarded
    def request_finished(self, request: Any) -> None:
        """A request has ended, or is preempted."""
        name = request.request_id
        known = self._requests.get(name)
        if known is None or known.request is not request:
            return
        if known.blocks is not None:
            known.blocks = None
            self._prefilling.discard(name)
            self._next.ended.append(name)
        if request.is_finished():
            del self._requests[name]
            self._local.pop(name, None)
            self._loaded.pop(name, None)

    def reset(self) -> None:
        """The prefix cache was reset, and no request has blocks: a capture that has ended begins
        again."""
        if self.failure:
            logger.warning("waymark: capture begins again, with the prefix cache: it had ended "
                           "(%s)", self.failure)  # fmt: skip
        self.failure = ""
        self._generation += 1
        self._owner[:] = [None] * len(self._owner)
        self._lost.clear()
        for name, known in list(self._requests.items()):
            known.blocks = None
            if known.request.is_finished():  # while the capture had ended
                del self._requests[name]
        self._begin()

    # -- vLLM 0.33: what may be hit, and loaded -------------------------------------------------
    def max_cache_hit(self, request: Any) -> int:
        """Tokens of the request that may be found in the prefix cache: those that have rows."""
        try:
            most = request.num_tokens - 1
            return int(most if self.failure else min(self._known_hit(request), most))
        except Exception as error:
            self.fail(error)
            return int(request.num_tokens - 1)

    def _known_hit(self, request: Any) -> int:
        full = 0
        for place in range(request.num_tokens // self._block):
            end = (place + 1) * self._block
            at = (end - 1) // self._hash
            if at >= len(request.block_hashes):
                break
            found = self._cached_block(request.block_hashes[at], [self._group])
            if not found or found[0].block_id in self._lost:
                break
            if not self._is(found[0].block_id, request, place, end):
                self._look()
                if not self._is(found[0].block_id, request, place, end):
                    break
            full = end
        self._asked.append(request)
        return full

    def _look(self) -> None:
        """Blocks that were allocated in the schedule that is being made, which the next requests
        may hit: they are told with it."""
        begun = [(known.request, len(known.blocks)) for known in self._requests.values()
                 if known.blocks is not None]  # fmt: skip
        begun += [(one, one.num_computed_tokens // self._block) for one in self._asked]
        for request, first in begun:
            blocks = self._blocks_of.get(request.request_id, ())
            for place in range(first, len(blocks)):
                self._own(blocks[place].block_id, request, place)
                self._lost.discard(blocks[place].block_id)

    def cap_external_hit(self, request: Any, num_local: int, num_external: int) -> int:
        """Of the tokens that a KV connector has: those that may be loaded."""
        return num_external if self._keys or self.failure else 0

    @guarded
    def request_loading(self, request: Any, num_tokens: int) -> None:
        """KV is loaded into the blocks of a request that is scheduled when it is there."""
        blocks = [block.block_id for block in self._blocks_of[request.request_id]]
        self._start(request, blocks, num_tokens, {})

    # -- rows ---------------------------------------------------------------------------------
    @timed("take output")
    def take_output(self, request: Any, output: Output | None) -> Array | None:
        """The rows of the tokens up to the last but one that no call has returned yet, in the order
        of the tokens: vLLM puts them one behind the other."""
        try:
            return self._take(request, output)
        except Exception as error:
            self.fail(error)
            return None

    def _take(self, request: Any, output: Output | None) -> Array | None:
        known = self._requests.get(request.request_id)
        if known is None or known.request is not request:
            return None
        if self._keys:
            self._seal(known)
        if not known.asked:
            return None
        first, last = known.emitted, request.num_tokens - 1
        if output is not None:
            if self._like is None:
                self._like = output.rows[:0]
            if output.lost:
                self._lost.update(output.lost)
                output.lost.clear()
        if last <= first or self._like is None:
            return None
        known.emitted = last
        found = None if output is None else output.of(request.request_id, known.life)
        if found is None:
            return missing(self._like, last - first)
        token, rows = found
        if token <= first and last <= token + len(rows):
            return rows[first - token : last - token]
        array = missing(self._like, last - first)  # holes, which are missing rows
        if token < last and first < token + len(rows):
            begin, end = max(first, token), min(last, token + len(rows))
            array[begin - first : end - first] = rows[begin - token : end - token]
        return array
