"""Rows by key: KV that one engine computed and another loads, with the rows of the first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import until
from vllm_engine import BLOCK, VOCABULARY, Engine, vllm
from waymark.vllm import _options, _tier, _worker
from waymark.vllm._options import Options

__all__ = ["vllm"]  # a fixture for every test


def nothing(*_: Any, **__: Any) -> None:
    pass


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> waymark.MemorySource:
    """Where the engines of this process have their tier."""
    made = waymark.MemorySource(1 << 26)
    monkeypatch.setattr(_worker.Tier, "_of", lambda given, space: waymark.Tier(
        made, space=space, timeout=2.0 if given.get("wait", True) else 0.0))  # fmt: skip
    return made


@pytest.fixture(autouse=True)
def digests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The weights of every engine, which a test may change."""
    weights = [1]
    monkeypatch.setattr(_tier.Weights, "_sums", lambda self: list(weights))
    monkeypatch.setattr(_tier, "_changes", 0)
    return weights


def engine(seed: int, weights: str = "w", **more: Any) -> Engine:
    tier = {"weights": weights, "wait": more.pop("wait", True)}
    return Engine(seed, seam=33, options=Options(tier=tier, reasons=True), **more)


def wait_puts(one: Engine, pages: int) -> None:
    """Until so many pages are in the source."""
    one.step()  # the last seals come with a schedule

    def there() -> bool:
        assert one.worker.store is not None
        stats = one.worker.store.tier_stats()
        return stats.pages_put + stats.pages_held >= pages

    until(there)


def prompts(seed: int, count: int = 6) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, VOCABULARY, random.integers(20, 60)).tolist() for _ in range(count)]


def run(one: Engine, given: list[list[int]], output: int = 9) -> Counter[str]:
    requests = [one.add(prompt, output) for prompt in given]
    one.run()
    return sum((one.check(request) for request in requests), Counter[str]())


@pytest.mark.parametrize("more", [
    {}, {"ahead": 2, "drafts": 2}, {"parts": True}, {"later": True}, {"later": True, "ahead": 2}])
def test_loaded_kv_has_the_rows_of_the_engine_that_computed_it(
    source: waymark.MemorySource, seed: int, more: dict[str, Any]
) -> None:
    given = prompts(seed)
    first = engine(seed, **more)
    assert run(first, given) == {"right": sum(len(one) + 8 for one in given)}
    wait_puts(first, sum((len(one) + 8) // BLOCK for one in given))
    other = engine(seed + 1, loads=1.0, **more)
    found = run(other, given)
    assert found == {"right": sum(len(one) + 8 for one in given)}
    assert other.counts["loaded"] > 100
    assert not first.half.failure and not other.half.failure and not other.worker.failure


@pytest.mark.parametrize("change", ["no name", "another name", "a call", "in place", "renamed"])
def test_rows_of_weights_without_a_common_name_are_not_found(
    source: waymark.MemorySource, seed: int, change: str, digests: list[int]
) -> None:
    given = prompts(seed)
    first = engine(seed, weights="" if change == "no name" else "w")
    if change == "a call":
        _tier.counted(nothing, None, "update_weights")
    elif change == "in place":
        digests[0] = 2
    elif change == "renamed":
        _tier.named(nothing, _core(first), "v")
    run(first, given)
    other = engine(seed + 1, weights="x" if change == "another name" else "w", loads=1.0, wait=False)
    found = run(other, given)
    assert not found["wrong"] and found["external"] == other.counts["loaded"] > 100


def _core(one: Engine) -> Any:
    one.aux_output_connector = one.half  # type: ignore[attr-defined]
    return type("Core", (), {"scheduler": one})()


def test_kv_of_several_weights_is_never_published(
    source: waymark.MemorySource, seed: int
) -> None:
    one = engine(seed)
    head = list(range(32))
    run(one, [head])
    one.step()  # its last seals come with a schedule
    _tier.named(nothing, _core(one), "v")
    store = one.worker.store
    assert store is not None
    store.wait_idle(10)
    before = store.tier_stats().pages_sealed
    run(one, [head + [5] * 32])  # hits KV of "w"
    store.wait_idle(10)
    assert store.tier_stats().pages_sealed == before
    run(one, [[6] * 32])
    store.wait_idle(10)
    assert store.tier_stats().pages_sealed > before


def test_a_hit_whose_owner_is_not_known_is_missing_and_not_looked_up(
    source: waymark.MemorySource,
) -> None:
    """Nobody knows which weights its KV is of, though a page of another engine has its key."""
    one, head = engine(1), list(range(32))
    run(one, [head])
    wait_puts(one, 4)
    one.half._owner[:] = [None] * len(one.half._owner)
    assert run(one, [head + [5] * 8])["missing"] == 32


def test_calls_of_workers_that_keep_the_weights() -> None:
    for keeps in ("execute_model", "check_health", "wake_up"):
        _tier.counted(nothing, None, keeps)
    _tier.counted(nothing, None, "sleep", kwargs={"level": 1})
    assert _tier.changes() == 0
    for changes in ("sleep", "reload_weights", len, "anything"):
        _tier.counted(nothing, None, changes)
    assert _tier.changes() == 4


def test_the_option(tmp_path: Any) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    given = Options(tier={"url": tmp_path.as_uri(), "key_file": str(key), "weights": "w"})
    tier = waymark.Tier._of(given.tier, "a model")
    assert (tier.space, tier.key) == ("a model", b"k" * 32) and tier.put is not None
    assert _options.weights_of(given) == "w" and _options.weights_of(Options(tier="x")) == ""
