"""tests/integration/vllm without an engine: what its comparison must find wrong, what is evidence, and its faults."""
import importlib.machinery
import importlib.util
import json
import pathlib
import sys

import numpy as np
import pytest
from waymark.vllm import _plugin, _scheduler, _worker

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "integration" / "vllm"
sys.path.insert(0, str(FOLDER))
import compare  # noqa: E402
import engine  # noqa: E402
import faults  # noqa: E402
import scenarios  # noqa: E402

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


def test_rows_have_the_version_with_which_the_next_token_was_sampled(expected):
    """Rows that were computed again after a preemption are of later weights."""
    again = of_versions(expected, [1] * ROWS)
    sampled = [None] * 10 + [0] * 5 + [1] * 25
    assert compare.compare_versions("a", again, expected, [1] * ROWS).rows_wrong == 0
    result = compare.compare_versions("a", again, expected, [1] * ROWS, sampled)
    assert result.rows_wrong == 5 and "row 10 and 4 more" in result.examples[0]
    assert compare.compare_versions("a", of_versions(expected, [0] * 15 + [1] * 25), expected, None, sampled).rows_wrong == 0
    assert compare.compare_versions("a", again, expected, None, sampled).rows_wrong == 5


def test_versions_that_go_back_are_wrong(expected):
    assert compare.compare_versions("a", of_versions(expected, [1] * 15 + [0] * 25), expected).rows_wrong == 1


def test_rows_of_no_version_are_wrong(expected):
    assert compare.compare_versions("a", np.roll(of_versions(expected, [0] * 20 + [1] * 20), 1, 0), expected).rows_wrong >= ROWS - 5


