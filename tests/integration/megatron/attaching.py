"""attach() to a real engine that runs, that is newer than known, or that cannot be captured; and users' errors.

  attaching.py JOB    JOB: JSON {scenario, spec: {seed, requests}, capture, spoil}

Prints FOUND and a JSON object. `failure` names the first check that does not hold.
"""
import collections
import dataclasses
import inspect
import json
import logging
import random
import sys

import megatron_engine  # first: no CUDA
import numpy as np
from hash_model import prefix_hashes, routes
from scenarios import Spec

sys.dont_write_bytecode = True


def finish(engine, spec, numbers, first, steps=10**6):
    """Requests are added, and run for so many steps or to their ends. [(tokens, routing_indices)]"""
    from megatron.core.inference.sampling_params import SamplingParams
    for number in range(first, first + spec.running):
        prompt = [numbers.randint(1, 96) for _ in range(numbers.randint(20, 60))]
        engine.add_request(number, prompt, SamplingParams(num_tokens_to_generate=numbers.randint(8, 20), termination_id=0, top_k=1))
    return run(engine, steps)


def run(engine, steps=10**6):
    found = []
    while engine.requests and steps:
        steps -= 1
        for record in engine.step_modern()["finished_request_records"]:
            request = record.merge()
            found.append((request.prompt_tokens.tolist() + list(request.generated_tokens), request.routing_indices))
    return found


