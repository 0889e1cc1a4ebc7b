"""The trainer's side: rows of a rank, filling, the way back, the replay audit."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import waymark.hf
import waymark.megatron
from conftest import Rig, in_threads, refused
from waymark import Reason, Rows, trainer

Ids = Any
LAYERS = (1, 2, 4, 5, 6, 9)
EXPERTS, K = 64, 4


def distinct(rng: np.random.Generator, *shape: int, experts: int = EXPERTS, k: int = K) -> Ids:
    return rng.random((*shape, experts)).argsort(-1)[..., :k]


def up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def random_layout(rng: np.random.Generator) -> tuple[trainer.Layout, list[int], list[int]]:
    order = rng.choice(["packed", "sequence-major", "batch-major"])
    cp, tp = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    cuts = ["zigzag", "contiguous", "stream"][: 3 if order == "packed" else 2]
    unit = 2 * cp * tp
    packed = order == "packed"
    layout = trainer.Layout(
        order=order,
        context=(int(rng.integers(cp)), cp),
        context_cut=rng.choice(cuts),
        tensor=(int(rng.integers(tp)), tp),
        sequence_parallel=bool(rng.integers(2)),
        sequence_multiple=unit,
        total_multiple=unit * int(rng.integers(1, 4)) if packed else 1,
        local_multiple=tp * int(rng.integers(1, 4)) if packed else 1,
    )
    lengths = [int(rng.integers(1, 50)) for _ in range(rng.integers(1, 5))]
    padded = [up(n, unit) for n in lengths]
    return layout, lengths, padded if packed else [max(padded)] * len(lengths)


def test_every_field_of_a_layout_counts() -> None:
    def tokens(lengths: list[int], padded: list[int] | None = None, **fields: Any) -> Any:
        return list(zip(*trainer.Layout(**fields).plan(lengths, padded).places()))

    def row(sequence: int, *positions: int) -> list[tuple[int, int]]:
        return [(sequence, p) for p in positions]

    none = [(-1, -1)]
    assert tokens([8], context=(0, 2)) == row(0, 0, 1, 6, 7)
    assert tokens([8], context=(1, 2), context_cut="contiguous") == row(0, 4, 5, 6, 7)
    assert tokens([3, 5], context=(0, 2), context_cut="stream") == row(0, 0, 1, 2) + row(1, 0)
    assert tokens([2, 2], order="sequence-major") == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert tokens([2, 1], order="batch-major") == row(0, 0, 1) + row(1, 0) + none
    assert tokens([4], tensor=(1, 2)) == row(0, 0, 1, 2, 3)
    assert tokens([4], tensor=(1, 2), sequence_parallel=True) == row(0, 2, 3)
    assert tokens([1, 1], sequence_multiple=2) == row(0, 0) + none + row(1, 0) + none
    assert tokens([3], total_multiple=4) == tokens([3], local_multiple=4) == row(0, 0, 1, 2) + none
    assert tokens([1, 1], [2, 1]) == row(0, 0) + none + row(1, 0)
    plan = trainer.Layout().plan([3, 4])
    assert plan.rows == 7 and plan.lengths == (3, 4)
    assert plan.segments == [(0, 0, 3, 0, 1), (1, 0, 4, 3, 1)]


def cut_lists(
    layout: trainer.Layout, lengths: list[int], padded: list[int]
) -> list[tuple[int, int]]:
    """The rule: lists of tokens, and cuts of lists."""
    (rank, size), none = layout.context, (-1, -1)

    def part(items: list[Any], part: int, parts: int) -> list[Any]:
        assert len(items) % parts == 0
        n = len(items) // parts
        return items[part * n : (part + 1) * n]

    def of_context(items: list[Any]) -> list[Any]:
        if size == 1:
            return items
        if layout.context_cut != "zigzag":
            return part(items, rank, size)
        return part(items, rank, 2 * size) + part(items, 2 * size - 1 - rank, 2 * size)

    def of_tensor(items: list[Any]) -> list[Any]:
        return part(items, *layout.tensor) if layout.sequence_parallel else items

    sequences = [
        [(i, p) if p < n else none for p in range(padded[i])] for i, n in enumerate(lengths)
    ]
    if layout.order == "packed":
        total = sum(padded)
        sequences[-1] += [none] * (up(total, layout.total_multiple) - total)
        if layout.context_cut == "stream":
            rows = of_context(sum(sequences, []))
        else:
            rows = sum(map(of_context, sequences), [])
        return of_tensor(rows + [none] * (up(len(rows), layout.local_multiple) - len(rows)))
    batch = [of_tensor(of_context(sequence)) for sequence in sequences]
    if layout.order == "batch-major":
        return sum(batch, [])
    return [row for step in zip(*batch) for row in step]


def test_every_rank_has_what_cut_lists_have(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for case in range(300):
        layout, lengths, padded = random_layout(rng)
        given = padded if rng.integers(2) else None
        if given and rng.integers(2):
            lengths[0] = 0
        seen: dict[tuple[int, int], int] = {}
        (_, cp), (_, tp) = layout.context, layout.tensor
        for rank in range(cp * tp):
            of_rank = dataclasses.replace(layout, context=(rank // tp, cp), tensor=(rank % tp, tp))
            plan = of_rank.plan(lengths, given)
            places = list(zip(*(of.tolist() for of in plan.places())))
            where = f"seed {seed}, case {case}, rank {rank}"
            assert places == cut_lists(of_rank, lengths, padded), where
            assert plan.segments == sorted(plan.segments), where
            for place in set(places) - {(-1, -1)}:
                seen[place] = seen.get(place, 0) + 1
        assert len(seen) == sum(lengths)
        assert set(seen.values()) <= {1 if layout.sequence_parallel else tp}
    assert trainer.Layout().plan([]).rows == trainer.Layout().plan([0, 0]).rows == 0


def rows_of(rng: np.random.Generator, count: int, missing: float = 0.1) -> tuple[Rows, Ids, Ids]:
    ids = distinct(rng, count, len(LAYERS))
    valid = rng.random(count) >= missing
    return Rows.from_array(ids, num_experts=EXPERTS, layer_ids=LAYERS, valid=valid), ids, valid


def test_fill_is_the_rule(seed: int, tmp_path: Any) -> None:
    rng = np.random.default_rng(seed)
    source = waymark.MemorySource()
    fetcher = waymark.Fetcher(source)
    for case in range(60):
        layout, lengths, padded = random_layout(rng)
        layer_ids = rng.permutation(LAYERS)[: rng.integers(1, 7)]
        columns = [LAYERS.index(layer) for layer in layer_ids]
        sources: list[Any] = []
        known = []
        for n in lengths:
            rows, ids, valid = rows_of(rng, n - int(rng.integers(2)))
            known.append((ids, valid))
            kind = rng.integers(5)
            if kind == 0:
                sources.append(rows)
            elif kind == 1:  # views of larger rows
                more = np.concatenate([ids, ids[:1]]) if len(ids) else ids
                wide = Rows.from_array(more, num_experts=EXPERTS, layer_ids=LAYERS,
                                       valid=np.append(valid, True)[: len(more)])  # fmt: skip
                sources.append(wide[: len(ids)].of_layers(sorted(layer_ids)))
            elif kind in (2, 3):
                codec: Any = "raw" if kind == 2 else "set"
                rows, ids = (rows, ids) if kind == 2 else (rows, np.sort(ids))
                known[-1] = (ids, valid)
                sources.append(waymark.from_bytes(rows.to_bytes(codec=codec)))
            else:
                publisher = waymark.Publisher(source, rows.shape)
                sources.append((fetcher, publisher.publish(rows).wait(10)))
        plan = layout.plan(lengths, padded)
        dtype = rng.choice([np.int64, np.int32])
        out = np.empty((len(layer_ids), plan.rows, K), dtype) if rng.integers(2) else None
        filled = plan.fill(sources, layer_ids, dtype=dtype, out=out, timeout=10)
        if rng.integers(2):
            marked = plan.fill(sources, layer_ids, dtype=dtype, fill="minus_one", timeout=10)
            assert (marked.mask == filled.mask).all() and (marked.ids[:, ~marked.mask] == -1).all()
            assert (marked.ids[:, marked.mask] == filled.ids[:, filled.mask]).all()
        assert out is None or filled.ids is out
        assert filled.ids.dtype == dtype and filled.ids.shape == (len(layer_ids), plan.rows, K)
        counts = {"padding": 0, "no_row": 0, "replayed": 0, "missing": 0}
        for row, (s, p) in enumerate(zip(*plan.places())):
            where = f"seed {seed}, case {case}, row {row}"
            ids, valid = known[s]
            has = s >= 0 and p < len(ids) and valid[p]
            if has:
                assert (filled.ids[:, row] == ids[p][columns]).all(), where
            assert filled.mask[row] == has, where
            kind = "padding" if s < 0 else "no_row" if p == lengths[s] - 1 else "missing"
            counts["replayed" if has else kind] += 1
        report = filled.report
        assert report.replayed == counts["replayed"] and report.padding == counts["padding"]
        assert report.no_row == counts["no_row"]
        assert sum(report.missing.values()) == counts["missing"]
        assert set(report.missing) <= {Reason.NOT_TOLD}


def test_rows_of_a_document_that_are_damaged_in_one_layer_are_missing_in_all() -> None:
    ids = distinct(np.random.default_rng(0), 20, len(LAYERS))
    given = Rows.from_array(ids, num_experts=EXPERTS, layer_ids=LAYERS)
    data = bytearray(given.to_bytes(crc_layers=1))
    data[data.find(ids[:16, -1].astype(np.uint8).tobytes())] ^= 1  # the last layer of a chunk
    plan = trainer.Layout().plan([20])
    filled = plan.fill([waymark.from_bytes(data)], (1, 9), fill="minus_one")
    assert filled.mask.tolist() == [False] * 16 + [True] * 4
    assert filled.report.missing == {Reason.NOT_CAPTURED: 16}
    assert (filled.ids[:, :16] == -1).all()
    assert (filled.ids[:, 16:] == ids[16:, [0, -1]].transpose(1, 0, 2)).all()


def test_fill_from_several_threads(rig: Rig) -> None:
    slots = waymark.slots_of([1, 2], 4, 0, 8)
    slots[3] = waymark.NOT_ASKED(int(slots[3]))
    ids = rig.write(slots, [1, 2])
    rows = [rig.read([1, 2], 8), rig.read([1, 2], 7)]
    plan = trainer.Layout(context=(1, 2), sequence_multiple=4).plan([8, 7])
    filled = plan.fill(rows, [2, 0])
    assert filled.mask.tolist() == [True, False, True, True] * 2
    assert (filled.ids[0][filled.mask] == ids[[2, 4, 5, 2, 4, 5], 2]).all()
    assert (filled.ids[1][filled.mask] == ids[[2, 4, 5, 2, 4, 5], 0]).all()
    assert filled.report.missing == {Reason.NOT_CAPTURED: 2}
    assert filled.report.first_missing == (0, 3)
    for again in in_threads(4, lambda: plan.fill(rows, [2, 0])):
        assert (again.ids == filled.ids).all()


@pytest.mark.parametrize("experts", [EXPERTS, 256, 300])
def test_packed_rows_become_the_tensors(seed: int, experts: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = [20, 13]
    rows = []
    for n in lengths:
        ids, valid = distinct(rng, n - 1, len(LAYERS), experts=experts), rng.random(n - 1) > 0.2
        rows.append(Rows.from_array(ids, num_experts=experts, layer_ids=LAYERS, valid=valid))
    plan = trainer.Layout(context=(1, 2), sequence_multiple=8).plan(lengths)
    chosen = (2, 4, 9)
    packed = plan.fill(rows, chosen, packed=True)
    assert packed.ids.shape == (plan.rows, 3, K)
    assert packed.ids.dtype == (np.uint8 if experts <= 256 else np.uint16)
    for dtype, fill in [(np.int64, "spread"), (np.int32, "spread"), (np.int16, "minus_one")]:
        direct = plan.fill(rows, chosen, dtype=dtype, fill=fill)  # type: ignore[arg-type]
        assert (packed.mask == direct.mask).all() and packed.report == direct.report
        given: dict[str, Any] = {"num_experts": experts, "fill": fill}
        wide = trainer.expand(packed.ids, packed.mask, dtype=dtype, **given)
        assert wide.dtype == dtype and (wide == direct.ids).all()
        out = np.empty_like(direct.ids)
        assert trainer.expand(packed.ids, packed.mask.view(np.uint8), out=out, **given) is out
        assert (out == direct.ids).all()
    ids, mask = packed.ids, packed.mask
    frozen, other = np.empty((3, plan.rows, K), np.int64), np.empty((plan.rows, 3, K), np.int32)
    frozen.flags.writeable = False
    expand = partial(trainer.expand, num_experts=experts)
    refused(
        waymark.InvalidArgumentError,
        ("packed: uint", lambda: expand(ids.astype(np.int32), mask)),
        ("mask: bool or uint8, one for each of", lambda: expand(ids, mask[1:])),
        (r"out: \[layers, rows, K\]", lambda: expand(ids, mask, out=np.empty((3, 1, K), np.int64))),
        ("packed: 3 dimensions", lambda: expand(ids[:, :, 0], mask, out=out)),
        ("id_type: of packed rows", lambda: plan.fill(rows, chosen, packed=True, out=other)),
    )
    with pytest.raises(TypeError, match="out must be a writable array"):
        expand(ids, mask, out=frozen)


def test_the_defaults_of_rows_without_a_route() -> None:
    """-1 in rows that are read; experts for a trainer, which are distinct and marked in the mask.
    A trainer's missing rows have to be asked for."""
    ids, valid = distinct(np.random.default_rng(0), 8, 6), np.arange(8) != 3
    rows = Rows.from_array(ids, num_experts=EXPERTS, layer_ids=range(6), valid=valid)
    for dtype in (np.int16, np.int32, np.int64):
        assert (rows.astype(dtype)[3] == -1).all()
    modules: tuple[Any, ...] = (waymark, trainer, waymark.hf, waymark.megatron)
    public = [getattr(module, name) for module in modules for name in module.__all__]
    methods = [one for of in public if inspect.isclass(of) for one in vars(of).values()]
    fills = {
        called.__qualname__: argument.default
        for called in filter(inspect.isfunction, public + methods)
        for argument in inspect.signature(called).parameters.values()
        if argument.annotation == "Fill" and argument.default is not argument.empty
    }
    assert fills == {"Rows.astype": "minus_one", "Plan.fill": "spread", "expand": "spread"}
    for known in trainer.FORMATS.values():
        write = partial(known.write, [rows], [9], layer_ids=range(6), num_layers=6)
        if known.native:
            assert (write().ids[0][3] == -1).all()
        else:
            refused(waymark.FailedPreconditionError, ("no ids for token 3", write))


