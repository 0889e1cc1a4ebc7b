"""Coverage: an engine's array, and the runs that say what its rows are, become rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
import waymark
from waymark import CoverageRun, Provenance, Reason
from waymark._coverage import Coverage

LAYERS = (1, 2, 5, 6)
EXPERTS, K = 200, 3
COLUMNS = 9  # layers of the model


def random_runs(rng: random.Random) -> tuple[CoverageRun, ...]:
    """Of rows that need not begin with the first of the request."""
    at, runs = rng.choice((0, 0, 3, 17)), []
    for _ in range(rng.randrange(1, 6)):
        end = at + rng.randrange(1, 5)
        reason = rng.choice((Reason.NONE, Reason.NONE, Reason.CAPACITY, Reason.EXTERNAL_KV))
        of_valid = reason == Reason.NONE
        version = rng.randrange(1, 4) if of_valid else 0
        runs.append(CoverageRun(at, end, reason, version, rng.choice(list(Provenance))))
        at = end
    return tuple(runs)


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_those_of_the_runs(seed: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    runs = random_runs(rng)
    begin, end = runs[0].begin, runs[-1].end
    of_row = [run for run in runs for _ in range(run.begin, run.end)]
    ids = numbers.random((end - begin, len(LAYERS), EXPERTS)).argsort(-1)[..., :K].astype(np.int16)
    ids[[not run.valid for run in of_row]] = -1
    coverage = Coverage(runs, LAYERS, "")
    every = np.full((len(ids), COLUMNS, K), 7, np.int16)  # 7 twice in a row: of other layers
    every[:, list(LAYERS)] = ids
    for array in (ids, every, every[:, : LAYERS[-1] + 1], every.tolist()):
        count = rng.randrange(len(ids) + 1)  # the engine may have left out the first
        left = len(ids) - count
        if isinstance(array, list) and not count:
            continue  # a list of no rows has no layers
        rows = coverage.rows(array[left:], num_experts=EXPERTS)
        assert (rows.first, rows.last) == (begin + left, end), f"seed {seed}"
        assert rows.layer_ids == LAYERS
        assert (rows.shape.top_k, rows.shape.num_experts) == (K, EXPERTS)
        for row, run in enumerate(of_row[left:]):
            info = rows.infos[row]
            got = tuple(int(info[name]) for name in ("reason", "version", "provenance", "step"))
            assert got == (run.reason, run.version, run.provenance, 0), f"seed {seed}, row {row}"
            assert (rows.ids[row] == (ids[left + row] if run.valid else 0)).all()
    missing = {reason: sum(run.reason == reason for run in of_row) for reason in Reason}
    missing.pop(Reason.NONE)
    assert coverage.missing == {reason: rows for reason, rows in missing.items() if rows}
    assert coverage.complete == (not coverage.missing)


def test_what_does_not_belong_to_the_runs_is_refused() -> None:
    runs = (
        CoverageRun(2, 4, Reason.NONE, 1, Provenance.HERE),
        CoverageRun(4, 5, Reason.CAPACITY, 0, Provenance.HERE),
        CoverageRun(5, 6, Reason.NONE, 1, Provenance.HERE),
    )
    coverage = Coverage(runs, LAYERS, "")
    ids = np.tile(np.arange(K, dtype=np.int16), (4, len(LAYERS), 1))
    assert coverage.rows(ids, num_experts=EXPERTS).valid.tolist() == [True, True, False, True]
    one_more = np.concatenate([ids, ids[:1]])
    refused = {
        r"\[T, L, K\] of at most 4 rows, got \[5, 4, 3\]": one_more,
        r"\[T, L, K\] of at most 4 rows, got \[4, 4\]": ids[..., 0],
        r"\[T, L, K\] of at most 4 rows, got \[1, 4, 4, 3\]": ids[None],
        "of the 4 captured layers or of all layers, at least 7, got 6": np.tile(ids[:, :1], (1, 6, 1)),
        "at least 7, got 1": ids[:, :1],
        "in a valid row": np.full_like(ids, -1),  # the engine says of no row that it is missing
    }
    for text, array in refused.items():
        with pytest.raises(waymark.InvalidArgumentError, match=text):
            coverage.rows(array, num_experts=EXPERTS)
    with pytest.raises(waymark.InvalidArgumentError):
        coverage.rows(ids, num_experts=K - 1)


def test_without_rows_it_says_why() -> None:
    ids = np.zeros((0, len(LAYERS), K), np.int16)
    for failure, text in (("no blocks", "there are no rows: no blocks"), ("", "no rows: no runs")):
        nothing = Coverage((), LAYERS, failure)
        with pytest.raises(waymark.FailedPreconditionError, match=text):
            nothing.rows(ids, num_experts=EXPERTS)
        assert not nothing.complete and nothing.missing == {}


def test_a_failure_is_not_complete() -> None:
    run = CoverageRun(0, 3, Reason.NONE, 1, Provenance.HERE)
    assert Coverage((run,), LAYERS, "").complete
    assert not Coverage((run,), LAYERS, "the last block was not asked for").complete
