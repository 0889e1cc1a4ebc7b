"""An engine that publishes: outputs have handles in place of rows, on the tiny engine."""

from __future__ import annotations

import base64
import json
import threading
import time
import types
from typing import Any

import numpy as np
import pytest
import waymark
from test_vllm_results import FrontEnd
from vllm_engine import ABORTED, Engine, expected, lose_rows, vllm
from waymark import FailedPreconditionError, Handle, Reason
from waymark._source_url import source_of
from waymark.vllm import _hooks, _options, _publish
from waymark.vllm._exchange import Result
from waymark.vllm._options import Options
from waymark.vllm._scheduler import SchedulerHalf

__all__ = ["vllm"]  # a fixture for every test

URL = "redis://a:secret@127.0.0.1:1/0"


class Source:
    """Objects in a dict. `fails` is raised by put; `goes` may stop it."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.fails: Exception | None = None
        self.goes = threading.Event()
        self.goes.set()

    def get(self, digests: list[bytes], timeout: float) -> list[Any]:
        return [self.objects.get(digest) for digest in digests]

    def holds(self, digests: list[bytes], timeout: float) -> list[bool]:
        return [digest in self.objects for digest in digests]

    def put(self, objects: list[tuple[bytes, bytes]], timeout: float) -> None:
        assert self.goes.wait(60)
        if self.fails is not None:
            raise self.fails
        self.objects.update(objects)


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> Any:
    one = Source()
    monkeypatch.setattr(_publish, "source_of", lambda url: one)
    yield one
    one.goes.set()


def front_end(seconds: float = 60.0, **more: Any) -> FrontEnd:
    return FrontEnd(Options(publish=URL, publish_seconds=seconds, **more))


def fetched(source: Source, completion: Any, rows: int) -> Any:
    """The first rows that the handle of an output names."""
    handle = Handle(completion.routed_experts.tobytes())
    assert completion.routed_experts.dtype == np.uint8 and completion.routed_experts.ndim == 1
    assert completion.waymark.handle == handle
    return waymark.Fetcher(source).fetch(handle, 0, rows)


def drain(engine: Engine) -> None:
    """Without other work, until every output is there."""
    for _ in range(10_000):
        if not engine.scheduler.has_finished_requests():
            return
        engine.step({})
    raise AssertionError("outputs are held")


def done(front: FrontEnd) -> None:
    drain(front.engine)
    front.drain()


def publications(engine: Engine) -> Any:
    return engine.runner._waymark.publications


def test_an_output_has_the_handle_of_its_rows(source: Source) -> None:
    for layers in ("moe", "all"):
        front = front_end(layers=layers)
        front.add("a", 6, start=2)  # the handle names all rows
        front.engine.step({"a": 6})
        front.engine.step({"a": 1}, finish=("a",))
        drain(front.engine)
        assert front.engine.finished["a"].routed_experts.nbytes < 200
        front.engine.finished["a"].kv_transfer_params = {"remote": 1}
        front.drain()
        one = front.completion("a")
        rows = fetched(source, one, 7)
        assert (rows.ids == expected(0, 7)).all() and rows.valid.all()
        assert Handle(one.routed_experts.tobytes()).rows == 7
        assert one.waymark.complete and one.waymark.runs[0].version_name == "default"
        params = front.done["a"].kv_transfer_params
        assert params.pop("remote") == 1
        assert base64.b64decode(params.pop("waymark")) == one.waymark.handle and not params
        with pytest.raises(FailedPreconditionError, match="fetch the handle"):
            one.waymark.rows(one.routed_experts, num_experts=128)


def test_the_lives_of_a_request_are_joined_before_they_are_published(source: Source) -> None:
    for ends in ("running", "preempted"):
        engine = Engine(Options(publish=URL, publish_seconds=60)).begin(a=6, b=3)
        a = engine.scheduler.requests["a"]
        engine.scheduler._preempt_request(a)
        for _ in range(2):
            engine.step({})  # the worker has read the first life
        assert publications(engine)._read and not publications(engine)._open
        engine.shift = 20
        engine.step({"a": a.num_tokens})
        if ends == "preempted":
            engine.scheduler._preempt_request(a)
            engine.step({}, finish=("a",))
        else:
            engine.step({"a": 1}, finish=("a",))
        while "a" not in engine.finished:
            engine.step({"b": 1})  # decodes alone, which have no message
            time.sleep(0.01)
        count = 7 if ends == "preempted" else 8
        handle = engine.rows("a").tobytes()
        rows = waymark.Fetcher(source).fetch(handle)
        assert len(rows) == count and (rows.ids[:6] == expected(0, 6)).all()
        assert (rows.ids[6:] == expected(6, count, 20)).all()
        assert not publications(engine)._read and not engine.scheduler._waymark._results


def test_a_life_whose_rows_are_lost_is_missing_behind_the_others(source: Source) -> None:
    engine = Engine(Options(publish=URL, publish_seconds=60)).begin(a=6)
    a = engine.scheduler.requests["a"]
    engine.scheduler._preempt_request(a)
    engine.step({})
    engine.step({"a": a.num_tokens})
    lose_rows(engine)
    engine.step({"a": 1}, finish=("a",))
    drain(engine)
    rows = waymark.Fetcher(source).fetch(engine.rows("a").tobytes())
    assert (rows.ids[:6] == expected(0, 6)).all() and len(rows) == 8
    assert not rows.valid[6:].any() and "in time" in engine.coverage("a").failure


def test_rows_of_one_life_are_published_as_they_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are copied on the engine's thread."""
    published: list[Any] = []
    publish = waymark.Publisher.publish

    def call(self: Any, rows: Any) -> Any:
        published.append(rows._native_rows is not None)
        return publish(self, rows)

    monkeypatch.setattr(waymark.Publisher, "publish", call)
    engine = Engine(Options(publish=URL, publish_seconds=60)).begin(a=6)
    engine.step({"a": 1}, finish=("a",))
    drain(engine)
    assert published == [True]


