"""Exact MoE routing of every token, as long as its KV exists.

    import waymark

    cap = waymark.Capture(num_layers=58, top_k=8, num_experts=256, num_blocks=4096,
                          layer_ids=range(3, 61))      # the model's numbers

    cap.bind(blocks)                                     # KV blocks are allocated
    slots = waymark.slots_of(blocks, 16, 0, tokens)      # the slot of each row of this step
    with cap.step(1, 1, slots) as step:
        step.ids = forward()                             # integers [tokens, L, K]

    taken = cap.take(blocks, tokens)                     # before the blocks are released
    rows = taken.result(timeout=5)                       # rows.ids, rows.valid, rows.reasons

The terms (row, block, slot, page, step, key, version, reason) are defined in docs/glossary.md.
Needs only numpy; importing it starts nothing.
"""

from . import (
    _capture, _compare, _documents, _errors, _fetching, _install, _process_source, _rows, _tier,
    _types, _verify,
)  # fmt: skip
from ._capture import *
from ._compare import *
from ._core import Buffer, Step, version as _version
from ._documents import *
from ._errors import *
from ._fetching import *
from ._formats import read
from ._handle import Handle
from ._install import *
from ._process_source import *
from ._rows import *
from ._source_url import source_of
from ._tier import *
from ._types import *
from ._verify import *
from ._versions import WeightVersions

__version__: str = _version()

__all__ = ["Buffer", "Handle", "Step", "WeightVersions", "__version__", "read", "source_of"]
__all__ += _capture.__all__
__all__ += _compare.__all__
__all__ += _documents.__all__
__all__ += _errors.__all__
__all__ += _fetching.__all__
__all__ += _install.__all__
__all__ += _process_source.__all__
__all__ += _rows.__all__
__all__ += _tier.__all__
__all__ += _types.__all__
__all__ += _verify.__all__
