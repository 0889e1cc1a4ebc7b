"""What users of vLLM get in every case, on the tiny engine."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import numpy as np
import pytest
from vllm_engine import ABORTED, Engine, EngineCoreOutput, Request, expected, lose_rows, vllm
from waymark import Provenance, Reason
from waymark.vllm import Coverage, _front_end
from waymark.vllm._options import Options

__all__ = ["vllm"]  # a fixture for every test


# -- the front end: as much of vLLM's as the hooks meet ---------------------------------------
class Completion:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class RequestOutput:
    def __init__(
        self, request_id: str, outputs: list[Any], finished: bool, kv_transfer_params: Any = None
    ) -> None:
        self.request_id, self.outputs, self.finished = request_id, outputs, finished
        self.kv_transfer_params = kv_transfer_params

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        for one in next_output.outputs:
            self.outputs[one.index].tokens += one.tokens


class Detokenizer:
    def __init__(self, stop: list[int]) -> None:
        self.stop, self.tokens = stop, []  # type: ignore[var-annotated]

    def num_output_tokens(self) -> int:
        return len(self.tokens)


class State:
    def __init__(self, request: Any, queue: Any) -> None:
        self.request_id, self.queue = request.request_id, queue
        self.prompt_len = request.prompt_len
        self.detokenizer = Detokenizer(request.sampling_params.stop)
        self.routed_experts_chunks: list[Any] = []

    def make_request_output(
        self, new_token_ids: Any, pooling_output: Any, finish_reason: Any, stop_reason: Any,
        kv_transfer_params: Any = None,
    ) -> Any:  # fmt: skip
        if finish_reason is None:
            return None
        one = self._new_completion_output(finish_reason, stop_reason)
        return self._new_request_output(self.request_id, [one], True, kv_transfer_params)

    def _new_request_output(self, *values: Any) -> Any:
        return RequestOutput(*values)

    def _new_completion_output(self, finish_reason: Any, stop_reason: Any) -> Any:
        rows = np.concatenate(self.routed_experts_chunks) if self.routed_experts_chunks else None
        return Outputs.CompletionOutput(
            index=0, tokens=self.detokenizer.tokens, routed_experts=rows,
            finish_reason=finish_reason, stop_reason=stop_reason)  # fmt: skip


class Processor:
    def __init__(self) -> None:
        self.request_states: dict[str, State] = {}

    def add_request(self, request: Any, prompt: Any = None, queue: Any = None) -> None:
        self.request_states[request.request_id] = State(request, queue)

    def process_outputs(self, engine_core_outputs: Any, timestamp: Any = None) -> Any:
        result = types.SimpleNamespace(request_outputs=[], reqs_to_abort=[])
        for output in engine_core_outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue
            if output.routed_experts is not None:
                state.routed_experts_chunks.append(output.routed_experts)
            finish, reason = output.finish_reason, None
            for token in output.new_token_ids:
                state.detokenizer.tokens.append(token)
                if token in state.detokenizer.stop:
                    finish, reason = "stop", f"word {token}"
                    break
            made = state.make_request_output(
                output.new_token_ids, None, finish, reason,
                getattr(output, "kv_transfer_params", None),
            )  # fmt: skip
            if made is not None and state.queue is not None:
                state.queue.put(made)
            elif made is not None:
                result.request_outputs.append(made)
            if finish is not None:
                self._finish_request(state)
                if output.finish_reason is None:
                    result.reqs_to_abort.append(output.request_id)
        return result

    def _finish_request(self, req_state: State) -> None:
        del self.request_states[req_state.request_id]


class Outputs:
    CompletionOutput: Any
    RequestOutput: Any


class FrontEnd:
    """The processor with its hooks, and an engine core."""

    def __init__(self, options: Options = Options()) -> None:
        Outputs.CompletionOutput = type("CompletionOfTest", (Completion,), {})
        Outputs.RequestOutput = type("RequestOutputOfTest", (RequestOutput,), {})
        processor, state = type("P", (Processor,), {}), type("S", (State,), {})
        processor.add_request = lambda self, request, prompt=None, queue=None: (  # type: ignore
            self.request_states.setdefault(request.request_id, state(request, queue))
        )
        _front_end.hook(processor, state, Outputs)
        self.processor = processor()
        _front_end.serve(self.processor)
        self.engine = Engine(options)
        self.done: dict[str, Any] = {}

    def add(self, name: str, prompt: int, stop: tuple[int, ...] = (), queue: Any = None,
            start: int = 0, resumable: bool = False) -> Request:  # fmt: skip
        request = self.engine.request(name, prompt)
        request.resumable = resumable
        request.sampling_params.routed_experts_prompt_start = start
        request.sampling_params.stop = list(stop)
        request.prompt_len = prompt
        self.processor.add_request(request, queue=queue)
        return request

    def begin(self, **more: Any) -> FrontEnd:
        """Request a, whose prompt of 6 tokens has been computed. It stops at token 7."""
        self.add("a", 6, **{"stop": (7,), **more})
        self.engine.step({"a": 6})
        return self

    def tokens(self, **tokens: int) -> None:
        """Each request has a new token; those that end at it are aborted, as vLLM does."""
        self.process([EngineCoreOutput(request_id=name, new_token_ids=[token], finish_reason=None,
                                       trace_headers=None) for name, token in tokens.items()])  # fmt: skip

    def process(self, outputs: list[Any]) -> None:
        result = self.processor.process_outputs(outputs, 1.0)
        self.done.update((output.request_id, output) for output in result.request_outputs)
        for name in result.reqs_to_abort:
            self.abort(name)

    def abort(self, name: str) -> None:
        request = self.engine.scheduler.requests[name]
        request.status = ABORTED
        self.engine.scheduler._free_request(request)

    def drain(self) -> None:
        self.engine.drain()
        finished, self.engine.finished = self.engine.finished, {}
        for output in finished.values():
            output.__dict__.setdefault("new_token_ids", [])
        self.process(list(finished.values()))

    def completion(self, name: str) -> Any:
        return self.done[name].outputs[0]


def test_a_request_that_ends_at_a_stop_string_has_its_rows() -> None:
    front = FrontEnd()
    a = front.add("a", 6, stop=(7,))
    front.add("b", 3)
    front.engine.step({"a": 6, "b": 3})
    front.tokens(a=5, b=5)
    front.engine.step({"a": 1, "b": 1})
    front.engine.step({"a": 1, "b": 1})  # async scheduling: the front end is a token behind
    front.tokens(a=7, b=7)
    assert not front.done and "a" in front.processor.request_states
    assert a.request_id not in front.engine.scheduler.requests
    front.tokens(a=9)  # behind the stop string
    front.engine.step({"b": 1})
    front.drain()
    one = front.completion("a")
    assert (one.finish_reason, one.stop_reason, one.tokens) == ("stop", "word 7", [5, 7])
    assert (one.routed_experts == expected(0, 7)).all() and len(one.routed_experts) == 7
    assert one.waymark.complete and [(run.begin, run.end) for run in one.waymark.runs] == [(0, 7)]
    assert list(front.processor.request_states) == ["b"]
    assert not front.engine.scheduler._waymark._results


@pytest.mark.parametrize("stop", [(), (7,)])
def test_an_output_of_a_former_request_does_not_end_the_one_that_has_its_name(stop: Any) -> None:
    """With ids that are not made unique, 12 of 12 new requests ended with "abort", 11 of them with
    the rows of the former request."""
    front = FrontEnd().begin(stop=stop)
    if stop:
        front.tokens(a=7)
    else:
        front.engine.step({"a": 1}, finish=("a",))  # its output waits for its rows
    del front.processor.request_states["a"]  # its user aborts it
    front.engine.scheduler.started.discard("a")
    front.add("a", 3)
    front.drain()
    front.tokens(a=5)
    assert not front.done and "a" in front.processor.request_states
    front.engine.shift = 20
    front.engine.step({"a": 3}, finish=("a",))
    front.drain()
    assert (front.completion("a").routed_experts == expected(0, 3, 20)).all()
    assert front.completion("a").tokens == [5]


def test_a_stop_string_behind_rows_that_were_not_asked_for() -> None:
    front = FrontEnd().begin(start=4)
    front.engine.step({"a": 1})
    front.tokens(a=7)
    front.drain()
    assert (front.completion("a").routed_experts == expected(4, 6)).all()
    assert len(front.completion("a").routed_experts) == 2


def test_a_stop_string_in_a_stream_goes_to_the_queue() -> None:
    put: list[Any] = []
    front = FrontEnd().begin(queue=types.SimpleNamespace(put=put.append))
    front.tokens(a=7)
    assert not put
    front.drain()
    assert len(put) == 1 and (put[0].outputs[0].routed_experts == expected(0, 6)).all()


def test_a_stop_string_in_the_last_output_of_the_engine_core() -> None:
    front = FrontEnd()
    front.add("a", 6, stop=(7,))
    front.engine.step({"a": 6}, finish=("a",))
    front.engine.drain()
    last = front.engine.finished.pop("a")
    last.new_token_ids = [7]
    front.process([last])
    assert (front.completion("a").routed_experts == expected(0, 6)).all()
    assert not front.processor.request_states and front.completion("a").waymark.complete


def test_the_engine_core_ends_a_request_that_ended_at_a_stop_string() -> None:
    front = FrontEnd().begin()
    front.abort = lambda name: None  # type: ignore[method-assign]
    front.tokens(a=7)
    front.engine.step({"a": 1}, finish=("a",))  # before the abort has arrived
    front.drain()
    assert len(front.completion("a").routed_experts) == 6
    assert front.completion("a").stop_reason == "word 7"


def test_a_request_that_a_user_aborts_has_no_rows() -> None:
    front = FrontEnd().begin()
    del front.processor.request_states["a"]
    front.abort("a")
    front.drain()
    assert not front.done and not front.engine.scheduler._waymark._results


def test_the_last_input_of_a_session_does_not_make_it_wait_for_rows() -> None:
    front = FrontEnd()
    session = front.add("s", 6, stop=(7,), resumable=True)
    front.add("s", 6, stop=(7,))
    front.engine.add(session)  # the last input is resumable no more; the engine core's request is
    front.engine.step({"s": 6})
    front.tokens(s=7)
    assert front.completion("s").stop_reason == "word 7" and not front.processor.request_states
    assert not front.engine.scheduler.has_finished_requests()


def test_a_user_may_abort_a_request_that_waits_for_its_rows() -> None:
    front = FrontEnd().begin()
    front.add("b", 3)
    front.engine.step({"b": 3})
    front.tokens(a=7)
    del front.processor.request_states["a"]
    front.drain()
    assert not front.done
    front.engine.scheduler.started.discard("a")
    front.begin()  # the name again
    front.tokens(a=5, b=5)
    front.engine.step({"a": 1}, finish=("a",))
    front.drain()
    assert len(front.completion("a").routed_experts) == 7


def test_a_stop_string_when_the_capture_has_ended() -> None:
    for when in ("before", "after", "raises"):
        front = FrontEnd().begin()
        half = front.engine.scheduler._waymark
        if when == "before":
            half.fail(RuntimeError("a test"))
        if when == "raises":
            half._writer = None
        front.tokens(a=7)
        if when == "after":
            half.fail(RuntimeError("a test"))
        front.drain()
        one = front.completion("a")
        assert one.routed_experts is None and one.stop_reason == "word 7"
        assert one.waymark.failure and not one.waymark.complete


def test_a_failure_is_told_with_every_output() -> None:
    front = FrontEnd()
    front.add("a", 3)
    front.engine.request("b", 3, asked=False)
    front.engine.step({"a": 3, "b": 3})
    front.engine.scheduler._waymark.fail(RuntimeError("a test"))
    front.engine.step({"a": 1, "b": 1}, finish=("a", "b"))
    assert front.engine.finished["b"].trace_headers is None
    front.drain()
    assert front.completion("a").waymark == Coverage((), (), "RuntimeError: a test")


def test_rows_of_the_own_capture_of_vllm_are_replaced() -> None:
    """vLLM 0.30 sends them with every output."""
    for stop in ((), (7,)):
        front = FrontEnd().begin(stop=stop)
        own = EngineCoreOutput(request_id="a", new_token_ids=[7], finish_reason=None,
                               trace_headers=None, routed_experts=np.ones((6, 2, 1), np.uint8))  # fmt: skip
        front.process([own])
        if not stop:
            front.engine.step({"a": 1}, finish=("a",))
        front.drain()
        rows = 6 if stop else 7
        assert len(front.completion("a").routed_experts) == rows
        assert (front.completion("a").routed_experts == expected(0, rows)).all()


def test_outputs_that_are_merged_keep_their_rows() -> None:
    front = FrontEnd()
    make = partial(Outputs.CompletionOutput, index=0, routed_experts=None)
    first, last = (Outputs.RequestOutput("a", [make(tokens=[n])], False) for n in (1, 2))
    last.outputs[0].routed_experts, last.outputs[0].waymark = "rows", "coverage"
    first.add(last, aggregate=True)
    assert first.outputs[0].tokens == [1, 2]
    assert (first.outputs[0].routed_experts, first.outputs[0].waymark) == ("rows", "coverage")


# -- the engine core --------------------------------------------------------------------------
def test_a_block_that_is_full_when_its_request_ends_is_sealed() -> None:
    for end in ("finish", "preempt", "abort"):
        engine = Engine()
        a = engine.request("a", 7, hashes=16)
        engine.step({"a": 7})
        engine.step({"a": 1}, finish=("a",) if end == "finish" else ())  # fills the second block
        blocks = list(a.blocks)
        if end == "preempt":
            engine.scheduler._preempt_request(a)
        if end == "abort":
            a.status = ABORTED
            engine.scheduler._free_request(a)
        engine.step({})
        # Two binds, two seals, two releases.
        engine.runner._waymark.store.wait_idle(10)
        assert engine.runner._waymark.store.stats().events == 6, end
        engine.request("b", 12, hashes=16, hits=blocks)
        engine.shift = 20
        engine.last({"b": 4})
        assert (engine.rows("b")[:8] == expected(0, 8)).all()
        assert (engine.rows("b")[8:] == expected(8, 12, 20)).all() and engine.coverage("b").complete


def test_rows_of_a_full_block_outlive_pages_that_others_need() -> None:
    """Pages of blocks that no request can hit are evicted first."""
    engine = Engine(Options(store={"num_pages": 5}))
    a = engine.request("a", 7, hashes=16, asked=False)
    engine.step({"a": 7})
    engine.step({"a": 1}, finish=("a",))
    engine.request("c", 6, asked=False)
    engine.step({"c": 6}, finish=("c",))  # its second block is not full
    engine.request("d", 6, asked=False)
    engine.step({"d": 6})  # a page is evicted
    engine.request("b", 9, hashes=16, hits=a.blocks)
    engine.last({"b": 1})
    assert not engine.coverage("b").missing and (engine.rows("b") == expected(0, 9)).all()


@pytest.mark.parametrize("tokens", [1, 4, 5])
@pytest.mark.parametrize("prompt", [1, 4, 8, 9])
def test_prompts_of_one_token_and_of_whole_blocks(prompt: int, tokens: int) -> None:
    engine = Engine().ask(a=prompt)
    engine.step({"a": prompt}, finish=("a",) if tokens == 1 else ())
    for i in range(1, tokens):
        engine.step({"a": 1}, finish=("a",) if i == tokens - 1 else ())
    engine.drain()
    assert engine.rows("a").shape == (prompt + tokens - 1, 2, 1)
    assert (engine.rows("a") == expected(0, prompt + tokens - 1)).all()
    assert engine.coverage("a").complete


def test_samples_of_one_prompt_with_different_lengths() -> None:
    engine = Engine()
    first = engine.request("0_a", 9, hashes=16)
    engine.step({"0_a": 9})
    for name in ("1_a", "2_a"):  # hits of whole blocks, which all three use
        engine.request(name, 9, hashes=16, hits=first.blocks[:2])
    engine.step({"0_a": 1, "1_a": 1, "2_a": 1}, finish=("1_a",))
    engine.step({"0_a": 1, "2_a": 1}, finish=("0_a",))
    for _ in range(4):
        engine.step({"2_a": 1})
    engine.last({"2_a": 1})
    for name, rows in (("1_a", 9), ("0_a", 11), ("2_a", 15)):
        assert (engine.rows(name) == expected(0, rows)).all() and len(engine.rows(name)) == rows
    assert engine.runner._waymark.store.stats().releases_below_zero == 0


@pytest.mark.parametrize("start, rows", [(0, 7), (6, 1), (7, 0), (9, 0)])
def test_the_prompt_start_may_be_at_its_end_or_behind_it(start: int, rows: int) -> None:
    engine = Engine()
    engine.request("a", 6).sampling_params.routed_experts_prompt_start = start
    engine.step({"a": 6})
    engine.last({"a": 1})
    assert engine.rows("a").shape == (rows, 2, 1)
    assert (engine.rows("a") == expected(min(start, 7), 7)).all()


def test_a_request_that_is_preempted_twice_and_ends_while_it_is() -> None:
    engine = Engine().begin(a=6)
    a = engine.scheduler.requests["a"]
    engine.scheduler._preempt_request(a)
    engine.shift = 20
    engine.step({"a": a.num_tokens})
    engine.scheduler._preempt_request(a)
    engine.last({}, "a")
    rows = engine.rows("a")
    assert (rows[:6] == expected(0, 6)).all() and (rows[6:] == expected(6, 7, 20)).all()
    assert len(rows) == 7 and engine.coverage("a").complete


def test_a_session_of_streamed_input_has_no_rows_but_its_blocks_have() -> None:
    engine = Engine()
    session = engine.request("s", 6, hashes=16)
    session.resumable = True
    engine.step({"s": 6})
    engine.step({"s": 1})
    session.num_tokens = 12  # the next input
    engine.scheduler.started.discard("s")  # vLLM schedules it as a new request, with its blocks
    engine.step({"s": 5})
    blocks = list(session.blocks)
    engine.step({"s": 1}, finish=("s",))
    assert engine.rows("s") is None and engine.finished["s"].trace_headers is None
    engine.request("b", 13, hashes=16, hits=blocks)
    engine.last({"b": 1})
    assert not engine.coverage("b").missing and (engine.rows("b") == expected(0, 13)).all()
    assert {run.provenance for run in engine.coverage("b").runs} == {Provenance.HERE}


def test_rows_of_the_first_life_are_there_if_those_of_the_last_are_lost() -> None:
    """Filling up the rows raised: numpy joins arrays of row_info_dtype without its padding. So one
    lost read ended the capture, and no request had rows any more."""
    engine = Engine().begin(a=6)
    a = engine.scheduler.requests["a"]
    engine.scheduler._preempt_request(a)
    engine.step({})
    engine.step({"a": a.num_tokens})
    lose_rows(engine)
    engine.last({"a": 1})
    assert not engine.scheduler._waymark.failure
    assert (engine.rows("a")[:6] == expected(0, 6)).all() and (engine.rows("a")[6:] == -1).all()
    assert engine.coverage("a").missing == {Reason.NOT_CAPTURED: len(engine.rows("a")) - 6}
    assert "in time" in engine.coverage("a").failure
