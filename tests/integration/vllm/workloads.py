"""What the engine under test is asked to do. Runs in its process.

A workload is a function of one Driver. It adds requests, steps the engine, disturbs it, and leaves a
record of every sequence that finished, for the recompute. Its seed decides the tokens, the lengths of
prompts and outputs, how many share a prompt, when requests arrive, how they sample, and which of them
are aborted when; their tokens together are about the same with every seed.
"""
import collections
import functools

import numpy as np
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestOutputCollector

from async_loads import async_loads  # noqa: F401, a workload

VOCABULARY = range(3, 500)  # of make_model.py, without its special tokens
IDLE_STEPS = 3000  # without an output; a request runs less than 1024


class Stuck(Exception):
    """Requests never end: the engine has nothing to do, and their outputs do not come."""


class Driver:
    """One engine, its requests by name, and what was counted."""

    def __init__(self, llm, spec, recorder=None):
        self.llm, self.spec, self.recorder = llm, spec, recorder
        self.engine = llm.llm_engine
        self.random = np.random.default_rng(spec["seed"])
        self.requests = spec["requests"]
        self.counts = collections.Counter()
        self.records, self.chunks = [], {}
        self.steps = 0
        self.asked, self.loras, self.firsts, self.cumulative = {}, {}, {}, set()
        self.running = {}  # rows that a request may have
        self.core = getattr(self.engine.engine_core, "engine_core", None)  # if it is in this process
        self.finished = []
        self.idle = 0
        self.arrive = lambda outputs: outputs

    def between(self, low, high):
        return int(self.random.integers(low, high + 1))

    def chance(self, share):
        return self.random.random() < share

    def tokens(self, count):
        return self.random.integers(VOCABULARY.start, VOCABULARY.stop, count).tolist()

    def add(self, prompt, max_tokens, asked=True, lora=False, kind=RequestOutputKind.FINAL_ONLY, priority=0, **more):
        """Adds a request and returns its name."""
        name = f"request{len(self.asked)}"
        extra = None if asked else {"waymark": False}
        params = SamplingParams(**({"temperature": 1.0, "max_tokens": max_tokens, "ignore_eos": True, "detokenize": False,
                                    "output_kind": kind, "extra_args": extra} | more))
        if extra is not None and more.get("extra_args"):
            params.extra_args = extra | more["extra_args"]
        self.asked[name], self.loras[name], self.firsts[name] = asked, lora, more.get("routed_experts_prompt_start", 0)
        if kind == RequestOutputKind.CUMULATIVE:
            self.cumulative.add(name)
        self.running[name] = (len(prompt) + max_tokens - 1) * params.n if asked else 0
        adapter = LoRARequest("adapter", 1, self.spec["lora"]) if lora else None
        self.engine.add_request(name, {"prompt_token_ids": list(prompt)}, params, lora_request=adapter, priority=priority)
        return name

    def abort(self, names):
        self.engine.abort_request(names, internal=False)
        self.counts["aborts"] += len(names)
        for name in names:
            self.running.pop(name, None)

    def step(self):
        """One step of the engine; returns the requests that finished."""
        done = []
        self.idle += 1
        arrived = self.engine.step()
        for output in self.arrive(arrived):
            self.idle = 0
            for completion in output.outputs:
                self.take(output, completion)
            if output.finished:
                self.running.pop(output.request_id, None)
                self.counts["requests"] += 1
                self.counts["prefix_hit_tokens_by_output"] += output.num_cached_tokens or 0
                done.append(output)
        self.steps += 1
        self.finished += done
        return done

    def run(self, each_step=lambda driver: None, coming=()):
        """Steps until nothing is left; returns what finished. coming: (steps from here on, function that adds a request),
        in order; a request comes earlier if the engine has none."""
        start, first, coming = len(self.finished), self.steps, collections.deque(coming)
        while coming or self.engine.has_unfinished_requests():
            while coming and (self.steps - first >= coming[0][0] or not self.engine.has_unfinished_requests()):
                coming.popleft()[1]()
            self.step()
            if self.idle > IDLE_STEPS:
                raise Stuck
            each_step(self)
        return self.finished[start:]

    def take(self, output, completion):
        name = output.request_id
        key = name, completion.index
        chunks = self.chunks.setdefault(key, {"tokens": [], "rows": [], "sampled": []})
        chunks["tokens"][0 if name in self.cumulative else len(chunks["tokens"]):] = completion.token_ids
        chunks["sampled"] += [self.counts["weight_updates"]] * len(completion.token_ids)
        rows = getattr(completion, "routed_experts", None)
        if rows is not None:
            chunks["rows"].append(np.array(rows))
        if completion.finish_reason is None:
            self.counts["chunks"] += 1
            return
        del self.chunks[key]
        prompt = list(output.prompt_token_ids)
        if completion.finish_reason == "error":
            self.counts["requests_failed"] += 1
            return
        if not self.asked[name]:
            self.counts["not_asked"] += 1
            self.counts["returned_without_being_asked"] += bool(chunks["rows"])
            return
        rows = np.concatenate(chunks["rows"]) if chunks["rows"] else None
        reasons = told(rows) if self.spec["capture"] == "waymark" and rows is not None else None
        self.records.append({
            "name": f"{name}.{completion.index}", "tokens": prompt + chunks["tokens"], "rows": rows, "first": self.firsts[name],
            "reasons": reasons, "lora": self.loras[name], "versions": False, "sampled_versions": [None] * (len(prompt) - 1) + chunks["sampled"],
            "recorded": self.recorder and self.recorder.expected(name, len(prompt) + len(chunks["tokens"]) - 1)})


