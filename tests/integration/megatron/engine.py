"""One engine in one process: runs the requests of a scenario, and compares every row with the oracle.

  engine.py JOB    JOB: JSON {scenario, spec (what differs from the scenario's), capture: waymark|peer|none, spoil, fault,
                   socket (of a Redis, for a scenario with a tier), first (this is the process before), no_tier}

Prints FOUND and a JSON object: see Run.figures().
"""
import collections
import dataclasses
import json
import queue
import random
import sys
import threading
import time

from scenarios import SCENARIOS, Spec

sys.dont_write_bytecode = True


def requests_of(spec):
    """[(prompt, tokens to generate)]. Groups have one prompt; one request in four has its own last tokens."""
    numbers, found, left, shared = random.Random(spec.seed), [], 0, []
    tokens = lambda count: [numbers.randint(1, 96) for _ in range(count)]
    for _ in range(spec.requests):
        if not left:
            half = spec.group // 2 if spec.group < spec.requests else 0
            left = max(1, numbers.randint(spec.group - half, spec.group + half))
            length = spec.prompt + numbers.randrange(2 * spec.block)
            if spec.longer:  # whole blocks: others hit all of them, and write their last row again
                length -= length % spec.block
            shared = tokens(length)
        left -= 1
        prompt = list(shared)
        if numbers.random() < 0.25:
            prompt[-3:] = tokens(3)
        if spec.longer and numbers.random() < 0.25:
            prompt += tokens(20)
        found.append((prompt, min(800, max(2, int(numbers.expovariate(1 / spec.output))))))
    return found


