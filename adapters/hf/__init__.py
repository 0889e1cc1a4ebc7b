"""Replays and records routing in models of Hugging Face transformers, by one forward hook on each
router (docs/training.md).

    import waymark.hf
    from waymark import trainer

    plan = trainer.Layout(order="batch-major").plan(lengths)
    filled = plan.fill(rows, waymark.hf.layer_ids(model))  # rows: of each sequence
    with waymark.hf.replay(model, plan, filled) as replaying:
        loss = loss_of(model(input_ids=input_ids, attention_mask=attention_mask))
        loss.backward()
    for alarm in replaying.audit().alarms: ...

Importing this imports neither torch nor transformers.
"""

from .._hooks import Refused
from ._families import layer_ids
from ._replay import Recording, Replaying, record, replay

__all__ = ["Recording", "Refused", "Replaying", "layer_ids", "record", "replay"]
