"""Keeps a copy of SGLang's own table of rows beside Waymark's, by the two statements of SGLang's that Waymark replaces.

A plugin of SGLang under WAYMARK_TEST_OWN_TABLE=FOLDER: the rows that SGLang would have returned for a request go to
FOLDER/<request>.npy. `run --capture none` shows that the copy is faithful.
"""
import os

import numpy as np
import torch


def install():
    folder = os.environ.get("WAYMARK_TEST_OWN_TABLE")
    if not folder or os.environ.get("WAYMARK_SGLANG") != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from waymark.sglang import _table
    finalized, tables = _table.Table.finalized, {}

    def landed(table, forward):
        slots, ids = forward.slots.cpu(), forward.ids.cpu()
        finalized(table, forward)
        if table not in tables:
            tables[table] = torch.zeros((table.num_tokens, *ids.shape[1:]), dtype=torch.int32)
        tables[table][slots] = ids

    def collected(result, processor, req, *args, **more):
        if not req.return_routed_experts:
            return
        end = len(req.origin_input_ids) + len(req.output_ids_through_stop) - 1
        slots = processor.req_to_token_pool.req_to_token[req.kv.req_pool_idx][req.routed_experts_start_len:end].cpu().clone()
        for table in tables.values():
            np.save(f"{folder}/{req.rid}.npy", table[slots].numpy())

    _table.Table.finalized = landed
    HookRegistry.register("sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
                          "_maybe_collect_routed_experts", collected, HookType.AFTER)
