"""Records what the routers choose in the engine under test itself, by request and position.

For models whose recompute proves nothing: vLLM's MLA on the CPU is not causal (the routes of a token change with
the number of tokens after it in the same forward), so no other forward routes alike. It knows the rows of a forward
from the runner's batch, not from Waymark's slots, blocks or events. It does not follow the prefix cache, preemptions or
rejected drafts. The engine core has to be in this process.
"""
import compare
import numpy as np
import torch
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter


class Recorder:
    def __init__(self, llm):
        runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        self.model_layers = runner.model_config.hf_config.num_hidden_layers
        self.rows = {}  # (request, position): {layer: (ids, scores)}
        self.batch = []
        prepare = runner._prepare_inputs

        def prepared(scheduler_output, counts, *args, **more):
            batch = runner.input_batch
            self.batch = [(name, int(first) + i) for name, first, count in
                          zip(batch.req_ids, batch.num_computed_tokens_cpu, counts) for i in range(int(count))]
            return prepare(scheduler_output, counts, *args, **more)

        runner._prepare_inputs = prepared
        for module in runner.get_model().modules():
            if isinstance(getattr(module, "router", None), BaseRouter):
                watch(module.router, lambda ids, scores, layer=module.layer_id: self.take(layer, ids, scores))

    def take(self, layer, ids, scores):
        for row, key in enumerate(self.batch):
            self.rows.setdefault(key, {})[layer] = ids[row], scores[row]

    def expected(self, name, count):
        """compare.Expected of the first `count` tokens of a request, by the name that it was given."""
        request = next(key for key, _ in self.rows if key == name or key.startswith(name + "-"))
        rows = [self.rows[request, position] for position in range(count)]
        layers = sorted(rows[0])
        return compare.Expected(*(np.stack([np.stack([row[layer][part] for layer in layers]) for row in rows]) for part in (0, 1)),
                                layers, self.model_layers)


def watch(router, take):
    """Calls take(ids, scores) with what a router chooses: int64 [rows, top_k], float [rows, experts]."""
    compute = router._compute_routing

    def watched(hidden, logits, *args, **more):
        weights, ids = compute(hidden, logits, *args, **more)
        scores = logits.float().clone()
        if getattr(router, "e_score_correction_bias", None) is not None:
            scores = scores.sigmoid() + router.e_score_correction_bias.float()
        take(ids.to(torch.int64).numpy().copy(), scores.numpy())
        return weights, ids

    router._compute_routing = watched
