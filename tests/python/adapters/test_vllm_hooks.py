"""How the plugin for vLLM wraps methods: whole or not at all, and whatever arguments come."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from waymark.vllm import _front_end, _scheduler_hooks, _weights
from waymark.vllm._hooks import Refused, argument, around, starting, whole, wrap


class Owner:
    def first(self, one: int, two: int = 2) -> tuple[int, int]:
        return one, two

    def second(self) -> None:
        pass


def same(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


def test_an_argument_by_position_or_by_name() -> None:
    one, two = argument(Owner.first, "one"), argument(Owner.first, "two")
    for args, kwargs in (((1, 5), {}), ((1,), {"two": 5}), ((), {"one": 1, "two": 5, "more": 0})):
        assert (one(args, kwargs), two(args, kwargs)) == (1, 5)
        args, kwargs = two.put(7, args, kwargs)
        assert (one(args, kwargs), two(args, kwargs)) == (1, 7)
    with pytest.raises(Refused, match=r"Owner\.first has no argument 'three'"):
        argument(Owner.first, "three")


def test_a_hook_takes_arguments_by_their_names() -> None:
    def hook(call: Callable[..., Any], owner: Any, two: int, gone: int = 7) -> Any:
        return call(), owner, two, gone

    kind = type("Kind", (Owner,), {"first": around(hook)(Owner.first)})
    owner: Any = kind()
    assert owner.first(1) == ((1, 2), owner, 2, 7)
    assert owner.first(two=5, one=3) == ((3, 5), owner, 5, 7)
    with pytest.raises(Refused, match=r"Owner\.second has no argument 'two'"):
        around(hook)(Owner.second)


def test_methods_are_wrapped_whole_or_not_at_all() -> None:
    kind = type("Kind", (Owner,), {"second": lambda self: None})
    before = dict(vars(kind))
    with pytest.raises(Refused, match="Kind.third is not there"), whole():
        wrap(kind, "first", same)
        with whole():
            wrap(kind, "second", same)
        wrap(kind, "third", same)
    assert dict(vars(kind)) == before
    with whole():
        wrap(kind, "first", same)
    wrapped = kind.first  # type: ignore[attr-defined]
    wrap(kind, "first", same)
    assert kind.first is wrapped and kind().first(3) == (3, 2)  # type: ignore[attr-defined]


def test_what_is_raised_at_the_start_says_whose_it_is() -> None:
    text = "^waymark: the capture cannot start: KeyError: 'x'$"
    with pytest.raises(Refused, match=text), starting():
        {}["x"]
    with pytest.raises(Refused, match="^a reason$"), starting():
        raise Refused("a reason")


def test_wrappers_pass_on_arguments_that_they_do_not_know() -> None:
    """A later vLLM may add one to any method, or call it with names."""
    seen: list[Any] = []

    class Output:
        outputs: list[Any] = []

        def add(self, next_output: Any, when: int, aggregate: bool) -> None:
            seen.append(("add", next_output, when, aggregate))

    class Processor:
        request_states: dict[str, Any] = {}

        def add_request(self, when: int, request: Any) -> None:
            seen.append(("add_request", when, request))

        def process_outputs(self, when: int, engine_core_outputs: Any, *, how: int) -> Any:
            seen.append(("process_outputs", when, engine_core_outputs, how))

        def _finish_request(self, req_state: Any, when: int) -> None:
            seen.append(("_finish_request", req_state, when))

    class State:
        def make_request_output(self, when: int, stop_reason: Any) -> None:
            seen.append(("make_request_output", when, stop_reason))

    class Core:
        scheduler = types.SimpleNamespace(requests={})

        def set_weight_version(self, weight_version: str, when: int) -> None:
            seen.append(("set_weight_version", weight_version, when))

        def reset_prefix_cache(self, when: int) -> None:
            seen.append(("reset_prefix_cache", when))

        def add_request(self, when: int) -> None:
            seen.append(("add_request", when))

    class Executor:
        def collective_rpc(self, method: str, when: int) -> None:
            seen.append(("collective_rpc", method, when))

    class Pool:
        def reset_prefix_cache(self, when: int) -> None:
            seen.append(("reset_prefix_cache", when))

    class Manager:
        block_pool = None

        def _apply_cow(self, when: int, source_block: Any, cow_block: Any, more: int = 0) -> None:
            seen.append(("_apply_cow", when, source_block, cow_block, more))

    outputs = types.SimpleNamespace(
        CompletionOutput=type("CompletionOutput", (), {}), RequestOutput=Output)  # fmt: skip
    _front_end.hook(Processor, State, outputs)
    _scheduler_hooks.hook_weights(Core)
    _weights.hook(Executor)
    _scheduler_hooks.hook_blocks(Pool, Manager)
    request = types.SimpleNamespace(request_id="a", sampling_params=None, resumable=False)
    merged = types.SimpleNamespace(outputs=[])
    for captured in (False, True):
        processor: Any = Processor()
        if captured:
            _front_end.serve(processor)
        calls: list[tuple[Any, dict[str, Any]]] = [
            (Output().add, dict(next_output=merged, when=1, aggregate=True)),
            (processor.add_request, dict(when=2, request=request)),
            (processor.process_outputs, dict(when=3, engine_core_outputs=[], how=4)),
            (processor._finish_request, dict(req_state=State(), when=5)),
            (State().make_request_output, dict(when=6, stop_reason=None)),
            (Core().set_weight_version, dict(weight_version="a", when=7)),
            (Core().reset_prefix_cache, dict(when=10)),
            (Core().add_request, dict(when=11)),
            (Executor().collective_rpc, dict(method="reload_weights", when=12)),
            (Pool().reset_prefix_cache, dict(when=9)),
            (Manager()._apply_cow, dict(when=8, source_block=1, cow_block=2, more=3)),
        ]
        for method, arguments in calls:
            name = method.__name__
            method(**arguments)
            assert seen.pop() == (name, *arguments.values())
            if name != "process_outputs":  # one of its arguments has no position
                method(*arguments.values())
                assert seen.pop() == (name, *arguments.values())
