#!/usr/bin/env python3
"""The tiny engine with vLLM's names (tests/python/adapters) over waymark.vllm's CUDA half, on a real
device: torch's tensors, streams and graphs. No vLLM, no pytest. Exits with 1 if a row is wrong, or is
missing and was not lost.

  PYTHONPATH=SITE python vllm_names.py --repo REPOSITORY [--device cuda|cpu] [--steps 300]
"""
import argparse
import os
import random
import sys
import time
import types

parser = argparse.ArgumentParser()
parser.add_argument("--repo", required=True)
parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--seeds", default="1,2,3")
args = parser.parse_args()
sys.path.insert(0, os.path.join(args.repo, "tests/python/adapters"))
try:
    import pytest  # noqa: F401
except ImportError:
    keep = lambda *a, **k: (a[0] if a and callable(a[0]) else (lambda f: f))
    sys.modules["pytest"] = types.SimpleNamespace(fixture=keep, MonkeyPatch=object)
import numpy as np
import torch
import vllm_device_engine as base
import vllm_engine
from vllm_engine import LAYERS, Request
from waymark.vllm import _capture, _device, _results, _scheduler, _versions, _worker

CUDA = args.device == "cuda"
where = torch.device("cuda", 0) if CUDA else torch.device("cpu")
for part in (_capture, _versions, _worker, _scheduler, _results):
    part.module = base.modules
_versions.moe_layers = lambda runner, cuda=False: [
    _versions.MoELayer(i, f"layer{i}", r, 1) for i, r in enumerate(runner.routers)]


class Host:
    """Without a GPU: copies at once."""

    def __init__(self, index): ...

    def memory(self, shape, dtype, pinned=False):
        return torch.zeros(shape, dtype=getattr(torch, dtype))

    def copy(self, pairs):
        for host, source in pairs:
            host.copy_(source)

    def done(self, event):
        return True

    def enter_thread(self): ...


if not CUDA:
    _device.late.Cuda = Host
    _copy = _device.late.LateIds._copy
    def copy(self, entry, slots, rows):
        _copy(self, entry, slots, rows)
        entry.event = entry.event or (object() if entry.slots >= 0 else None)
    _device.late.LateIds._copy = copy


class Runner(base.DeviceRunner):
    def __init__(self):
        super().__init__()
        self.device = types.SimpleNamespace(index=0)
        full = lambda shape, dtype: torch.full(shape, base.SPOILED, dtype=dtype, device=where)
        self.on_device = full((1, base.MOST_ROWS), torch.int64)
        self.block_tables = types.SimpleNamespace(slot_mappings=self.on_device)
        self.inputs = full((LAYERS, base.MOST_ROWS, 1), torch.int32)
        self.staged = np.full(base.MOST_ROWS, base.SPOILED, np.int64)
        self.work = torch.randn(2048, 2048, device=where)
        self.graph = {}

    @property
    def slots(self):  # the engine writes them here; run_model brings them to the device
        return self.staged

    def route(self, layer, ids):
        self.rows = len(ids)
        self.inputs[layer].fill_(base.SPOILED)
        self.inputs[layer, : self.rows].copy_(torch.from_numpy(np.ascontiguousarray(ids)))

    def layers(self, size):
        for layer, router in enumerate(self.routers):
            for _ in range(4 if CUDA else 0):
                self.work.copy_(torch.tanh(self.work @ self.work))  # so that the device is behind
            if layer != self.silent:
                router.capture_fn(self.inputs[layer, :size])

    def capture_model(self):
        if not CUDA or not self.graphs:
            return 0
        for size in base.SIZES:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.layers(size)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.layers(size)
            self.graph[size] = graph
        return 0

    def run_model(self, eager=False):
        self.on_device[0].copy_(torch.from_numpy(self.staged))
        sizes = [size for size in self.graph if size >= self.rows]
        self.runs.append((self.rows, bool(sizes and not eager)))
        with torch.inference_mode():
            if sizes and not eager:
                self.graph[min(sizes)].replay()
            else:
                self.layers(self.rows)

    def sample_tokens(self):
        self.execute_model_state = None
        self.on_device.fill_(base.SPOILED)  # by the drafter
        return vllm_engine.Runner.sample_tokens(self)

    def _dummy_run(self, tokens, skip_eplb=False, uniform_decode=False, is_profile=False):
        self.staged.fill(-1)
        self.rows = tokens
        self.inputs.fill_(3)
        self.run_model(eager=is_profile)


class Engine(base.DeviceEngine):
    def __init__(self, **attributes):
        self.runner_kind = type("RunnerOnCuda", (Runner,), attributes)
        vllm_engine.Engine.__init__(self)


def campaign(seed, follows, **how):
    rng, engine = random.Random(seed), Engine(**how)
    late, requests, number = engine.runner._waymark.late, engine.scheduler.requests, 0
    for _ in range(args.steps):
        while len(requests) < rng.randint(1, 5):
            number += 1
            engine.add(Request(f"r{number}", rng.randint(1, 12)))
        running = [one for one in requests.values() if one.num_computed_tokens]
        if running and rng.random() < 0.1:
            engine.scheduler._preempt_request(rng.choice(running))
        if rng.random() < 0.2:
            engine.runner._dummy_run(rng.choice((1, 3, 16, 40)))
        if rng.random() < 0.05:
            engine.step({})
        tokens, ends = {}, []
        for name, request in requests.items():
            left = request.num_tokens - request.num_computed_tokens
            if rng.random() < 0.8:
                tokens[name] = rng.randint(1, left)
                if tokens[name] == left and request.num_tokens > 12 + rng.randint(0, 12):
                    ends.append(name)
        if tokens:
            engine.step(tokens, finish=tuple(ends))
            while follows and sum(late._ids_taken) > 1 and not late.failure:
                time.sleep(1e-4)
    engine.drain()
    counts = dict.fromkeys(("right", "wrong", "missing", "none"), 0)
    for name, output in engine.finished.items():
        rows = output.routed_experts
        if rows is None:
            counts["none"] += 1
            continue
        right, there = engine.expected(name, 0, len(rows)), (rows >= 0).all(axis=(1, 2))
        counts["missing"] += int((~there).sum())
        counts["right"] += int((rows == right).all(axis=(1, 2)).sum())
        counts["wrong"] += int((there & (rows != right).any(axis=(1, 2))).sum())
    half = engine.runner._waymark
    lost = late.lost + late.unknown + late.given_up
    graphs = sum(by for _, by in engine.runner.runs)
    bad = bool(counts["wrong"] or counts["none"] or half.failure or late.failure
               or counts["missing"] and not lost or not counts["right"])
    print("BAD" if bad else "ok ", "seed", seed, how, "follows" if follows else "ahead", counts,
          f"lost {lost}, {graphs} of {len(engine.runner.runs)} forwards by graphs", half.failure, flush=True)
    late.close(20)
    return bad


bad = False
for seed in map(int, args.seeds.split(",")):
    for how in ({}, {"graphs": False}):
        for follows in (True, False):
            bad |= campaign(seed, follows, **how)
try:
    Engine(silent=1)
    bad = True
    print("BAD a silent layer was not refused")
except _versions.Refused as error:
    print("ok ", error)
if CUDA:
    print("peak device memory", torch.cuda.max_memory_allocated() >> 20, "MiB")
sys.exit(int(bad))
