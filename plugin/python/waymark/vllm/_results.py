"""Rows as users see them: ``routed_experts`` and ``waymark`` of vLLM's outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._rows import Rows, join
from .._types import CoverageRun, Provenance, Reason, row_info_dtype
from .._versions import WeightVersions
from ._exchange import Result, coverage_text
from ._hooks import logger, module, wrap

# In trace_headers, which stock vLLM passes from engine core to front end.
_COVERAGE = "waymark"
_VERSIONS = "waymark-versions"

Life = tuple["Result | None", int]


class Coverage(NamedTuple):
    """``outputs[i].waymark``: what ``outputs[i].routed_experts`` consists of."""

    runs: tuple[CoverageRun, ...]
    """Runs of rows with equal reason, version and provenance."""
    layer_ids: tuple[int, ...]
    """The model's number of each layer with a router."""
    failure: str
    """Why there are no rows, or rows are missing for no reason of the store; else empty."""

    @property
    def missing(self) -> dict[Reason, int]:
        """Missing rows by reason; they are -1 in ``routed_experts``, which is then int16."""
        counts: dict[Reason, int] = {}
        for run in self.runs:
            if not run.valid:
                counts[run.reason] = counts.get(run.reason, 0) + run.end - run.begin
        return counts

    @property
    def complete(self) -> bool:
        """Whether every row is there."""
        return bool(self.runs) and not self.failure and all(run.valid for run in self.runs)


# -- in the engine core -----------------------------------------------------------------------
def _clipped(rows: Rows, limit: int) -> Rows:
    if len(rows) <= limit:
        return rows
    ids, infos = np.ascontiguousarray(rows.ids[:limit]), np.ascontiguousarray(rows.infos[:limit])
    return Rows(rows.shape, rows.first, ids, infos, rows.ordered)


def _joined(lives: Sequence[Life]) -> tuple[Rows | None, str]:
    """The rows of all lives, the first life first: its rows are those behind the tokens."""
    parts = [_clipped(one.rows, limit) for one, limit in lives if one and one.rows and limit > 0]
    failures = [one.failure if one is not None else "the worker sent no rows in time" for one, _ in lives]
    failure = next(filter(None, failures), "")
    if not parts:
        return None, failure or "nothing was computed"
    return (parts[0] if len(parts) == 1 else join(*parts)), failure


def _padded(rows: Rows, count: int) -> Rows:
    """`count` rows; those behind the last are missing (not captured)."""
    if len(rows) >= count:
        return _clipped(rows, count)
    shape, short = rows.shape, count - len(rows)
    missing = np.zeros(short, row_info_dtype)
    missing["reason"] = int(Reason.NOT_CAPTURED)
    ids = np.zeros((short, shape.num_layers, shape.top_k), shape.id_dtype)
    return Rows(
        shape,
        rows.first,
        np.concatenate([rows.ids, ids]),
        np.concatenate([rows.infos, missing]),
        rows.ordered,
    )


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
    output: Any,
    request: Any,
    lives: Sequence[Life],
    count: int,
    versions: str,
    num_layers: int,
) -> None:
    """Fills ``routed_experts`` of an EngineCoreOutput with `count` rows, and puts their coverage
    beside it. versions: the names of the weights, as JSON. num_layers: those of ``routed_experts``;
    0: those with routers."""
    start = getattr(request.sampling_params, "routed_experts_prompt_start", 0)
    array: npt.NDArray[Any] | None = None
    one = lives[0][0] if len(lives) == 1 and not num_layers else None
    if one and one.complete and one.rows is not None and len(one.rows) == count:
        array, text = one.rows.ids, one.coverage
    else:
        rows, failure = _joined(lives)
        if rows is not None:
            rows = _padded(rows, count)
            array = _array(rows, num_layers)
        text = coverage_text(rows, failure)
    output.routed_experts = array[start:] if start and array is not None else array
    headers = {_COVERAGE: text, _VERSIONS: versions}
    output.trace_headers = {**output.trace_headers, **headers} if output.trace_headers else headers


def add_output(outputs: dict[int, Any], client: int, output: Any) -> None:
    """Adds an EngineCoreOutput to those of a client."""
    if client not in outputs:
        outputs[client] = module("vllm.v1.engine").EngineCoreOutputs()
    outputs[client].outputs.append(output)


# -- in the front end -------------------------------------------------------------------------
def _coverage(text: str, versions: str) -> Coverage:
    runs, layer_ids, failure = json.loads(text)
    name = WeightVersions(json.loads(versions)).name
    return Coverage(
        tuple(
            CoverageRun(begin, end, Reason(reason), version, Provenance(provenance), name(version))
            for begin, end, reason, version, provenance in runs
        ),
        tuple(layer_ids),
        failure,
    )


def _give_coverage(state: Any, coverage: Coverage) -> None:
    """The last CompletionOutput of a request gets its coverage."""
    make = state._new_completion_output

    def make_with_coverage(*args: Any, **kwargs: Any) -> Any:
        completion = make(*args, **kwargs)
        completion.waymark = coverage
        return completion

    state._new_completion_output = make_with_coverage


def hook_front_end(processor: type, outputs: Any) -> None:
    """Adds ``waymark`` to CompletionOutput. processor: OutputProcessor; outputs: vllm.outputs."""
    if not hasattr(outputs.CompletionOutput, "waymark"):
        outputs.CompletionOutput.waymark = None

    def process_outputs(function: Any) -> Any:
        def call(self: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                for output in engine_core_outputs:
                    if output.finish_reason is not None and output.trace_headers:
                        text = output.trace_headers.get(_COVERAGE)
                        state = self.request_states.get(output.request_id)
                        if text is not None and state is not None:
                            versions = output.trace_headers.get(_VERSIONS, "[]")
                            _give_coverage(state, _coverage(text, versions))
            except Exception:
                logger.exception("waymark: the coverage of an output is lost")
            return function(self, engine_core_outputs, *args, **kwargs)

        return call

    def add(function: Any) -> Any:  # a stream's consumer is late: outputs are merged
        def call(self: Any, next_output: Any, aggregate: bool) -> Any:
            result = function(self, next_output, aggregate)
            for one in next_output.outputs:
                if one.waymark is not None:
                    for other in self.outputs:
                        if other.index == one.index:
                            other.waymark = one.waymark
            return result

        return call

    wrap(processor, "process_outputs", process_outputs)
    wrap(outputs.RequestOutput, "add", add)
