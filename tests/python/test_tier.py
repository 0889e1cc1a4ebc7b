"""Rows by key, from Python: what comes, and what its numbers and options say."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import waymark

KEY = b"a hash of block 0's tokens......"
IDS = np.arange(16, dtype=np.int32).reshape(4, 2, 2)


class Objects:
    """A source that is a Python object."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}

    def get(self, digests: list[bytes], timeout: float) -> list[bytes | None]:
        return [self.objects.get(digest) for digest in digests]

    def put(self, objects: list[tuple[bytes, bytes]], timeout: float) -> None:
        self.objects |= objects

    def holds(self, digests: list[bytes], timeout: float) -> list[bool]:
        return [digest in self.objects for digest in digests]


def capture(source: Any, weights: str = "w", **tier: Any) -> waymark.Capture:
    tier = {"space": "model", "timeout": 0.05} | tier
    made = waymark.Capture(
        num_layers=2, top_k=2, num_experts=64, num_blocks=8, page_tokens=4, null_blocks=[0],
        tier=waymark.Tier(source, **tier),
    )  # fmt: skip
    if weights:
        made.name_weights(1, weights)
    return made


def compute(source: Any, weights: str = "w", **tier: Any) -> waymark.TierStats:
    """The rows of a block are put into a source."""
    with capture(source, weights, **tier) as first:
        first.bind([3])
        first.seal([3], [KEY])
        first.step(1, 1, waymark.slots_of([3], 4, 0, 4), IDS)
        first.wait_idle()
        made = first.tier_stats()
    assert made.pages_sealed == tier.get("publish", True)  # and its close has put them
    return made


def load(source: Any, weights: str = "w", **tier: Any) -> waymark.Rows:
    """The rows of the same block, whose KV came from elsewhere."""
    with capture(source, weights, **tier) as second:
        second.bind([2], [KEY])
        return second.take([2], 4, last_step=9, keys=[KEY], version=1).result(20)


def why(rows: waymark.Rows) -> list[str]:
    return [str(run.provenance) if run.valid else run.why for run in rows.coverage()]


@pytest.mark.parametrize("make", [waymark.MemorySource, Objects])
def test_rows_come_by_key(make: Any) -> None:
    source = make()
    compute(source)
    rows = load(source)
    assert why(rows) == [str(waymark.Provenance.BY_KEY)]
    assert (rows.ids == IDS).all()
    assert (rows.infos["version"] == 1).all() and (rows.infos["step"] >= 2**63).all()
    assert (pickle.loads(pickle.dumps(rows)).ids == IDS).all()
    again = waymark.from_bytes(rows.to_bytes()).rows()
    assert (again.infos["step"] == rows.infos["step"]).all()


@pytest.mark.parametrize("key", [b"", b"k" * 16])
def test_a_trainer_finds_the_pages_that_a_handle_names(key: bytes) -> None:
    source, objects = waymark.MemorySource(), waymark.MemorySource()
    compute(source, key=key)
    named = load(source, key=key, look_up=False)
    assert why(named) == ["external KV"]
    publisher = waymark.Publisher(objects, named.shape)
    tier = waymark.Tier(source, key=key, timeout=0.05)
    trainer = waymark.Fetcher(objects, tier=tier)
    # As they are, as views of them, and joined: what an adapter makes of them.
    more = waymark.join(named[:2], named)
    for given, count in ((named, 4), (named[:3], 3), (named.resized(6), 4), (more, 4)):
        handle = publisher.publish(given).wait(5)
        rows = trainer.fetch(handle, 0, count, timeout=5)
        assert why(rows) == [str(waymark.Provenance.BY_KEY)]
        assert (rows.ids == IDS[:count]).all() and (rows.infos["version"] == 1).all()
    part = trainer.fetch(handle, 1, 3, layers=(1, 2), timeout=5)
    assert (part.ids == IDS[1:3, 1:]).all()
    assert why(waymark.Fetcher(objects).fetch(handle)) == ["external KV"]
    # Names are of all layers, and of this process's rows alone.
    alone = publisher_of(objects, named.of_layers([1])).wait(5)
    assert why(trainer.fetch(alone)) == ["external KV"]
    assert why(trainer.fetch(publisher.publish(pickle.loads(pickle.dumps(named))).wait(5))) == [
        "external KV"
    ]


def publisher_of(objects: Any, rows: waymark.Rows) -> waymark.Ticket:
    return waymark.Publisher(objects, rows.shape).publish(rows)


def test_rows_of_null_blocks_have_the_version_of_the_take() -> None:
    source = waymark.MemorySource()
    compute(source)
    with capture(source) as second:
        assert second.take([0], 4, last_step=9, keys=[KEY], version=1).result(20).valid.all()
        assert not second.take([0], 4, last_step=9, keys=[KEY], version=2).result(20).valid.any()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"weights": "other"}),
        ({}, {"space": "tenant b"}),
        ({"key": b"a" * 32}, {"key": b"b" * 32}),
        ({"publish": False}, {}),
    ],
)
def test_what_is_of_others_does_not_come(first: Any, second: Any) -> None:
    source = waymark.MemorySource()
    compute(source, **first)
    assert why(load(source, **second)) == ["capacity: the source does not have the object"]


def test_weights_without_a_name_share_nothing(caplog: pytest.LogCaptureFixture) -> None:
    source = waymark.MemorySource()
    compute(source, weights="")
    assert why(load(source, weights="")) == ["capacity: the weights have no name"]


def test_another_process_finds_them(tmp_path: Any) -> None:
    """With block hashes, weights and namespace that are equal there: a restarted engine."""
    source = Objects()
    compute(source)
    path = tmp_path / "objects"
    path.write_bytes(pickle.dumps(source.objects))
    program = (
        "import pickle, sys, test_tier as t\n"
        "source = t.Objects(); source.objects = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(t.load(source).valid.tolist(), t.why(t.load(source, weights='')))"
    )
    command = [sys.executable, "-c", program, str(path)]
    paths = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=paths)
    assert done.stdout == (
        "[True, True, True, True] ['capacity: the weights have no name']\n"
    )  # fmt: skip


def test_counters() -> None:
    source = waymark.MemorySource()
    compute(source)
    with capture(source) as second:
        second.bind([2, 4], [KEY, b"a hash of block 1's tokens......"])
        second.take([2, 4], 8, last_step=9, keys=[KEY, b"a hash of block 1's tokens......"], version=1).result(20)
        counts = second.tier_stats().as_dict()
        text = second.metrics({"rank": "0"})
    assert {name: n for name, n in counts.items() if n} == {
        "fills": 1, "pages_asked": 2, "pages_found": 1, "pages_absent": 1, "rows_filled": 4
    }  # fmt: skip
    assert 'waymark_tier_rows_filled_total{rank="0"} 4\n' in text
    assert text.endswith("# EOF\n") and text.count("# EOF") == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"timeout": -1}, "timeout: at least 0 s"),
        ({"skip": float("inf")}, "skip: at least 0 s, and finite"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"key": b"short"}, "key must have 16 to 64 bytes"),
    ],
)
def test_wrong_options_are_named(wrong: Any, says: str) -> None:
    with pytest.raises(waymark.InvalidArgumentError, match=says):
        capture(waymark.MemorySource(), **wrong)
