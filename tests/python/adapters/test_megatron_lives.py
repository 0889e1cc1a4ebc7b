"""waymark.megatron: whose rows a request gets, and what a hook leaves as it is.

On the look-alikes of test_megatron_attach.
Each test names what was wrong once.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_megatron_attach as look
import waymark
import waymark.megatron
from conftest import until
from test_megatron_attach import Context, Rig, request, tensor
from waymark import DeadlineExceededError, Reason
from waymark.megatron import Finished, Refused, _finished

make, rig, digest = look.make, look.rig, look.digest  # the fixtures
Make = Callable[..., Rig]


def empty(rig: Rig) -> None:
    """The context has no requests any more."""
    rig.context.total_request_count = 0


def begin(rig: Rig, number: int, prompt: list[int]) -> Any:
    one = request(number, 0)
    one.prompt_tokens = list(prompt)
    rig.context.add_request(one)
    return one


def prefill(rig: Rig, number: int, prompt: list[int]) -> tuple[Any, np.ndarray]:
    """Begins a request; the ids of its first step, too."""
    return begin(rig, number, prompt), rig.step()


def decode(rig: Rig, one: Any, token: int) -> np.ndarray:
    """A step of the only request, in which `token` is the input."""
    one.generated_tokens.append(token)
    rig.context.advance(0)
    return rig.step()


def suspend(rig: Rig) -> None:
    """With RECOMPUTE, between two steps."""
    for row in range(rig.context.total_request_count):
        rig.context.advance(row)
    rig.context.deallocate_inference_state_buffers()
    rig.context.make_tensors()
    rig.allocator.reset()
    rig.context.is_tensor_state_allocated = True


def snapshots_end(rig: Rig) -> None:
    until(lambda: rig.attached.store.stats().snapshots_live == 0)


# -- a request continues only if its tokens do ---------------------------------------------------
@pytest.mark.parametrize("prompt", [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 9, 6], [7, 1, 2, 3, 4, 5, 6]])
def test_rows_of_other_tokens_are_not_those_of_an_earlier_life(
    make: Make, prompt: list[int]
) -> None:
    """Megatron had failed a suspended request, and its number came again: with its prompt alone, or
    with others of its tokens. It had the rows of the tokens that were generated before."""
    rig = make(engine=True)
    one = begin(rig, 3, [0, 1, 2, 3, 4])
    rig.step()
    decode(rig, one, 5)
    suspend(rig)
    one.generated_tokens.append(6)
    again = begin(rig, 3, prompt)
    ids = [rig.step(), decode(rig, again, 8)]
    rig.release(0)
    rig.returns(again)
    assert (again.routing_indices == np.concatenate(ids)).all()


def test_a_request_that_continues_has_the_rows_that_its_tokens_were_sampled_with(rig: Rig) -> None:
    one = begin(rig, 3, [0, 1, 2, 3, 4])
    first = [rig.step(), decode(rig, one, 5)]
    suspend(rig)
    one.generated_tokens.append(6)
    begin(rig, 3, [0, 1, 2, 3, 4, 5, 6])
    ids = np.concatenate([*first, rig.step()[6:]])
    assert (rig.ask(0, 7) == ids).all()


def test_rows_behind_the_tokens_that_continue_are_dropped(rig: Rig) -> None:
    """A stop word takes back tokens that had been an input already. Regression: behind the last that
    is left came the row of the life that ended, with which nothing was sampled."""
    one = begin(rig, 3, [0, 1, 2, 3, 4])
    first = [rig.step(), decode(rig, one, 5), decode(rig, one, 6)]
    suspend(rig)
    one.generated_tokens = [5]
    again = begin(rig, 3, [0, 1, 2, 3, 4, 5])
    second = rig.step()
    last = decode(rig, again, 8)
    assert (rig.ask(0, 7) == np.concatenate([first[0], second[5:], last])).all()


def test_a_request_that_megatron_fails_ends_its_lives(make: Make) -> None:
    """Its rows stayed in memory for ever."""
    rig = make(engine=True)
    prefill(rig, 3, [0, 1, 2])
    suspend(rig)
    assert rig.attached.requests.rows_kept(3) == 3
    rig.engine._handle_failed_request(3)  # type: ignore[union-attr]
    assert rig.attached.requests.rows_kept(3) == 0
    snapshots_end(rig)


@pytest.mark.parametrize("engine", [False, True])
def test_a_reset_ends_the_lives_of_requests(make: Make, engine: bool) -> None:
    """context.reset() kept the rows of evicted requests, for those that had their numbers next."""
    rig = make(engine=engine)
    prefill(rig, 3, [0, 1, 2])
    rig.context.evict_overflow_paused_requests(0)
    empty(rig)
    rig.context.reset(preserve_prefix_cache=True)  # of an idle rank, between two steps
    assert rig.attached.requests.rows_kept(3) == 3
    rig.context.reset()
    assert rig.attached.requests.rows_kept(3) == 0
    snapshots_end(rig)


def test_graphs_that_are_captured_are_not_a_reset(rig: Rig) -> None:
    """The context is reset after each: at a resume, before requests begin again, or while requests
    wait that were evicted, which had the rows of their second lives alone."""
    one, first = prefill(rig, 3, [0, 1, 2])
    suspend(rig)
    rig.context.is_creating_cuda_graphs = True
    rig.context.reset()
    one.generated_tokens.append(3)
    begin(rig, 3, [0, 1, 2, 3])
    ids = np.concatenate([first, rig.step()[3:]])
    assert (rig.ask(0, 4) == ids).all()
    empty(rig)
    prefill(rig, 4, [0, 1])
    rig.context.evict_overflow_paused_requests(0)
    for graphs in (2, 1, 0):
        rig.context.is_creating_cuda_graphs = graphs > 0
        rig.context.reset()
        assert rig.attached.requests.rows_kept(4) == (2 if graphs else 0)


@pytest.mark.parametrize("kept", [False, True])  # up to 0.18 the reset keeps nothing
def test_what_a_forward_without_requests_recorded_is_no_steps(rig: Rig, kept: bool) -> None:
    """Of an idle rank, or of CUDA graphs. A router that recorded nothing in the next step, of as
    many rows, had these ids."""
    replays = [layer.replay for layer in rig.attached._capture.layers]
    for replay in replays:
        replay.recorded_topk_idx = np.zeros((1, look.K))
    rig.context.reset(preserve_prefix_cache=kept)
    assert [replay.recorded_topk_idx for replay in replays] == [None, None]


# -- rows of a finished request are its own ----------------------------------------------------
def test_rows_that_were_not_asked_for_are_not_those_of_the_next_request(rig: Rig) -> None:
    """attach(context): the pool is a stack, and the next request has the same blocks."""
    prefill(rig, 1, [0, 1, 2, 3, 4, 5])
    (blocks,) = rig.release(0)  # it is aborted
    empty(rig)
    _, ids = prefill(rig, 2, [0, 1, 2, 3, 4, 5])
    table = rig.context.request_to_kv_block_ids[0]
    assert [block for block in table.tolist() if block >= 0] == blocks
    assert (rig.ask(0, 6) == ids).all()


def test_blocks_have_no_rows_after_the_capture_has_ended(rig: Rig) -> None:
    """Nothing binds them any more: they had those of the requests before."""
    prefill(rig, 1, [0, 1, 2, 3])
    block = int(rig.context.request_to_kv_block_ids[0, 0])
    rig.allocator.store_routing_per_block(np.zeros((4, look.LAYERS, look.K), np.float32))
    assert rig.attached.failure
    rig.release(0)
    empty(rig)
    begin(rig, 2, [0, 1, 2, 3])
    assert int(rig.context.request_to_kv_block_ids[0, 0]) == block
    routing = rig.allocator.block_routing
    assert routing.get(block) is None and not set(routing)
    rig.attached.detach()
    assert (rig.allocator.block_routing[block] == -1).all(), "Megatron's own store fills zeros in"
    rig.attached = waymark.megatron.attach(rig.context, **rig.given)
    ids = rig.step()
    assert (rig.ask(0, 4) == ids).all()


# -- what hooks leave as it is -----------------------------------------------------------------
def calls_of(rig: Rig) -> dict[str, list[tuple[Any, dict[str, Any]]]]:
    """How Megatron calls each method that is wrapped: (object, arguments by their names)."""
    one = types.SimpleNamespace
    block = tensor([0])
    metadata = rig.context.moe_routing_metadata
    return {
        "allocate_memory_blocks": [(rig.allocator, {"num_blocks": 1})],
        "release_memory_blocks": [(rig.allocator, {"blocks": block})],
        "retain_memory_blocks": [(rig.allocator, {"block_ids": [0]})],
        "register_kv_block_hashes": [(rig.allocator, {"block_ids": [0], "block_hashes": [5]})],
        "store_routing_per_block": [(rig.allocator, {"flat_routing": None})],
        "reconstruct_routing_from_blocks": [
            (rig.allocator, {"block_ids": [0], "total_routing_tokens": 1})
        ],
        "reset": [(rig.allocator, {}), (rig.context, {}), (rig.engine, {})],
        "_compute_prefix_match": [
            (rig.context, {"req": one(matched=[]), "prefill_chunk_length": 0})
        ],
        "add_request": [(rig.context, {"req": request(1, 2)})],
        "release_memory_blocks_from_request_indexes": [
            (rig.context, {"request_indexes": tensor([0])})
        ],
        "evict_overflow_paused_requests": [(rig.context, {"row": 0})],
        "deallocate_inference_state_buffers": [(rig.context, {})],
        "get_routing_indices": [(metadata, {})],
        "enable_static_buffer_recording": [(metadata, {})],
        "post_process_requests": [(rig.engine, {"records": []})],
        "_handle_failed_request": [(rig.engine, {"request_id": 3})],
        "_dynamic_step_forward_logits": [
            (rig.engine.controller, {"input_ids": None, "position_ids": None})  # type: ignore[union-attr]
        ],
    }


# What answers in the place of Megatron's method, which is called no more.
ANSWERED = {"store_routing_per_block", "reconstruct_routing_from_blocks", "get_routing_indices"}


@pytest.mark.parametrize("by_name", [False, True])
def test_hooks_pass_on_a_parameter_that_they_do_not_know(make: Make, by_name: bool) -> None:
    """A newer Megatron adds one to a method: the engine got a TypeError of ours. Main (0.20) calls
    register_kv_block_hashes with parent_hashes by name."""
    assert set(calls_of(make(engine=True))) == look.wrapped_methods()
    for name in sorted(look.wrapped_methods()):
        for at in range(len(calls_of(make(engine=True))[name])):
            context = Context()
            context.kv_block_allocator.__class__ = look.NewerAllocator
            context.add_request(request(9, 2))
            rig = unattached(context)
            owner, arguments = calls_of(rig)[name][at]
            inner, got = getattr(owner, name), []

            @functools.wraps(inner)
            def newer(*args: Any, inner: Any = inner, got: list[Any] = got, **more: Any) -> Any:
                got.append((args, more))
                known = args[: len(args) - bool(args and args[-1] == "further")]
                return inner(*known, **{key: more[key] for key in more if key != "further"})

            setattr(owner, name, newer)
            rig.attach()
            if by_name:
                getattr(owner, name)(**arguments, further="further")
                expected: Any = ((), {**arguments, "further": "further"})
            else:
                getattr(owner, name)(*arguments.values(), "further")
                expected = ((*arguments.values(), "further"), {})
            assert rig.attached.failure == "", name
            if name not in ANSWERED:
                assert [got[0][0], got[0][1]] == list(expected), name
            rig.attached.detach()
            if name in ANSWERED:
                getattr(owner, name)(*expected[0], **expected[1])
                assert [got[0][0], got[0][1]] == list(expected), name


def test_a_call_that_is_wrong_is_refused_by_megatron(rig: Rig) -> None:
    with pytest.raises(TypeError, match="release_memory_blocks"):
        rig.allocator.release_memory_blocks()  # type: ignore[call-arg]
    assert rig.attached.failure == ""


def test_what_a_hook_cannot_read_ends_the_capture_and_not_the_engine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read before the guard."""

    def post_process_requests(self: Any, records: Any) -> Any:
        return 7

    def release_memory_blocks(self: Any, blocks: Any) -> Any:
        return 8

    monkeypatch.setattr(look.Engine, "post_process_requests", post_process_requests)
    rig = make(engine=True)
    assert rig.engine.post_process_requests([]) == 7  # type: ignore[union-attr]
    assert "'int' object is not subscriptable" in rig.attached.failure
    monkeypatch.setattr(look.Allocator, "release_memory_blocks", release_memory_blocks)
    rig = make()
    assert rig.allocator.release_memory_blocks(None) == 8  # type: ignore[func-returns-value]
    assert rig.attached.failure


