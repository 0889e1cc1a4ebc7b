"""The half of the plugin for vLLM whose ids and slots are on a device, on the tiny engine."""

from __future__ import annotations

import gc
import random
import threading
import time
import types
import weakref
from typing import Any

import numpy as np
import pytest
from late_device import Array
from test_late import Mistake
from vllm_device_engine import DeviceEngine, DeviceRunner, cuda
from vllm_engine import Request, vllm
from waymark.vllm import _device, _plugin, _versions
from waymark.vllm._hooks import Refused

__all__ = ["cuda", "vllm"]  # fixtures for every test


@pytest.mark.parametrize("how", [{}, {"graphs": False}, {"v1": True}])
def test_rows_of_a_request(how: dict[str, Any]) -> None:
    engine = DeviceEngine(**how)
    engine.add(Request("a", 6))
    for tokens in (6, 1, 1, 1):
        engine.step({"a": tokens})
        engine.follow()
    engine.step({"a": 1}, finish=("a",))
    engine.drain()
    assert (engine.rows("a") == engine.expected("a", 0, 10)).all()
    assert engine.coverage("a").complete and engine.runner.runs[-1] == (1, how.get("graphs", True))


def test_the_last_of_a_batch_needs_no_other_step() -> None:
    """An empty schedule waits for the device, and is not repeated."""
    engine = DeviceEngine()
    engine.device.most_looks = 50
    engine.add(Request("a", 6))
    engine.step({"a": 6}, finish=("a",))
    engine.step({})
    assert (engine.rows("a") == engine.expected("a", 0, 6)).all()


def test_rows_come_while_other_requests_run() -> None:
    engine = DeviceEngine()
    for name in "ab":
        engine.add(Request(name, 3))
    engine.step({"a": 3, "b": 3}, finish=("a",))
    deadline = time.monotonic() + 10
    while "a" not in engine.finished:
        assert time.monotonic() < deadline
        engine.follow()
        engine.step({"b": 1})
    assert (engine.rows("a") == engine.expected("a", 0, 3)).all()


def test_dummies_between_steps_and_what_they_choose() -> None:
    engine = DeviceEngine()
    engine.add(Request("a", 3))
    engine.step({"a": 3})
    engine.runner._dummy_run(7)  # of an idle data-parallel rank
    engine.runner.silent = 1
    engine.runner.graphs, engine.runner.captured = False, {}
    engine.step({"a": 1}, finish=("a",))
    engine.drain()
    assert (engine.rows("a")[:3] == engine.expected("a", 0, 3)).all()
    assert (engine.rows("a")[3] == -1).all() and sum(engine.coverage("a").missing.values()) == 1


@pytest.mark.parametrize("where", ["fails_before", "fails_behind"])
def test_a_forward_that_throws_loses_rows_and_no_more(where: str) -> None:
    engine = DeviceEngine()
    engine.add(Request("a", 6))
    engine.step({"a": 6})
    setattr(engine.runner, where, True)
    with pytest.raises(RuntimeError, match="the kernels"):
        engine.step({"a": 1})
    setattr(engine.runner, where, False)
    engine.add(Request("b", 3))
    engine.step({"b": 3}, finish=("a", "b"))
    engine.drain()
    assert (engine.rows("b") == engine.expected("b", 0, 3)).all()
    assert engine.rows("a") is None or (engine.rows("a") == -1).all()
    assert not engine.runner._waymark.failure


def test_a_reset_with_two_steps_on_their_way() -> None:
    engine = DeviceEngine()
    engine.add(Request("a", 4))
    engine.device.held = True
    engine.step({"a": 4})
    engine.step({"a": 1})
    engine.scheduler._preempt_request(engine.scheduler.requests["a"])
    engine.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()
    engine.shift = 1
    engine.add(Request("b", 3))
    engine.step({"b": 3}, finish=("b",))
    assert engine.device.pending == 3 and "b" not in engine.finished
    engine.device.held = False
    engine.drain()
    assert (engine.rows("b") == engine.expected("b", 0, 3)).all()


