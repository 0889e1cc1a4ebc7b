"""A Bind that was not reported: what the audit finds, when, and what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import waymark
from conftest import LOG, Rig, logged
from waymark import Reason

L, K, E = 6, 4, 64


def forgetful(rig: Rig, rows: int = 16) -> Any:
    """Block 0 has `rows` rows of a sealed prompt and was released; its next Bind is told as a Retain.
    (Without either, its rows are missing.) The rows, [rows, L, K]."""
    slots = list(range(rows))
    rig.store.bind(0)
    rig.store.seal(0, b"prompt")
    ids = rig.write(slots)
    rig.store.wait_idle(10)
    rig.store.release(0)
    rig.store.retain(0)
    return ids


def read(rig: Rig, rows: int = 16) -> Any:
    return rig.read([0], rows)


@pytest.fixture
def audited(make_rig: Any) -> Rig:
    return make_rig(num_layers=L, top_k=K, num_experts=E, page_tokens=16)


def found(rig: Rig) -> Any:
    """The only finding; every row is voided."""
    rig.store.wait_idle(10)
    (finding,) = rig.store.take_findings()
    assert finding.voided and finding.block == 0
    assert list(read(rig).reasons) == [Reason.AUDIT] * 16
    return finding


@pytest.mark.parametrize("silent", [[0], [L - 1], [1, 2, 4], list(range(1, L))])
def test_layers_that_were_written_are_compared(audited: Rig, silent: list[int]) -> None:
    forgetful(audited)
    ids = audited.ids(16)
    ids[:, silent] = -1
    audited.write(range(16), ids=ids)
    assert found(audited).rows == 16


def test_rows_that_did_not_ask_are_compared(audited: Rig) -> None:
    forgetful(audited)
    audited.write(waymark.NOT_ASKED(np.arange(16)))
    assert found(audited).rows == 16
    # What a request that did not ask left unwritten is no fault of a layer.
    assert all(layer.rows_silent == 0 for layer in audited.store.layer_stats())


def test_rows_after_a_lost_step_are_compared(audited: Rig) -> None:
    forgetful(audited)
    audited.lose(range(8))
    audited.write([8])
    assert found(audited).rows == 1


def test_rows_found_by_key_are_compared(audited: Rig) -> None:
    forgetful(audited)
    audited.store.bind(1, b"prompt")
    audited.write([])
    audited.write([16])  # the next owner of block 1, which was not bound
    assert not read(audited).valid.any()
    audited.store.wait_idle(10)
    assert [f.block for f in audited.store.take_findings()] == [1]


def test_one_row_is_enough(audited: Rig) -> None:
    forgetful(audited)
    audited.write([5])
    assert found(audited).rows == 1


@pytest.mark.parametrize("wrong", ["nothing", "invalid", "silent"])
def test_where_no_layer_was_written_nothing_is_compared(audited: Rig, wrong: str) -> None:
    kept = forgetful(audited)
    if wrong == "nothing":
        audited.lose(range(16))
    else:
        ids = audited.ids(16)
        if wrong == "invalid":  # physical ids, perhaps: the others cannot be trusted either
            ids[:, 3, 0] = E
        else:
            ids[:, :, 1] = -1
        audited.write(range(16), ids=ids)
    rows = read(audited)
    assert (rows.ids == kept).all() and rows.valid.all()
    assert audited.store.take_findings() == [] and audited.store.stats().audited_rows == 0


def test_the_same_token_written_again_is_kept(audited: Rig) -> None:
    kept = forgetful(audited)
    again = kept.copy()
    again[:, 0] = -1
    again[:, 1, 0] = (kept[:, 1].max(axis=1) + 1) % E  # a near tie
    audited.write(range(16), ids=again)
    assert read(audited).valid.all()
    stats = audited.store.stats()
    assert stats.audited_rows == 16 and stats.audit_voided_pages == 0
    assert stats.audit_agreement > 0.9


def test_one_cause_is_one_finding_and_a_line_now_and_then(make_rig: Any) -> None:
    rig = make_rig(num_layers=L, top_k=K, num_experts=E, num_pages=64, spare_pages=64)
    blocks = np.arange(12)
    rig.store.bind(blocks)
    rig.store.seal(blocks, None)
    rig.write(range(48))
    rig.write(range(20))  # the binds of five blocks are missing,
    rig.write(range(20, 48))  # and those of the others
    rig.store.wait_idle(10)
    (finding,) = rig.store.take_findings()
    assert (finding.pages, finding.step, finding.last_step) == (12, 2, 3)
    assert not finding.two_pages and finding.block == 0 and finding.voided
    assert "a Bind of block 0 after step 1 was missed" in finding.text
    assert finding.text.endswith("so were 11 more, the last after step 3")
    assert logged("found 10 times by now") is LOG.records[-1] and len(LOG.records) == 2
    rig.store.seal(0, None)
    rig.write(range(4))
    rig.write(range(4))
    rig.store.wait_idle(10)
    (again,) = rig.store.take_findings()
    assert (again.pages, again.step, again.last_step) == (1, 5, 5)


def test_two_pages_of_one_key_are_told_in_order(audited: Rig) -> None:
    audited.store.bind([0, 1])
    audited.write(range(16))
    audited.write(range(16, 32))
    audited.store.seal(1, b"key", 2)
    audited.store.seal(0, b"key", 1)  # the older page is the second
    audited.write([])
    audited.store.wait_idle(10)
    (finding,) = audited.store.take_findings()
    assert finding.two_pages and (finding.kept_step, finding.step) == (1, 2)
    assert finding.block == 0 and "the other by step 2; block 0 has the second" in finding.text
    assert not read(audited).valid.any()


@pytest.mark.parametrize("shape", [(1, 2, 4), (4, 4, 6), (16, 6, 8), (24, 1, 16), (32, 2, 8)])
def test_chance_does_not_reach_the_threshold(make_rig: Any, shape: tuple[int, int, int]) -> None:
    num_layers, top_k, num_experts = shape
    rig = make_rig(
        num_layers=num_layers, top_k=top_k, num_experts=num_experts, page_tokens=16, num_blocks=64
    )
    rig.store.bind(np.arange(32))
    rig.store.seal(np.arange(32), None)
    slots = np.arange(32 * 16).reshape(8, 64)
    for some in slots:
        rig.write(some)
    for some in slots:
        rig.write(some)  # no bind
    rig.store.wait_idle(10)
    assert rig.store.stats().audit_voided_pages == 32
