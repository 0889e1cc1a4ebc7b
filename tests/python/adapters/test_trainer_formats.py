"""The arrays that trainers take: each written, and what is refused.

The oracle builds each trainer's array token by token, from what its own code does with an engine's
rows. It shares nothing with the table of the package.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import refused
from waymark import Reason, Rows, trainer

Ids = Any
LAYERS, NUM_LAYERS = (1, 2, 4), 6  # 0, 3 and 5 are dense
K = 3
NAMES = tuple(trainer.FORMATS)
BY_TOKEN = ("verl", "nemo-rl", "skyrl", "prime-rl", "roll")  # T rows of T tokens
NATIVE = ("nemo-rl",)  # routes missing rows itself
ALL_LAYERS = ("skyrl", "slime", "miles", "prime-rl", "areal")


def routes(rng: np.random.Generator, rows: int, layers: int, experts: int, k: int = K) -> Ids:
    return rng.random((rows, layers, experts)).argsort(-1)[..., :k]


def layers_of(name: str) -> tuple[tuple[int, ...], int | None]:
    """(layers with experts, layers of the model) that the trainer can express."""
    if name == "roll":
        return (0, 1, 2), 3
    return LAYERS, None if name == "megatron" else NUM_LAYERS


class Case:
    """Sequences of some lengths, and the ids that an engine captured for them."""

    def __init__(
        self, name: str, rng: np.random.Generator, lengths: list[int], *, experts: int = 16,
        k: int = K, missing: float = 0.0,
    ) -> None:  # fmt: skip
        self.name, self.lengths, self.experts, self.k = name, lengths, experts, k
        self.layer_ids, self.num_layers = layers_of(name)
        count = [max(n - 1, 0) for n in lengths]
        self.ids = [routes(rng, n, len(self.layer_ids), experts, k) for n in count]
        self.valid = [rng.random(n) >= missing for n in count]

    @property
    def rows(self) -> list[Rows]:
        return [
            Rows.from_array(ids, num_experts=self.experts, layer_ids=self.layer_ids, valid=valid)
            for ids, valid in zip(self.ids, self.valid)
        ]

    def write(
        self, rows: Any = None, lengths: list[int] | None = None, **arguments: Any
    ) -> trainer.ReplayData:
        """Other rows, or other lengths, if they are given."""
        rows = self.rows if rows is None else rows
        lengths = self.lengths if lengths is None else lengths
        where = {"layer_ids": self.layer_ids, "num_layers": self.num_layers}
        return trainer.FORMATS[self.name].write(rows, lengths, **{**where, **arguments})


def tokens_of(case: Case) -> Iterator[tuple[int, int, list[list[int]] | None]]:
    """(sequence, position, the K ids of each layer, or None for missing ones and last tokens)."""
    for s, n in enumerate(case.lengths):
        for t in range(n):
            has = t < n - 1 and bool(case.valid[s][t])
            yield s, t, case.ids[s][t].tolist() if has else None


def by_hand(case: Case) -> list[list[list[list[int] | None]]]:
    """[sequence][row][column][k], what the trainer's code makes of the engine's rows. None: a fill,
    K distinct experts (test_trainer_load.py)."""
    zeros, minus = [0] * case.k, [-1] * case.k
    layer_of = range(3) if case.name in ("megatron", "roll") else case.layer_ids
    columns = case.num_layers or len(case.layer_ids)
    result: list[list[list[list[int] | None]]] = [[] for _ in case.lengths]
    for s, t, ids in tokens_of(case):
        final = t == case.lengths[s] - 1
        if final and case.name not in (*BY_TOKEN, "megatron"):
            continue
        if ids is None and not final and case.name in NATIVE:
            result[s].append([minus] * columns)
            continue
        row: list[list[int] | None] = [zeros] * columns
        for layer in range(3):
            row[layer_of[layer]] = None if ids is None else ids[layer]
        result[s].append(row)
    return result


def agrees(case: Case, got: Ids, wanted: list[list[list[list[int] | None]]]) -> bool:
    """The rows of a sequence."""
    for row, of in zip(got.tolist(), wanted, strict=True):
        for ids, given in zip(row, of, strict=True):
            fill = len(set(ids)) == case.k and 0 <= min(ids) <= max(ids) < case.experts
            if not fill if given is None else ids != given:
                return False
    return True


def all_agree(case: Case, data: trainer.ReplayData) -> bool:
    return all(agrees(case, *of) for of in zip(as_written(case, data), by_hand(case), strict=True))


def as_written(case: Case, data: trainer.ReplayData) -> list[Ids]:
    """The rows of each sequence in what was written, without the package's reader."""
    columns = case.num_layers or len(case.layer_ids)
    if case.name == "megatron":
        rows = np.stack(data.ids, 1)
        return [*np.split(rows, np.cumsum(case.lengths)[:-1])]
    if case.name == "skyrl":
        assert data.cu_seqlens is not None and data.cu_seqlens.dtype == np.int32
        assert data.cu_seqlens.tolist() == [0, *np.cumsum(case.lengths).tolist()]
        return [*np.split(data.ids, np.cumsum(case.lengths)[:-1])]
    if case.name == "roll":
        assert data.ids.shape[1] == max(case.lengths)
        return [row[:n] for row, n in zip(data.ids, case.lengths)]
    if case.name == "prime-rl":
        return [np.frombuffer(d["data"], d["dtype"]).reshape(d["shape"]) for d in data.ids]
    if case.name == "areal":
        assert all(part.shape[1] == columns * case.k for part in data.ids)
        return [part.reshape(-1, columns, case.k) for part in data.ids]
    return list(data.ids)


