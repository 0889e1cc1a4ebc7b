"""Requests whose first tokens a connector loads, on the tiny engine of vLLM's names."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from vllm_engine import ABORTED, BLOCK, Engine, Request, expected, vllm
from waymark import Provenance, Reason

__all__ = ["vllm"]  # a fixture for every test


class Connector:
    def update_state_after_alloc(self, request: Request, blocks: list[int], tokens: int) -> None:
        pass


@pytest.fixture(autouse=True)
def connector(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vllm_engine"], "connector", Connector())


def load(engine: Engine, request: Request, local: list[int], external: int, later: bool) -> None:
    manager: Any = engine.scheduler.kv_cache_manager
    manager.allocate_slots(
        request, 0, num_new_computed_tokens=len(local) * BLOCK, hits=local,
        num_external_computed_tokens=external, delay_cache_blocks=later,
    )  # fmt: skip
    engine.scheduler.connector.update_state_after_alloc(request, request.blocks, external)


def busy_blocks(engine: Engine) -> None:
    """Every block has had rows of a request, and is free."""
    engine.ask(**{f"before{i}": 28 for i in range(8)}).shift = 20
    for first in (0, 4):
        names = [f"before{i}" for i in range(first, first + 4)]
        engine.step({name: 16 for name in names})
        engine.step({name: 12 for name in names}, finish=tuple(names))
    engine.drain()
    engine.shift = 0
    engine.scheduler.free.rotate(7)  # those that had none go last


def fail_a_load(engine: Engine, hashes: int) -> None:
    """A request loads 8 tokens, of which 4 do not come; its forward reads what is not there."""
    request = engine.request("a", 14, hashes)
    load(engine, request, [], 8, later=False)
    engine.step({"a": 6})
    engine.scheduler._handle_invalid_blocks({"a": 4})
    request.num_tokens = 14


@pytest.mark.parametrize("ends", ["loading", "loaded"])
def test_blocks_of_an_aborted_load_have_no_rows_of_others(ends: str) -> None:
    """A request that was aborted between its load and its first schedule: the next one with its
    prefix got 192 of 192 rows of other requests as valid."""
    engine = Engine()
    busy_blocks(engine)
    a = engine.request("a", 14)
    a.block_hashes = [bytes([99 + i] * 32) for i in range(3)]
    load(engine, a, [], 12, later=True)
    blocks = list(a.blocks)
    engine.step({})
    if ends == "loaded":
        engine.step({})
    a.status = ABORTED
    engine.scheduler._free_request(a)
    engine.request("b", 14, hits=blocks).block_hashes = a.block_hashes
    rows = engine.last({"b": 2})
    assert (rows[:12] == -1).all() and (rows[12:] == expected(12, len(rows))).all()
    assert set(engine.coverage("b").missing) == {Reason.EXTERNAL_KV}
    assert engine.runner._waymark.store.stats().releases_below_zero == 0


def test_a_prompt_that_is_loaded_whole_keeps_the_blocks_that_it_hit() -> None:
    """vLLM computes its last token again: the last block of the hit was bound as if it were loaded,
    while others used it."""
    engine = Engine()
    c = engine.request("c", 9, 4)
    engine.step({"c": 9})
    a = engine.request("a", 16, 4)
    load(engine, a, c.blocks[:2], 8, later=True)
    engine.step({"c": 1})
    a.num_computed_tokens = 15
    engine.last({"a": 1, "c": 1})
    rows = engine.rows("a")
    assert (rows[:8] == expected(0, 8)).all() and (rows[8:15] == -1).all()
    assert (engine.rows("c") == expected(0, len(engine.rows("c")))).all()
    stats = engine.runner._waymark.store.stats()
    assert stats.releases_below_zero == 0 and stats.hits_by_key == 0


def test_a_load_that_failed_at_once_is_tried_again_or_computed() -> None:
    engine = Engine()
    busy_blocks(engine)
    for name, again in (("a", False), ("b", True)):
        request = engine.request(name, 14, 3)
        load(engine, request, [], 8, later=True)
        engine.step({})
        manager: Any = engine.scheduler.kv_cache_manager
        manager.free(request)
        if again:
            load(engine, request, [], 4, later=True)
            engine.step({})
        engine.step({name: 14 - request.num_computed_tokens}, finish=(name,))
        engine.drain()
    assert (engine.rows("a") == expected(0, len(engine.rows("a")))).all()
    rows = engine.rows("b")
    there = (rows >= 0).all(axis=(1, 2))
    assert there[4:].all() and (rows[there] == expected(0, len(rows))[there]).all()
    assert engine.runner._waymark.store.stats().releases_below_zero == 0


def test_rows_of_forwards_that_read_a_failed_load_are_written_again() -> None:
    """Their blocks are not sealed yet, so that nothing keeps the rows."""
    engine = Engine()
    engine.shift = 30
    fail_a_load(engine, 4)
    engine.shift = 0
    engine.scheduler.free.rotate(7)  # those that had none go last
    engine.step({"a": 10})
    rows = engine.last({"a": 1})
    assert (rows[:4] == -1).all() and (rows[4:] == expected(4, len(rows))).all()


def test_rows_of_forwards_that_read_a_failed_load_are_not_found_by_key() -> None:
    """A block that such a forward filled had its key already: who loaded a block of this key got
    the rows."""
    engine = Engine()
    engine.shift = 30
    fail_a_load(engine, 4)
    engine.shift = 0
    load(engine, engine.request("b", 14, 4), [], 12, later=True)
    engine.step({})
    rows = engine.last({"b": 2})
    assert (rows[:12] == -1).all() and (rows[12:] == expected(12, len(rows))).all()


def test_rows_that_the_store_has_under_the_keys_of_a_failed_load_stay() -> None:
    engine = Engine()
    engine.request("c", 14, 3)
    engine.last({"c": 14})
    fail_a_load(engine, 3)
    engine.step({"a": 10})
    assert (engine.last({"a": 1}) == expected(0, 15)).all()
    by_key = [run.provenance == Provenance.BY_KEY for run in engine.coverage("a").runs]
    assert by_key == [True, False] and engine.coverage("a").runs[0].end == 8


def test_rows_of_a_block_that_a_load_fills_in_part_are_external() -> None:
    """An engine that decodes loads a whole prompt; its last block is not full, and has no key."""
    engine = Engine()
    busy_blocks(engine)
    a = engine.request("a", 14, 3)
    load(engine, a, [], 14, later=True)
    engine.step({})
    a.num_computed_tokens = 13
    rows = engine.last({"a": 1})
    assert (rows[:13] == -1).all()
    assert engine.coverage("a").missing == {Reason.EXTERNAL_KV: 13}
