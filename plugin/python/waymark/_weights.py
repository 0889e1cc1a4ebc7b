"""Whether weights have changed, though nobody said so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._hooks import module


def digest(tensors: Iterable[Any]) -> list[int]:
    """Of each tensor of torch a sum of its bytes that depends on where they are. Waits for the
    device."""
    torch = module("torch")
    sums, places = [], None
    with torch.no_grad():
        for tensor in tensors:
            data = tensor.detach().contiguous().flatten().view(torch.uint8)
            if places is None or len(places) < len(data):
                places = torch.arange(1, len(data) + 1, device=data.device)
            sums.append((data * places[: len(data)]).sum())
    found: list[int] = torch.stack(sums).tolist() if sums else []
    return found
