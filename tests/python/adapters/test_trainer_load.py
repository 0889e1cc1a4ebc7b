"""Rows without a route load every rank of experts alike.

They went to experts 0 ... K - 1, of which the first rank of experts has all: max/mean of the
assignments of a padded batch was 5.99, and a trainer waited for that rank, or ran out of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import waymark
from waymark import Rows, trainer

Ids = Any
NUM_LAYERS, SIZES = 4, (2, 4, 8)
NAMES = tuple(trainer.FORMATS)
# Real rows of each sequence, of which so many are missing, and the length that a batch is padded
# to: nearly all rows are padding, or few are, or many are missing.
WORKLOADS = {"padding": (250, 0.0, 3000), "few": (1200, 0.01, 1208), "missing": (900, 0.6, 1100)}


def uniform(rng: np.random.Generator, count: int, experts: int, k: int, missing: float) -> Rows:
    """Its valid rows use every expert equally often, as far as they can."""
    valid = rng.random(count) >= missing
    at = (valid.cumsum()[:, None] * k + np.arange(k)) % experts
    ids = np.stack([rng.permutation(experts)[at] for _ in range(NUM_LAYERS)], 1)
    return Rows.from_array(ids, num_experts=experts, layer_ids=range(NUM_LAYERS), valid=valid)


def workload(rng: np.random.Generator, name: str, experts: int, k: int) -> tuple[list[Rows], int]:
    about, missing, length = WORKLOADS[name]
    counts = rng.integers(about // 2, about, 4)
    return [uniform(rng, int(n), experts, k, missing) for n in counts], length


def excess(ids: Ids, experts: int, size: int) -> float:
    """max/mean of the assignments of [rows, K] to `size` ranks of adjacent experts."""
    load = np.bincount((ids // (experts // size)).ravel(), minlength=size)
    return float(load.max() / load.mean())


def check(layers: Ids, masks: Ids, experts: int, where: str) -> None:
    """[layers, rows, K] and [rows] bool: whether the row has a route."""
    assert ((layers >= 0) & (layers < experts)).all(), where
    assert (np.diff(np.sort(layers[:, ~masks])) > 0).all(), f"{where}: an expert twice"
    for layer, ids in enumerate(layers):
        for size in SIZES:
            if ids.size < 800 * size:
                continue  # of so few real rows the shares are coarse
            found = excess(ids, experts, size)
            assert found <= 1.05, f"{where}, layer {layer}: max/mean {found:.2f} of {size} ranks"


def layouts() -> Iterator[dict[str, Any]]:
    for order in ("packed", "sequence-major", "batch-major"):
        for cut in ("zigzag", "contiguous", *(("stream",) if order == "packed" else ())):
            for context, tensor in ((1, 1), (2, 1), (1, 2), (2, 2)):
                yield {"order": order, "context_cut": cut, "of": (context, tensor)}


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize(
    ("experts", "k"), [(64, 6), (128, 8), (160, 6), (384, 8), (64, 1), (72, 5)]
)
def test_the_rows_of_each_rank(kind: str, experts: int, k: int, seed: int) -> None:
    """Of every layout, and of a pipeline stage; also from packed rows."""
    rng = np.random.default_rng(seed)
    rows, length = workload(rng, kind, experts, k)
    lengths = [len(of) + 1 for of in rows]
    for fields in layouts():
        context, tensor = fields.pop("of")
        for rank in range(context * tensor):
            place = {"context": (rank // tensor, context), "tensor": (rank % tensor, tensor)}
            layout = trainer.Layout(**fields, **place, sequence_parallel=True)
            plan = layout.plan(lengths, [length // 8 * 8] * 4)
            where = f"--seed={seed} {fields} {place}"
            stage = (0, 2, 3)
            filled = plan.fill(rows, stage)
            check(filled.ids, filled.mask, experts, where)
            others = filled.ids[:, ~filled.mask]
            for size in (s for s in range(2, 17) if experts % s == 0):
                ranks = others // (experts // size)
                loads = [np.bincount(of.ravel(), minlength=size) for of in ranks]
                apart = max(int(load.max() - load.min()) for load in loads)
                assert apart <= (1 if size in (2, 4, 8, 16) else 6), f"{where}: {size}: {loads}"
            packed = plan.fill(rows, stage, packed=True)
            wide = trainer.expand(packed.ids, packed.mask, num_experts=experts)
            assert (wide == filled.ids).all() and (packed.mask == filled.mask).all()


def tokens_of(name: str, data: trainer.ReplayData, k: int) -> Iterator[tuple[Ids, Ids]]:
    """([rows, layers, K], bool [rows]) of each array that was written."""
    arrays = data.ids
    if name == "megatron":
        arrays = [np.stack(data.ids, 1)]
    if not isinstance(arrays, list):
        arrays = [arrays]
    masks = data.mask if isinstance(data.mask, list) else [data.mask]
    for array, mask in zip(arrays, masks, strict=True):
        if isinstance(array, dict):
            array = np.frombuffer(array["data"], array["dtype"]).reshape(array["shape"])
        yield np.asarray(array, np.int64).reshape(-1, NUM_LAYERS, k), np.asarray(mask).ravel()


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize("name", NAMES)
def test_the_array_of_each_trainer(name: str, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = trainer.FORMATS[name]
    for experts, k in ((64, 6), (128, 8), (160, 6), (512, 10)):
        rows, length = workload(rng, kind, experts, k)
        lengths: Any = [len(of) + 1 for of in rows]
        for form in known.forms:
            where, given = f"--seed={seed} {form}, E {experts}", lengths
            if form == "routers":
                given = trainer.Layout(sequence_multiple=length).plan(lengths)
            more: dict[str, Any] = {"length": length} if form == "batch" else {}
            data = known.write(
                rows, given, layer_ids=range(NUM_LAYERS), num_layers=NUM_LAYERS, missing="fill",
                form=form, **more,
            )  # fmt: skip
            parts = list(tokens_of(name, data, k))
            ids, mask = (np.concatenate(of) for of in zip(*parts))
            routed = (ids >= 0).all((1, 2))  # by the trainer, if they are not replayed
            assert known.native or routed.all(), where
            check(ids[routed].transpose(1, 0, 2), mask[routed], experts, where)


def test_the_experts_of_such_a_row(seed: int) -> None:
    """Are the next K in an order in which P neighbours are of P ranks, counted over the rows of the
    rank that have no route, and from layer to layer."""
    rng = np.random.default_rng(seed)
    rows = uniform(rng, 5, 8, 3, 0)
    filled = trainer.Layout(sequence_multiple=10).plan([6]).fill([rows], (0, 1))
    order = [0, 4, 2, 6, 1, 5, 3, 7]
    for layer in (0, 1):
        for number, row in enumerate(np.flatnonzero(~filled.mask)):
            wanted = [order[((number + layer) * 3 + k) % 8] for k in range(3)]
            assert filled.ids[layer, row].tolist() == wanted
    again = trainer.Layout(sequence_multiple=10).plan([6]).fill([rows], (0, 1))
    assert (again.ids == filled.ids).all()


def test_a_type_holds_every_expert(seed: int) -> None:
    """Whatever ids a batch has: arrays were uint8 in one batch and int16 in the next."""
    rng = np.random.default_rng(seed)
    small = Rows.from_array(
        np.stack([rng.permutation(200)[:8] for _ in range(36)]).reshape(9, 4, 8), num_experts=512,
        layer_ids=range(4),
    )  # fmt: skip
    wanted = {"prime-rl": "uint16", "verl": "int16", "nemo-rl": "int16", "skyrl": "int16",
              "roll": "int16", "megatron": "int64"}  # fmt: skip
    for name, known in trainer.FORMATS.items():
        data = known.write([small], [10], layer_ids=range(4), num_layers=4)
        part = data.ids if isinstance(data.ids, np.ndarray) else data.ids[0]
        dtype = part["dtype"] if isinstance(part, dict) else part.dtype.name
        assert dtype == wanted.get(name, "int32"), name
    with pytest.raises(waymark.InvalidArgumentError, match="must hold ids up to 511"):
        trainer.Layout().plan([10]).fill([small], range(4), dtype=np.uint8)
