"""Batches on Waymark: several requests in a step, steps that run ahead, preemptions, forks.

The model is a hash of the tokens so far, so that every row that is read can be checked. Exits with
1 if a row is wrong or missing. engine.py has the prefix cache; docs/integrating.md explains both.
"""
import sys
from dataclasses import dataclass, field

import numpy as np
import waymark

L, K, E, BLOCK, BLOCKS, CHUNK, PROMPT, TOKENS, AHEAD = 4, 2, 64, 16, 18, 24, 40, 90, 2


def route(prefix):
    """[n] hashes of all tokens so far -> [n, L, K] experts, K distinct ones per layer."""
    h = prefix[:, None, None] + np.arange(L)[:, None] * 7
    return ((h + np.arange(K) * (h >> 8 | 1)) % E).astype(np.int16)


@dataclass(eq=False)
class Request:
    prefix: np.ndarray  # [TOKENS] hashes
    blocks: list = field(default_factory=list)
    done: int = 0  # tokens whose KV is there
    lives: list = field(default_factory=list)  # (what was taken, rows), the first life first


def allocate():
    block = users.index(0)
    users[block] = 1
    return block


def grow(request, end):
    while len(request.blocks) * BLOCK < end:
        request.blocks.append(allocate())
        cap.bind(request.blocks[-1])


def leave(request):
    """It has finished, or is preempted: its rows are taken, then its blocks are released."""
    request.lives.append((cap.take(request.blocks, request.done), request.done))
    cap.release(request.blocks)
    for block in request.blocks:
        users[block] -= 1
    request.blocks, request.done = [], 0


def fork(parent):
    """Full blocks get one user more; the last one, which both go on to fill, is copied."""
    full, rest = divmod(parent.done, BLOCK)
    child = Request(parent.prefix.copy(), parent.blocks[:full], parent.done)
    child.prefix[parent.done:] = rng.integers(1 << 30, size=TOKENS - parent.done)
    # The rows of the parent's earlier lives, as far as the two have the same tokens.
    child.lives = [(life, min(rows, parent.done)) for life, rows in parent.lives]
    cap.retain(child.blocks)
    for block in child.blocks:
        users[block] += 1
    if rest:
        child.blocks.append(allocate())
        cap.copy(parent.blocks[full], child.blocks[-1], rest)
    return child


rng = np.random.default_rng(0)
# Its forward takes no time, so many steps and many taken rows wait for the store's threads.
cap = waymark.Capture(num_layers=L, top_k=K, num_experts=E, num_blocks=BLOCKS, page_tokens=BLOCK,
                      max_steps_in_flight=4096, spare_pages=8192)
users = [0] * BLOCKS
waiting = [Request(rng.integers(1 << 30, size=TOKENS)) for _ in range(40)]
running, finished, ahead, preempted, forked = [], [], [], 0, 0
while waiting or running:
    if waiting and len(running) < 3 and users.count(0) >= 3:
        running.append(waiting.pop())
    batch = []  # (request, end)
    for request in list(running):
        if request not in running:
            continue  # preempted, for one before it
        end = min(request.done + (CHUNK if request.done < PROMPT else 1), TOKENS - 1)
        while request in running and users.count(0) < -(-end // BLOCK) - len(request.blocks):
            leave(running[-1])  # preempted: it is computed again from its first token
            waiting.append(running.pop())
            preempted += 1
        if request not in running:
            continue
        grow(request, end)
        batch.append((request, end))
    # One request behind the other, in the same order in slots and ids.
    slots = [waymark.slots_of(r.blocks, BLOCK, r.done, end) for r, end in batch]
    ids = np.concatenate([route(r.prefix[r.done:end]) for r, end in batch])
    ahead.append((cap.step(None, 1, np.concatenate(slots)), ids))
    if len(ahead) > AHEAD:  # the engine runs ahead of its forwards
        step, ids = ahead.pop(0)
        step.ids = ids
    for request, end in batch:
        request.done = end
        if end == TOKENS - 1:  # the last token was never an input
            leave(request)
            running.remove(request)
            finished.append(request)
        elif end == PROMPT + 20 and len(running) < 4 and users.count(0) >= 3:
            running.append(fork(request))
            forked += 1
for step, ids in ahead:
    step.ids = ids

wrong = 0
for request in finished:
    got = waymark.join(*(life.result(timeout=10)[:rows] for life, rows in request.lives))
    right = got.valid & (got.ids == route(request.prefix[:-1])).all(axis=(1, 2))
    wrong += int((~right).sum())
print(f"{len(finished)} requests, {preempted} preempted, {forked} forked, {wrong} rows wrong or missing")
sys.exit(wrong != 0)
