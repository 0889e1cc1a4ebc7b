"""Rows as users see them: ``routed_experts`` and ``waymark`` of vLLM's outputs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from .._coverage import Coverage
from .._handle import Handle
from .._rows import _runs
from .._versions import WeightVersions
from ._hooks import Function, argument, around, logger, wrap
from ._options import KEY, may_stop_at_string
from ._results import COVERAGE, LIFE, VERSIONS


def coverage(headers: Any, rows: Any = None) -> Coverage | None:
    """What the trace_headers of an EngineCoreOutput have. rows: of the same; of rows that were
    published the handle, which has one dimension."""
    if not headers or COVERAGE not in headers:
        return None
    runs, layer_ids, failure = json.loads(headers[COVERAGE])
    versions = WeightVersions(json.loads(headers[VERSIONS]))
    handle = Handle(rows.tobytes()) if rows is not None and rows.ndim == 1 else None
    return Coverage(tuple(_runs(runs, versions)), tuple(layer_ids), failure, handle)


def _first(given: Coverage, rows: int) -> Coverage:
    """The coverage of the request's first rows."""
    runs = [run._replace(end=min(run.end, rows)) for run in given.runs if run.begin < rows]
    return given._replace(runs=tuple(runs))


def _give_coverage(state: Any, given: Coverage) -> None:
    """The last CompletionOutput of a request gets its coverage, and the handle for its rows; the
    RequestOutput with it has the handle beside what a KV connector says."""
    make = state._new_completion_output

    def make_with_coverage(*args: Any, **kwargs: Any) -> Any:
        completion = make(*args, **kwargs)
        completion.waymark = given
        if given.handle is not None:
            completion.routed_experts = np.frombuffer(given.handle, np.uint8)
        return completion

    def make_with_handle(*args: Any, **kwargs: Any) -> Any:
        output = make_output(*args, **kwargs)
        more = {KEY: base64.b64encode(given.handle or b"").decode()}
        output.kv_transfer_params = {**(output.kv_transfer_params or {}), **more}
        return output

    state._new_completion_output = make_with_coverage
    if given.handle is not None:
        make_output = state._new_request_output
        state._new_request_output = make_with_handle


class _StopString:
    """Of the RequestState of a request that may end at a stop string. Only the front end finds one,
    and the engine core has the rows: the last output is made when it has sent them."""

    __slots__ = ("make", "may_come", "prompt_start")

    def __init__(self, prompt_start: int) -> None:
        self.prompt_start = prompt_start
        self.may_come = True
        self.make: Callable[[], Any] | None = None  # makes the last output, which waits

    def finish(self, state: Any, output: Any) -> Any:
        """The last RequestOutput, or None. output: the engine core's last one, which may have had
        more tokens when it was told to end."""
        make, self.make = self.make, None
        try:
            rows = state.prompt_len + state.detokenizer.num_output_tokens() - 1
            given = coverage(output.trace_headers, output.routed_experts)
            if output.routed_experts is not None:
                count = max(rows - self.prompt_start, 0)
                state.routed_experts_chunks[:] = [output.routed_experts[:count]]
            if given is not None:
                _give_coverage(state, _first(given, rows))
        except Exception:
            logger.exception("waymark: the rows of an output are lost")
        return make() if make is not None else None


def _stop_string(state: Any) -> _StopString | None:
    stop: _StopString | None = getattr(state, "_waymark", None)
    return stop


def hook(processor: type, state: type, outputs: Any) -> None:
    """Adds ``waymark`` to CompletionOutput, and rows to requests that end at a stop string.
    processor: OutputProcessor; state: RequestState; outputs: vllm.outputs."""
    if not hasattr(outputs.CompletionOutput, "waymark"):
        outputs.CompletionOutput.waymark = None
    wrap(outputs.RequestOutput, "add", around(_add))
    wrap(processor, "add_request", around(_add_request))
    wrap(processor, "process_outputs", _process_outputs)
    wrap(processor, "_finish_request", around(_finish_request))
    wrap(state, "make_request_output", around(_make_request_output))


