"""waymark.megatron with a tier, on the look-alikes of test_megatron_attach with a prefix cache.

tests/integration/megatron runs it in the real engines (the scenarios tier_*).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_megatron_attach as look
import waymark
import waymark.megatron
from conftest import until
from test_megatron_attach import BLOCK, Rig
from test_megatron_lives import begin, empty
from waymark import Cause, MemorySource, Provenance, Reason, Rows, Tier
from waymark.megatron import Refused, _keys, _versions
from waymark.megatron._finished import Finished, Part

make, digest = look.make, look.digest  # the fixtures
Make = Callable[..., Rig]
PROMPT = list(range(10, 20))  # two full blocks and a half


class Allocator(look.Allocator):
    """Registered blocks stay in the prefix cache for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_hash_to_block_id: dict[int, int] = {}

    def register_kv_block_hashes(self, block_ids: Any, block_hashes: Any, parents: Any = None) -> None:
        self.kv_hash_to_block_id.update(zip(block_hashes, block_ids))

    def release_memory_blocks(self, blocks: Any) -> None:
        cached = set(self.kv_hash_to_block_id.values())
        super().release_memory_blocks(look.tensor([b for b in blocks.tolist() if b not in cached]))

    def reset(self) -> None:
        super().reset()
        self.kv_hash_to_block_id.clear()


class Context(look.Context):
    def __init__(self) -> None:
        super().__init__()
        self.kv_block_allocator = Allocator()

    def _hashes(self, req: Any) -> list[int]:
        full = len(req.prompt_tokens) // BLOCK
        return [hash(tuple(req.prompt_tokens[: BLOCK * (index + 1)])) for index in range(full)]

    def _compute_prefix_match(self, req: Any, prefill_chunk_length: int) -> Any:
        cached = self.kv_block_allocator.kv_hash_to_block_id  # type: ignore[attr-defined]
        return [cached[one] for one in self._hashes(req) if one in cached], 0

    def add_request(self, req: Any, prefill_chunk_length: int | None = None) -> None:
        row, hits = self.total_request_count, len(look.Context._compute_prefix_match(self, req, 0)[0])
        super().add_request(req, prefill_chunk_length)
        hits = int(self.request_kv_length_offsets[row]) // BLOCK
        if not self.request_query_lengths[row]:  # a full hit computes its last block again
            self.request_kv_length_offsets[row] -= BLOCK
            self.request_query_lengths[row] = BLOCK
        hashes = self._hashes(req)
        table = self.request_to_kv_block_ids[row].tolist()
        if hits < len(hashes):
            self.kv_block_allocator.register_kv_block_hashes(table[hits : len(hashes)], hashes[hits:])


def tier_of(source: Any, **options: Any) -> Tier:
    return Tier(source, timeout=0.05, **options)


def run(rig: Rig, number: int, prompt: list[int]) -> tuple[Rows, np.ndarray]:
    """A request that ends after its prefill: its rows, and the ids of its step."""
    begin(rig, number, prompt)
    ids = rig.step()
    rig.release(0)
    empty(rig)
    finished = rig.attached.requests.take(number)
    assert finished is not None
    finished.count = len(prompt)
    rows = finished.rows()
    assert rows is not None and rig.attached.failure == ""
    return rows, ids


def put(rig: Rig, pages: int) -> None:
    until(lambda: rig.attached.store.tier_stats().pages_put == pages)
    assert rig.attached.store.tier_stats().pages_sealed == pages


def unattached() -> Rig:
    rig = Rig.__new__(Rig)
    rig.prepare(Context(), engine=True)
    return rig


def with_kv_only(prompt: list[int], **options: Any) -> Rig:
    """An engine that is captured only after it has computed a prompt."""
    rig = unattached()
    begin(rig, 1, prompt)
    rig.release(0)
    empty(rig)
    rig.attach(**options)
    return rig


