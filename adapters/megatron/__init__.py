"""Captures the routing of Megatron's dynamic inference engine, and replays it in training, without
a change to megatron-core.

    attached = waymark.megatron.attach(engine)

of a ``DynamicInferenceEngine`` whose model has ``moe_enable_routing_replay``. From then on
``routing_indices`` of a finished request has the expert ids of all its tokens but the last, int16
[tokens - 1, layers, K], where Megatron's own store of routing would have put them: also of requests
that were evicted, or whose blocks were taken again in the step in which they finished.

    replay = waymark.megatron.replay(model)

replays rows in the routers of a model that is trained (docs/training.md).

Importing this imports nothing of torch or megatron-core.
"""

from .._coverage import Coverage
from ._attached import Attached, attach
from ._finished import Finished
from ._hooks import Refused
from ._replay import Recorded, Replay, Replayed, replay

__all__ = ["Attached", "Coverage", "Finished", "Recorded", "Refused", "Replay", "Replayed",
           "attach", "replay"]  # fmt: skip
