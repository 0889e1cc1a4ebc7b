"""What crosses between two vLLM engines beside a tier, without vLLM: the tail of a prompt, and the
options."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import waymark
from waymark.vllm import _tier
from waymark.vllm._hooks import Refused
from waymark.vllm._options import of

BLOCK = 4
TOKENS = [11, 12, 13, 14, 15, 16, 17]  # a full block, and three rows


def request(tokens: list[int] = TOKENS, **params: Any) -> Any:
    return SimpleNamespace(
        all_token_ids=tokens, num_tokens=len(tokens), kv_transfer_params=params or None
    )


def rows(first: int, last: int, *, version: int = 7, seed: int = 0) -> waymark.Rows:
    ids = (np.arange(first, last)[:, None, None] + np.array([[0, 1], [2, 3]]) + seed) % 64
    return waymark.Rows.from_array(
        ids, num_experts=64, layer_ids=(1, 2), first=first, version=version
    )


class Engines:
    """Two schedulers with one tier."""

    hashes = [b"hash of block 0"]

    def __init__(self, **more: Any) -> None:
        self.first = _tier.Tails({"url": "", **more}, "model", BLOCK, BLOCK)
        self.second = _tier.Tails({"url": "", **more}, "model", BLOCK, BLOCK)

    def given(self, tail: waymark.Rows, names: dict[int, str]) -> Any:
        output = SimpleNamespace(kv_transfer_params={"remote": 1})
        self.first.give(
            output, request(), self.hashes, tail.to_bytes(), lambda version: names.get(version, "")
        )
        assert output.kv_transfer_params["remote"] == 1
        return output.kv_transfer_params.get(_tier.TAIL)

    def taken(self, given: Any, tokens: list[int] = TOKENS, weights: str = "w") -> bytes:
        return self.second.take(
            request(tokens, **{_tier.TAIL: given}), self.hashes, weights
        )


def test_the_rows_behind_the_full_blocks_cross_with_the_request() -> None:
    engines = Engines()
    tail = engines.taken(engines.given(rows(4, 7), {7: "w"}))
    mine = waymark.Rows.from_array(
        np.zeros((8, 2, 2), np.int64), num_experts=64, layer_ids=(1, 2), valid=[False] * 8,
        missing=waymark.Reason.EXTERNAL_KV,
    )  # fmt: skip
    filled = _tier.with_tail(mine, tail, 3)
    assert filled.valid.tolist() == [False] * 4 + [True] * 3 + [False]
    assert (filled.ids[4:7] == rows(4, 7).ids).all()
    assert {run.version for run in filled.coverage() if run.valid} == {3}, "this engine's number"


def test_rows_that_are_there_stay() -> None:
    mine = rows(0, 7, seed=9)
    assert _tier.with_tail(mine, rows(4, 7).to_bytes(), 3) is mine


@pytest.mark.parametrize("names", [{}, {8: "w"}])
def test_rows_of_weights_without_a_name_do_not_cross(names: dict[int, str]) -> None:
    assert Engines().given(rows(4, 7), names) is None


def test_rows_that_are_not_complete_do_not_cross() -> None:
    tail = waymark.Rows.from_array(
        rows(4, 7).ids, num_experts=64, layer_ids=(1, 2), first=4, version=7, valid=[True, False, True]
    )
    assert Engines().given(tail, {7: "w"}) is None


def test_a_tail_of_others_gives_nothing(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    engines = Engines()
    given = engines.given(rows(4, 7), {7: "w"})
    assert engines.taken(given)
    assert not engines.taken(given, [11, 12, 13, 14, 15, 16, 18]), "another token"
    assert not engines.taken(given, TOKENS[:6]), "fewer tokens"
    assert not engines.taken(given, weights="other"), "other weights"
    assert not engines.taken(given, weights=""), "weights without a name"
    assert not engines.taken(given | {"first": 3}), "other rows"
    engines.hashes = [b"hash of another block"]
    assert not engines.taken(given), "another prefix"
    engines.hashes = Engines.hashes
    assert not engines.taken(given | {"rows": engines.given(rows(4, 7, seed=5), {7: "w"})["rows"]})
    (tmp_path / "a").write_bytes(b"a" * 32)
    assert not Engines(key_file=tmp_path / "a").taken(given), "without the key"
    assert not Engines(space="tenant b").taken(given), "of another tenant"
    for wrong in (3, [], {"first": 4}, given | {"rows": "?"}):
        assert not engines.taken(wrong)
    assert len(caplog.records) == 13


def config(tier: Any) -> Any:
    return SimpleNamespace(additional_config={"waymark": {"tier": tier}})


def test_options() -> None:
    options = of(config({"url": "redis://127.0.0.1", "space": "a", "timeout": 0.5}))
    assert options is not None
    tier = _tier.tier_of(options.tier, "model", "engine 3")
    assert (tier.space, tier.publisher, tier.timeout) == ("a", "engine 3", 0.5)
    assert _tier.tier_of("redis://127.0.0.1", "model").space == "model"


def test_options_are_checked_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(what: str) -> waymark.MemorySource:
        made.append(what)
        return waymark.MemorySource(1)

    monkeypatch.setattr(sys.modules["waymark._source_url"], "ProcessSource", make)
    options = of(config("python:package.module:factory"))
    assert options is not None and not made
    _tier.tier_of(options.tier, "model")
    assert made == ["package.module:factory"], "one process for both directions"


@pytest.mark.parametrize(
    ("tier", "says"),
    [
        (3, "tier"),
        ("nothing://x", "tier: "),
        ("python:module", "tier: url: python:module:factory"),
        ({"space": "a"}, "tier: 'url' is missing"),
        ({"url": "redis://127.0.0.1", "tiemout": 1}, "tiemout"),
        ({"url": "redis://127.0.0.1", "timeout": -1}, "timeout: at least 0 s"),
        ({"url": "redis://127.0.0.1", "key_file": "/nowhere"}, "/nowhere"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(tier: Any, says: str) -> None:
    with pytest.raises(Refused, match=says):
        of(config(tier))