@pytest.mark.parametrize("block", [-1, look.BLOCKS, 10**9])
def test_a_block_that_does_not_exist_has_no_rows(rig: Rig, block: int) -> None:
    assert rig.allocator.block_routing.get(block) is None and rig.attached.failure == ""


# -- attach() is whole or nothing --------------------------------------------------------------
def everything(rig: Rig) -> list[dict[str, Any]]:
    metadata = rig.context.moe_routing_metadata
    return [dict(vars(one)) for one in (rig.context, rig.allocator, rig.engine, metadata)]


def unattached(context: Context | None = None) -> Rig:
    rig = Rig.__new__(Rig)
    rig.prepare(context or Context(), True)
    return rig


def attach_fails(rig: Rig, error: type[Exception], text: str) -> None:
    before, threads = everything(rig), set(threading.enumerate())
    with pytest.raises(error, match=text):
        rig.attach()
    assert everything(rig) == before
    until(lambda: set(threading.enumerate()) <= threads)


NAMES = [
    ("Context", "evict_overflow_paused_requests"), ("Context", "_compute_prefix_match"),
    ("Context", "reset"), ("Allocator", "register_kv_block_hashes"), ("Allocator", "reset"),
    ("Engine", "_handle_failed_request"), ("Engine", "post_process_requests"),
    ("Metadata", "enable_static_buffer_recording"), ("Metadata", "get_routing_indices"),
    ("context", "request_ids"), ("context", "request_in_prefill_status_tensor"),
    ("context", "token_to_local_position_within_kv_block"), ("engine", "_generation_epoch"),
    ("context", "paused_request_count"), ("allocator", "block_routing"),
    ("allocator", "dummy_block_idx"), ("allocator", "total_count"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), NAMES)
