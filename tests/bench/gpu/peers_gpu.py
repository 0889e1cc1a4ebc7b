#!/usr/bin/env python3
"""Other routing kernels on the cells of waymark_gpu_bench, timed the same way, in one run.

  torch     torch.topk and what it takes around it, eager PyTorch, captured into a CUDA graph
  compiled  the same through torch.compile (--compile)
  vllm      vllm's topk_softmax and grouped_topk, where they can be imported
  sgl       sgl_kernel's topk_softmax and moe_fused_gate, likewise
  flashinfer  fused_topk_deepseek, likewise
  waymark   waymark_gpu_bench (--bench PATH, found in build/ otherwise), or an earlier run's JSON
            (--json FILE, from --benchmark_out)

As there: a graph of many calls, each with logits of its own, after a write of four times the L2
cache; the time of one call, median of 25 graphs. What cannot be imported, or refuses a cell, has no
column there, and the first reason is printed. Needs PyTorch and a CUDA device.

  peers_gpu.py [--rows 1,64,1024,8192,32768] [--types float32,bfloat16] [--compile] [--bench PATH]
"""
import argparse
import glob
import json
import os
import re
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
RING_BYTES, MIN_CALLS, MAX_CALLS, RUNS = 512 << 20, 4, 64, 25

# method, E, K, groups, kept groups: the cells of routing_gpu_bench.cc.
CELLS = [
    ("Renormalize", 128, 8, 1, 1),
    ("Default", 128, 8, 1, 1),
    ("Renormalize", 256, 8, 1, 1),
    ("Default", 256, 8, 1, 1),
    ("DeepSeekV3", 256, 8, 1, 1),
    ("DeepSeekV3", 256, 8, 8, 4),
    ("SigmoidRenorm", 256, 8, 1, 1),
    ("DeepSeekV3", 384, 8, 1, 1),
    ("Renormalize", 512, 10, 1, 1),
    ("DeepSeekV3", 512, 22, 1, 1),
]


