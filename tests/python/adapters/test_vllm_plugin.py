"""What the hooks of the plugin for vLLM do to schedules and outputs, on the tiny engine."""

from __future__ import annotations

import json
import threading
import types
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import output_of
from vllm_engine import ABORTED, BLOCK, STOPPED, Core, Engine, Request, Scheduler, expected, lose_rows, vllm
from waymark import Reason
from waymark.vllm import _front_end, _plugin, _results, _scheduler, _scheduler_hooks
from waymark.vllm._exchange import Result
from waymark.vllm._options import Options

__all__ = ["vllm"]  # a fixture for every test


def test_importing_needs_neither_torch_nor_vllm() -> None:
    code = "import sys, waymark.vllm; print({'torch', 'vllm'} & set(sys.modules))"
    assert output_of(code)[0].strip() == "set()"


def test_a_finished_request_is_held_until_its_rows_are_there() -> None:
    engine = Engine().begin(a=6)
    engine.step({"a": 1}, finish=("a",))
    assert "a" not in engine.finished and engine.scheduler.has_finished_requests()
    engine.drain()
    assert (engine.rows("a") == expected(0, 7)).all() and engine.rows("a").dtype == np.uint8
    coverage = engine.coverage("a")
    assert coverage.complete and not coverage.missing
    assert [(run.begin, run.end, run.version_name) for run in coverage.runs] == [(0, 7, "default")]


def test_rows_of_all_lives_are_joined_the_first_life_first() -> None:
    engine = Engine().begin(a=6, b=3)
    a, b = engine.scheduler.requests.values()
    engine.step({"a": 1, "b": 1})
    engine.scheduler._preempt_request(a)
    engine.step({"b": 1})
    engine.shift = 20  # rows of the second life differ
    engine.step({"a": a.num_tokens, "b": 1})
    engine.last({"a": 1, "b": 1})
    assert (engine.rows("a") == np.concatenate([expected(0, 7), expected(7, 9, 20)])).all()
    assert len(engine.rows("b")) == b.num_tokens - 1
    assert engine.coverage("a").complete


def test_rows_of_drafts_that_were_in_flight_at_a_preemption_do_not_win() -> None:
    engine = Engine().begin(a=6)
    a = engine.scheduler.requests["a"]
    a.num_tokens += 2  # the step's tokens and two drafts
    engine.step({"a": 3})
    a.num_tokens -= 3  # both are rejected, and the preemption comes before that is known
    engine.scheduler._preempt_request(a)
    engine.shift = 20
    engine.step({"a": a.num_tokens})
    assert (engine.last({"a": 1}) == np.concatenate([expected(0, 6), expected(6, 8, 20)])).all()


def test_a_request_that_ends_while_it_is_preempted_has_its_rows() -> None:
    engine = Engine().begin(a=6)
    a = engine.scheduler.requests["a"]
    engine.scheduler._preempt_request(a)
    engine.last({}, "a")
    assert (engine.rows("a") == expected(0, 6)).all()


def test_requests_that_do_not_ask_and_aborted_ones_have_no_rows() -> None:
    engine = Engine().ask(b=6, c=6)
    b, c = engine.scheduler.requests.values()
    engine.request("a", 6, asked=False)
    engine.step({"a": 6, "b": 6, "c": 6})
    engine.scheduler._preempt_request(c)
    for one in (b, c):
        one.status = ABORTED
        engine.scheduler._free_request(one)
    engine.step({"a": 1}, finish=("a",))
    assert engine.rows("a") is None and engine.finished["a"].trace_headers is None
    assert not engine.scheduler.has_finished_requests()
    assert not engine.scheduler._waymark._results  # nothing waits for rows that nobody gets


def test_missing_rows_are_minus_one_and_have_a_reason() -> None:
    engine = Engine().begin(a=6)
    engine.runner.routers[1].set_capture_fn(lambda ids: None)  # the layer is lost
    rows = engine.last({"a": 1})
    assert rows.dtype == np.int16 and (rows[:6] == expected(0, 6)).all() and (rows[6] == -1).all()
    assert sum(engine.coverage("a").missing.values()) == 1 and not engine.coverage("a").complete
    assert engine.runner._waymark.steps_without_ids == 1