# -- rows of KV without rows ---------------------------------------------------------------------
@pytest.mark.parametrize("weights", ["step 7", "step 8", None])
@pytest.mark.parametrize("same", [True, False])
def test_an_engine_that_is_captured_late_has_the_rows_of_another(
    make: Make, weights: str | None, same: bool
) -> None:
    source = MemorySource()
    first = make(Context(), engine=True, tier=tier_of(source), weights=lambda version: "step 7")
    _, ids = run(first, 1, PROMPT)
    put(first, 2)
    name = None if weights is None else lambda version: weights
    second = with_kv_only(PROMPT, tier=tier_of(source), weights=name, same_weights=same)
    rows, own = run(second, 2, PROMPT)
    second.attached.detach()
    assert rows.valid[8:].all() and (rows.ids[8:] == own).all()
    if same and weights == "step 7":
        assert rows.valid.all() and (rows.ids[:8] == ids[:8]).all()
        assert (rows.infos["provenance"][:8] == Provenance.BY_KEY).all()
        return
    assert not rows.valid[:8].any()
    expected = (Reason.CAPACITY if same else Reason.NEVER_WRITTEN)
    cause = {None: Cause.UNNAMED, "step 8": Cause.ABSENT}[weights] if same else Cause.NONE  # type: ignore[index]
    assert set(rows.reasons[:8]) == {expected} and set(rows.causes[:8]) == {cause}


@pytest.mark.parametrize("lost", [True, False])
def test_rows_of_cached_blocks_that_were_evicted(make: Make, lost: bool) -> None:
    rig = make(Context(), engine=True, tier=tier_of(MemorySource(), lost=lost), store={"num_pages": 3})
    _, ids = run(rig, 1, PROMPT)
    put(rig, 2)
    run(rig, 2, [5, 6, 7, 8, 9, 10, 11, 12, 13])  # takes all pages
    rows, _ = run(rig, 3, PROMPT)
    assert rows.valid[:8].all() == lost
    assert not lost or (rows.ids[:8] == ids[:8]).all()


def test_kv_of_a_step_of_other_weights_before_it_is_not_the_tiers(make: Make) -> None:
    """The prefix cache outlives the weights: KV of weights 1 behind KV of weights 0 is in no pass
    under weights 1 alone."""
    rig = make(Context(), engine=True, tier=tier_of(MemorySource()))
    run(rig, 1, PROMPT[:5])
    put(rig, 1)
    rig.attached.set_weight_version(1)
    run(rig, 2, PROMPT)
    run(rig, 3, [5, 6, 7, 8])
    put(rig, 2)  # of request 3


def test_weights_that_change_before_the_first_step_are_not_those_of_earlier_kv() -> None:
    source = MemorySource()
    first = Rig(Context(), engine=True, tier=tier_of(source), weights="step {}".format)
    first.attached.set_weight_version(1)
    run(first, 1, PROMPT)
    put(first, 2)
    second = with_kv_only(PROMPT, tier=tier_of(source), weights="step {}".format, same_weights=True)
    second.attached.set_weight_version(1)
    rows, _ = run(second, 2, PROMPT)
    assert set(rows.reasons[:8]) == {Reason.NEVER_WRITTEN}
    first.attached.detach(), second.attached.detach()


def test_earlier_kv_is_of_the_weights_of_the_attach(make: Make) -> None:
    source = MemorySource()
    first = make(Context(), engine=True, tier=tier_of(source), weights="step {}".format)
    _, ids = run(first, 1, PROMPT)
    put(first, 2)
    second = with_kv_only(PROMPT, tier=tier_of(source), weights="step {}".format, same_weights=True)
    run(second, 2, [5, 6, 7])
    second.attached.set_weight_version(1)
    rows, _ = run(second, 3, PROMPT)
    second.attached.detach()
    assert rows.valid.all() and (rows.ids[:8] == ids[:8]).all()
    assert rows.infos["version"].tolist() == [0] * 8 + [1] * 2


