"""A KV connector that loads beside the forwards, as those of NIXL, LMCache and Mooncake do, and what it is
put through. Keys and values stay in this process."""
import dataclasses
import re

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.request import RequestStatus

LATER = 0.5      # of the loads; the others end before the forward
FAILS = 0.3      # of the loads: one of their blocks never comes
SENDS = 0.2      # of the requests that end: their blocks are read for a while
MOST_STEPS = 12  # that a load takes


@dataclasses.dataclass
class Load:
    request: str
    keys: list    # of its blocks
    blocks: list
    later: bool
    failed: set   # of the blocks
    steps: int


@dataclasses.dataclass
class Metadata(KVConnectorMetadata):
    loads: list = dataclasses.field(default_factory=list)
    saves: list = dataclasses.field(default_factory=list)  # (key, block)
    sends: list = dataclasses.field(default_factory=list)  # requests


class AsyncLoads(KVConnectorBase_V1):
    """Both halves, in one process."""

    kv = {}  # by block hash: {layer: keys and values}
    counts = {}
    failed = {}      # blocks whose load failed, or that were computed from them: rows that were computed again
    spoilt = set()   # requests of the forwards that read one of them
    random = np.random.default_rng(0)

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self.tokens = vllm_config.cache_config.block_size
        self.requests, self.blocks, self.plans, self.loading, self.next = {}, {}, {}, set(), Metadata()
        self.layers, self.pending, self.sending, self.errors = {}, [], {}, set()

    @classmethod
    def count(cls, what):
        cls.counts[what] = cls.counts.get(what, 0) + 1

    # -- the scheduler's half
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        first = count = num_computed_tokens // self.tokens
        later = bool(self.random.random() < LATER)
        # Of a load beside the forwards nothing may be left to compute: vLLM computes the last token again.
        most = (request.num_tokens - (not later)) // self.tokens
        while count < most and request.block_hashes[count] in self.kv:
            count += 1
        if num_computed_tokens % self.tokens or count == first:
            return 0, False
        self.plans[request.request_id] = first, later
        return (count - first) * self.tokens, later

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.requests[request.request_id] = request
        if not num_external_tokens:
            return
        first, later = self.plans.pop(request.request_id)
        end = first + num_external_tokens // self.tokens
        chosen = list(blocks.get_block_ids()[0])[first:end]
        for block in blocks.get_block_ids()[0][first:]:  # they were another's
            self.failed.pop(block, None)
        failed = {chosen[int(self.random.integers(len(chosen)))]} if self.random.random() < FAILS else set()
        self.count("loads_later" if later else "loads_at_once")
        if failed:
            self.count("loads_failed_later" if later else "loads_failed_at_once")
        if end * self.tokens == request.num_tokens:
            self.count("loads_of_whole_prompts")
        if first:
            self.count("loads_behind_hits")
        if later:
            self.loading.add(request.request_id)
        self.next.loads.append(Load(request.request_id, request.block_hashes[first:end], chosen, later, failed,
                                    int(self.random.integers(1, MOST_STEPS))))

    def build_connector_meta(self, scheduler_output):
        computed = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        for new in scheduler_output.scheduled_new_reqs:
            self.blocks[new.req_id] = list(new.block_ids[0])
        cached = scheduler_output.scheduled_cached_reqs
        for name, blocks, tokens in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            computed[name] = tokens
            if name in cached.resumed_req_ids:
                self.blocks[name] = []
            self.blocks[name] += blocks[0] if blocks else []
        made, self.next = self.next, Metadata()
        self.note_what_failed(scheduler_output.num_scheduled_tokens, computed)
        for name, tokens in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[name]
            full = min(computed[name] + tokens, request.num_tokens) // self.tokens
            for i in range(computed[name] // self.tokens, full):
                if request.block_hashes[i] not in self.kv:
                    made.saves.append((request.block_hashes[i], self.blocks[name][i]))
        return made

    def note_what_failed(self, scheduled, computed):
        """vLLM leaves the blocks of a failed load, and what was computed from them, in its prefix cache, because the request
        computes them again. If it is preempted or aborted before it has, others hit what was never right."""
        blocks = [(name, block, computed[name] - i * self.tokens, computed[name] + tokens - i * self.tokens)
                  for name, tokens in scheduled.items() for i, block in enumerate(self.blocks[name])]
        for _, block, begin, end in blocks:
            if block in self.failed and begin <= self.failed[block] < end:
                self.failed[block] = end
        if any(min(begin, self.tokens) > self.failed.get(block, self.tokens) for _, block, begin, _ in blocks):
            self.spoilt.update(re.match(r"(?:\d+_)?(request\d+)", name)[1] for name in scheduled)

    def update_connector_output(self, connector_output):
        invalid = connector_output.invalid_block_ids or set()
        for name, blocks in self.blocks.items():
            if self.requests[name].status != RequestStatus.RUNNING:
                continue
            first = next((i for i, block in enumerate(blocks) if block in invalid), len(blocks))
            self.failed |= dict.fromkeys(blocks[first:], 0)
        self.failed |= dict.fromkeys(invalid, 0)
        self.loading -= set(connector_output.finished_recving or ())

    def request_finished(self, request, block_ids):
        sends = bool(block_ids) and request.request_id not in self.loading and self.random.random() < SENDS
        if sends:
            self.next.sends.append(request.request_id)
        return bool(sends), None

    # -- the worker's half
    def register_kv_caches(self, kv_caches):
        self.layers = kv_caches

    def _put(self, load):
        """What was loaded; random numbers where it failed, and before it has ended."""
        for key, block in zip(load.keys, load.blocks):
            for name, cache in self.layers.items():
                there = load.steps <= 0 and block not in load.failed
                cache[block] = self.kv_of[key][name] if there else torch.randn_like(cache[block])

    def start_load_kv(self, forward_context, **more):
        made = self._get_connector_metadata()
        self.errors = set()
        self.kv_of = self.kv | getattr(self, "kv_of", {})  # what is forgotten is loaded by those that have begun
        for name in made.sends:
            self.sending[name] = int(self.random.integers(1, MOST_STEPS))
        for load in made.loads:
            if load.later:
                self.pending.append(load)
            else:
                load.steps = 0
                self.errors |= load.failed
            self._put(load)

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **more):
        pass

    def wait_for_save(self):
        if not self.errors:  # else what was computed is wrong
            for key, block in self._get_connector_metadata().saves:
                self.kv[key] = {name: cache[block].clone() for name, cache in self.layers.items()}

    def get_finished(self, finished_req_ids):
        received = set()
        for load in self.pending:
            load.steps -= 1
            if load.steps <= 0:
                self._put(load)
                self.errors |= load.failed
                received.add(load.request)
        self.pending = [load for load in self.pending if load.request not in received]
        self.sending = {name: steps - 1 for name, steps in self.sending.items()}
        sent = {name for name, steps in self.sending.items() if steps <= 0}
        self.sending = {name: steps for name, steps in self.sending.items() if steps > 0}
        return sent, received

    def get_block_ids_with_load_errors(self):
        return set(self.errors)


