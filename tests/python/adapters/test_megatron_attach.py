"""waymark.megatron on look-alikes of Megatron's context, allocator and engine, without torch and megatron-core.

tests/integration/megatron runs it in the real ones.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import logging
import pathlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import waymark
import waymark.megatron
from conftest import captures_on, output_of, until
from waymark.megatron import Finished, Refused, _attached, _capture, _versions

BLOCK, BLOCKS, MAX_BLOCKS, MAX_REQUESTS, MAX_TOKENS = 4, 12, 6, 8, 64
LAYERS, K, EXPERTS = 2, 2, 16
REPO = pathlib.Path(__file__).resolve().parents[3]


class Tensor(np.ndarray):
    """What the adapter uses of torch's."""

    def numpy(self) -> np.ndarray:
        return self.view(np.ndarray)

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return self.itemsize


def tensor(values: Any, dtype: Any = np.int32) -> Tensor:
    return np.array(values, dtype).view(Tensor)


class Allocator:
    """KVBlockAllocator: a stack of blocks, the last one released is the first to be taken."""

    def __init__(self) -> None:
        self.total_count, self.dummy_block_idx = BLOCKS, BLOCKS - 1
        self.block_routing: dict[int, Any] = {}
        self.bag = tensor(range(BLOCKS))
        self.avail = BLOCKS - 1
        self.stored: list[Any] = []

    def allocate_memory_blocks(self, num_blocks: int) -> Any:
        if num_blocks > self.avail:
            return None
        self.avail -= num_blocks
        blocks = self.bag[self.avail : self.avail + num_blocks]
        for block in blocks.tolist():
            self.block_routing.pop(block, None)
        return blocks

    def release_memory_blocks(self, blocks: Any) -> None:
        self.bag[self.avail : self.avail + len(blocks)] = blocks
        self.avail += len(blocks)

    def register_kv_block_hashes(self, block_ids: Any, block_hashes: Any, parents: Any = None) -> None:
        pass

    def reset(self) -> None:
        self.bag[:] = range(BLOCKS)
        self.avail = BLOCKS - 1
        self.block_routing.clear()

    def store_routing_per_block(self, flat_routing: Any) -> None:
        self.stored.append(flat_routing)

    def reconstruct_routing_from_blocks(self, block_ids: Any, total_routing_tokens: int) -> Any:
        return "Megatron's own"


class NewerAllocator(Allocator):
    """Of main (0.20)."""

    def retain_memory_blocks(self, block_ids: list[int]) -> None:
        pass


class Metadata:
    """RoutingMetadata, without static buffers."""

    def __init__(self, context: Any) -> None:
        self.context, self.routing_indices_buffer = context, None

    def get_routing_indices(self) -> Any:
        return None

    def enable_static_buffer_recording(self) -> None:
        pass


