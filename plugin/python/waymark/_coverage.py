"""What the rows that an adapter gave to its engine consist of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._arrays import array_of
from ._errors import FailedPreconditionError, InvalidArgumentError
from ._handle import Handle
from ._rows import Rows
from ._types import CoverageRun, Reason, row_info_dtype


class Coverage(NamedTuple):
    """What the rows of a request consist of."""

    runs: tuple[CoverageRun, ...]
    """Runs of rows with equal reason, cause, version and provenance."""
    layer_ids: tuple[int, ...]
    """The model's number of each captured layer, from 0."""
    failure: str
    """Why there are no rows, rows are missing for no reason of the store, or the objects of the
    handle are not stored; else empty."""
    handle: Handle | None = None
    """What names the rows, where the engine publishes them: the array is then its bytes."""

    @property
    def missing(self) -> dict[Reason, int]:
        """Missing rows by reason; they are -1 in the engine's array, which is then int16."""
        counts: dict[Reason, int] = {}
        for run in self.runs:
            if not run.valid:
                counts[run.reason] = counts.get(run.reason, 0) + run.end - run.begin
        return counts

    @property
    def complete(self) -> bool:
        """Whether every row is there."""
        return bool(self.runs) and not self.failure and all(run.valid for run in self.runs)

    def rows(self, ids: npt.ArrayLike, *, num_experts: int) -> Rows:
        """The engine's array as rows, with the versions and reasons of these runs. Steps are 0.

        ids: integers [T, L, K] of the last T rows, as the engine returned them (``routed_experts``,
        ``routing_indices``): it may have left out rows of the prompt. L: the captured layers, or
        all layers of the model. FailedPreconditionError if there are no rows; InvalidArgumentError
        for another T or L, and as ``Rows.from_array()``."""
        if not self.runs:
            raise FailedPreconditionError(f"there are no rows: {self.failure or 'no runs'}")
        array = array_of("ids", ids)
        if self.handle is not None:
            raise FailedPreconditionError("ids: the engine published the rows: fetch the handle")
        begin, end = self.runs[0].begin, self.runs[-1].end
        if array.ndim != 3 or len(array) > end - begin:
            raise InvalidArgumentError(
                f"ids: [T, L, K] of at most {end - begin} rows, got {list(array.shape)}"
            )
        if array.shape[1] != len(self.layer_ids):
            if array.shape[1] <= max(self.layer_ids):
                raise InvalidArgumentError(
                    f"ids: of the {len(self.layer_ids)} captured layers or of all layers, at least "
                    f"{max(self.layer_ids) + 1}, got {array.shape[1]}"
                )
            array = array[:, list(self.layer_ids)]
        infos = np.zeros(end - begin, row_info_dtype)
        for run in self.runs:
            of_run = infos[run.begin - begin : run.end - begin]
            for name in ("reason", "cause", "version", "provenance"):
                of_run[name] = getattr(run, name)
        infos = infos[len(infos) - len(array) :]
        rows = Rows.from_array(
            array,
            num_experts=num_experts,
            layer_ids=self.layer_ids,
            valid=infos["reason"] == Reason.NONE,
            first=end - len(array),
        )
        return Rows(rows.shape, rows.first, rows.ids, infos)