def test_a_name_that_is_gone_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    """A newer Megatron has renamed it: nine hooks stayed, and no object with which to detach."""
    rig = unattached()
    of = getattr(rig, owner) if owner.islower() else getattr(look, owner)  # a method, of the class
    monkeypatch.delattr(of, name)
    attach_fails(rig, Refused, f"{owner.capitalize()} is refused: it has no (pool_size|{name})")


def test_a_parameter_that_is_gone_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def release_memory_blocks(self: Any, ids: Any) -> None: ...

    monkeypatch.setattr(look.Allocator, "release_memory_blocks", release_memory_blocks)
    text = "Allocator is refused: its release_memory_blocks has no parameter blocks"
    attach_fails(unattached(), Refused, text)


@pytest.mark.parametrize("name", ["_waymark", "deallocate_inference_state_buffers"])
def test_what_fails_later_is_undone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rig = unattached()

    def refuse(self: Any, attribute: str, value: Any) -> None:
        if attribute == name:
            raise MemoryError("no memory for this test")
        object.__setattr__(self, attribute, value)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "__setattr__", refuse, raising=False)
        attach_fails(rig, MemoryError, "for this test")
    rig.attach()
    rig.attached.detach()


@pytest.mark.parametrize(("version", "named"), [("0.19.2", 0), ("0.18.2", 0), ("0.99.1", 1)])
def test_a_version_that_is_not_known_is_named_once(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str,
    named: int,
) -> None:
    core = types.SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "megatron.core", core)
    with caplog.at_level(logging.INFO, "waymark.megatron"):
        make()
    lines = [line for line in caplog.messages if version in line]
    assert len(lines) == named and all("0.18.2, 0.19.2" in line for line in lines)


