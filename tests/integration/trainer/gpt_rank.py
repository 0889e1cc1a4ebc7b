"""One rank of a case of gpt_model.py; prints FOUND and a JSON object.

  gpt_rank.py JOB    JOB: JSON {case, seed, fault, folder, rank, ranks, port, and what of the parallel state is not 1}
"""
import contextlib
import dataclasses
import json
import os
import sys

from no_cuda import NoStates  # first
import numpy as np
import torch
import torch.distributed as dist
import waymark
import waymark.megatron
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import random as random_states
from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
from megatron.core.transformer import torch_norm
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from megatron.core.transformer.multi_token_prediction import roll_tensor
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import get_batch_on_this_cp_rank
from waymark import FailedPreconditionError, InvalidArgumentError, Rows
from waymark import Mistake
from waymark.trainer import Filled

LAYERS, DENSE, EXPERTS, TOP_K, HIDDEN, VOCABULARY = 8, 2, 16, 4, 32, 128
MOE = tuple(range(DENSE, LAYERS))
LENGTHS, LENGTH, MICRO_BATCHES = (24, 19, 13), 24, 4
BATCH = len(LENGTHS)
NOISE = 0.1  # of weights that are a little off, in parts of their deviation


def stand_in_for_cuda():
    random_states._CUDA_RNG_STATE_TRACKER, random_states._CUDA_RNG_STATE_TRACKER_INITIALIZED = NoStates(), True
    random_states._get_cuda_rng_state = lambda *args, **more: torch.zeros(1)
    random_states._set_cuda_rng_state = lambda *args, **more: None
    # torch_norm.py refuses sequence parallelism, whose norms need a reduction of their gradients, which nothing here reads.
    torch_norm.WrappedTorchNorm.__new__ = staticmethod(
        lambda cls, config, hidden_size, eps=1e-5, **more: torch.nn.LayerNorm(hidden_size, eps=eps))


def degree(job, name):
    return job.get(name, 1)


def make_config(job, **more):
    sizes = {f"{name}_model_parallel_size": degree(job, name) for name in ("tensor", "pipeline", "expert")}
    virtual = degree(job, "virtual")
    return TransformerConfig(**{**dict(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=4, ffn_hidden_size=48, num_moe_experts=EXPERTS,
        moe_router_topk=TOP_K, moe_layer_freq=[int(layer in MOE) for layer in range(LAYERS)], moe_ffn_hidden_size=24,
        moe_router_score_function="softmax", moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather",
        moe_enable_routing_replay=True, moe_grouped_gemm=False, add_bias_linear=False, use_cpu_initialization=True,
        params_dtype=torch.float32, pipeline_dtype=torch.float32, bias_activation_fusion=False, bias_dropout_fusion=False,
        masked_softmax_fusion=False, gradient_accumulation_fusion=False, attention_dropout=0.0, hidden_dropout=0.0,
        normalization="LayerNorm", context_parallel_size=degree(job, "context"),
        sequence_parallel=job.get("sequence_parallel", False),
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
        # Two stages that send to each other in both directions: Megatron needs this order of its messages.
        overlap_p2p_comm=virtual > 1, batch_p2p_comm=virtual == 1), **sizes, **more})


def make_models(job, **more):
    """The chunks of this rank."""
    RouterReplay.clear_global_router_replay_instances()
    config = make_config(job, **more)
    stages, virtual = degree(job, "pipeline"), degree(job, "virtual")
    stage = parallel_state.get_pipeline_model_parallel_rank()
    models = []
    for chunk in range(virtual)[::-1 if job.get("reverse") else 1]:
        vp_stage = chunk if virtual > 1 else None
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=vp_stage)
        draft = dict(mtp_block_spec=get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)) if more.get("mtp_num_layers") else {}
        models.append(GPTModel(
            config=config, transformer_layer_spec=spec, vocab_size=VOCABULARY, max_sequence_length=LENGTH,
            position_embedding_type="learned_absolute", parallel_output=False, share_embeddings_and_output_weights=False,
            pre_process=stage == 0 and chunk == 0, post_process=stage == stages - 1 and chunk == virtual - 1, vp_stage=vp_stage, **draft))
    return models[::-1] if job.get("reverse") else models


def load(models, whole, noise=0.0, seed=7):
    """A rank's part of the weights of one process, with noise that is the same on every rank."""
    random = torch.Generator().manual_seed(seed)
    noisy = {name: value + noise * value.std() * torch.randn(value.shape, generator=random) for name, value in whole.items()}
    tensor = parallel_state.get_tensor_model_parallel_rank()
    expert = parallel_state.get_expert_model_parallel_rank()
    of_rank = EXPERTS // parallel_state.get_expert_model_parallel_world_size()
    for model in models:
        first = model.decoder.layers[0].layer_number - 1
        for name, value in model.named_parameters():
            parts = name.split(".")
            if parts[:2] == ["decoder", "layers"]:
                parts[2] = str(int(parts[2]) + first)
            if "local_experts" in parts:
                at = parts.index("local_experts") + 1
                parts[at] = str(int(parts[at]) + expert * of_rank)
            full, dim = noisy[".".join(parts)], getattr(value, "partition_dim", -1)
            if full.shape != value.shape:
                full = full.chunk(full.shape[dim] // value.shape[dim], dim)[tensor]
            value.data.copy_(full)


def inputs(seed, micro_batch):
    random = torch.Generator().manual_seed(1000 * seed + micro_batch)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=random)
    at = torch.arange(LENGTH).expand(BATCH, LENGTH).contiguous()
    return tokens, at, torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)[None, None]


def loss_of(logits, tokens):
    """Of the tokens of sequences, by what was there before each."""
    chosen = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, tokens[:, 1:, None])[..., 0]
    real = torch.arange(LENGTH - 1)[None] < torch.tensor(LENGTHS)[:, None] - 1
    return -(chosen * real).sum() / real.sum()


