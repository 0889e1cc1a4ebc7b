"""What the rows that an adapter gave to its engine consist of."""

from __future__ import annotations

from typing import NamedTuple

from ._types import CoverageRun, Reason


class Coverage(NamedTuple):
    """What the rows of a request consist of."""

    runs: tuple[CoverageRun, ...]
    """Runs of rows with equal reason, version and provenance."""
    layer_ids: tuple[int, ...]
    """The model's number of each captured layer, from 0."""
    failure: str
    """Why there are no rows, or rows are missing for no reason of the store; else empty."""

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
