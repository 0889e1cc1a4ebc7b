"""A small engine on Waymark for ray_rollouts.py: paged KV, a prefix cache, chunked prefill, and the
samples of a group in one batch.

The model is a hash of all tokens so far, the layer and the version of the weights, so that every
row can be computed again. docs/integrating.md explains the calls.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import waymark

LAYERS, TOP_K, EXPERTS, PAGE, BLOCKS, CHUNK = 48, 8, 128, 16, 4096, 512
VOCABULARY, HASH = 32000, np.uint64(0x9E3779B97F4A7C15)


def prefix_of(tokens: np.ndarray) -> np.ndarray:
    """[n] tokens -> [n] hashes of all tokens up to each."""
    powers = np.cumprod(np.full(len(tokens), HASH))
    return np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * powers)


def route(prefix: np.ndarray, version: Any) -> np.ndarray:
    """[n] hashes and the version of the weights (one, or [n]) -> [n, LAYERS, TOP_K] experts."""
    h = prefix * HASH ^ np.asarray(version, np.uint64) << np.uint64(40)
    h = (h ^ h >> np.uint64(31))[:, None] * (np.arange(LAYERS, dtype=np.uint64) * HASH | 1)
    h = (h ^ h >> np.uint64(29))[..., None]
    return ((h >> 8) + np.arange(TOP_K, dtype=np.uint64) * (h >> 32 | 1)).astype(np.uint8) % EXPERTS


@dataclass
class Request:
    """A sequence in an engine. Its tokens are drawn beforehand: the model is a hash."""

    tokens: np.ndarray
    prompt: int
    blocks: list[int] = field(default_factory=list)
    done: int = 0

    def __post_init__(self) -> None:
        self.prefix = prefix_of(self.tokens)

    def key(self, block: int) -> int:
        return int(self.prefix[(block + 1) * PAGE - 1])


class HashEngine:
    """One engine. Not for several threads."""

    def __init__(self, seed: int) -> None:
        self.capture = waymark.Capture(num_layers=LAYERS, top_k=TOP_K, num_experts=EXPERTS,
                                       num_blocks=BLOCKS, page_tokens=PAGE, engine=None)
        self.users, self.version = [0] * BLOCKS, 0
        self.free = dict.fromkeys(range(BLOCKS))  # the least recently used first
        self.block_of: dict[int, int] = {}  # the prefix cache, by key
        self.key_of: dict[int, int] = {}  # the same, by block
        self.random = np.random.default_rng(seed)

    def load(self, version: int) -> None:
        """New weights: the KV of the old ones is of no use."""
        self.version = version
        self.block_of.clear()
        self.key_of.clear()

    def sample(self, prompts: list[np.ndarray], new: int,
               first: list[int]) -> list[tuple[np.ndarray, waymark.Rows]]:
        """`new` tokens behind each prompt: (all tokens, rows from `first` on) of each."""
        requests = [Request(np.append(prompt, self.random.integers(VOCABULARY, size=new)),
                            len(prompt)) for prompt in prompts]
        for request in requests:
            self.admit(request)
            while request.done < request.prompt:
                self.forward([request], min(CHUNK, request.prompt - request.done))
        for _ in range(new - 1):  # the last token is no input
            self.forward(requests, 1)
        taken = [self.capture.take(request.blocks, request.done, row)
                 for request, row in zip(requests, first)]  # before the release
        for request in requests:
            self.release(request.blocks)
        return [(request.tokens, one.result(10)) for request, one in zip(requests, taken)]

    def admit(self, request: Request) -> None:
        """A prefix hit: one user more of each block that has the beginning of the prompt."""
        while (len(request.blocks) + 1) * PAGE < request.prompt:
            block = self.block_of.get(request.key(len(request.blocks)))
            if block is None:
                break
            request.blocks.append(block)
            self.free.pop(block, None)
            self.users[block] += 1
        self.capture.retain(request.blocks)
        request.done = len(request.blocks) * PAGE

    def forward(self, batch: list[Request], count: int) -> None:
        """A step: the next `count` tokens of each."""
        slots, prefixes = [], []
        for request in batch:
            first, request.done = request.done, request.done + count
            while len(request.blocks) * PAGE < request.done:
                block = next(iter(self.free))
                del self.free[block]
                self.users[block] = 1
                self.block_of.pop(self.key_of.pop(block, -1), None)
                self.capture.bind(block)
                request.blocks.append(block)
            for i in range(first // PAGE, request.done // PAGE):  # this step fills it
                block, key = request.blocks[i], request.key(i)
                if key not in self.block_of:
                    self.capture.seal(block, key)
                    self.block_of[key], self.key_of[block] = block, key
            slots.append(waymark.slots_of(request.blocks, PAGE, first, request.done))
            prefixes.append(request.prefix[first:request.done])
        with self.capture.step(None, self.version, np.concatenate(slots)) as step:
            step.ids = route(np.concatenate(prefixes), self.version)
        self.capture.wait_idle(10)  # only because this forward takes no time

    def release(self, blocks: list[int]) -> None:
        self.capture.release(blocks)
        for block in reversed(blocks):  # the end of a sequence is reused before its beginning
            self.users[block] -= 1
            if not self.users[block]:
                self.free[block] = None