class Watch:
    """What the decoder's routers choose, from their routing maps: {layer: [bool [rows, experts] of each forward]}."""

    def __init__(self, models):
        self.chosen = {}
        for model in models:
            for router in model.decoder.modules():
                if isinstance(router, TopKRouter):
                    router.register_forward_hook(self.keep)

    def keep(self, router, given, result):
        self.chosen.setdefault(router.layer_number - 1, []).append(result[1].detach())

    def take(self, layer_ids):
        """The maps [layers, rows, experts] of the oldest forward of each of the layers."""
        return torch.stack([self.chosen[layer].pop(0) for layer in layer_ids]).numpy() if layer_ids else None


def maps_of(ids):
    """bool [..., experts] of ids [..., K]."""
    found = np.zeros((*ids.shape[:-1], EXPERTS), bool)
    np.put_along_axis(found, np.asarray(ids), True, -1)
    return found


class Found:
    """What a rank found."""

    def __init__(self):
        self.numbers = {"rows_compared": 0, "rows_wrong": 0, "rows_rerouted_without_replay": 0}
        self.why_not = []

    def compare(self, maps, filled):
        """Of the rows that have routing: those of which a layer has other experts."""
        if maps is None:
            return
        wrong = (maps != maps_of(filled.ids)).any((0, 2)) & filled.mask
        self.numbers["rows_compared"] += int(filled.mask.sum())
        self.numbers["rows_wrong"] += int(wrong.sum())

    def rerouted(self, maps, filled):
        if maps is not None:
            self.numbers["rows_rerouted_without_replay"] += int(((maps != maps_of(filled.ids)).any((0, 2)) & filled.mask).sum())

    def expect(self, right, why):
        if not right:
            self.why_not.append(why)

    def alarms(self, audit, wanted=()):
        """The audit names what was planted, and nothing else."""
        got = {alarm.error for alarm in audit.alarms}
        self.expect(got == set(wanted), f"the audit: expected {[e.name for e in wanted]}, got {[a.text for a in audit.alarms]}")

    def refused(self, name, function, text):
        """A planted error is refused, by name."""
        self.numbers["errors_planted"] = self.numbers.get("errors_planted", 0) + 1
        try:
            function()
        except (FailedPreconditionError, InvalidArgumentError, waymark.megatron.Refused) as error:
            self.expect(text in str(error), f"{name}: {error}")
        else:
            self.why_not.append(f"{name} was not noticed")

    def print(self):
        print("FOUND " + json.dumps(self.numbers | {"why_not": self.why_not}), flush=True)


class Reference:
    """The routing of one process: ids [micro-batches, length, batch, layers, K], and its weights."""

    def __init__(self, job):
        self.path, self.fault = os.path.join(job["folder"], "reference.pt"), job["fault"]
        if os.path.exists(self.path):
            saved = torch.load(self.path)
            self.ids, self.weights = saved["ids"].numpy(), saved["weights"]

    def save(self, ids, weights):
        self.ids, self.weights = ids, weights
        torch.save({"ids": torch.as_tensor(ids), "weights": weights}, self.path)

    def rows(self, micro_batch):
        """Of each sequence, without a row for its last token, as an engine returns them."""
        ids = self.ids[micro_batch]
        if self.fault == "shift":
            ids = np.roll(ids, 1, axis=0)
        if self.fault == "layers":
            ids = ids[:, :, [1, 0, *range(2, len(MOE))]]
        sequences = range(BATCH)
        if self.fault == "order":
            sequences = [1, 0, 2]
        return [Rows.from_array(ids[: length - 1, sequence], num_experts=EXPERTS, layer_ids=MOE)
                for length, sequence in zip(LENGTHS, sequences)]


def experts(values):
    """Ids [rows, K] of a map [rows, experts]."""
    return np.argwhere(values)[:, 1].reshape(len(values), TOP_K)


def layout_of(replay, **more):
    return replay.layout(**{"order": "sequence-major", **more})


# -- the cases --------------------------------------------------------------------------------
def one(job, found):
    """Records the reference; replays it with equal weights, and with others."""
    torch.manual_seed(job["seed"])
    [model] = models = make_models(job)
    for layer in model.decoder.layers[DENSE:]:
        torch.nn.init.normal_(layer.mlp.router.weight, std=0.3)
    model.eval()
    watch, replay, reference = Watch(models), waymark.megatron.replay(model), Reference(job)
    found.expect(replay.layer_ids() == MOE, f"layers {replay.layer_ids()}")
    plan = layout_of(replay).plan(LENGTHS)
    ids, logits, recorded = [], [], []
    for micro_batch in range(MICRO_BATCHES):
        tokens, at, mask = inputs(job["seed"], micro_batch)
        with torch.no_grad(), replay.record(plan) as step:
            logits.append(model(tokens, at, mask))
        maps = watch.take(MOE)
        ids.append(np.stack([experts(layer).reshape(LENGTH, BATCH, TOP_K) for layer in maps], 2))
        recorded.append(step.rows(version=3))
    reference.save(np.stack(ids), {name: value.detach().clone() for name, value in model.named_parameters()})
    for micro_batch, sequences in enumerate(recorded):  # what was recorded is the reference, which is Megatron's [S, B, H]
        for sequence, rows in enumerate(sequences):
            right = np.sort(rows.ids, -1) == reference.ids[micro_batch, : LENGTHS[sequence], sequence]
            found.numbers["rows_compared"] += len(rows)
            found.numbers["rows_wrong"] += int((~right.all((1, 2))).sum() + (~rows.valid).sum())
    difference = 0.0
    for missing in ("fill", "live"):
        for micro_batch in range(MICRO_BATCHES):
            tokens, at, mask = inputs(job["seed"], micro_batch)
            with torch.no_grad(), replay.forward(plan, reference.rows(micro_batch), missing=missing, audit=True) as step:
                again = model(tokens, at, mask)
            maps = watch.take(MOE)
            found.compare(maps, step.filled)
            found.alarms(step.audit())
            real = torch.arange(LENGTH)[None] < torch.tensor(LENGTHS)[:, None] - 1
            if missing == "live":
                native = np.stack([maps_of(reference.ids[micro_batch, :, :, layer].reshape(-1, TOP_K)) for layer in range(len(MOE))])
                found.expect((maps == native).all(), "rows without routing were not left to the router")
                real = torch.ones_like(real)
            difference = max(difference, float((again - logits[micro_batch])[real].abs().max()))
    found.expect(difference < 1e-5, f"logits differ by {difference} from those of routing as usual")
    found.numbers["logits_differ_by"] = difference
    load(models, reference.weights, NOISE)
    for micro_batch in range(MICRO_BATCHES):
        tokens, at, mask = inputs(job["seed"], micro_batch)
        filled = plan.fill(reference.rows(micro_batch), MOE)
        model(tokens, at, mask)
        found.rerouted(watch.take(MOE), filled)
        with replay.forward(plan, filled):
            loss = loss_of(model(tokens, at, mask), tokens)
        loss.backward()
        found.compare(watch.take(MOE), filled)
    gates = [layer.mlp.router.weight.grad for layer in model.decoder.layers[DENSE:]]
    found.expect(all(grad is not None and float(grad.norm()) > 0 for grad in gates), "a gate has no gradient")
    for instance in RouterReplay.global_router_replay_instances:
        found.expect("get_replay_topk" not in vars(instance), "a hook was left behind")
        found.expect(instance.router_replay_action is None and not instance.replay_backward_list, "not all was put back")