def serve(processor: Any) -> None:
    """The OutputProcessor is of an engine that is captured: a process may have others, too."""
    processor._waymark = set()


def _add(call: Function, output: Any, next_output: Any) -> Any:
    """A stream's consumer is late: outputs are merged. vLLM 0.30 loses the rows then."""
    result = call()
    for one in next_output.outputs:
        for other in output.outputs:
            if other.index == one.index and one.waymark is not None:
                other.waymark, other.routed_experts = one.waymark, one.routed_experts
    return result


def _add_request(call: Function, processor: Any, request: Any) -> Any:
    waiting = _waiting(processor)
    if waiting is None:
        return call()
    goes_on = request.request_id in processor.request_states  # a session with new input
    result = call()
    try:
        params = request.sampling_params
        if not goes_on:
            waiting.discard(request.request_id)  # of a former request of this name
            state = processor.request_states[request.request_id]
            state._waymark_life = repr(request.arrival_time)
        if not goes_on and may_stop_at_string(params, request.resumable):
            state._waymark = _StopString(getattr(params, "routed_experts_prompt_start", 0) or 0)
    except Exception:
        logger.exception("waymark: a request has no rows if it ends at a stop string")
    return result


def _make_request_output(call: Function, state: Any, stop_reason: Any) -> Any:
    stop = _stop_string(state)
    if stop is not None and stop.may_come and isinstance(stop_reason, str):
        stop.may_come = False
        stop.make = call
        return None
    return call()


def _finish_request(call: Function, processor: Any, req_state: Any) -> Any:
    waiting = _waiting(processor)
    if waiting is not None:
        stop = _stop_string(req_state)
        if stop is not None and stop.make is not None:  # needed until the rows are there
            waiting.add(req_state.request_id)
            return None
    return call()


def _waiting(processor: Any) -> set[str] | None:
    """The requests that ended at a stop string and have no rows yet. None: of another engine."""
    names: set[str] | None = getattr(processor, "_waymark", None)
    return names


def _process_outputs(function: Any) -> Any:
    given = argument(function, "engine_core_outputs")

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        waiting = _waiting(self)
        if waiting is None:
            return function(self, *args, **kwargs)
        every = given(args, kwargs)
        ends = [one for one in every if one.finish_reason is not None]
        late = [one for one in ends if one.request_id in waiting and _lives(self, one)]
        apart = {id(one) for one in ends if one.request_id in waiting or not _lives(self, one)}
        if waiting or apart:  # outputs without an end are of tokens behind the stop string
            outputs = [
                one for one in every if one.request_id not in waiting and id(one) not in apart
            ]
            args, kwargs = given.put(outputs, args, kwargs)
        for output in ends:
            if id(output) not in apart:
                _ended(self.request_states.get(output.request_id), output)
        result = function(self, *args, **kwargs)
        for output in late:
            waiting.discard(output.request_id)
            state = self.request_states.get(output.request_id)
            stop = _stop_string(state)
            if stop is None:  # a user aborted it
                continue
            made = stop.finish(state, output)
            self._finish_request(state)
            if made is not None and state.queue is not None:
                state.queue.put(made)
            elif made is not None:
                result.request_outputs.append(made)
        return result

    return call


def _lives(processor: Any, output: Any) -> bool:
    """Whether an output that waited for its rows is of the request that has its name now."""
    life = output.trace_headers.get(LIFE) if output.trace_headers else None
    state = processor.request_states.get(output.request_id) if life is not None else None
    return state is None or getattr(state, "_waymark_life", life) == life


def _ended(state: Any, output: Any) -> None:
    """The engine core has ended a request."""
    stop = _stop_string(state)
    if stop is not None:
        stop.may_come = False
    try:
        given = coverage(output.trace_headers, output.routed_experts)
        if state is not None and given is not None:
            _give_coverage(state, given)
            if output.routed_experts is not None:  # instead of vLLM's own capture's
                state.routed_experts_chunks.clear()
            if given.handle is not None:  # vLLM may take off the rows behind a stop string
                output.routed_experts = None
    except Exception:
        logger.exception("waymark: the coverage of an output is lost")