def test_a_context_needs_its_model() -> None:
    """layer_ids, top_k and num_experts of the caller were believed: with too few experts 23 of 24
    rows were missing."""
    with pytest.raises(Refused, match="a context is captured with its model"):
        waymark.megatron.attach(Context())
    with pytest.raises(TypeError, match="num_experts"):
        waymark.megatron.attach(Context(), num_experts=5)  # type: ignore[call-arg]


# -- weights -----------------------------------------------------------------------------------
def versions_of(rig: Rig, number: int) -> list[int]:
    finished = rig.attached.requests.take(number)
    assert finished is not None
    rows = finished.rows()
    assert rows is not None
    return [int(version) for version in rows.infos["version"]]


def test_weights_after_a_reset_of_the_engine(make: Make) -> None:
    """Its epoch begins again: only greater ones than ever seen were followed."""
    rig = make(engine=True)
    engine: Any = rig.engine
    engine._generation_epoch = 3
    prefill(rig, 1, [0, 1, 2])
    rig.release(0)
    engine.reset()
    empty(rig)
    engine._generation_epoch = 1
    one, _ = prefill(rig, 2, [0, 1])
    engine._generation_epoch = 2
    decode(rig, one, 5)
    rig.release(0)
    assert versions_of(rig, 2) == [1, 1, 2]