# -- the harness around it --------------------------------------------------------------------
def loaded_run():
    """The script `run`, which has no suffix, as a module."""
    path = str(FOLDER / "run")
    spec = importlib.util.spec_from_loader("integration_run", importlib.machinery.SourceFileLoader("integration_run", path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = loaded_run()
RIGHT = {"rows_checked": 40, "rows_wrong": 0, "rows_missing": {}, "prefix_hit_tokens": 9, "external_hit_tokens": 0}


def test_every_fault_has_a_scenario():
    assert set(faults.FAULTS.values()) <= set(scenarios.SCENARIOS)


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_what_a_fault_replaces_is_there(fault, monkeypatch):
    owners = _plugin, _scheduler.SchedulerConnector, _worker.WorkerConnector, _worker.Pending, _worker.Capture
    before = [dict(vars(owner)) for owner in owners]
    monkeypatch.setenv("WAYMARK_TEST_FAULT", fault)
    monkeypatch.setenv("WAYMARK_TEST_FAULT_FILE", "")
    replaced = []
    try:
        faults.register()
    finally:
        for owner, names in zip(owners, before):
            for name in [name for name, value in vars(owner).items() if names.get(name) is not value]:
                replaced.append(name)
                setattr(owner, name, names[name]) if name in names else delattr(owner, name)  # a base class has it
    assert len(replaced) == 1


def test_a_fault_in_something_that_is_not_there_fails():
    with pytest.raises(AttributeError):
        faults.without(compare, "comparison")
    with pytest.raises(AttributeError):
        faults.around(compare, "comparison", lambda *given: given)


def test_a_call_that_is_left_out_is_the_only_difference(tmp_path, monkeypatch):
    class Store:
        def __init__(self):
            self.calls = []

        def bind(self, block):
            self.calls.append(("bind", block))

        def release(self, block):
            self.calls.append(("release", block))

    def calls():
        store = Store()
        for i in range(4):
            store.bind(i)
            store.release(i)
        return store.calls

    monkeypatch.setenv("WAYMARK_TEST_FAULT_FILE", str(tmp_path / "did"))
    whole = calls()
    faults.without(Store, "release", each=3)
    assert not (tmp_path / "did").exists()
    assert calls() == [call for call in whole if call != ("release", 2)] and (tmp_path / "did").exists()
    faults.without(Store, "bind")
    assert [name for name, _ in calls()] == ["release"] * 3


def test_the_rows_of_two_engines_are_joined():
    """As a user joins them: no row that one of them has is missing, and one that neither has is."""
    first, last = np.arange(24).reshape(6, 2, 2), np.full((8, 2, 2), -4)
    last[4:] = 100 + np.arange(16).reshape(4, 2, 2)
    last[7], first[1] = -4, -1
    joined = engine.joined([{"name": "a", "rows": first}, {"name": "a", "rows": last, "tokens": [5]}])
    assert joined["name"] == "a joined" and joined["tokens"] == [5] and (last[0] == -4).all()
    assert (joined["rows"][[0, 2, 3]] == first[[0, 2, 3]]).all() and (joined["rows"][4:7] == last[4:7]).all()
    assert [reason for reason in joined["reasons"]] == [None, "not joined", *[None] * 5, "not joined"]


def test_what_is_evidence_and_what_is_not():
    scenario = scenarios.SCENARIOS["failed_loads"]
    assert run.evidence(scenario, RIGHT | {"rows_missing": {"external_kv": 5}, "near_ties": 3, "preemptions": 2}) == {}
    shown = {"rows_wrong": 1, "rows_not_covered": 2, "findings": ["one"], "failures": ["why"], "releases_below_zero": 3, "snapshots_lost": 4}
    found = RIGHT | shown | {"rows_missing": {"external_kv": 5, "audit": 6}}
    assert run.evidence(scenario, found) == shown | {"rows_missing": {"audit": 6}}
    assert set(run.evidence(scenarios.SCENARIOS["groups"], found)["rows_missing"]) == {"external_kv", "audit"}


def test_loaded_tokens_have_to_be_missing_rows():
    scenario = scenarios.SCENARIOS["prefill_decode"]
    found = RIGHT | {"external_hit_tokens": 64}
    assert run.evidence(scenario, found | {"rows_missing": {"external_kv": 64}}) == {}
    assert run.evidence(scenario, found | {"rows_missing": {"external_kv": 60}}) == {"rows_that_should_miss": 4}
    assert run.evidence(scenario, found | {"rows_missing": {"external_kv": 70}}) == {"rows_missing": {"external_kv": 6}}


def test_a_run_is_judged():
    scenario = scenarios.SCENARIOS["preempt"]
    good = RIGHT | {"preemptions": 1}
    assert run.judge(scenario, "waymark", dict(good)) == []
    for bad, word in ((RIGHT, "preemptions"), (good | {"rows_wrong": 1}, "rows_wrong"), (good | {"rows_missing": {"audit": 1}}, "audit"),
                      (good | {"rows_checked": 0}, "fewer than 1"), (good | {"unfinished": 1}, "never finished"), ({"error": "ended"}, "ended")):
        assert word in str(run.judge(scenario, "waymark", dict(bad)))
    assert run.judge(scenario, "waymark", dict(good), rows=40) == []
    assert run.judge(scenario, "waymark", dict(good), rows=41) == ["40 rows were checked: fewer than 41"]


def test_the_keys_of_json():
    found = RIGHT | {"preemptions": 1, "drafts_accepted": 0, "near_ties": 2, "why_not": [],
                     "peer": RIGHT | {"preemptions": 1, "drafts_accepted": 0}}
    keys = {"rows_checked", "rows_wrong", "rows_missing", "prefix_hit_tokens", "preemptions", "drafts_accepted", "peer"}
    assert set(run.figures(found)) == keys
    assert set(run.figures(found)["peer"]) == keys - {"peer"}
    assert run.figures(found | {"peer": "not here"})["peer"] == "not here"
    assert run.figures({"error": "ended", "why_not": ["ended"]}) == {"error": "ended"}


def test_runs_with_several_seeds_are_put_together_with_their_range():
    def found(rows, missing, why=()):
        return dict(RIGHT, rows_checked=rows, rows_missing=missing, why_not=list(why), findings=[])

    whole = run.together({7: found(40, {}), 8: found(50, {"capacity": 2}, ["rows_missing: 2"]), 9: found(30, {"capacity": 1})})
    assert (whole["rows_checked"], whole["rows_wrong"], whole["rows_missing"]) == (120, 0, {"capacity": 3})
    assert whole["range"]["rows_checked"] == [30, 50] and whole["range"]["rows_missing"] == [0, 2]
    assert whole["why_not"] == ["seed 8: rows_missing: 2"]
    assert run.figures(whole)["range"] == whole["range"] and "error" not in whole


def test_a_seed_without_a_result_is_an_error_of_all():
    whole = run.together({7: dict(RIGHT, why_not=[]), 8: {"error": "it crashed", "why_not": ["it crashed"]}})
    assert whole["error"] == "it crashed" and whole["why_not"] == ["seed 8: it crashed"]
    assert run.figures(whole) == {"error": "it crashed"}