def trained(job, **more):
    [model] = models = make_models(job, **more)
    reference = Reference(job)
    load(models, reference.weights, NOISE)
    model.train()
    return model, reference


def recompute_on(model, on=True):
    config = model.config
    config.recompute_granularity, config.recompute_method, config.recompute_num_layers = ("full", "uniform", 1) if on else (None, None, None)


def gradients(models):
    return {(chunk, name): value.grad.clone() for chunk, model in enumerate(models) for name, value in model.named_parameters()
            if value.grad is not None}


def clear(models):
    for model in models:
        model.zero_grad(set_to_none=True)


def farthest(some, others):
    if some.keys() != others.keys():
        return float("inf")
    return max(float((some[name] - others[name]).abs().max()) for name in some)


def recompute(job, found):
    """The backward replays what it recomputes: full, and of MoE layers alone; two micro-batches at once."""
    model, reference = trained(job)
    watch, replay = Watch([model]), waymark.megatron.replay(model)
    plan = layout_of(replay).plan(LENGTHS)

    def run(micro_batches, layers=None):
        clear([model])
        with replay:
            losses, steps = [], []
            for micro_batch in micro_batches:
                tokens, at, mask = inputs(job["seed"], micro_batch)
                with replay.forward(plan, reference.rows(micro_batch), audit=True) as step:
                    losses.append(loss_of(model(tokens, at, mask), tokens))
                steps.append(step)
            for loss in losses:
                loss.backward()
        for _ in range(2 if layers else 1):  # the forwards, then what was recomputed
            for step in steps:
                found.compare(watch.take(MOE), step.filled)
        return gradients([model]), steps

    wanted, _ = run([0, 1])
    recompute_on(model)
    got, steps = run([0, 1], MOE)
    found.expect(farthest(got, wanted) < 1e-6, f"gradients differ by {farthest(got, wanted)}")
    for step in steps:
        agreement = [step.audit(recomputed=again, least_agreement=0.1).agreement for again in (False, True)]
        found.expect(agreement[0] == agreement[1], f"recomputed routers see other tokens: {agreement}")
    found.numbers["gradients_differ_by"] = farthest(got, wanted)
    recompute_on(model, False)
    for layer in model.decoder.layers[DENSE:]:
        layer.mlp.moe_layer_recompute = True
    found.expect(farthest(run([2, 3], MOE)[0], wanted) > 0, "micro-batches have equal gradients")
    wanted = run([0, 1], MOE)[0]
    found.expect(farthest(got, wanted) < 1e-6, f"of MoE layers alone gradients differ by {farthest(got, wanted)}")


