"""Routing of Waymark in the samples of slime: ``--rollout-sample-hook-path slime_hook.replay``.

slime is not changed. Your generate function puts a ``waymark.trainer.Part`` for each request into
``sample.metadata["waymark"]``, a list: the rows of the request (``Rows``, a ``Document``, or
``(fetcher, handle)``), its tokens, and how many of them were its prompt.
"""
import numpy as np
import torch
from waymark import trainer


def replay(args, sample):
    """Sets rollout_routed_experts of a sample that has ended."""
    if "waymark" not in sample.metadata or sample.status is sample.Status.ABORTED:
        return  # slime resumes aborted samples: more parts are to come
    rows = trainer.Trajectory(sample.tokens, sample.metadata.pop("waymark"))
    data = trainer.FORMATS["slime"].write(
        [rows],
        [len(sample.tokens)],
        layer_ids=rows.shape.layer_ids,
        num_layers=args.num_layers,
        missing="fill",
    )
    sample.rollout_routed_experts = torch.from_numpy(data.ids[0])
    missing = np.flatnonzero(~data.mask[0])
    if len(missing):  # later tokens attend to a filler: they are left out of the loss
        length = sample.response_length
        kept = max(0, int(missing[0]) + 1 - (len(sample.tokens) - length))
        sample.loss_mask = (sample.loss_mask or [1] * length)[:kept] + [0] * (length - kept)
