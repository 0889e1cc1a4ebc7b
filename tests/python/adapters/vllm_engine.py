"""An engine with vLLM's names around both halves of the adapter, on numpy alone. What it routes is
a function of the tokens up to a position, so that every row that it returns can be checked; its KV
is that prefix itself, so that it notices its own mistakes. tests/integration/vllm runs a real
vLLM."""

from __future__ import annotations

import pickle
import sys
import types
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
from waymark import _metrics
from waymark.vllm import _checks, _routers, _scheduler, _worker
from waymark.vllm._options import Options

BLOCK, HASH, LAYERS, TOP_K, EXPERTS, VOCABULARY = 8, 4, 3, 2, 16, 50
MODEL_LAYERS = 4  # the first is dense
VERSION = types.SimpleNamespace(__version__="0.33.0")  # of vLLM


class Tensor:
    """An array, as far as the adapter uses torch's."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape = array.shape

    def __getitem__(self, at: Any) -> Tensor:
        return Tensor(self.array[at])

    def fill_(self, value: int) -> None:
        self.array.fill(value)

    def to(self, what: Any, non_blocking: bool = False) -> Tensor:
        return Tensor(self.array.copy() if what == "cpu" else self.array.astype(what))

    def numpy(self) -> Any:
        return self.array


class Capturer:
    def __init__(self, max_num_batched_tokens: int, vllm_config: Any) -> None:
        shape = max_num_batched_tokens, MODEL_LAYERS, TOP_K
        self.device_buffer = Tensor(np.zeros(shape, np.int32))


class Router:
    capture_fn: Any = None
    set_capture_fn = None


class MoERunner:
    moe_config = types.SimpleNamespace(num_logical_experts=EXPERTS)
    _quant_method = types.SimpleNamespace(is_monolithic=False)
    router: Any = type("FusedTopKRouter", (), {
        "__module__": "vllm.model_executor.layers.fused_moe.router.x", "set_capture_fn": None})()  # fmt: skip

    def __init__(self, layer_id: int) -> None:
        self.layer_id = layer_id


class PrometheusCounter:
    """As prometheus_client has them."""

    def __init__(self, name: str, meaning: str, labels: Any = ()) -> None:
        self.values = Counter[str]()

    def labels(self, value: str) -> Any:
        return types.SimpleNamespace(inc=lambda by: self.values.update({value: by}))

    def inc(self, by: int) -> None:
        self.values[""] += by


class Spec:
    block_size = BLOCK


class Model:
    def named_modules(self) -> Any:
        return [(f"layers.{i}.mlp.experts", MoERunner(i)) for i in range(1, MODEL_LAYERS)]


def modules(name: str) -> Any:
    """The modules of vLLM and torch that the halves use."""
    group = types.SimpleNamespace(is_first_rank=True)
    moe = "vllm.model_executor.layers.fused_moe"
    return {
        "torch": types.SimpleNamespace(int16=np.int16), "vllm": VERSION,
        "vllm.platforms": types.SimpleNamespace(
            current_platform=types.SimpleNamespace(is_rocm=lambda: False)),
        "vllm.v1.kv_cache_interface": types.SimpleNamespace(FullAttentionSpec=Spec),
        f"{moe}.layer": types.SimpleNamespace(MoERunner=MoERunner),
        f"{moe}.routed_experts_capturer": types.SimpleNamespace(
            RoutedExpertsCapturer=Capturer, RoutedExpertsCaptureSource=Model,
            bind_routed_experts_capturer=lambda model, capturer: None),
        "vllm.distributed.parallel_state": types.SimpleNamespace(get_tp_group=lambda: group),
    }[name]  # fmt: skip


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for half in (_checks, _routers, _worker):
        monkeypatch.setattr(half, "module", modules)
    client = types.SimpleNamespace(Counter=PrometheusCounter)
    monkeypatch.setitem(sys.modules, "prometheus_client", client)  # type: ignore[misc]
    monkeypatch.setattr(_metrics, "_exported", {})


def prefix(before: int, token: int) -> int:
    """What stands for the tokens up to one."""
    return hash((before, token, 17))


def routed(state: int) -> Any:
    """The ids [L, K] of the token behind which a prefix ends."""
    random = np.random.default_rng(state & (2**63 - 1))
    return random.permuted(np.tile(np.arange(EXPERTS), (LAYERS, 1)), axis=1)[:, :TOP_K]


def states(tokens: list[int]) -> list[int]:
    found, before = [], 0
    for token in tokens:
        found.append(before := prefix(before, token))
    return found


def sampled(state: int) -> int:
    return state % VOCABULARY


class Request:
    resumable = False

    def __init__(self, name: str, prompt: list[int], output: int, start: int, asked: bool) -> None:
        self.request_id, self.tokens, self.output = name, list(prompt), output
        self.num_prompt_tokens, self.num_computed_tokens = len(prompt), 0
        self.sampling_params = types.SimpleNamespace(
            extra_args=None if asked else {"waymark": False}, routed_experts_prompt_start=start
        )
        self.start, self.asked, self.status = start, asked, "waiting"
        self.external: set[int] = set()  # tokens whose KV came from elsewhere, in any life
        self.block_hashes: list[bytes] = []
        self.rows: list[Any] = []  # that were returned
        self.blocks: list[int] = []
        self.life = 0  # of its tokens in flight
        self.registered = 0  # tokens of it that the prefix cache was told
        self.lora_request = None
        self.hash()

    def hash(self) -> None:
        known = states(self.tokens)[HASH - 1 :: HASH]
        self.block_hashes += [one.to_bytes(8, "little", signed=True) * 4
                              for one in known[len(self.block_hashes) :]]  # fmt: skip

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def is_finished(self) -> bool:
        return self.status in ("finished", "aborted")


class Pool:
    """Blocks, by the hash of their tokens: whole ones, and with copy on write parts of them."""

    def __init__(self, blocks: int) -> None:
        self.free = deque(range(1, blocks))
        self.users = Counter[int]()
        self.cached: dict[bytes, int] = {}
        self.of: dict[int, list[bytes]] = {}

    def pop(self) -> int:
        block = self.free.popleft()
        self.evict({block})
        self.users[block] = 1
        return block

    def hit(self, block: int) -> None:
        if not self.users[block]:
            self.free.remove(block)
        self.users[block] += 1

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)

    def evict(self, blocks: set[int]) -> None:
        """From the prefix cache."""
        for block in blocks:
            for key in self.of.pop(block, ()):
                if self.cached.get(key) == block:
                    del self.cached[key]


class Blocks:
    """Of each request, as vLLM's managers have them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __getitem__(self, name: str) -> Any:
        blocks = self.engine.requests[name].blocks
        return [types.SimpleNamespace(block_id=one) for one in blocks]

    def get(self, name: str, default: Any) -> Any:
        return self[name] if name in self.engine.requests else default