class Context:
    """DynamicInferenceContext: requests in rows, and the tokens of a forward."""

    def __init__(self, token_dtype: Any = np.int64) -> None:
        self.kv_block_allocator = Allocator()
        self.block_size_tokens, self.max_tokens = BLOCK, MAX_TOKENS
        self.kv_cache_management_mode = types.SimpleNamespace(name="RECOMPUTE")
        self.is_tensor_state_allocated = True
        self.is_creating_cuda_graphs = False
        self.moe_routing_metadata = Metadata(self)
        self.make_tensors(token_dtype)

    def make_tensors(self, token_dtype: Any = np.int64) -> None:
        self.request_ids = tensor([-1] * MAX_REQUESTS)
        self.request_to_kv_block_ids = tensor(np.full((MAX_REQUESTS, MAX_BLOCKS), -1))
        self.request_kv_length_offsets = tensor([0] * MAX_REQUESTS)
        self.request_query_lengths = tensor([0] * MAX_REQUESTS)
        self.request_in_prefill_status_tensor = tensor([0] * MAX_REQUESTS)
        self.token_to_block_idx = tensor([0] * MAX_TOKENS, token_dtype)
        self.token_to_local_position_within_kv_block = tensor([0] * MAX_TOKENS)
        self.total_request_count = self.paused_request_count = self.active_token_count = 0
        self.padded_active_token_count = 0

    def using_cuda_graph_this_step(self) -> bool:
        return False

    def _compute_prefix_match(self, req: Any, prefill_chunk_length: int) -> Any:
        return (req.matched, 0)

    def add_request(self, req: Any, prefill_chunk_length: int | None = None) -> None:
        request, row = req, self.total_request_count
        matched = self._compute_prefix_match(request, 0)[0]
        blocks = -(-len(request.prompt_tokens) // BLOCK) - len(matched)
        table = [*matched, *self.kv_block_allocator.allocate_memory_blocks(blocks).tolist()]
        if request.fails:
            raise RuntimeError("no row is left")
        self.request_ids[row] = request.request_id
        self.request_to_kv_block_ids[row, : len(table)] = table
        self.request_kv_length_offsets[row] = len(matched) * BLOCK
        self.request_query_lengths[row] = len(request.prompt_tokens) - len(matched) * BLOCK
        self.request_in_prefill_status_tensor[row] = 1
        self.total_request_count += 1

    def release_memory_blocks_from_request_indexes(self, request_indexes: Any) -> None:
        blocks = self.request_to_kv_block_ids[request_indexes]
        self.kv_block_allocator.release_memory_blocks(blocks[blocks != -1])
        self.request_to_kv_block_ids[request_indexes] = -1

    def evict_overflow_paused_requests(self, row: int) -> None:
        self.release_memory_blocks_from_request_indexes(tensor([row]))

    def deallocate_inference_state_buffers(self) -> None:
        self.is_tensor_state_allocated = False

    def reset(self, preserve_prefix_cache: bool = False, *, preserve_counters: bool = False) -> None:
        self.make_tensors()
        self.is_creating_cuda_graphs = False
        if not preserve_prefix_cache:
            self.kv_block_allocator.reset()

    def forward(self) -> int:
        """Lays out the tokens of the next forward; returns how many."""
        count = 0
        for row in range(self.total_request_count):
            first = int(self.request_kv_length_offsets[row])
            for position in range(first, first + int(self.request_query_lengths[row])):
                self.token_to_block_idx[count] = self.request_to_kv_block_ids[row, position // BLOCK]
                self.token_to_local_position_within_kv_block[count] = position % BLOCK
                count += 1
        self.active_token_count = count
        return count

    def advance(self, row: int) -> None:
        """A request goes on to its next token, which needs no new block."""
        self.request_kv_length_offsets[row] += self.request_query_lengths[row]
        self.request_query_lengths[row] = 1
        self.request_in_prefill_status_tensor[row] = 0


class Controller:
    """TextGenerationController, as far as it runs a forward."""

    def __init__(self, wrapper: Any) -> None:
        self.inference_wrapped_model, self.fails = wrapper, False

    def _dynamic_step_forward_logits(self, input_ids: Any, position_ids: Any) -> None:
        if self.fails:
            raise MemoryError("halfway through the layers")


class Engine:
    """DynamicInferenceEngine, as far as it returns results."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._generation_epoch: int | None = None
        wrapper = types.SimpleNamespace(model=model_of_two_layers())
        self.controller = Controller(wrapper)

    def post_process_requests(self, records: Any) -> Any:
        return [], records

    def _handle_failed_request(self, request_id: int) -> None:
        pass

    def reset(self) -> None:
        self.context.reset()
        self._generation_epoch = None


class Modules:
    """A module of torch."""

    def __init__(self, modules: list[Any]) -> None:
        self._modules = modules

    def modules(self) -> list[Any]:
        return self._modules


def config(**changed: Any) -> Any:
    values = dict(moe_enable_routing_replay=True, num_moe_experts=EXPERTS, moe_router_topk=K, moe_router_fusion=False,
                  moe_router_load_balancing_type="aux_loss", pipeline_model_parallel_size=1)  # fmt: skip
    return types.SimpleNamespace(**values | changed)


class TopKRouter:
    def __init__(self, number: int, experts: int = EXPERTS) -> None:
        self.router_replay, self.layer_number = Replay(), number
        self.weight, self.config = np.full((experts, 3), number), config()

    def routing(self) -> None: ...
    def forward(self) -> None: ...


class HashRouter(TopKRouter):
    def routing(self) -> None: ...


def model_of_two_layers(*routers: Any) -> Any:
    return types.SimpleNamespace(config=config(), decoder=Modules([*(routers or map(TopKRouter, (3, 1)))]))


@pytest.fixture(autouse=True)
def digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights that are numpy's."""
    take = lambda self: b"".join(one.weight.tobytes() for one in _versions.routers(self._model))
    monkeypatch.setattr(_versions.Digest, "_take", take)


def request(number: int, tokens: int, matched: Any = (), fails: bool = False) -> Any:
    return types.SimpleNamespace(request_id=number, prompt_tokens=list(range(tokens)), generated_tokens=[], matched=list(matched),
                                 finished_chunk_token_count=0, routing_indices=None, fails=fails)  # fmt: skip


class Rig:
    def __init__(self, context: Context | None = None, engine: bool = False, **options: Any) -> None:
        self.prepare(context or Context(), engine)
        self.attach(**options)

    def prepare(self, context: Context, engine: bool) -> None:
        self.context, self.allocator, self.seed = context, context.kv_block_allocator, 0
        self.engine = Engine(context) if engine else None
        self.given = {} if engine else {"model": model_of_two_layers()}

    def attach(self, **options: Any) -> None:
        target = self.engine or self.context
        self.attached = waymark.megatron.attach(target, **self.given, **options)

    def step(self) -> np.ndarray:
        """A forward of everything; returns its ids."""
        rows = self.context.forward()
        self.seed += 1
        numbers = np.random.default_rng(self.seed)
        ids = np.argsort(numbers.random((rows, LAYERS, EXPERTS)), axis=-1)[..., :K].astype(np.int16)
        self.allocator.store_routing_per_block(ids)
        return ids

    def prefill(self, number: int, tokens: int) -> tuple[Any, np.ndarray]:
        """A new request, and the ids of the step in which it is."""
        one = request(number, tokens)
        self.context.add_request(one)
        return one, self.step()

    def ask(self, row: int, count: int) -> Any:
        """A request finishes, and its owner asks for its rows."""
        (blocks,) = self.release(row)
        return self.allocator.reconstruct_routing_from_blocks(blocks, count)

    def returns(self, one: Any, token: int = 9) -> Any:
        """The engine returns the record of a request that finished with this token."""
        one.generated_tokens.append(token)
        return self.engine.post_process_requests([[one]])  # type: ignore[union-attr]

    def release(self, *rows: int) -> list[list[int]]:
        """Requests finish; returns their blocks, as Megatron remembers them."""
        blocks = [[int(b) for b in self.context.request_to_kv_block_ids[row] if b >= 0] for row in rows]
        self.context.release_memory_blocks_from_request_indexes(tensor(rows))
        return blocks


class Replay:
    def __init__(self) -> None:
        self.recorded_topk_idx: Any = None

    def get_recorded_indices(self) -> Any:
        return self.recorded_topk_idx


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def one(*args: Any, **more: Any) -> Rig:
        rigs.append(Rig(*args, **more))
        return rigs[-1]

    yield one
    for rig in rigs:
        rig.attached.detach()


@pytest.fixture
def rig(make: Callable[..., Rig]) -> Rig:
    return make()


def test_importing_it_imports_neither_torch_nor_megatron() -> None:
    code = "import sys, waymark.megatron; assert not {'torch', 'megatron'} & set(sys.modules)"
    output_of(code)


def test_rows_of_blocks_that_are_taken_again_in_the_same_step(rig: Rig) -> None:
    _, ids = rig.prefill(7, 6)
    (blocks,) = rig.release(0)
    again = rig.allocator.allocate_memory_blocks(2).tolist()
    assert sorted(again) == sorted(blocks)
    array = rig.allocator.reconstruct_routing_from_blocks(blocks, 6)
    assert array.dtype == np.int16 and (array == ids).all()
    assert not rig.allocator.stored, "Megatron's own store writes, too"


def test_a_forward_that_throws_loses_the_rows_that_it_wrote(make: Callable[..., Rig]) -> None:
    """Nothing told that it had begun: rows stayed valid whose KV it had written over."""
    rig = make(engine=True)
    _, ids = rig.prefill(1, 6)
    rig.context.request_kv_length_offsets[0] = 4  # two tokens again
    rig.context.request_query_lengths[0] = 2
    assert rig.context.forward() == 2
    assert rig.engine is not None
    rig.engine.controller.fails = True
    with pytest.raises(MemoryError, match="halfway"):
        rig.engine.controller._dynamic_step_forward_logits(None, None)
    array = rig.ask(0, 6)
    assert (array[:4] == ids[:4]).all() and (array[4:] == -1).all()
    assert rig.attached.steps_without_ids == 1 and not rig.attached.failure


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_tokens_of_every_version(make: Callable[..., Rig], dtype: Any) -> None:
    """Up to 0.18 token_to_block_idx is int32; a resume makes new tensors."""
    rig = make(Context(dtype))
    for number in range(2):
        _, ids = rig.prefill(number, 5)
        assert (rig.ask(0, 5) == ids).all()
        rig.context.make_tensors(dtype)


def test_a_row_too_many_is_cut_and_one_too_few_is_missing(rig: Rig) -> None:
    _, ids = rig.prefill(1, 6)
    (blocks,) = rig.release(0)
    finished = rig.attached.requests.with_blocks(tuple(blocks))
    assert finished is not None
    finished.count = 8
    array = finished.array()
    assert array is not None and (array[:6] == ids).all() and (array[6:] == -1).all()
    assert finished.coverage().missing == {waymark.Reason.NOT_CAPTURED: 2}
    assert (rig.allocator.reconstruct_routing_from_blocks(blocks, 5) == ids[:5]).all()


def test_an_evicted_request_has_the_rows_of_its_first_life(make: Callable[..., Rig]) -> None:
    rig = make(engine=True)
    one, first = rig.prefill(3, 5)
    rig.context.evict_overflow_paused_requests(0)
    rig.context.total_request_count = 0
    one.generated_tokens = [5]
    later, second = rig.prefill(3, 6)
    rig.release(0)
    later.generated_tokens = [9]
    rig.engine.post_process_requests([[None, later]])  # type: ignore[union-attr]
    assert (later.routing_indices == np.concatenate([first, second[5:]])).all()


def test_another_request_with_the_number_of_one_that_did_not_go_on(make: Callable[..., Rig]) -> None:
    rig = make(engine=True)
    for prompt in (5, 9):
        rig.prefill(3, 5)
        rig.context.evict_overflow_paused_requests(0)
        rig.context.total_request_count = 0
        if prompt == 5:
            rig.engine.reset()  # type: ignore[union-attr]
        other, ids = rig.prefill(3, prompt)
        rig.release(0)
        rig.context.total_request_count = 0
        rig.returns(other)
        assert (other.routing_indices == ids).all()


def test_a_suspend_that_forgets_the_cache_keeps_the_rows_so_far(rig: Rig) -> None:
    one = request(4, 5)
    rig.context.add_request(one)
    rig.context.add_request(request(5, 3))
    first = rig.step()
    rig.context.advance(0)
    rig.context.advance(1)
    rig.context.deallocate_inference_state_buffers()
    rig.context.deallocate_inference_state_buffers()  # is done already
    assert rig.attached.requests.rows_kept(4) == 5 and rig.attached.requests.rows_kept(5) == 3
    rig.allocator.reset()
    rig.context.make_tensors()
    one.generated_tokens = [5]
    _, second = rig.prefill(4, 6)
    assert (rig.ask(0, 6) == np.concatenate([first[:5], second[5:]])).all()


def test_new_weights_keep_the_rows_of_running_requests(make: Callable[..., Rig]) -> None:
    finished: list[Finished] = []
    rig = make(on_finished=finished.append)
    _, first = rig.prefill(1, 6)
    rig.context.advance(0)
    rig.attached.set_weight_version(3)
    second = rig.step()
    with pytest.raises(ValueError, match="at least 3, got 2"):
        rig.attached.set_weight_version(2)
    assert (rig.ask(0, 7) == np.concatenate([first, second])).all()
    runs = finished[0].coverage().runs
    assert [(run.begin, run.end, run.version) for run in runs] == [(0, 6, 0), (6, 7, 3)]


def test_the_epoch_of_an_engine_is_followed(make: Callable[..., Rig]) -> None:
    rig = make(engine=True)
    rig.prefill(1, 3)
    rig.context.advance(0)
    rig.engine._generation_epoch = 4  # type: ignore[union-attr]
    rig.step()
    rig.release(0)
    finished = rig.attached.requests.take(1)
    assert finished is not None
    assert finished.rows().infos["version"].tolist() == [0, 0, 0, 4]  # type: ignore[union-attr]


def test_blocks_that_are_hit_are_pinned_once_the_request_is_added(rig: Rig) -> None:
    rig.prefill(1, 8)
    hit = rig.context.request_to_kv_block_ids[0, :1].tolist()
    with pytest.raises(RuntimeError, match="no row is left"):
        rig.context.add_request(request(2, 8, hit, fails=True))
    rig.context.add_request(request(2, 8, hit))
    rig.allocator.release_memory_blocks(tensor(hit * 2))
    assert rig.attached.store.stats().releases_below_zero == 0
    rig.allocator.release_memory_blocks(tensor(hit))
    rig.attached.store.wait_idle(10)
    assert rig.attached.store.stats().releases_below_zero == 1


def test_attaching_while_requests_run(make: Callable[..., Rig]) -> None:
    """Rows from before are missing, and blocks that requests share have as many users."""
    context = Context()
    context.add_request(request(1, 6))
    context.add_request(request(2, 6, context.request_to_kv_block_ids[0, :1].tolist()))
    rig = make(context)
    for row in (0, 1):
        rig.context.advance(row)
    ids = rig.step()
    for row, blocks in enumerate(rig.release(0, 1)):
        array = rig.allocator.reconstruct_routing_from_blocks(blocks, 7)
        assert (array[:6] == -1).all() and (array[6] == ids[row]).all()
    assert rig.attached.missing == {waymark.Reason.NEVER_WRITTEN: 12}
    assert rig.attached.store.stats().releases_below_zero == 0


def test_rows_may_be_read_on_another_thread_and_later(make: Callable[..., Rig]) -> None:
    finished: list[Finished] = []
    rig = make(engine=True, arrays=False, on_finished=finished.append, store={"num_pages": 4, "spare_pages": 1})
    expected = []
    for number in range(12):  # many more pages than there are
        one, ids = rig.prefill(number, 6)
        expected.append(ids)
        rig.release(0)
        rig.returns(one)
        assert one.routing_indices is None
        rig.context.total_request_count = 0
        rig.attached.store.wait_idle(10)
        until(lambda: rig.attached.store.stats().snapshots_live == 0)
    for ids, one in zip(expected, finished):
        assert (one.array() == ids).all() and one.coverage().complete


def test_rows_that_nobody_asks_for_are_dropped(rig: Rig) -> None:
    rig.prefill(1, 6)
    rig.release(0)
    rig.context.total_request_count = 0
    for number in range(2, 5):
        rig.prefill(number, 6)
    assert rig.attached.requests.dropped == 1
    until(lambda: rig.attached.store.stats().snapshots_live == 0)


def test_blocks_are_read_before_they_are_released(rig: Rig) -> None:
    """As patches of Megatron do that reconstruct before update_requests."""
    _, ids = rig.prefill(1, 6)
    table = rig.context.request_to_kv_block_ids[0]
    blocks = [int(block) for block in table if block >= 0]
    assert (rig.allocator.reconstruct_routing_from_blocks(blocks, 6) == ids).all()
    routing = rig.allocator.block_routing
    assert set(routing) == set(blocks) and len(routing) == 2 and bool(routing)
    assert (routing[blocks[0]] == ids[:BLOCK]).all()
    assert (routing.get(blocks[1])[2:] == -1).all() and routing.get(0) is None


def test_cached_blocks_without_users_have_their_rows(rig: Rig) -> None:
    """They were missing (released), also in Megatron's own store after detach()."""
    _, ids = rig.prefill(1, 6)
    first = int(rig.context.request_to_kv_block_ids[0][0])
    rig.attached.store.release(first)
    assert (rig.allocator.block_routing[first] == ids[:BLOCK]).all()
    assert rig.attached.store.stats().blocks_without_users == 0
    rig.attached.detach()
    assert (rig.allocator.block_routing[first] == ids[:BLOCK]).all()
    rig.attached = waymark.megatron.attach(rig.context, **rig.given)


def test_ids_of_another_shape_are_not_captured(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.context.add_request(request(1, 6))
    for ids in (None, np.zeros((5, LAYERS, K), np.int16), np.zeros((6, LAYERS + 1, K), np.int16)):
        rig.context.forward()
        with caplog.at_level(logging.WARNING, "waymark.megatron"):
            rig.allocator.store_routing_per_block(ids)
    assert rig.attached.steps_without_ids == 3
    assert "step 3 is not captured: the ids are [6, 3, 2], expected [6, 2, 2]" in caplog.text
    assert (rig.ask(0, 6) == -1).all()
    assert rig.attached.missing == {waymark.Reason.NOT_CAPTURED: 6}


def test_a_failure_ends_the_capture_and_never_reaches_the_engine(
    make: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Finished] = []
    rig = make(engine=True, on_finished=finished.append)
    one = request(1, 6)
    rig.context.add_request(one)

    def fail(*args: Any) -> None:
        raise MemoryError("no memory for this test")

    monkeypatch.setattr(_versions.Tokens, "pairs", fail)
    rig.step()
    assert rig.attached.failure == "MemoryError: no memory for this test"
    rig.step()
    assert rig.ask(0, 6) is None
    assert rig.returns(one) == ([], [[one]])
    assert one.routing_indices is None


def test_detach_puts_everything_back(rig: Rig) -> None:
    objects = (rig.context, rig.allocator)
    _, ids = rig.prefill(1, 6)
    with pytest.raises(Refused, match="attached already"):
        waymark.megatron.attach(rig.context, **rig.given)
    rig.attached.detach()
    rig.attached.detach()
    for one in objects:
        assert not [name for name, value in vars(one).items() if callable(value)]
    own = rig.allocator.block_routing
    assert type(own) is dict and (np.concatenate([own[int(b)] for b in rig.context.request_to_kv_block_ids[0, :2]])[:6] == ids).all()
    rig.allocator.store_routing_per_block(ids)
    assert len(rig.allocator.stored) == 1
    assert rig.allocator.reconstruct_routing_from_blocks([1], 1) == "Megatron's own"
    rig.attached = waymark.megatron.attach(rig.context, **rig.given)


def test_detach_below_another_hook(rig: Rig) -> None:
    """What somebody else wrapped since stays, and calls a hook that does nothing any more."""
    inner = rig.allocator.allocate_memory_blocks
    calls = []

    def outer(number: int) -> Any:
        calls.append(number)
        return inner(number)

    rig.allocator.allocate_memory_blocks = outer  # type: ignore[method-assign]
    rig.attached.detach()
    assert len(rig.allocator.allocate_memory_blocks(2)) == 2 and calls == [2]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"moe_enable_routing_replay": False}, "moe_enable_routing_replay is refused: it is off"),
        ({"num_moe_experts": 40000}, "it is 40000, more than 32768"),
        ({"moe_router_fusion": True}, "the fused router does not record"),
        ({"moe_router_load_balancing_type": ["sinkhorn"]}, "sinkhorn does not record"),
        ({"moe_router_load_balancing_type": "quantile_balancing"}, "quantile_balancing does not record"),
        ({"pipeline_model_parallel_size": 2}, "each stage has the rows of its own layers only"),
        ({}, "no layer of its decoder has a router"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], text: str) -> None:
    context = Context()
    before = dict(vars(context))
    model = types.SimpleNamespace(config=config(**changed), decoder=Modules([]))
    with pytest.raises(Refused, match=text):
        waymark.megatron.attach(context, model=model)
    assert vars(context) == before, "a refused call changed something"


