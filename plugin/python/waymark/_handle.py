"""Handles: what crosses a process in place of rows."""

from __future__ import annotations

from . import _core


class Handle(bytes):
    """The name of rows [0, rows) of one sequence, which crosses a process in their place.

    It is its own bytes, and any pickler carries it. (Ray returns a handle that was put by itself as
    plain bytes; fetch() accepts them, and Handle() makes a handle of them.) ``Handle(data)`` raises
    InvalidArgumentError, DataLossError or UnimplementedError if the bytes are no handle."""

    __slots__ = ()

    def __new__(cls, data: bytes) -> Handle:
        """data: the bytes of a handle."""
        _core.handle_info(data)
        return super().__new__(cls, data)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return _core.handle_info(self)[0]

    @property
    def head(self) -> bytes:
        """The digest of the last node, 16 bytes; zeros if no page is complete."""
        return _core.handle_info(self)[2]

    @property
    def num_layers(self) -> int:
        """Layers of its rows."""
        return _core.handle_info(self)[3]

    @property
    def store(self) -> str:
        """The name of the store that has the bytes."""
        return _core.handle_info(self)[7]

    @property
    def keyed(self) -> bool:
        """Whether its publisher had a key; its fetcher needs the same."""
        return _core.handle_info(self)[8]

    def __repr__(self) -> str:
        return f"Handle(rows={self.rows}, store={self.store!r}, head={self.head.hex()})"