def test_the_device_fails() -> None:
    engine = DeviceEngine()
    engine.add(Request("a", 6))
    engine.device.error = RuntimeError("a test")
    engine.step({"a": 6}, finish=("a",))
    engine.drain()
    assert engine.rows("a") is None and "a test" in engine.coverage("a").failure


def test_a_device_that_hangs_costs_rows_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_versions, "late_seconds", lambda config: 0.1)
    engine = DeviceEngine()
    engine.add(Request("a", 6))
    engine.device.held = True
    engine.step({"a": 6}, finish=("a",))
    engine.drain()
    assert engine.rows("a") is None or (engine.rows("a") == -1).all()
    assert engine.runner._waymark.late.drain(10)
    report = _plugin.worker_report(types.SimpleNamespace(model_runner=engine.runner))
    assert report["steps_without_slots"] == 1 and not report["failure"]


def test_the_thread_ends_with_the_runner_and_does_not_keep_it() -> None:
    engine = DeviceEngine()
    engine.add(Request("a", 6))
    engine.device.held = True
    engine.step({"a": 6})
    engine.step({"a": 1})
    thread = engine.runner._waymark.late._thread
    runner = weakref.ref(engine.runner)
    engine.worker = engine.runner = None
    gc.collect()
    assert runner() is None
    thread.join(5)
    assert not thread.is_alive()


def test_the_worker_never_waits_for_the_device() -> None:
    engine = DeviceEngine()
    engine.add(Request("a", 6))
    engine.device.held = True
    begin = time.monotonic()
    engine.step({"a": 6})
    for _ in range(20):
        engine.step({"a": 1})
    assert time.monotonic() - begin < 5
    assert engine.runner._waymark.late.lost == 17
    engine.device.held = False
    engine.follow()
    engine.step({"a": 1}, finish=("a",))
    engine.drain()
    rows, right = engine.rows("a"), engine.expected("a", 0, 27)
    there = (rows >= 0).all(axis=(1, 2))
    assert there.tolist() == [True] * 9 + [False] * 17 + [True] and (rows[there] == right[there]).all()
    assert engine.runner._waymark.steps_without_ids == 17


# -- the start ------------------------------------------------------------------------------------
def test_it_proves_itself_with_and_without_graphs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="vllm.waymark")
    DeviceEngine()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "waymark: the ids of 2 layers arrive from forwards without graphs: 16 tokens",
        "waymark: the ids of 2 layers arrive from forwards by graphs: 1, 8, 1, 16 tokens",
    ]


def test_a_layer_that_does_not_choose_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="layer1 is refused: it wrote no ids in a forward of 16 tok"):
        DeviceEngine(silent=1)


def test_a_layer_that_is_silent_in_graphs_alone_is_refused() -> None:
    def capture_model(runner: Any) -> int:
        capture(runner)
        for size in runner.captured:
            runner.captured[size] = runner.captured[size][1:]
        return 0

    capture = DeviceRunner.capture_model
    with pytest.raises(Refused, match="layer0 is refused: it wrote no ids in a forward of 1 tokens"):
        DeviceEngine(capture_model=capture_model)


@pytest.mark.parametrize("ids, text", [(200, "its ids are out of range"), (-5, "out of range")])
def test_ids_that_are_none_are_refused(ids: int, text: str) -> None:
    def _dummy_run(runner: Any, tokens: int, **more: Any) -> None:
        runner.rows, runner.inputs[...] = tokens, ids
        runner.run_model(eager=True)

    with pytest.raises(Refused, match=text):
        DeviceEngine(_dummy_run=_dummy_run)


def test_ids_that_repeat_are_refused() -> None:
    engine = DeviceEngine()
    ids = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 7]]], np.int16)
    with pytest.raises(Refused, match="layer1 is refused: it has an id twice in a row"):
        engine.runner._waymark_device._check(ids, 2, {})


