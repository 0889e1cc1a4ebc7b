#!/usr/bin/env python3
"""Four published host-side routing stores and Waymark, driven from Python on the same work.

The designs are re-implemented in numpy from their descriptions, at the level of what they do to
memory, without the engines around them:

  per-request   an array a request, grown by doubling; a Python loop over the requests of a step
  slots         one buffer indexed by slot; one fancy assignment a step; emission lists a request
  hash-keyed    tails in a block pool; full blocks are serialised and written to an arena under
                their hash by a background thread; emission through a growing buffer a request
  block dict    a dict of arrays, one a KV block; a Python loop over the blocks of a step

Waymark is the installed Python module: Capture.step of a layer-major int16 tensor, with the events
of the blocks that the step takes; Capture.take on the engine's thread at the end of a request, its
rows read behind it.

Work: decode steps of 64, 256 and 1024 requests, a prefill of 8192 rows, and what a finished request
of 32768 rows costs (its rows as one contiguous array). L = 58, K = 8, E = 256. Every design's rows
are compared with what it was given. Times are lower deciles of single calls: calls of milliseconds
seldom run through undisturbed on a machine that others use.

  peers.py [--steps N]
"""
import argparse
import collections
import queue
import sys
import threading
import time

import numpy as np
import waymark

LAYERS, TOP_K, EXPERTS = 58, 8, 256
DECODE, PREFILL, LONG = (64, 256, 1024), 8192, 32768
PAGE = 16
CONTEXT = 256  # rows that every decoding request has when the clock starts

# One scenario's answer: microseconds on the engine's thread, and until the rows are stored.
Cost = collections.namedtuple("Cost", "engine total")


