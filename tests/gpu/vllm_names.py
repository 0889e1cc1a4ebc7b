#!/usr/bin/env python3
"""The tiny engine with vLLM's names (tests/python/adapters) over waymark.late and waymark.vllm's
CUDA half, on a real device: torch's tensors, streams and graphs, in random schedules. No vLLM, no
pytest. Exits with 1 if a row is wrong, or is missing without a reason; 77: there is no GPU. With
--device cpu copies come late, as in the tests, there are no graphs, and numpy does without torch.

  PYTHONPATH=SITE python tests/gpu/vllm_names.py [--schedules 10] [--fault WHAT] [--strict]
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import statistics
import sys
import time
import types

import numpy as np

try:
    import torch
except ImportError:
    torch = None

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../python/adapters"))
try:
    import pytest  # noqa: F401
except ImportError:  # for the names of its fixtures alone
    sys.modules["pytest"] = types.SimpleNamespace(
        fixture=lambda *given, **more: given[0] if given else lambda function: function,
        MonkeyPatch=object)  # fmt: skip
import vllm_device_engine as base
import vllm_engine
from late_device import MISTAKES, SPOILED, LateDevice, Mistake
from waymark import late
from waymark.vllm import _versions


class Cuda(late.Cuda):
    """ordered: copies wait for what the device was given before."""

    ordered = True
    held, error, most_looks, in_order = False, None, 0, True  # as of LateDevice

    def __init__(self, index):
        super().__init__(index)
        self.random = random.Random()

    def copy(self, pairs):
        if self.ordered:
            return super().copy(pairs)
        with torch.cuda.stream(self._stream):  # which then waits for itself alone
            return super().copy(pairs)

    def done(self, event):
        if self.error is not None:
            raise self.error
        return not self.held and super().done(event)


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


def run(args, kit, name, **how):
    """Whether something is bad in the schedules of one mode."""
    counts, bad = collections.Counter(), ""
    LateIds.times.clear()
    for seed in range(args.seed, args.seed + args.schedules):
        try:
            counts += base.Schedules(seed, kit=kit, drafts=bool(seed % 2), **how).run()
        except (AssertionError, _versions.Refused) as error:
            bad = f"seed {seed}: {type(error).__name__} {error}"
    bad = bad or any(counts[what] for what in base.BAD) or not counts["right"]
    print(
        f"{name:16} {'BAD' if bad else 'ok '}",
        f"{sum(counts[what] for what in base.ROWS)} rows: {dict(counts)}",
        f"| begin + issued {statistics.median(LateIds.times):.1f} us {bad or ''}",
        flush=True,
    )
    return bool(bad)


def step_times(graphs):
    """Microseconds of a step of 16 rows, two in flight, with and without capture, in turns."""
    engine = base.DeviceEngine(kit=Torch, graphs=graphs)
    off = type("Off", (base.DeviceRunner,), {"kit": Torch, "graphs": graphs})()
    for router in off.routers:
        router.capture_fn = lambda ids: None
    off.capture_model()
    batch, times = (np.arange(16), np.arange(16)), ([], [])
    for _ in range(10):
        for runner, took in zip((engine.runner, off), times):
            events = collections.deque()
            torch.cuda.synchronize()
            started = time.perf_counter_ns()
            for _ in range(50):
                if runner is not off:
                    engine.late.begin()
                runner.run_model(*batch)
                if runner is not off:
                    engine.late.issued(runner.slots, 16, lambda slots, ids: None)
                events.append(torch.cuda.Event())  # the engine's own wait, for sampled tokens
                events[-1].record()
                if len(events) == 2:
                    events.popleft().synchronize()
            torch.cuda.synchronize()
            took.append((time.perf_counter_ns() - started) / 50e3)
    on, off = map(statistics.median, times)
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
    for owner, name, value in vllm_engine.replaced(base.modules):
        setattr(owner, name, value)
    kit = Torch if torch else base.Numpy
    LateIds.what, LateIds.strict = args.fault, args.strict and cuda
    Cuda.ordered = args.fault not in ("no order", "no copy on the device")
    late.LateIds, late.Cuda = LateIds, Cuda if cuda else LateDevice
    if torch:
        torch.set_num_threads(1)
        LateDevice.make = Torch.full
    if cuda:
        Torch.where = torch.device("cuda", 0)
        Torch.matmuls = torch.randn(2048, 2048, device=Torch.where)
    bad = False
    for mode in args.modes.split(","):
        how = {"graphs": ("full" if mode == "ahead" else mode) if cuda else ""}
        bad |= run(args, kit, mode or "eager", follows=mode != "ahead", **how)
        if cuda and not args.fault and mode != "ahead":
            step_times(how["graphs"])
    if cuda:
        print("peak device memory", torch.cuda.max_memory_allocated() >> 20, "MiB")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
