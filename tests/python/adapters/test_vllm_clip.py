"""Hits that are clipped at the blocks that have rows, on the tiny engine of vLLM's names."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from test_vllm_loads import load
from vllm_engine import BLOCK, Engine, Request, expected, vllm
from waymark.vllm import worker_report
from waymark.vllm._hooks import Refused
from waymark.vllm._options import Options

__all__ = ["vllm"]  # a fixture for every test


class Connector:
    """Says that it has so many tokens."""

    offers: int | None = 0

    def update_state_after_alloc(self, request: Request, blocks: list[int], tokens: int) -> None:
        pass

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Any:
        return self.offers, bool(self.offers)


@pytest.fixture(autouse=True)
def connector(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vllm_engine"], "connector", Connector())


class Clipping(Engine):
    """Lookups as vLLM's scheduler makes them."""

    def __init__(self, clip: bool = True) -> None:
        super().__init__(Options(clip=clip))
        self.manager: Any = self.scheduler.kv_cache_manager

    def loaded(
        self, name: str, tokens: int, local: tuple[int, ...] = (), later: bool = False
    ) -> Request:
        """A request without rows, whose blocks a connector fills, behind those of hits."""
        request: Request = self.request(name, tokens + len(local) * BLOCK + 2, 16, asked=False)
        load(self, request, list(local), tokens, later)
        self.remember(request)
        return request

    def remember(self, request: Request) -> None:
        self.manager.cached.update(zip(request.block_hashes, request.blocks))

    def hits(self, request: Request) -> list[int]:
        """Of a request; and what a connector has beyond them."""
        found = self.manager.get_computed_blocks(request)
        self.offer = self.scheduler.connector.get_num_new_matched_tokens(request, found[1])
        assert len(found[0].blocks) * BLOCK == found[1] and len(request.block_hashes) == 16
        blocks: list[int] = found[0].blocks
        return blocks

    def clipped(self) -> int:
        worker: Any = type("W", (), {"model_runner": self.runner})()
        return int(worker_report(worker)["clipped_tokens"])


def test_a_request_with_rows_hits_no_block_that_was_loaded() -> None:
    engine = Clipping()
    a = engine.loaded("a", 8)
    engine.step({"a": 2})
    b, c = engine.request("b", 10, 16), engine.request("c", 10, 16, asked=False)
    assert engine.hits(c) == a.blocks[:2]
    assert engine.hits(b) == []
    assert engine.hits(b) == []  # asked again before it starts: it counts once
    rows = engine.last({"b": 10})
    assert (rows == expected(0, 10)).all() and engine.coverage("b").complete
    assert engine.clipped() == 8


def test_hits_in_front_of_a_loaded_block_stay() -> None:
    engine = Clipping()
    first = engine.request("first", 5, 16)
    engine.step({"first": 5})
    engine.remember(first)
    a = engine.loaded("a", 4, local=(first.blocks[0],))
    engine.step({"a": 2})
    assert engine.hits(engine.request("b", 12, 16)) == a.blocks[:1]


@pytest.mark.parametrize("later", [False, True])
def test_blocks_of_a_load_are_known_in_its_own_schedule(later: bool) -> None:
    engine = Clipping()
    engine.loaded("a", 8, later=later)
    assert engine.hits(engine.request("b", 10, 16)) == []
    engine.step({"a": 2})
    assert engine.hits(engine.request("c", 10, 16)) == []


def test_a_block_that_a_load_fills_in_part_has_no_rows() -> None:
    engine = Clipping()
    a = engine.loaded("a", 6)
    engine.step({"a": 2})
    engine.manager.cached = {a.block_hashes[1]: a.blocks[1]}
    b = engine.request("b", 10, 16)
    b.block_hashes = a.block_hashes[1:] + [b""]
    assert engine.hits(b) == []