def torch_route(torch, cell):
    """A function of logits and bias that returns weights and ids."""
    method, experts, top_k, groups, kept = cell

    def renormalize(x, _):
        values, ids = torch.topk(x, top_k, dim=-1)
        return torch.softmax(values.float(), dim=-1), ids.to(torch.int32)

    def default(x, _):
        values, ids = torch.topk(torch.softmax(x.float(), dim=-1), top_k, dim=-1)
        return values, ids.to(torch.int32)

    def sigmoid_renorm(x, _):
        values, ids = torch.topk(torch.sigmoid(x.float()), top_k, dim=-1)
        return values / values.sum(-1, keepdim=True), ids.to(torch.int32)

    def deepseek(x, bias):
        scores = torch.sigmoid(x.float())
        keys = scores + bias
        if groups > 1:
            grouped = keys.view(-1, groups, experts // groups)
            best = torch.topk(grouped.topk(2, dim=-1)[0].sum(-1), kept, dim=-1)[1]
            keep = torch.zeros_like(grouped[:, :, 0], dtype=torch.bool).scatter_(1, best, True)
            keys = grouped.masked_fill(~keep.unsqueeze(-1), float("-inf")).view(-1, experts)
        ids = torch.topk(keys, top_k, dim=-1)[1]
        weights = scores.gather(1, ids)
        return weights / (weights.sum(-1, keepdim=True) + 1e-20), ids.to(torch.int32)

    return {"Renormalize": renormalize, "Default": default, "SigmoidRenorm": sigmoid_renorm,
            "DeepSeekV3": deepseek}[method]


def softmax_route(torch, top_k, kernel):
    def route(x, _):
        weights = torch.empty(x.shape[0], top_k, device=x.device)
        ids = torch.empty(x.shape[0], top_k, dtype=torch.int32, device=x.device)
        kernel(weights, ids, x)
        return weights, ids
    return route


def vllm_route(torch, cell):
    method, _, top_k, groups, kept = cell
    import vllm._custom_ops as ops
    if method in ("Renormalize", "Default"):
        return softmax_route(torch, top_k, lambda weights, ids, x: ops.topk_softmax(
            weights, ids, torch.empty_like(ids), x.float(), method == "Renormalize"))
    if method == "DeepSeekV3":
        def route(x, bias):
            scores = torch.sigmoid(x.float())
            return ops.grouped_topk(scores, scores + bias, groups, kept, top_k, True, 1.0)
        return route
    raise ValueError("no such method")


def sgl_route(torch, cell):
    method, _, top_k, groups, kept = cell
    import sgl_kernel
    if method in ("Renormalize", "Default"):
        return softmax_route(torch, top_k, lambda weights, ids, x: sgl_kernel.topk_softmax(
            weights, ids, x, method == "Renormalize"))
    if method == "DeepSeekV3":
        return lambda x, bias: sgl_kernel.moe_fused_gate(x.float(), bias, groups, kept, top_k)
    raise ValueError("no such method")


def flashinfer_route(torch, cell):
    method, _, top_k, groups, kept = cell
    from flashinfer.fused_moe import fused_topk_deepseek
    if method != "DeepSeekV3":
        raise ValueError("no such method")

    def route(x, bias):
        weights = torch.empty(x.shape[0], top_k, device=x.device)
        ids = torch.empty(x.shape[0], top_k, dtype=torch.int32, device=x.device)
        fused_topk_deepseek(x, bias, groups, kept, top_k, 1.0, weights, ids)
        return weights, ids
    return route


PEERS = {"torch": torch_route, "vllm": vllm_route, "sgl": sgl_route, "flashinfer": flashinfer_route}


class Timer:
    def __init__(self, torch):
        self.torch = torch
        size = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(4 * max(size, 32 << 20), dtype=torch.uint8, device="cuda")

    def micros(self, route, cell, dtype, rows):
        """Of one call; checks nothing but that it runs."""
        torch = self.torch
        experts = cell[1]
        bytes_ = rows * experts * torch.empty((), dtype=dtype).element_size()
        calls = min(max(RING_BYTES // bytes_, MIN_CALLS), MAX_CALLS)
        torch.manual_seed(1)
        logits = [torch.randn(rows, experts, device="cuda").mul_(2).to(dtype) for _ in range(calls)]
        bias = torch.randn(experts, device="cuda") * 0.01
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for x in logits[:3]:
                route(x, bias)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        kept = []
        with torch.cuda.graph(graph):
            for x in logits:
                kept.append(route(x, bias))
        times = []
        for run in range(RUNS + 3):
            self.flush.fill_(run & 0xff)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if run >= 3:
                times.append(begin.elapsed_time(end) * 1e3 / calls)
        return statistics.median(times)


def waymark_times(options):
    """{(method, E, K, groups, kept, dtype, what, rows): (us, of_floor)}"""
    if options.json:
        with open(options.json, encoding="utf-8") as file:
            report = json.load(file)
    else:
        found = [options.bench] if options.bench else sorted(
            glob.glob(os.path.join(ROOT, "build/*/tests/bench/waymark_gpu_bench")),
            key=os.path.getmtime)
        if not found:
            return {}
        rows = "|".join(str(n) for n in options.rows)
        done = subprocess.run(
            [found[-1], f"--benchmark_filter=^Route/.*/N:({rows})/", "--benchmark_format=json"],
            stdout=subprocess.PIPE, text=True, check=True)
        report = json.loads(done.stdout[done.stdout.index("{"):])
    times = {}
    pattern = re.compile(r"Route/(\w+)/E(\d+)/K(\d+)/(\d+)of(\d+)/(\w+)/(\w+)/N:(\d+)")
    for run in report["benchmarks"]:
        found = pattern.match(run["name"])
        if found and "us" in run:
            method, experts, top_k, kept, groups, dtype, what, rows = found.groups()
            times[(method, int(experts), int(top_k), int(groups), int(kept), dtype, what,
                   int(rows))] = (run["us"], run["of_floor"])
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,64,1024,8192,32768")
    parser.add_argument("--types", default="float32,bfloat16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bench")
    parser.add_argument("--json")
    options = parser.parse_args()
    options.rows = [int(n) for n in options.rows.split(",")]
    try:
        import torch
    except ImportError as error:
        sys.exit(f"needs PyTorch: {error}")
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    print(f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}")
    ours = waymark_times(options)
    timer = Timer(torch)
    peers = dict(PEERS)
    if options.compile:
        peers["compiled"] = lambda t, cell: t.compile(torch_route(t, cell), dynamic=False)
    refused = {}
    whats = ("plain", "recorded", "replayed")
    print(f"{'cell':<30} {'type':<9} {'N':>6}" + "".join(f"{what:>10}" for what in whats) +
          f"{'of floor':>10}" + "".join(f"{name:>11}" for name in peers) + "   microseconds")
    for cell in CELLS:
        for type_name in options.types.split(","):
            for rows in options.rows:
                line = f"{cell[0]} E{cell[1]} K{cell[2]} {cell[4]}of{cell[3]}"
                line = f"{line:<30} {type_name:<9} {rows:>6}"
                for what in whats:
                    time = ours.get((*cell, type_name, what, rows))
                    line += f"{time[0]:>10.2f}" if time else f"{'-':>10}"
                plain = ours.get((*cell, type_name, "plain", rows))
                line += f"{plain[1]:>10.2f}" if plain else f"{'-':>10}"
                for name, make in peers.items():
                    try:
                        time = timer.micros(make(torch, cell), cell, getattr(torch, type_name),
                                            rows)
                        line += f"{time:>11.2f}"
                    except Exception as error:  # pylint: disable=broad-except
                        torch.cuda.synchronize()
                        refused.setdefault(name, f"{cell}: {type(error).__name__}: {error}")
                        line += f"{'-':>11}"
                print(line, flush=True)
    for name, why in refused.items():
        print(f"{name} has gaps; the first: {why.splitlines()[0]}")


if __name__ == "__main__":
    main()
