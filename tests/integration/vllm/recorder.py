"""Records what the routers choose in the engine under test itself, by request and position.

For models whose recompute proves nothing: vLLM's MLA on the CPU is not causal (the routes of a token change with
the number of tokens after it in the same forward), and its recurrent states on the CPU depend on where a prefill was
split, so no other forward routes alike. It knows the rows of a forward from the runner's batch and block table, not from
Waymark's slots or events: a row that a request did not compute is the one that was computed, or copied, into its block.
It does not follow preemptions or rejected drafts. The engine core has to be in this process.
"""
import compare
import numpy as np
import torch
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.v1.kv_cache_interface import FullAttentionSpec


class Recorder:
    def __init__(self, llm):
        self.runner = runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        self.model_layers = runner.model_config.hf_config.num_hidden_layers
        self.rows = {}    # (request, position): {layer: (ids, scores)}
        self.blocks = {}  # {offset: the same row} of each KV block
        self.batch = []
        groups = runner.kv_cache_config.kv_cache_groups
        self.group = next(i for i, group in enumerate(groups) if isinstance(group.kv_cache_spec, FullAttentionSpec))
        self.block_size = groups[self.group].kv_cache_spec.block_size
        name = "prepare_inputs" if hasattr(runner, "prepare_inputs") else "_prepare_inputs"  # runner V2
        prepare = getattr(runner, name)

        def prepared(scheduler_output, *args, **more):
            made = prepare(scheduler_output, *args, **more)
            batch = self.batch_v2(made) if name == "prepare_inputs" else self.batch_v1(*args)
            self.begin(getattr(scheduler_output, "kv_cache_block_copies", None) or (), batch)
            return made

        setattr(runner, name, prepared)
        for module in runner.get_model().modules():
            if isinstance(getattr(module, "router", None), BaseRouter):
                watch(module.router, lambda ids, scores, layer=module.layer_id: self.take(layer, ids, scores))

    def batch_v1(self, counts, *_):
        """[(request, its tokens before a forward, those of the forward, its blocks)]."""
        batch, table = self.runner.input_batch, self.runner.input_batch.block_table[self.group]
        self.check(table.block_size)
        return list(zip(batch.req_ids, batch.num_computed_tokens_cpu, counts, table.block_table.np))

    def batch_v2(self, made):
        tables = self.runner.block_tables
        self.check(tables.block_sizes[self.group])
        rows = made.idx_mapping_np
        computed = self.runner.req_states.num_computed_tokens.gpu.numpy()[rows]
        blocks = tables.block_tables[self.group].gpu.numpy()[rows]
        return list(zip(made.req_ids, computed, made.num_scheduled_tokens, blocks))

    def check(self, block_size):
        if block_size != self.block_size:
            raise ValueError("the kernel's blocks are smaller than the KV cache's")

    def begin(self, copies, batch):
        """Before a forward: which rows it computes, and which ones its requests found."""
        for copy in copies:
            self.blocks[copy.dst_block_id] = dict(self.blocks.get(copy.src_block_id, {}))
        self.batch, found = [], []
        for name, first, count, blocks in batch:
            for position in range(int(first) + int(count)):
                block, offset = int(blocks[position // self.block_size]), position % self.block_size
                if position >= first:
                    row = self.blocks.setdefault(block, {})[offset] = self.rows[name, position] = {}
                    self.batch.append(row)
                elif (name, position) not in self.rows:
                    found.append((name, position, block, offset))
        for name, position, block, offset in found:  # perhaps computed in this very forward
            self.rows[name, position] = self.blocks[block][offset]

    def take(self, layer, ids, scores):
        for row, of_layer in zip(self.batch, zip(ids, scores)):
            row[layer] = of_layer

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