@pytest.mark.parametrize("given", [{"num_experts": 64}, {"block_tokens": 1}])
def test_a_store_that_contradicts_the_model_is_refused(given: dict[str, Any]) -> None:
    rig = Rig()
    rig.attached.detach()
    for more, text in (({"store": given}, f"store: '{[*given][0]}' is no option"),
                       ({"on_finished": 3}, "on_finished: a function, got 3")):  # fmt: skip
        with pytest.raises(Refused, match=text):
            rig.attach(**more)


def test_contexts_that_are_refused() -> None:
    for other in (None, types.SimpleNamespace(config=config())):
        with pytest.raises(Refused, match="attach takes a DynamicInferenceEngine"):
            waymark.megatron.attach(other)
    with pytest.raises(Refused, match="megatron-core 0.18 or later"):
        waymark.megatron.attach(types.SimpleNamespace(kv_block_allocator=object()))
    context = Context()
    context.config = types.SimpleNamespace(async_sched_mode=types.SimpleNamespace(name="ASYNC"))  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="async_sched_mode ASYNC is refused"):
        waymark.megatron.attach(context)


class BufferOfThree:
    """RoutingMetadata of three routers, of which one is an MTP layer's."""

    def __init__(self, graph: bool) -> None:
        self.context = types.SimpleNamespace(
            using_cuda_graph_this_step=lambda: graph, active_token_count=2, padded_active_token_count=3)  # fmt: skip
        self.routing_indices_buffer: Any = np.arange(4 * 3 * 2).reshape(4, 3, 2)


