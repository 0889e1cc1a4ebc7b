"""Mistakes in the ids themselves, in whatever rows they are. Ids are [..., K]: given, and the
router's own of the same rows and layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ids64 = npt.NDArray[np.int64]

# From so many on, what no accident makes is a mistake: ids, and pairs of row and layer.
_MANY_IDS, _MANY_PAIRS = 16, 128
_EVERYWHERE = 0.9  # an expert that is in such a share of the pairs
# A column that agrees so much more than chance, of what is left above it, has near ties, if the
# kernels are others: they are in the last column, so in few of the ids.
_NEAR_TIES = 0.3


def is_in(given: Array, own: Array) -> npt.NDArray[np.bool_]:
    """[..., K]: whether each given id is among the router's own."""
    found: npt.NDArray[np.bool_] = (given[..., :, None] == own[..., None, :]).any(-1)
    return found


def exchanged(ids: Array, arrays: Array, own: Array, rows: Array, samples: Array) -> float:
    """The agreement of samples, whose rows are increasing, if layers and tokens are exchanged in
    each of the arrays."""
    agreed, of = 0.0, arrays[rows[samples]]
    for array in np.unique(of[of > 0]):
        places, asked = np.flatnonzero(arrays == array), samples[of == array]
        given = ids[:, places]
        turned = given.transpose(1, 0, 2).reshape(given.shape)
        at = np.searchsorted(places, rows[asked])
        agreed += float(is_in(turned[:, at], own[:, asked]).mean((0, 2)).sum())
    return agreed / max(1, len(samples))


def cut_to_8_bits(given: Array, own: Array) -> bool:
    """Whether many of the router's ids need more than 8 bits, and none that was given does."""
    return int((own > 255).sum()) >= _MANY_IDS and not (given > 255).any()


def _right(hits: Array, chance: float) -> bool:
    return bool(hits.mean() >= max(0.7, (1 + chance) / 2))


def unrouted(given: Array, own: Array, num_experts: int, chance: float) -> int:
    """The expert in nearly every row and layer of given, and not of own, where the other ids are
    right: it has a column that is not routed. -1: none has."""
    pairs = given.size // given.shape[-1]
    if pairs < _MANY_PAIRS or given.shape[-1] < 2:
        return -1
    count, of_own = (np.bincount(ids.ravel(), minlength=num_experts) for ids in (given, own))
    expert = int((count - of_own).argmax())
    if count[expert] < _EVERYWHERE * pairs or 2 * of_own[expert] > pairs:
        return -1
    return expert if _right(is_in(given, own)[given != expert], chance) else -1


def foreign_column(given: Array, own: Array, chance: float) -> int:
    """The column whose ids are the router's hardly more often than by chance, where those of the
    others are; -1: none."""
    if given.size // given.shape[-1] < _MANY_PAIRS or given.shape[-1] < 2:
        return -1
    by_column = is_in(given, own).reshape(-1, given.shape[-1]).mean(0)
    least = int(by_column.argmin())
    low = by_column[least] < chance + _NEAR_TIES * (1 - chance)
    return least if low and _right(np.delete(by_column, least), chance) else -1


def without(ids: Array, expert: int = -1, column: int = -1) -> Array:
    """[..., K - 1]: the ids without those of an expert, or of a column."""
    if column >= 0:
        return np.delete(ids, column, -1)
    last = np.argsort(ids == expert, -1, kind="stable")
    return np.take_along_axis(ids, last, -1)[..., :-1]


def mapping(given: Array, own: Array, num_experts: int) -> Ids64:
    """[E]: which expert of own, [rows, K], each id of given, of the same rows, stands for. An
    expert may stand under several ids (replicas), which then occur about as often as it does
    together (near ties). -1: not seen."""
    pairs = (given[:, :, None].astype(np.int64) * num_experts + own[:, None, :]).ravel()
    seen, counts = np.unique(pairs, return_counts=True)
    found = np.full(num_experts, -1)
    occurs, left = (np.bincount(ids.ravel(), minlength=num_experts) for ids in (given, own))
    order = np.argsort(-counts, kind="stable")
    for pair, count in zip(seen[order].tolist(), counts[order].tolist()):
        one, other = divmod(pair, num_experts)
        if found[one] < 0 and 3 * count <= 4 * left[other]:
            found[one], left[other] = other, left[other] - occurs[one]
    return found


def mapped(given: Array, own: Array, num_experts: int, asked: Array | None = None) -> float:
    """How a mapping agrees on rows that did not make it. Ids that these have not do not count, and
    of the others those that are asked, bool [rows, K]; 0 if these are half of all ids or less."""
    shares = []
    asked = np.ones(given.shape, np.bool_) if asked is None else asked
    for one, other in ((0, 1), (1, 0)):
        ids = mapping(given[one::2], own[one::2], num_experts)[given[other::2]]
        of = asked[other::2]
        hit = is_in(ids, own[other::2])[(ids >= 0) & of]
        shares.append(float(hit.mean()) if 2 * hit.size > of.sum() else 0.0)
    return min(shares)


def unknown_to(given: Array, own: Array, num_experts: int) -> npt.NDArray[np.bool_] | None:
    """bool, as given: ids that own, [rows, K], never has; None: they may be near ties."""
    known = np.zeros(num_experts, np.bool_)
    known[own] = True
    unknown = ~known[given]
    wrong = ~is_in(given, own)
    return unknown if unknown.sum() >= max(_MANY_IDS, wrong.sum() / 2) else None
