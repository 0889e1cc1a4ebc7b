"""docs/proving.md: each mistake of its table is planted in an engine, and what the table says of it is so."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from conftest import LOG, logged

ENGINE = pathlib.Path(__file__).with_name("proving_engine.py")
PAGE = ENGINE.parents[2] / "docs" / "proving.md"
SLOTS = "slots.append(waymark.slots_of(request.blocks, BLOCK, first, last))"
IDS = "            told.ids = ids\n"
TAKE = "        self.finished[request.number] = self.cap.take(request.blocks, request.done)\n"
RELEASE = "        self.cap.release(request.blocks)\n"
LATER = """
        self.ended = [*getattr(self, "ended", []), request]
        for request in self.ended[:-6]:
            self.finished.setdefault(request.number, self.cap.take(request.blocks, request.done))
        request = self.ended[-1]
"""


def ids(text: str) -> tuple[str, str]:
    return IDS, f"            told.ids = {text}\n"


# What is replaced in the text of the engine, by what, or the ids; by the first cell of the table.
PLANTED: dict[str, str | list[tuple[str, str]]] = {
    "none": [],
    "every 7th `bind` is forgotten": [
        ("self.cap.bind(request.blocks[-1])",
         "self.binds += 1; self.binds % 7 and self.cap.bind(request.blocks[-1])"),
    ],
    "a slot is in no block": [
        ("rows, ids = np.concatenate(slots)", "rows, ids = np.concatenate(slots) + BLOCK * BLOCKS"),
    ],
    "slots are off by one in the block": [
        (SLOTS, SLOTS + "; at = slots[-1]; slots[-1] = at // BLOCK * BLOCK + (at + 1) % BLOCK"),
    ],
    "slots of the neighbour's block table": [
        ("        rows, ids = np", "        if len({len(one) for one in slots}) == 1:\n"
         "            slots = slots[1:] + slots[:1]\n        rows, ids = np"),
    ],
    "ids in reverse order of the batch": "ids[::-1]",
    "`take` after the blocks were released and reused": [(TAKE, LATER)],
    "the same, with `last_step`": [
        (TAKE, LATER.replace("request]", "(request, self.step)]").replace("for request in", "for request, step in")
         .replace("request.done)", "request.done, last_step=step)").replace("self.ended[-1]", "self.ended[-1][0]")),
    ],
    "`take` after the release, before the blocks are reused": [(TAKE, ""), (RELEASE, RELEASE + TAKE)],
    "a fork without `copy`": [
        ("self.cap.copy(parent.blocks[full], child.blocks[full], done % BLOCK)", "pass"),
    ],
    "the key is of the last token only": [
        ("seal(request.blocks[i], request.keys[i])",
         "seal(request.blocks[i], request.tokens[i * BLOCK + BLOCK - 1] % 1000)"),
    ],
    "`retain` is forgotten": [("        self.cap.retain(request.blocks)\n", "")],
    "`release` is forgotten, and there are fewer pages than blocks": [
        (RELEASE, ""), ("overdue_after=0.1", "num_pages=30, spare_pages=0"),
    ],
    "`release` is forgotten, with enough pages": [(RELEASE, "")],
    "`seal` is forgotten": [("                self.cap.seal(request.blocks[i], request.keys[i])\n", "")],
    "a layer writes nothing": "np.where(np.arange(L)[:, None] == 2, -1, ids)",
    "another layer's ids": "ids[:, [0, 2, 1, 3]]",
    "physical ids, all in range": "(ids * 7 + 5 * np.arange(L, dtype=np.int16)[:, None] + 3) % E",
    "physical ids, some of E or more": "ids + E // 2",
    "ids are all zero": "ids * 0",
    "a buffer that some forwards do not write":
        "self.last if self.step % 8 == 0 and self.last.shape == ids.shape else ids",
    "a buffer with one row for all": "np.repeat(ids[:1], len(ids), 0)",
    "a step is left open": [
        ("        with self.cap.step(self.step, 1, rows) as told:\n" + IDS
         + "        self.cap.wait_idle(10)\n",
         "        told = self.cap.step(self.step, 1, rows)\n        if self.step == 20:\n"
         "            self.open = told\n        else:\n" + IDS), ("result(10)", "result(0.5)"),
    ],
    "ids come late: each step gets those of the step before":
        "self.last if self.last.shape == ids.shape else ids",
    "older weights": "np.where(ids[..., :1] % 2 == np.arange(K), (ids[..., ::-1] + 1) % E, ids)",
    "ids cut to 8 bits, of 512 experts": [
        ("REQUESTS = 4, 2, 64, ", "REQUESTS = 4, 2, 512, "), ids("ids & 255"),
    ],
    "a shared expert in a column": "np.where(np.arange(K) == 0, 7, ids)",
    "a column of the row before": "np.stack([np.roll(ids[..., 0], 1, 0), ids[..., 1]], -1)",
    "layers in reverse order": "ids[:, ::-1]",
    "layers in reverse order, in every third step": "ids[:, ::-1] if self.step % 3 == 0 else ids",
    "two rows of a step exchanged": "ids[np.r_[0, 2, 1, 3 : len(ids)]] if len(ids) > 2 else ids",
    "ids of [L, N, K] for [N, L, K], where N = L":
        "ids.transpose(1, 0, 2) if len(ids) == L else ids",
    "blocks of a `take` exchanged": [
        (TAKE, TAKE.replace("request.blocks", "request.blocks[1::-1] + request.blocks[2:]")),
    ],
}  # fmt: skip


def table() -> dict[str, list[str]]:
    text = PAGE.read_text().split("## Planted mistakes")[1]
    lines = re.findall(r"^\| (.*) \|$", text, re.M)[1:]
    return {cells[0]: cells[1:] for cells in (line.split(" | ") for line in lines)}


def planted(name: str) -> dict[str, Any]:
    source = ENGINE.read_text()
    edits = PLANTED[name]
    for old, new in [ids(edits)] if isinstance(edits, str) else edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    names: dict[str, Any] = {"__name__": "planted"}
    exec(compile(source, name, "exec"), names)  # noqa: S102
    return names


def test_the_table_has_every_mistake() -> None:
    assert [*table()] == [*PLANTED]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_named_as_the_table_says(name: str) -> None:
    rows, by, says = table()[name]
    with (engine := planted(name)["Engine"]()).cap:
        error, report = "", None
        try:
            engine.run()
            report = engine.report()
        except Exception as raised:
            error = str(raised)
        if report is not None:
            found = ["wrong"] * bool(report.low) + ["missing"] * bool(report.missing)
            assert rows.split(" (")[0] == (" and ".join(found) or "right"), report
            assert bool(report.alarms) == ("verify" in by), report
        for who, quoted in zip(by.split(", ") if by else [], re.findall(r"`(.*?)`", says), strict=True):
            words = ".*".join(map(re.escape, quoted.split(" ... ")))
            if who == "log":
                logged(quoted.split(" ... ")[-1])
                assert any(re.search(words, line.getMessage()) for line in LOG.records), words
            elif who == "verify":
                assert len(report.alarms) <= 2 and re.search(words, report.alarms[0].text), report
            elif who == "counter":
                assert engine.cap.stats().as_dict()[quoted] > 0
            else:
                assert who == "error" and re.search(words, error), error
        if name == "none":
            stats = engine.cap.stats()
            assert not LOG.records and not stats.releases_below_zero + stats.blocks_without_users
            assert not stats.binds_with_users + stats.retains_unsealed