def test_fill_refuses_what_megatron_takes_in_silence() -> None:
    rng = np.random.default_rng(1)
    rows, ids, _ = rows_of(rng, 8, missing=0)
    plan, plans = trainer.Layout().plan([8]), trainer.Layout().plan([8, 8])
    filled = plan.fill([rows[1:6]], LAYERS, partial=True)
    assert filled.mask.tolist() == [False] + [True] * 5 + [False] * 2
    assert filled.report.missing == {Reason.NEVER_WRITTEN: 2} and filled.report.no_row == 1
    turned, packed = np.empty((8, 6, K), np.int64).transpose(1, 0, 2), np.empty((6, 8, K), np.uint8)
    refused(
        waymark.InvalidArgumentError,
        (r"sources\[0\].*got \[0, 6\)", lambda: plan.fill([rows[:6]], LAYERS)),
        (r"got \[1, 8\): .* cut in front", lambda: plan.fill([rows[1:]], LAYERS)),
        ("layers.*a layer of .*got 3", lambda: plan.fill([rows], [1, 3])),
        ("distinct", lambda: plan.fill([rows], [1, 1])),
        ("sources: must be one for each of 1", lambda: plan.fill([rows, rows], LAYERS)),
        ("sources: at least one", lambda: plan.fill([], LAYERS)),
        (r"out: \[rows, layers, K\] = \[8, 6",
         lambda: plan.fill([rows], LAYERS, packed=True, out=packed)),
        ("C order", lambda: plan.fill([rows], LAYERS, out=turned)),
    )  # fmt: skip
    for wrong in [(6, 7, K), (8, 6, K), (1, 48, K), (48 * K,)]:  # the others are of the right size
        match = r"out: \[layers, rows, K\] = \[6, 8"
        with pytest.raises(waymark.InvalidArgumentError, match=match):
            plan.fill([rows], LAYERS, out=np.empty(wrong, np.int64))
    write: Any = partial(trainer.FORMATS["verl"].write, layer_ids=LAYERS)
    for source, why in ((ids, "ndarray: .*Rows.from_array"), (None, "NoneType: .*WAYMARK_VLLM=1")):
        two: Any = [rows, source]
        for call in (partial(plans.fill, two, LAYERS), partial(write, two, [8, 8])):
            with pytest.raises(TypeError, match=rf"sources\[1\]: Rows, .* got {why}"):
                call()
    twice = ids.astype(np.uint8)
    twice[3, 2, 0] = twice[3, 2, 1]
    infos = np.zeros(8, waymark.row_info_dtype)
    filled = plan.fill([Rows(rows.shape, 0, twice, infos)], LAYERS)
    assert filled.report.missing == {Reason.INVALID_ID: 1}
    assert filled.report.first_missing == (0, 3) and not filled.mask[3]