def test_a_number_of_weights_that_comes_again_is_not_shared(make: Make) -> None:
    names: list[int] = []

    def name(version: int) -> str:
        names.append(version)
        return f"step {version}"

    rig = make(Context(), engine=True, tier=tier_of(MemorySource()), weights=name)
    for version in (0, 1):
        rig.attached.set_weight_version(version)
        run(rig, 1, PROMPT)
        rig.engine.reset()  # type: ignore[union-attr]
    put(rig, 4)
    rig.attached.set_weight_version(0)
    run(rig, 1, PROMPT)
    assert rig.attached.store.tier_stats().pages_sealed == 4 and names == [0, 1]


@pytest.mark.parametrize("when", ["idle", "suspended", "reset"])
def test_weights_that_change_without_a_word_have_no_name(make: Make, when: str, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: rows of both weights were of one version, and went out under its name."""
    source = MemorySource()
    rig = make(Context(), engine=True, tier=tier_of(source), weights="step {}".format)
    run(rig, 1, PROMPT)
    put(rig, 2)
    other, more = [3, *PROMPT], [4, *PROMPT]
    if when != "idle":
        begin(rig, 9, [1, 2])
        rig.step()
        rig.context.advance(0)
    if when == "suspended":
        rig.context.deallocate_inference_state_buffers()
    if when == "reset":
        rig.allocator.reset()
        empty(rig)
    for router in rig.engine.controller.inference_wrapped_model.model.decoder.modules():  # type: ignore[union-attr]
        router.weight[3] += 1
    with caplog.at_level(logging.WARNING, "waymark.megatron"):
        if when == "suspended":
            rig.step()
            rig.release(0)
            empty(rig)
        rows, _ = run(rig, 2, other)
        again, _ = run(rig, 3, other)
    assert set(rows.infos["version"]) == set(again.infos["version"][-3:]) == {_versions.UNNAMED}
    assert len(caplog.records) == 1 and "nobody said so" in caplog.text
    second = with_kv_only(other, tier=tier_of(source), weights="step {}".format, same_weights=True)
    found, _ = run(second, 4, other)
    assert not found.valid[:8].any()
    put(rig, 2)
    rig.attached.set_weight_version(1)
    named, _ = run(rig, 5, more)
    put(rig, 4)
    assert set(named.infos["version"]) == {1}
    second.attached.detach()


def test_weights_that_are_told_are_looked_at_with_the_next_step(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    rig = make(Context(), engine=True, tier=tier_of(MemorySource()), weights="step {}".format)
    for version in range(3):
        for router in rig.engine.controller.inference_wrapped_model.model.decoder.modules():  # type: ignore[union-attr]
            router.weight[0] += version
        if version:
            rig.attached.set_weight_version(version)
        for number in range(2):
            rows, _ = run(rig, number, [version, number, 7])
            assert set(rows.infos["version"]) == {version}
    assert not caplog.records


def test_a_failure_of_the_users_names_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def fail(version: int) -> str:
        raise RuntimeError("a user's error")

    with caplog.at_level(logging.ERROR, "waymark.megatron"):
        rig = make(Context(), engine=True, tier=tier_of(MemorySource()), weights=fail)
    rows, ids = run(rig, 1, PROMPT)
    assert "weights failed: a user's error" in caplog.text and (rows.ids == ids).all()


def test_a_tier_among_the_options_of_the_store_is_refused() -> None:
    """Its keys were Megatron's hashes, which are 63 bits."""
    with pytest.raises(Refused, match="it is an argument of attach"):
        unattached().attach(store={"tier": tier_of(MemorySource())})


class Taken:
    def __init__(self, *valid: bool) -> None:
        ids = np.tile(np.arange(look.K), (len(valid), look.LAYERS, 1))
        self.rows = Rows.from_array(ids, num_experts=look.EXPERTS, layer_ids=range(look.LAYERS), valid=valid)

    def result(self, timeout: float) -> Rows:
        return self.rows


@pytest.mark.parametrize("version", [0, 1])
def test_rows_that_a_life_lacks_are_not_those_of_later_weights(make: Make, version: int) -> None:
    """With few pages: a full hit under new weights wrote a block again whose rows were lost, and a
    request that had hit it before got the new rows."""
    rig = make(engine=True)
    one = begin(rig, 1, [1, 2, 3])
    rig.step()
    if version:
        rig.context.advance(0)
        rig.attached.set_weight_version(version)
    else:
        rig.context.evict_overflow_paused_requests(0)
        empty(rig)
        one.generated_tokens.append(4)
        begin(rig, 1, [1, 2, 3, 4])
    rig.step()
    rig.release(0)
    finished = rig.attached.requests.take(1)
    assert finished is not None and [part.first for part in finished._parts] == [0, 3 * version]
    parts: Any = Part(Taken(True, False, False), 3), Part(Taken(True, True, True, True), 4, "", 3 * version)  # type: ignore[arg-type]
    rows = Finished(1, parts, 4).rows()
    assert rows is not None and rows.valid.tolist() == [True, not version, not version, True]


# -- keys ----------------------------------------------------------------------------------------
def chain(*blocks: list[int]) -> list[bytes]:
    keys = [bytes(32)]
    for block in blocks:
        keys.append(hashlib.sha256(keys[-1] + np.array(block, np.int64).tobytes()).digest())
    return keys[1:]


def keys_of(*blocks: int) -> _keys.Keys:
    keys = _keys.Keys(4, 0, [])
    keys.allocate(blocks)
    keys.register(blocks)
    return keys


def test_a_key_is_of_all_tokens_before() -> None:
    one, two = [1, 2, 3, 4], [5, 6, 7, 8]
    keys = keys_of(3, 5)
    keys.allocate([6])
    keys.admit([*one, *two, 9], [3, 5, 6, -1])
    assert keys.of([3, 5, 6]) == [*chain(one, two), None]
    assert keys.seals() == ([3, 5], chain(one, two)) and keys.seals() == ([], [])
    keys.allocate([7])
    keys.register([7])  # behind a hit of the first
    keys.admit([*one, *one], [3, 7, -1])
    assert keys.of([7]) == [chain(one, one)[1]]
    keys.allocate([3])
    assert keys.of([3, 5]) == [None, chain(one, two)[1]]


def test_a_hit_has_the_key_of_what_is_in_the_block() -> None:
    """Megatron's hash of other tokens was the same."""
    keys = keys_of(3)
    keys.admit([1, 2, 3, 4], [3])
    keys.allocate([5])
    keys.register([5])
    keys.admit([9, 9, 9, 9, 5, 6, 7, 8], [3, 5])
    assert keys.of([3, 5]) == chain([1, 2, 3, 4], [5, 6, 7, 8])


def test_a_block_that_a_later_chunk_fills_under_new_weights_has_no_key() -> None:
    keys = _keys.Keys(4, 0, [])
    keys.allocate([3])
    assert keys.change_weights(1, True)
    keys.register([3])
    keys.admit([1, 2, 3, 4], [3])
    assert keys.of([3]) == [None] and keys.seals() == ([3], [None])


def test_a_block_that_is_written_again_under_new_weights_has_no_key() -> None:
    keys = keys_of(3, 5)
    keys.admit(PROMPT[:8], [3, 5])
    keys.change_weights(1, True)
    keys.write([5])
    assert keys.of([3, 5]) == [*chain(PROMPT[:4]), None]


def test_a_full_hit_under_new_weights_takes_the_key(make: Make) -> None:
    rig = make(Context(), engine=True, tier=tier_of(MemorySource()))
    run(rig, 1, PROMPT[:8])
    blocks = list(rig.allocator.kv_hash_to_block_id.values())  # type: ignore[attr-defined]
    keys: Any = rig.attached._keys  # type: ignore[attr-defined]
    run(rig, 2, PROMPT[:8])
    assert keys.of(blocks) == chain(PROMPT[:4], PROMPT[4:8])
    rig.attached.set_weight_version(1)
    run(rig, 3, PROMPT[:8])
    assert keys.of(blocks) == [*chain(PROMPT[:4]), None]
    rig.allocator.reset()
    assert keys.of(blocks) == [None, None]