class Run:
    def __init__(self, spec, scenario, job):
        import megatron_engine
        import numpy
        self.np = numpy
        self.spec, self.scenario, self.capture, self.spoil = spec, scenario, job["capture"], job.get("spoil")
        self.make_engine = megatron_engine.make_engine
        self.engine = megatron_engine.make_engine(spec)
        self.context, self.model = self.engine.context, self.engine.controller.inference_wrapped_model.model
        self.counts = collections.Counter(dict.fromkeys((
            "requests", "requests_lost", "rows_checked", "rows_wrong", "rows_expected", "hits", "evictions", "same_step_reuses", "pauses",
            "chunks", "drafts_accepted", "drafts_rejected", "suspends", "recomputed", "stop_words", "new_weights",
            "rows_of_older_weights", "rows_not_covered", "aborts", "failed", "resets", "not_asked", "idle", "captures", "replays"), 0))
        self.todo, self.numbers = requests_of(spec), random.Random(spec.seed + 1)
        self.job, self.times_all = job, 2 if scenario.twice and not job.get("first") else 1
        self.missing, self.causes, self.examples = collections.Counter(), collections.Counter(), []
        self.own = {}        # request -> {position: (weights, forward or 0 for a hit) of the row that it was sampled with}
        self.admitted = set()  # requests whose first forward (of a chunk) is the next
        self.frozen = {}     # request -> rows of earlier lives
        self.times = collections.defaultdict(list)
        self.finished = {}   # request -> Finished
        self.lock = threading.Lock()
        self.attached = self.tier = None
        if self.capture == "waymark":
            if job.get("fault"):
                import faults
                faults.install(job["fault"])
            if scenario.tier is not None and not job.get("no_tier"):
                import waymark
                source = waymark.RedisSource(unix_socket=job["socket"]) if job.get("socket") else waymark.MemorySource()
                self.tier = waymark.Tier(source, space="these tests", key=b"a key of these tests", timeout=30, **scenario.tier)
            if scenario.twice != "process" or job.get("first"):
                self._attach()
        self.reads = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read_all, daemon=True)
        self._watch()

    def _attach(self):
        import waymark.megatron
        scenario = self.scenario
        target, model = (self.context, self.model) if scenario.context_only else (self.engine, None)
        keyed = dict(tier=self.tier, weights="step {}".format, same_weights=True) if self.tier else {}
        self.attached = waymark.megatron.attach(
            target, model=model, arrays=not scenario.reader_ms, on_finished=self._on_finished, store=scenario.store, **keyed)

    def _attach_again(self):
        if self.capture != "waymark":
            return
        if self.attached is not None:
            assert not self.attached.failure, self.attached.failure
            self.attached.detach()
        self._attach()

    def _on_finished(self, finished):
        self.finished[finished.request_id] = finished

    # -- what happens in the engine -----------------------------------------------------------
    def _watch(self):
        """Counts what the engine does, and times the routing's part of a step. Wraps what attach() wrapped."""
        allocator, context, counts = self.context.kv_block_allocator, self.context, self.counts
        released = set()

        def timed(owner, name):
            function = getattr(owner, name)

            def call(*args, **more):
                start = time.perf_counter_ns()
                try:
                    return function(*args, **more)
                finally:
                    self.times[name].append(time.perf_counter_ns() - start)

            setattr(owner, name, call)

        timed(allocator, "store_routing_per_block")
        timed(allocator, "reconstruct_routing_from_blocks")
        update, allocate, leave = context.update_requests, allocator.allocate_memory_blocks, context.release_memory_blocks_from_request_indexes
        add, forward = context.add_request, self.engine.controller.inference_wrapped_model.run_one_forward_step

        def update_requests(*args, **more):
            released.clear()
            result = update(*args, **more)
            released.clear()
            if result and result.get("newly_paused_request_ids") is not None:
                counts["pauses"] += result["newly_paused_request_ids"].numel()
            return result

        def release(indexes):
            released.update(self.context.request_to_kv_block_ids[indexes].flatten().tolist())
            return leave(indexes)

        def allocate_blocks(number):
            blocks = allocate(number)
            if blocks is not None and released:
                counts["same_step_reuses"] += len(released.intersection(blocks.tolist()))
            return blocks

        def add_request(request, prefill_chunk_length=None):
            counts["chunks"] += prefill_chunk_length is not None
            self.admitted.add(request.request_id)
            if not request.finished_chunk_token_count:
                self.frozen[request.request_id] = max(self.frozen.get(request.request_id, 0), self._rows_sampled(request.request_id))
            return add(request, prefill_chunk_length)

        wrapper, admitted = self.engine.controller.inference_wrapped_model, self.admitted

        def run_one_forward_step(*args, **more):
            captures = context.is_creating_cuda_graphs
            counts["captures"] += captures
            counts["replays"] += counts["captures"] and context.using_cuda_graph_this_step() and not captures
            if captures or not self.engine.requests:  # nobody's tokens
                return forward(*args, **more)
            rows = context.active_token_count
            owners = context.token_to_request_idx[:rows].tolist()
            for index, position in zip(owners, context.token_to_pos_ids[:rows].tolist()):
                owner = int(context.request_ids[index])
                own, first = self.own.setdefault(owner, {}), self.frozen.get(owner, 0)
                if owner in admitted:  # with hits up to this position
                    admitted.remove(owner)
                    hits = wrapper.pages.weights_of(context.request_to_kv_block_ids[index].cpu().numpy(), position).tolist()
                    own |= {place: (weights, 0) for place, weights in enumerate(hits) if place >= first and place not in own}
                if position >= first:
                    own[position] = self.model.weights, wrapper.forwards + 1
            return forward(*args, **more)

        controller = self.engine.controller
        rewind = controller._rewind_kv_cache

        def rewind_kv_cache(*args, **more):
            active = context.total_request_count - context.paused_request_count
            prefill = context.request_in_prefill_status_tensor[context.paused_request_count:context.total_request_count]
            accepted = int(controller._accepted_token_counts_per_request[:active][prefill == 0].sum())
            counts["drafts_accepted"] += accepted
            counts["drafts_rejected"] += int((prefill == 0).sum()) * self.spec.drafts - accepted
            return rewind(*args, **more)

        controller._rewind_kv_cache = rewind_kv_cache
        context.update_requests, allocator.allocate_memory_blocks = update_requests, allocate_blocks
        context.release_memory_blocks_from_request_indexes, context.add_request = release, add_request
        self.engine.controller.inference_wrapped_model.run_one_forward_step = run_one_forward_step

    def _rows_sampled(self, request_id):
        """Rows with which tokens were sampled before the request began again."""
        record = self.engine.requests[request_id].record
        return len(record[-1].prompt_tokens) - 1 if len(record.requests) > 1 else 0

    # -- the run ------------------------------------------------------------------------------
    def run(self):
        spec, engine, scenario = self.spec, self.engine, self.scenario
        self.reader.start()
        self.coming = collections.deque()
        arrival = self.steps = self.stuck = 0
        happens = [[wanted, what, *steps, self.numbers.randint(*steps)] for wanted, what, steps in (
            (spec.suspend, self._suspend, (25, 55)), (spec.new_weights, self._change_weights, (40, 80)),
            (spec.resets, self._reset, (60, 120)), (spec.idle, self._idle, (60, 120))) if wanted]
        start = time.perf_counter()
        for time_of_all in range(self.times_all):
            if time_of_all and scenario.twice != "pages":
                self._attach_again()
            self.coming.extend(range(len(self.todo)))
            while self.coming or engine.requests:
                if self.steps >= arrival or not engine.requests:
                    while self.coming and len(engine.waiting_request_ids) < spec.running:
                        self._add(self.coming.popleft())
                    if self.numbers.random() < 0.15:
                        arrival = self.steps + self.numbers.randint(1, 12)
                self._step()
                if self.numbers.random() < spec.aborts:
                    self._abort()
                for event in happens:
                    if self.steps >= event[4]:
                        event[1]()
                        event[4] = self.steps + self.numbers.randint(event[2], event[3])
        self.seconds = time.perf_counter() - start
        self.counts["steps"] = self.steps
        self._count_engine()
        self.reads.put(None)
        self.reader.join()

    def _step(self):
        result = self.engine.step_modern()
        self.steps += 1
        for record in result["finished_request_records"]:
            self._check(record)
        self.stuck = 0 if result["active_request_ids"] or result["finished_request_records"] else self.stuck + 1
        assert self.stuck < 50, f"stuck with {len(self.engine.requests)} requests"

    def _add(self, number):
        from megatron.core.inference.sampling_params import SamplingParams
        prompt, output = self.todo[number]
        params = SamplingParams(num_tokens_to_generate=output, termination_id=0, top_k=1)
        if self.spec.stop_words and number % 3 == 0:
            params.stop_words = [f"{1 + number % 96}"]
        self.engine.add_request(number, prompt, params)

    def _again(self, number, most=800):
        """A request did not end: its number comes again with other tokens, as many in its prompt as before."""
        prompt, output = self.todo[number]
        self.todo[number] = [1 + token % 96 for token in prompt], min(output, most)
        self.coming.append(number)
        self.admitted.discard(number)
        self.own.pop(number, None)
        self.frozen.pop(number, None)

    def _abort(self):
        """A request that has no blocks is given up: rather one that was evicted. Megatron has no method for it."""
        engine = self.engine
        waiting = [number for number in engine.waiting_request_ids if not engine.get_request(number).finished_chunk_token_count]
        evicted = [number for number in waiting if len(engine.requests[number].record.requests) > 1]
        if not waiting:
            return
        number = self.numbers.choice(evicted or waiting)
        engine.waiting_request_ids.remove(number)
        engine.requests.pop(number).future.cancel()
        engine.stop_word_finished_request_ids.discard(number)
        self.counts["aborts"] += 1
        self._again(number)

    def _change_weights(self):
        self.model.weights += 1
        self.engine._generation_epoch = self.model.weights
        self.counts["new_weights"] += 1

    def _reset(self):
        if self.counts["resets"] == 4:  # long requests have to end
            return
        running = list(self.engine.requests)
        self._count_engine()
        self.engine.reset()
        self.counts["resets"] += 1
        for number in running:
            self._again(number)
        if self.spec.new_weights:
            self.model.weights = self.engine._generation_epoch = 0

    def _idle(self):
        """All requests end. As an idle rank does for the experts of others, it runs forwards without requests; and captures
        CUDA graphs, outside of the inference mode in which a step has made the buffers."""
        engine = self.engine
        while engine.requests:
            self._step()
        engine.cuda_graph_impl, engine.inference_cuda_graph_scope = "local", "block"
        for idle in (engine.controller.dummy_forward, engine.create_cuda_graphs, engine.controller.dummy_forward):
            idle()
        self.counts["idle"] += 1

    def _count_engine(self):
        self.counts["hits"] += self.engine._prefix_cache_hits
        self.counts["evictions"] += self.engine.evicted_request_count
        self.engine._prefix_cache_hits = 0

    def _suspend(self):
        engine = self.engine
        running = set(engine.requests) - set(engine.waiting_request_ids)
        engine.suspend()
        self.counts["suspends"] += 1
        self.counts["recomputed"] += len(running) if self.spec.suspend == "RECOMPUTE" else 0
        engine.resume()

    # -- the comparison -----------------------------------------------------------------------
    def _check(self, record):
        request, last = record.merge(), record[-1]
        if last.status.name == "FAILED":
            self.counts["failed"] += 1
            return self._again(last.request_id, 8)  # as many as fit
        if self.scenario.context_only and len(record.requests) > 1:  # Megatron does not ask for its rows
            self.counts["not_asked"] += 1
            self.own.pop(request.request_id, None)
            return None
        if hasattr(last, "routing_indices") and last.routing_indices is not None:
            request.serialize()  # Megatron asserts the number of rows
        tokens = request.prompt_tokens.tolist() + list(request.generated_tokens)
        item = (request.request_id, tokens, request.routing_indices, self.finished.pop(request.request_id, None),
                self.own.pop(request.request_id, {}))
        self.frozen.pop(request.request_id, None)
        self.counts["stop_words"] += len(request.generated_tokens) < self.todo[request.request_id][1]
        if self.capture == "waymark" and self.attached is None:
            return
        if self.scenario.reader_ms and self.capture == "waymark":
            self.reads.put(item)
        else:
            self._compare(*item)

    def _read_all(self):
        for item in iter(self.reads.get, None):
            time.sleep(self.scenario.reader_ms / 1000)
            self._compare(*item)

    def _compare(self, request_id, tokens, array, finished, own):
        from hash_model import prefix_hashes, routes
        from waymark import Provenance
        np, spec = self.np, self.spec
        hashes, expected = prefix_hashes(tokens[:-1]), len(tokens) - 1
        counts, name = self.counts, f"request {request_id}"
        counts["requests"] += 1
        counts["rows_expected"] += expected
        rows = finished.rows() if finished is not None else None
        if self.capture == "waymark" and self.scenario.reader_ms and finished is not None:
            array = finished.array()
        if array is None:
            counts["requests_lost"] += 1
            reason = finished.failure if finished is not None else ""
            self.missing[reason or "nothing was returned"] += expected
            return
        if array.shape != (expected, spec.layers, spec.top_k) or array.dtype != np.int16:
            self._wrong(name, f"{array.dtype} {array.shape}", expected)
            return
        if self.spoil:
            array = np.roll(array, 1, axis=0)
        there = (array >= 0).all(axis=(1, 2))
        weights, noise = np.zeros(expected, np.int64), np.zeros(expected, np.int64)
        if rows is not None:
            weights = np.where(rows.valid, rows.infos["version"].astype(np.int64), 0)
            noise = np.where(rows.valid, rows.infos["step"].astype(np.int64), 0) if spec.noisy else noise
            covered = rows.valid == there
            counts["rows_not_covered"] += int((~covered).sum()) + (len(rows) != expected) * expected
            from waymark import Cause, Reason
            for reason, cause in zip(rows.reasons[~there], rows.infos["cause"][~there]):
                self.missing[Reason(reason).name.lower() if reason else "unexplained"] += 1
                self.causes[Cause(cause).name.lower()] += 1
        else:  # Megatron's own does not say of which weights and forward a row is
            weights, noise = (np.array([own.get(position, (0, 0))[i] for position in range(expected)]) for i in (0, 1))
            noise *= spec.noisy
            if not there.all():
                self.missing["unexplained"] += int((~there).sum())
        want = np.empty((expected, spec.layers, spec.top_k), np.int64)
        for version, forward in set(zip(weights.tolist(), noise.tolist())):
            mine = (weights == version) & (noise == forward)
            want[mine] = routes(hashes[mine], spec.layers, spec.top_k, spec.experts, version, forward)
        differs = array != want
        if rows is None:
            differs[noise == 0, -1] &= not spec.noisy
        wrong = there & differs.any(axis=(1, 2))
        if rows is not None:
            kept = rows.infos["provenance"] == Provenance.KEPT
            # A row has the weights of the moment in which its token was computed, or hit; its own one of that forward.
            for position, (version, forward) in own.items():
                if position < expected and there[position]:
                    wrong[position] |= weights[position] != version
                    if spec.noisy and forward and noise[position] != forward:
                        # Or of the request that filled a shared block, if this one computed it again.
                        wrong[position] |= not (kept[position] and noise[position] < forward)
            counts["rows_of_older_weights"] += int((weights[there] < self.model.weights).sum())
        counts["rows_checked"] += int(there.sum())
        counts["requests_lost"] += not there.all()
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            self._wrong(name, f"row {first} of {expected}: {array[first].tolist()}, expected {want[first].tolist()}, weights "
                        f"{weights[first]}, own {own.get(first)}", int(wrong.sum()))

    def _wrong(self, name, text, count):
        self.counts["rows_wrong"] += count
        if len(self.examples) < 5:
            self.examples.append(f"{name}: {text}")

    def figures(self):
        """What --json prints, and more: counters of the engine and of the store."""
        np = self.np
        found = dict(self.counts, rows_missing=dict(self.missing), examples=self.examples, seconds=round(self.seconds, 1))
        found["us"] = {name: {"p50": float(np.percentile(values, 50)) / 1e3, "p90": float(np.percentile(values, 90)) / 1e3}
                       for name, values in self.times.items()}
        if self.attached is not None:
            attached = self.attached
            stats = attached.store.stats().as_dict()
            if self.tier is not None:
                found["tier"] = {name: value for name, value in attached.store.tier_stats().as_dict().items() if value}
                found["rows_filled"] = found["tier"].get("rows_filled", 0)
            found |= {"failure": attached.failure, "steps_without_ids": attached.steps_without_ids,
                      "findings": [finding.text for finding in attached.store.take_findings()],
                      "dropped": max(0, attached.requests.dropped - self.counts["not_asked"]),
                      "causes": dict(self.causes),
                      "store": {name: value for name, value in stats.items() if isinstance(value, int) and value}}
            attached.detach()  # with a tier, after what waits has been put
        return found


def main():
    job = json.loads(sys.argv[1])
    scenario = SCENARIOS[job["scenario"]]
    spec = dataclasses.replace(Spec(**scenario.spec), **job.get("spec", {}))
    run = Run(spec, scenario, job)
    run.run()
    if job.get("fault"):
        import faults
        if not faults.did_something():
            raise RuntimeError(f"the fault {job['fault']} did nothing: it proves nothing")
    print("FOUND " + json.dumps(run.figures()), flush=True)


if __name__ == "__main__":
    main()