def audit(job, found):
    """The audit names each error that is planted in tensors that Megatron takes."""
    [model] = models = make_models(job)
    reference = Reference(job)
    load(models, reference.weights)
    model.eval()
    replay = waymark.megatron.replay(model)
    plan = layout_of(replay).plan(LENGTHS)
    sequences, positions = plan.places()

    def planted(filled, kind):
        ids = filled.ids.copy()
        if kind is Mistake.LAYERS:
            ids[[1, 3]] = ids[[3, 1]]
        if kind in (Mistake.SHIFTED, Mistake.OTHER_SEQUENCE):
            where = {(s, p): row for row, (s, p) in enumerate(zip(sequences.tolist(), positions.tolist()))}
            for (sequence, position), row in where.items():
                other = where.get((sequence, position + 1) if kind is Mistake.SHIFTED else ((sequence + 1) % BATCH, position), row)
                if sequence >= 0 and filled.mask[other]:
                    ids[:, row] = filled.ids[:, other]
        if kind is Mistake.BATCH_MAJOR:
            ids = ids.reshape(len(MOE), LENGTH, BATCH, TOP_K).transpose(0, 2, 1, 3).reshape(ids.shape).copy()
        return filled._replace(ids=ids)

    agreements = {}

    def audited(name, kind, plan, filled, micro_batch):
        with torch.no_grad(), replay.forward(plan, filled, audit=True) as step:
            model(*inputs(job["seed"], micro_batch))
        result = step.audit()
        if name == "another micro-batch":  # tokens at the same position agree in half of their ids here: it may be called stale
            found.expect(result.alarms and {alarm.error for alarm in result.alarms} <= {kind, Mistake.STALE_WEIGHTS}, f"{name}: {result.alarms}")
        else:
            found.alarms(result, [kind] if kind is not None else [])
        agreements.setdefault(name, []).append(round(result.agreement, 3))
        found.numbers["rows_compared"] += result.rows

    for kind in (None, Mistake.LAYERS, Mistake.SHIFTED, Mistake.OTHER_SEQUENCE, Mistake.BATCH_MAJOR, Mistake.STALE_WEIGHTS):
        load(models, reference.weights, 0.6 if kind is Mistake.STALE_WEIGHTS else 0.0)
        for micro_batch in range(MICRO_BATCHES):
            if kind is Mistake.BATCH_MAJOR:  # of sequences without padding, as batches are that are not padded
                whole = layout_of(replay).plan([LENGTH] * BATCH)
                rows = [Rows.from_array(reference.ids[micro_batch, :, s], num_experts=EXPERTS, layer_ids=MOE) for s in range(BATCH)]
                given_plan, filled = whole, whole.fill(rows, MOE)
            else:
                given_plan, filled = plan, plan.fill(reference.rows(micro_batch), MOE)
            audited(kind.name if kind is not None else "none planted", kind, given_plan, planted(filled, kind), micro_batch)
    load(models, reference.weights)
    for micro_batch in range(MICRO_BATCHES):
        other = plan.fill(reference.rows((micro_batch + 1) % MICRO_BATCHES), MOE)
        audited("another micro-batch", Mistake.OTHER_SEQUENCE, plan, other, micro_batch)
        filled = plan.fill(reference.rows(micro_batch), MOE)
        ids = filled.ids.copy()
        ids[-1] = (other.ids[-1] + 5) % EXPERTS
        audited("a layer of another stage", Mistake.LAYERS, plan, filled._replace(ids=ids), micro_batch)
        as_packed = layout_of(replay, order="packed", sequence_multiple=LENGTH).plan(LENGTHS)  # as many rows, batch-major
        audited("a packed plan", Mistake.BATCH_MAJOR, as_packed, as_packed.fill(reference.rows(micro_batch), MOE), micro_batch)
    found.numbers["agreement"] = agreements


def silent_errors(job, found):
    """What Megatron takes without a word is refused, by name."""
    model, reference = trained(job)
    replay = waymark.megatron.replay(model)
    plan = layout_of(replay).plan(LENGTHS)
    tokens, at, mask = inputs(job["seed"], 0)
    other = inputs(job["seed"], 1)
    rows = reference.rows(0)
    filled = plan.fill(rows, MOE)
    twice, below, short = filled.ids.copy(), filled.ids.copy(), filled.ids[:, :-1]
    twice[1, 5] = twice[1, 5, 0]
    below[2, 7, 0] = -1

    def megatron(ids):
        """Megatron alone: set_replay_data and a forward."""
        RouterReplay.set_replay_data(list(torch.as_tensor(ids)))
        RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
        with torch.no_grad():
            model(tokens, at, mask)
        RouterReplay.clear_global_router_replay_action()
        RouterReplay.clear_global_indices()

    batch_major = filled.ids.reshape(len(MOE), LENGTH, BATCH, TOP_K).swapaxes(1, 2).reshape(filled.ids.shape)
    fewer, layers, shifted = filled.ids[..., 1:], filled.ids[::-1].copy(), np.roll(filled.ids, 1, 1)
    stale, past = plan.fill(reference.rows(1), MOE).ids, filled.ids % 8  # of another micro-batch; of a model with 8 experts
    for ids in (twice, short, fewer, batch_major, layers, shifted, stale, past):
        megatron(ids)  # takes it
        found.numbers["taken_by_megatron"] = found.numbers.get("taken_by_megatron", 0) + 1
    for micro_batch in (0, 1):  # a list that is not cleared: the backward of the second takes the targets of the first
        RouterReplay.set_replay_data(list(torch.as_tensor(plan.fill(reference.rows(micro_batch), MOE).ids)))
    left = RouterReplay.global_router_replay_instances[0].replay_backward_list
    found.expect(len(left) == 2 and (left[0].numpy() == filled.ids[0]).all(), "Megatron clears its lists itself")
    RouterReplay.clear_global_indices()
    watch = Watch([model])
    model.config.moe_router_load_balancing_type = "sinkhorn"
    for layer in model.decoder.layers[DENSE:]:
        layer.mlp.router.routing_type = "sinkhorn"
    megatron(filled.ids)
    found.expect((watch.take(MOE) != maps_of(filled.ids)).any(), "Megatron replays with sinkhorn")
    found.refused("sinkhorn", lambda: waymark.megatron.replay(model), "sinkhorn chooses")
    model.config.moe_router_load_balancing_type = "none"
    for layer in model.decoder.layers[DENSE:]:
        layer.mlp.router.routing_type = "none"
    for name, value in (("moe_router_fusion", True), ("moe_enable_routing_replay", False), ("moe_expert_capacity_factor", 1.0)):
        before = getattr(model.config, name)
        setattr(model.config, name, value)
        found.refused(name, lambda: waymark.megatron.replay(model), name)
        setattr(model.config, name, before)

    def forward(given, plan=plan, **more):
        with replay.forward(plan, given, **more):
            return model(tokens, at, mask)

    found.refused("duplicates", lambda: forward(filled._replace(ids=twice)), "distinct ids in a row")
    found.refused("-1", lambda: forward(filled._replace(ids=below)), "ids in [0, 16), got -1")
    found.refused("one row short", lambda: forward(Filled(short, filled.mask[:-1], filled.report)), "[6, 72, 4], got int64 [6, 71, 4]")
    found.refused("int16", lambda: forward(filled._replace(ids=filled.ids.astype(np.int16))), "int32 or int64")
    above = filled.ids.copy()
    above[2, 7, 0] = EXPERTS
    found.refused("an id out of range", lambda: forward(filled._replace(ids=above)), "ids in [0, 16), got 16")
    found.refused("an id of a row too few", lambda: forward(filled._replace(ids=fewer)), "got int64 [6, 72, 3]")
    found.refused("a row too few", lambda: forward([rows[0][:-1], *rows[1:]]), "must have rows")
    found.refused("another order of sequences", lambda: forward(rows[::-1]), "must have rows")
    numbers = [Rows.from_array(one.ids, num_experts=EXPERTS, layer_ids=range(len(MOE))) for one in rows]
    found.refused("layers counted from the first with experts", lambda: forward(numbers), "must be a layer of sources")
    found.refused("a layer too few", lambda: forward(filled._replace(ids=filled.ids[1:])), "got int64 [5, 72, 4]")
    padded = layout_of(replay, sequence_multiple=28).plan(LENGTHS)
    found.refused("the plan of another padding", lambda: forward(rows, padded), "plan: of as many rows as the router of layer 2 has, 72, got 84")
    batch_major = layout_of(replay, order="batch-major").plan(LENGTHS)
    found.refused("a batch-major plan", lambda: forward(rows, batch_major), "got 'batch-major'")
    wrong = [Rows.from_array(one.ids, num_experts=64, layer_ids=MOE) for one in rows]
    found.refused("rows of another model", lambda: forward(wrong), "rows[0]: K = 4 and E = 16 as the model has, got 4 and 64")

    def two_in_one():
        with replay.forward(plan, rows):
            model(tokens, at, mask)
            model(*other)
    found.refused("two forwards in one", two_in_one, "the router of layer 2 twice")

    def none_in_one():
        with replay.forward(plan, rows):
            pass
    found.refused("no forward", none_in_one, "none of layers 2, 3, 4, 5, 6, 7")

    def outside():
        with replay:
            forward(rows)
            model(*other)
    found.refused("a forward outside", outside, "the router of layer 2 outside")
    recompute_on(model)

    def forwards():
        losses = []
        for micro_batch in (0, 1):
            of = inputs(job["seed"], micro_batch)
            with replay.forward(plan, reference.rows(micro_batch), audit=True) as step:
                losses.append(loss_of(model(*of), of[0]))
            losses.append(step)
        return losses

    def one_backward():
        with replay:
            first, _, second, _ = forwards()
            (first + second).backward()
    found.refused("one backward of two micro-batches", one_backward, "the router of layer 7 twice in one")

    def late():
        forward(rows).sum().backward()
    found.refused("a backward behind the end", late, "the router of layer 2 with 1 that it has not computed again")

    # What an earlier micro-batch did not compute again is not what the next one gets.
    clear([model])
    watch.chosen.clear()
    RouterReplay.set_replay_data(list(torch.as_tensor(stale)))  # of a schedule before, which did not clear its lists, either
    with replay:
        for micro_batch, on in enumerate((False, True)):
            recompute_on(model, on)
            of = inputs(job["seed"], micro_batch)
            with replay.forward(plan, reference.rows(micro_batch)) as step:
                loss = loss_of(model(*of), of[0])
        watch.chosen.clear()
        loss.backward()
    RouterReplay.clear_global_indices()
    found.compare(watch.take(MOE), step.filled)
    found.numbers["errors_planted"] += 2

    # Backwards in another order: Megatron gives each the ids of the other, and the audit says so.
    clear([model])
    load([model], reference.weights)
    with replay:
        first, step, second, last = forwards()
        second.backward()
        first.backward()
    found.alarms(step.audit())
    for one in (step, last):
        found.alarms(one.audit(recomputed=True), [Mistake.OTHER_SEQUENCE])
    found.numbers["errors_planted"] += 1
    with torch.no_grad():  # and afterwards all is as it was
        forward(rows)
    found.numbers["rows_compared"] += int(filled.mask.sum())


