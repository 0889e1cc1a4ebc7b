"""Compares the routing that an engine returned with a recompute, row by row. Needs numpy only.

A row is one token of one request: its expert ids in every MoE layer, int [layers, top_k]. The recompute
gives the ids and, for every expert, the score by which the router chose. In each layer the two must be
the same set of experts. They may differ in a *near tie*: every expert that only one of them has scores
within `tie` of the boundary between chosen and not chosen. A near tie sends the token through another
expert, so later layers and later tokens have slightly other inputs, too: from there on a row of that
sequence is wrong only if less than half of its ids agree (two different tokens agree in about
top_k / experts, the same token in nearly all).

An id below 0 means that the row is missing.
"""
import collections
import dataclasses

import numpy as np

NEAR_TIE = 1e-4  # in float32 the scores of a batch and of a recompute differ by about 1e-6
MAX_EXAMPLES = 5


@dataclasses.dataclass
class Expected:
    """The recompute of one sequence."""
    ids: np.ndarray     # int [rows, layers, top_k]
    scores: np.ndarray  # float [rows, layers, experts], larger is chosen
    layers: list        # the model's number of each MoE layer
    model_layers: int   # of the model, dense layers included


@dataclasses.dataclass
class Result:
    """What the comparison of one or many sequences found."""
    rows_checked: int = 0      # rows that are there and were compared
    rows_wrong: int = 0
    rows_missing: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # by reason
    near_ties: int = 0         # layers of rows that differ in a near tie
    after_near_tie: int = 0    # rows that differ after one, and are judged by agreement
    rows_other_order: int = 0  # rows with the same experts in another order
    rows_old_version: int = 0  # rows of weights before the last
    examples: list = dataclasses.field(default_factory=list)  # the first wrong rows, in words

    def add(self, other):
        for field in dataclasses.fields(self):
            if field.name == "examples":
                self.examples = (self.examples + other.examples)[:MAX_EXAMPLES]
            else:
                setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self

    def as_dict(self):
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def check_recompute(expected):
    """Raises if the recompute's ids are not the best by its own scores: then it proves nothing."""
    top_k = expected.ids.shape[-1]
    best = -np.sort(-expected.scores, -1)[..., top_k - 1:top_k]
    chosen = np.take_along_axis(expected.scores, expected.ids, -1)
    if (chosen < best - NEAR_TIE).any() or (np.diff(np.sort(expected.ids, -1), axis=-1) == 0).any():
        raise ValueError("the recompute's ids are not the top-k of its scores")


def near_tie(scores, got, want, tie=NEAR_TIE):
    """Whether two sets of experts of one layer differ only in experts at the boundary of being chosen."""
    ordered = -np.sort(-scores)
    boundary = (ordered[len(want) - 1] + ordered[len(want)]) / 2
    differing = set(got.tolist()) ^ set(want.tolist())
    return all(0 <= e < len(scores) and abs(scores[e] - boundary) <= tie for e in differing)


