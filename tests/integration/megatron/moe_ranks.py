#!/usr/bin/env python3
"""Real MoE layers of megatron-core with sequence parallelism over gloo: every rank gets the rows of
all ranks.

  moe_ranks.py [--ranks 2,4] [--steps 6] [--swap]

Takes the environment as `run` does: WAYMARK_MEGATRON, and `waymark` from PYTHONPATH. Each rank is a
process with its part of the same GPTModel (tensor parallel, sequence parallel), whose routers
record what they choose for their part of the rows (RouterReplay). The captures of the ranks
exchange these rows over a gloo group of their own. Batches are padded: sequences end before their
batch does.

Checked, on every rank: each row that its store returns against what the routers of all ranks
recorded in this run, and against the routers of one process with the same weights. --swap: the
ranks hand over each other's rows, which must be noticed. Exit status: 0 all rows are right; 1 not;
77 there is no megatron-core here.
"""
import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

from place import SKIPPED, environment, folder, missing

LAYERS, DENSE, EXPERTS, TOP_K, HIDDEN, VOCABULARY = 4, 1, 8, 2, 32, 128
LENGTHS, BATCH_LENGTH, BLOCK = (16, 13, 9), 16, 4


def rank_main(job):
    """One rank; prints its rows as JSON: {recorded: {slot: ids}, read: {slot: ids}, missing}."""
    from no_cuda import NoStates  # first

    import numpy as np
    import torch
    import torch.distributed as dist
    import waymark

    torch.set_num_threads(1)
    rank, ranks = job["rank"], job["ranks"]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{job['port']}", rank=rank, world_size=ranks)
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    import megatron.core.tensor_parallel.random as random_states
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
    from megatron.core.transformer.transformer_config import TransformerConfig

    random_states._CUDA_RNG_STATE_TRACKER, random_states._CUDA_RNG_STATE_TRACKER_INITIALIZED = NoStates(), True
    # torch_norm.py refuses sequence parallelism, whose norms need a reduction of their gradients: there are none here.
    torch_norm.WrappedTorchNorm.__new__ = staticmethod(
        lambda cls, config, hidden_size, eps=1e-5, **more: torch.nn.LayerNorm(hidden_size, eps=eps))

    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=4, ffn_hidden_size=48, num_moe_experts=EXPERTS,
        moe_router_topk=TOP_K, moe_layer_freq=[int(layer >= DENSE) for layer in range(LAYERS)], moe_ffn_hidden_size=24,
        moe_router_score_function="softmax", moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather",
        moe_enable_routing_replay=True, moe_grouped_gemm=False, add_bias_linear=False, use_cpu_initialization=True,
        params_dtype=torch.float32, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, attention_dropout=0.0, hidden_dropout=0.0, normalization="LayerNorm",
        tensor_model_parallel_size=ranks, sequence_parallel=ranks > 1)
    torch.manual_seed(5)
    model = GPTModel(
        config=config, transformer_layer_spec=get_gpt_decoder_block_spec(config, use_transformer_engine=False),
        vocab_size=VOCABULARY, max_sequence_length=BATCH_LENGTH, position_embedding_type="learned_absolute",
        parallel_output=False, share_embeddings_and_output_weights=False)
    model.eval()
    if ranks == 1:
        torch.save({name: value.data for name, value in model.named_parameters()}, job["weights"])
    else:
        whole = torch.load(job["weights"])
        for name, value in model.named_parameters():
            full, dim = whole[name], getattr(value, "partition_dim", -1)
            if full.shape != value.shape:
                full = full.chunk(ranks, dim)[rank]
            value.data.copy_(full)

    class Gloo:
        """A waymark.Collective."""
        group = dist.new_group(backend="gloo")
        rank, size = job["rank"], job["ranks"]

        def all_gather(self, data, /):
            mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            parts = [torch.empty_like(mine) for _ in range(self.size)]
            dist.all_gather(parts, mine, group=self.group)
            return [part.numpy() for part in parts]

    steps, batch = job["steps"], len(LENGTHS)
    blocks = BATCH_LENGTH // BLOCK
    layers = [layer for layer in range(LAYERS) if layer >= DENSE]
    store = waymark.Capture(
        num_layers=len(layers), top_k=TOP_K, num_experts=EXPERTS,
        num_blocks=steps * batch * blocks, page_tokens=BLOCK, layer_ids=layers,
        row_gather=Gloo() if ranks > 1 else None)
    rows = batch * BATCH_LENGTH
    routers = RouterReplay.global_router_replay_instances
    assert len(routers) == len(layers), routers
    part = slice(rank * rows // ranks, (rank + 1) * rows // ranks)
    random = torch.Generator().manual_seed(3)
    at = torch.arange(BATCH_LENGTH).expand(batch, BATCH_LENGTH).contiguous()
    mask = torch.triu(torch.ones(BATCH_LENGTH, BATCH_LENGTH, dtype=torch.bool), 1)[None, None]
    recorded = {}
    for step in range(steps):
        first = step * batch * blocks
        store.bind(range(first, first + batch * blocks))
        tokens = torch.randint(0, VOCABULARY, (batch, BATCH_LENGTH), generator=random)
        RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
        with torch.no_grad():
            model(tokens, at, mask)
        ids = torch.stack([router.recorded_topk_idx for router in routers], dim=1).numpy().copy()
        # Megatron's rows are sequence-major: position * batch + sequence; a rank has a contiguous part of them.
        slots = np.array([(first + sequence * blocks) * BLOCK + position if position < LENGTHS[sequence] else -1
                          for position in range(BATCH_LENGTH) for sequence in range(batch)])
        for slot, of_row in zip(slots[part].tolist(), ids.tolist()):
            if slot >= 0:
                recorded[slot] = of_row
        if job["swap"]:
            ids = np.roll(ids, 1, axis=0)
        assert not store.step(step + 1, 1, slots, ids).dropped
    store.wait_idle(60)
    read, missing = {}, 0
    for sequence in range(steps * batch):
        of_sequence = list(range(sequence * blocks, (sequence + 1) * blocks))
        got = store.take(of_sequence, LENGTHS[sequence % batch]).result(60)
        for position, (row, valid) in enumerate(zip(got.ids.tolist(), got.valid.tolist())):
            missing += not valid
            if valid:
                read[sequence * blocks * BLOCK + position] = row
    print("RANK " + json.dumps({"recorded": recorded, "read": read, "missing": missing}), flush=True)
    store.close()
    os._exit(0)


def start(ranks, steps, swap, weights, environment):
    """What the ranks printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"ranks": ranks, "steps": steps, "swap": swap, "port": port, "weights": str(weights)}
    processes = [subprocess.Popen([folder() / "venv/bin/python", __file__, "--job", json.dumps(job | {"rank": rank})], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
    answers = []
    for process in processes:
        out, err = process.communicate(timeout=600)
        found = [line[5:] for line in out.splitlines() if line.startswith("RANK ")]
        if not found:
            raise SystemExit(f"a rank ended with {process.returncode}:\n{err[-3000:]}")
        answers.append(json.loads(found[0]))
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--swap", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return rank_main(json.loads(args.job))
    if why := missing("0.19.2"):
        print(f"SKIPPED: {why}", file=sys.stderr)
        return SKIPPED
    failed = False
    with tempfile.TemporaryDirectory(prefix="waymark_megatron_") as folder:
        weights = pathlib.Path(folder) / "weights.pt"
        [alone] = start(1, args.steps, False, weights, environment("0.19.2"))
        for ranks in map(int, args.ranks.split(",")):
            answers = start(ranks, args.steps, args.swap, weights, environment("0.19.2"))
            recorded = {}
            for answer in answers:
                recorded |= answer["recorded"]
            wrong = sum(answer["read"].get(slot) not in (None, ids) for answer in answers for slot, ids in recorded.items())
            others = sum(sorted(map(sorted, ids)) != sorted(map(sorted, alone["recorded"][slot])) for slot, ids in recorded.items())
            lost = sum(answer["missing"] for answer in answers)
            total = sum(len(answer["read"]) for answer in answers)
            print(json.dumps({"ranks": ranks, "rows_checked": total, "rows_wrong": wrong, "rows_missing": lost,
                              "rows_unlike_one_process": others}))
            failed |= wrong > 0 or lost > 0 or others > 0 or total != ranks * len(alone["read"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