def test_all_layers_of_the_model() -> None:
    engine = Engine(Options(layers="all")).ask(a=3)
    engine.last({"a": 3})
    assert engine.rows("a").shape == (3, 3, 1)
    assert (engine.rows("a")[:, :2] == expected(0, 3)).all() and not engine.rows("a")[:, 2].any()


def test_part_of_the_prompt() -> None:
    engine = Engine()
    engine.add(Request("a", 6)).sampling_params.routed_experts_prompt_start = 4
    assert (engine.last({"a": 6}) == expected(4, 6)).all()


def test_versions_are_names() -> None:
    engine = Engine().begin(a=3)
    core = Core(engine.scheduler)
    core.set_weight_version("step-7")
    engine.last({"a": 1})
    assert [run.version_name for run in engine.coverage("a").runs] == ["default", "step-7"]


def test_requests_of_one_name_whose_rows_are_late_have_their_own() -> None:
    engine = Engine().ask(a=3)
    answers, outputs = engine.runner._waymark._answers, []
    read, answers._read = answers._read, lambda timeout: []
    engine.step({"a": 3}, finish=("a",))
    engine.scheduler.started.discard("a")
    engine.shift = 20
    engine.begin(a=6).step({"a": 1}, finish=("a",))
    assert not engine.finished
    answers._read = read
    take = engine.scheduler._waymark._complete
    engine.scheduler._waymark._complete = lambda held: (take(held), outputs.append(held.output))
    engine.drain()
    assert (outputs[0].routed_experts == expected(0, 3)).all()
    assert (outputs[1].routed_experts == expected(0, 7, 20)).all()


def names(engine: Engine, *requests: str) -> list[list[str]]:
    return [[run.version_name for run in engine.coverage(name).runs] for name in requests]


@pytest.mark.parametrize(
    "call", ["reload_weights", "update_weights", "finish_weight_update", "load_model", "of_an_extension", print]
)
def test_weights_that_nobody_named_have_no_name(call: Any) -> None:
    """They had the name of the former ones, which the rows of 103 of 103 tokens contradicted."""
    engine = Engine()
    core = Core(engine.scheduler)
    core.add_request(Request("a", 3))
    engine.step({"a": 3})
    core.add_request(Request("b", 3))
    core.model_executor.collective_rpc("check_health")
    engine.step({"a": 1, "b": 3})
    core.model_executor.collective_rpc(call)
    engine.step({"a": 1, "b": 1})
    core.model_executor.collective_rpc(call)
    engine.step({"a": 1})
    core.set_weight_version("step-7")
    engine.last({"a": 1, "b": 1})
    assert names(engine, "a", "b") == [["default", "", "", "step-7"], ["default", "", "step-7"]]
    assert len({run.version for run in engine.coverage("a").runs}) == 4


def test_weights_that_change_without_a_call_are_found() -> None:
    engine = Engine()
    core = Core(engine.scheduler)
    for name in "abcd":
        core.model_executor.weight = name > "a"  # changes once
        if name == "c":
            core.set_weight_version("step-7")
        if name == "d":
            core.model_executor.weight = 2
            core.reset_prefix_cache()
        core.add_request(Request(name, 3))
        engine.last({name: 3})
    assert names(engine, *"abcd") == [["default"], [""], ["step-7"], [""]]


def test_sleep_keeps_the_weights_or_loses_them() -> None:
    for level, name in (1, "default"), (2, ""):
        engine = Engine()
        core = Core(engine.scheduler)
        core.add_request(Request("a", 3))
        core.model_executor.collective_rpc("sleep", kwargs={"level": level})
        core.model_executor.is_sleeping = True  # nothing can be compared
        core.add_request(Request("b", 3))
        core.model_executor.is_sleeping = False
        core.model_executor.collective_rpc("wake_up", kwargs={"tags": None})
        engine.last({"a": 3, "b": 3})
        assert names(engine, "a", "b") == [[name], [name]]