def told(rows):
    """Why each row is missing, by the array itself; None: it is there."""
    import waymark.vllm
    return [None if run.reason == 0 else run.reason.name.lower() for run in waymark.vllm.coverage(rows) for _ in range(run.begin, run.end)]


def prompts(driver, groups=2, head=48, tail=70):
    """Groups of samples of one prompt each; all prompts begin with the same tokens, about `head` of them. groups: how many
    there are, about. As many tokens in all as driver.requests prompts of head + tail have."""
    system = driver.tokens(driver.between(head - 14, head + 14))
    left, found = driver.requests * (head + tail), []
    while left > 0:
        prompt = system + driver.tokens(driver.between(tail // 2, tail + tail // 2))
        samples = driver.between(1, max(2 * driver.requests // groups - 1, 1))
        found += [prompt] * min(samples, -(-left // len(prompt)))
        left = driver.requests * (head + tail) - sum(map(len, found))
    return found


def sampling(driver):
    """How a request samples, as SamplingParams: without a seed of its own, which ends vLLM's CPU build (docs/evidence/adapters.md)."""
    ways = [{}, {"top_p": 0.9}, {"top_k": 20}, {"temperature": 0.0}, {"temperature": 0.6}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.2}]
    return ways[driver.between(0, len(ways) - 1)]


def arrivals(driver, count):
    """At which step each of `count` requests arrives: all at once, or some of them later."""
    gaps = driver.random.poisson((0, 2, 6)[driver.between(0, 2)], count) * (driver.random.random(count) < 0.5)
    return np.cumsum(gaps).tolist()


def spread(driver, adds):
    """What Driver.run takes as `coming`, of functions that add a request each."""
    return zip(arrivals(driver, len(adds)), adds)


def converse(driver, first, turns, length=(20, 104), each_step=lambda driver: None, **more):
    """Turns of a conversation: every next prompt is the last turn's tokens and some new ones. length: of outputs, from and to.
    One in twenty requests is aborted."""
    following = first
    for _ in range(turns):
        order, victims, coming = {}, {}, []

        def arrive(i, prompt, tokens, end, ways):
            name = driver.add(prompt, tokens, **(ways | more))
            order[name] = i
            if end:
                victims[name] = driver.steps + end

        def with_aborts(driver):
            due = [name for name, step in victims.items() if driver.steps >= step]
            for name in due:
                del victims[name]
            if due := [name for name in due if name in driver.running]:
                driver.abort(due)
            each_step(driver)

        for i, prompt in enumerate(following):
            end = driver.between(1, 60) if driver.chance(0.05) else 0
            coming.append(functools.partial(arrive, i, prompt, driver.between(*length), end, sampling(driver)))
        finished = sorted((o for o in driver.run(with_aborts, spread(driver, coming)) if o.request_id in order), key=lambda o: order[o.request_id])
        tokens = {r["name"].split(".")[0]: r["tokens"] for r in driver.records}
        following = [tokens[o.request_id] + driver.tokens(driver.between(10, 30)) for o in finished if o.request_id in tokens]


def turns(driver):
    converse(driver, prompts(driver), 2)


def unique(driver):
    """No prompt begins like another one."""
    for _ in range(5):
        for _ in range(max(driver.requests // 2, 8)):
            driver.add(driver.tokens(driver.between(170, 230)), driver.between(4, 12), **sampling(driver))
        driver.run()


def repetitive(driver):
    """Greedy and repetitive, so that n-gram drafts are accepted now and then."""
    converse(driver, repeated(driver), 2, temperature=0.0)


def repeated(driver):
    """Prompts that repeat their first tokens, about as many in all as those of prompts()."""
    found = []
    while sum(map(len, found)) < 118 * driver.requests:
        part, length = driver.tokens(driver.between(12, 28)), driver.between(80, 156)
        found += [(part * 13)[:length]] * driver.between(1, 3)
    return found


def long_prompts(driver):
    converse(driver, prompts(driver, groups=4, tail=300), 2, length=(6, 30))


def aborts(driver):
    """Requests are aborted while they wait, in the middle of a prompt and while they generate; others reuse their blocks."""
    waiting = []

    def each_step(driver):
        if driver.chance(0.3) and len(waiting) > 1:
            victim = waiting.pop(driver.between(0, len(waiting) - 1))
            if any(victim == key[0] for key in driver.chunks) or not any(o.request_id == victim for o in driver.finished):
                driver.abort([victim])
        if driver.chance(0.5) and len(driver.asked) < 3 * driver.requests:
            waiting.append(driver.add(head + driver.tokens(driver.between(20, 120)), driver.between(15, 45), **sampling(driver)))

    first = prompts(driver)
    head = first[0][:48]
    waiting += [driver.add(prompt, driver.between(20, 60)) for prompt in first]
    driver.run(each_step)


def fork(driver):
    for _ in range(max(driver.requests // 4, 1)):
        samples = driver.between(2, 6)
        driver.add(driver.tokens(driver.between(70, 166)), driver.between(30, 70), n=samples)
        driver.counts["forks"] += samples
    driver.run()
    converse(driver, prompts(driver), 1)


def reset(driver):
    """The prefix cache is reset between the turns, and, with all requests preempted, in the middle of them."""
    def each_step(driver):
        if driver.chance(0.04):
            driver.counts["resets"] += bool(driver.engine.reset_prefix_cache(reset_running_requests=driver.chance(0.5)))

    first = prompts(driver)
    converse(driver, first, 1)
    driver.counts["resets"] += bool(driver.engine.reset_prefix_cache())
    converse(driver, first, 2, each_step=each_step)


def roll_last_router(model):
    """New weights whose routing is known: the last MoE layer's experts move up by one, nothing before it changes.

    The CPU packs a gate's weight when it is loaded, so its output is rolled instead: that is the same.
    """
    gate = [m for m in model.modules() if hasattr(m, "gate") and hasattr(m, "experts")][-1].gate
    gate.register_forward_hook(lambda module, inputs, output: (output[0].roll(1, -1), *output[1:]))


def weights(driver):
    """Weights change while requests run, with a live cache. Outputs come with every token, to know its weights."""
    def each_step(driver):
        if driver.chance(0.05) and driver.counts["weight_updates"] < 8:
            driver.llm.apply_model(roll_last_router)
            driver.counts["weight_updates"] += 1
            if driver.counts["weight_updates"] % 3 != 1:  # nobody names the others
                driver.engine.set_weight_version(f"weights-{driver.counts['weight_updates']}")

    converse(driver, prompts(driver), 2, each_step=each_step, kind=RequestOutputKind.DELTA)
    for record in driver.records:
        record["versions"] = True


def not_asked(driver):
    """About half of the requests do not ask; the others hit their blocks all the same."""
    adds = [functools.partial(driver.add, prompt, driver.between(20, 60), asked=driver.chance(0.5), **sampling(driver))
            for prompt in prompts(driver)]
    driver.run(coming=spread(driver, adds))
    converse(driver, prompts(driver), 1)


def streaming(driver):
    converse(driver, prompts(driver), 2, kind=RequestOutputKind.DELTA)


def streaming_late(driver):
    """A consumer that is late, as one of AsyncLLM may be: vLLM merges what it did not take yet."""
    waiting = {}

    def late(outputs):
        for output in outputs:
            waiting.setdefault(output.request_id, RequestOutputCollector(RequestOutputKind.DELTA, output.request_id)).put(output)
            driver.counts["merged_chunks"] += waiting[output.request_id].output is not output
        if driver.chance(0.2) or any(output.finished for output in outputs):
            for collector in waiting.values():
                if (output := collector.get_nowait()) is not None:
                    yield output

    driver.arrive = late
    converse(driver, prompts(driver), 2, kind=RequestOutputKind.DELTA)


def reset_files(driver):
    """Prompts come again after the prefix cache was reset: a connector has them, and the keys of the store are forgotten."""
    first = [driver.tokens(driver.between(90, 170)) for _ in range(max(driver.requests, 8))]
    for _ in range(2):
        driver.run(coming=spread(driver, [functools.partial(driver.add, prompt, driver.between(4, 12)) for prompt in first]))
        driver.counts["resets"] += bool(driver.engine.reset_prefix_cache())


def prefill_decode(driver):
    """One engine computes the KV of prompts, another one loads it and generates."""
    adds = []
    for _ in range(max(driver.requests, 8)):
        prompt, length = driver.tokens(driver.between(85, 150)), driver.between(20, 60)
        adds.append(functools.partial(driver.add, prompt, 1 if driver.spec["role"] == "kv_producer" else length))
    driver.run(coming=spread(driver, adds))


def evicted(driver):
    """A prompt comes again when its blocks are bound to others: only a connector still has them."""
    first = [driver.tokens(driver.between(160, 240)) for _ in range(max(driver.requests, 8))]
    for _ in range(2):
        for prompt in first:
            driver.add(prompt, driver.between(4, 12))
            driver.run()


def lora(driver):
    """Half of the requests use an adapter: the same prompts have other keys and other routes."""
    for prompt in prompts(driver):
        adapted = driver.chance(0.5)
        driver.add(prompt, driver.between(20, 60), lora=adapted)
        driver.counts["lora_requests"] += adapted
    driver.run()
    for record in list(driver.records):
        driver.add(record["tokens"] + driver.tokens(20), driver.between(10, 30), lora=record["lora"])
    driver.run()


def sleep(driver):
    """The engine sleeps between turns, and with requests that go on afterwards: their blocks are lost."""
    def nap(**more):
        driver.llm.sleep(level=1, **more)
        driver.llm.wake_up()
        driver.counts["sleeps"] += 1

    def each_step(driver):
        if driver.chance(0.025):
            nap(mode="keep")

    converse(driver, prompts(driver), 1)
    nap()
    converse(driver, prompts(driver), 2, each_step=each_step)


def words(driver):
    """Stop strings that a part of the tokens completes: w1 is in w1, w10 to w19, and w100 to w199."""
    digit = driver.between(1, 4)
    return [f"{driver.between(0, 9)} w{digit % 4 + 1}", f"w{driver.between(50, 99)}", f"w{digit}"]


def stop_strings(driver):
    """Most requests end at a string, which the front end finds; some are aborted."""
    kinds = RequestOutputKind.FINAL_ONLY, RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA

    def strings():
        return {"detokenize": True, "stop": words(driver), "min_tokens": driver.between(0, 20)}

    for prompt in prompts(driver):
        driver.add(prompt, 60, kind=kinds[driver.between(0, 2)], **strings())
    victim, end = driver.add(driver.tokens(100), 200, detokenize=True, stop=["nothing"]), driver.steps + driver.between(2, 30)
    driver.run(lambda driver: driver.abort([victim]) if driver.steps == end else None)
    for prompt in prompts(driver)[::4]:
        driver.add(prompt, 60, n=driver.between(2, 4), **strings())
    driver.run()
    converse(driver, prompts(driver), 2, include_stop_str_in_output=True, **strings())
    ends = [completion.stop_reason for output in driver.finished for completion in output.outputs if completion.finish_reason == "stop"]
    driver.counts["stop_strings"] = sum(isinstance(end, str) for end in ends)


def repetitive_stop_strings(driver):
    """Drafts behind the stop string are dropped by the front end."""
    for _ in range(2):
        converse(driver, repeated(driver), 2, temperature=0.0, detokenize=True, stop=words(driver), min_tokens=20)
    driver.counts["stop_strings"] = sum(isinstance(o.outputs[0].stop_reason, str) for o in driver.finished)


def edges(driver):
    """The shortest prompts and outputs, prompts of whole blocks, samples that end at different lengths, parts of the prompt."""
    head = driver.tokens(64)
    for _ in range(max(driver.requests // 8, 1)):
        for prompt in (driver.tokens(1), driver.tokens(32), head, head + driver.tokens(32), head + driver.tokens(1), head + driver.tokens(driver.between(2, 31))):
            for max_tokens in (1, 32, 33, driver.between(2, 60)):
                driver.add(prompt, max_tokens, **sampling(driver))
            for first in (0, driver.between(0, len(prompt)), len(prompt)):
                driver.add(prompt, 5, routed_experts_prompt_start=first)
            driver.add(prompt, 60, n=3, stop_token_ids=list(range(3, driver.between(30, 50))))
        driver.run()
    lengths = [{len(completion.token_ids) for completion in output.outputs} for output in driver.finished if len(output.outputs) > 1]
    driver.counts["different_lengths"] = sum(len(different) > 1 for different in lengths)