def test_a_layer_that_raises_is_silent_and_does_not_raise_into_vllm() -> None:
    engine = DeviceEngine(graphs=False)
    ids = engine.runner._waymark_device
    ids._write = lambda layer, given: 1 / 0
    engine.add(Request("a", 3))
    engine.step({"a": 3}, finish=("a",))
    engine.drain()
    assert (engine.rows("a") == -1).all()


def test_a_layer_that_ran_for_a_part_of_the_tokens_is_silent() -> None:
    buffer = np.full((8, 2, 1), -1, np.int16).view(Array)
    parallel = types.SimpleNamespace(data_parallel_size=1)
    write = _versions.writer(types.SimpleNamespace(parallel_config=parallel), buffer)
    write(0, np.ones((5, 1)))
    write(1, np.ones((3, 1)))
    assert (buffer[:5, 0] == 1).all() and (buffer[:, 1] == -1).all()
    write(0, np.ones((9, 1)))  # more than the buffer has
    assert (buffer[5:] == -1).all()


def test_where_ranks_share_tokens_vllm_says_whose_rows_are_whose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class RoutedExpertsCapturer:
        def __init__(self, config: Any) -> None:
            raise AssertionError

        def capture(self, layer_id: int, topk_ids: Any) -> None:
            own = topk_ids[self.dp_rank * 2 :][:2]  # type: ignore[attr-defined]
            self.device_buffer[: len(own), layer_id] = own  # type: ignore[attr-defined]

    names = types.SimpleNamespace(RoutedExpertsCapturer=RoutedExpertsCapturer)
    monkeypatch.setattr(_versions, "module", lambda name: names)
    buffer = np.full((8, 2, 1), -1, np.int16).view(Array)
    parallel = types.SimpleNamespace(
        data_parallel_size=2, data_parallel_rank=1, tensor_parallel_size=1)  # fmt: skip
    write = _versions.writer(types.SimpleNamespace(parallel_config=parallel), buffer)
    write(1, np.arange(4)[:, None])
    assert buffer[:2, 1, 0].tolist() == [2, 3] and (buffer[:, 0] == -1).all()


def test_other_tensor_parallel_ranks_gather_and_prove_and_store_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_device, "_stores", lambda: False)
    runner = DeviceEngine().runner
    assert not hasattr(runner, "_waymark") and not runner._waymark_device.memory.ids
    assert all(router.capture_fn is not None for router in runner.routers)


# -- many random schedules, and mistakes ------------------------------------------------------------
def campaign(seed: int, steps: int, follows: bool = True, **how: Any) -> dict[str, int]:
    """Random requests: chunks, decodes, preemptions, ends, dummies. Counts rows."""
    rng = random.Random(seed)
    engine = DeviceEngine(**how)
    engine.device.most_looks = 6
    engine.device._random.seed(seed)
    requests: dict[str, Request] = engine.scheduler.requests
    number, counts = 0, {"right": 0, "wrong": 0, "missing": 0}
    for _ in range(steps):
        while len(requests) < rng.randint(1, 5):
            number += 1
            engine.add(Request(f"r{number}", rng.randint(1, 12)))
        if rng.random() < 0.1:
            running = [one for one in requests.values() if one.num_computed_tokens]
            if running:
                engine.scheduler._preempt_request(rng.choice(running))
        if rng.random() < 0.2:
            engine.runner._dummy_run(rng.choice((1, 3, 16, 40)))
        if rng.random() < 0.05:
            engine.step({})
        tokens, ends = {}, []
        for name, request in requests.items():
            left = request.num_tokens - request.num_computed_tokens
            if rng.random() < 0.8:
                tokens[name] = rng.randint(1, left)
                if tokens[name] == left and request.num_tokens > 12 + rng.randint(0, 12):
                    ends.append(name)
        if not tokens:
            continue
        engine.step(tokens, finish=tuple(ends))
        if follows:
            engine.follow()
    engine.drain()
    late = engine.runner._waymark.late
    for name, output in engine.finished.items():
        rows = output.routed_experts
        assert rows is not None, engine.coverage(name)
        right = engine.expected(name, 0, len(rows))
        there = (rows >= 0).all(axis=(1, 2))
        counts["missing"] += int((~there).sum())
        counts["right"] += int((rows == right).all(axis=(1, 2)).sum())
        counts["wrong"] += int((there & (rows != right).any(axis=(1, 2))).sum())
    stats = engine.runner._waymark.store.stats()
    assert engine.runner._waymark.failure == "" and late.failure == ""
    counts |= {"lost": late.lost, "unknown": late.unknown + late.given_up}
    counts["findings"] = stats.releases_below_zero + len(engine.runner._waymark.store.take_findings())
    late.close(10)
    return counts