def test_a_failure_of_ours_ends_the_capture_and_nothing_else() -> None:
    engine = Engine().begin(a=3)
    half = engine.scheduler._waymark
    half._writer = None
    engine.ask(b=3)
    engine.step({"a": 1, "b": 3})
    assert half.failure
    engine.step({"a": 1}, finish=("a",))
    assert "a" in engine.finished and engine.rows("a") is None
    engine.runner._waymark.store = None
    engine.step({})
    engine.ask(b=3).step({"b": 3}, finish=("b",))
    assert "b" in engine.finished and not engine.scheduler.has_finished_requests()


def test_outputs_are_not_held_for_rows_that_never_come() -> None:
    engine = Engine().ask(a=3)
    engine.step({"a": 3}, finish=("a",))
    lose_rows(engine)
    engine.drain()
    assert engine.rows("a") is None and engine.coverage("a").failure


def test_outputs_that_wait_when_the_capture_ends_are_released() -> None:
    for spoil in ("failure", "outputs"):
        engine = Engine().ask(a=3, b=3)
        lose_rows(engine)
        engine.step({"a": 3, "b": 3}, finish=("a",))
        half = engine.scheduler._waymark
        assert half.holds
        if spoil == "failure":
            half.fail(RuntimeError("a test"))
        else:
            half._results = None
        engine.step({"b": 1})
        assert "a" in engine.finished and engine.rows("a") is None and not half.holds


def test_after_a_failure_every_output_says_why_it_has_no_rows() -> None:
    """Those that came with the failure, too, which had not been taken out to wait."""
    engine = Engine().ask(a=3, b=3, c=3)
    lose_rows(engine)
    engine.step({"a": 3, "b": 3, "c": 3}, finish=("a",))
    half = engine.scheduler._waymark

    def outputs(*given: Any) -> None:
        raise RuntimeError("a test")

    half.outputs = outputs
    engine.step({"b": 1, "c": 1}, finish=("b",))
    del half.outputs
    engine.step({"c": 1}, finish=("c",))
    for name in "abc":
        assert engine.rows(name) is None and engine.coverage(name).failure == "RuntimeError: a test"
    assert not half.holds


def test_a_request_without_a_last_output_holds_nothing() -> None:
    engine = Engine().begin(a=3)
    a = engine.scheduler.requests["a"]
    a.status = STOPPED
    engine.scheduler._free_request(a)
    engine.step({})
    assert not engine.scheduler.has_finished_requests()
    assert not engine.scheduler._waymark._results


def test_a_result_that_is_not_complete_says_so() -> None:
    none = Result.none(3, "why")
    output = types.SimpleNamespace(trace_headers={"traceparent": "x"}, routed_experts=None)
    _results.fill(output, Request("a", 3), [(none, 5)], 5, '["v"]', 0)
    assert output.routed_experts is None and output.trace_headers["traceparent"] == "x"
    coverage = _front_end.coverage(output.trace_headers)
    assert coverage is not None and coverage.failure == "why"


def test_hooks_are_installed_once() -> None:
    kind = type("SchedulerOfTest", (Scheduler,), {})
    _scheduler_hooks.hook(kind)
    before = kind.schedule  # type: ignore[attr-defined]
    _scheduler_hooks.hook(kind)
    assert kind.schedule is before  # type: ignore[attr-defined]


def test_the_report_of_a_worker() -> None:
    engine = Engine().begin(a=3)
    engine.runner._waymark.store.wait_idle(10)
    report = _plugin.worker_report(types.SimpleNamespace(model_runner=engine.runner))
    assert report["store"]["rows_landed"] == 3 and report["failure"] == ""
    assert report["missing"] == {} and json.loads(json.dumps(report)) == report
    assert _plugin.worker_report(types.SimpleNamespace(model_runner=object())) == {}


def test_a_schedule_of_any_size_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """280 requests that shared a long prompt, in one schedule or preempted at once, ended the capture
    of the engine for good."""
    monkeypatch.setattr(
        _scheduler, "Writer", partial(_scheduler.Writer, max_bytes=256, max_snapshots=2)
    )
    names = [f"r{i}" for i in range(8)]
    engine = Engine().begin(**dict.fromkeys(names, 6))
    for request in engine.scheduler.requests.values():
        engine.scheduler._preempt_request(request)
    engine.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()
    engine.step({name: 7 for name in names})
    engine.step({name: 1 for name in names}, finish=tuple(names))
    engine.drain()
    for name in names:
        assert (engine.rows(name) == expected(0, 8)).all() and engine.coverage(name).complete
    stats = engine.runner._waymark.store.stats()
    assert stats.releases_below_zero == 0 and stats.log_losses == 0


