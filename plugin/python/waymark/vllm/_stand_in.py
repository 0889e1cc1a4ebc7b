"""VllmScheduler in Python, until the native one is there."""
from __future__ import annotations

from .._core import ScheduleWriter


class VllmScheduler:
    def __init__(self, num_blocks, block_tokens, hash_block_tokens):
        self.w = ScheduleWriter(num_blocks, block_tokens)
        self.B, self.per = block_tokens, block_tokens // hash_block_tokens
        self.reqs = {}  # handle -> [blocks, sealed]
        self.kept = []
        self.open = False

    def begin(self, step, version):
        self.w.begin(step, version)
        self.open = True
        kept, self.kept = self.kept, []
        for f, args in kept:
            f(*args)

    def _do(self, f, *args):
        if self.open:
            f(*args)
        else:
            self.kept.append((f, args))

    def key(self, hashes, i):
        j = (i + 1) * self.per - 1
        return bytes(hashes[j]) if j < len(hashes) else None

    def new(self, request, blocks, local, external, hashes):
        hits = -(-local // self.B) if local % self.B == 0 else local // self.B
        loaded = (local + external) // self.B if external else hits
        self.reqs[request] = [list(blocks), hits]
        if hits:
            self.w.retain(blocks[:hits])
        if loaded > hits:
            self.w.bind(blocks[hits:loaded], [self.key(hashes, i) for i in range(hits, loaded)])
            self.w.seal(blocks[hits:loaded], [self.key(hashes, i) for i in range(hits, loaded)])
            self.reqs[request][1] = loaded
        if len(blocks) > loaded:
            self.w.bind(blocks[loaded:])

    resume = new

    def append(self, request, blocks, full, hashes):
        r = self.reqs[request]
        if blocks:
            self.w.bind(blocks)
            r[0].extend(blocks)
        last = full // self.B
        if last > r[1]:
            self.w.seal(r[0][r[1]:last], [self.key(hashes, i) for i in range(r[1], last)])
            r[1] = last

    def _end(self, blocks, rows, tag):
        if tag is not None:
            self.w.snapshot(tag, blocks, 0, rows)
        if blocks:
            self.w.release(blocks)

    def preempt(self, request, rows, tag):
        r = self.reqs[request]
        self._do(self._end, r[0], rows, tag)
        self.reqs[request] = [[], 0]

    def finish(self, request, rows, tag):
        self._do(self._end, self.reqs.pop(request)[0], rows, tag)

    def copy(self, src, dst):
        self._do(self.w.copy, src, dst)

    def reset(self):
        self._do(self.w.reset)

    def finish_message(self):
        self.open = False
        return self.w.finish()