@pytest.mark.parametrize("how", [{}, {"graphs": False}, {"v1": True}])
def test_random_schedules(seed: int, how: dict[str, Any]) -> None:
    counts = campaign(seed, 150, **how)
    assert counts["right"] > 300, counts
    assert not any(counts[name] for name in ("wrong", "missing", "lost", "unknown", "findings"))


def test_random_schedules_ahead_of_the_device(seed: int) -> None:
    counts = campaign(seed, 150, follows=False)
    assert not counts["wrong"] and counts["right"], counts
    assert not counts["missing"] or counts["lost"] or counts["unknown"], counts


@pytest.mark.parametrize("what", [
    "", "no copy on the device", "used again early", "no event", "out of order", "not reset",
    "reset behind the step",
])  # fmt: skip
def test_mistakes_are_noticed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(Mistake, "what", what)
    monkeypatch.setattr(_device.late, "LateIds", Mistake)
    noticed = False
    for seed in range(1, 6):
        try:
            counts = silent_campaign() if "reset" in what else campaign(seed, 60)
        except AssertionError:  # a finding
            noticed = True
        else:
            noticed |= any(counts.get(name) for name in ("wrong", "missing", "findings"))
        if noticed:
            break
    assert noticed == bool(what)


def silent_campaign() -> dict[str, int]:
    """Counts as wrong each row of a step in which a layer was silent, and which is there."""
    engine = DeviceEngine(graphs=False)
    engine.add(Request("a", 4))
    engine.step({"a": 4})
    for step in range(4, 24):
        engine.follow()
        engine.runner._dummy_run(3)
        engine.runner.silent = step % 2
        engine.step({"a": 1}, finish=("a",) if step == 23 else ())
    engine.drain()
    return {"wrong": int((engine.rows("a")[4:] >= 0).all(axis=(1, 2)).sum())}


def test_a_silent_layer_is_missing_behind_dummies_that_chose() -> None:
    assert silent_campaign()["wrong"] == 0


def test_results_are_read_by_one_thread_while_others_send(seed: int) -> None:
    """vLLM's output thread takes rows while the thread of the late ids promises none."""
    engine = DeviceEngine()
    engine.runner.late = True
    engine.add(Request("b", 3))
    engine.step({"b": 3})
    threads: list[threading.Thread] = []
    for number in range(10):
        engine.add(Request(f"a{number}", 3))
        engine.step({f"a{number}": 3, "b": 1}, finish=(f"a{number}",))
        engine.follow()
        threads.append(threading.Thread(target=engine.runner.sample_tokens))
        threads[-1].start()
    for thread in threads:
        thread.join(10)
    engine.step({"b": 1}, finish=("b",))
    engine.drain()
    assert engine.runner._waymark._answers._promised == 0
    for number in range(10):
        assert (engine.rows(f"a{number}") == engine.expected(f"a{number}", 0, 3)).all()
