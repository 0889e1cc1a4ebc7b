#!/usr/bin/env python3
"""A small engine over waymark.late, on a real device: torch's tensors, streams and graphs, in
random schedules of requests that share blocks, with dummy batches, padding, silent layers and
steps in flight. No pytest. Exits with 1 if a row is wrong, or is missing without a reason; 77:
there is no GPU. With --device cpu copies come late, as in tests/python/adapters/late_device.py,
there are no real graphs, and numpy does without torch.

  PYTHONPATH=SITE python tests/gpu/late_ids.py [--schedules 10] [--fault WHAT] [--strict]
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import statistics
import sys
import time

import numpy as np
import waymark
from waymark import late

try:
    import torch
except ImportError:
    torch = None

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../python/adapters"))
from late_device import MISTAKES, SPOILED, LateDevice, Mistake, Numpy

LAYERS, TOP_K, EXPERTS, BLOCK, BLOCKS, MOST = 3, 3, 128, 16, 64, 64
SIZES = (1, 2, 4, 8, 16)  # of graphs
HASH = 0x9E3779B97F4A7C15 - (1 << 64)
VALID, NEVER, SILENT, LOST = range(4)  # what the store has to say of a row
BAD = ("wrong", "unexplained", "findings")


class Cuda(late.Cuda):
    """ordered: copies wait for what the device was given before."""

    ordered = True

    def copy(self, pairs):
        if self.ordered:
            return super().copy(pairs)
        with torch.cuda.stream(self._stream):  # which then waits for itself alone
            return super().copy(pairs)


class Torch:
    """What the engine does on the device."""

    where, matmuls, pool = "cpu", None, None

    @classmethod
    def full(cls, shape, dtype):
        return torch.full(shape, SPOILED, dtype=getattr(torch, dtype), device=cls.where)

    @classmethod
    def put(cls, target, values):
        values = torch.from_numpy(np.ascontiguousarray(values))
        if cls.where != "cpu":
            values = values.pin_memory()  # torch does not use it again before it is copied
        target[: len(values)].copy_(values, non_blocking=True)

    @classmethod
    def work(cls):
        """So that the device is behind."""
        for _ in range(4 if cls.matmuls is not None else 0):
            cls.matmuls.copy_(torch.tanh(cls.matmuls @ cls.matmuls))

    @staticmethod
    def eager(forward):
        with torch.inference_mode():
            forward()

    @classmethod
    def graph(cls, forward):
        cls.pool = cls.pool or torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.inference_mode():
            for _ in range(2):  # cuBLAS makes its workspace, kernels are loaded
                forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph, pool=cls.pool):
            forward()
        return graph


class LateIds(Mistake):
    """Its calls on the engine's thread are timed. strict: a synchronisation in one is an error."""

    strict, times = False, []

    def begin(self):
        self._begun = self._timed(super().begin)

    def issued(self, slots, rows, tell):
        self.times.append(self._begun + self._timed(super().issued, slots, rows, tell))

    def _timed(self, function, *given):
        """Microseconds."""
        if self.strict:
            torch.cuda.set_sync_debug_mode("error")
        started = time.perf_counter_ns()
        try:
            function(*given)
        finally:
            took = (time.perf_counter_ns() - started) / 1000
            if self.strict:
                torch.cuda.set_sync_debug_mode("default")
        return took


def route(hashes, layer, k):
    """[n] hashes -> [n, K] ids, distinct ones: numpy or torch, int64."""
    x = (hashes ^ (layer * 0x1F123BB5 + 1)) * HASH
    x = x ^ (x >> 32)
    return ((x >> 7)[:, None] + k * ((x >> 17)[:, None] | 1)) & (EXPERTS - 1)


