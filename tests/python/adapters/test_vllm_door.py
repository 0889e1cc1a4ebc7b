"""Both halves of the adapter in an engine of vLLM's names: every row that is returned is right, and
none is missing but those of KV that was loaded."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from vllm_engine import MODEL_LAYERS, TOP_K, VOCABULARY, Engine, vllm  # noqa: F401
from waymark import Reason, _metrics
from waymark.vllm import Run, _scheduler, _worker, coverage
from waymark.vllm._events import Output
from waymark.vllm._options import Options

MODES: dict[str, dict[str, Any]] = {
    "plain": {}, "no seam": {"seam": 32}, "few blocks": {"blocks": 30},
    "ahead": {"ahead": 2, "blocks": 34}, "drafts": {"drafts": 3},
    "drafts ahead": {"drafts": 3, "ahead": 2, "blocks": 34}, "parts": {"seam": 32, "parts": True},
    "parts ahead": {"seam": 32, "parts": True, "ahead": 2, "drafts": 2, "blocks": 36},
    "loads": {"seam": 32, "loads": 0.4, "blocks": 40}, "no loads": {"loads": 0.4},
}  # fmt: skip


def drive(seed: int, mode: str, engine: type[Engine] = Engine) -> tuple[Engine, Counter[str]]:
    """Groups that share prompts, turns that continue them, aborts and resets."""
    one = engine(seed, **MODES[mode])
    random = one.random
    found, checked = Counter[str](), 0
    heads = [random.integers(0, VOCABULARY, random.integers(1, 40)).tolist() for _ in range(3)]
    for _ in range(70):
        if len(one.requests) < 14 and random.random() < 0.5:
            head = heads[random.integers(len(heads))]
            if one.finished and random.random() < 0.4:
                head = one.finished[-1].tokens
            prompt = head[:100] + random.integers(0, VOCABULARY, random.integers(1, 30)).tolist()
            start = int(random.integers(0, len(prompt) + 1)) if random.random() < 0.2 else 0
            for _ in range(random.integers(1, 4)):
                one.add(prompt, int(random.integers(1, 20)), start, random.random() < 0.9)
        if one.requests and random.random() < 0.05:
            one.end(list(one.requests.values())[-1], "aborted")
        if random.random() < 0.04:
            one.reset(running=random.random() < 0.5)
        one.step()
    one.run()
    for request in one.finished:
        if request.status == "finished":
            found += one.check(request)
            checked += 1
    assert checked > 10
    return one, found


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_what_was_routed(mode: str, seed: int) -> None:
    counts = Counter[str]()
    for seed in range(seed, seed + 4):
        one, found = drive(seed, mode)
        assert not one.half.failure and not one.worker.failure, seed
        assert not found["wrong"] and not found["missing"], (seed, found)
        assert one.worker.store is not None
        stats = one.worker.store.stats()
        assert stats.releases_below_zero == stats.binds_with_users == 0, seed
        counts += found + one.counts
    assert counts["right"] > 300 and counts["hits"] > 50
    for what, kind in (("preemptions", "blocks"), ("rejected", "drafts"), ("copies", "parts")):
        assert counts[what] or kind not in MODES[mode] or MODES[mode][kind] in (40, 36), what
    assert bool(counts["loaded"]) == bool(counts["external"]) == (mode == "loads")


# What is left out of the adapter, and the mode that has to notice.
FAULTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], Any]]] = {
    "bind": ("few blocks", lambda patch: patch.setattr(_worker.Capture, "bind", nothing)),
    "copy": ("parts", lambda patch: patch.setattr(_worker.Capture, "copy", nothing)),
    "retain": ("plain", lambda patch: patch.setattr(_worker.Capture, "retain", nothing)),
    "take again": ("plain", lambda patch: patch.setattr(
        _worker.WorkerConnector, "_read", without_second_take)),
    "unknown is known": ("loads", lambda patch: [patch.setattr(
        _scheduler.SchedulerConnector, name, lambda *_: True) for name in ("_is", "_hear_of_loads")]),
    "rejected": ("drafts ahead", lambda patch: patch.setattr(
        _worker.Pending, "enqueue_cpu_copy", with_rejected)),
    "cursor": ("drafts ahead", lambda patch: patch.setattr(_worker.np, "minimum", lambda a, b: a)),
    "grown": ("few blocks", lambda patch: patch.setattr(
        _scheduler.SchedulerConnector, "_grow", nothing)),
    "release": ("few blocks", lambda patch: patch.setattr(_worker.Capture, "release", nothing)),
    "order": ("ahead", lambda patch: patch.setattr(
        _worker.WorkerConnector, "_begin", out_of_order)),
}  # fmt: skip


def nothing(*_: Any, **__: Any) -> None:
    pass


def without_second_take(self: Any, head: Any) -> Any:
    return read(self, head._replace(reads=head.reads[:1]))


read = _worker.WorkerConnector._read


def with_rejected(self: Any, num_sampled: Any, num_rejected: Any) -> None:
    self.sampled, self.rejected = num_sampled, num_rejected * 0
    self.ids = self._ids.to("cpu").numpy()


def out_of_order(self: Any, schedule: Any) -> None:
    self._open = schedule.rows > 0
    self._queue.append(schedule)
    self._queue.remove(schedule)
    self._hear(schedule)
    self._queue.append(type(schedule)(schedule.generation, schedule.version))


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mode, leave_out = FAULTS[fault]
    leave_out(monkeypatch)
    for seed in range(20):
        try:
            one, found = drive(seed, mode)
        except (AssertionError, KeyError):
            return
        assert one.worker.store is not None
        if found["wrong"] or found["missing"] or one.half.failure or one.worker.failure:
            return
        stats = one.worker.store.stats()
        if stats.releases_below_zero or stats.binds_with_users:
            return
    raise AssertionError(f"nothing noticed {fault}")


def one_request(engine: Engine, prompt: int = 30, output: int = 5, **more: Any) -> Any:
    request = engine.add(list(range(prompt)), output, **more)
    engine.run()
    return request


def test_a_layer_that_writes_nothing_is_missing() -> None:
    engine = Engine(1)
    one_request(engine)
    engine.silent = True
    request = engine.add(list(range(20, 40)), 5)
    engine.run()
    array = np.concatenate(request.rows)
    assert coverage(array) == [Run(0, 20, Reason.NOT_CAPTURED), Run(20, 24, Reason.NONE)]
    # Their blocks are not hit any more: the rows are computed again.
    again = one_request(engine, name="again")
    assert engine.check(again) == {"right": 34}
    third = engine.add(list(range(20, 40)), 5)
    engine.run()
    assert engine.check(third) == {"right": 24}


@pytest.mark.parametrize("half", ["scheduler", "worker", "output"])
def test_a_failure_ends_the_capture_until_the_next_reset(
    half: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(2)
    before = one_request(engine)

    def fails(*_: Any) -> Any:
        raise RuntimeError("a bug")

    where = {"scheduler": (engine.half, "_start"), "worker": (engine.worker, "_hear"),
             "output": (engine.worker, "_step")}[half]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(*where, fails)
        during = one_request(engine, name="during")
    assert "capture ends: RuntimeError: a bug" in caplog.text
    after = one_request(engine, name="after")
    for request in (during, after):  # the engine goes on
        assert not request.rows or (np.concatenate(request.rows) < 0).all()
    assert engine.reset(running=False)
    assert not engine.half._requests  # those that ended meanwhile are forgotten
    again = one_request(engine, name="again")
    assert engine.check(before) == engine.check(again) == {"right": 34}
    assert "capture begins again" in caplog.text


def test_a_forward_without_an_output_ends_the_capture() -> None:
    engine = Engine(3)
    engine.add(list(range(20)), 5)
    engine.step()
    engine.worker.begin_step(engine.schedule().meta)
    engine.worker.begin_step(engine.schedule().meta)
    assert "nobody knows which KV it wrote" in engine.worker.failure


def test_a_name_that_comes_again_is_another_request() -> None:
    engine = Engine(4, ahead=2)
    old = engine.add([1] * 20, 9, name="same")
    for _ in range(4):
        engine.step()
    engine.end(old, "aborted")
    new = engine.add([2] * 20, 9, name="same")
    engine.run()
    assert engine.check(new) == {"right": 28}


def test_an_output_that_does_not_come_is_missing_rows() -> None:
    engine = Engine(5)
    request = engine.add(list(range(20)), 5)
    engine.step()
    taken = engine.half.take_output(request, None)
    engine.step()
    assert taken is None  # all rows so far were returned
    request.tokens.append(1)
    assert (engine.half.take_output(request, None) < 0).all()  # type: ignore[operator]


def test_rows_of_all_layers() -> None:
    engine = Engine(6, options=Options(layers="all"))
    one_request(engine)
    request = one_request(engine, name="again")
    array = np.concatenate(request.rows)
    assert array.shape == (34, MODEL_LAYERS, TOP_K) and not array[:, 0].any()
    request.rows = [array[:, 1:]]
    assert engine.check(request) == {"right": 34}


def test_counters_are_among_those_of_prometheus() -> None:
    engines = [Engine(8), Engine(9)]
    for engine in engines:
        engine.worker._exported._every = 0.0
        one_request(engine)
        engine.silent = True
        one_request(engine, name="silent")
        assert engine.worker.store is not None
        engine.worker.store.wait_idle(10)
        engine.worker._exported.update(engine.worker.store.stats)
    found = {name: counter.values for name, counter in _metrics._exported.items()}
    stats = [engine.worker.store.stats() for engine in engines if engine.worker.store]
    assert found["steps_begun"][""] == sum(one.steps_begun for one in stats) > 0
    reason = str(Reason.NOT_CAPTURED)
    assert found["rows_missing"][reason] == sum(one.missing[Reason.NOT_CAPTURED] for one in stats) > 0


def test_coverage_of_arrays() -> None:
    array = np.zeros((6, 2, 2), np.int16)
    array[1:3], array[5] = -1, -1 - Reason.EXTERNAL_KV
    assert coverage(array) == [
        (0, 1, Reason.NONE), (1, 3, Reason.NOT_TOLD), (3, 5, Reason.NONE),
        (5, 6, Reason.EXTERNAL_KV),
    ]  # fmt: skip
    assert coverage(array[:0]) == []
    with pytest.raises(waymark.InvalidArgumentError, match=r"array: \[tokens, layers, K\]"):
        coverage(array[0])


def test_halves_pass_vllms_ray_executor() -> None:
    """It replaces `rows` of each value by an array that may be written."""
    output = Output(["a"], [1], [0], [2], np.zeros((2, 1, 1), np.uint8), {}, [])
    for one in output.values():
        one.rows = one.rows + 1
    token, rows = pickle.loads(pickle.dumps(output)).of(0)
    assert token == 0 and (rows == 1).all()


def test_rows_that_are_not_read_in_time_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(7)
    one_request(engine)

    def late(self: Any, timeout: float | None = None) -> Any:
        raise waymark.DeadlineExceededError("late")

    monkeypatch.setattr(_worker.Taken, "result", late)
    monkeypatch.setattr(_worker.Taken, "done", lambda self: False)
    again = one_request(engine, name="again")
    assert coverage(np.concatenate(again.rows)) == [
        (0, 24, Reason.CAPACITY), (24, 34, Reason.NONE)]  # fmt: skip
    assert not engine.worker.failure