def test_no_rows_go_to_the_engine_core(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    outputs = SchedulerHalf.outputs

    def take(half: Any, schedule: Any, results: Any, of_clients: Any) -> None:
        given.extend(results)
        outputs(half, schedule, results, of_clients)

    monkeypatch.setattr(SchedulerHalf, "outputs", take)
    engine = Engine(Options(publish=URL, publish_seconds=60)).begin(a=6)
    engine.step({"a": 1}, finish=("a",))
    drain(engine)
    assert [one.rows for one in given] == [None]


def test_an_aborted_request_publishes_nothing(source: Source) -> None:
    engine = Engine(Options(publish=URL)).begin(a=6, b=3)
    a = engine.scheduler.requests["a"]
    engine.scheduler._preempt_request(a)
    engine.step({"b": 1})
    a.status = ABORTED
    engine.scheduler._free_request(a)
    engine.step({"b": 1})
    engine.step({})  # which waits for what is read
    half = publications(engine)
    assert not source.objects and not (half._read or half.waits) and not half.stats()


def test_a_turn_puts_its_new_pages_alone(source: Source) -> None:
    engine = Engine(Options(publish=URL, publish_seconds=60))
    first = engine.request("a", 15, hashes=16)
    engine.step({"a": 15})
    engine.step({"a": 1}, finish=("a",))  # 16 rows: four pages
    drain(engine)
    before = publications(engine).stats()
    engine.request("b", 21, hashes=16, hits=first.blocks[:4])
    engine.step({"b": 5})
    engine.step({"b": 1}, finish=("b",))  # 22 rows: one more page, and a tail
    drain(engine)
    after = publications(engine).stats()
    assert after["objects_held"] - before["objects_held"] == 4
    assert after["objects_put"] - before["objects_put"] == 3  # with the node
    rows = waymark.Fetcher(source).fetch(engine.rows("b").tobytes())
    assert (rows.ids == expected(0, 22)).all()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_output_says_that_its_rows_are_not_stored(source: Source) -> None:
    source.fails = OSError("the disk is full")
    front = front_end().begin(stop=())
    front.engine.step({"a": 1}, finish=("a",))
    done(front)
    one = front.completion("a")
    assert "not all rows were stored" in one.waymark.failure and "full" in one.waymark.failure
    assert not one.waymark.complete and not one.waymark.missing
    rows = fetched(source, one, 7)
    assert set(rows.reasons) == {Reason.CAPACITY}


def test_a_source_that_hangs_delays_no_step_and_loses_no_output(source: Source) -> None:
    source.goes.clear()
    front = front_end(seconds=0.05)
    for name in ("a", "b"):
        front.add(name, 6)
    front.add("c", 3)
    front.engine.step({"a": 6, "b": 6, "c": 3})
    front.engine.step({"a": 1, "b": 1, "c": 1}, finish=("a", "b"))
    front.engine.step({"c": 1})  # goes on
    done(front)
    for name in ("a", "b"):
        one = front.completion(name)
        assert one.waymark.failure == "the rows were not stored in 0.05 s"
        assert Handle(one.routed_experts.tobytes()).rows == 7
    source.goes.set()
    front.engine.step({"c": 1}, finish=("c",))
    done(front)
    if not front.completion("c").waymark.failure:
        assert (fetched(source, one, 7).ids == expected(0, 7)).all()  # stored by now


def test_the_handle_of_a_request_that_ends_at_a_stop_string_names_more_rows(source: Source) -> None:
    front = front_end().begin()
    front.tokens(a=5)
    for _ in range(2):  # async scheduling: the front end is a token behind
        front.engine.step({"a": 1})
    front.tokens(a=7)
    done(front)
    one = front.completion("a")
    assert one.stop_reason == "word 7" and one.waymark.runs[-1].end == 7
    assert Handle(one.routed_experts.tobytes()).rows == 8
    assert (fetched(source, one, 7).ids == expected(0, 7)).all()
    assert "waymark" in front.done["a"].kv_transfer_params


def test_a_stop_string_in_the_last_output_of_the_engine_core_cuts_no_handle(source: Source) -> None:
    """vLLM takes the rows of the tokens that it drops off the end of the array."""
    front = front_end()
    front.add("a", 6, stop=(7,))
    front.engine.step({"a": 6}, finish=("a",))
    drain(front.engine)
    last = front.engine.finished.pop("a")
    last.new_token_ids = [7]
    front.process([last])
    assert last.routed_experts is None
    assert (fetched(source, front.completion("a"), 6).ids == expected(0, 6)).all()


def test_rows_that_are_lost_have_a_reason_and_no_handle(source: Source) -> None:
    engine = Engine(Options(publish=URL)).begin(a=6)
    lose_rows(engine)
    engine.step({"a": 1}, finish=("a",))
    drain(engine)
    assert engine.rows("a") is None and "in time" in engine.coverage("a").failure


def test_a_publisher_that_cannot_be_made_costs_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_publish, "source_of", lambda url: object())  # neither get nor put
    front = front_end().begin(stop=())
    front.engine.step({"a": 1}, finish=("a",))
    done(front)
    assert front.completion("a").routed_experts is None
    assert "TypeError" in front.completion("a").waymark.failure


