"""The half of the plugin for vLLM whose ids and slots are on a device, on the tiny engine."""

from __future__ import annotations

import gc
import threading
import time
import types
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
from conftest import output_of, until
from late_device import MISTAKES, Array, Mistake, array
from vllm_device_engine import BAD, ROWS, DeviceEngine, DeviceRunner, Schedules, cuda
from vllm_engine import vllm
from waymark import Reason, late
from waymark.late import _late_ids
from waymark.vllm import _device, _plugin, _scheduler, _versions, _worker
from waymark.vllm._hooks import Refused

__all__ = ["cuda", "vllm"]  # fixtures for every test


@pytest.mark.parametrize("how", [{}, {"graphs": "piecewise"}, {"graphs": ""}, {"v1": True}])
def test_rows_of_a_request(how: dict[str, Any]) -> None:
    engine = DeviceEngine(**how)
    engine.request("a", 6)
    for tokens in (6, 1, 1, 1):
        engine.step({"a": tokens})
        engine.follow()
    assert (engine.last({"a": 1}) == engine.expected("a", 0, 10)).all()
    assert engine.coverage("a").complete and engine.runner.runs[-1] == (1, how.get("graphs") != "")


def test_the_last_of_a_batch_needs_no_other_step() -> None:
    """An empty schedule waits for the device, and is not repeated."""
    engine = DeviceEngine()
    engine.device.most_looks = 50
    engine.begin(a=6).step({"a": 1}, finish=("a",))
    engine.step({})
    assert (engine.rows("a") == engine.expected("a", 0, 7)).all()


def test_rows_come_while_other_requests_run() -> None:
    engine = DeviceEngine().begin(a=3, b=3)
    engine.step({"b": 1}, finish=("a",))
    deadline = time.monotonic() + 10
    while "a" not in engine.finished:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # b takes a block in four steps, and there are few
        engine.follow()
        engine.step({"b": 1})
    assert (engine.rows("a") == engine.expected("a", 0, 3)).all()


@pytest.mark.parametrize("where", ["fails_before", "fails_behind"])
def test_a_step_that_did_not_run_costs_nothing_and_one_that_may_have_run_all(where: str) -> None:
    engine = DeviceEngine().begin(a=6).hold()
    engine.issue({"a": 1})
    engine.issue({})  # no forward is launched
    engine.hold(False).request("b", 6)
    engine.last({"b": 6})
    assert engine.coverage("b").complete and not engine.late.unknown
    setattr(engine.runner, where, True)
    with pytest.raises(RuntimeError, match="the kernels"):
        engine.step({"a": 1}, finish=("a",))
    setattr(engine.runner, where, False)
    engine.last({"a": 1})
    there = (engine.rows("a") >= 0).all(axis=(1, 2))
    assert there.tolist() == [False] * 8 + [True] and not engine.runner._waymark.failure


def test_kernels_that_take_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """90 s of compilation in a first forward, then 60 s in which a rank waits in a collective: the
    engine's threads go on, and the rows come."""
    passed = 0.0
    clock = types.SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr(_late_ids, "time", clock)
    engine = DeviceEngine(late=True)  # late_seconds: 65
    assert engine.scheduler._waymark._hold_seconds == 65 + 30
    run_model = engine.runner.run_model

    def compiles(*given: Any, **more: Any) -> None:
        nonlocal passed
        passed += 90 if not passed else 0
        run_model(*given, **more)

    engine.runner.run_model = compiles
    engine.hold().begin(a=3, b=3)
    engine.step({"b": 1}, finish=("a",))  # its output does not wait for the device
    passed += 60
    engine.step({"b": 1})
    assert "a" not in engine.finished and not engine.late.given_up
    engine.hold(False).last({"b": 1})
    for name, rows in (("a", 3), ("b", 6)):
        assert (engine.rows(name) == engine.expected(name, 0, rows)).all()
    engine.hold().request("c", 3)
    engine.issue({"c": 3})
    passed += 66
    assert engine.late.drain(10) and engine.late.given_up == 1


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_and_new_weights(level: int) -> None:
    """With two steps on their way. The engine core resets the prefix cache."""
    engine = DeviceEngine().hold().begin(a=4)
    engine.step({"a": 1})
    engine.reset()
    assert engine.device.pending == 2
    engine.hold(False)
    if level == 2:
        engine.runner.k.fill_(5)  # the weights are gone
        engine.runner.reload_weights()
    engine.step({})
    engine.step({"a": 6})
    rows = engine.last({"a": 1})
    assert (rows[5:] == engine.expected("a", 5, 7)).all() and engine.coverage("a").complete
    engine.shift -= 1
    assert (rows[:5] == engine.expected("a", 0, 5)).all()


