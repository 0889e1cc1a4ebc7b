"""tests/integration/vllm without an engine: what its comparison must find wrong, what is evidence, and its faults."""
import ast
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import types

import numpy as np
import pytest
import waymark
from waymark.vllm import _scheduler, _writer

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "integration" / "vllm"
sys.path.insert(0, str(FOLDER))
import compare  # noqa: E402
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


def wrapped_methods():
    """Methods of vLLM's classes that the plugin wraps on a CPU: the second argument of wrap(), in its sources."""
    package = FOLDER.parents[2] / "adapters" / "vllm"
    paths = [path for path in package.glob("_*.py") if path.name != "_device.py"]
    calls = [node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == "wrap"]
    return {call.args[1].value for call in named if len(call.args) == 3}


def test_every_method_that_the_plugin_wraps_can_be_left_out():
    # __post_init__ finds mistakes in the options, and starts the front end's half.
    assert wrapped_methods() == set(faults.HOOKS) | {"__post_init__"}


def test_every_fault_has_a_scenario():
    assert set(faults.FAULTS.values()) <= set(scenarios.SCENARIOS)
    assert {*faults.EVENTS, *faults.SNAPSHOTS, *faults.HOOKS} <= set(faults.FAULTS)


def test_a_fault_in_something_that_is_not_there_fails():
    with pytest.raises(AttributeError):
        faults.replace(compare, "comparison", lambda function: function)


class Calls:
    """In the place of a ScheduleWriter: its messages are lists of calls."""
    def __init__(self, *given, **limits):
        self.calls = []

    def finish(self):
        return self.calls


for name in (*faults.EVENTS, "begin", "snapshot"):
    setattr(Calls, name, lambda self, *given, name=name: self.calls.append((name, *given)))


def calls(monkeypatch, fault="", event=""):
    """What a scheduler half writes under a fault."""
    monkeypatch.setattr(_writer, "ScheduleWriter", faults.without_event(Calls, event) if event else Calls)
    writer, key = _writer.Writer(16, 4), [bytes([1]) * 32, bytes([2]) * 32]
    half = types.SimpleNamespace(_writer=writer)
    leaves = {name: lambda half, request, tag: half._writer.leave(request, 8, tag) for name in faults.SNAPSHOTS}
    if fault:
        leaves[fault] = faults.without_snapshot(leaves[fault])
    one, two = _writer.Blocks(), _writer.Blocks()
    writer.start(one, [1, 2], 0, 0, key)
    writer.seal(one, 8, key)
    leaves["preempt_snapshot"](half, one, 7)
    writer.copy(2, 5)
    writer.start(two, [1, 5], 6, 0, key)
    writer.start(one, [1, 3], 4, 0, key)
    leaves["finish_snapshot"](half, one, 8)
    writer.reset()
    (made,) = writer.messages(1, 1)
    return made


def test_what_faults_replace_is_there():
    assert all(hasattr(_scheduler.SchedulerHalf, name) for name in faults.SNAPSHOTS.values())
    assert _writer.ScheduleWriter is waymark.ScheduleWriter and _scheduler.Writer is _writer.Writer
    with pytest.raises(AttributeError):
        faults.without_event(waymark.ScheduleWriter, "bound")


@pytest.mark.parametrize("event", faults.EVENTS)
def test_an_event_that_is_left_out_is_the_only_difference(event, tmp_path, monkeypatch):
    monkeypatch.setenv("WAYMARK_TEST_FAULT_FILE", str(tmp_path / "did"))
    whole = calls(monkeypatch)
    assert not (tmp_path / "did").exists()
    without = [call for call in whole if call[0] != event]
    assert without != whole and calls(monkeypatch, event=event) == without
    assert (tmp_path / "did").exists()


@pytest.mark.parametrize(("fault", "tag"), [("preempt_snapshot", 7), ("finish_snapshot", 8)])
def test_a_snapshot_that_is_left_out(fault, tag, tmp_path, monkeypatch):
    monkeypatch.setenv("WAYMARK_TEST_FAULT_FILE", str(tmp_path / "did"))
    whole = calls(monkeypatch)
    without = [call for call in whole if call[:2] != ("snapshot", tag)]
    assert without != whole and calls(monkeypatch, fault) == without and (tmp_path / "did").exists()


def test_what_is_evidence_and_what_is_not():
    scenario = scenarios.SCENARIOS["kv_files"]
    assert run.evidence(scenario, RIGHT | {"rows_missing": {"external_kv": 5}, "near_ties": 3, "preemptions": 2}) == {}
    shown = {"rows_wrong": 1, "rows_not_covered": 2, "outputs_late": 5, "findings": ["one"], "failures": ["why"], "releases_below_zero": 3, "snapshots_lost": 4}
    found = RIGHT | shown | {"rows_missing": {"external_kv": 5, "audit": 6}}
    assert run.evidence(scenario, found) == shown | {"rows_missing": {"audit": 6}}
    assert set(run.evidence(scenarios.SCENARIOS["groups"], found)["rows_missing"]) == {"external_kv", "audit"}


def test_a_late_output_is_evidence_if_many_are_late():
    scenario = scenarios.SCENARIOS["preempt"]
    assert run.evidence(scenario, RIGHT | {"outputs_late": 4, "requests": 16}) == {}
    assert run.evidence(scenario, RIGHT | {"outputs_late": 5, "requests": 16}) == {"outputs_late": 5}


def test_loaded_tokens_have_to_be_missing_rows():
    scenario = scenarios.SCENARIOS["prefill_decode"]
    found = RIGHT | {"external_hit_tokens": 64}
    assert run.evidence(scenario, found | {"rows_missing": {"external_kv": 64}}) == {}
    assert run.evidence(scenario, found | {"rows_missing": {"external_kv": 60}}) == {"rows_that_should_miss": 4}
    assert run.evidence(scenario, found | {"rows_missing": {"external_kv": 70}}) == {"rows_missing": {"external_kv": 6}}
    assert run.evidence(scenarios.SCENARIOS["reset_files"], RIGHT | {"hits_by_key": 2}) == {"hits_by_key": 2}
    assert run.evidence(scenarios.SCENARIOS["kv_files"], RIGHT | {"hits_by_key": 0}) == {"no hits_by_key": True}
    assert run.evidence(scenarios.SCENARIOS["kv_files"], RIGHT | {"hits_by_key": 3}) == {}


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
    found = RIGHT | {"preemptions": 1, "drafts_accepted": 0, "near_ties": 2, "hook_us": {"ids": {"p50": 1.0, "p90": 2.0}}, "why_not": [],
                     "peer": RIGHT | {"preemptions": 1, "drafts_accepted": 0, "hook_us": {}}}
    keys = {"rows_checked", "rows_wrong", "rows_missing", "prefix_hit_tokens", "preemptions", "drafts_accepted", "hook_us", "peer"}
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