class Engine:
    """A schedule. graphs: "full", "piecewise" (one a layer) or "", of at most the largest size.
    silent_size: of forwards in which layer 1 chooses nothing."""

    def __init__(self, kit, device, seed, graphs="", follows=True):
        self.kit, self.follows, self.rng = kit, follows, random.Random(seed)
        if hasattr(device, "random"):
            device.random.seed(seed)
            device.in_order, device.most_looks = seed % 2 == 0, self.rng.choice((1, 6))
        self.memory = late.Memory(device, MOST, LAYERS, TOP_K)
        self.store = waymark.Capture(
            num_layers=LAYERS, top_k=TOP_K, num_experts=EXPERTS, num_blocks=BLOCKS, engine=None,
            page_tokens=BLOCK, max_step_rows=MOST, max_steps_in_flight=64, spare_pages=1024)
        self.late = LateIds(self.memory, self.store, 30)
        self.silent_size = self.rng.choice((None, 4))
        self.hashes, self.slots = (kit.full((MOST,), "int64") for _ in range(2))
        self.k = kit.full((TOP_K,), "int64")
        kit.put(self.k, np.arange(TOP_K))
        self.captured = {}  # by size and first layer
        for size in reversed(SIZES) if graphs else ():
            for first in range(0, LAYERS, 1 if graphs == "piecewise" else LAYERS):
                last = first + 1 if graphs == "piecewise" else LAYERS
                self.captured[size, first] = kit.graph(lambda: self.layers(size, first, last))
        self.free, self.users = list(range(BLOCKS)), collections.Counter()
        self.truth, self.why = np.zeros((2, BLOCKS * BLOCK), np.int64)
        self.requests, self.taken = [], []
        self.counts = collections.Counter()

    def layers(self, size, first=0, last=LAYERS):
        for layer in range(first, last):
            if layer != 1 or size != self.silent_size:
                ids = route(self.hashes[:size], layer, self.k)
                self.memory.buffer[:size, layer].copy_(ids)
            self.kit.work()

    def forward(self, hashes, slots):
        """The size of it: padding has garbage."""
        rows = len(hashes)
        self.kit.put(self.hashes, np.append(hashes, np.full(MOST - rows, SPOILED)))
        self.kit.put(self.slots, np.append(slots, np.full(MOST - rows, -1)))
        sizes = [size for size, layer in self.captured if size >= rows]
        size = min(sizes) if sizes else rows
        if not sizes:
            self.kit.eager(lambda: self.layers(size))
        for layer in range(LAYERS):
            if (size, layer) in self.captured:
                self.captured[size, layer].replay()
        self.counts["by graphs"] += bool(sizes)
        return size

    # -- what happens ---------------------------------------------------------------------------
    def start(self):
        """A request, which may have the first full blocks of another one."""
        length, hit = self.rng.randint(2, 70), []
        others = [one for one in self.requests if one["done"] >= BLOCK]
        if others and self.rng.random() < 0.5:
            other = self.rng.choice(others)
            hit = other["blocks"][: self.rng.randint(1, other["done"] // BLOCK)]
            length = max(length, len(hit) * BLOCK + 1)
        new = -(-length // BLOCK) - len(hit)
        if new > len(self.free):
            return
        fresh = [self.free.pop(self.rng.randrange(len(self.free))) for _ in range(new)]
        blocks = hit + fresh
        self.users.update(blocks)
        for block in fresh:
            self.why[block * BLOCK : (block + 1) * BLOCK] = NEVER
        self.late.later(lambda *_: (self.store.bind(fresh), self.store.retain(hit)))
        self.requests.append({"blocks": blocks, "done": len(hit) * BLOCK, "length": length})

    def end(self, request):
        blocks, rows = request["blocks"], request["done"]
        at = np.array(blocks)[np.arange(rows) // BLOCK] * BLOCK + np.arange(rows) % BLOCK
        truth, why = self.truth[at].copy(), self.why[at].copy()

        def take(*_):
            self.taken.append((self.store.take(blocks, rows), truth, why))
            self.store.release(blocks)

        self.late.later(take)
        self.requests.remove(request)
        self.users.subtract(blocks)
        self.free += [block for block in blocks if not self.users[block]]

    def step(self):
        hashes, slots, room = [], [], self.rng.choice((4, 16, MOST))
        for request in self.rng.sample(self.requests, len(self.requests)):
            first = request["done"]
            count = min(self.rng.randint(1, 40), request["length"] - first, room)
            at = np.arange(first, first + count)
            slots.append(np.array(request["blocks"])[at // BLOCK] * BLOCK + at % BLOCK)
            hashes.append(np.array([self.rng.getrandbits(62) for _ in at], np.int64))
            request["done"], room = first + count, room - count
        hashes, slots = np.concatenate(hashes), np.concatenate(slots)
        lost, unknown, rows = self.late.lost, self.late.unknown, len(slots)
        self.late.begin()
        size = self.forward(hashes, slots)
        self.late.issued(self.slots, rows, lambda told, ids: self.tell(told, ids, rows))
        self.truth[slots] = hashes
        silent = size == self.silent_size
        self.why[slots] = LOST if self.late.lost > lost else SILENT if silent else VALID
        if self.late.unknown > unknown:  # nobody knows which rows it wrote
            self.why[:] = LOST
        self.slots.fill_(SPOILED)  # both may be written again at once
        self.hashes.fill_(SPOILED)
        self.counts["steps"] += 1

    def tell(self, slots, ids, rows):
        if slots is None:
            self.store.lose_rows()
        else:
            self.store.step(None, 1, slots, ids, count=rows)

    def follow(self, steps=2):
        """The engine runs so many steps ahead of its device, and not more."""
        deadline = time.monotonic() + 60
        while not self.late.failure and sum(
            taken or not read.free for taken, read in zip(self.late._ids_taken, self.late._ids_read)
        ) > steps:  # fmt: skip
            assert time.monotonic() < deadline
            time.sleep(5e-5)

    def run(self, steps=60):
        for _ in range(steps):
            while len(self.requests) < 6 and self.rng.random() < 0.7:
                self.start()
            if self.rng.random() < 0.15:  # a dummy batch, which leaves its ids
                self.forward(np.arange(self.rng.choice(SIZES)), np.zeros(0, np.int64))
            if self.requests:
                self.step()
                if self.follows:
                    self.follow()
            for request in [one for one in self.requests if one["done"] == one["length"]]:
                self.end(request)
        for request in list(self.requests):
            self.end(request)
        return self.close()

    def close(self):
        drained, counts = self.late.drain(60), self.counts
        counts["unexplained"] += not drained or bool(self.late.failure)
        for taken, truth, why in self.taken:
            rows = taken.result(60)
            right = np.stack([route(truth, layer, np.arange(TOP_K)) for layer in range(LAYERS)], 1)
            same = (rows.ids == right).all((1, 2)) & (why == VALID)
            counts["right"] += int((rows.valid & same).sum())
            counts["wrong"] += int((rows.valid & ~same).sum())
            for cause, name in ((VALID, "unexplained"), (NEVER, "unexplained"), (SILENT, "silent"),
                                (LOST, "lost")):  # fmt: skip
                counts[name] += int((~rows.valid & (why == cause)).sum())
        counts["findings"] = len(self.store.take_findings())
        counts["findings"] += self.store.stats().releases_below_zero
        self.late.close(10)
        self.store.close()
        return counts


def run(args, kit, device, name, **how):
    """Whether something is bad in the schedules of one mode."""
    counts, bad = collections.Counter(), ""
    LateIds.times.clear()
    for seed in range(args.seed, args.seed + args.schedules):
        try:
            counts += Engine(kit, device(), seed, **how).run()
        except AssertionError as error:
            bad = f"seed {seed}: {type(error).__name__} {error}"
    bad = bad or any(counts[what] for what in BAD) or not counts["right"]
    print(
        f"{name:16} {'BAD' if bad else 'ok '} {dict(counts)}",
        f"| begin + issued {statistics.median(LateIds.times):.1f} us {bad or ''}",
        flush=True,
    )
    return bool(bad)


def step_times(device, graphs):
    """Microseconds of a step of 16 rows, two in flight, with and without capture, in turns."""
    engine = Engine(Torch, device(), 1, graphs)
    engine.silent_size, times = None, ([], [])
    for turn in range(20):
        events, on = collections.deque(), turn % 2 == 0
        torch.cuda.synchronize()
        started = time.perf_counter_ns()
        for _ in range(50):
            if on:
                engine.late.begin()
            engine.forward(np.arange(16), np.arange(16))
            if on:
                engine.late.issued(engine.slots, 16, lambda slots, ids: None)
            events.append(torch.cuda.Event())  # the engine's own wait, for sampled tokens
            events[-1].record()
            if len(events) == 2:
                events.popleft().synchronize()
        torch.cuda.synchronize()
        times[on].append((time.perf_counter_ns() - started) / 50e3)
    off, on = map(statistics.median, times)
    print(f"{graphs or 'eager':16} a step takes {on:.1f} us with capture, {off:.1f} us without; "
          f"lost {engine.late.lost}")  # fmt: skip
    engine.late.close(10)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=10, help="of each mode")
    parser.add_argument("--modes", default="full,piecewise,,ahead", help="'': eager")
    parser.add_argument("--fault", default="", choices=("", "no order", *MISTAKES))
    parser.add_argument("--strict", action="store_true", help="a synchronisation is an error")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    if cuda and not (torch and torch.cuda.is_available()):
        print("SKIPPED: there is no GPU", file=sys.stderr)
        return 77
    kit, device = Torch if torch else Numpy, LateDevice
    LateIds.what, LateIds.strict = args.fault, args.strict and cuda
    Cuda.ordered = args.fault not in ("no order", "no copy on the device")
    if torch:
        torch.set_num_threads(1)
        LateDevice.make = Torch.full
    if cuda:
        device = lambda: Cuda(0)  # noqa: E731
        Torch.where = torch.device("cuda", 0)
        Torch.matmuls = torch.randn(2048, 2048, device=Torch.where)
    bad = False
    for mode in args.modes.split(","):
        graphs = "full" if mode == "ahead" else mode
        graphs = graphs if cuda or not torch else ""
        bad |= run(args, kit, device, mode or "eager", follows=mode != "ahead", graphs=graphs)
        if cuda and not args.fault and mode != "ahead":
            step_times(device, graphs)
    if cuda:
        print("peak device memory", torch.cuda.max_memory_allocated() >> 20, "MiB")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