def stages(job, found):
    """The layers of every stage and chunk, of random sizes, by Megatron's own functions."""
    random = np.random.default_rng(job["seed"])
    for _ in range(300):
        size, chunks = int(random.integers(2, 7)), int(random.integers(1, 4))
        of_stage = chunks * int(random.integers(1, 5))
        first, last = (chunks * int(random.integers(0, 4)) for _ in range(2))
        if size == 2 and first and last:
            continue  # Megatron divides by the stages between them
        layers = of_stage * (size - (first > 0) - (last > 0)) + first + last
        if not layers:
            continue
        config = TransformerConfig(
            num_layers=layers, hidden_size=8, num_attention_heads=2, pipeline_model_parallel_size=size, pipeline_dtype=torch.float32,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            num_layers_in_first_pipeline_stage=first or None, num_layers_in_last_pipeline_stage=last or None)
        for stage in range(size):
            for chunk in range(chunks):
                vp_stage = chunk if chunks > 1 else None
                wanted = get_transformer_layer_offset(config, vp_stage, stage)
                wanted = range(wanted, wanted + get_num_layers_to_build(config, vp_stage, stage))
                got = waymark.trainer.stage_layers(layers, pipeline=(stage, size), virtual=(chunk, chunks), first_stage_layers=first,
                                                   last_stage_layers=last)
                if job["fault"] == "layers":
                    got = range(got.start + 1, got.stop + 1)
                found.numbers["rows_compared"] += 1  # a stage is a row
                found.numbers["rows_wrong"] += int(got != wanted)


def draft_layers(job, found):
    """The router of an MTP layer, which counts from 1 again, is left out, and routes as usual."""
    reference = Reference(job)
    [model] = models = make_models(job, mtp_num_layers=1)
    found.expect(len(RouterReplay.global_router_replay_instances) == len(MOE) + 1, "there is no router of an MTP layer")
    load(models, reference.weights | {name: value.detach().clone() for name, value in model.named_parameters() if name.startswith("mtp")})
    model.eval()
    watch, replay = Watch(models), waymark.megatron.replay(model)
    found.expect(replay.layer_ids() == MOE, f"layers {replay.layer_ids()}")
    tokens, at, mask = inputs(job["seed"], 0)
    with torch.no_grad(), replay.forward(layout_of(replay).plan(LENGTHS), reference.rows(0)) as step:
        model(tokens, at, mask, labels=tokens)
    found.compare(watch.take(MOE), step.filled)