def test_a_block_that_is_computed_later_has_rows() -> None:
    for begins in (True, False):
        engine = Clipping()
        a = engine.loaded("a", 8)
        engine.step({"a": 2}, finish=("a",))
        engine.scheduler.free.extend([engine.scheduler.free.popleft() for _ in range(60)])
        first = engine.scheduler.free.index(a.blocks[0])
        engine.scheduler.free.rotate(-first)  # the loaded blocks are next
        b = engine.request("b", 8, 16)
        if begins:
            engine.step({"b": 8})
        else:
            engine.scheduler.free.rotate(-2)
            engine.step({"b": 1})
            engine.scheduler.free.rotate(2)
            engine.step({"b": 7})
        assert set(b.blocks) & set(a.blocks[:2])
        engine.remember(b)
        assert engine.hits(engine.request("c", 10, 16)) == b.blocks[:2]


def test_a_copy_of_a_block_without_rows_has_none() -> None:
    engine = Clipping()
    a = engine.loaded("a", 8)
    engine.step({"a": 2})
    group: Any = engine.manager.coordinator.single_type_managers[0]
    block = type("Block", (), {})
    source, copy = block(), block()
    source.block_id, copy.block_id = a.blocks[0], 40
    group._apply_cow("x", 0, source, copy)
    engine.manager.cached = {a.block_hashes[0]: 40}
    assert engine.hits(engine.request("b", 10, 16)) == []
    source.block_id = 41  # has rows
    group._apply_cow("x", 0, source, copy)
    assert engine.hits(engine.request("c", 10, 16)) == [40]


def test_a_reset_forgets_which_blocks_were_loaded() -> None:
    engine = Clipping()
    a = engine.loaded("a", 8)
    blocks = a.blocks[:2]
    engine.step({"a": 2}, finish=("a",))
    engine.drain()
    engine.manager.block_pool.reset_prefix_cache()
    assert engine.hits(engine.request("b", 10, 16)) == blocks


def test_a_request_with_rows_loads_nothing() -> None:
    engine = Clipping()
    b, c = engine.request("b", 10, 16), engine.request("c", 10, 16, asked=False)
    engine.scheduler.connector.offers = 8
    engine.hits(c)
    assert engine.offer == (8, True)
    engine.hits(b)
    assert engine.offer == (0, False)
    engine.step({"b": 10})
    assert engine.clipped() == 8
    engine.scheduler.connector.offers = None  # not known yet
    engine.hits(engine.request("d", 10, 16))
    assert engine.offer == (None, False)


@pytest.mark.parametrize("offers, tokens", [((12,), 12), ((12, 0), 8), ((4,), 8)])
def test_tokens_that_were_clipped_count_once(offers: tuple[int, ...], tokens: int) -> None:
    """What a connector has goes beyond the hits that are left; only the last lookup counts."""
    engine = Clipping()
    engine.loaded("a", 8)
    engine.step({"a": 2})
    b = engine.request("b", 14, 16)
    for engine.scheduler.connector.offers in offers:
        engine.hits(b)
    engine.step({"b": 14})
    assert engine.clipped() == tokens


def test_hits_are_as_vllm_found_them_without_the_option_or_the_capture() -> None:
    for clip in (False, True):
        engine = Clipping(clip)
        a = engine.loaded("a", 8)
        engine.step({"a": 2})
        if clip:
            engine.scheduler._waymark.fail(RuntimeError("a test"))
        engine.scheduler.connector.offers = 8
        assert engine.hits(engine.request("b", 10, 16)) == a.blocks[:2]
        assert engine.offer == (8, True)


def test_a_model_with_states_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM looks up their hits in another way."""
    of_cache = sys.modules["vllm_engine"].config
    monkeypatch.setattr(
        sys.modules["vllm_engine"], "config",
        lambda: types.SimpleNamespace(**of_cache().__dict__, has_mamba_layers=True),
    )  # fmt: skip
    Clipping(clip=False)
    with pytest.raises(Refused, match="clip is refused: a layer"):
        Clipping()


def test_a_request_that_never_starts_leaves_no_count() -> None:
    engine = Clipping()
    engine.loaded("a", 8)
    engine.step({"a": 2})
    b = engine.request("b", 10, 16)
    engine.hits(b)
    engine.scheduler._free_request(b)
    assert not engine.scheduler._waymark.clip._clipped