def check_mask(case: Case, data: trainer.ReplayData) -> None:
    """True for the rows that the engine captured."""
    parts = data.mask
    if case.name in ("megatron", "skyrl"):
        parts = np.split(data.mask, np.cumsum(case.lengths)[:-1])
    for part, valid in zip(parts, case.valid, strict=True):
        assert part.nonzero()[0].tolist() == valid.nonzero()[0].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_what_the_trainer_makes(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        lengths = [int(n) for n in rng.integers(1, 12, int(rng.integers(1, 5)))]
        case = Case(name, rng, lengths, missing=0.3 * int(rng.integers(2)))
        data = case.write(missing="fill")
        assert all_agree(case, data), f"--seed={seed} {lengths}"
        check_mask(case, data)
        missing = sum(int((~valid).sum()) for valid in case.valid)
        assert data.report.no_row == sum(n > 0 for n in lengths)
        assert data.report.replayed == sum(map(len, case.ids)) - missing
        assert sum(data.report.missing.values()) == missing


@pytest.mark.parametrize("name", NAMES)
def test_missing_rows_are_refused_unless_the_trainer_routes_them(name: str, seed: int) -> None:
    case = Case(name, np.random.default_rng(seed), [4, 7])
    case.valid[1][2] = case.valid[1][5] = False
    if name in NATIVE:
        data = case.write()
        assert data.report.missing == {Reason.NOT_TOLD: 2}
        assert all_agree(case, data)
        return
    with pytest.raises(waymark.FailedPreconditionError) as error:
        case.write()
    text = str(error.value)
    assert text.startswith("sources[1]: no ids for token 2 ") and "2 not told" in text
    assert name in text and "missing='fill'" in text
    assert case.write(missing="fill").report.first_missing == (1, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_source_with_fewer_rows(name: str, seed: int) -> None:
    """Never silently, not even where the trainer routes missing rows: the lengths may be wrong."""
    case = Case(name, np.random.default_rng(seed), [6, 5])
    short = [case.rows[0][:3], case.rows[1]]
    refused(
        waymark.InvalidArgumentError,
        (r"sources\[0\]: must have rows", lambda: case.write(short, missing="fill")),
        (r"sources\[0\]: must have rows", lambda: case.write(lengths=[4, 3])),  # too many rows
        ("sources", lambda: case.write(case.rows[:1])),
        ("sources", lambda: case.write([], [])),
    )
    data = case.write(short, missing="fill", partial=True)
    case.valid[0][3:] = False
    check_mask(case, data)
    assert all_agree(case, data)


@pytest.mark.parametrize("name", NAMES)
def test_the_row_of_a_last_token_is_not_an_engines(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Case(name, rng, [5, 3])
    wanted = case.write()
    with_last = [
        Rows.from_array(
            np.concatenate((ids, routes(rng, 1, len(case.layer_ids), 16))),
            num_experts=16, layer_ids=case.layer_ids,
        )
        for ids in case.ids
    ]  # fmt: skip
    got = case.write(with_last)
    assert all_agree(case, got)
    assert got.report == wanted.report
    # One that its source calls missing was counted twice, and was named as what the trainer lacks.
    numbers = np.array([0, 0, 0, 0, Reason.NOT_CAPTURED])
    lost = with_last[0].infos.copy()
    lost["reason"], lost["version"] = numbers, np.where(numbers == 0, lost["version"], 0)
    with_last[0] = Rows(with_last[0].shape, 0, with_last[0].ids, lost)
    assert case.write(with_last).report == wanted.report
    if name not in NATIVE:
        lost = with_last[1].infos.copy()
        lost["reason"][1], lost["version"][1] = Reason.AUDIT, 0
        with_last[1] = Rows(with_last[1].shape, 0, with_last[1].ids, lost)
        match = r"sources\[1\]: no ids for token 1"
        with pytest.raises(waymark.FailedPreconditionError, match=match):
            case.write(with_last)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lengths", ([1], [0, 3], [2, 0, 1], [1, 1]))
def test_empty_sequences_and_single_tokens(name: str, lengths: list[int], seed: int) -> None:
    case = Case(name, np.random.default_rng(seed), lengths)
    data = case.write()
    assert all_agree(case, data)
    check_mask(case, data)


@pytest.mark.parametrize("name", NAMES)
def test_one_expert_a_token(name: str, seed: int) -> None:
    """With K = 1 expert 0 is a route: zeros tell nothing, and only the mask says what is
    missing."""
    case = Case(name, np.random.default_rng(seed), [9, 5], k=1, experts=3)
    case.ids[0][4] = 0
    data = case.write()
    assert all_agree(case, data)
    case.valid[0][1] = False
    check_mask(case, case.write(missing="fill"))


GREATEST = {  # of a model: the type of ids up to E - 1, or None where there is none
    "megatron": {256: "int64", 32768: "int64", 32769: "int64"},
    "verl": {256: "int16", 32768: "int16", 32769: None},
    "nemo-rl": {128: "int8", 129: "int16", 256: "int16", 32768: "int16", 32769: "int32"},
    "skyrl": {128: "uint8", 256: "uint8", 257: "int16", 32768: "int16", 32769: "int32"},
    "slime": {256: "int32", 32769: "int32"},
    "miles": {256: "int32", 32769: "int32"},
    "prime-rl": {256: "uint8", 257: "uint16", 32769: "uint16"},
    "roll": {256: "uint8", 257: "int16", 32768: "int16", 32769: None},
    "areal": {256: "int32", 32769: "int32"},
}


def dtype_of(case: Case, data: trainer.ReplayData) -> str:
    parts = as_written(case, data)
    assert len({part.dtype for part in parts}) == 1
    return str(parts[0].dtype.name)


@pytest.mark.parametrize("name", NAMES)
def test_types_of_ids(name: str, seed: int) -> None:
    for experts, wanted in GREATEST[name].items():
        case = Case(name, np.random.default_rng(seed), [3, 4])
        case.experts = experts
        case.ids[1][1, 0, 0] = experts - 1
        if wanted is None:
            with pytest.raises(waymark.InvalidArgumentError, match="32767.*got 32768"):
                case.write()
            continue
        data = case.write()
        assert dtype_of(case, data) == wanted
        assert all_agree(case, data)
        # The same model, but no great id in this array: the types of two batches differed.
        others = case.ids[1][1, 0, 1:]
        case.ids[1][1, 0, 0] = next(e for e in range(16) if e not in others)
        assert dtype_of(case, case.write()) == wanted


def test_layers_that_a_trainer_cannot_express(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in NAMES:
        case = Case(name, rng, [4])

        def no_layers(match: str, **where: Any) -> None:
            with pytest.raises(waymark.InvalidArgumentError, match=match):
                case.write(**{"num_layers": None, **where})

        if name in ALL_LAYERS:
            no_layers("num_layers: of the model", layer_ids=LAYERS)
        if name == "roll":
            dense = r"layer_ids: 0 to 3, .* a dense layer shifts"
            no_layers(dense, layer_ids=(0, 1, 2), num_layers=4)
            no_layers("layer_ids: 0 to 2, ", layer_ids=(1, 2, 4))
            continue
        if name == "megatron":
            no_layers(r"layers\[1\].* got 2 twice", layer_ids=(2, 2))
            swapped = case.write(layer_ids=(4, 1, 2)).ids  # of the routers
            np.testing.assert_array_equal(swapped[0][:3], case.ids[0][:, 2])
            continue
        no_layers("layer_ids: .* increasing, got", layer_ids=(2, 1, 4), num_layers=6)
        no_layers("layer_ids: .* increasing, got", layer_ids=(1, 1, 4), num_layers=6)
        no_layers("layer_ids: .* got", layer_ids=(), num_layers=6)
        no_layers("layer_ids: below num_layers = 4, got 4", layer_ids=LAYERS, num_layers=4)
        no_layers("got 5", layer_ids=(1, 2, 5), num_layers=6)  # not captured


@pytest.mark.parametrize("name", ("verl", "nemo-rl"))
def test_columns_of_layers_with_experts_only(name: str, seed: int) -> None:
    case = Case(name, np.random.default_rng(seed), [4, 6])
    case.num_layers = None
    data = case.write()
    assert [part.shape[1] for part in data.ids] == [3, 3]
    for part, ids in zip(data.ids, case.ids):
        np.testing.assert_array_equal(part[:-1], ids)


@pytest.mark.parametrize("name", ("verl", "nemo-rl", "roll"))
def test_a_padded_batch(name: str, seed: int) -> None:
    """verl: prompts of 2, 5 and 0 tokens are padded on the left to 5."""
    case = Case(name, np.random.default_rng(seed), [6, 9, 4])
    starts, length = [3, 0, 5], 12
    data = case.write(form="batch", length=length, starts=starts)
    assert data.ids.shape[:2] == data.mask.shape == (3, length)
    for row, mask, at, n, wanted in zip(data.ids, data.mask, starts, case.lengths, by_hand(case)):
        assert agrees(case, row[at : at + n], wanted)
        padding = np.concatenate((row[:at], row[at + n :]))[:, list(case.layer_ids)]
        assert (np.diff(np.sort(padding)) > 0).all() and padding.max() < 16
        assert mask.nonzero()[0].tolist() == list(range(at, at + n - 1))
    batch = partial(case.write, form="batch")
    refused(
        waymark.InvalidArgumentError,
        (r"starts: .* got \[4, 13\)", lambda: batch(length=length, starts=[3, 4, 5])),
        (r"length: .* got \[0, 9\)", lambda: batch(length=8)),
        ("starts: of 3 sequences, got 2", lambda: batch(starts=[0, 0])),
    )


def test_the_mask_of_skyrl(seed: int) -> None:
    case = Case("skyrl", np.random.default_rng(seed), [3, 6])
    case.valid[1][1] = False
    data = case.write(missing="fill", length=8)
    assert data.router_padding_mask is not None
    padding = data.router_padding_mask.astype(int).tolist()
    assert padding == [[1, 1, 1, 1, 1, 0, 0, 1], [1, 1, 0, 1, 0, 0, 0, 1]]


def test_a_rank_of_megatron(seed: int) -> None:
    case = Case("megatron", np.random.default_rng(seed), [9, 4], missing=0.2)
    layout = trainer.Layout(
        order="sequence-major", context=(1, 2), tensor=(0, 2), sequence_parallel=True,
        sequence_multiple=8,
    )  # fmt: skip
    plan, known = layout.plan(case.lengths), trainer.FORMATS["megatron"]
    data = known.write(case.rows, plan, layer_ids=(2, 4), missing="fill")
    filled = plan.fill(case.rows, (2, 4))
    assert len(data.ids) == 2 and all(ids.flags.c_contiguous for ids in data.ids)
    np.testing.assert_array_equal(np.stack(data.ids), filled.ids)
    np.testing.assert_array_equal(data.mask, filled.mask)
    assert data.report == filled.report
    with pytest.raises(waymark.InvalidArgumentError, match="lengths: .* got a Plan"):
        trainer.FORMATS["slime"].write(case.rows, plan, layer_ids=LAYERS, num_layers=6)


@pytest.mark.parametrize("name", NAMES)
def test_documents_and_handles_are_sources_too(name: str, seed: int) -> None:
    case = Case(name, np.random.default_rng(seed), [7, 40])
    first, second = case.rows
    source = waymark.MemorySource()
    handle = waymark.Publisher(source, second.shape).publish(second).wait(10)
    sources = [(waymark.Fetcher(source), handle), waymark.from_bytes(first.to_bytes())]
    data = case.write(sources, [40, 7], timeout=10)
    case.lengths.reverse(), case.ids.reverse(), case.valid.reverse()
    assert all_agree(case, data)


def test_arguments_of_other_forms_are_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in NAMES:
        case = Case(name, rng, [4])
        form = trainer.FORMATS[name].forms[0]
        if form not in ("batch", "packed"):
            with pytest.raises(waymark.InvalidArgumentError, match="length: only with"):
                case.write(length=9)
        if form != "batch":
            with pytest.raises(waymark.InvalidArgumentError, match="starts: only with"):
                case.write(starts=[0])
        with pytest.raises(waymark.InvalidArgumentError, match="missing: one of refuse, fill"):
            case.write(missing="zeros")
        with pytest.raises(waymark.InvalidArgumentError, match="form: one of"):
            case.write(form="wrong")


def test_duplicate_ids_of_a_source_are_missing_rows(seed: int) -> None:
    case = Case("verl", np.random.default_rng(seed), [6])
    ids = case.rows[0].ids.copy()
    ids[2, 1, 0] = ids[2, 1, 1]
    twice = Rows(case.rows[0].shape, 0, ids, case.rows[0].infos)
    with pytest.raises(waymark.FailedPreconditionError, match="token 2 .*1 invalid id"):
        case.write([twice])


def test_the_table() -> None:
    assert len(NAMES) == 9
    for name, known in trainer.FORMATS.items():
        assert known.name == name and known.version and known.forms
        assert not known.native or all(np.iinfo(t).min < 0 for t in known.dtypes)
        assert list(known.dtypes) == sorted(known.dtypes, key=lambda t: np.iinfo(t).max)


def test_the_documentation_has_these_facts() -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "training.md").read_text()
    section = page.split("## The arrays of trainers\n")[1].split("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```", section, re.S | re.M)
    names: dict[str, Any] = {}
    exec(compile(example, "training.md", "exec"), names)  # noqa: S102
    assert [part.shape for part in names["data"].ids] == [(20, 5, 6), (13, 5, 6)]
    table = re.findall(r"^\| `([a-z-]+)` \((.*?)\) \| (.*) \|$", section, re.M)
    assert [row[0] for row in table] == list(NAMES)
    for name, version, rest in table:
        known, cells = trainer.FORMATS[name], rest.split(" | ")
        _, rows, layers, dtypes, missing = cells
        assert version == known.version
        if name == "megatron":
            assert rows == "the plan's"
        else:
            assert rows == ("T" if known.last_row else "T - 1")
        told = {"moe": "with", "all or moe": "all, or with", "every": "all, each"}
        assert layers.startswith(told.get(known.layers, "all"))
        assert dtypes == ", ".join(known.dtypes)
        assert missing.startswith("-1; routed by the trainer" if known.native else "replayed")


def test_a_name_of_the_other_kind_of_format_says_which_call_has_it() -> None:
    with pytest.raises(KeyError, match=r"waymark\.read\(\) and Rows\.to_format\(\)"):
        trainer.FORMATS["vllm"]
    with pytest.raises(KeyError, match="the arrays are megatron, verl"):
        trainer.FORMATS["no-such"]
    rows = Rows.from_array(np.array([[[0, 1]]]), num_experts=4, layer_ids=[0])
    with pytest.raises(waymark.InvalidArgumentError, match=r"trainer\.FORMATS\['verl'\]"):
        rows.to_format("verl")
    with pytest.raises(waymark.InvalidArgumentError, match=r"trainer\.FORMATS\['slime'\]"):
        waymark.read(b"[[[0, 1]]]", "slime", num_experts=4)
