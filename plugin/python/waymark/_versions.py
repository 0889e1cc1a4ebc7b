"""Names of weights as the integers that stores take."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from ._errors import InvalidArgumentError


class WeightVersions:
    """An engine's names of weights ("step-1200", a commit) as the integers that a store takes, and
    back::

        versions = waymark.WeightVersions()
        cap.step(number, versions.number("step-1200"), slots)
        ...
        [(run.end - run.begin, run.version_name) for run in rows.coverage(versions)]

    Names are numbered from 1 in the order in which they were first used; the same name is the same
    version. Rows, documents and handles contain the numbers only: give processes that must agree
    (ranks, readers) the same names in the same order, ``WeightVersions(versions.names)`` or a
    pickle. Any thread."""

    __slots__ = ("_lock", "_names", "_numbers")

    def __init__(self, names: Iterable[str] = ()) -> None:
        """names: numbered 1, 2, ...; "": a version without a name."""
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        for name in names:
            if name in self._numbers:
                raise InvalidArgumentError(f"names: each one once, got {name!r} twice")
            if name == "":
                self.unnamed()
            else:
                self.number(name)

    def number(self, name: str) -> int:
        """The version of a name; a new name gets the next number. A dict lookup if it is known."""
        known = self._numbers.get(name)
        if known is not None:
            return known
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"name: a str that is not empty, got {name!r}")
        with self._lock:
            if name not in self._numbers:
                self._names.append(name)
                self._numbers[name] = len(self._names)
            return self._numbers[name]

    def unnamed(self) -> int:
        """A new version without a name: nobody has said what its weights are."""
        with self._lock:
            self._names.append("")
            return len(self._names)

    def name(self, number: int) -> str:
        """The name of a version; "" if it has none."""
        return self._names[number - 1] if 1 <= number <= len(self._names) else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of their numbers; "" of a version without one."""
        return tuple(self._names)

    def __reduce__(self) -> Any:
        return WeightVersions, (self.names,)

    def __repr__(self) -> str:
        return f"WeightVersions({list(self._names)})"
