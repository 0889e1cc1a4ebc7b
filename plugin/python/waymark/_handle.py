"""Handles: what crosses a process in place of rows."""

from __future__ import annotations

from . import _core


class Handle(bytes):
    """What crosses a process in place of rows: the name of rows [0, rows) of one sequence.

    Its own bytes; any pickler carries it. (Ray gives one that is put by itself back as plain bytes:
    fetch() takes them as well, and Handle() makes a handle of them.) ``Handle(data)`` of
    other bytes: InvalidArgumentError, DataLossError, UnimplementedError when they are no handle."""

    __slots__ = ()

    def __new__(cls, data: bytes) -> Handle:
        """data: the bytes of a handle."""
        _core.handle_info(data)
        return super().__new__(cls, data)

    @property
    def rows(self) -> int:
        """It names rows [0, rows)."""
        return _core.handle_info(self)[0]

    @property
    def head(self) -> bytes:
        """The digest of the last node, 16 bytes; zeros when no page is complete."""
        return _core.handle_info(self)[2]

    @property
    def num_layers(self) -> int:
        """Of its rows."""
        return _core.handle_info(self)[3]

    @property
    def store(self) -> str:
        """The name of the store that has the bytes."""
        return _core.handle_info(self)[7]

    def __repr__(self) -> str:
        return f"Handle(rows={self.rows}, store={self.store!r}, head={self.head.hex()})"