class Engine:
    """ahead: schedules that are made before the output of one is there. drafts: a step. seam: 33
    asks how far hits and loads may go, 32 does not. parts: hits end inside a block. loads: the share
    of requests for which a connector has KV; later: it comes beside the forwards."""

    def __init__(
        self, seed: int, *, ahead: int = 1, drafts: int = 0, blocks: int = 60, seam: int = 33,
        parts: bool = False, loads: float = 0.0, later: bool = False,
        options: Options = Options(reasons=True),
    ) -> None:  # fmt: skip
        self.random = np.random.default_rng(seed)
        self.ahead, self.drafts, self.seam, self.parts = ahead, drafts, seam, parts
        self.loads, self.later = loads, later
        self.loading = list[tuple[Request, int]]()  # requests, and tokens of which KV will be there
        self.pool, self.requests = Pool(blocks), dict[str, Request]()
        self.waiting, self.running = deque[Request](), list[Request]()
        self.kv: dict[tuple[int, int], int] = {}
        self.foreign: set[tuple[int, int]] = set()  # KV that was loaded
        cache = types.SimpleNamespace(
            coordinator=types.SimpleNamespace(single_type_managers=[
                types.SimpleNamespace(req_to_blocks=Blocks(self))]),
            evict_blocks=self.pool.evict,
        )  # fmt: skip
        self.kv_cache_config = types.SimpleNamespace(
            num_blocks=blocks, kv_cache_groups=[types.SimpleNamespace(kv_cache_spec=Spec())]
        )
        self.kv_cache_manager, self.hash_block_size = cache, HASH
        self.connector: Any = types.SimpleNamespace(
            get_num_new_matched_tokens=lambda request, local: None,
            update_state_after_alloc=lambda request, blocks, external: None,
        ) if loads else None  # fmt: skip
        VERSION.__version__ = f"0.{seam}.0"
        self.half = _scheduler.SchedulerConnector(self, options)
        config = types.SimpleNamespace(
            scheduler_config=types.SimpleNamespace(max_num_batched_tokens=64),
            model_config=types.SimpleNamespace(max_model_len=200, model="m"), max_concurrent_batches=ahead,
        )  # fmt: skip
        self.worker = _worker.WorkerConnector(Model(), config, self.kv_cache_config, options)
        self.inflight = deque[Any]()
        self.tables: dict[str, list[int]] = {}  # the worker's own
        self.tokens: dict[str, list[int]] = {}
        self.finished: list[Request] = []
        self.counts = Counter[str]()
        self.silent = False  # the next forward writes no ids of its last layer

    # -- the scheduler ------------------------------------------------------------------------
    def add(self, prompt: list[int], output: int, start: int = 0, asked: bool = True,
            name: str = "") -> Request:  # fmt: skip
        name = name or f"r{len(self.finished) + len(self.requests)}-{self.random.integers(1 << 30)}"
        request = Request(name, prompt, output, start, asked)
        self.requests[name] = request
        self.waiting.append(request)
        return request

    def extend(self, request: Request, tokens: int) -> list[int] | None:
        need = -(-tokens // BLOCK) - len(request.blocks)
        if need > len(self.pool.free):
            return None
        more = [self.pool.pop() for _ in range(max(need, 0))]
        self.foreign -= {(block, place) for block in more for place in range(BLOCK)}
        request.blocks += more
        return more

    def register(self, request: Request, tokens: int) -> None:
        """Full blocks, and their parts, are in the prefix cache."""
        tokens = min(tokens, request.num_tokens)
        unit = HASH if self.parts else BLOCK
        first = request.registered
        request.registered = max(first, tokens // BLOCK * BLOCK)
        for end in range(first + unit, tokens + 1, unit):  # each once, as in vLLM
            key, block = request.block_hashes[end // HASH - 1], request.blocks[(end - 1) // BLOCK]
            if end % BLOCK and tokens // BLOCK * BLOCK < end:
                continue  # a part of a block that is not full
            if key not in self.pool.cached:
                self.pool.cached[key] = block
                self.pool.of.setdefault(block, []).append(key)

    def preempt(self, request: Request) -> None:
        self.half.request_finished(request)
        self.pool.release(request.blocks)
        request.blocks, request.num_computed_tokens, request.status = [], 0, "preempted"
        request.life += 1
        self.running.remove(request)
        self.waiting.appendleft(request)
        self.counts["preemptions"] += 1

    def end(self, request: Request, status: str) -> None:
        loads = request.status == "loading"  # into blocks that are free when it has ended
        if request.status == "running":
            self.running.remove(request)
        elif not loads:
            self.waiting.remove(request)
        request.status = status
        self.half.request_finished(request)
        if not loads:
            self.pool.release(request.blocks)
            request.blocks = []
        if self.requests.get(request.request_id) is request:
            del self.requests[request.request_id]
        self.finished.append(request)

    def reset(self, running: bool) -> bool:
        if running:
            for request in list(self.running):
                self.preempt(request)
                request.drop = request.life  # type: ignore[attr-defined]
        if self.running or self.loading:
            return False
        self.pool.cached.clear()
        self.pool.of.clear()
        self.half.reset()
        self.counts["resets"] += 1
        return True

    def hits(self, request: Request) -> tuple[list[int], int]:
        """(blocks, tokens) that the prefix cache has, the last block perhaps in part."""
        most = request.num_tokens - 1
        if self.seam == 33:
            most = min(most, self.half.max_cache_hit(request))
        unit, tokens, blocks = (HASH if self.parts else BLOCK), 0, list[int]()
        while tokens + unit <= most:
            block = self.pool.cached.get(request.block_hashes[(tokens + unit) // HASH - 1])
            if block is None or (tokens + unit) % BLOCK and block in self.written:
                break  # a copy is made before the forward
            if tokens % BLOCK == 0:
                blocks.append(block)
            blocks[-1] = block
            tokens += unit
        return blocks, tokens

    def load_ends(self) -> None:
        """KV is there, and may be hit."""
        request, computed = self.loading.pop(0)
        if request.is_finished():
            self.pool.release(request.blocks)
            request.blocks = []
            return
        self.load(request, request.registered, computed)
        self.register(request, computed)
        request.num_computed_tokens, request.status = min(computed, request.num_tokens - 1), "loaded"
        self.waiting.appendleft(request)

    def load(self, request: Request, local: int, computed: int) -> None:
        self.counts["loaded"] += computed - local
        for place in range(local, computed):  # the connector
            at = request.blocks[place // BLOCK], place % BLOCK
            self.kv[at] = states(request.tokens)[place]
            self.foreign.add(at)
        request.external |= {place for place in range(computed)
                             if (request.blocks[place // BLOCK], place % BLOCK) in self.foreign}  # fmt: skip

    def start(self, request: Request, budget: int, copies: list[Any]) -> Any:
        """The first schedule of a life: (tokens, NewRequestData), or nothing; 0 tokens: it waits
        for KV."""
        if request.status == "loaded":
            computed = request.num_computed_tokens
            count = min(budget, request.num_tokens - computed)
            if self.extend(request, computed + count) is None:
                return None
            return self.started(request, count, computed)
        blocks, local = self.hits(request)
        external = 0
        if self.connector:
            self.connector.get_num_new_matched_tokens(request, local // BLOCK * BLOCK)
        if local % BLOCK == 0 and self.random.random() < self.loads:
            external = (request.num_tokens - 1 - local) // BLOCK * BLOCK
            if external and self.later and self.random.random() < 0.5:
                external = request.num_tokens // BLOCK * BLOCK - local  # its last token, too
            if self.seam == 33:
                external = self.half.cap_external_hit(request, local, external)
        computed = local + external
        later = self.later and external > 0
        count = 0 if later else min(budget, request.num_tokens - computed)
        for block in blocks:
            self.pool.hit(block)
        part = blocks.pop() if local % BLOCK else None
        request.blocks = blocks
        if not later and count <= 0 or self.extend(request, computed + count) is None:
            self.pool.release(blocks + ([part] if part else []))
            request.blocks = []
            return None
        if part:  # is copied before the forward, and kept until then
            copies.append((part, request.blocks[local // BLOCK]))
            self.counts["copies"] += 1
        allocated = types.SimpleNamespace(get_block_ids=lambda: (request.blocks,))
        if self.connector:
            self.connector.update_state_after_alloc(request, allocated, external)
        self.counts["hits"] += local
        request.registered = local // BLOCK * BLOCK
        if later:
            self.half.request_loading(request, computed)
            self.loading.append((request, computed))
            request.status = "loading"
            return 0, None
        self.load(request, local, computed)
        return self.started(request, count, computed)

    def started(self, request: Request, count: int, computed: int) -> Any:
        request.num_computed_tokens, request.status = computed, "running"
        return count, types.SimpleNamespace(
            req_id=request.request_id, block_ids=(list(request.blocks),),
            num_computed_tokens=computed, tokens=list(request.tokens))  # fmt: skip

    def schedule(self) -> Any:
        budget, scheduled, copies = 48, dict[str, int](), list[Any]()
        new, cached = list[Any](), list[Any]()
        self.written = set[int]()  # by this forward
        drafts, preempted = {}, self.counts["preemptions"]
        for request in list(self.running):
            if request not in self.running:
                continue
            if request.num_computed_tokens >= request.num_prompt_tokens + request.output:
                continue  # all of its tokens are in flight
            prefills = request.num_computed_tokens + 1 < request.num_tokens
            guesses = 0 if prefills else int(self.random.integers(0, self.drafts + 1))
            count = (min(budget, request.num_tokens - request.num_computed_tokens) if prefills
                     else 1 + guesses)  # fmt: skip
            if count > budget or not count:
                continue
            while request in self.running:
                more = self.extend(request, request.num_computed_tokens + count)
                if more is not None:
                    break
                victim = self.running[-1]
                if victim.request_id in scheduled:
                    budget += scheduled.pop(victim.request_id)
                    cached = [one for one in cached if one[0] != victim.request_id]
                    drafts.pop(victim.request_id, None)
                self.preempt(victim)
            else:
                continue
            budget -= count
            self.written |= set(request.blocks[request.num_computed_tokens // BLOCK :])
            if prefills:
                self.register(request, request.num_computed_tokens + count)
            scheduled[request.request_id] = count
            drafts[request.request_id] = guesses
            given = request.num_computed_tokens
            cached.append((request.request_id, (more,) if more else None, given))
        while self.waiting and budget and len(self.running) < 12:
            if self.counts["preemptions"] > preempted:
                break
            if self.waiting[0].life and len(self.waiting) > 1 and self.random.random() < 0.3:
                self.waiting.rotate(-1)
            request = self.waiting[0]
            found = self.start(request, budget, copies)
            if found is None:
                break
            self.waiting.popleft()
            if not found[0]:
                continue
            self.running.append(request)
            budget -= found[0]
            scheduled[request.request_id] = found[0]
            new.append(found[1])
            self.written |= set(request.blocks[request.num_computed_tokens // BLOCK :])
            self.register(request, request.num_computed_tokens + found[0])
        new.sort(key=lambda one: self.requests[one.req_id].life > 0)  # resumed ones are the last
        output = types.SimpleNamespace(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=[one[0] for one in cached], resumed_req_ids=set(),
                new_block_ids=[one[1] for one in cached],
                num_computed_tokens=[one[2] for one in cached]),
            num_scheduled_tokens=scheduled, total_num_scheduled_tokens=sum(scheduled.values()),
            kv_cache_block_copies=copies, drafts=drafts,
        )  # fmt: skip
        meta = self.half.build_connector_meta(output, self.requests)
        self.pool.release([part for part, _ in copies])
        output.meta = pickle.loads(pickle.dumps(meta))
        output.computed = {name: self.requests[name].num_computed_tokens for name in scheduled}
        output.lives = {name: (self.requests[name], self.requests[name].life) for name in scheduled}
        for name, count in scheduled.items():
            self.requests[name].num_computed_tokens += count
            if not self.requests[name].num_computed_tokens > self.requests[name].num_tokens:
                self.register(self.requests[name], self.requests[name].num_computed_tokens)
        return output

    # -- the worker ---------------------------------------------------------------------------
    def execute(self, output: Any) -> None:
        self.worker.begin_step(output.meta)
        for one in output.scheduled_new_reqs:
            self.tables[one.req_id] = list(one.block_ids[0])
            self.tokens[one.req_id] = one.tokens
        cached = output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids):
            self.tables[name] += blocks[0] if blocks else []
        for source, copy in output.kv_cache_block_copies:
            for place in range(BLOCK):
                self.kv[copy, place] = self.kv.get((source, place), 0)
        if not output.total_num_scheduled_tokens:
            return
        order = list(output.num_scheduled_tokens)
        self.random.shuffle(order)
        ids, starts, counts, rejected = list[Any](), [0], list[int](), list[int]()
        read = list[tuple[str, int, int]]()  # KV that the forward reads
        for name in order:
            tokens, count = self.tokens[name], output.num_scheduled_tokens[name]
            guesses = output.drafts.get(name, 0)
            # The worker knows what was accepted; the scheduler counts on all of it.
            first = min(output.computed[name], len(tokens) - 1)
            given, wrong = tokens[first : first + count], 0
            ends = first + count >= len(tokens)
            read += [(name, i, one) for i, one in enumerate(states(tokens[:first]))]
            before = read[-1][2] if first else 0
            for i in range(count):
                if i < len(given):
                    token = given[i]
                else:  # a draft
                    right = sampled(before)
                    token = right if not wrong and self.random.random() < 0.6 else 999
                    wrong += wrong > 0 or token != right
                before = prefix(before, token)
                at = self.tables[name][(first + i) // BLOCK], (first + i) % BLOCK
                self.kv[at] = before
                if not wrong:
                    last = before
                    if i >= len(given):
                        tokens.append(token)
                ids.append(routed(before))
            counts.append(1 + guesses - wrong if ends else 0)
            if ends:
                tokens.append(sampled(last))
            rejected.append(wrong)
            self.counts["rejected"] += wrong
            starts.append(starts[-1] + count)
        for name, i, state in read:
            assert self.kv_at(name, i) == state, f"the engine's own KV of {name} is wrong at {i}"
        buffer = self.worker._buffer.array
        buffer[: len(ids), 1 : MODEL_LAYERS - self.silent] = (
            np.array(ids)[:, : LAYERS - self.silent]
        )  # fmt: skip
        buffer[len(ids) : len(ids) + 3] = 7  # padding of a graph
        self.silent = False
        computed = np.array([output.computed[name] for name in order], np.int32)
        batch = types.SimpleNamespace(
            req_ids=order, num_computed_tokens_np=computed,
            query_start_loc_np=np.array(starts, np.int32),
        )  # fmt: skip
        pending = self.worker.prepare_output(batch)
        if pending is not None:
            pending.enqueue_cpu_copy(np.array(counts), np.array(rejected))
        new = {name: self.tokens[name][-n:] if n else [] for name, n in zip(order, counts)}
        self.inflight.append((output, pending, order, new, dict(zip(order, rejected))))

    def kv_at(self, name: str, place: int) -> int:
        return self.kv.get((self.tables[name][place // BLOCK], place % BLOCK), 0)

    # -- the output ---------------------------------------------------------------------------
    def update(self) -> None:
        output, pending, order, new, rejected = self.inflight.popleft()
        rows = pending.process_output() if pending is not None else None
        rows = pickle.loads(pickle.dumps(rows))
        for name in order:
            request, life = output.lives[name]
            if self.requests.get(name) is not request:
                continue
            stale = request.life != life
            if stale and getattr(request, "drop", 0) > life:
                continue
            if not stale:
                request.num_computed_tokens -= rejected[name]
            if not new[name]:
                continue
            left = request.num_prompt_tokens + request.output - request.num_tokens
            request.tokens += new[name][:left]
            request.hash()
            done = left <= len(new[name])
            got = self.half.take_output(request, rows)
            if got is not None:
                request.rows.append(got)
            if not stale and request.status == "running":
                self.register(request, min(request.num_computed_tokens, request.num_tokens - 1))
            if done:
                self.end(request, "finished")

    def step(self) -> None:
        while self.loading and self.random.random() < 0.5:
            self.load_ends()
        output = self.schedule()
        self.execute(output)
        idle = not output.total_num_scheduled_tokens
        while len(self.inflight) >= self.ahead or self.inflight and (idle or not self.running):
            self.update()

    def run(self, steps: int = 600) -> None:
        for _ in range(steps):
            if not self.requests and not self.inflight and not self.loading:
                return
            self.step()
        raise AssertionError("requests never end")

    def check(self, request: Request) -> Counter[str]:
        """The rows of a finished request against what was routed; counts them by what they are."""
        found = Counter[str]()
        want = states(request.tokens[:-1])
        if not request.asked:
            assert not request.rows
            return found
        first = min(request.start, request.num_prompt_tokens)
        if len(want) == first:
            return found
        array = np.concatenate(request.rows)
        assert len(array) == len(want) - first, (len(array), len(want), first)
        for place, row in enumerate(array, first):
            if (row < 0).any():
                found["missing" if place not in request.external else "external"] += 1
            else:
                found["right" if (row == routed(want[place])).all() else "wrong"] += 1
        return found