def test_lives_are_forgotten_when_the_capture_begins_again(source: Source) -> None:
    engine = Engine(Options(publish=URL)).begin(a=6, b=3)
    a = engine.scheduler.requests["a"]
    engine.scheduler._preempt_request(a)
    engine.step({})  # which waits for what is read
    assert publications(engine)._read
    engine.scheduler._waymark.fail(RuntimeError("a test"))
    engine.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()
    engine.scheduler._preempt_request(engine.scheduler.requests["b"])
    engine.step({})
    engine.step({})
    assert not publications(engine)._read and not publications(engine).waits


def test_a_handle_that_could_not_be_sent_comes_again() -> None:
    half = _publish.Publications(URL, 1)
    handle = Result(1, None, True, "", "", b"handle")
    assert half.results([handle], False) == (handle,) and not half.waits


@pytest.mark.parametrize("given, why", [
    ({"publish": "http://a:secret@host"}, "redis://"), ({"publish": "redis://a:secret@h/x"}, "redis://"),
    ({"publish": 3}, "URL"), ({"publish": URL, "publish_seconds": 0}, "publish_seconds"),
    ({"publish": URL, "publish_seconds": True}, "publish_seconds"), ({"publish": URL, "no": 1}, "options"),
])  # fmt: skip
def test_wrong_options_are_refused_without_the_password(
    given: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = types.SimpleNamespace(additional_config={"waymark": given})
    for environment in (False, True):
        if environment:
            config = types.SimpleNamespace(additional_config={})
            monkeypatch.setenv("WAYMARK_VLLM", "1")
            monkeypatch.setenv("WAYMARK_VLLM_OPTIONS", json.dumps(given))
        with pytest.raises(_hooks.Refused, match=why) as refused:
            _options.of(config)
        assert "secret" not in str(refused.value)