def test_layouts_that_are_none_are_refused() -> None:
    most = (1 << 31) - 1
    batch, apart = {"order": "batch-major"}, {"tensor": (0, 2), "sequence_parallel": True}
    refused: list[tuple[str, dict[str, Any], list[int], list[int] | None]] = [
        ("order: one of", {"order": "thd"}, [1], None),
        ("context_cut: one of", {"context_cut": "zag"}, [1], None),
        (r"context\[0\]: an integer in \[0, 1\], got 2", {"context": (2, 2)}, [4], None),
        ("context: an integer in", {"context": (0, 0)}, [4], None),
        (r"tensor\[0\]", {"tensor": (1, 1)}, [1], None),
        ("sequence_multiple", {"sequence_multiple": 0}, [1], None),
        ("'stream' is of packed", {**batch, "context_cut": "stream"}, [1], None),
        ("local_multiple: 1 unless packed", {**batch, "local_multiple": 2}, [1], None),
        (r"lengths\[1\], padded: a multiple of 4 .* got 6", {"context": (0, 2)}, [8, 6], None),
        ("batch: a multiple of 2", {"context": (0, 2), "context_cut": "stream"}, [8, 5], None),
        ("padded length: a multiple of 4", {**batch, "context": (0, 2)}, [8, 10], None),
        ("rows of a context rank: a multiple of 2", apart, [3], None),
        ("positions of a context rank", {**apart, "order": "sequence-major"}, [3, 3], None),
        (r"lengths\[1\]", {}, [1, -1], None),
        ("padded_lengths: one for each of 1", {}, [6], [6, 6]),
        (r"padded_lengths\[1\]", {}, [4, 4], [4, 3]),
        (r"equal unless packed, got \[4, 5\]", batch, [4, 4], [4, 5]),
        (r"fewer than 2\^31 tokens", {}, [most, most], None),
        (r"fewer than 2\^31 rows", batch, [most, 1], None),
    ]
    for match, fields, lengths, padded in refused:
        with pytest.raises(waymark.InvalidArgumentError, match=match):
            trainer.Layout(**fields).plan(lengths, padded)


