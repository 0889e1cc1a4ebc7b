"""A worker's tables against lists in a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from waymark._tables import Tables

BLOCK = 4


def test_tables_are_the_lists_of_their_requests(seed: int) -> None:
    random, tables = np.random.default_rng(seed), Tables(BLOCK)
    known: dict[str, dict[str, Any]] = {}
    for _ in range(400):
        name = f"r{random.integers(40)}"
        blocks = random.integers(1, 1000, random.integers(1, 60)).tolist()
        what = random.integers(6)
        if what == 0:
            life, cursor = int(random.integers(100)), int(random.integers(BLOCK * len(blocks)))
            tables.start(name, life, blocks, cursor)
            known[name] = {"life": life, "blocks": blocks, "cursor": cursor}
        elif what == 1 and name in known:
            tables.grow(name, blocks)
            known[name]["blocks"] += blocks
        elif what == 2 and random.random() < 0.3:
            tables.end(name)
            known.pop(name, None)
        elif known:
            names = random.permutation(list(known))[: random.integers(1, len(known) + 1)].tolist()
            # An engine may be ahead of the cursor, by drafts that were rejected.
            first = np.array([known[one]["cursor"] + random.integers(3) for one in names])
            room = [len(known[one]["blocks"]) * BLOCK - known[one]["cursor"] for one in names]
            count = np.array([random.integers(min(left, 5) + 1) for left in room])
            rows = tables.step(names, first, count)
            at = 0
            for i, one in enumerate(names):
                of = known[one]
                assert (rows.life[i], rows.first[i]) == (of["life"], of["cursor"])
                for offset in range(count[i]):
                    token = of["cursor"] + offset
                    slot = of["blocks"][token // BLOCK] * BLOCK + token % BLOCK
                    assert (rows.request[at], rows.offset[at], rows.slot[at]) == (i, offset, slot)
                    at += 1
                of["cursor"] += int(count[i])
            assert at == len(rows.slot)
        assert len(tables) == len(known)
        for one, of in known.items():
            assert (tables.blocks(one).tolist(), tables.cursor(one)) == (of["blocks"], of["cursor"])
    tables.clear()
    assert not len(tables) and not len(tables.step([], np.zeros(0, int), np.zeros(0, int)).slot)
    with pytest.raises(KeyError):
        tables.grow("r1", [1])


def test_a_cursor_does_not_follow_an_engine_that_is_ahead() -> None:
    tables = Tables(BLOCK)
    tables.start("a", 1, [7, 9], 3)
    rows = tables.step(["a"], np.array([5]), np.array([2]))
    assert rows.slot.tolist() == [7 * BLOCK + 3, 9 * BLOCK]
    assert tables.step(["a"], np.array([4]), np.array([1])).slot.tolist() == [9 * BLOCK]