@pytest.mark.parametrize("which", ["scheduler", "worker"])
def test_a_capture_that_ended_begins_again_when_the_prefix_cache_is_reset(which: str) -> None:
    engine = Engine().begin(a=6)
    a = engine.scheduler.requests["a"]
    half = engine.scheduler._waymark if which == "scheduler" else engine.runner._waymark
    half.fail(RuntimeError("a test"))
    engine.ask(b=3).last({"a": 1, "b": 3}, "b")
    assert engine.rows("b") is None and "a test" in engine.coverage("b").failure
    engine.scheduler._preempt_request(a)
    assert engine.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()
    engine.shift = 20
    engine.ask(c=6).step({"a": a.num_tokens, "c": 6})
    for _ in range(3):
        engine.step({"a": 1, "c": 1})
    engine.last({"a": 1, "c": 1})
    assert not half.failure
    assert (engine.rows("c") == expected(0, 10, 20)).all() and engine.coverage("c").complete
    if which == "scheduler":  # its first life was in the time without a capture
        assert engine.rows("a") is None and "a test" in engine.coverage("a").failure
    else:
        rows = engine.rows("a")
        there = (rows >= 0).all(axis=(1, 2))
        assert (rows[there] == expected(0, len(rows), 20)[there]).all() and there[-4:].all()


def test_rows_from_before_a_failure_are_not_those_of_blocks_that_were_begun_behind_it() -> None:
    """The reset, with which the capture began again, took rows of others."""
    engine = Engine()
    for block in range(5, 64):
        engine.scheduler.free.remove(block)
    engine.ask(b=12).step({"b": 12}, finish=("b",))
    a = engine.begin(a=4).scheduler.requests["a"]
    engine.runner._waymark.fail(RuntimeError("a test"))
    for _ in range(8):  # in blocks of b; nobody tells it
        engine.step({"a": 1})
    engine.scheduler._preempt_request(a)
    engine.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()
    engine.shift = 20
    engine.step({"a": 12})
    engine.last({"a": 1})
    assert (engine.rows("a")[4:] == expected(4, 13, 20)).all()


def test_an_output_that_cannot_be_returned_is_returned_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler of a failure raised into vLLM, and the outputs that it held were lost."""
    engine = Engine().ask(a=3, b=3)
    engine.step({"a": 3, "b": 3}, finish=("a", "b"))
    add, calls = _results.add_output, []

    def failing(*given: Any) -> None:
        calls.append(given)
        if len(calls) < 4:
            raise RuntimeError("a test")
        add(*given)

    monkeypatch.setattr(_results, "add_output", failing)
    engine.drain()
    assert set(engine.finished) == {"a", "b"} and len(calls) >= 5
    for name in "ab":
        assert "a test" in engine.coverage(name).failure


def test_rows_are_sent_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's output thread, between two statements of the worker's, forgot that rows were being
    read: a request waited for 30 s."""
    engine = Engine().ask(a=3, b=3, c=3)
    engine.step({"a": 3, "b": 3, "c": 3}, finish=("a",))
    answers = engine.runner._waymark._answers
    engine.runner.late = True
    engine.step({"b": 1, "c": 1}, finish=("b",))
    output = engine.runner.sample_tokens()
    read = answers.read

    def read_when_the_thread_has_sent(*given: Any) -> None:
        with monkeypatch.context() as patched:  # what it would take is not read yet
            patched.setattr(answers, "_read", lambda timeout: [])
            thread = threading.Thread(target=output.get_output)
            thread.start()
            thread.join(10)
        read(*given)

    monkeypatch.setattr(answers, "read", read_when_the_thread_has_sent)
    engine.step({"c": 1})
    while engine.runner._waymark.store.pending_results:
        engine.step({"c": 1})
    engine.step({"c": 1})
    assert "b" in engine.finished
