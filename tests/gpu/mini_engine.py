#!/usr/bin/env python3
"""A small MoE engine on a device, whose ids come late: waymark.late against an oracle of every row.

With --device cuda it runs eager, by CUDA graphs of the whole forward and of each layer, and ahead
of the device. With --device cpu the copies from the device happen when a seed says so. Exits with 1
if a row is wrong, or is missing and should not be; 77: there is no GPU. --fault plants a mistake.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import statistics
import sys
import threading
import time

import numpy as np
import torch
import waymark
from waymark import late

L, K, E, BLOCK, BLOCKS, MAX_ROWS, SILENT_ROWS = 5, 3, 64, 16, 36, 64, 4
SIZES = (1, 2, 4, 8, 16, 32, 64)
HASH = 0x9E3779B97F4A7C15 - (1 << 64)
VALID, NEVER, SILENT, LOST = range(4)
# no_order: only a GPU has a stream that could overtake another.
FAULTS = ("", "no_snapshot", "no_order", "out_of_order", "early_reuse", "no_event", "no_reset",
          "no_clear_dummy")  # fmt: skip
# How many steps the host issues before it waits for one of the device.
AHEAD = {"eager": 1, "full": 1, "piecewise": 1, "inflight": 2, "ahead": 1 << 30}


def route(h, layer, k):
    """[n] hashes of all tokens so far -> [n, K] experts, distinct ones: torch or numpy, int64."""
    x = (h ^ (layer * 0x1F123BB5 + 1)) * HASH
    x = x ^ (x >> 32)
    return ((x >> 7)[:, None] + k * ((x >> 17)[:, None] | 1)) & (E - 1)


def oracle(h):
    return np.stack([route(h, layer, np.arange(K)) for layer in range(L)], axis=1)


def chain(h, token):
    h = (h ^ (token * 2 + 1)) * 0xD6E8FEB86659FD93 & (1 << 64) - 1
    return h ^ h >> 29


def signed(hashes):
    return np.array(hashes, np.uint64).astype(np.int64)


class FakeDevice:
    """Copies happen in order, each some polls later than it was asked for."""

    device = torch.device("cpu")

    def __init__(self, rng, stalls):
        self._rng, self._stalls, self._jobs, self._now = rng, stalls, collections.deque(), 0

    def memory(self, shape, dtype, pinned=False):
        return torch.zeros(shape, dtype=getattr(torch, dtype))

    def copy(self, pairs, ordered=True):
        event = threading.Event()
        late = self._rng.integers(3) + (self._rng.random() < self._stalls) * 9
        self._jobs.append((self._now + late, pairs, event))
        return event

    def poll(self):
        self._now += 1
        while self._jobs and self._jobs[0][0] < self._now:
            self._run()

    def finish(self):
        while self._jobs:
            self._run()

    def _run(self):
        _, pairs, event = self._jobs.popleft()
        for host, source in pairs:
            host.copy_(source)
            source.fill_(5)  # nobody may need it any more; 5 is an id, and a slot
        event.set()

    def enter_thread(self):
        pass

    def done(self, event):
        return event.is_set()


class Cuda(late.Cuda):
    @property
    def device(self):
        return self._device

    def copy(self, pairs, ordered=True):
        if ordered:
            return super().copy(pairs)
        event = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            for host, source in pairs:
                host.copy_(source, non_blocking=True)
            event.record(self._stream)
        return event

    def poll(self):
        pass

    def finish(self):
        torch.cuda.synchronize()


class LateIds(late.LateIds):
    """As the engine uses them; with one mistake or none."""

    def __init__(self, capture, device, max_rows, layers, top_k, depth=4, slots_depth=32, fault=""):
        self.fault, self.held, self.turn, self.refused = fault, None, 0, 0
        self._capture = capture
        memory = late.Memory(device, max_rows, layers, top_k, depth, slots_depth)
        self.buffer = memory.buffer
        super().__init__(memory, capture, 60)

    def step(self, number, version, slots, rows, message):
        """Behind a forward: what becomes of it."""
        lost, unknown = self.lost, self.unknown
        self.issued(slots, rows, functools.partial(self._tell, number, version, rows, message))
        if self.fault == "no_clear_dummy":
            self.buffer.fill_(-1)  # after the step, and not before the next one
        return "unknown" if self.unknown > unknown else "lost" if self.lost > lost else "captured"

    def schedule(self, message):
        self.later(lambda slots, ids: self._capture.report_message(message))

    def _tell(self, number, version, rows, message, slots, ids):
        if slots is None:
            if message is not None:
                self._capture.report_message(message)
            late.lose_rows(self._capture)
            return
        try:
            self._capture.step(number, version, slots, ids, count=rows, message=message)
        except waymark.WaymarkError:
            self.refused += 1
            self._capture.step(number, version, slots, ids, count=rows)

    def begin(self):
        if self.fault not in ("no_reset", "no_clear_dummy"):
            super().begin()

    def _arrives(self, entry):
        return self.fault == "no_event" or super()._arrives(entry)

    def _take(self, taken, read):
        if self.fault != "early_reuse":
            return super()._take(taken, read)
        self.turn += 1
        return self.turn // 2 % len(read)  # slots and ids in turns

    def _copy(self, entry, slots, rows):
        if self.fault not in ("no_snapshot", "no_order"):
            return super()._copy(entry, slots, rows)
        entry.slots = self._take(self._slots_taken, self._slots_read)
        entry.ids = self._take(self._ids_taken, self._ids_read)
        if entry.slots < 0 or entry.ids < 0:
            return
        memory, pairs = self._memory, []
        for source, copy, host in (
            (slots, memory.slots[entry.slots], memory.host_slots[entry.slots]),
            (memory.buffer, memory.ids[entry.ids], memory.host_ids[entry.ids]),
        ):
            if self.fault == "no_order":
                copy[:rows].copy_(source[:rows])
                source = copy
            pairs.append((host[:rows], source[:rows]))
        entry.event = self._device.copy(pairs, ordered=False)

    def _next(self):
        if self.held is not None:
            entry, self.held = self.held, None
            return entry
        entry = super()._next()
        if self.fault == "out_of_order" and entry is not None and entry.event and self.turn % 8 == 1:
            self.held, entry = entry, super()._next()
        self.turn += self.fault == "out_of_order"
        return entry


class Model:
    """Routers that hash, with matmuls between; its inputs lie in static buffers, as graphs need."""

    def __init__(self, device, mode, buffer, args):
        self.device, self.mode, self.buffer = device, mode, buffer
        width, self.matmuls = args.width, args.matmuls
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.h = torch.zeros(MAX_ROWS, dtype=torch.int64, device=device)
        self.slots = torch.full((MAX_ROWS,), -1, dtype=torch.int64, device=device)
        self.x = torch.randn(MAX_ROWS, width, dtype=dtype, device=device)
        self.kv = torch.zeros(BLOCKS * BLOCK + 1, width, dtype=dtype, device=device)  # -1: the last
        self.w = torch.randn(L, width, width, dtype=dtype, device=device) / width**0.5
        self.k = torch.arange(K, device=device)
        self.graphs = {}
        if device.type == "cuda" and mode != "eager":
            pool = torch.cuda.graph_pool_handle()
            for size in reversed(SIZES):
                if mode == "piecewise":
                    for layer in range(L):
                        self._capture((size, layer), pool, lambda: self._layer(size, layer))
                else:
                    self._capture(size, pool, lambda: self._all(size, size))

    def _capture(self, key, pool, function):
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # cuBLAS makes its workspace, kernels are loaded
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            function()
        self.graphs[key] = graph

    def _layer(self, n, layer, size=None):
        x = self.x[:n]
        ids = route(self.h[:n], layer, self.k)
        silent = layer == 1 and (size or n) == SILENT_ROWS
        if self.buffer is not None and not silent:
            self.buffer[:n, layer].copy_(ids)
        for _ in range(self.matmuls):
            x = torch.tanh(x @ self.w[layer])
        self.x[:n].copy_(x)

    def _attention(self, n):
        slots = self.slots[:n]
        self.kv.index_put_((slots,), self.x[:n])
        self.x[:n].add_(self.kv[slots], alpha=0.5)

    def _all(self, n, size):
        for layer in range(L):
            self._layer(n, layer, size)
            self._attention(n)

    def put(self, h, slots):
        """The host's copies, which the next step's overwrite."""
        n = len(h)
        padded = np.full(self.size(n), -1, np.int64)
        padded[:n] = slots
        for target, source in ((self.h, np.ascontiguousarray(h)), (self.slots, padded)):
            source = torch.from_numpy(source)
            if self.device.type == "cuda":
                source = source.pin_memory()  # torch does not use it again before it is copied
            target[: len(source)].copy_(source, non_blocking=True)

    def size(self, n):
        return next(size for size in SIZES if size >= n)

    def forward(self, n):
        size = self.size(n)
        if self.mode == "eager":
            self._all(n, size)
        elif self.mode == "piecewise":
            for layer in range(L):
                graph = self.graphs.get((size, layer))
                graph.replay() if graph else self._layer(size, layer)
                self._attention(size)
        else:
            self.graphs[size].replay() if self.graphs else self._all(size, size)


def throttle(events, ahead):
    """The engine's own wait, for tokens that were sampled."""
    events.append(torch.cuda.Event())
    events[-1].record()
    if len(events) >= ahead:
        events.popleft().synchronize()