def test_collect_is_the_way_back(seed: int) -> None:
    """What the ranks recorded becomes the rows of the sequences."""
    rng = np.random.default_rng(seed)
    for order in ("packed", "sequence-major", "batch-major"):
        lengths = [13, 8, 21]
        wanted = [distinct(rng, n, 2) for n in lengths]
        parts: list[list[Rows]] = []
        for cp in range(2):
            for tp in range(2):
                layout = trainer.Layout(order=order, context=(cp, 2), tensor=(tp, 2),
                                        sequence_parallel=True, sequence_multiple=8)  # fmt: skip
                plan = layout.plan(lengths)
                recorded = np.zeros((2, plan.rows, K), np.int64)
                for row, (s, p) in enumerate(zip(*plan.places())):
                    recorded[:, row] = wanted[s][p] if s >= 0 else np.arange(K)
                form: Any = list(recorded) if tp else recorded
                parts.append(plan.collect(form, num_experts=EXPERTS, layer_ids=[3, 7]))
        for s, ids in enumerate(wanted):
            rows = waymark.join(*[of_rank[s] for of_rank in parts])
            assert rows.valid.all() and (rows.ids == ids).all() and rows.layer_ids == (3, 7)
            assert not parts[0][s].valid.all()
            missing = parts[0][s].reasons[~parts[0][s].valid]
            assert set(missing.tolist()) == {Reason.NEVER_WRITTEN}
            assert (rows.infos["version"] == waymark.UNKNOWN_VERSION).all(), "nobody said it"
    with pytest.raises(waymark.InvalidArgumentError, match="recorded"):
        plan.collect(recorded[:1], num_experts=EXPERTS, layer_ids=[3, 7])