def test_routers_that_are_not_proven_are_refused() -> None:
    """Whose class, or E, says something else than the config."""
    none = TopKRouter(2)
    none.router_replay = None
    for router, text in (
        (HashRouter(2), "HashRouter of layer 1 is refused: that its RouterReplay shows"),
        (none, "TopKRouter of layer 1 is refused: it has no RouterReplay: set moe_enable_routing_replay"),
        (TopKRouter(2, EXPERTS + 8), "num_moe_experts is refused: it is 16, and the router of layer 1 has 24"),
    ):
        model = model_of_two_layers(TopKRouter(1), router)
        with pytest.raises(Refused, match=text):
            waymark.megatron.attach(Context(), model=model)


@pytest.mark.parametrize("graph", [False, True])
def test_routers_of_mtp_layers_are_left_out(monkeypatch: pytest.MonkeyPatch, graph: bool) -> None:
    mtp, inner = Replay(), model_of_two_layers(TopKRouter(4), types.SimpleNamespace(), TopKRouter(2))
    second, first = (inner.decoder.modules()[at].router_replay for at in (0, 2))
    layers = _versions.moe_layers(types.SimpleNamespace(module=inner))
    assert [layer.layer_id for layer in layers] == [1, 3]
    monkeypatch.setattr(_versions, "all_replays", lambda: [mtp, second, first])
    torch = types.SimpleNamespace(
        stack=lambda ids, dim: np.stack(ids, dim), inference_mode=_Fillable.inference_mode
    )
    monkeypatch.setattr(_capture, "module", lambda name: torch)
    metadata = BufferOfThree(graph)
    capture = _capture.Ids(types.SimpleNamespace(moe_routing_metadata=metadata), layers)
    buffer = metadata.routing_indices_buffer = metadata.routing_indices_buffer.view(_Fillable)
    if graph:
        # Megatron's buffer is memory that nothing has initialised: valid ids may stand in it. A router that is
        # bypassed must not make them rows of this forward.
        assert capture.get_routing_indices() is None
        capture.begin()
        assert (buffer[:3] == -1).all() and (buffer[3] >= 0).all()
        buffer[:2, 1] = 5
        assert (capture.get_routing_indices() == buffer[:2, [2, 1]]).all()
        capture.forget()
        assert capture.get_routing_indices() is None
    assert capture.get_routing_indices() is None
    first.recorded_topk_idx, second.recorded_topk_idx = np.zeros((3, 2)), np.ones((3, 2))
    if not graph:
        assert capture.get_routing_indices()[0].tolist() == [[0, 0], [1, 1]]
        capture.forget()
        assert capture.get_routing_indices() is None, "what a router recorded before is still there"