def test_a_pipeline_stage_sends_its_rows_without_another_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: dict[int, Any] = {}

    class FirstStage:
        returns, joins = False, True

        def __init__(self, *given: Any) -> None:
            pass

        def joined(self, tag: int, rows: Any) -> None:
            sent[tag] = rows

    monkeypatch.setattr(_worker, "Stages", FirstStage)
    engine = DeviceEngine(sample_tokens=lambda runner: types.SimpleNamespace(req_ids=[]))
    engine.begin(a=6, b=3)
    engine.step({"b": 1}, finish=("a",))
    engine.hold().step({"b": 1})
    engine.hold(False)
    until(lambda: sent)
    assert (sent[1].ids == engine.expected("a", 0, 6)).all()
    engine.runner._waymark._answers.stop()


@pytest.mark.parametrize("where", ["done", "copy"])
def test_the_device_fails(where: str) -> None:
    def fails(*given: Any) -> None:
        raise RuntimeError("a test")

    engine = DeviceEngine().begin(a=6)
    engine.follow(0)
    setattr(engine.device, where, fails)
    engine.step({"a": 1})
    engine.last({"a": 1})
    assert engine.rows("a") is None and "a test" in engine.coverage("a").failure
    assert engine.late.drain(10) and engine.late.failure


def test_a_step_whose_slots_find_no_buffer_costs_all_rows() -> None:
    engine = DeviceEngine().begin(a=3, b=3)
    engine.follow(0)
    engine.late._slots_taken = [True] * 32
    engine.step({"a": 1})
    engine.late._slots_taken = [False] * 32
    engine.step({"a": 1})
    engine.last({"a": 1}, "a", "b")
    assert (engine.rows("a")[:4] == -1).all() and (engine.rows("b") == -1).all()
    assert (engine.rows("a")[4:] == engine.expected("a", 4, 6)).all() and engine.late.unknown == 1
    stats = engine.runner._waymark.store.stats()
    assert stats.releases_below_zero == 0  # blocks have kept their users


def test_a_step_that_is_given_up_keeps_its_buffers_until_its_copies_are_done() -> None:
    engine = DeviceEngine().hold()
    engine.late._seconds = 0.05
    engine.begin(a=3)
    assert engine.late.drain(10) and engine.late.given_up == 1
    engine.late._seconds = 60
    for _ in range(3):
        assert engine.late._ids_taken[0] and engine.late._slots_taken[0]
        engine.step({"a": 1})  # into the other buffers
    engine.step({"a": 1})
    assert engine.late.lost == 1
    engine.hold(False).follow(0)
    rows = engine.last({"a": 1})
    there = (rows >= 0).all(axis=(1, 2))
    assert there.tolist() == [False] * 3 + [True] * 3 + [False, True]
    assert (rows[there] == engine.expected("a", 0, 8)[there]).all()


def test_a_device_that_hangs_costs_rows_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_versions, "late_seconds", lambda config: 0.1)
    engine = DeviceEngine().hold().begin(a=6)
    engine.last({"a": 1})
    assert engine.rows("a") is None or (engine.rows("a") == -1).all()
    assert engine.runner._waymark.late.drain(10)
    report = _plugin.worker_report(types.SimpleNamespace(model_runner=engine.runner))
    assert report["steps_without_slots"] == 2 and not report["failure"]


def test_the_thread_ends_with_the_runner_and_does_not_keep_it() -> None:
    engine = DeviceEngine().hold().begin(a=6)
    engine.step({"a": 1})
    thread = engine.runner._waymark.late._thread
    runner = weakref.ref(engine.runner)
    engine.worker = engine.runner = None
    gc.collect()
    assert runner() is None
    thread.join(5)
    assert not thread.is_alive()


def test_its_end_does_not_wait_for_a_device_that_hangs() -> None:
    late = DeviceEngine().hold().begin(a=6).late
    begin = time.monotonic()
    assert not late.close(0.05) and not late.drain(0.1) and time.monotonic() - begin < 5
    assert not late._thread.is_alive()


def test_the_thread_ends_before_the_interpreter() -> None:
    """In a call of torch, which comes back for the GIL, it ended the process by std::terminate."""
    program = """if True:
        import atexit, threading
        def at_end():
            print([one.name for one in threading.enumerate() if one.name == "waymark-late"])
        atexit.register(at_end)  # the first of all: the last to run
        import waymark.late
        from late_device import LateDevice
        device = LateDevice(most_looks=1 << 40)
        memory = waymark.late.Memory(device, 8, 1, 1)
        store = waymark.Capture(num_layers=1, num_experts=2, top_k=1, num_blocks=4)
        ids = waymark.late.LateIds(memory, store, 1000)
        ids.issued(device.memory((8,), "int64"), 1, lambda slots, ids: None)"""
    assert output_of(program)[0] == "[]\n"


