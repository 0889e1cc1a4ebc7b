"""An engine of `cost`: makes it, then runs the requests once for every line of its standard input.

  cost_engine.py SPEC     SPEC: JSON {model, requests, tokens, capture, options, timed}; timed: with clocks in the hooks of the capture

Prints "COST {...}" when the engine is there, and after every round; with a digest of all tokens.
"""
import collections
import functools
import hashlib
import importlib
import json
import statistics
import sys
import time

import numpy as np
import report
import vllm

AUX = "vllm.distributed.aux_output_connector"
HOOKS = {  # what a step calls: of vLLM's own capture, and of ours in its place
    "peer": ((AUX + ".connector", "AuxOutputSchedulerConnector", "build_connector_meta take_output request_finished"),
             (AUX + ".worker", "AuxOutputWorkerConnector", "begin_step prepare_output process_output"),
             (AUX + ".worker", "PendingAuxOutput", "enqueue_cpu_copy"),
             ("vllm.model_executor.layers.fused_moe.routed_experts_capturer", "RoutedExpertsCapturer", "capture")),
    "waymark": (("waymark.vllm._scheduler", "SchedulerConnector", "build_connector_meta take_output request_finished"),
                ("waymark.vllm._worker", "WorkerConnector", "begin_step prepare_output process_output"),
                ("waymark.vllm._worker", "Pending", "enqueue_cpu_copy"),
                ("vllm.model_executor.layers.fused_moe.routed_experts_capturer", "RoutedExpertsCapturer", "capture"))}
times = collections.defaultdict(list)


def time_hooks(capture):
    def timed(method, times):
        @functools.wraps(method)
        def call(*args, **more):
            start = time.perf_counter_ns()
            try:
                return method(*args, **more)
            finally:
                times.append(time.perf_counter_ns() - start)
        return call

    for module, kind, methods in HOOKS[capture]:
        owner = getattr(importlib.import_module(module), kind)
        for name in methods.split():
            setattr(owner, name, timed(getattr(owner, name), times[name]))


def hook_times():
    return {name: {"calls": len(ns), "p50": float(np.median(ns)) / 1e3} for name, ns in times.items() if ns}


def forget_times():
    for ns in times.values():
        ns.clear()


def fail_if_capture_ended(llm, spec):
    if spec["capture"] == "waymark":
        for one in llm.collective_rpc(report.of_worker):
            assert one and not one["failure"], one
            assert one["store"]["rows_landed"], one


def main():
    spec = json.loads(sys.argv[1])
    requests = spec["requests"]
    if spec["timed"]:
        time_hooks(spec["capture"])
    llm = vllm.LLM(model=spec["model"], skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=1024, seed=1,
                   enable_prefix_caching=True, block_size=32, enable_chunked_prefill=True, max_num_batched_tokens=2048,
                   max_num_seqs=requests, num_gpu_blocks_override=requests * 8, enable_return_routed_experts=spec["capture"] == "peer",
                   additional_config={"waymark": spec["options"] if spec["capture"] == "waymark" else False})
    engine = llm.llm_engine
    random = np.random.default_rng(1)
    params = vllm.SamplingParams(temperature=0.0, max_tokens=spec["tokens"], ignore_eos=True, detokenize=False)
    print("COST {}", flush=True)
    for number, _ in enumerate(sys.stdin):
        for i in range(requests):
            # Lengths differ, so that each step fills some blocks.
            prompt = random.integers(3, 500, 16 + i % 32).tolist()
            engine.add_request(f"{number}.{i}", {"prompt_token_ids": prompt}, params)
        tokens, decodes, thread = {}, [], []
        begin = time.perf_counter()
        while engine.has_unfinished_requests():
            start, cpu = time.perf_counter(), time.thread_time()
            outputs = engine.step()
            decodes.append(time.perf_counter() - start)
            thread.append(time.thread_time() - cpu)
            for output in outputs:
                tokens[output.request_id] = output.outputs[0].token_ids  # all so far
            if len(decodes) == 10:
                forget_times()  # those of prompts
            if len(decodes) == spec["tokens"] - 2:
                hooks = hook_times()  # before the first request finishes
        seconds = time.perf_counter() - begin
        fail_if_capture_ended(llm, spec)
        print("COST " + json.dumps({"tokens_per_second": requests * spec["tokens"] / seconds, "hook_us": hooks, "steps": spec["tokens"] - 12,
                                    "decode_ms": 1e3 * statistics.median(decodes), "decode_cpu_ms": 1e3 * statistics.median(thread),
                                    "decode_p999_ms": 1e3 * float(np.percentile(decodes[10:], 99.9)),
                                    "tokens": hashlib.sha256(repr(sorted((name, list(ids)) for name, ids in tokens.items())).encode()).hexdigest()}), flush=True)


if __name__ == "__main__":
    main()
