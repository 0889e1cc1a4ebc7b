"""Random schedules of the tiny engine of vLLM's names, with a prefix cache: which rows each block's KV
has is known from what was computed, copied and loaded, and every finished request must have those."""

from __future__ import annotations

import itertools
import random
import sys
import types
from collections import Counter, deque
from functools import partial
from typing import Any

import pytest
from vllm_engine import ABORTED, BLOCK, Engine, Request, Scheduler, vllm
from waymark.vllm import _scheduler, _writer
from waymark.vllm._options import Options

__all__ = ["vllm"]  # a fixture for every test

MISSING = -1


class Pool(deque[int]):
    taken: Any

    def popleft(self) -> int:
        block = super().popleft()
        self.taken(block)
        return block


class CachingScheduler(Scheduler):
    """Blocks are kept for other requests."""

    def __init__(self) -> None:
        super().__init__()
        self.free = self.kv_cache_manager.free_blocks = Pool(range(1, 40))
        self.keys: dict[int, bytes] = {}  # of blocks in the prefix cache, free ones too
        self.left = lambda request: None

    def give_back(self, request: Request) -> None:
        self.left(request)
        super().give_back(request)


class RandomEngine(Engine):
    """A cell of `kv` has the ids of a row that may be read (MISSING: it may be missing)."""

    scheduler_kind = CachingScheduler

    def __init__(self, seed: int) -> None:
        busy = {"max_steps_in_flight": 512, "spare_pages": 4096}  # a machine on which threads starve
        super().__init__(Options(store={"audit": False, **busy}))
        self.manager: Any = self.scheduler.kv_cache_manager
        self.random = random.Random(seed)
        self.kv: dict[tuple[int, int], set[int]] = {}
        self.written: dict[tuple[bytes, int], set[int]] = {}  # under a key, at an offset
        self.lives: dict[str, list[list[set[int]]]] = {}
        self.scheduler.left, self.scheduler.free.taken = self.left, self.taken
        self.loads = self.scheduler.connector is not None
        self.loaded: set[int] = set()  # blocks
        self.seen: Counter[str] = Counter()
        self.number = 0
        self.batch: deque[int] = deque()  # the ids of layer 0

    def id_of(self, name: str, position: int, layer: int) -> int:
        request, offset = self.scheduler.requests[name], position % BLOCK
        cell = request.blocks[position // BLOCK], offset
        if layer == 0:
            chosen = self.random.randrange(60)
            # Of a block that was loaded in part the store may have found all rows, and keep them.
            found = self.kv.get(cell, set()) - {MISSING} if cell[0] in self.loaded else set()
            self.kv[cell] = {chosen} | found
            key = request.block_hashes[position // BLOCK]
            self.written.setdefault((key, offset), set()).add(chosen)
            self.batch.append(chosen)
            return chosen
        return self.batch.popleft() + 50

    def taken(self, block: int) -> None:
        """A free block is given to a request."""
        self.scheduler.keys.pop(block, None)
        self.loaded.discard(block)
        for offset in range(BLOCK):
            self.kv.pop((block, offset), None)

    def left(self, request: Request) -> None:
        """Before its blocks are freed."""
        rows = range(min(request.num_computed_tokens, request.num_tokens))
        life = [self.kv.get((request.blocks[p // BLOCK], p % BLOCK), {MISSING}) for p in rows]
        self.lives.setdefault(request.request_id, []).append(life)

    def arrive(self) -> None:
        self.number += 1
        request = self.add(Request(f"r{self.number}", self.random.randint(2, 5 * BLOCK)))
        first, rest = self.random.randrange(3), self.random.randrange(2)
        request.block_hashes = [
            bytes([first, rest if i > 1 else 9, i]) + bytes(29) for i in range(20)
        ]
        request.status = "waiting"

    def admit(self, request: Request) -> None:
        """Its blocks up to the end of what is found or loaded."""
        manager, cached = self.manager, {key: b for b, key in self.scheduler.keys.items()}
        most = (request.num_tokens - 1) // BLOCK
        hits: list[int] = []
        while len(hits) < most and request.block_hashes[len(hits)] in cached:
            hits.append(cached[request.block_hashes[len(hits)]])
        computed = len(hits) * BLOCK
        room = request.num_tokens - 1 - computed
        source = cached.get(request.block_hashes[len(hits)])
        loads = room > 0 and self.loads and self.random.random() < 0.4
        if loads:
            external = self.random.randint(1, room)
            manager.allocate_slots(
                request, 0, num_new_computed_tokens=computed, hits=hits,
                num_external_computed_tokens=external)  # fmt: skip
            self.loaded.update(request.blocks[len(hits) :])
            for p in range(computed, len(request.blocks) * BLOCK):
                index, offset = divmod(p, BLOCK)
                may = self.written.get((request.block_hashes[index], offset), set())
                self.kv[request.blocks[index], offset] = {MISSING} | may
            computed += external
            self.seen["loads"] += 1
        else:
            manager.hit(request, hits)
        copies = not loads and room > 0 and source not in {None, *self.filled}
        if copies and self.random.random() < 0.7:
            self.sources.append(Request("", 0))
            manager.hit(self.sources[-1], [source])  # until the copy has run
            (copy,) = manager.extend(request, computed + 1)
            rows = self.random.randint(1, min(room, BLOCK - 1))
            (group,) = manager.coordinator.single_type_managers
            group._apply_cow(request.request_id, len(hits), *(
                types.SimpleNamespace(block_id=block) for block in (source, copy)))  # fmt: skip
            for offset in range(rows):
                self.kv[copy, offset] = self.kv.get((source, offset), {MISSING})
            computed += rows
            self.seen["copies"] += 1
        request.num_computed_tokens = computed
        self.seen["hits"] += len(hits)

    def random_step(self) -> None:
        scheduler, chance = self.scheduler, self.random.random
        self.sources: list[Request] = []  # each has the source of a copy of this step
        self.filled: set[int] = set()  # in this step
        for request in list(scheduler.requests.values()):
            running = request.status == "running"
            if running and chance() < 0.08:
                scheduler._preempt_request(request)
                self.seen["preempted"] += 1
            elif running and chance() < 0.03:
                request.status = ABORTED
                scheduler._free_request(request)
                self.lives.pop(request.request_id)
        if chance() < 0.02:
            for request in scheduler.requests.values():
                if request.status == "running":
                    scheduler._preempt_request(request)
            scheduler.keys.clear()
            assert scheduler.kv_cache_manager.block_pool.reset_prefix_cache()
        while len(scheduler.requests) < 5:
            self.arrive()
        tokens: dict[str, int] = {}
        drafts: dict[str, int] = {}
        done = []
        for name, request in scheduler.requests.items():
            if request.status == "preempted" and chance() < 0.02:
                done.append(name)
            if len(scheduler.free) < 12 or chance() < 0.1 or name in done:
                continue
            if request.status != "running":
                self.admit(request)
            left = request.num_tokens - request.num_computed_tokens
            count = min(left, self.random.randint(1, 7))
            if count == left and chance() < 0.2:
                done.append(name)
            elif left == 1 and chance() < 0.3:
                drafts[name] = self.random.randint(1, 2)
            tokens[name] = count + drafts.get(name, 0)
            self.manager.extend(request, request.num_computed_tokens + tokens[name])
            # A request that is admitted after this one hits blocks that it fills.
            full = (request.num_computed_tokens + count) // BLOCK
            for block, key in zip(request.blocks[:full], request.block_hashes):
                if key not in scheduler.keys.values():
                    scheduler.keys[block] = key
                    self.filled.add(block)
        self.step(tokens, tuple(done))
        for name, count in drafts.items():
            accepted, request = self.random.randint(0, count), scheduler.requests[name]
            request.num_tokens += accepted + 1
            request.num_computed_tokens -= count - accepted
        for name in tokens.keys() & scheduler.requests.keys():
            scheduler.requests[name].status = "running"
        for source in self.sources:
            self.manager.release(source)

    def check(self) -> None:
        """Every request that has finished has the rows of its lives, the first valid one of each."""
        self.drain()
        for name in list(self.finished):
            rows, lives = self.rows(name), self.lives.pop(name)
            for p in range(0 if rows is None else len(rows)):
                may = {MISSING}
                for life in lives:
                    if MISSING in may and p < len(life):
                        may = may - {MISSING} | life[p]
                ids = [int(row) for row in rows[p, :, 0]]
                assert ids[0] in may, (name, p, ids, may, self.coverage(name), [len(x) for x in lives])
                assert ids == [MISSING] * 2 or ids[1] == ids[0] + 50, (name, p, ids)
                self.seen["exact"] += may == {ids[0]} != {MISSING}
            assert rows is not None or not any(lives), self.coverage(name)
            self.seen["finished"] += 1
            del self.finished[name]


def test_random_schedules(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    for loads, limits in itertools.product((None, object()), ({}, {"max_bytes": 256, "max_snapshots": 2})):
        monkeypatch.setattr(sys.modules["vllm_engine"], "connector", loads)
        monkeypatch.setattr(_scheduler, "Writer", partial(_writer.Writer, **limits))
        engine = RandomEngine(seed)
        for _ in range(150):
            engine.random_step()
        engine.check()
        scheduler, worker = engine.scheduler._waymark, engine.runner._waymark
        stats = worker.store.stats()
        assert (scheduler.failure, worker.failure) == ("", "")
        assert (stats.releases_below_zero, stats.log_losses) == (0, 0)
        seen += engine.seen + Counter(by_key=stats.hits_by_key)
    assert all(seen[name] for name in "hits copies loads by_key preempted finished exact".split()), seen
