"""Routing replay in a trainer (docs/training.md): from rows to the tensors of one rank's routers.

    from waymark import trainer

    layout = trainer.Layout(context=(rank, 2), tensor=(tp_rank, 2), sequence_parallel=True,
                            sequence_multiple=8)
    plan = layout.plan(lengths)                        # the tokens of each sequence
    filled = plan.fill(rows, layer_ids=range(30, 60))  # rows: of each sequence
    filled.ids                                         # int64 [layers, plan.rows, K]
    filled.mask                                        # False: the row is to be routed as usual
    for alarm in trainer.audit(plan, filled, own, num_experts=256).alarms: ...

    trainer.FORMATS["verl"].write(rows, lengths, layer_ids=range(3, 61), num_layers=61).ids

Needs only numpy. Every class here is immutable; any thread.
"""

from .._compare import Audit
from ._audit import audit
from ._formats import FORMATS, Format, ReplayData
from ._plan import Filled, FillReport, Layout, Plan, Segment, expand, stage_layers
from ._trajectory import Part, PartRun, Trajectory

__all__ = ["Audit", "FORMATS", "FillReport", "Filled", "Format", "Layout", "Part", "PartRun",
           "Plan", "ReplayData", "Segment", "Trajectory", "audit", "expand",
           "stage_layers"]  # fmt: skip
