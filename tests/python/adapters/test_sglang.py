"""waymark.sglang without SGLang: its table in an engine that allocates, overlaps, loads and flushes as SGLang does, and
what is refused. tests/integration/sglang runs it in SGLang.
"""

import random
import sys
import types

import numpy as np
import pytest
from waymark._slots import HostKeys
from waymark.sglang import _checks, _plugin
from waymark.sglang._table import Forward, Table

LAYERS, TOP_K, EXPERTS, PAGE, BLOCKS = 3, 2, 16, 4, 12


def told(name, *args):
    """A call of a function that is hooked, by the end of its name."""
    found = [hook for _, target, hook in _plugin._hooks() if target.endswith(name)]
    assert found, name
    found[0](*args)


class Tensor(np.ndarray):
    """The methods of a tensor that are called."""

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


def tensor(values):
    return np.asarray(values).view(Tensor)


def modules(monkeypatch, **named):
    """Modules that can be imported; `__` in a name is a dot."""
    for name, content in named.items():
        module = types.ModuleType(name.replace("__", "."))
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture(autouse=True)
def serving(monkeypatch):
    """What SGLang says of its weights."""
    found = types.SimpleNamespace(weight_version="default")
    modules(monkeypatch, sglang__srt__runtime_context={"get_serving": lambda: found})
    monkeypatch.setattr(Table, "model", (EXPERTS, [0, 2]))  # layer 1 has no router
    return found


def ids_of(tokens, version=0):
    """What routers choose for each token, whose prefix is the token itself: [tokens, layers, K]."""
    wide = np.arange(LAYERS * TOP_K).reshape(LAYERS, TOP_K)
    return ((np.asarray(tokens)[:, None, None] * 7 + wide * 5 + version) % EXPERTS).astype(np.int32)


class Engine:
    """Allocates blocks, launches forwards and finalizes their outputs `behind` launches later."""

    def __init__(self, behind=1, hosts=0, options={"num_pages": 64}):  # noqa: B006, it is not changed
        self.table = Table((BLOCKS + 1) * PAGE, LAYERS, TOP_K, "routed_experts", "cpu")
        pool = types.SimpleNamespace(size=hosts * PAGE) if hosts else None
        self.table.opened(PAGE, 64, pool, options)
        self.behind, self.launched = behind, []
        self.free = list(range(1, BLOCKS + 1))

    def allocate(self, count):
        """Slots of `count` blocks."""
        blocks, self.free = self.free[:count], self.free[count:]
        slots = (np.array(blocks)[:, None] * PAGE + np.arange(PAGE)).ravel()
        told("TokenToKVPoolAllocator.alloc", tensor(slots), None)
        return slots

    def forward(self, slots, tokens, version=0):
        padded = np.concatenate([slots, [0]])
        ids = ids_of([*tokens, 999], version)
        ids[:, 1] = -1  # the layer without a router
        self.launched.append(Forward(tensor(padded), tensor(ids), self.table))
        while len(self.launched) > self.behind:
            self.finish()

    def finish(self):
        forward = self.launched.pop(0)
        forward.map_device_tensors(lambda one: one.copy())
        forward.finalize()

    def rows(self, slots, first=0):
        while self.launched:
            self.finish()
        slots = slots[first:]
        return self.table.answer(first, len(slots), self.table.taken(tensor(slots)))