def groups(job, found):
    """The choice of DeepSeek's routers: by groups of experts, of sigmoid scores with a bias."""
    torch.manual_seed(job["seed"])
    [model] = models = make_models(job, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
                                   moe_router_num_groups=4, moe_router_group_topk=2)
    load(models, Reference(job).weights)
    for layer in model.decoder.layers[DENSE:]:
        torch.nn.init.normal_(layer.mlp.router.expert_bias, std=0.05)
    model.eval()
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    watch, replay = Watch(models), waymark.megatron.replay(model)
    plan = layout_of(replay).plan(LENGTHS)
    for micro_batch in range(MICRO_BATCHES):
        tokens, at, mask = inputs(job["seed"], micro_batch)
        load(models, weights)
        with torch.no_grad(), replay.record(plan) as step:
            model(tokens, at, mask)
        recorded = [rows[: length - 1] for rows, length in zip(step.rows(), LENGTHS)]
        if job["fault"]:
            recorded = [Rows.from_array(np.roll(rows.ids, 1, 0), num_experts=EXPERTS, layer_ids=MOE) for rows in recorded]
        filled = plan.fill(recorded, MOE)
        found.compare(watch.take(MOE), filled)
        with torch.no_grad(), replay.forward(plan, recorded, audit=True) as step:
            model(tokens, at, mask)
        found.compare(watch.take(MOE), filled)
        found.alarms(step.audit())
        found.expect(step.audit().agreement > 0.99, f"equal weights agree in {step.audit().agreement}")
        load(models, weights, NOISE)
        with torch.no_grad():
            model(tokens, at, mask)
        found.rerouted(watch.take(MOE), filled)
        with replay.forward(plan, recorded, missing="live"):
            loss_of(model(tokens, at, mask), tokens).backward()
        found.compare(watch.take(MOE), filled)


def cut(job, found):
    """Tensor and expert parallelism: the rows of this rank."""
    models, reference = make_models(job), Reference(job)
    [model] = models
    load(models, reference.weights)
    model.eval()  # Megatron trains tensor parallel MoE layers with sequence parallelism only
    watch, replay = Watch(models), waymark.megatron.replay(model)
    plan = layout_of(replay).plan(LENGTHS)
    micro_batches = [(micro_batch + parallel_state.get_data_parallel_rank()) % MICRO_BATCHES for micro_batch in range(MICRO_BATCHES)]
    for micro_batch in micro_batches:
        filled = plan.fill(reference.rows(micro_batch), MOE)
        with torch.no_grad(), replay.record(plan) as step:
            model(*inputs(job["seed"], micro_batch))
        found.compare(watch.take(MOE), filled)
        for sequence, rows in enumerate(step.rows()):  # the way back
            right = (np.sort(rows.ids, -1) == reference.ids[micro_batch, : LENGTHS[sequence], sequence]).all((1, 2))
            found.numbers["rows_compared"] += int(rows.valid.sum())
            found.numbers["rows_wrong"] += int((~right[rows.valid]).sum())
    load(models, reference.weights, NOISE)
    for micro_batch in micro_batches:
        tokens, at, mask = inputs(job["seed"], micro_batch)
        with torch.no_grad():
            model(tokens, at, mask)
        native = watch.take(MOE)
        with replay.forward(plan, reference.rows(micro_batch)) as step:
            loss = loss_of(model(tokens, at, mask), tokens)
        loss.backward()
        found.compare(watch.take(MOE), step.filled)
        found.rerouted(native, step.filled)
    found.expect(float(model.decoder.layers[-1].mlp.router.weight.grad.norm()) > 0, "a gate has no gradient")


def load_of_experts(job, found):
    """What Megatron's dispatcher brings to the experts of each rank: rows without routing load all alike. With the experts
    0 to K - 1 in them, which they had, the first rank gets them all."""
    [model] = models = make_models(job)
    model.eval()
    watch, replay, brought, batch = Watch(models), waymark.megatron.replay(model), [], 32
    for layer in model.decoder.layers[DENSE:]:
        layer.mlp.experts.register_forward_pre_hook(lambda experts, given: brought.append(int(given[1].sum())))
    random = np.random.default_rng([job["seed"], job["rank"]])
    tokens = torch.from_numpy(random.integers(0, VOCABULARY, (batch, LENGTH)))
    _, at, mask = inputs(job["seed"], 0)
    for name, least, most in (("nearly all padding", 2, 4), ("half", 2, LENGTH), ("few rows", LENGTH - 2, LENGTH)):
        lengths = random.integers(least, most + 1, batch)
        # Every expert equally often.
        order = (np.arange((lengths - 1).sum())[:, None] * TOP_K + np.arange(TOP_K)) % EXPERTS
        routes = np.split(np.stack([random.permutation(EXPERTS)[order] for _ in MOE], 1), np.cumsum(lengths - 1)[:-1])
        plan = layout_of(replay).plan(lengths, [LENGTH] * batch)
        spread = plan.fill([Rows.from_array(ids, num_experts=EXPERTS, layer_ids=MOE) for ids in routes], MOE)
        first = spread._replace(ids=np.where(spread.mask[:, None], spread.ids, np.arange(TOP_K)))
        for fill, filled in (("spread", spread), ("first", first)):
            brought.clear()
            with torch.no_grad(), replay.forward(plan, filled):
                model(tokens, at[:1].expand(batch, LENGTH), mask)
            maps = watch.take(MOE)
            found.compare(maps, filled)
            found.expect((maps == maps_of(filled.ids)).all(), "rows without routing have other experts")
            loads = [torch.zeros(len(MOE)) for _ in range(job["ranks"])]
            dist.all_gather(loads, torch.tensor(brought, dtype=torch.float32))
            loads = torch.stack(loads)
            found.expect(int(loads.sum()) == job["ranks"] * filled.ids.size, "the dispatcher lost rows")
            worst = round(float((loads.max(0).values / loads.mean(0)).max()), 3)
            found.numbers[f"max/mean, {name}, {fill}"] = worst
            found.expect(worst <= 1.05 if fill == "spread" else worst > 1.05, f"{name}, {fill}: max/mean {worst}")


