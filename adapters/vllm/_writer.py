"""Writes schedule messages from the lists of blocks that schedules have: no hook in vLLM's block
pool is needed, and the work is proportional to what changed.

    a request starts         blocks of prefix hits    retain
                             blocks that are loaded   bind with key, seal
                             others                   bind
    it gets blocks                                    bind
    blocks are full                                   seal
    a copy on write                                   bind, copy
    a request leaves                                  snapshot, release
    the prefix cache resets                           reset

Between two leaves or resets, blocks are bound before they are retained, copied and sealed: a
request may hit blocks that another one fills in the same step, whichever is reported first. vLLM's
null block, 0, has events too, which the worker's store ignores (Capture(null_blocks=[0])).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import ScheduleWriter
from .._errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from .._types import ALL_ROWS

# A block that is loaded and has no key: no block is sealed with this one, so its rows are missing
# (external KV).
_NO_KEY = b"waymark: loaded without a key"
# Bytes of a message beside the blocks of a snapshot, or beside events; of an event, at most.
_FRAME_BYTES, _EVENT_BYTES = 104, 48


@dataclass(slots=True)
class Blocks:
    """The blocks of a request."""

    blocks: list[int] = field(default_factory=list)  # in order
    sealed: int = 0  # leading ones that are sealed, or were hits
    running: bool = False  # between a start and a leave


class Writer:
    """Of one scheduler. What is reported waits for the next messages. A call that raises changes
    nothing, but leave() with ResourceExhaustedError, and messages()."""

    def __init__(
        self, num_blocks: int, block_tokens: int, hash_tokens: int = 0, *,
        max_bytes: int = 16 << 20, max_snapshots: int = 4096,
    ) -> None:  # fmt: skip
        """hash_tokens: of one hash; a divisor of block_tokens; 0: block_tokens."""
        self._writer = ScheduleWriter(
            num_blocks, block_tokens, max_bytes=max_bytes, max_snapshots=max_snapshots
        )
        self._block_tokens, self._max_bytes = block_tokens, max_bytes
        self._hashes = block_tokens // (hash_tokens or block_tokens)  # of a block
        self._most = max(1, (max_bytes - _FRAME_BYTES) // _EVENT_BYTES)  # events in a call
        # Calls of the writer, in order; and the events that come behind them.
        self._calls: list[tuple[Callable[..., None], Sequence[Any]]] = []
        self._binds: list[int] = []
        self._loads: list[int] = []
        self._load_keys: list[bytes | None] = []
        self._retains: list[int] = []
        self._copies: dict[int, tuple[int, int | None]] = {}  # to: from, rows if a request got it
        self._seals: list[int] = []
        self._seal_keys: list[bytes | None] = []

    @property
    def pending(self) -> bool:
        """Whether there is something for the next message."""
        return bool(
            self._calls or self._binds or self._loads or self._retains or self._seals
            or self._copies
        )  # fmt: skip

    def start(
        self, request: Blocks, blocks: list[int], local: int, external: int, hashes: Sequence[bytes]
    ) -> None:
        """A request is scheduled with these blocks: the KV of its first `local` tokens was found in
        the prefix cache, of the next `external` ones it is loaded. One that runs (a session with
        new input) goes on with its blocks, which are in front.

        hashes: of all its hash blocks so far, of which few are read; none: there is no prefix
        cache."""
        had, tokens = len(request.blocks), self._block_tokens
        if request.running:
            if blocks[:had] != request.blocks:
                raise InvalidArgumentError(
                    f"blocks: must begin with the {had} that the request has, {request.blocks}, "
                    f"unless it was preempted; they are {blocks}"
                )
            return self.append(request, blocks[had:])
        if local < 0 or external < 0:
            raise InvalidArgumentError(
                f"tokens: must be at least 0; they are {local} local and {external} external ones"
            )
        self._check("local and external tokens", local + external, blocks)
        hits = full = local // tokens
        if external:
            full = (local + external) // tokens
            self._load(blocks, hits, full, (local + external) % tokens > 0, hashes)
        else:
            self._binds += blocks[hits:]
        self._retains += blocks[:hits]
        for at, block in enumerate(blocks[hits:]) if self._copies else ():
            self._copied(block, local % tokens if at == 0 else 0)
        request.blocks, request.sealed, request.running = blocks[:], full, True

    def _load(
        self, blocks: list[int], hits: int, full: int, partial: bool, hashes: Sequence[bytes]
    ) -> None:
        """The events of blocks [hits, full), which are loaded, of one that is loaded in part, and
        of those behind them."""
        seal_keys = self._keys(hashes, hits, full)
        keys = [key or _NO_KEY for key in seal_keys]
        if partial:  # the rest of it is computed
            end = self._hashes * (full + 1)
            keys.append(hashes[end - 1] if end <= len(hashes) else _NO_KEY)
        loads = blocks[hits : hits + len(keys)]
        self._loads += loads
        # A block that is copied onto has the rows of the copy, and no others.
        self._load_keys += [None if b in self._copies else key for b, key in zip(loads, keys)]
        self._binds += blocks[hits + len(keys) :]
        self._seals += blocks[hits:full]
        self._seal_keys += seal_keys

    def append(self, request: Blocks, blocks: list[int]) -> None:
        """A request that runs gets further blocks."""
        if not request.running:
            raise FailedPreconditionError(
                f"request: must have blocks to get others, {blocks}: it was preempted"
            )
        request.blocks += blocks
        self._binds += blocks
        for block in blocks if self._copies else ():
            self._copied(block, 0)

    def seal(self, request: Blocks, tokens: int, hashes: Sequence[bytes]) -> None:
        """The first `tokens` tokens of a request are computed and accepted after this step: blocks
        that end there or before are full. hashes: as in start()."""
        full, sealed = tokens // self._block_tokens, request.sealed
        if full > sealed:
            self._check("tokens", tokens, request.blocks)
            self._seal_keys += self._keys(hashes, sealed, full)
            self._seals += request.blocks[sealed:full]
            request.sealed = full

    def copy(self, source: int, copy: int) -> None:
        """vLLM copies block `source` to `copy`, before a request of this schedule gets `copy`.
        Ignored if none gets it."""
        self._copies.pop(copy, None)  # the copies stay in the order of vLLM: one may be copied
        self._copies[copy] = source, None

    def leave(self, request: Blocks, rows: int, tag: int | None) -> None:
        """A request is preempted or has ended, and its blocks are about to be freed: takes a
        snapshot of its rows [0, rows) under `tag` (None: none), and releases the blocks.

        ResourceExhaustedError if no message can hold the snapshot: the blocks are released."""
        blocks, size = request.blocks, 0
        if tag is not None:
            self._check("rows", rows, blocks)
            size = _FRAME_BYTES + 4 * len(blocks)
        self._flush()
        if tag is not None and size <= self._max_bytes:
            self._calls.append((self._writer.snapshot, (tag, blocks, 0, rows)))
        # As vLLM frees them: the last block is the first to be evicted.
        self._put(self._writer.release, blocks[::-1])
        request.blocks, request.sealed, request.running = [], 0, False
        if size > self._max_bytes:
            raise ResourceExhaustedError(
                f"a message must have at most max_bytes, {self._max_bytes}; that of the snapshot "
                f"of {len(blocks)} blocks has {size}"
            )

    def reset(self) -> None:
        """The prefix cache is reset, and no request has blocks."""
        self._flush()
        self._calls.append((self._writer.reset, ()))

    def messages(self, step: int, version: int) -> tuple[bytes, ...]:
        """What was reported since the last messages, for the schedule of `step` (0: of no tokens;
        version is then 0): more than one where one would be too large.

        If this raises, for a block that the worker's store does not have, what was reported is
        lost: the store notices that at the next message, and its blocks lose their rows."""
        writer, done = self._writer, []
        writer.begin(step, version)
        self._flush()
        calls, self._calls = self._calls, []
        self._copies.clear()
        try:
            for call, arguments in calls:
                try:
                    call(*arguments)
                except ResourceExhaustedError:  # the message is full
                    done.append(writer.finish())
                    writer.begin(step, version)
                    call(*arguments)
        finally:
            done.append(writer.finish())
        return tuple(done)

    def _flush(self) -> None:
        """Appends the calls for the events since the last flush."""
        writer, put = self._writer, self._put
        if self._binds:
            put(writer.bind, self._binds)
            self._binds = []
        if self._loads:
            put(writer.bind, self._loads, self._load_keys)
            self._loads, self._load_keys = [], []
        if self._retains:
            put(writer.retain, self._retains)
            self._retains = []
        if self._copies:
            got = {to: of for to, of in self._copies.items() if of[1]}
            sources = [source for source, _ in got.values()]
            # A copy takes a page, perhaps of another's source, which no request may have any more.
            put(writer.retain, sources)
            put(writer.copy, sources, list(got), [rows for _, rows in got.values()])
            put(writer.release, sources)
            for to in got:
                del self._copies[to]
        if self._seals:
            put(writer.seal, self._seals, self._seal_keys)
            self._seals, self._seal_keys = [], []

    def _put(self, call: Callable[..., None], *lists: list[Any]) -> None:
        """Appends calls with one event for each element, in parts that a message can hold."""
        most = self._most
        if len(lists[0]) <= most:
            self._calls.append((call, lists))
            return
        for at in range(0, len(lists[0]), most):
            self._calls.append((call, [one[at : at + most] for one in lists]))

    def _copied(self, block: int, rows: int) -> None:
        """A request gets a block. If it is copied onto: `rows` of it, 0: all."""
        source, _ = self._copies.get(block, (None, None))
        if source is not None:
            self._copies[block] = source, rows or ALL_ROWS

    def _check(self, argument: str, tokens: int, blocks: list[int]) -> None:
        most = len(blocks) * self._block_tokens
        if not 0 <= tokens <= most:
            raise InvalidArgumentError(
                f"{argument}: must be in [0, {most}] ({len(blocks)} blocks of {self._block_tokens} "
                f"tokens); it is {tokens}"
            )

    def keys(self, hashes: Sequence[bytes], blocks: int) -> list[bytes | None]:
        """The keys of the first blocks, at most so many, that are full."""
        return self._keys(hashes, 0, min(blocks, len(hashes) // self._hashes))

    def _keys(self, hashes: Sequence[bytes], first: int, last: int) -> list[bytes | None]:
        """The keys of blocks [first, last): the last hash of each; None without a prefix cache."""
        each = self._hashes
        if not hashes:
            return [None] * (last - first)
        keys: list[bytes | None] = list(hashes[each * (first + 1) - 1 : each * last : each])
        if len(keys) < last - first:
            raise InvalidArgumentError(
                f"hashes: must be at least {each * last}, for {last} blocks; they are {len(hashes)}"
            )
        return keys