def test_stage_layers(seed: int) -> None:
    assert trainer.stage_layers(16, pipeline=(1, 2), virtual=(2, 4)) == range(10, 12)
    assert trainer.stage_layers(61, pipeline=(3, 4), first_stage_layers=15,
                                last_stage_layers=14) == range(47, 61)  # fmt: skip
    rng = np.random.default_rng(seed)
    for _ in range(300):  # chunk v of a stage comes before chunk v of the next, and all are there
        chunks, stages = (int(n) for n in rng.integers(1, [4, 6]))
        first = int(rng.integers(3)) * chunks
        last = int(rng.integers(3)) * chunks if stages > 1 else 0
        others = stages - (first > 0) - (last > 0)
        middle = int(rng.integers(1, 4)) * chunks
        layers = first + last + middle * others
        found = []
        for place in ((v, s) for v in range(chunks) for s in range(stages)):
            part = trainer.stage_layers(
                layers, pipeline=(place[1], stages), virtual=(place[0], chunks),
                first_stage_layers=first, last_stage_layers=last,
            )  # fmt: skip
            wanted = {0: first or middle, stages - 1: last or middle} if stages > 1 else {}
            wanted.setdefault(place[1], first or last or middle if stages == 1 else middle)
            assert len(part) * chunks == wanted[place[1]]
            found += part
        assert found == list(range(layers))
    refused: list[tuple[str, dict[str, Any]]] = [
        ("num_layers: ", {"num_layers": 0}),
        ("num_layers: .* of 4 others, got 61", {"num_layers": 61, "pipeline": (0, 4)}),
        ("pipeline", {"pipeline": (1, 1)}),
        ("pipeline", {"pipeline": (0, 0)}),
        ("pipeline: 2 stages", {"first_stage_layers": 4, "last_stage_layers": 4}),
        ("virtual", {"virtual": (-1, 1)}),
        ("virtual: a divisor of the 4 layers", {"pipeline": (0, 2), "virtual": (0, 3)}),
        ("first_stage_layers", {"first_stage_layers": -1}),
        ("last_stage_layers", {"last_stage_layers": -1}),
    ]
    for match, given in refused:
        with pytest.raises(waymark.InvalidArgumentError, match=match):
            trainer.stage_layers(**{"num_layers": 8, **given})


def test_the_example_of_the_documentation_runs() -> None:
    page = pathlib.Path(__file__).parents[3] / "docs" / "training.md"
    example, *_ = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    names: dict[str, Any] = {}
    exec(compile(example, str(page), "exec"), names)  # noqa: S102
    filled = names["filled"]
    assert filled.ids.shape == (2, names["plan"].rows, 6)
    assert list(names["stage"]) == [3, 4] and filled.report.replayed > 0