def pipeline(job, found):
    """Megatron's own schedules: several micro-batches in flight, chunks in turns, recompute in the backward."""
    models, reference = make_models(job), Reference(job)
    load(models, reference.weights)
    for model in models:
        model.train()
    watch, replay = Watch(models), waymark.megatron.replay(models)
    of_chunk = [replay.layer_ids(model) for model in models]
    if job.get("reverse") and all(of_chunk):  # Megatron's own order is that in which they were made
        by_layer = [router.router_replay for model in models for router in model.decoder.modules() if isinstance(router, TopKRouter)]
        made = RouterReplay.global_router_replay_instances
        found.expect([id(one) for one in made] != [id(one) for one in by_layer], "the chunks were made in order: the case shows nothing")
    stages, stage = job["pipeline"], parallel_state.get_pipeline_model_parallel_rank()
    for chunk, layers in enumerate(of_chunk):
        share = waymark.trainer.stage_layers(LAYERS, pipeline=(stage, stages), virtual=(chunk, len(models)))
        found.expect(layers == tuple(layer for layer in share if layer in MOE), f"chunk {chunk} has layers {layers}, not of {share}")
    plan = layout_of(replay).plan(LENGTHS)

    def schedule(way):
        """way: "record", "replay", or None. Returns (chunk, micro-batch, step, maps) of the forwards."""
        forwards = []

        def step_of(chunk, micro_batch):
            if way == "replay":
                return replay.forward(plan, reference.rows(micro_batch), chunk=chunk)
            return replay.record(plan, chunk=chunk) if way else contextlib.nullcontext()

        def forward_step(micro_batches, model):
            micro_batch = next(micro_batches)
            tokens, at, mask = inputs(job["seed"], micro_batch)
            chunk = models.index(model)
            with step_of(model, micro_batch) as step:
                output = model(tokens, at, mask)
            for layer in of_chunk[chunk]:  # what has not been taken is what was recomputed
                watch.chosen[layer] = watch.chosen[layer][-1:]
            forwards.append((chunk, micro_batch, step, watch.take(of_chunk[chunk])))
            return output, lambda logits: (loss_of(logits, tokens), {})

        clear(models)
        with replay if way else contextlib.nullcontext():
            get_forward_backward_func()(
                forward_step_func=forward_step, data_iterator=[iter(range(MICRO_BATCHES)) for _ in models] if len(models) > 1
                else iter(range(MICRO_BATCHES)), model=models if len(models) > 1 else models[0], num_microbatches=MICRO_BATCHES,
                seq_length=LENGTH, micro_batch_size=BATCH, decoder_seq_length=LENGTH, forward_only=False)
        found.expect(len(forwards) == MICRO_BATCHES * len(models), f"{len(forwards)} forwards")
        return forwards

    fills = {(chunk, micro_batch): plan.fill(reference.rows(micro_batch), layers)
             for chunk, layers in enumerate(of_chunk) if layers for micro_batch in range(MICRO_BATCHES)}
    for chunk, micro_batch, step, maps in schedule("record"):
        if maps is not None:
            found.compare(maps, fills[chunk, micro_batch])
            for sequence, rows in enumerate(step.rows()):  # the way back
                columns = [MOE.index(layer) for layer in rows.layer_ids]
                wanted = reference.ids[micro_batch, : LENGTHS[sequence], sequence][:, columns]
                found.numbers["rows_compared"] += int(rows.valid.sum())
                found.numbers["rows_wrong"] += int((np.sort(rows.ids, -1) != wanted).any((1, 2))[rows.valid].sum())
    load(models, reference.weights, NOISE)
    for chunk, micro_batch, _, maps in schedule(None):
        if maps is not None:
            found.rerouted(maps, fills[chunk, micro_batch])
    runs = []
    for on in (False, True) if job.get("recompute") else (False,):
        for model in models:
            recompute_on(model, on)
        for chunk, micro_batch, step, maps in schedule("replay"):
            found.compare(maps, step.filled)
            found.expect((step.filled.mask == plan.fill(reference.rows(micro_batch), MOE).mask).all(), "a chunk has another mask")
        runs.append(gradients(models))
    found.expect(runs[0], "there are no gradients")
    if len(runs) == 2:
        found.numbers["gradients_differ_by"] = farthest(*runs)
        found.expect(farthest(*runs) < 1e-6, f"with recompute gradients differ by {farthest(*runs)}")


class MoELayers(torch.nn.Module):
    """The MoE layers of a model, each with inputs of its own: attention under context parallelism is Transformer Engine's."""

    def __init__(self, job):
        super().__init__()
        [model] = make_models(job | {"context": 1})
        self.config, self.decoder = model.config, torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(layer.mlp for layer in model.decoder.layers[DENSE:])
        load([model], Reference(job).weights)

    def hidden(self, seed, rows, batch):
        """Of every layer: [rows, batch, hidden]."""
        random = torch.Generator().manual_seed(seed)
        return torch.randn(len(MOE), rows, batch, HIDDEN, generator=random)

    def route(self, hidden):
        """What the routers alone choose of all tokens, ids [rows * batch, layers, K]."""
        with torch.no_grad():
            return np.stack([experts(layer.router(one)[1].numpy()) for layer, one in zip(self.decoder.layers, hidden)], 1)

    def forward(self, hidden):
        return [layer(one)[0] for layer, one in zip(self.decoder.layers, hidden)]


def local_positions(length):
    """Megatron's own cut of the positions of a sequence (a batch of one) for context parallelism."""
    batch = {"tokens": torch.arange(length)[None], "position_ids": torch.arange(length)[None]}
    group = parallel_state.get_context_parallel_group()
    try:
        cut = get_batch_on_this_cp_rank(batch | {"cu_seqlens": None}, False, group)
    except TypeError:  # up to 0.18
        cut = get_batch_on_this_cp_rank(batch, group)
    return cut["position_ids"][0]


