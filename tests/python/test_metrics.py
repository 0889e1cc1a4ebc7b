"""Counters as OpenMetrics text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import waymark

NAME, LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*", r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[n"\\])*"'
SAMPLE = re.compile(rf"({NAME})\{{((?:{LABEL}(?:,{LABEL})*)?)\}} (-?[0-9.e+]+)")
GAUGES = set(
    "pages spare_pages pages_in_use pages_in_use_peak pages_detached pages_detached_peak bytes "
    "bytes_touched_peak snapshots_live audit_agreement log_lag_p50_ns "
    "log_lag_p99_ns landing_lag_p50_ns landing_lag_p99_ns".split()
)


def parsed(text: str) -> dict[tuple[str, str], float]:
    """{(name, labels): value}, by the rules of OpenMetrics 1.0 that matter here."""
    found: dict[tuple[str, str], float] = {}
    *lines, end, nothing = text.split("\n")
    assert (end, nothing) == ("# EOF", "")
    family, kind, families = "", "", set()
    for line in lines:
        if line.startswith("# TYPE "):
            family, kind = line[7:].split(" ")
            assert family not in families and kind in ("counter", "gauge"), line
            families.add(family)
        elif line.startswith("# HELP "):
            assert line.startswith(f"# HELP {family} ") and len(line) > len(family) + 12, line
        else:
            match = SAMPLE.fullmatch(line)
            assert match and match[1] == family + ("_total" if kind == "counter" else ""), line
            assert (match[1], match[2]) not in found, line
            found[match[1], match[2]] = float(match[3])
    return found


def used() -> waymark.Capture:
    """A capture with numbers in it, of model layers 3 and 5."""
    shape = {"num_layers": 2, "top_k": 1, "num_experts": 4, "num_blocks": 2, "layer_ids": [3, 5]}
    cap = waymark.Capture(**shape)  # type: ignore[arg-type]
    cap.bind(0)
    cap.step(1, 1, [0, 1, 2], np.array([[[0], [0]], [[0], [-1]], [[4], [0]]], np.int16))
    cap.wait_idle(20)
    return cap


def test_every_number_of_a_capture() -> None:
    cap, own = used(), 'model="m",rank="0"'
    text = cap.metrics({"model": "m", "rank": "0"})
    stats, found = cap.stats(), parsed(text)
    want: dict[tuple[str, str], float] = {
        ("rows_missing_total", f'{own},reason="{reason}"'): stats.missing.get(reason, 0)
        for reason in list(waymark.Reason)[1 : waymark.Reason.NOT_TOLD]
    }
    for layer in cap.layer_stats():
        want["rows_silent_total", f'{own},layer="{layer.layer_id}"'] = layer.rows_silent
        want["rows_invalid_total", f'{own},layer="{layer.layer_id}"'] = layer.rows_invalid
    for name in {*stats.as_dict()} - GAUGES:
        want[f"{name}_total", own] = stats.as_dict()[name]
    for name in GAUGES:
        want[name, own] = getattr(stats, name)
    assert found == {(f"waymark_store_{name}", labels): n for (name, labels), n in want.items()}
    assert (sum(want.values()), stats.rows_landed) > (0, 0)
    assert "# HELP waymark_store_rows_landed rows that became valid\n" in text


def test_publishers_and_fetchers() -> None:
    source = waymark.MemorySource()
    rows = waymark.Rows.from_array(np.zeros((40, 2, 1), np.uint8), num_experts=4, layer_ids=(0, 1))
    publisher, fetcher = waymark.Publisher(source, rows.shape), waymark.Fetcher(source)
    fetcher.fetch(publisher.publish(rows).wait(20))
    stats, counts = publisher.stats().as_dict(), fetcher.counts()._asdict()
    assert (stats["published"], stats["incomplete"], counts["fetched"]) == (1, 0, 4)
    assert parsed(publisher.metrics({"a": "b"})) == {
        (f"waymark_publisher_{name}_total", 'a="b"'): number for name, number in stats.items()
    }
    assert parsed(fetcher.metrics()) == {
        (f"waymark_fetcher_{name}_total", ""): number
        for name, number in counts.items() if not name.startswith("source_")
    }  # fmt: skip


def test_labels_are_escaped_and_checked() -> None:
    cap = used()
    found = parsed(cap.metrics({"path": 'a"b\\c\nd'}))
    assert ("waymark_store_events_total", r'path="a\"b\\c\nd"') in found
    for label in ("", "1a", "a-b", "reason", "layer", 'a="'):
        with pytest.raises(waymark.InvalidArgumentError, match="labels: "):
            cap.metrics({label: "x"})


def test_prometheus_reads_the_same() -> None:
    parser: Any = pytest.importorskip("prometheus_client.openmetrics.parser")
    text = used().metrics({"model": "m"})
    assert parsed(text) == {
        (sample.name, ",".join(f'{k}="{v}"' for k, v in sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