class Checks:
    def __init__(self, spec, spoil):
        import waymark.megatron
        self.attach, self.refused = waymark.megatron.attach, waymark.megatron.Refused
        self.spec, self.spoil, self.numbers = spec, spoil, random.Random(spec.seed)
        self.counts, self.failure = collections.Counter(rows_expected=0, rows_checked=0, rows_wrong=0), ""
        self.engine = megatron_engine.make_engine(spec)
        self.first = 0

    def check(self, what, good):
        self.counts["checks"] += 1
        self.failure = self.failure or ("" if good else what)

    def requests(self, steps=10**6):
        self.first += 100
        return finish(self.engine, self.spec, self.numbers, self.first, steps)

    def compare(self, found):
        """How many rows are missing."""
        missing = 0
        for tokens, rows in found:
            self.counts["requests"] += 1
            self.counts["rows_expected"] += len(tokens) - 1
            rows = np.full((len(tokens) - 1, self.spec.layers, self.spec.top_k), -1) if rows is None else rows
            there = (rows >= 0).all(axis=(1, 2))
            want = routes(prefix_hashes(tokens[:-1]), self.spec.layers, self.spec.top_k, self.spec.experts)
            wrong = (np.roll(rows, 1, axis=0) if self.spoil else rows) != want
            self.counts["rows_wrong"] += int((there & wrong.any(axis=(1, 2))).sum())
            self.counts["rows_checked"] += len(there)
            missing += int((~there).sum())
        return missing

    def refuses(self, what, text):
        """attach() is refused, and changes nothing."""
        context = self.engine.context
        objects = (self.engine, context, context.kv_block_allocator, context.moe_routing_metadata)
        before = [dict(vars(one)) for one in objects]
        try:
            self.attach(self.engine).detach()
            why = "accepted"
        except self.refused as error:
            why = str(error)
        self.counts["refused"] += text in why
        self.check(f"{what}: {why}, expected {text}", text in why)
        same = all(now.keys() == then.keys() and all(now[key] is then[key] for key in then)
                   for now, then in zip(map(vars, objects), before))
        self.check(f"{what}: attach() changed something", same)

    def newer_engines(self):
        """A method has another name: each that a real attach() wraps."""
        attached = self.attach(self.engine)
        wrapped = [(type(owner), name) for owner, name, *_ in attached._hooks._replaced if hasattr(type(owner), name)]
        attached.detach()
        for owner, name in wrapped:
            if name == "retain_memory_blocks":  # only newer ones have it
                continue
            defined = next(one for one in owner.__mro__ if name in vars(one))
            method = vars(defined)[name]
            delattr(defined, name)
            try:
                by_block = name == "store_routing_per_block"  # is looked for first
                self.refuses(f"without {name}", "keeps no routing by block" if by_block else f"it has no {name}")
            finally:
                setattr(defined, name, method)
        config = self.engine.controller.inference_wrapped_model.model.config
        config.moe_router_load_balancing_type, before = "quantile_balancing", config.moe_router_load_balancing_type
        self.refuses("quantile balancing", "quantile_balancing does not record")
        config.moe_router_load_balancing_type = before
        self.check("an engine with which attach() was refused", self.compare(self.requests()) >= 0)

    def a_running_engine(self):
        """Rows from before are missing, and counted once; a user's error and a capture's end reach nothing."""
        finished = []

        def on_finished(one):
            finished.append(one)
            raise RuntimeError("a user's error")

        done = self.requests(steps=4)
        attached = self.attach(self.engine, on_finished=on_finished)
        missing = self.compare(run(self.engine))
        self.counts["missing"] += missing
        counted = sum(attached.missing.values())
        self.check(f"{missing} rows are missing, {counted} were counted", missing == counted and missing > 0 and not done)
        self.check("rows after users' errors", self.compare(self.requests()) == 0 and attached.failure == "")
        self.check("on_finished was called for each", len(finished) == 2 * self.spec.running)
        self.requests(steps=4)
        self.engine.context.kv_block_allocator.store_routing_per_block("no ids")
        self.check("a failure ends the capture", attached.failure != "")
        blocks = self.engine.context.request_to_kv_block_ids
        routing = self.engine.context.kv_block_allocator.block_routing
        self.check("blocks have no rows then", not any(int(block) in routing for block in blocks[blocks >= 0]))
        self.check("routing_indices are None then", all(rows is None for _, rows in run(self.engine)))
        attached.detach()
        again = self.attach(self.engine)
        self.check("a second capture", self.compare(self.requests()) == 0 and again.failure == "")
        again.detach()

    def untold_weights(self):
        """Weights that change in the idle engine, past torch's counter of writes, and nobody says so."""
        from waymark.megatron._versions import UNNAMED
        versions = []
        attached = self.attach(self.engine, on_finished=lambda one: versions.append({run.version for run in one.coverage().runs}))
        for named in (True, False):
            wrong, before = self.compare(self.requests()), len(versions)
            self.check(f"versions {versions}", wrong == 0 and all((UNNAMED in found) != named for found in versions))
            self.engine.controller.inference_wrapped_model.model.decoder.layers[0].weight.data[1] += 1
            versions.clear()
            self.check("requests", before > 0)
        attached.detach()

    def recompilations(self):
        """InferenceTopKRouter compiles its choice around its RouterReplay, of which a capture writes an attribute in each
        step: 20 steps compile it as often as without. (Whether they do, Dynamo decides, with every backend.)"""
        import torch
        from megatron.core.transformer.moe.router import InferenceTopKRouter
        compiled = torch.compile(InferenceTopKRouter._compiled_topk_routing._torchdynamo_orig_callable, backend="eager")
        more = dict.fromkeys(inspect.signature(compiled).parameters) | dict(
            use_pre_softmax=False, score_function="softmax", fused=False, dense_output=True)

        def record(router, ids):
            scores = torch.zeros(len(ids), self.spec.experts, device=ids.device)
            scores.scatter_(1, ids, -torch.arange(ids.shape[1], device=ids.device).expand_as(ids) + 9.0)
            compiled(**more | dict(logits=scores, topk=ids.shape[1], router_replay=router.router_replay))

        megatron_engine.Router.record, counts = record, [0, 0]
        for static, captured in ((False, False), (True, False), (False, True), (True, True)):
            megatron_engine.RouterReplay.clear_global_router_replay_instances()
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            self.engine = megatron_engine.make_engine(dataclasses.replace(self.spec, static_buffers=static))
            attached = self.attach(self.engine) if captured else None
            found = finish(self.engine, self.spec, random.Random(1), 0, steps=20)
            counts[captured] += torch._dynamo.utils.counters["stats"]["unique_graphs"]
            rows = found if captured else []
            self.check("rows of a compiled router", self.compare(rows) == 0 and bool(rows) == captured)
        self.check(f"compiled {counts[0]} times, with a capture {counts[1]} times", counts[0] >= counts[1] > 2)
        self.counts["compiled"] = counts[1]

    def run(self):
        logging.getLogger("waymark.megatron").setLevel(logging.CRITICAL)
        attached = self.attach(self.engine)
        self.check("a first capture", self.compare(self.requests()) == 0)
        register = self.engine.context.kv_block_allocator.register_kv_block_hashes
        more = {"parent_hashes": []} if "parent_hashes" in inspect.signature(register).parameters else {}
        register(block_ids=[], block_hashes=[], **more)  # by name, as a KV handoff of main does
        self.check(f"a call by names: {attached.failure}", attached.failure == "")
        attached.detach()
        self.a_running_engine()
        self.untold_weights()
        self.newer_engines()
        self.recompilations()
        return dict(self.counts, requests_lost=0, rows_missing={}, failure=self.failure, us={})


def main():
    job = json.loads(sys.argv[1])
    spec = dataclasses.replace(Spec(blocks=400, running=6), **{key: value for key, value in job["spec"].items() if key == "seed"})
    print("FOUND " + json.dumps(Checks(spec, job.get("spoil")).run()), flush=True)


if __name__ == "__main__":
    main()