class _Fillable(np.ndarray):
    """A tensor that was made in torch's inference mode, in which steps run. Megatron captures CUDA
    graphs outside."""

    inference = False

    @classmethod
    @contextlib.contextmanager
    def inference_mode(cls) -> Iterator[None]:
        cls.inference = True
        yield
        cls.inference = False

    def fill_(self, value: int) -> None:
        if not self.inference:
            raise RuntimeError("Inplace update to inference tensor outside InferenceMode")
        self.fill(value)


def wrapped_methods() -> set[str]:
    """The names in the calls of wrap()."""
    return {
        call.args[1].value
        for call in ast.walk(ast.parse(pathlib.Path(_attached.__file__).read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "wrap" and isinstance(call.args[1], ast.Constant)
    }


def test_every_hook_has_a_fault() -> None:
    """tests/integration/megatron/faults.py names each method that is wrapped."""
    path = REPO / "tests" / "integration" / "megatron" / "faults.py"
    spec = importlib.util.spec_from_file_location("megatron_faults", path)
    assert spec is not None and spec.loader is not None
    faults = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faults)
    assert wrapped_methods() == set(faults.HOOKS) | set(faults.NOT_LEFT_OUT)


def test_one_line_says_that_the_capture_is_on(
    make: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = captures_on(caplog, make)
    assert line.startswith(f"waymark: the capture is on for megatron-core {_versions.KNOWN[0]}: 2")