def moe_layers(job, found, lengths, plan, replay, model, hidden, local):
    """hidden: of all tokens, [layers, rows, batch, hidden], of which the tokens of this context rank are rows `local`. The rest
    of the cut is Megatron's scatter to the sequence parallel region."""
    batch = hidden.shape[2]
    whole = model.route(hidden).reshape(hidden.shape[1], batch, len(MOE), TOP_K)
    firsts = np.cumsum([0, *plan_lengths(lengths, plan)]) if batch == 1 else None
    rows, wanted = [], []
    for sequence, length in enumerate(lengths):
        ids = whole[firsts[sequence] : firsts[sequence] + length, 0] if batch == 1 else whole[:length, sequence]
        wanted.append(ids)
        if job["fault"]:
            ids = np.roll(ids, 1, axis={"shift": 0, "layers": 1, "order": 0}[job["fault"]])
        rows.append(Rows.from_array(ids[: length - 1], num_experts=EXPERTS, layer_ids=MOE))
    mine = [one[local] for one in hidden]
    if job.get("sequence_parallel"):
        mine = [scatter_to_sequence_parallel_region(one) for one in mine]
    watch = Watch([model])
    with torch.no_grad(), replay.record(plan) as step:
        model(mine)
    filled = plan.fill(rows, MOE)
    found.compare(watch.take(MOE), filled)
    rank, size = plan.layout.context
    others = dataclasses.replace(plan.layout, context=((rank + 1) % size, size)).plan(lengths)
    found.refused("the plan of another rank", lambda: replay.forward(others, rows).__enter__(), f"plan: of context rank {rank}, as this")
    # A plan of another cut has as many rows: the audit tells.
    cut = dataclasses.replace(plan.layout, context_cut="contiguous").plan(lengths)
    differ = (np.stack(cut.places()) != np.stack(plan.places())).any(0)
    with torch.no_grad(), replay.forward(cut, rows, audit=True) as other:
        model(mine)
    watch.chosen.clear()
    if differ.sum() > 8 and not job["fault"]:  # some ranks have the same tokens
        found.expect(bool(other.audit().alarms), "a plan of another cut was not noticed")
        found.numbers["errors_planted"] += 1
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, [one.to_bytes() for one in step.rows()])
    for sequence, ids in enumerate(wanted):  # the way back: the ranks have all rows
        joined = waymark.join(*(waymark.from_bytes(of_rank[sequence]).rows() for of_rank in everywhere))
        found.numbers["rows_compared"] += len(joined)
        found.numbers["rows_wrong"] += int((~joined.valid | (np.sort(joined.ids, -1) != ids).any((1, 2))).sum())
    for layer in model.decoder.layers:
        layer.router.weight.data += NOISE * layer.router.weight.std() * torch.randn(layer.router.weight.shape, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        model(mine)
    found.rerouted(watch.take(MOE), filled)
    with replay.forward(plan, rows) as step:
        sum(one.square().sum() for one in model(mine)).backward()
    found.compare(watch.take(MOE), step.filled)


def plan_lengths(lengths, plan):
    multiple = plan.layout.sequence_multiple
    return [-(-length // multiple) * multiple for length in lengths]


def context(job, found):
    """Padded sequences under context parallelism: Megatron's own cut of the batch."""
    model = MoELayers(job)
    replay = waymark.megatron.replay(model)
    plan = layout_of(replay).plan(LENGTHS)
    moe_layers(job, found, LENGTHS, plan, replay, model, model.hidden(job["seed"], LENGTH, BATCH), local_positions(LENGTH))


def packed(job, found):
    """Packed sequences (THD): each document by itself is cut by Megatron's own function, and Megatron's roll of packed
    sequences, which sends the tokens at the ends of the chunks from rank to rank, agrees with the cut."""
    model = MoELayers(job)
    replay = waymark.megatron.replay(model)
    layout = layout_of(replay, order="packed", sequence_multiple=2 * degree(job, "context") * degree(job, "tensor"))
    lengths = [21, 7, 40, 1, 16]
    plan = layout.plan(lengths)
    padded = plan_lengths(lengths, plan)
    firsts = np.cumsum([0, *padded])
    local = torch.cat([int(first) + local_positions(length) for first, length in zip(firsts, padded)])
    ends = torch.as_tensor(firsts, dtype=torch.int32)
    rolled, _ = roll_tensor(local[None].clone(), shifts=-1, dims=-1, cp_group=parallel_state.get_context_parallel_group(),
                            packed_seq_params=PackedSeqParams(cu_seqlens_q=ends, cu_seqlens_kv=ends, qkv_format="thd"))
    following = torch.where(torch.isin(local + 1, ends), torch.zeros_like(local), local + 1)
    found.expect(bool((rolled[0] == following).all()), "Megatron's roll of packed sequences has another cut")
    moe_layers(job, found, lengths, plan, replay, model, model.hidden(job["seed"], int(firsts[-1]), 1), local)


def main():
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{job['port']}", rank=job["rank"], world_size=job["ranks"])
    virtual = degree(job, "virtual")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=degree(job, "tensor"), pipeline_model_parallel_size=degree(job, "pipeline"),
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None, context_parallel_size=degree(job, "context"),
        expert_model_parallel_size=degree(job, "expert"))
    stand_in_for_cuda()
    found = Found()
    globals()[job["case"]](job, found)
    if job["case"] in ("one", "groups", "cut", "pipeline", "context", "packed"):
        found.expect(found.numbers["rows_rerouted_without_replay"] > 0 or not found.numbers["rows_compared"],
                     "the weights that are off choose the same experts: replay shows nothing")
    found.expect(found.numbers["rows_compared"], "no row was compared")
    found.print()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