def make_rows(rows, seed):
    """[rows, L, K] uint8 with K distinct experts a layer."""
    random = np.random.default_rng(seed)
    first = random.integers(0, EXPERTS, (rows, LAYERS, 1))
    stride = random.integers(0, EXPERTS // 2, (rows, LAYERS, 1)) * 2 + 1  # odd: all K differ
    return ((first + stride * np.arange(TOP_K)) % EXPERTS).astype(np.uint8)


class Step:
    """The rows of one forward: (request, first position, count) each, in batch order."""

    def __init__(self, rows, parts, blocks, page):
        self.parts = parts
        self.positions = np.concatenate([np.arange(p, p + n) for _, p, n in parts])
        self.block_ids = np.array(
            [blocks[r][p // page] for r, first, n in parts for p in range(first, first + n)])
        self.offsets = self.positions % page
        self.slots = self.block_ids * page + self.offsets
        self.token_major = rows  # [T, L, K] uint8


class Peer:
    """What the clock sees: store() and take() on the engine's thread, drain() and what take() gave
    until the rows are there."""

    def take(self, request, length, blocks):
        rows = self.finish(request, length, blocks)
        return lambda: rows

    def rebound(self, blocks):
        pass

    def free(self, request):
        pass

    def drain(self):
        pass


class PerRequest(Peer):
    """Input: layer-major int16 [L, Nmax, K], as a captured device buffer arrives."""

    name = "per-request"

    def __init__(self, num_blocks, page):
        self.buffers, self.filled = {}, {}

    def prepare(self, step):
        return np.ascontiguousarray(step.token_major.transpose(1, 0, 2).astype(np.int16))

    def _ensure(self, request, required):
        buffer = self.buffers.get(request)
        if buffer is None:
            buffer = np.zeros((required, LAYERS, TOP_K), np.int16)
            self.filled[request] = 0
        elif len(buffer) < required:
            grown = np.zeros((max(required, 2 * len(buffer)), LAYERS, TOP_K), np.int16)
            grown[:len(buffer)] = buffer
            buffer = grown
        self.buffers[request] = buffer
        return buffer

    def store(self, step, view):
        rows = view[:, :len(step.positions), :].transpose(1, 0, 2)
        at = 0
        for request, _, n in step.parts:
            if n == 1:
                last = int(step.positions[at])
                self._ensure(request, last + 1)[last] = rows[at]
            else:
                positions = step.positions[at:at + n]
                last = int(positions.max())
                self._ensure(request, last + 1)[positions] = rows[at:at + n]
            self.filled[request] = max(self.filled[request], last + 1)
            at += n

    def finish(self, request, length, blocks):
        return self.buffers[request][:min(self.filled[request], length)].copy()

    def free(self, request):
        del self.buffers[request], self.filled[request]


class Slots(Peer):
    """Input: token-major int32 [T, L, K] and the slot mapping."""

    name = "slots"

    def __init__(self, num_blocks, page):
        self.page = page
        self.buffer = np.ones((num_blocks * page, LAYERS, TOP_K), np.uint8)
        self.emitted = collections.defaultdict(list)

    def prepare(self, step):
        return step.token_major.astype(np.int32)

    def store(self, step, rows):
        self.buffer[step.slots] = rows
        narrow = rows.astype(np.uint8)
        at = 0
        for request, _, n in step.parts:
            self.emitted[request].append(narrow[at:at + n])
            at += n

    def finish(self, request, length, blocks):
        ids = np.asarray(blocks)
        slots = (ids[:, None] * self.page + np.arange(self.page)).ravel()[:length]
        return self.buffer[slots]

    def free(self, request):
        self.emitted.pop(request, None)


class HashKeyed(Peer):
    """Input: token-major uint8 on the host, ranges, and the hashes of the blocks filled so far."""

    name = "hash-keyed"

    def __init__(self, num_blocks, page):
        self.page = page
        self.block_bytes = page * LAYERS * TOP_K
        self.tails = np.ones((sum(DECODE) + 8, page, LAYERS, TOP_K), np.uint8)
        self.free_tails = list(range(len(self.tails)))
        self.tail_of, self.start, self.cursor = {}, {}, {}
        self.arena = np.ones((num_blocks, self.block_bytes), np.uint8)
        self.free_cells = collections.deque(range(num_blocks))
        self.cells = collections.OrderedDict()
        self.retained = collections.Counter()
        self.scheduler = {}
        self.writes = queue.Queue()
        self.lock = threading.Lock()
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self):
        while True:
            key, data = self.writes.get()
            with self.lock:
                if key not in self.cells:
                    while not self.free_cells:
                        victim = next(k for k in self.cells if not self.retained[k])
                        self.free_cells.append(self.cells.pop(victim))
                    cell = self.free_cells.popleft()
                    self.arena[cell] = np.frombuffer(data, np.uint8)
                    self.cells[key] = cell
                self.cells.move_to_end(key)
            self.writes.task_done()

    @staticmethod
    def _key(request, ordinal):
        return "routing/0/%016x%016x" % (request, ordinal)

    def prepare(self, step):
        return step.token_major

    def _publish(self, request, ordinal, block):
        key = self._key(request, ordinal)
        self.writes.put((key, block.tobytes()))
        self.retained[key] += 1

    def store(self, step, rows):
        at = 0
        for request, first, n in step.parts:
            if request not in self.tail_of:
                self.tail_of[request] = self.free_tails.pop()
                self.cursor[request] = first
            tail = self.tails[self.tail_of[request]]
            mine = rows[at:at + n]
            cursor, done = self.cursor[request], 0
            while done < n:
                offset = (cursor + done) % self.page
                take = min(self.page - offset, n - done)
                if offset == 0 and take == self.page:
                    self._publish(request, (cursor + done) // self.page, mine[done:done + take])
                else:
                    tail[offset:offset + take] = mine[done:done + take]
                    if offset + take == self.page:
                        self._publish(request, (cursor + done) // self.page, tail)
                done += take
            self.cursor[request] = cursor + n
            at += n
        packed = rows.copy()  # the step's emission
        at = 0
        for request, first, n in step.parts:  # the scheduler's side
            buffer, used = self.scheduler.get(request, (None, 0))
            if buffer is None or used + n > len(buffer):
                grown = np.empty((max(used + n, 2 * (0 if buffer is None else len(buffer))),
                                  LAYERS, TOP_K), np.uint8)
                if buffer is not None:
                    grown[:used] = buffer[:used]
                buffer = grown
            buffer[used:used + n] = packed[at:at + n]
            self.scheduler[request] = (buffer, used + n)
            at += n

    def finish(self, request, length, blocks):
        """A request that the engine has from its prefix cache: nothing of it is in the buffer."""
        self.writes.join()
        published = min(self.cursor[request] // self.page, -(-length // self.page))
        with self.lock:
            parts = [self.arena[self.cells[self._key(request, i)]].tobytes()
                     for i in range(published)]
        rows = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, LAYERS, TOP_K)[:length]
        if len(rows) < length:
            left = length - len(rows)
            rows = np.concatenate([rows, self.tails[self.tail_of[request]][:left]])
        return rows

    def free(self, request):
        self.free_tails.append(self.tail_of.pop(request))
        self.cursor.pop(request)
        self.scheduler.pop(request, None)
        for key in [k for k in self.retained if k.startswith("routing/0/%016x" % request)]:
            del self.retained[key]

    def drain(self):
        self.writes.join()


class BlockDict(Peer):
    """Input: token-major int16 [T, L, K], block ids and offsets."""

    name = "block dict"

    def __init__(self, num_blocks, page):
        self.page = page
        self.blocks = {}

    def prepare(self, step):
        return step.token_major.astype(np.int16)

    def store(self, step, rows):
        ids, counts = np.unique(step.block_ids, return_counts=True)
        order = np.argsort(step.block_ids, kind="stable")
        rows, offsets = rows[order], step.offsets[order]
        at = 0
        for block, n in zip(ids.tolist(), counts.tolist()):
            kept = self.blocks.get(block)
            if kept is None:
                kept = self.blocks[block] = np.zeros((self.page, LAYERS, TOP_K), rows.dtype)
            kept[offsets[at:at + n]] = rows[at:at + n]
            at += n

    def finish(self, request, length, blocks):
        parts, have = [], 0
        for block in blocks:
            parts.append(self.blocks[block][:length - have])
            have += len(parts[-1])
        return np.concatenate(parts)

    def rebound(self, blocks):
        for block in blocks:
            self.blocks.pop(block, None)


class Waymark(Peer):
    """Input: layer-major int16 [L, T, K], as a captured device buffer arrives."""

    name = "Waymark"

    def __init__(self, num_blocks, page):
        self.memory = waymark.Capture(
            num_layers=LAYERS, top_k=TOP_K, num_experts=EXPERTS, num_blocks=num_blocks,
            page_tokens=page, ids_layout="LNK")

    def rebound(self, blocks):
        if blocks:
            self.memory.bind(blocks)

    def prepare(self, step):
        return np.ascontiguousarray(step.token_major.transpose(1, 0, 2).astype(np.int16))

    def store(self, step, ids):
        if self.memory.step(None, 1, step.slots, ids).dropped:
            sys.exit("peers.py: Waymark dropped a step")

    def take(self, request, length, blocks):
        taken = self.memory.take(blocks, length)

        def read():
            rows = taken.result(10)
            if not rows.valid.all():
                sys.exit("peers.py: Waymark has missing rows")
            return rows.ids
        return read

    def drain(self):
        self.memory.wait_idle(10)


class Engine:
    """Hands out blocks that lie anywhere, as a block pool does that has run for a while."""

    def __init__(self, num_blocks, page):
        self.page = page
        self.free = np.random.default_rng(3).permutation(num_blocks).tolist()
        self.blocks = collections.defaultdict(list)

    def grow(self, request, length):
        fresh = []
        while len(self.blocks[request]) * self.page < length:
            fresh.append(self.free.pop())
            self.blocks[request].append(fresh[-1])
        return fresh

    def release(self, request):
        self.free[:0] = self.blocks.pop(request)


def timed(call):
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def run_peer(make, page, steps):
    """{work: Cost} of one design."""
    num_blocks = (sum(DECODE) * (CONTEXT + 3 * PAGE + steps) + 4 * LONG) // page + 2 * sum(DECODE)
    peer, engine = make(num_blocks, page), Engine(num_blocks, page)

    def step(rows, parts):
        for request, first, n in parts:
            peer.rebound(engine.grow(request, first + n))
        work = Step(rows, parts, engine.blocks, page)
        given = peer.prepare(work)
        on_thread = timed(lambda: peer.store(work, given))
        return Cost(on_thread, on_thread + timed(peer.drain))

    def fill(request, length):
        for first in range(0, length, PREFILL):
            n = min(PREFILL, length - first)
            step(make_rows(n, first), [(request, first, n)])

    def decile(costs):
        return Cost(sorted(c.engine for c in costs)[len(costs) // 10],
                    sorted(c.total for c in costs)[len(costs) // 10])

    answer = {}
    rows = make_rows(PREFILL, 7)
    costs = []
    for i in range(24):
        costs.append(step(rows, [(10_000 + i, 0, PREFILL)]))
        peer.free(10_000 + i)
        engine.release(10_000 + i)
    answer["prefill"] = decile(costs[2:])

    request = 20_000
    fill(request, LONG)
    blocks = engine.blocks[request]
    wanted = np.concatenate([make_rows(PREFILL, f) for f in range(0, LONG, PREFILL)])[:LONG - 1]
    costs = []
    for _ in range(30):
        begin = time.perf_counter()
        rest = peer.take(request, LONG - 1, blocks)
        on_thread = (time.perf_counter() - begin) * 1e6
        got = rest()
        costs.append(Cost(on_thread, (time.perf_counter() - begin) * 1e6))
        if not np.array_equal(got, wanted):
            sys.exit("peers.py: %s gave back other rows than it was given" % peer.name)
        del got, rest
    answer["finish"] = decile(costs)
    peer.free(request)

    for decode in DECODE:
        requests = range(decode * 100, decode * 101)
        for request in requests:
            # Phases differ, so that each step fills some blocks and begins others.
            length = CONTEXT + request % PAGE
            step(make_rows(length, request), [(request, 0, length)])
        rows = make_rows(decode, 9)
        costs = []
        for i in range(steps):
            costs.append(step(rows, [(r, CONTEXT + r % PAGE + i, 1) for r in requests]))
        answer[decode] = decile(costs[min(16, steps // 4):])
        for request in requests:
            peer.free(request)
            engine.release(request)
    return answer


def work():
    """What an engine's thread does between steps: 2 ms of other things, without sleeping."""
    end = time.perf_counter() + 0.002
    while time.perf_counter() < end:
        pass


def report_dropped(dropped):
    """The machine was busy: landing did not get a core for some steps."""
    if dropped > 0:
        print("peers.py: %d steps were dropped" % dropped, file=sys.stderr)


def waymark_calls():
    """[(what, microseconds)] of the calls of an engine like vLLM, which peers have no like of: a
    whole step, ids included, and the take of a finished request; warm, and after 96 MB of other
    data have emptied the caches, as a forward does. What counts then is the difference to an empty
    call, which finds them as empty."""
    store = waymark.Capture(
        num_layers=LAYERS, top_k=TOP_K, num_experts=EXPERTS, num_blocks=4 * LONG // PAGE,
        page_tokens=PAGE, ids_layout="LNK")
    blocks = np.random.default_rng(5).permutation(4 * LONG // PAGE)[:LONG // PAGE].astype(np.int32)
    first = blocks[:256].astype(np.int64) * PAGE
    slots = first.copy()
    ids = [np.zeros((LAYERS, 256, TOP_K), np.int16) for _ in range(4)]
    for array in ids:
        array[:] = np.arange(TOP_K)
    slot_buffer, id_buffers = store.buffer(slots), [store.buffer(array) for array in ids]
    dropped = 0

    def take():
        return store.take(blocks, LONG - 1)

    def nothing():
        waymark._core.version()

    def cold(call):
        walk.sum()
        return timed(call)

    walk, order = np.ones(96 << 17), np.random.default_rng(6)  # 96 MB
    answer = {name: [] for name in (
        "Capture.step, 256 rows and their ids; 2 ms of other work", "caches cold: an empty call",
        "caches cold: Capture.step, 256 rows and their ids",
        "caches cold: Capture.take, %d rows" % (LONG - 1))}
    warm, empty, steps, takes = answer.values()
    number = 0
    for run in range(900):
        number += 1
        slots[:] = first + number % PAGE
        array = id_buffers[number % 4]
        while not array.free:
            work()

        def step(number=number, array=array):
            store.step(number, 1, slot_buffer, array, count=256)

        if run < 500:
            warm.append(timed(step))
            dropped += array.step.dropped
            work()
            continue
        taken = []
        calls = [(empty, nothing), (steps, step), (takes, lambda: taken.append(take()))]
        for which in order.permutation(3):  # what comes before a call is not always the same
            times, call = calls[which]
            times.append(cold(call))
            store.wait_idle(10)
        dropped += array.step.dropped
        taken[0].result(10)
    report_dropped(dropped)
    return list(answer.items())


def megatron_calls():
    """The same for an engine like Megatron: 256 decodes with the arrays of its context, in blocks
    of 256 tokens, of which one is taken in each step; a request of 32,767 rows that finishes."""
    requests, block, tokens, num_blocks = 256, 256, 16384, 1024
    dummy = num_blocks - 1
    store = waymark.Capture(
        num_layers=LAYERS, top_k=TOP_K, num_experts=EXPERTS, num_blocks=num_blocks,
        block_tokens=block, page_tokens=PAGE, null_blocks=[dummy], max_step_rows=tokens)
    # As in the context: views of one buffer.
    memory = np.zeros(tokens * 12, np.uint8)
    token_blocks, positions = memory[:tokens * 8].view(np.int64), memory[tokens * 8:].view(np.int32)
    token_blocks[:] = dummy
    token_blocks[:requests] = np.arange(requests)
    positions[:requests] = np.arange(requests)  # phases differ
    store.bind(np.arange(requests, dtype=np.int32))
    rows = make_rows(requests, 4).astype(np.int16)
    free = list(range(requests, 2 * requests))

    hooks, steps, landing = [], [], []
    for number in range(1, 2001):
        positions[:requests] += 1
        full = np.flatnonzero(positions[:requests] == block)
        left = token_blocks[full].astype(np.int32)
        taken = np.array([free.pop(0) for _ in full], np.int32)
        token_blocks[full], positions[full] = taken, 0
        free.extend(left.tolist())
        hooks.append(timed(lambda: (store.release(left), store.bind(taken))))
        ids = rows.copy()  # the engine makes a new array in each step
        pairs = token_blocks, positions
        steps.append(timed(lambda: landing.append(
            not store.step(number, 1, pairs, ids, count=requests).dropped)))
        work()
    store.wait_idle(10)
    report_dropped(landing.count(False))
    blocks = np.full(512, -1, np.int32)  # a row of the context's table
    blocks[:128] = np.arange(512, 640)
    finishes = []
    for request in range(300):
        store.bind(blocks[:128])

        def finish():
            taken = store.take(blocks, LONG - 1)
            store.release(blocks[:128])
            return taken

        taken = []
        finishes.append(timed(lambda: taken.append(finish())))
        taken[0].result(10)
    return [("Megatron: a step of 256 decodes, int64 and int32; 2 ms of work", steps),
            ("Megatron: release and allocate a block", hooks),
            ("Megatron: take and release; %d rows" % (LONG - 1), finishes)]


def main():
    parser = argparse.ArgumentParser(description="Published host designs beside Waymark.")
    parser.add_argument("--steps", type=int, default=200, help="decode steps (default 200)")
    args = parser.parse_args()
    if args.steps < 4:
        parser.error("--steps must be at least 4, got %d" % args.steps)

    designs = [(Waymark, PAGE, "Waymark"), (PerRequest, PAGE, "per-request"),
               (Slots, PAGE, "slots"), (HashKeyed, PAGE, "hash-keyed"),
               (BlockDict, 256, "block dict, 256"), (BlockDict, PAGE, "block dict, 16")]
    columns = {name: run_peer(make, page, args.steps) for make, page, name in designs}

    titles = [(n, "decode step, %d rows" % n) for n in DECODE]
    titles += [("prefill", "prefill, %d rows" % PREFILL), ("finish", "finish, %d rows" % LONG)]
    print("Waymark %s; L = %d, K = %d, E = %d, B = %d; lower deciles; microseconds (times Waymark's)" %
          (waymark.__version__, LAYERS, TOP_K, EXPERTS, PAGE))
    for field, title in (("engine", "engine's thread"), ("total", "until the rows are there")):
        print("\n%-28s" % title + "".join("%22s" % name for name in columns))
        for work, label in titles:
            own = getattr(columns["Waymark"][work], field)
            cells = []
            for name, column in columns.items():
                micros = getattr(column[work], field)
                ratio = "" if name == "Waymark" else " (%.3gx)" % (micros / own)
                cells.append("%22s" % ("%.4g%s" % (micros, ratio)))
            print("%-28s" % label + "".join(cells))

    print("\nWaymark alone: lower decile, median")
    for what, times in waymark_calls() + megatron_calls():
        times.sort()
        print("%-62s %6.1f %6.1f" % (what, times[len(times) // 10], times[len(times) // 2]))


if __name__ == "__main__":
    main()
