"""Counters as OpenMetrics text, for Prometheus and what reads its format."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ._errors import InvalidArgumentError

_GAUGE = re.compile("(spare_)?pages|bytes|pages_(in_use|detached)|.*_(peak|live|ns|agreement)")

Family = tuple[str, str, Iterable[tuple[str, float]]]  # name, meaning, (label, value) each


_exported: dict[str, Any] = {}  # counters of prometheus_client, which has each name once


class Exported:
    """The counters of a store among those of prometheus_client in this process. If
    PROMETHEUS_MULTIPROC_DIR is set, the process that serves them all has them, too."""

    def __init__(self, every: float = 5.0) -> None:
        """every: seconds between updates."""
        self._counter = importlib.import_module("prometheus_client").Counter
        self._every, self._next = every, 0.0
        self._before: dict[tuple[str, str], int] = {}

    def update(self, stats: Callable[[], Any]) -> None:
        """One thread at a time. stats: Capture.stats, which is called if it is time."""
        if time.monotonic() < self._next:
            return
        self._next, found = time.monotonic() + self._every, stats()
        counts = {(name, ""): count for name, count in found.as_dict().items()
                  if not _GAUGE.fullmatch(name)}  # fmt: skip
        counts |= {("rows_missing", str(reason)): n for reason, n in found.missing.items()}
        for (name, reason), count in counts.items():
            if name not in _exported:
                labels = ["reason"] if reason else []
                _exported[name] = self._counter(f"waymark_store_{name}", name, labels)
            counter = _exported[name].labels(reason) if reason else _exported[name]
            counter.inc(count - self._before.get((name, reason), 0))
        self._before = counts


def attributes(owner: Any, names: Iterable[str]) -> list[Family]:
    """Numbers with docstrings."""
    return [
        (name, str(getattr(type(owner), name).__doc__).splitlines()[-1],
         [("", getattr(owner, name))])
        for name in names
    ]  # fmt: skip


def text_of(what: str, families: Iterable[Family], labels: Mapping[str, str] | None) -> str:
    """The exposition of waymark_``what``_..., each sample with ``labels``."""
    given, lines = [], []
    for label, text in (labels or {}).items():
        if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", label) or label in ("reason", "layer"):
            raise InvalidArgumentError(f"labels: letters, digits and _, no own name, got {label!r}")
        text = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        given.append(f'{label}="{text}"')
    for name, meaning, samples in families:
        full, gauge = f"waymark_{what}_{name}", what == "store" and _GAUGE.fullmatch(name)
        lines.append(f"# TYPE {full} {'gauge' if gauge else 'counter'}\n# HELP {full} {meaning}")
        for own, value in samples:
            pairs = ",".join(given + [own] * bool(own))
            lines.append(f"{full}{'' if gauge else '_total'}{{{pairs}}} {value}")
    return "\n".join([*lines, "# EOF\n"])
