"""Rows in the engine core: what an EngineCoreOutput carries to the front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._rows import Rows, join
from ._exchange import Result, coverage_text
from ._hooks import module

# In trace_headers, which stock vLLM passes from engine core to front end.
COVERAGE = "waymark"
VERSIONS = "waymark-versions"
LIFE = "waymark-life"  # of an output that waited: its request's arrival; names may come again

Life = tuple["Result | None", int]


def joined(lives: Sequence[Life]) -> tuple[Rows | None, str]:
    """The rows of all lives, the first life first: its rows are those behind the tokens."""
    parts = [
        one.rows.resized(min(limit, len(one.rows)))
        for one, limit in lives
        if one and one.rows and limit > 0
    ]
    failures = [one.failure if one else "the worker sent no rows in time" for one, _ in lives]
    failure = next(filter(None, failures), "")
    if not parts:
        return None, failure or "nothing was computed"
    return (parts[0] if len(parts) == 1 else join(*parts)), failure


def _array(rows: Rows, layers: int) -> npt.NDArray[Any]:
    """[rows, L, K], in the smallest type of vLLM's own that holds the ids; int16 with -1 for
    missing rows. layers > 0: of all layers of the model; dense ones are zeros."""
    complete = bool(rows.valid.all())
    ids = np.array(rows.ids) if complete else rows.astype(np.int16, fill="minus_one")
    if not layers:
        return ids
    every = np.zeros((len(rows), layers, rows.shape.top_k), ids.dtype)
    every[:, list(rows.shape.layer_ids)] = ids
    return every


def fill(
    output: Any, request: Any, lives: Sequence[Life], count: int, versions: str, num_layers: int
) -> None:
    """Fills ``routed_experts`` of an EngineCoreOutput with `count` rows, and puts their coverage
    beside it. versions: the names of the weights, as JSON. num_layers: of ``routed_experts``;
    0: the layers with routers."""
    start = getattr(request.sampling_params, "routed_experts_prompt_start", 0)
    array: npt.NDArray[Any] | None = None
    one = lives[0][0] if len(lives) == 1 else None
    if one and one.handle is not None:
        text, start = one.coverage, 0
        array = np.frombuffer(one.handle, np.uint8) if one.handle else None
    elif not num_layers and one and one.complete and one.rows and len(one.rows) == count:
        array, text = one.rows.ids, one.coverage
    else:
        rows, failure = joined(lives)
        if rows is not None:
            rows = rows.resized(count)
            array = _array(rows, num_layers)
        text = coverage_text(rows, failure)
    output.routed_experts = array[start:] if start and array is not None else array
    _give_coverage(output, request, text, versions)


def fill_failure(output: Any, request: Any, failure: str) -> None:
    """An EngineCoreOutput without rows, with the reason."""
    _give_coverage(output, request, coverage_text(None, failure), "[]")


def _give_coverage(output: Any, request: Any, text: str, versions: str) -> None:
    headers = {COVERAGE: text, VERSIONS: versions, LIFE: repr(request.arrival_time)}
    output.trace_headers = {**output.trace_headers, **headers} if output.trace_headers else headers


def stopped_output(request: Any) -> Any:
    """The EngineCoreOutput of a request that the front end ended."""
    return module("vllm.v1.engine").EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=[],
        finish_reason=request.get_finished_reason(),
        trace_headers=request.trace_headers,
    )


def add_output(outputs: dict[int, Any], client: int, output: Any) -> None:
    """Adds an EngineCoreOutput to a client's."""
    if client not in outputs:
        outputs[client] = module("vllm.v1.engine").EngineCoreOutputs()
    outputs[client].outputs.append(output)