def right(ids, tokens, version=0):
    expected = ids_of(tokens, version)
    expected[:, 1] = 0
    return (ids == expected).all((1, 2))


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_rows_follow_blocks_that_are_taken_again_while_forwards_are_in_flight(behind):
    engine, rng = Engine(behind), random.Random(5)
    for life in range(60):
        tokens = [rng.randrange(10**6) for _ in range(rng.randrange(1, 14))]
        slots = engine.allocate(-(-len(tokens) // PAGE))
        used = slots[: len(tokens)]
        engine.forward(used[:3], tokens[:3])
        engine.forward(used[3:], tokens[3:])
        if life % 3 == 0:
            first = rng.randrange(len(tokens))
            ids, info = engine.rows(used, first)
            assert right(ids, tokens[first:]).all() and not info["missing"]
            assert info["rows"] == len(tokens) - first
        # Released while the second forward may be in flight.
        engine.free += (slots[::PAGE] // PAGE).tolist()


def test_rows_come_back_with_kv_from_the_host_and_else_are_missing():
    engine = Engine(hosts=8)
    pool, tokens = engine.table.host_pool, list(range(100, 100 + 2 * PAGE))
    first = engine.allocate(2)
    engine.forward(first, tokens)
    host = tensor(np.arange(PAGE * 2))
    told("HostKVCache.alloc", host, pool)
    told("HybridCacheController.write", host, None, tensor(first))
    engine.free += (first[::PAGE] // PAGE).tolist()
    other = engine.allocate(BLOCKS - 2)
    engine.forward(other[:1], [1])
    engine.free = [5, 6, *engine.free]
    back = engine.allocate(2)
    told("HybridCacheController.load", tensor(back), None, host)
    engine.forward(other[1:2], [2])
    ids, info = engine.rows(back)
    assert right(ids, tokens).all() and not info["missing"]
    # The host's second block goes to KV that nobody knows, as a storage backend's; the allocation of another pool is no matter.
    told("HostKVCache.alloc", host[PAGE:], pool)
    told("HostKVCache.alloc", host, "another pool")
    engine.free = [7, 8]
    unknown = engine.allocate(2)
    told("HybridCacheController.load", tensor(unknown), None, host)
    engine.forward(other[2:3], [3])
    ids, info = engine.rows(unknown)
    assert right(ids[:PAGE], tokens[:PAGE]).all() and (ids[PAGE:] == -1).all()
    assert [(begin, end) for begin, end, _ in info["missing"]] == [(PAGE, 2 * PAGE)]


def test_a_block_without_rows_that_goes_to_the_host_ends_nothing():
    engine = Engine(hosts=8)
    slots = engine.allocate(2)
    host = tensor(np.arange(PAGE))
    told("HostKVCache.alloc", host, engine.table.host_pool)
    told("HybridCacheController.write", host, None, tensor(slots[:PAGE]))
    engine.forward(slots[PAGE:], [1, 2, 3, 4])
    back = engine.allocate(1)
    told("HybridCacheController.load", tensor(back), None, host)
    engine.forward(slots[:1], [5])
    ids, info = engine.rows(slots[PAGE:])
    assert right(ids, [1, 2, 3, 4]).all() and not info["missing"]
    assert (engine.rows(back)[0] == -1).all()


class Hierarchy:
    """An engine with a host pool, and what is in the blocks of both: their tokens, or None if nobody knows."""

    def __init__(self, seed):
        self.random, self.hosts = random.Random(seed), 8
        self.engine = Engine(self.random.randrange(3), self.hosts, {})
        self.sequences, self.host = [], [None] * self.hosts  # sequences: (slots, tokens of each block)
        self.found, self.kept = {"right": 0, "missing": 0}, {}  # kept: sequences that the host has

    def compute(self):
        count = self.random.randrange(1, 3 * PAGE)
        if len(self.engine.free) < -(-count // PAGE):
            return self.release()
        slots = self.engine.allocate(-(-count // PAGE))
        tokens = [self.random.randrange(10**6) for _ in range(count)]
        cut = self.random.randrange(count + 1)
        for part in (slice(0, cut), slice(cut, count)):
            self.engine.forward(slots[:count][part], tokens[part])
        self.sequences.append((slots[:count], [tokens[at:at + PAGE] for at in range(0, count, PAGE)]))

    def release(self):
        if self.sequences:
            slots, _ = self.sequences.pop(self.random.randrange(len(self.sequences)))
            self.engine.free += (slots[::PAGE] // PAGE).tolist()

    def take_host(self, count):
        blocks = self.random.sample(range(self.hosts), count)
        host = tensor((np.array(blocks)[:, None] * PAGE + np.arange(PAGE)).ravel())
        told("HostKVCache.alloc", host, self.engine.table.host_pool)
        return blocks, host

    def write(self):
        whole = [one for one in self.sequences if len(one[0]) >= PAGE and id(one) not in self.kept]
        if whole:  # SGLang writes no block that the host has
            slots, tokens = one = self.random.choice(whole)
            self.kept[id(one)] = one
            count = len(slots) // PAGE
            blocks, host = self.take_host(count)
            told("HybridCacheController.write", host, None, tensor(slots[: count * PAGE]))
            for block, content in zip(blocks, tokens):
                self.host[block] = content

    def from_elsewhere(self):
        for block in self.take_host(2)[0]:
            self.host[block] = None

    def load(self):
        if len(self.engine.free) < 2:
            return self.release()
        blocks, slots = self.random.sample(range(self.hosts), 2), self.engine.allocate(2)
        host = tensor((np.array(blocks)[:, None] * PAGE + np.arange(PAGE)).ravel())
        told("HybridCacheController.load", tensor(slots), None, host)
        one = slots, [self.host[block] for block in blocks]
        self.sequences.append(one)
        self.kept[id(one)] = one

    def flush(self):
        table = self.engine.table
        told("TokenToKVPoolAllocator.clear", None, types.SimpleNamespace(free_pages=tensor([1])))
        self.sequences, self.host = [], [None] * self.hosts
        self.engine.free = list(range(1, BLOCKS + 1))
        assert not table.failure

    def read(self):
        if not self.sequences or not self.engine.free:
            return self.release()
        block = self.engine.allocate(1)  # what happened is told with a forward
        self.engine.forward(block[:1], [1])
        self.sequences.append((block[:1], [[1]]))
        slots, tokens = self.random.choice(self.sequences)
        ids, info = self.engine.rows(slots)
        for at, content in enumerate(tokens):
            rows = ids[at * PAGE:][:PAGE]
            if content is None:
                assert (rows == -1).all()
            else:
                assert right(rows, content).all(), info
            self.found["missing" if content is None else "right"] += len(rows)


@pytest.mark.parametrize("seed", [2, 31337, 777])
def test_rows_of_random_lives_with_a_host_pool(seed):
    one = Hierarchy(seed)
    acts = [one.compute] * 6 + [one.release] * 3 + [one.write] * 4 + [one.from_elsewhere] + [one.load] * 4 + [one.read] * 4
    for _ in range(1500):
        one.random.choice(acts)()
        if one.random.random() < 0.01:
            one.flush()
    assert not one.engine.table.failure and one.found["right"] > 300 and one.found["missing"] > 100, one.found


def test_weights_have_the_names_of_their_launch(serving):
    engine = Engine(behind=1)
    slots = engine.allocate(3)
    engine.forward(slots[:4], [1, 2, 3, 4])
    engine.table.updated()  # nobody names them
    engine.forward(slots[4:6], [5, 6])
    engine.table.updated()
    serving.weight_version = "step 2"
    engine.forward(slots[6:8], [7, 8])
    _, info = engine.rows(slots[:8])
    assert info["weights"] == [[0, 4, "default"], [4, 6, ""], [6, 8, "step 2"]]


def test_a_lost_output_ends_the_capture_until_the_cache_is_flushed():
    engine = Engine(behind=1)
    slots = engine.allocate(2)
    engine.forward(slots[:2], [1, 2])
    engine.launched.clear()  # its events are lost with it
    engine.forward(slots[2:4], [3, 4])
    ids, info = engine.rows(slots[:4])
    assert (ids == -1).all() and "no output" in info["missing"][0][2]
    told("TokenToKVPoolAllocator.clear", None, types.SimpleNamespace(free_pages=tensor([1])))
    engine.free = list(range(1, BLOCKS + 1))
    slots = engine.allocate(1)
    engine.forward(slots[:2], [5, 6])
    ids, info = engine.rows(slots[:2])
    assert right(ids, [5, 6]).all() and not info["missing"]


@pytest.mark.parametrize("flush", ["in flight", "waiting"])
def test_a_flush_before_a_failure_does_not_begin_the_capture_again(flush):
    engine = Engine(behind=1)
    slots = engine.allocate(2)
    engine.forward(slots[:2], [1, 2])
    clear = "TokenToKVPoolAllocator.clear", None, types.SimpleNamespace(free_pages=tensor([1]))
    told(*clear)
    if flush == "in flight":
        engine.forward(slots[2:4], [3, 4])  # takes the flush along
    told("HybridCacheController.load", tensor(slots), None, tensor(slots))  # fails: there is no pool of hosts
    engine.forward(slots[4:6], [5, 6])
    ids, info = engine.rows(slots[:6])
    assert (ids == -1).all() and "AttributeError" in info["missing"][0][2]
    told(*clear)
    slots = engine.allocate(1)
    engine.forward(slots[:2], [7, 8])
    ids, info = engine.rows(slots[:2])
    assert right(ids, [7, 8]).all() and not info["missing"]


def test_a_launch_without_a_name_of_weights_ends_the_capture_and_raises_nothing(monkeypatch):
    engine = Engine(behind=0)
    slots = engine.allocate(1)
    modules(monkeypatch, sglang__srt__runtime_context={})
    engine.forward(slots[:2], [1, 2])
    ids, info = engine.rows(slots[:2])
    assert (ids == -1).all() and "get_serving" in info["missing"][0][2]


def test_a_silent_router_and_a_failure_of_a_hook_leave_rows_missing():
    engine = Engine(behind=0)
    slots = engine.allocate(1)
    ids = ids_of([1, 2])
    ids[1, 2] = -1
    Forward(tensor(slots[:2]), tensor(ids), engine.table).finalize()
    ids, info = engine.rows(slots[:2])
    assert right(ids, [1, 2]).tolist() == [True, False] and (ids[1] == -1).all()
    assert [place[:2] for place in info["missing"]] == [[1, 2]]
    told("HybridCacheController.write", tensor([0]), None, tensor(slots))  # there is no pool of hosts
    assert "AttributeError" in engine.table.failure
    ids, info = engine.rows(slots[:2])
    assert (ids == -1).all() and "AttributeError" in info["missing"][0][2]


def test_other_tables_stay_the_engine_s_own(monkeypatch):
    monkeypatch.setattr(Table, "own", lambda *args, **more: ("own", args, more))
    monkeypatch.setattr(Forward, "own", lambda **more: more)
    assert Table(1, 2, 3, name="indexer_topk", device="cpu")[0] == "own"
    assert Forward(1, 2, "table")["host_cache"] == "table"


def test_it_is_off_by_default_and_refuses_other_versions(monkeypatch):
    monkeypatch.delenv("WAYMARK_SGLANG", raising=False)
    _plugin.register()  # imports nothing
    monkeypatch.setenv("WAYMARK_SGLANG", "1")
    modules(monkeypatch, sglang={"__version__": "0.5.24"})
    with pytest.raises(SystemExit, match="0.5.24 is refused"):
        _plugin.register()


@pytest.mark.parametrize(("switch", "options", "why"), [
    ("perhaps", "", "1 or 0"), ("1", "{", "Expecting"), ("1", "[]", "arguments of Capture"), ("1", '{"num_pagse": 3}', "num_pagse"),
    ("1", '{"num_blocks": 3}', "num_blocks"), ("1", '{"num_pages": "many"}', "num_pages"),
])  # fmt: skip
def test_options_that_are_wrong_are_refused_by_name(monkeypatch, switch, options, why):
    monkeypatch.setenv("WAYMARK_SGLANG", switch)
    monkeypatch.setenv("WAYMARK_SGLANG_OPTIONS", options)
    modules(monkeypatch, sglang={"__version__": _checks.VERSION})
    with pytest.raises(SystemExit, match=f"waymark: WAYMARK_SGLANG.*{why}"):
        _plugin.register()


class TokenToKVPoolAllocator:
    __module__ = "sglang.srt.mem_cache.allocator.token"


@pytest.mark.parametrize("mode", [*_checks.MODES, "allocator", "controller", "hook", None])
def test_modes_that_are_not_known_are_refused_by_name(monkeypatch, mode):
    registry = types.SimpleNamespace(_hooks={"a.target": [(0, _plugin._collect, None)]}, _patched={"a.target"})
    modules(monkeypatch, sglang__srt__plugins__hook_registry={"HookRegistry": registry})
    scheduler = types.SimpleNamespace(
        token_to_kv_pool_allocator=TokenToKVPoolAllocator(), tree_cache=types.SimpleNamespace(),
        server_args=types.SimpleNamespace(**_checks.MODES),
    )  # fmt: skip
    if mode is None:
        return _checks.check(scheduler)
    if mode == "allocator":
        scheduler.token_to_kv_pool_allocator = object()
    elif mode == "controller":
        scheduler.tree_cache.cache_controller = object()
    elif mode == "hook":
        registry._patched.clear()
    else:
        setattr(scheduler.server_args, mode, "another")
    with pytest.raises(SystemExit, match=f"(?i){mode}.* is refused"):
        _checks.check(scheduler)


def test_keys_of_a_host_block_end_with_its_owner():
    hosts = HostKeys(32, PAGE)
    slots = tensor(np.arange(8, 16))
    keys = hosts.written(slots)
    assert (hosts.loaded(slots) == keys).all() and len(set(keys.tolist())) == 2
    hosts.allocated(slots[4:])
    assert hosts.loaded(slots)[0] == keys[0] and hosts.loaded(slots)[1] not in keys