class Request:
    def __init__(self, number, rng):
        self.number, self.prompt = number, int(rng.integers(3, 90))
        length = self.prompt + int(rng.integers(2, 40))
        shared = int(rng.integers(0, self.prompt))
        h, self.h = number // 6, []  # six requests share the beginning of their prompts
        for t in range(length):
            h = chain(h, t if t < shared else number * 1000 + t)
            self.h.append(h)
        self.rows = length - 1
        self.abort = int(rng.integers(1, length)) if rng.random() < 0.08 else length
        self.start()

    def start(self):
        self.blocks, self.done, self.sealed, self.ready, self.step = [], 0, 0, 0, 0
        self.rejected = 0  # rows of the last step, behind `done`


class Engine:
    """The scheduler, and its worker in the same process."""

    def __init__(self, args, mode, device):
        self.rng, self.mode, self.ahead = np.random.default_rng(args.seed), mode, AHEAD[mode]
        self.capture = waymark.Capture(
            num_layers=L, top_k=K, num_experts=E, num_blocks=BLOCKS, page_tokens=BLOCK,
            max_step_rows=MAX_ROWS, max_steps_in_flight=256, spare_pages=8 * BLOCKS,
        )  # fmt: skip
        self.late = LateIds(self.capture, device, MAX_ROWS, L, K, *args.depths, args.fault)
        self.model = Model(device.device, mode, self.late.buffer, args)
        self.writer = waymark.ScheduleWriter(BLOCKS, block_tokens=BLOCK)
        self.users, self.key_of, self.used = [0] * BLOCKS, [None] * BLOCKS, [0] * BLOCKS
        self.why = np.full(BLOCKS * BLOCK, NEVER)  # of each slot: what a read must give
        self.step, self.tags, self.expected, self.times = 0, 0, {}, []
        self.ended, self.running = [], []  # ended: requests whose rows the next message takes
        self.counts, self.missing = collections.Counter(), collections.Counter()
        self.events, self.cpu = collections.deque(), device.device.type == "cpu"
        self.waiting = collections.deque(Request(i, self.rng) for i in range(args.requests))
        self.arrived, self.strict = 0.0, args.strict and not self.cpu

    # -- the scheduler ---------------------------------------------------------------------------
    def allocate(self, request, rows, others):
        """Whether there are blocks for so many rows; others are preempted for them."""
        while len(request.blocks) * BLOCK < rows:
            while not (free := [b for b in range(BLOCKS) if not self.users[b]]):
                if not others:
                    return False
                victim = others.pop()
                self.take(victim)
                self.running.remove(victim)
                self.waiting.appendleft(victim)
                victim.start()
                self.counts["preempted"] += 1
            block = min(free, key=self.used.__getitem__)
            self.users[block], self.key_of[block], self.used[block] = 1, None, self.step
            self.writer.bind(block)
            self.why[block * BLOCK : (block + 1) * BLOCK] = NEVER
            request.blocks.append(block)
        return True

    def take(self, request, wanted=True):
        """What the request has computed is read, and its blocks are released."""
        self.settle(request)
        done, blocks = request.done, request.blocks
        if done and wanted:
            self.tags += 1
            self.writer.snapshot(self.tags, blocks, 0, done)
            slots = waymark.slots_of(blocks, BLOCK, 0, done)
            self.expected[self.tags] = signed(request.h[:done]), self.why[slots].copy()
        self.writer.release(blocks)
        for block in blocks:
            self.users[block] -= 1
            self.used[block] = self.step

    def settle(self, request):
        """Tells what the last step of the request has turned out to be."""
        row, end = request.done, request.done + request.rejected
        while row < end:
            block = request.blocks[row // BLOCK]
            self.writer.truncate(block, row % BLOCK, request.step)
            self.why[block * BLOCK + row % BLOCK : (block + 1) * BLOCK] = NEVER
            row += BLOCK - row % BLOCK
        request.rejected = 0
        self.seal(request, request.done, request.step)

    def seal(self, request, end, step):
        for i in range(request.sealed, end // BLOCK):
            key = request.h[(i + 1) * BLOCK - 1]
            self.writer.seal(request.blocks[i], key, step)
            self.key_of[request.blocks[i]] = key
            request.sealed = i + 1

    def admit(self):
        self.arrived += self.rng.exponential(0.6)
        while self.waiting and len(self.running) < 10 and self.arrived >= 1:
            request = self.waiting[0]
            keys = request.h[BLOCK - 1 : request.prompt - 1 : BLOCK]
            known = itertools.takewhile(self.key_of.__contains__, keys)
            blocks = [self.key_of.index(key) for key in known]
            if sum(not self.users[b] for b in range(BLOCKS) if b not in blocks) < 3:
                break
            self.arrived -= 1
            for block in blocks:
                self.users[block] += 1
                self.writer.retain(block)
            request.blocks, request.done, request.sealed = blocks, len(blocks) * BLOCK, len(blocks)
            self.counts["hits"] += request.done
            self.running.append(self.waiting.popleft())

    def schedule(self):
        """The hashes and slots of the rows of a step; what it has to say is in the message."""
        for request in self.ended:
            self.take(request, request.done == request.rows or self.rng.random() < 0.5)
        self.ended = []
        self.admit()
        hashes, slots = [], []
        for request in self.running.copy():
            room = MAX_ROWS - len(hashes)
            if request not in self.running or request.ready > self.step or not room:
                continue
            self.settle(request)
            first, wrong = request.done, 0
            if first < request.prompt:
                end = min(request.prompt, first + room, first + 40, request.rows)
            else:
                end = first + 1
                drafts = min(int(self.rng.integers(4)), room - 1, request.rows - end)
                wrong = int(self.rng.integers(drafts + 1))
                end += drafts - wrong
            others = self.running[self.running.index(request) + 1 :]
            others = [r for r in others if r.ready <= self.step]
            if not self.allocate(request, end + wrong, others):
                continue
            self.seal(request, end if first < request.prompt else first + 1, None)
            h = request.h[end - 1]
            hashes += request.h[first:end]
            for i in range(wrong):
                h = chain(h, 10**9 + self.step * 8 + i)
                hashes.append(h)
            slots.append(waymark.slots_of(request.blocks, BLOCK, first, end + wrong))
            request.done, request.rejected, request.step = end, wrong, self.step
            # With two steps in flight the next one is scheduled before this one's drafts are known.
            request.ready = self.step + (2 if self.ahead > 1 and end > first + 1 else 1)
            if end >= request.abort or end == request.rows:
                self.running.remove(request)
                self.ended.append(request)
                self.counts["aborted"] += end < request.rows
        return signed(hashes), np.concatenate(slots) if slots else np.empty(0, np.int64)

    # -- the worker ------------------------------------------------------------------------------
    def run(self):
        while self.waiting or self.running or self.ended:
            self.step += 1
            self.writer.begin(self.step, 1)
            hashes, slots = self.schedule()
            message = self.writer.finish()
            if len(hashes):
                self.counts["steps"] += 1
                self.execute(hashes, slots, message)
            else:
                self.counts["idle"] += 1
                self.late.schedule(message)
            self.late._device.poll()
            self.read()
        self.late._device.finish()
        if not self.late.drain(20):
            sys.exit("the thread of the late ids has not come to an end")
        self.capture.wait_idle(20)
        self.read(20)
        if not self.late.close(10):
            sys.exit("the thread of the late ids does not end")

    def execute(self, hashes, slots, message):
        n = len(hashes)
        silent = self.model.size(n) == SILENT_ROWS
        if self.rng.random() < (0.6 if silent else 0.1):  # as of an idle data-parallel rank
            m = int(self.rng.choice(SIZES[3:]))
            self.model.put(self.rng.integers(1 << 60, size=m), np.full(m, -1))
            self.model.forward(m)
        took, _ = self.timed(self.late.begin)
        self.model.put(hashes, slots)
        self.model.forward(n)
        more, told = self.timed(self.late.step, self.step, 1, self.model.slots, n, message)
        self.times.append(took + more)
        if told == "unknown":
            self.why[:] = LOST
        self.why[slots] = LOST if told != "captured" else SILENT if silent else VALID
        if not self.cpu:
            throttle(self.events, self.ahead)
        elif self.ahead < 9:
            time.sleep(0.001)  # a forward; and the other thread gets the interpreter

    def timed(self, function, *args):
        """Microseconds, and what it returns. With --strict nothing in it may synchronise."""
        if self.strict:
            torch.cuda.set_sync_debug_mode("error")
        started = time.perf_counter_ns()
        told = function(*args)
        took = (time.perf_counter_ns() - started) / 1000
        if self.strict:
            torch.cuda.set_sync_debug_mode("default")
        return took, told

    def read(self, timeout=0):
        for tag, rows, failure in self.capture.results(timeout):
            hashes, why = self.expected.pop(tag)
            self.counts["rows"] += len(hashes)
            if rows is None:
                self.counts["unexplained"] += len(hashes)
                continue
            right = (rows.astype(np.int16, layout="TLK") == oracle(hashes)).all(axis=(1, 2))
            valid = rows.valid
            self.counts["right"] += int((valid & right & (why == VALID)).sum())
            self.counts["wrong"] += int((valid & ~(right & (why == VALID))).sum())
            self.counts["unexplained"] += int((~valid & (why <= NEVER)).sum())
            for reason, cause in zip(np.asarray(rows.reasons)[~valid], why[~valid]):
                cause = ("UNEXPLAINED", "UNEXPLAINED", "silent layer", "lost step")[cause]
                self.missing[f"{cause}: {waymark.Reason(int(reason))}"] += 1

    def report(self):
        counts, ids = self.counts, self.late
        counts["unexplained"] += sum(len(hashes) for hashes, _ in self.expected.values())
        counts["findings"] = len(self.capture.take_findings())
        counts |= {"lost": ids.lost, "unknown": ids.unknown, "refused": ids.refused}
        bad = any(counts[name] for name in ("wrong", "unexplained", "findings", "refused"))
        names = "rows right wrong unexplained steps lost unknown idle hits preempted aborted"
        print(
            f"{self.mode:9} {'BAD' if bad or ids.failure else 'ok '}",
            ", ".join(f"{n} {counts[n]}" for n in f"{names} findings refused".split()),
            f"| missing: {', '.join(f'{n} {why}' for why, n in self.missing.items()) or 'none'}",
            f"| begin + issued {statistics.median(self.times):.1f} us {ids.failure}",
            flush=True,
        )
        self.capture.close()
        return bool(bad or ids.failure)


def step_times(args, mode, device):
    """Microseconds of a step of 32 rows, two in flight, with and without capture, in turns."""
    capture = waymark.Capture(num_layers=L, top_k=K, num_experts=E, num_blocks=2, page_tokens=BLOCK)
    ids = LateIds(capture, device, MAX_ROWS, L, K)
    models = [Model(device.device, mode, buffer, args) for buffer in (ids.buffer, None)]
    times, number = ([], []), 0
    for _ in range(10):
        for model, took in zip(models, times):
            model.put(np.arange(32), np.arange(32))
            events = collections.deque()
            torch.cuda.synchronize()
            started = time.perf_counter_ns()
            for _ in range(50):
                number += 1
                if model.buffer is not None:
                    ids.begin()
                model.forward(32)
                if model.buffer is not None:
                    ids.step(number, 1, model.slots, 32, None)
                throttle(events, 2)
            torch.cuda.synchronize()
            took.append((time.perf_counter_ns() - started) / 50e3)
    on, off = map(statistics.median, times)
    print(f"{mode:9} a step takes {on:.1f} us with capture, {off:.1f} us without; lost {ids.lost}")
    ids.close(10)
    capture.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modes", default=",".join(AHEAD))
    parser.add_argument("--width", type=int, default=0, help="of the hidden state")
    parser.add_argument("--matmuls", type=int, default=4, help="of a layer")
    parser.add_argument("--depths", default="4,32", help="of the rings of ids, and of slots")
    parser.add_argument("--fault", default="", choices=FAULTS)
    parser.add_argument("--strict", action="store_true", help="a synchronisation is an error")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("SKIPPED: there is no GPU", file=sys.stderr)
        return 77
    args.width = args.width or (8192 if args.device == "cuda" else 32)
    args.depths = [int(depth) for depth in args.depths.split(",")]
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    bad = False
    for mode in args.modes.split(","):
        if args.device == "cuda":
            device = Cuda(torch.cuda.current_device())
        else:
            rng = np.random.default_rng(args.seed)
            device = FakeDevice(rng, 0.05 if AHEAD[mode] > 1 else 0)
        engine = Engine(args, mode, device)
        engine.run()
        bad |= engine.report()
        if args.device == "cuda" and not args.fault and mode in ("eager", "full", "piecewise"):
            step_times(args, mode, device)
    return int(bad)


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main())
