"""The tiny engine with vLLM's names, where ids and slots are on a device, with model runners V2 and
V1, and random schedules on it. The device is numpy here, and torch in tests/gpu/vllm_names.py."""

from __future__ import annotations

import random
import struct
import time
import types
import zlib
from collections import Counter, deque
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
import vllm_engine
from late_device import SPOILED, LateDevice, Numpy
from vllm_engine import ABORTED, BLOCK, Engine, Request, Router, Runner, config
from waymark.late import _late_ids
from waymark.vllm import _device
from waymark.vllm._options import Options

LAYERS, TOP_K, EXPERTS = 3, 3, 128
SIZES = (1, 2, 4, 8, 16)
MOST_ROWS = 64
SLOTS = 64 * BLOCK
HASH = 0x9E3779B97F4A7C15 - (1 << 64)
VALID, NEVER, SILENT, LOST = range(4)  # what the store has to say of a row


def route(hashes: Any, layer: int, k: Any) -> Any:
    """[n] hashes -> [n, K] ids, distinct ones: numpy or torch, int64."""
    x = (hashes ^ (layer * 0x1F123BB5 + 1)) * HASH
    x = x ^ (x >> 32)
    return ((x >> 7)[:, None] + k * ((x >> 17)[:, None] | 1)) & (EXPERTS - 1)


def routed(hashes: Any) -> Any:
    """[n, L, K]: what the layers choose."""
    return np.stack([route(hashes, layer, np.arange(TOP_K)) for layer in range(LAYERS)], axis=1)


