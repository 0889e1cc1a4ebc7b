"""Counters as OpenMetrics text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import waymark

NAME, LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*", r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[n"\\])*"'
SAMPLE = re.compile(rf"({NAME})\{{((?:{LABEL}(?:,{LABEL})*)?)\}} (-?[0-9.e+]+)")

Samples = dict[tuple[str, str], float]


def parsed(text: str) -> Samples:
    """{(name, labels): value}, by the rules of OpenMetrics 1.0 that matter here."""
    found: Samples = {}
    *lines, end, nothing = text.split("\n")
    assert (end, nothing) == ("# EOF", "")
    family, kind, families = "", "", set()
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in families and kind in ("counter", "gauge"), line
            assert re.fullmatch(NAME, family) and not family.endswith("_total"), line
            families.add(family)
        elif line.startswith("# HELP "):
            assert line.startswith(f"# HELP {family} ") and len(line) > len(family) + 12, line
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            assert name == family + ("_total" if kind == "counter" else ""), line
            assert (name, labels) not in found, line
            found[name, labels] = float(value)
    return found


def by_prometheus(text: str) -> Samples:
    """What the client library of Prometheus reads, where it is installed."""
    parser: Any = pytest.importorskip("prometheus_client.openmetrics.parser")
    return {
        (sample.name, ",".join(f'{k}="{v}"' for k, v in sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def used() -> waymark.Capture:
    """A capture with numbers in it, of model layers 3 and 5."""
    cap = waymark.Capture(
        num_layers=2, top_k=1, num_experts=4, num_blocks=2, layer_ids=[3, 5], engine=None
    )
    ids = np.array([[[0], [0]], [[0], [-1]], [[4], [0]]], np.int16)
    cap.bind(0)
    cap.step(1, 1, [0, 1, 2], ids)
    cap.wait_idle(20)
    return cap


def test_every_number_of_a_capture() -> None:
    cap = used()
    text = cap.metrics({"model": "m", "rank": "0"})
    found, stats, own = parsed(text), cap.stats(), 'model="m",rank="0"'
    for name, value in stats.as_dict().items():
        counter = found.pop((f"waymark_store_{name}_total", own), None)
        assert value == (found.pop((f"waymark_store_{name}", own)) if counter is None else counter)
    for reason in list(waymark.Reason)[1:]:
        labels = f'{own},reason="{reason}"'
        assert found.pop(("waymark_store_rows_missing_total", labels)) == stats.missing.get(reason, 0)
    for name, rows in (("silent", [0, 1]), ("invalid", [1, 0])):
        for layer, count in zip((3, 5), rows):
            labels = f'{own},layer="{layer}"'
            assert found.pop((f"waymark_store_rows_{name}_total", labels)) == count
    assert found.pop(("waymark_store_audit_agreement", own)) == 1.0
    assert len(found) == 4 + 2  # lags; results


def test_what_may_fall_is_a_gauge() -> None:
    gauges = {name for name, _ in parsed(used().metrics()) if not name.endswith("_total")}
    assert gauges == {
        f"waymark_store_{name}"
        for name in (
            "pages spare_pages pages_in_use pages_in_use_peak pages_detached pages_detached_peak "
            "bytes bytes_touched_peak snapshots_live pending_results audit_agreement "
            "log_lag_p50_ns log_lag_p99_ns landing_lag_p50_ns landing_lag_p99_ns"
        ).split()
    }


def test_the_words_are_those_of_the_counters() -> None:
    lines = used().metrics().splitlines()
    assert "# HELP waymark_store_rows_landed rows that became valid" in lines
    assert "# TYPE waymark_store_rows_landed counter" in lines


def test_publishers_and_fetchers() -> None:
    source = waymark.MemorySource()
    rows = waymark.Rows.from_array(np.zeros((40, 2, 1), np.uint8), num_experts=4)
    publisher, fetcher = waymark.Publisher(source, rows.shape), waymark.Fetcher(source)
    fetcher.fetch(publisher.publish(rows).wait(20))
    found = parsed(publisher.metrics({"a": "b"}))
    assert {name: value for (name, labels), value in found.items() if labels == 'a="b"'} == {
        f"waymark_publisher_{name}_total": value
        for name, value in publisher.stats().as_dict().items()
    }
    assert found["waymark_publisher_published_total", 'a="b"'] == 1
    read = parsed(fetcher.metrics())
    assert [read[f"waymark_fetcher_{name}_total", ""] for name in fetcher.counts()._fields[:5]] == [
        *fetcher.counts()[:5]
    ]


def test_labels_are_escaped_and_checked() -> None:
    cap = used()
    found = parsed(cap.metrics({"path": 'a"b\\c\nd'}))
    assert ("waymark_store_events_total", r'path="a\"b\\c\nd"') in found
    for label in ("", "1a", "a-b", "reason", "layer", 'a="'):
        with pytest.raises(waymark.InvalidArgumentError, match="labels: "):
            cap.metrics({label: "x"})


def test_prometheus_reads_the_same() -> None:
    text = used().metrics({"model": "m"})
    assert by_prometheus(text) == parsed(text)