def test_the_version_of_weights_may_be_less_after_a_reset(make: Make) -> None:
    rig = make(engine=True)
    rig.attached.set_weight_version(7)
    with pytest.raises(ValueError, match="version: at least 7, got 2"):
        rig.attached.set_weight_version(2)
    rig.engine.reset()  # type: ignore[union-attr]
    prefill(rig, 1, [0, 1])
    rig.attached.set_weight_version(8)
    rig.release(0)
    empty(rig)
    rig.context.reset()
    rig.attached.set_weight_version(2)
    prefill(rig, 2, [0, 1])
    rig.release(0)
    assert versions_of(rig, 2) == [2, 2]


# -- what is read on the engine's thread -------------------------------------------------------
def finish(rig: Rig, one: Any, token: int = 99) -> None:
    """As Megatron does: it asks for the rows by their blocks before it returns the record."""
    (blocks,) = rig.release(0)
    one.generated_tokens.append(token)
    count = len(one.prompt_tokens) + len(one.generated_tokens) - 1
    one.routing_indices = rig.allocator.reconstruct_routing_from_blocks(blocks, count)
    rig.engine.post_process_requests([[one]])  # type: ignore[union-attr]
    empty(rig)


@pytest.mark.parametrize("arrays", [True, False])
def test_a_missing_row_is_counted_once(make: Make, arrays: bool) -> None:
    """It was counted twice where Megatron asks by blocks, and never with arrays=False."""
    context = Context()
    one = request(1, 6)
    context.add_request(one)
    finished: list[Finished] = []
    rig = make(context, engine=True, arrays=arrays, on_finished=finished.append)
    rig.context.advance(0)
    one.generated_tokens.append(6)
    ids = rig.step()
    finish(rig, one)
    for _ in range(2):
        array = finished[0].array()
        assert array is not None and (array[:6] == -1).all() and (array[6] == ids[0]).all()
    assert (one.routing_indices is None) == (not arrays)
    assert rig.attached.missing == {Reason.NEVER_WRITTEN: 6}


def test_rows_that_have_not_landed_do_not_hold_the_engine(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waited 10 s, and the capture then ended."""
    read, waited = _finished.Part.read, []

    def late(self: Any, timeout: float) -> Any:
        waited.append(timeout)
        raise DeadlineExceededError("not yet, in this test")

    finished: list[Finished] = []
    rig = make(engine=True, on_finished=finished.append)
    one, ids = prefill(rig, 1, [0, 1, 2])
    monkeypatch.setattr(_finished.Part, "read", late)
    with caplog.at_level(logging.WARNING, "waymark.megatron"):
        finish(rig, one)
    assert rig.allocator.block_routing.get(10) is None
    monkeypatch.setattr(_finished.Part, "read", read)
    assert one.routing_indices is None and max(waited) <= 1 and len(waited) == 2
    assert "the rows of request 1 have not landed" in caplog.text
    assert (finished[0].array() == ids).all()
    assert rig.attached.failure == ""
    two, ids = prefill(rig, 2, [0, 1, 2])
    finish(rig, two)
    assert (two.routing_indices == ids).all()


def test_a_failure_of_a_users_function_is_logged(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the capture: requests that finished later had no rows."""

    def fail(finished: Finished) -> None:
        raise RuntimeError("a user's error")

    rig = make(engine=True, on_finished=fail)
    for number in range(3):
        one, ids = prefill(rig, number, [0, 1, 2])
        with caplog.at_level(logging.ERROR, "waymark.megatron"):
            finish(rig, one)
        assert (one.routing_indices == ids).all()
    assert rig.attached.failure == ""
    assert caplog.text.count("RuntimeError: a user's error") == 3
