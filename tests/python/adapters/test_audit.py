"""A Bind that was not reported: what the audit finds, when, and what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig
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