class DeviceRunner(Runner):
    """graphs: "full", "piecewise" (one a layer) or "", for batches of at most the largest size.
    v1: model runner V1."""

    kit: Any = Numpy
    device = types.SimpleNamespace(index=0)
    decode_query_len = uniform_decode_query_len = 1
    graphs, v1, pads, depth = "full", False, False, 1
    silent: int | None = None  # a layer that does not choose
    silent_size: int | None = None  # of forwards in which layer 1 does not
    fails_before = fails_behind = False

    def __init__(self) -> None:
        super().__init__()
        config, kit = self.vllm_config, self.kit
        config.device_config.device_type = "cuda"
        config.use_v2_model_runner = not self.v1
        config.compilation_config.cudagraph_capture_sizes = list(SIZES) if self.graphs else []
        config.scheduler_config.max_num_seqs = 8
        config.parallel_config.tensor_parallel_size = 1
        config.max_concurrent_batches = self.depth
        self.routers = [Router() for _ in range(LAYERS)]
        for router in self.routers:
            router.top_k = TOP_K
        self.on_device = kit.full((1, MOST_ROWS), "int64")
        self.block_tables = types.SimpleNamespace(slot_mappings=self.on_device)
        mapping = types.SimpleNamespace(gpu=self.on_device[0])
        self.input_batch.block_table = [types.SimpleNamespace(slot_mapping=mapping)]
        self.execute_model_state: Any = None
        self.hashes, self.k = kit.full((MOST_ROWS,), "int64"), kit.full((TOP_K,), "int64")
        kit.put(self.k, np.arange(TOP_K))
        self.captured: dict[tuple[int, int], Any] = {}  # by size and first layer
        self.batch: tuple[Any, Any] = (np.zeros(0, np.int64),) * 2  # hashes and slots
        self.runs: list[tuple[int, bool]] = []  # size, by a graph
        self.was_silent = False

    def choose(self, layer: int, size: int) -> Any:
        return route(self.hashes[:size], layer, self.k)

    def layers(self, size: int, first: int = 0, last: int = LAYERS) -> None:
        for layer in range(first, last):
            ids = self.choose(layer, size)
            if layer != self.silent and (layer != 1 or size != self.silent_size):
                self.routers[layer].capture_fn(ids)
            self.kit.work()

    def run_model(self, hashes: Any, slots: Any, eager: bool = False) -> None:
        rows, most = len(hashes), MOST_ROWS
        self.kit.put(self.hashes, np.append(hashes, np.full(most - rows, SPOILED)))  # padding
        self.kit.put(self.slots, np.append(slots, np.full(most - rows, -1)))
        graphs = not eager and [size for size, layer in self.captured if size >= rows]
        size = min(graphs) if graphs else -(-rows // 8) * 8 if self.pads else rows
        self.runs.append((rows, bool(graphs)))
        self.was_silent = size == self.silent_size
        if not graphs:
            self.kit.eager(lambda: self.layers(size))
        for layer in range(LAYERS):
            if graphs and (size, layer) in self.captured:
                self.captured[size, layer].replay()

    @property
    def slots(self) -> Any:
        return self.on_device[0]

    def capture_model(self) -> int:
        layers = 1 if self.graphs == "piecewise" else LAYERS
        for size in reversed(SIZES) if self.graphs else ():
            for first in range(0, LAYERS, layers):
                self.captured[size, first] = self.kit.graph(
                    lambda: self.layers(size, first, first + layers))  # fmt: skip
        return 0

    def execute_model(self, scheduler_output: Any, dummy_run: bool = False) -> Any:
        if not scheduler_output.total_num_scheduled_tokens:
            return types.SimpleNamespace(req_ids=[], finished=[])
        if self.fails_before:
            raise RuntimeError("before the kernels")
        self.run_model(*self.batch)
        if self.fails_behind:
            raise RuntimeError("behind the kernels")
        batch = types.SimpleNamespace(num_tokens=len(self.batch[0]))
        self.execute_model_state = types.SimpleNamespace(input_batch=batch)
        return None

    def sample_tokens(self) -> Any:
        self.execute_model_state = None
        self.slots.fill_(SPOILED)  # by the drafter
        return super().sample_tokens()

    def _dummy_run(self, tokens: int, skip_eplb: bool = False, uniform_decode: bool = False,
                   is_profile: bool = False) -> None:  # fmt: skip
        """Its rows are padding, which vLLM's routers give no expert."""
        choose, self.choose = self.choose, lambda layer, size: 0 * choose(layer, size) - 1  # type: ignore
        try:
            self.run_model(np.full(tokens, 3), np.full(tokens, -1), eager=is_profile)
        finally:
            self.choose = choose  # type: ignore[method-assign]

    def reload_weights(self) -> None:
        self.kit.put(self.k, np.arange(TOP_K))


class Worker:
    def __init__(self, runner: Any) -> None:
        self.model_runner = runner

    def load_model(self) -> None:
        self.model_runner.load_model()

    def compile_or_warm_up_model(self) -> None:
        self.model_runner._dummy_run(5)
        self.model_runner.capture_model()


class DeviceRequest(Request):
    """Its tokens are known beforehand. length: of its prompt and its output. The first `shared`
    tokens are those of its family."""

    def __init__(self, name: str, prompt: int, length: int = SLOTS, family: int = 0,
                 shared: int = 0, asked: bool = True) -> None:  # fmt: skip
        super().__init__(name, prompt, asked)
        self.length, self.shared, self.seeds = length, shared, (family, zlib.crc32(name.encode()))
        self.done = 0  # rows that were computed, of tokens that were accepted
        self.placeholders = 0  # tokens that steps on their way will sample, without rejections
        self.life = self.ready = 0  # ready: the schedule that it may be in
        self.lives: list[tuple[Any, Any]] = []  # of its rows: hashes, and what the store has to say
        self.block_hashes = [
            struct.pack("<QQ", self.seeds[end > shared], end)
            for end in range(BLOCK, length + 1, BLOCK)]  # fmt: skip

    def hashes(self, first: int, last: int) -> Any:
        at = np.arange(first, last)
        x = (np.where(at < self.shared, *self.seeds) * 2048 + at) * HASH
        return x ^ (x >> 29)


class DeviceEngine(Engine):
    """Issues steps, and takes their outputs later. The ids of a row are hashes of the tokens of its
    request and of `shift`. Knows what the store has to say of each slot."""

    device_type = "cuda"
    device: LateDevice

    def __init__(self, given: Options = Options(), **attributes: Any) -> None:
        self.runner_kind = type("DeviceRunnerOfTest", (DeviceRunner,), attributes)
        super().__init__(given)
        self.scheduler.resumed_as_new = not self.runner.v1
        self.late: Any = getattr(getattr(self.runner, "_waymark", None), "late", None)
        self.number = 0  # of schedules
        self.hung = False  # the device was given up
        self.in_flight: deque[Any] = deque()
        self.why, self.truth = np.full(SLOTS, NEVER), np.zeros(SLOTS, np.int64)
        self.cached: dict[bytes, int] = {}  # blocks
        self.keys: dict[int, bytes] = {}
        self.ended: dict[str, Any] = {}  # requests

    def started(self, runner_kind: type) -> Any:
        kind = type("WorkerOfTest", (Worker,), {})
        _device.hook(kind, runner_kind)
        self.worker = worker = kind(runner_kind())
        runner = worker.model_runner
        worker.load_model()
        self.device = runner._waymark_ids.memory.device
        runner.initialize_kv_cache(config())
        worker.compile_or_warm_up_model()
        return runner

    def request(self, name: str, prompt: int, **more: Any) -> Any:
        return self.add(DeviceRequest(name, prompt, **more))

    def hold(self, held: bool = True) -> DeviceEngine:
        """Nothing comes from the device while it is."""
        self.device.held = held
        return self

    def expected(self, name: str, first: int, last: int) -> Any:
        request = self.ended.get(name) or self.scheduler.requests[name]
        return routed(request.hashes(first, last) ^ self.shift)

    # -- the scheduler --------------------------------------------------------------------------
    def hit(self, request: Any) -> None:
        """The first blocks that the prefix cache has."""
        keys = request.block_hashes[: (request.num_tokens - 1) // BLOCK]
        blocks = [self.cached[key] for key in takewhile(self.cached.__contains__, keys)]
        self.scheduler.kv_cache_manager.hit(request, blocks)
        request.done = len(blocks) * BLOCK

    def preempt(self, request: Any, reset: bool = False) -> None:
        """reset: what its steps on their way sample is dropped."""
        rows = min(request.done, request.num_tokens - 1) if reset else request.done
        self.ends(request, rows)
        self.scheduler._preempt_request(request)
        request.done = request.placeholders = 0
        request.life += 1
        request.ready = self.number + 2
        for entry in self.in_flight if reset else ():
            entry[2][:] = [one for one in entry[2] if one[0] is not request]

    def ends(self, request: Any, rows: int) -> None:
        """A life of a request."""
        at = np.arange(rows)
        slots = np.array(request.blocks, np.int64)[at // BLOCK] * BLOCK + at % BLOCK
        request.lives.append((self.truth[slots], self.why[slots]))

    def reset(self) -> None:
        """Other weights, and an empty prefix cache."""
        for request in self.scheduler.requests.values():
            if request.blocks:
                self.preempt(request, reset=True)
        self.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()
        self.shift += 1
        self.cached, self.keys, self.why[:] = {}, {}, NEVER

    def abort(self, request: Any) -> None:
        request.status = ABORTED
        self.scheduler._free_request(request)

    def schedule(self, tokens: dict[str, int]) -> Any:
        requests: Any = self.scheduler.requests
        known = {name: len(requests[name].blocks) for name in tokens}
        self.number += 1
        output = self.scheduler.schedule(tokens)
        for name, before in known.items():
            request = requests[name]
            for block in request.blocks[before:]:
                self.why[block * BLOCK : (block + 1) * BLOCK] = NEVER
                self.cached.pop(self.keys.pop(block, b""), None)
            full = min(request.num_computed_tokens, request.num_tokens) // BLOCK
            for block, key in zip(request.blocks[:full], request.block_hashes):
                if key not in self.cached:
                    self.cached.pop(self.keys.pop(block, b""), None)
                    self.cached[key], self.keys[block] = block, key
        return output

    # -- steps ----------------------------------------------------------------------------------
    def issue(self, tokens: dict[str, int], drafts: dict[str, tuple[int, int]] = {}) -> None:
        """drafts: of a request, the rows that the runner leaves in the batch, and those of them
        that are of accepted tokens."""
        output, ran, hashes, slots = self.schedule(tokens), [], [], []
        for name, count in tokens.items():
            request: Any = self.scheduler.requests[name]
            rows, right = drafts.get(name, (count, count))
            at = np.arange(request.done, request.done + rows)
            slots.append(np.array(request.blocks)[at // BLOCK] * BLOCK + at % BLOCK)
            hashes.append(request.hashes(request.done, request.done + rows) ^ self.shift)
            hashes[-1][right:] ^= -1  # drafts that are rejected
            request.done += right
            sampled = request.done + 1 if request.done >= request.num_tokens else 0
            optimistic = (count if name in drafts else 1) if sampled else 0
            request.placeholders += optimistic
            ran.append((request, request.life, sampled, optimistic, count - right))
        self.runner.batch = tuple(map(np.concatenate, (hashes, slots))) if tokens else ()
        late = self.late
        before = late.lost, late.unknown
        try:
            result = self.runner.execute_model(output)
        except Exception:
            self.why[:] = LOST
            raise
        if result is None:
            result = self.runner.sample_tokens()
        if late.unknown > before[1]:
            self.why[:] = LOST
        elif tokens:
            state = LOST if late.lost > before[0] else SILENT if self.runner.was_silent else VALID
            at = self.runner.batch[1]
            self.truth[at], self.why[at] = self.runner.batch[0], state
        self.in_flight.append((output, result, ran))

    def settle(self, finish: tuple[str, ...] = ()) -> None:
        """The output of the oldest step."""
        output, result, ran = self.in_flight.popleft()
        if hasattr(result, "get_output"):
            result = result.get_output()
        ends, requests = set(finish), self.scheduler.requests
        for request, life, sampled, optimistic, rejected in ran:
            if requests.get(request.request_id) is not request:
                continue
            if request.life == life:
                request.placeholders -= optimistic
                request.num_computed_tokens -= rejected
            request.num_tokens = min(max(request.num_tokens, sampled), request.length)
            if request.num_tokens == request.length:
                ends.add(request.request_id)
        for name in ends:
            request = self.ended[name] = requests[name]
            if request.status != "preempted":
                self.ends(request, min(request.done, request.num_tokens - 1))
        result.finished = ends
        for of_client in self.scheduler.update_from_output(output, result).values():
            for one in of_client.outputs:
                self.finished[one.request_id] = one

    def step(self, tokens: dict[str, int], finish: tuple[str, ...] = ()) -> None:
        self.issue(tokens)
        while len(self.in_flight) > 1:
            self.settle()
        self.settle(finish)

    def follow(self, steps: int = 2) -> None:
        """The engine runs so many steps ahead of its device, and not more."""
        deadline = time.monotonic() + 60
        while not self.late.failure and sum(
            taken or not read.free for taken, read in zip(self.late._ids_taken, self.late._ids_read)
        ) > steps:  # fmt: skip
            assert time.monotonic() < deadline
            time.sleep(5e-5)

    # -- what came of it ------------------------------------------------------------------------
    def check(self, name: str) -> Counter[str]:
        """Rows of a request that has ended, by what became of them."""
        request, rows = self.ended[name], self.rows(name)
        count = request.num_tokens - 1
        if request.sampling_params.extra_args:
            return Counter(unexplained=count if rows is not None else 0, unasked=count)
        if rows is None:
            return Counter({"ended" if self.coverage(name).failure else "unexplained": count})
        start = request.sampling_params.routed_experts_prompt_start
        assert len(rows) == max(count - start, 0)
        rows = np.append(np.full((count - len(rows), LAYERS, TOP_K), SPOILED), rows, axis=0)
        why, same = np.full(count, NEVER), np.zeros(count, bool)
        for hashes, causes in request.lives:  # the first valid row wins
            n = min(count, len(causes))
            here = causes[:n] == VALID
            equal = here & (rows[:n] == routed(hashes[:n])).all(axis=(1, 2))
            before = why[:n] == VALID
            # Nobody knows which rows a step has cost that was given up: those of a later life win.
            same[:n] = np.where(before, same[:n] | equal & self.hung, equal)
            why[:n] = np.where(before, VALID, causes[:n])
        why, same, there = why[start:], same[start:], (rows[start:] >= 0).all(axis=(1, 2))
        names = {VALID: "unexplained", NEVER: "unexplained", SILENT: "silent", LOST: "lost"}
        counts = Counter(names[cause] for cause in why[~there].tolist())
        return counts + Counter(right=int((there & same).sum()), wrong=int((there & ~same).sum()))

    def close(self) -> Counter[str]:
        """The rows of all requests, and what else was found."""
        self.drain()
        half, late = self.runner._waymark, self.late
        counts: Counter[str] = sum((self.check(name) for name in self.finished), Counter())
        if self.hung:  # nobody knows at which step
            counts["given up"] = counts.pop("unexplained", 0) + counts.pop("ended", 0)
        elif late.failure:
            counts["ended"] += counts.pop("unexplained", 0)
        else:
            counts["unexplained"] += counts.pop("ended", 0)
        counts["findings"] = len(half.store.take_findings())
        if not late.unknown and not self.hung:  # blocks that their decodes began have no user
            counts["findings"] += half.store.stats().releases_below_zero
        counts |= {"steps": self.number, "steps lost": late.lost + late.unknown + late.given_up}
        counts["by graphs"] = sum(by_graph for _, by_graph in self.runner.runs)
        late.close(10)
        half.store.close()
        return counts


BAD = ("wrong", "unexplained", "findings")
ROWS = ("right", "wrong", "unexplained", "silent", "lost", "given up", "ended", "unasked")
SETTINGS: dict[str, tuple[Any, ...]] = {  # of a random schedule
    "graphs": ("full", "full", "piecewise", ""),
    "v1": (False, False, True),
    "pads": (False, True),
    "depth": (2, 1),
    "late": (False, True),
    "silent_size": (None, None, 4),
    "follows": (True, True, True, True, False),  # does not wait for the device
    "drafts": (False, True),
    "error": ("",) * 12 + ("device", "copy", "hang", "fails_before", "fails_behind"),
}


class Schedules:
    """A random schedule: arrivals, hits, chunks, decodes, drafts, preemptions, resets, aborts,
    dummies, steps on their way and errors."""

    def __init__(self, seed: int, steps: int = 70, kind: type = DeviceEngine, **given: Any) -> None:
        self.rng, self.steps = random.Random(seed), steps
        how = {name: self.rng.choice(values) for name, values in SETTINGS.items()} | given
        self.error, self.follows, self.depth = how.pop("error"), how.pop("follows"), how["depth"]
        self.drafts = how.pop("drafts")
        self.how, self.seed = how, seed
        # So that a slow reader costs no row.
        self.engine = engine = kind(Options(store={"spare_pages": 1024}), **how)
        engine.device.in_order = self.rng.random() < 0.5
        engine.device.most_looks = self.rng.choice((1, 6))
        engine.device.random.seed(seed)
        self.error_step = self.rng.randrange(5, steps)
        self.number = 0

    def run(self) -> Counter[str]:
        for step in range(self.steps):
            self.events()
            if step == self.error_step and self.error:
                self.fail()
            tokens, drafts = self.choose()
            if not tokens and self.rng.random() < 0.9:
                self.settle(0)
                continue
            try:
                self.engine.issue(tokens, drafts)
            except RuntimeError:  # vLLM would end
                for name in tokens:
                    self.engine.abort(self.engine.scheduler.requests[name])
                self.engine.runner.fails_before = self.engine.runner.fails_behind = False
            self.settle(self.depth - 1 if tokens else 0)
            if self.follows and not self.engine.device.held:
                self.engine.follow()
            if step == self.error_step + 6:
                self.recover()
        self.recover()
        self.settle(0)
        return self.engine.close()

    def settle(self, steps: int) -> None:
        while len(self.engine.in_flight) > steps:
            self.engine.settle()

    def fail(self) -> None:
        engine = self.engine
        if self.error == "device":
            engine.device.error = RuntimeError("a test")
        elif self.error == "copy":
            engine.device.copy = lambda pairs: 1 // 0  # type: ignore[method-assign,assignment]
        elif self.error == "hang":
            engine.device.held = engine.hung = True
            engine.late._seconds = 0.05
            engine.runner._waymark._idle_seconds = 0.05
        else:
            setattr(engine.runner, self.error, True)

    def recover(self) -> None:
        if self.engine.device.held:
            time.sleep(0.06)
            self.engine.device.held = False

    def events(self) -> None:
        """What happens between two schedules."""
        rng, engine = self.rng, self.engine
        requests: dict[str, Any] = engine.scheduler.requests
        for _ in range(rng.randint(0, 2) if len(requests) < 6 else 0):
            self.number += 1
            prompt = rng.choice((rng.randint(1, 12), rng.randint(8, 48)))
            one = engine.request(
                f"{self.seed}.{self.number}", prompt, length=prompt + rng.randint(1, 20),
                family=rng.randint(0, 2), shared=rng.choice((0, rng.randint(0, prompt))),
                asked=rng.random() < 0.95)  # fmt: skip
            start = rng.choice((0, 0, 0, rng.randint(0, 9)))
            one.sampling_params.routed_experts_prompt_start = start
        running = [one for one in requests.values() if one.blocks]
        if running and rng.random() < 0.06:
            engine.preempt(rng.choice(running))
        if requests and rng.random() < 0.02:
            engine.abort(rng.choice(list(requests.values())))
        if rng.random() < 0.01:
            engine.reset()
        if rng.random() < 0.15:  # of an idle data-parallel rank
            engine.runner._dummy_run(rng.choice((1, 3, 4, 16, 40)))

    def choose(self) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        rng, engine, room = self.rng, self.engine, MOST_ROWS
        tokens: dict[str, int] = {}
        drafts: dict[str, tuple[int, int]] = {}
        requests: list[Any] = list(engine.scheduler.requests.values())
        for one in rng.sample(requests, len(requests)):
            if one.ready > engine.number + 1 or not room or rng.random() < 0.1:
                continue
            if one.num_tokens + one.placeholders >= one.length:
                continue  # its last token is on its way
            if not one.num_computed_tokens:
                engine.hit(one)
            left = one.num_tokens + one.placeholders - one.num_computed_tokens
            count = rng.randint(1, min(left, room))
            decodes = left == 1 and one.num_computed_tokens
            if decodes and self.drafts:
                count = min(rng.randint(1, 4), room)
            if not self.allocate(one, one.num_computed_tokens + count, tokens):
                if one.request_id not in engine.scheduler.started or one.status == "preempted":
                    engine.scheduler.kv_cache_manager.free(one)  # what it hit
                    one.done = 0
                continue
            tokens[one.request_id] = count
            room -= count
            if decodes and self.drafts:
                left_out = not engine.runner.v1 and rng.random() < 0.2
                rows = rng.randint(1, count) if left_out else count
                drafts[one.request_id] = rows, rng.randint(1, rows)
        return tokens, drafts

    def allocate(self, request: Any, rows: int, chosen: dict[str, int]) -> bool:
        """Whether there are blocks for so many rows; others are preempted for them."""
        engine = self.engine
        requests: dict[str, Any] = engine.scheduler.requests
        all_rows = [(request, rows)]
        for name in chosen:
            all_rows.append((requests[name], requests[name].num_computed_tokens + chosen[name]))
        need = sum(max(0, -(-end // BLOCK) - len(one.blocks)) for one, end in all_rows)
        while need > len(engine.scheduler.free):
            others = [one for name, one in requests.items()
                      if one.blocks and one is not request and name not in chosen]  # fmt: skip
            if not others:
                return False
            engine.preempt(others[-1])
        return True


def modules(name: str) -> Any:
    if name == "vllm.envs":
        return types.SimpleNamespace(VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=5)
    return vllm_engine.modules(name)


@pytest.fixture(autouse=True)
def cuda(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of the tests is a LateDevice."""
    for owner, name, value in vllm_engine.replaced(modules):
        monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(_device.late, "Cuda", LateDevice)
    monkeypatch.setattr(_late_ids, "_PAUSE_SECONDS", 1e-4)
    monkeypatch.setattr(_late_ids, "_LOOK_AGAIN_SECONDS", 1e-3)
