"""Replays routing in the training step of a small GPTModel of Megatron-Core, in one process.

    python docs/examples/megatron_replay.py [--steps 3]

The model has 4 layers, the first of which is dense, and random weights. "Rollouts" are sequences of
random tokens, whose rows are recorded from a copy of the model with weights rounded to bfloat16;
rows of an engine go the same way. Each step runs Megatron's own schedule over 2 micro-batches.
Exits with 1 if the audit names an error, or a router did not take its rows. Needs megatron-core
0.18 or later, and no Transformer Engine. Without a GPU it replaces the three calls of CUDA that
Megatron makes here. docs/training.md explains the calls of Waymark.
"""
import argparse
import contextlib
import sys
from functools import partial

import torch
import waymark.megatron
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import random as random_states
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig

VOCABULARY, LENGTH, LENGTHS, MICRO_BATCHES = 128, 32, (32, 25, 19), 2
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def start_megatron():
    torch.manual_seed(1)
    torch.distributed.init_process_group(
        "nccl" if CUDA else "gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    if not CUDA:
        torch.cuda.current_device = lambda: DEVICE
        zeros = torch.zeros
        torch.zeros = lambda *args, **more: zeros(*args, **{**more, "device": DEVICE})
        random_states.CudaRNGStatesTracker.fork = lambda *args: contextlib.nullcontext()
    parallel_state.initialize_model_parallel()
    if CUDA:
        random_states.model_parallel_cuda_manual_seed(1)


def make_model():
    config = TransformerConfig(
        num_layers=4, moe_layer_freq=[0, 1, 1, 1], hidden_size=32, num_attention_heads=4,
        ffn_hidden_size=48, moe_ffn_hidden_size=24, num_moe_experts=16, moe_router_topk=4,
        moe_enable_routing_replay=True,  # before the model is made
        hidden_dropout=0.0, attention_dropout=0.0,  # or the audit finds fewer ids again
        moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather",
        add_bias_linear=False, use_cpu_initialization=True, gradient_accumulation_fusion=False,
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    return GPTModel(config, spec, vocab_size=VOCABULARY, max_sequence_length=LENGTH).to(DEVICE)


def inputs(number):
    """Tokens and positions of a micro-batch, padded on the right, and the attention mask."""
    tokens = torch.randint(0, VOCABULARY, (len(LENGTHS), LENGTH),
                           generator=torch.Generator().manual_seed(number)).to(DEVICE)
    positions = torch.arange(LENGTH, device=DEVICE).expand_as(tokens)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=DEVICE).triu(1)
    return tokens, positions, later[None, None]


def loss_of(tokens, logits):
    """The mean over the tokens that have a token before them; padding is left out."""
    logp = logits[:, :-1].float().log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    used = torch.arange(1, LENGTH, device=DEVICE) < torch.tensor(LENGTHS, device=DEVICE)[:, None]
    loss = -(logp * used).sum() / used.sum()
    return loss, {"loss": loss.item()}


def rounded(model):
    """The weights of an engine in bfloat16."""
    return {name: weight.bfloat16().float() if torch.is_tensor(weight) else weight
            for name, weight in model.state_dict().items()}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=3)
    steps = arguments.parse_args().steps
    start_megatron()
    engine, model = make_model(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    replay = waymark.megatron.replay(model)
    layout = replay.layout(order="sequence-major")  # Megatron's order of padded batches
    layers = replay.layer_ids(model)  # (1, 2, 3)
    plan, alarms = layout.plan(LENGTHS), []
    routed = {}  # what the routers took: layer -> [rows, experts]
    for router in [module for module in model.modules() if isinstance(module, TopKRouter)]:
        router.register_forward_hook(
            lambda router, _, result: routed.update({router.layer_number - 1: result[1]}))

    for step in range(steps):
        engine.load_state_dict(rounded(model), strict=False)
        rows = []
        with torch.no_grad(), waymark.megatron.replay(engine) as recording:
            for number in range(MICRO_BATCHES):
                with recording.record(plan, chunk=engine) as recorded:
                    engine(*inputs(step * MICRO_BATCHES + number))
                rows.append(recorded.rows(version=step))

        def forward_step(batches, model):
            number = next(batches)
            tokens, positions, mask = inputs(step * MICRO_BATCHES + number)
            with replay.forward(plan, rows[number], chunk=model, audit=True) as forward:
                output = model(tokens, positions, mask)
            alarms.extend(forward.audit().alarms)
            for layer, ids in zip(layers, torch.from_numpy(forward.filled.ids)):
                wanted = torch.zeros(plan.rows, 16, dtype=torch.bool).scatter_(1, ids, True)
                alarms.extend([] if torch.equal(routed[layer].cpu() > 0, wanted) else [layer])
            return output, partial(loss_of, tokens)  # Megatron calls it with the output

        with replay:  # what is recomputed in the backward is replayed, too
            losses = get_forward_backward_func()(
                forward_step_func=forward_step, data_iterator=iter(range(MICRO_BATCHES)),
                model=model, num_microbatches=MICRO_BATCHES, seq_length=LENGTH,
                micro_batch_size=len(LENGTHS), forward_only=False)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: losses", *(f"{one['loss']:.4f}" for one in losses), "alarms", alarms)
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