def test_the_worker_never_waits_for_the_device() -> None:
    begin = time.monotonic()
    engine = DeviceEngine().hold().begin(a=6)
    for _ in range(20):
        engine.step({"a": 1})
    assert time.monotonic() - begin < 5
    assert engine.runner._waymark.late.lost == 17
    engine.hold(False).follow()
    engine.last({"a": 1})
    rows, right = engine.rows("a"), engine.expected("a", 0, 27)
    there = (rows >= 0).all(axis=(1, 2))
    assert there.tolist() == [True] * 9 + [False] * 17 + [True] and (rows[there] == right[there]).all()
    assert engine.runner._waymark.steps_without_ids == 17


# -- the start ------------------------------------------------------------------------------------
def test_a_start_takes_the_padding_of_dummy_runs_for_what_it_is() -> None:
    """Their rows have no expert (-1), in graphs too; a proof on them refused Qwen3-MoE on a GPU."""
    engine = DeviceEngine().begin(a=6)
    engine.runner._dummy_run(5)
    assert (engine.last({"a": 1}) == engine.expected("a", 0, 7)).all()


def test_a_layer_that_does_not_choose_in_a_step_is_not_captured() -> None:
    engine = DeviceEngine(silent=1).begin(a=6)
    assert (engine.last({"a": 1}) == -1).all()
    assert set(engine.coverage("a").missing) == {Reason.NOT_CAPTURED}


def test_a_layer_that_raises_is_silent_and_does_not_raise_into_vllm() -> None:
    engine = DeviceEngine(graphs="")
    ids = engine.runner._waymark_ids
    ids._write = lambda layer, given: 1 / 0
    engine.request("a", 3)
    assert (engine.last({"a": 3}) == -1).all()


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


def test_other_tensor_parallel_ranks_gather_and_store_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_device, "stores", lambda: False)
    runner = DeviceEngine().runner
    assert not hasattr(runner, "_waymark") and not runner._waymark_ids.memory.ids
    assert all(router.capture_fn is not None for router in runner.routers)


# -- many random schedules, and mistakes ----------------------------------------------------------
def test_random_schedules(seed: int, request: pytest.FixtureRequest) -> None:
    """--schedules: how many; the n-th has seed + n."""
    counts: Counter[str] = Counter()
    bad = []
    for n in range(request.config.getoption("--schedules")):
        of_one = Schedules(seed + n).run()
        if any(of_one[name] for name in BAD):
            bad.append((f"--seed={seed + n}", of_one))
        counts += of_one
    print(f"{sum(counts[name] for name in ROWS)} rows:", dict(counts))
    assert counts["right"] and not bad


def _lost_in_graphs(config: Any, buffer: Any) -> Any:
    """Python alone writes the ids."""

    def write(layer: int, ids: Any) -> None:
        buffer.numpy()[: len(ids), layer] = ids

    return write


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "": (_device, "__doc__", ""),
    **{what: (Mistake, "what", what) for what in MISTAKES},
    "a message before its turn": (
        Mistake, "later", lambda self, tell: tell(None, None)),
    "a loss that the store does not learn": (late, "lose_rows", lambda store: None),
    "ids by Python alone": (_versions, "writer", _lost_in_graphs),
    "rows behind a rejected draft": (
        _scheduler.SchedulerHalf, "_limit_lives", staticmethod(lambda known, request: None)),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_mistakes_are_noticed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(_device.late, "LateIds", Mistake)
    monkeypatch.setattr(*PLANTED[what])
    more = {"drafts": True} if "draft" in what else {}
    error = "fails_behind" if "loss" in what else ""
    noticed: Any = {}
    for seed in range(1, 25 if what else 4):
        try:
            counts = Schedules(seed, silent_size=4, follows=True, error=error, **more).run()
        except (AssertionError, Refused) as refused:
            noticed = str(refused)
        else:
            noticed = {name: counts[name] for name in BAD if counts[name]}
        if noticed:
            break
    print(f"{what or 'none'}: seed {seed}: {noticed}")
    assert bool(noticed) == bool(what)


def test_results_are_read_by_one_thread_while_others_send(seed: int) -> None:
    """vLLM's output thread takes rows while the thread of the late ids promises none."""
    engine = DeviceEngine()
    engine.runner.late = True
    engine.request("b", 3)
    engine.step({"b": 3})
    threads: list[threading.Thread] = []
    for number in range(10):
        engine.request(f"a{number}", 3)
        engine.step({f"a{number}": 3, "b": 1}, finish=(f"a{number}",))
        engine.follow()
        threads.append(threading.Thread(target=engine.runner.sample_tokens))
        threads[-1].start()
    for thread in threads:
        thread.join(10)
    engine.last({"b": 1})
    assert engine.runner._waymark._answers._promised == 0
    for number in range(10):
        assert (engine.rows(f"a{number}") == engine.expected(f"a{number}", 0, 3)).all()
