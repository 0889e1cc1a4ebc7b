"""The comparison of tests/integration/vllm, without an engine: what it must find wrong, and what not."""
import json
import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration" / "vllm"))
import compare  # noqa: E402

ROWS, LAYERS, TOP_K, EXPERTS = 40, 3, 4, 16


@pytest.fixture
def expected():
    scores = np.random.default_rng(3).standard_normal((ROWS, LAYERS, EXPERTS))
    return compare.Expected(np.argsort(-scores, -1)[..., :TOP_K], scores, [1, 2, 3], LAYERS + 1)


def tie(expected, row, layer, gap):
    """Makes the last chosen and the first not chosen expert of a row `gap` apart; returns (chosen, other)."""
    order = np.argsort(-expected.scores[row, layer])
    expected.scores[row, layer, order[TOP_K]] = expected.scores[row, layer, order[TOP_K - 1]] - gap
    return order[TOP_K - 1], order[TOP_K]


def test_equal_rows_are_right(expected):
    result = compare.compare("a", expected.ids, expected)
    assert (result.rows_checked, result.rows_wrong, sum(result.rows_missing.values())) == (ROWS, 0, 0)
    assert (result.near_ties, result.after_near_tie, result.rows_other_order) == (0, 0, 0)


def test_rows_moved_by_one_are_wrong(expected):
    result = compare.compare("a", np.roll(expected.ids, 1, 0), expected)
    assert result.rows_wrong >= ROWS - 1
    assert result.examples and result.examples[0].startswith("a: row 0, layer 1")


def test_layers_in_another_order_are_wrong(expected):
    assert compare.compare("a", expected.ids[:, ::-1], expected).rows_wrong == ROWS


def test_one_wrong_id_in_one_layer_is_wrong(expected):
    rows = expected.ids.copy()
    rows[7, 2, 0] = next(e for e in np.argsort(expected.scores[7, 2]) if e not in rows[7, 2])
    result = compare.compare("a", rows, expected)
    assert result.rows_wrong == 1 and "row 7, layer 3" in result.examples[0]


def test_a_repeated_id_is_wrong(expected):
    rows = expected.ids.copy()
    rows[7, 2, 0] = rows[7, 2, 1]
    assert compare.compare("a", rows, expected).rows_wrong == 1


def test_another_order_of_ids_is_counted_and_right(expected):
    result = compare.compare("a", expected.ids[..., ::-1], expected)
    assert (result.rows_wrong, result.rows_other_order) == (0, ROWS)


def test_dense_layers_may_be_there(expected):
    rows = np.zeros((ROWS, LAYERS + 1, TOP_K), np.uint8)
    rows[:, 1:] = expected.ids
    assert compare.compare("a", rows, expected).rows_wrong == 0


def test_a_near_tie_is_told_apart_by_scores(expected):
    for gap, wrong in ((compare.NEAR_TIE / 2, 0), (3 * compare.NEAR_TIE, 1)):
        chosen, other = tie(expected, 5, 1, gap)
        rows = expected.ids.copy()
        rows[5, 1][rows[5, 1] == chosen] = other
        result = compare.compare("a", rows, expected)
        assert (result.rows_wrong, result.near_ties) == (wrong, 1 - wrong)


def test_after_a_near_tie_rows_are_judged_by_agreement(expected):
    chosen, other = tie(expected, 5, 1, 0)
    rows = expected.ids.copy()
    rows[5, 1][rows[5, 1] == chosen] = other
    rows[9, 0, 0] = next(e for e in np.argsort(expected.scores[9, 0]) if e not in rows[9, 0])
    rows[11] = (rows[11] + 8) % EXPERTS
    result = compare.compare("a", rows, expected)
    assert result.after_near_tie == 1 and result.rows_wrong == 1 and "row 11" in result.examples[0]


def test_missing_rows_are_counted_by_reason(expected):
    rows = expected.ids.copy()
    rows[3:5] = -1
    assert compare.compare("a", rows, expected).rows_missing == {"unexplained": 2}
    reasons = [None] * ROWS
    reasons[3] = "capacity"
    result = compare.compare("a", rows, expected, reasons=reasons)
    assert result.rows_missing == {"capacity": 1, "unexplained": 1} and result.rows_checked == ROWS - 2
    assert compare.compare("a", None, expected).rows_missing == {"nothing was returned": ROWS}
    assert compare.compare("a", rows[:30], expected, reasons=reasons).rows_missing["the array is too short"] == 10


def test_results_are_added_and_written_as_json(expected):
    rows = expected.ids.copy()
    rows[3:5] = -1
    total = compare.Result()
    for _ in range(2):
        total.add(compare.compare("a", rows, expected, reasons="capacity")).add(compare.compare("b", rows[::-1], expected))
    found = json.loads(json.dumps(total.as_dict()))
    assert found["rows_missing"] == {"capacity": 4, "unexplained": 4}
    assert found["rows_checked"] == 4 * (ROWS - 2) and len(found["examples"]) == compare.MAX_EXAMPLES


def test_too_many_rows_and_another_shape_are_wrong(expected):
    assert compare.compare("a", np.concatenate([expected.ids, expected.ids[:2]]), expected).rows_wrong == 2
    assert compare.compare("a", expected.ids[:, :1], expected).rows_wrong == ROWS


def test_a_part_is_compared_with_its_own_rows(expected):
    assert compare.compare("a", expected.ids[10:], expected, first=10).rows_wrong == 0
    assert compare.compare("a", expected.ids[:-10], expected, first=10).rows_wrong >= ROWS - 11


def test_a_recompute_that_is_not_the_top_k_is_refused(expected):
    compare.check_recompute(expected)
    expected.ids[4, 1] = np.argsort(expected.scores[4, 1])[:TOP_K]
    with pytest.raises(ValueError, match="top-k"):
        compare.check_recompute(expected)


def of_versions(expected, versions):
    rows = expected.ids.copy()
    rows[:, -1] = (rows[:, -1] + np.array(versions)[:, None]) % EXPERTS
    return rows


def test_rows_of_two_versions(expected):
    versions = [0] * 15 + [1] * 25
    rows = of_versions(expected, versions)
    result = compare.compare_versions("a", rows, expected, versions)
    assert (result.rows_wrong, result.rows_old_version, result.rows_checked) == (0, 15, ROWS)
    assert compare.compare_versions("a", rows, expected, [0] * ROWS).rows_wrong == 25


def test_ids_that_fit_two_versions_are_of_the_claimed_one(expected):
    """Such a row was taken for one of the older version, and counted as wrong."""
    step = EXPERTS // expected.ids.shape[-1]
    expected.ids[20, -1] = np.arange(expected.ids.shape[-1]) * step  # the same set `step` versions later
    versions = [0] * 10 + [step] * (ROWS - 10)
    rows = of_versions(expected, versions)
    assert compare.compare_versions("a", rows, expected, versions).rows_wrong == 0
    assert compare.compare_versions("a", rows, expected).rows_wrong == 0


def test_versions_that_go_back_are_wrong(expected):
    assert compare.compare_versions("a", of_versions(expected, [1] * 15 + [0] * 25), expected).rows_wrong == 1


def test_rows_of_no_version_are_wrong(expected):
    assert compare.compare_versions("a", np.roll(of_versions(expected, [0] * 20 + [1] * 20), 1, 0), expected).rows_wrong >= ROWS - 5
