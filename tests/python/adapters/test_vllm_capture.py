"""Which ids the plugin for vLLM takes from the routers, on the tiny engine."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
from conftest import captures_on
from vllm_engine import Engine, Ids, expected, vllm
from waymark.vllm import _versions

__all__ = ["vllm"]  # a fixture for every test


def test_a_router_that_chooses_twice_in_a_forward_is_noticed() -> None:
    engine = Engine().ask(a=6)
    router = engine.runner.routers[0]
    take = router.capture_fn
    router.capture_fn = lambda ids: (take(ids), take(ids))
    engine.last({"a": 6})
    assert not engine.coverage("a").complete


def test_a_forward_outside_any_step_loses_one_step() -> None:
    """It lost all of them: what it had left behind was never cleared."""
    engine = Engine().ask(a=6)
    for router in engine.runner.routers:  # not by _dummy_run
        router.capture_fn(np.zeros((64, 1), np.int32).view(Ids))
    engine.step({"a": 4})
    engine.last({"a": 2})
    assert engine.runner._waymark.steps_without_ids == 1
    assert (engine.rows("a")[4:] == expected(4, 6)).all()


def test_forwards_that_are_no_steps_are_forgotten() -> None:
    engine = Engine().ask(a=6)

    def forward() -> None:
        for router in engine.runner.routers:
            router.capture_fn(np.zeros((64, 1), np.int32).view(Ids))

    engine.runner.forward = forward
    engine.runner._dummy_run()  # profiling, a dummy batch
    assert (engine.last({"a": 6}) == expected(0, 6)).all()


def test_who_had_the_capture_slot_is_called_first() -> None:
    seen: list[Any] = []
    engine = Engine().ask(a=3)
    engine.runner.routers[0].set_capture_fn(seen.append)
    engine.runner._waymark.capture.attach(engine.runner)
    engine.runner._waymark.capture.attach(engine.runner)
    engine.last({"a": 3})
    assert len(seen) == 1 and (engine.rows("a") == expected(0, 3)).all()


def test_compiled_models() -> None:
    engine = Engine(mode=3).begin(a=6)
    assert (engine.last({"a": 1}) == expected(0, 7)).all()


def test_data_parallel_engines_take_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.array([2, 3, 4])
    metadata = types.SimpleNamespace(num_tokens_across_dp_cpu=tokens)
    context = types.SimpleNamespace(dp_metadata=metadata)
    forward = types.SimpleNamespace(get_forward_context=lambda: context)
    monkeypatch.setattr(_versions, "module", lambda name: forward)
    parallel = types.SimpleNamespace(data_parallel_size=3, data_parallel_rank=1)
    own = _versions.own_rows(parallel)
    assert own(np.arange(9)).tolist() == [2, 3, 4]  # of all engines
    assert own(np.arange(3)).tolist() == [0, 1, 2]  # of this one
    context.dp_metadata = None
    assert own(np.arange(9)).tolist() == list(range(9))


def test_the_line_that_the_capture_is_on_is_the_adapters(caplog: pytest.LogCaptureFixture) -> None:
    assert captures_on(caplog, lambda: Engine().ask(a=6)) == []