# -- the workload
def states(driver):
    """The names of the requests that have not ended, by what they wait for."""
    found = {"loading": [], "loaded": [], "running": [], "waiting": []}
    for name, request in driver.core.scheduler.requests.items():
        state = {RequestStatus.WAITING_FOR_REMOTE_KVS: "loading", RequestStatus.RUNNING: "running"}.get(request.status, "waiting")
        if request.is_finished():
            continue
        if state == "waiting" and request.num_computed_tokens:
            state = "loaded"  # its blocks may be hit, and it is in no schedule
        found[state].append(re.match(r"(?:\d+_)?(request\d+)", name)[1])
    return found


def async_loads(driver):
    """Requests of a few prefixes arrive, are aborted at every point, have priorities, and preempt others; the
    connector forgets, and the prefix cache is reset."""
    chance = driver.random
    AsyncLoads.random = np.random.default_rng(driver.spec["seed"] + 1)
    prefixes = [driver.tokens(int(chance.integers(3, 9)) * 32) for _ in range(5)]
    priorities = driver.core.scheduler.policy.value == "priority"
    most, prompts = max(driver.requests, 120), {}

    def arrive(prompt=None):
        prefix = prefixes[int(chance.integers(len(prefixes)))]
        if prompt is None:
            prompt = prefix if chance.random() < 0.3 else prefix[:int(chance.integers(40, len(prefix) + 1))] + driver.tokens(int(chance.integers(1, 60)))
        name = driver.add(prompt, int(chance.integers(1, 80)), priority=int(chance.integers(0, 4)) if priorities else 0)
        prompts[name] = prompt

    def abort(state):
        names = [name for name in states(driver)[state] if name in driver.running]
        if names:
            driver.abort(names[:1])
            driver.counts[f"aborts_{state}"] += 1
        return names[:1]

    def each_step(driver):
        if AsyncLoads.spoilt - dropped:  # of no use any more, as is all that they left
            driver.abort(list(driver.running))
            AsyncLoads.kv.clear()
            return
        if len(driver.asked) < most and len(driver.running) < 18:
            arrive()
        for victim in abort("loaded") if chance.random() < 0.3 else ():
            abort("running")
            while abort("waiting"):
                pass
            arrive(prompts[victim])  # hits what the victim has loaded
        for state in ("loading", "running", "waiting"):
            if chance.random() < 0.03:
                abort(state)
        if chance.random() < 0.05:
            for key in list(AsyncLoads.kv)[::3]:
                del AsyncLoads.kv[key]
        if driver.steps % 50 == 49 and not states(driver)["loading"]:
            try:
                driver.counts["resets"] += bool(driver.engine.reset_prefix_cache(reset_running_requests=True))
            except RuntimeError:  # blocks of a request that ended, or that loads, are not free
                driver.counts["resets_refused"] += 1

    dropped = set()
    arrive()
    driver.run(each_step)
    while AsyncLoads.spoilt - dropped:
        while states(driver)["loading"] or not driver.engine.reset_prefix_cache():
            driver.step()
        driver.counts["begun_again"] += 1
        dropped |= AsyncLoads.spoilt
        AsyncLoads.failed.clear()
        arrive()
        driver.run(each_step)
    driver.records = [record for record in driver.records if record["name"].split(".")[0] not in dropped]
    driver.counts.update(AsyncLoads.counts)