def compare(name, rows, expected, first=0, reasons=None, tie=NEAR_TIE):
    """Compares the rows `first, first + 1, ...` of a sequence with all rows of the recompute from `first` on.

    rows: int [rows, layers or model_layers, top_k], or None if the engine returned nothing.
    reasons: why rows are missing, one text or None a row; or one text for all.
    """
    result = Result()
    want_ids, want_scores = expected.ids[first:], expected.scores[first:]

    def missing(row):
        reason = reasons if isinstance(reasons, (str, type(None))) else reasons[row]
        result.rows_missing[reason or "unexplained"] += 1

    def wrong(text, count=1):
        result.rows_wrong += count
        if len(result.examples) < MAX_EXAMPLES:
            result.examples.append(f"{name}: {text}")

    if rows is None:
        for row in range(len(want_ids)):
            result.rows_missing[reasons if isinstance(reasons, str) else "nothing was returned"] += 1
        return result
    rows = np.asarray(rows)
    if rows.ndim != 3 or rows.shape[2] != want_ids.shape[2] or rows.shape[1] not in (len(expected.layers), expected.model_layers):
        wrong(f"shape {rows.shape}, expected {want_ids.shape}", max(len(want_ids), 1))
        return result
    if rows.shape[1] != len(expected.layers):
        rows = rows[:, expected.layers]
    rows = rows.astype(np.int64)
    if len(rows) > len(want_ids):
        wrong(f"{len(rows)} rows, expected {len(want_ids)}", len(rows) - len(want_ids))
        rows = rows[:len(want_ids)]
    for row in range(len(rows), len(want_ids)):
        result.rows_missing["the array is too short"] += 1

    there = (rows >= 0).all((-1, -2))
    same_set = (np.sort(rows, -1) == np.sort(want_ids[:len(rows)], -1)).all(-1)
    tied = False
    for row in range(len(rows)):
        if not there[row]:
            missing(row)
            continue
        result.rows_checked += 1
        if same_set[row].all():
            result.rows_other_order += not (rows[row] == want_ids[row]).all()
            continue
        if tied:
            agreement = np.mean([len(set(g) & set(w)) for g, w in zip(rows[row].tolist(), want_ids[row].tolist())]) / rows.shape[2]
            if agreement >= 0.5:
                result.after_near_tie += 1
            else:
                wrong(f"row {first + row}: agreement {agreement:.2f} after a near tie")
            continue
        layer = int(np.flatnonzero(~same_set[row])[0])
        if near_tie(want_scores[row, layer], rows[row, layer], want_ids[row, layer], tie):
            result.near_ties += 1
            tied = True
        else:
            wrong(f"row {first + row}, layer {expected.layers[layer]}: {rows[row, layer].tolist()}, "
                  f"expected {want_ids[row, layer].tolist()}")
    return result


def compare_versions(name, rows, expected, claimed=None, sampled=None):
    """For a run in which the last MoE layer's router was rolled by one expert at each change of weights.

    Under version v that layer's ids are those of the first weights plus v, all else is the same. Every row
    must be of one version, versions must not go back along a sequence (what is reused is older), and they
    must be those that the engine claims (claimed: int a row, or None), and those with which the next token was
    sampled (sampled: int a row, or None, where it is not known).
    """
    experts = expected.scores.shape[-1]
    rows = np.array(rows, dtype=np.int64)
    if rows.ndim == 3 and rows.shape[1] != len(expected.layers):
        rows = rows[:, expected.layers]
    if rows.shape != expected.ids.shape:
        return compare(name, rows, expected)
    chosen = np.sort(rows[:, -1], -1)
    fits = np.array([(chosen == np.sort((expected.ids[:, -1] + version) % experts, -1)).all(-1) for version in range(experts)])
    versions = np.full(len(rows), -1)
    for row in range(len(rows)):
        possible = np.flatnonzero(fits[:, row])
        if not len(possible):
            continue
        # A set of ids may fit several versions (a, a + E / 2): then it is the claimed one, or does not go back.
        if claimed is not None and claimed[row] in possible:
            versions[row] = claimed[row]
        else:
            before = versions[row - 1] if row else 0
            later = possible[possible >= before]
            versions[row] = later[0] if len(later) else possible[0]
    first_weights = rows.copy()
    there = (rows[:, -1] >= 0).all(-1)
    first_weights[there, -1] = (rows[there, -1] - np.maximum(versions[there], 0)[:, None]) % experts
    result = compare(name, first_weights, expected)
    known = versions[there]
    back = int((np.diff(known) < 0).sum())
    if back:
        result.rows_wrong += back
        result.examples.append(f"{name}: versions go back: {known.tolist()}")
    if claimed is not None:
        other = int((np.asarray(claimed)[there] != known).sum())
        if other:
            result.rows_wrong += other
            result.examples.append(f"{name}: {other} rows claim another version than their ids have")
    if sampled is not None:
        # A set of ids may fit the sampled version, too.
        other = [row for row in np.flatnonzero(there) if sampled[row] is not None and versions[row] != sampled[row]
                 and (claimed is not None or not fits[sampled[row] % experts, row])]
        if other:
            result.rows_wrong += len(other)
            result.examples.append(f"{name}: row {other[0]} and {len(other) - 1} more have another version than the next token was sampled with")
    result.rows_old_version += int((known < known.max(initial=0)).sum())
    return result
