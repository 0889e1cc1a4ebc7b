"""Counters as OpenMetrics text, for Prometheus and what reads its format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ._errors import InvalidArgumentError

_GAUGE = re.compile(
    "(spare_)?pages|bytes|pages_(in_use|detached)|.*_(peak|live|ns|agreement)|pending_results"
)

Family = tuple[str, str, Iterable[tuple[str, float]]]  # name, meaning, (label, value) each


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
