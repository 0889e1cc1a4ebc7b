"""The engine of test_proving.py, which plants mistakes in this text: batches, chunked prefill, a prefix
cache, forks. The model is a hash of the tokens so far, as in docs/examples/engine.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import waymark

L, K, E, BLOCK, BLOCKS, CHUNK, PROMPT, TOKENS, REQUESTS = 4, 2, 64, 16, 40, 24, 40, 75, 48
HASH = np.uint64(0x9E3779B97F4A7C15)


def route(prefix: Any) -> Any:
    """[n] hashes of all tokens so far -> [n, L, K] experts, K distinct ones per layer."""
    h = (prefix[:, None, None] * HASH) ^ (np.arange(L, dtype=np.uint64)[:, None] * HASH >> 9)
    return ((h + np.arange(K, dtype=np.uint64) * (h >> 32 | 1)) % E).astype(np.int16)


class Request:
    def __init__(self, number: int) -> None:
        self.number, self.blocks, self.done = number, [], 0  # type: ignore[var-annotated]
        # Groups of eight share most of a prompt.
        same = [number // 8 if t < PROMPT - 6 else number * 1000 + t for t in range(TOKENS)]
        self.tell(same)

    def tell(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.prefix = np.array([hash(tuple(tokens[: t + 1])) for t in range(TOKENS)]).astype(np.uint64)
        self.keys = [int(key) for key in self.prefix[BLOCK - 1 :: BLOCK]]


class Engine:
    def __init__(self, **options: Any) -> None:
        self.cap = waymark.Capture(num_layers=L, top_k=K, num_experts=E, num_blocks=BLOCKS,
                                   page_tokens=BLOCK, overdue_after=0.1, **options)  # fmt: skip
        self.users, self.used = [0] * BLOCKS, [0] * BLOCKS
        self.key_of: list[Any] = [None] * BLOCKS
        self.step, self.binds = 0, 0
        self.last: Any = np.zeros(0)
        self.finished: dict[int, Any] = {}
        self.requests: dict[int, Request] = {}

    def allocate(self) -> int:
        """The least recently used free block."""
        block = min((b for b in range(BLOCKS) if not self.users[b]), key=self.used.__getitem__)
        self.users[block], self.key_of[block] = 1, None
        return block

    def admit(self, request: Request) -> None:
        for key in request.keys[: (PROMPT - 1) // BLOCK]:  # a prefix hit
            if key not in self.key_of:
                break
            request.blocks.append(self.key_of.index(key))
        for block in request.blocks:
            self.users[block] += 1
        self.cap.retain(request.blocks)
        request.done = len(request.blocks) * BLOCK
        self.requests[request.number] = request

    def fork(self, parent: Request) -> Request:
        """A child that goes on with other tokens: full blocks are shared, the last one is copied."""
        child = Request(parent.number + 1000)
        done, full = parent.done, parent.done // BLOCK
        child.tell(parent.tokens[:done] + [-child.number - t for t in range(done, TOKENS)])
        child.blocks, child.done = parent.blocks[:full], done
        for block in child.blocks:
            self.users[block] += 1
        self.cap.retain(child.blocks)
        if done % BLOCK:
            child.blocks.append(self.allocate())
            self.cap.copy(parent.blocks[full], child.blocks[full], done % BLOCK)
        self.requests[child.number] = child
        return child

    def forward(self, running: list[Request]) -> None:
        self.step += 1
        slots, prefixes = [], []
        for request in running:
            first = request.done
            last = first + min(CHUNK, max(PROMPT - first, 1))
            while len(request.blocks) * BLOCK < last:
                request.blocks.append(self.allocate())
                self.cap.bind(request.blocks[-1])
            for i in range(first // BLOCK, last // BLOCK):
                self.key_of[request.blocks[i]] = request.keys[i]
                self.cap.seal(request.blocks[i], request.keys[i])
            for block in request.blocks:
                self.used[block] = self.step
            slots.append(waymark.slots_of(request.blocks, BLOCK, first, last))
            prefixes.append(request.prefix[first:last])
            request.done = last
        rows, ids = np.concatenate(slots), route(np.concatenate(prefixes))
        with self.cap.step(self.step, 1, rows) as told:
            told.ids = ids
        self.cap.wait_idle(10)
        self.last = ids

    def finish(self, request: Request) -> None:
        self.finished[request.number] = self.cap.take(request.blocks, request.done)
        self.cap.release(request.blocks)
        for block in request.blocks:
            self.users[block] -= 1

    def run(self) -> None:
        waiting, running = [Request(n) for n in range(REQUESTS)], []  # type: ignore[var-annotated]
        while waiting or running:
            while waiting and len(running) < 4:
                running.append(waiting.pop(0))
                self.admit(running[-1])
            self.forward(running)
            for request in [one for one in running if one.done == TOKENS - 1]:
                running.remove(request)
                self.finish(request)
            running += [self.fork(one) for one in running if one.done == 44 and one.number % 6 == 0]

    def report(self) -> waymark.Report:
        rows = {number: taken.result(10) for number, taken in self.finished.items()}
        return waymark.verify(rows, lambda number: route(self.requests[number].prefix))
