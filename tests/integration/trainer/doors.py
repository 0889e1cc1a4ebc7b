#!/usr/bin/env python3
"""The arrays that Waymark writes for trainers, taken by the trainers' own functions.

  doors.py [--json] [--seed N] [--fault NAME | --faults] [--only TRAINER]

For each trainer: the array is what its own code makes of an engine's rows, its own code cuts it for the ranks as plan.fill()
does, row by row, and what it records is read. The functions are those of the packages, which doors_setup gets; trainers.py
tells what of their imports does nothing. Ranks are simulated one after the other: no function here communicates.
It prints {"part", "cases": [{"name", "rows_compared", "rows_wrong"}], "left_out", "stubs"}.
--fault damages an array on its way, so that rows have to be wrong; --faults does so once with each.
Exit status: 0 no row is wrong (--faults: some case sees each fault, and each case sees some); 1 otherwise; 2 usage; 77 verl, SkyRL and AReaL are not there.
"""
import argparse
import asyncio
import base64
import contextlib
import importlib.util
import json
import sys
import traceback
import types
from unittest import mock

sys.dont_write_bytecode = True

import no_cuda  # noqa: F401  before torch
import numpy as np
import torch
import trainers
from trainers import megatron_rank
from waymark import Rows
from waymark.trainer import FORMATS, Layout

NUM_LAYERS, EXPERTS, K = 6, 32, 4
MOE = [0, 1, 1, 0, 1, 1]
LAYER_IDS = tuple(layer for layer, moe in enumerate(MOE) if moe)
MESHES = [((tp, tps), (cp, cps)) for tps in (1, 2) for cps in (1, 2) for tp in range(tps) for cp in range(cps)]


class Batch:
    """Sequences, and the rows that an engine captured for them."""

    def __init__(self, seed, experts=EXPERTS, layer_ids=LAYER_IDS, num_layers=NUM_LAYERS):
        rng = np.random.default_rng(seed)
        self.rng, self.experts, self.layer_ids, self.num_layers = rng, experts, layer_ids, num_layers
        self.prompts = [int(n) for n in rng.integers(1, 9, int(rng.integers(2, 6)))]
        self.lengths = [p + int(n) for p, n in zip(self.prompts, rng.integers(1, 20, len(self.prompts)))]
        shape = (len(layer_ids), experts)
        self.ids = [rng.random((n - 1, *shape)).argsort(-1)[..., :K] for n in self.lengths]
        self.rows = [Rows.from_array(ids, num_experts=experts, layer_ids=layer_ids) for ids in self.ids]

    def engine(self, dtype=np.int32, keep=None):
        """What an engine hands to a trainer: [T - 1, all layers, K] of each sequence, or its first `keep` rows."""
        arrays = []
        for i, ids in enumerate(self.ids):
            array = np.zeros((len(ids), self.num_layers, K), dtype)
            array[:, list(self.layer_ids)] = ids
            arrays.append(array if keep is None else array[: keep[i]])
        return arrays

    def write(self, name, **more):
        arguments = {"num_layers": self.num_layers, "layer_ids": self.layer_ids, "sources": self.rows,
                     "lengths": self.lengths} | more
        return FAULTS[Cases.fault](FORMATS[name].write(arguments.pop("sources"), arguments.pop("lengths"), **arguments), name)

    def fill(self, layout, padded_lengths=None, layer_ids=None):
        plan = layout.plan(self.lengths, padded_lengths)
        filled = plan.fill(self.rows, self.layer_ids if layer_ids is None else layer_ids)
        return filled._replace(mask=np.roll(filled.mask, 1)) if Cases.fault == "plan" else filled


def each_array(change):
    """A fault of [rows, layers, K] arrays, applied to every form."""
    def damaged(data, name):
        def one(part):
            if isinstance(part, dict):
                array = np.frombuffer(part["data"], part["dtype"]).reshape(part["shape"])
                array = change(array.copy())
                return {"data": array.tobytes(), "shape": list(array.shape), "dtype": array.dtype.name}
            if part.ndim == 2:
                return change(part.reshape(len(part), -1, K).copy()).reshape(part.shape)
            return change(part.copy())
        if isinstance(data.ids, list):
            return data._replace(ids=[one(part) for part in data.ids])
        if data.ids.ndim == 4:
            return data._replace(ids=np.stack([change(row.copy()) for row in data.ids]))
        return data._replace(ids=change(data.ids.copy()))
    return damaged


def swapped(array):
    a, b = LAYER_IDS[0] % array.shape[1], LAYER_IDS[2] % array.shape[1]
    array[:, [a, b]] = array[:, [b, a]]
    return array


def one_id(array):
    if array.size:
        array[len(array) // 2, LAYER_IDS[1] % array.shape[1], K - 1] ^= 1
    return array


def last_row(array):
    array[-1:] = 1
    return array


def other_mask(data, name):
    mask = data.router_padding_mask
    return data if mask is None else data._replace(router_padding_mask=~mask)


def other_begins(data, name):
    return data if data.cu_seqlens is None else data._replace(cu_seqlens=data.cu_seqlens - (data.cu_seqlens > 0).astype(np.int32))


FAULTS = {
    None: lambda data, name: data,
    "shifted": each_array(lambda array: np.roll(array, 1, 0)),
    "layers": each_array(swapped),
    "one_id": each_array(one_id),
    "order_of_k": each_array(lambda array: array[..., ::-1].copy()),
    "last_row": each_array(last_row),
    "mask": other_mask,
    "cu_seqlens": other_begins,
    "plan": lambda data, name: data,  # see Batch.fill
    "recorded": lambda data, name: data,  # see verl_recorded
}


class Cases:
    """Counts the rows of each case."""

    fault = None

    def __init__(self):
        self.cases, self.left_out = {}, []

    def rows(self, name, got, wanted, where=None):
        """Row by row: got and wanted [rows, ...]; where: the rows that are compared. Shapes and types count as rows."""
        case = self.cases.setdefault(name, {"name": name, "rows_compared": 0, "rows_wrong": 0})
        got, wanted = np.asarray(got), np.asarray(wanted)
        compared = len(wanted) if where is None else int(np.count_nonzero(where))
        case["rows_compared"] += compared
        if got.shape != wanted.shape:
            case["rows_wrong"] += max(compared, 1)
            case["wrong"] = f"shape {list(got.shape)}, wanted {list(wanted.shape)}"
            return
        differ = (got != wanted).reshape(len(wanted), -1).any(1)
        case["rows_wrong"] += int(np.count_nonzero(differ if where is None else differ & where))

    def same(self, name, got, wanted, where=None):
        """Row by row, and in the type. where: without the rows that a trainer fills in its own way."""
        self.rows(name, got, wanted, where)
        if (a := str(getattr(got, "dtype", "")).removeprefix("torch.")) != (b := str(np.asarray(wanted).dtype)):
            self.cases[name]["rows_wrong"] += 1
            self.cases[name]["wrong"] = f"type {a}, wanted {b}"

    def true(self, name, holds, what):
        case = self.cases.setdefault(name, {"name": name, "rows_compared": 0, "rows_wrong": 0})
        if not holds:
            case["rows_wrong"] += 1
            case["wrong"] = what


def jagged(arrays):
    return torch.nested.as_nested_tensor([torch.from_numpy(np.ascontiguousarray(a)) for a in arrays], layout=torch.jagged)


class Model(torch.nn.Module):
    """Routers as a model chunk of megatron-core has them."""

    def __init__(self, layer_ids, replay_of):
        super().__init__()
        from megatron.core.transformer.moe.router import TopKRouter
        self.decoder = torch.nn.ModuleList()
        for layer in layer_ids:
            router = TopKRouter.__new__(TopKRouter)
            torch.nn.Module.__init__(router)
            router.layer_number, router.router_replay = layer + 1, replay_of()
            self.decoder.append(router)

    @property
    def replays(self):
        return [router.router_replay for router in self.decoder]


def packed(mesh):
    """How verl and SkyRL pack: every sequence to a multiple of TP, or of 2 CP TP."""
    tensor, context = mesh
    multiple = tensor[1] * context[1] * (2 if context[1] > 1 else 1)
    return Layout(context=context, tensor=tensor, sequence_parallel=True, sequence_multiple=multiple)


# --- verl ---------------------------------------------------------------------------------------------------------------


def verl_agent_loop(cases, batch):
    """What the agent loop makes of an engine's rows, jagged and padded."""
    loop = trainers.module("verl", "verl.experimental.agent_loop.agent_loop")
    listed = batch.write("verl")
    longest, answer = max(batch.prompts), max(n - p for n, p in zip(batch.lengths, batch.prompts))
    starts = [longest - p for p in batch.prompts]
    padded = batch.write("verl", form="batch", starts=starts, length=longest + answer)
    for i, (p, n) in enumerate(zip(batch.prompts, batch.lengths)):
        def output(array):
            return loop.AgentLoopOutput(prompt_ids=list(range(1, p + 1)), response_ids=list(range(n - p)),
                                        response_mask=[1] * (n - p), routed_experts=array, metrics={})
        cases.same("verl_jagged", output(batch.engine()[i]).as_dict()["routed_experts"], listed.ids[i], listed.mask[i])
        cases.same("verl_padded", verl_padded(loop, output(batch.engine()[i]), longest, answer), padded.ids[i],
                   padded.mask[i])


def verl_padded(loop, output, prompt_length, response_length):
    """routed_experts of the padded sample that the agent loop makes of an output."""
    worker = types.SimpleNamespace(
        rollout_config=types.SimpleNamespace(prompt_length=prompt_length, response_length=response_length), processor=None,
        _compute_multi_modal_inputs=lambda *args: {}, _get_mm_processor_kwargs=lambda *args: {},
        _compute_position_ids=lambda ids, mask, *args: mask, _compute_score=nothing, _compute_teacher_logprobs=nothing,
        _pad_token_ids=pad_token_ids)
    worker_class = getattr(loop.AgentLoopWorker, "__ray_metadata__", loop.AgentLoopWorker)
    made = asyncio.run(worker_class._agent_loop_postprocess(worker, output, False, raw_prompt=None))
    return made.routed_experts[0]


async def nothing(*args, **more):
    return None


def pad_token_ids(tokens, *, max_length, padding_side, return_attention_mask):
    """What a tokenizer's pad() does."""
    pad = [0] * (max_length - len(tokens))
    left = padding_side == "left"
    return {"input_ids": torch.tensor([pad + tokens if left else tokens + pad]),
            "attention_mask": torch.tensor([pad + [1] * len(tokens) if left else [1] * len(tokens) + pad])}


def verl_ranks(cases, batch):
    """The targets and masks of every router on every rank, of the jagged and of the padded array."""
    utils = trainers.module("verl", "verl.utils.megatron.router_replay_utils")
    utils.device_name = "cpu"
    config = types.SimpleNamespace(fp8=None, num_layers=batch.num_layers, moe_layer_freq=MOE)
    tokens = jagged([np.zeros(n, np.int64) for n in batch.lengths])
    answers = torch.zeros(len(batch.lengths), max(batch.lengths))
    for i, (p, n) in enumerate(zip(batch.prompts, batch.lengths)):
        answers[i, : n - p] = 1
    longest = max(batch.prompts)
    starts = [longest - p for p in batch.prompts]
    attention = torch.zeros(len(starts), longest + max(batch.lengths), dtype=torch.bool)
    for i, (at, n) in enumerate(zip(starts, batch.lengths)):
        attention[i, at : at + n] = True
    for num_layers in (batch.num_layers, None):  # a column for each layer, or for those with experts
        listed = batch.write("verl", num_layers=num_layers)
        padded = batch.write("verl", form="batch", num_layers=num_layers, starts=starts, length=attention.shape[1])
        routes = utils.align_r3_router_replay_data(jagged(listed.ids), tokens)
        mask = utils.build_r3_replay_mask(tokens, answers)
        for mesh in MESHES:
            for stage in (batch.layer_ids[:2], batch.layer_ids[2:]):
                filled = batch.fill(packed(mesh), layer_ids=stage)
                for name, data, given in (("jagged", routes, mask), ("padded", torch.from_numpy(padded.ids), None)):
                    model = Model(stage, utils.RouterReplay)
                    with megatron_rank(*mesh):
                        utils.set_router_replay_data(data, attention, config, replay_mask=given, model=model)
                    for replay, wanted in zip(model.replays, filled.ids):
                        cases.rows(f"verl_ranks_{name}", replay.target_topk_idx, wanted, filled.mask)
                        if given is not None:
                            cases.rows("verl_ranks_mask", replay.target_replay_mask, filled.mask)


def verl_recorded(cases, batch):
    """What verl records of its own routers (R2) is read."""
    utils = trainers.module("verl", "verl.utils.megatron.router_replay_utils")
    utils.device_name = "cpu"
    config = types.SimpleNamespace(fp8=None, num_layers=batch.num_layers, moe_layer_freq=MOE)
    filled = batch.fill(Layout())
    model, recorded = Model(batch.layer_ids, utils.RouterReplay), []
    for replay, ids in zip(model.replays, filled.ids):
        replay.record_indices(torch.from_numpy(ids.copy()))
    tokens = jagged([np.zeros(n, np.int64) for n in batch.lengths])
    with megatron_rank():
        utils.merge_router_topk_indices(None, tokens, recorded, config, model=model)
    parts = [part.numpy() for part in recorded[0].unbind()]
    cases.true("verl_recorded", len(parts) == len(batch.ids), f"{len(parts)} sequences")
    for part, ids in zip(parts, batch.ids):
        if Cases.fault == "recorded":  # what the trainer has is a row later
            part = np.roll(part, 1, 0)
        rows = Rows.from_array(part[:-1], num_experts=batch.experts, layer_ids=batch.layer_ids)
        cases.rows("verl_recorded", rows.ids, ids)


# --- SkyRL --------------------------------------------------------------------------------------------------------------


def skyrl_collated(cases, batch):
    """What SkyRL's trainer makes of an engine's rows, and of fewer rows than tokens."""
    wire = trainers.module("skyrl", "skyrl.backends.skyrl_train.inference_servers.generate_wire")
    preprocess = trainers.module("skyrl", "skyrl.train.dataset.preprocess")
    keep = [int(batch.rng.integers(1, n)) for n in batch.lengths]
    for name, kept in (("skyrl_collated", None), ("skyrl_fewer_rows", keep)):
        arrays = [wire.decode_packed_routed_experts(wire.pack_routed_experts(a)) for a in batch.engine(keep=kept)]
        tensor = preprocess._collate_rollout_expert_indices(arrays, np.array(batch.lengths))
        sources = batch.rows if kept is None else [rows[:n] for rows, n in zip(batch.rows, kept)]
        data = batch.write("skyrl", sources=sources, partial=kept is not None, missing="refuse" if kept is None else "fill")
        cases.same(name, tensor.values, data.ids, data.mask)
        cases.same(name + "_cu_seqlens", tensor.cu_seqlens, data.cu_seqlens)
        attention = torch.zeros(len(arrays), max(batch.lengths), dtype=torch.int64)
        for i, n in enumerate(batch.lengths):
            attention[i, -n:] = 1
        mask = preprocess.make_router_padding_mask(attention, [len(a) for a in arrays])
        cases.same(name + "_mask", mask, data.router_padding_mask)


def skyrl_ranks(cases, batch):
    """The targets of megatron-core's routers on every rank, packed; and padded, which SkyRL flattens batch-major."""
    utils = trainers.module("skyrl", "skyrl.backends.skyrl_train.utils.replay_utils")
    metadata = trainers.module("skyrl", "skyrl.backends.skyrl_train.distributed.megatron.token_metadata")
    tensors = trainers.module("skyrl", "skyrl.backends.skyrl_train.utils.packed_tensor")
    from megatron.core.transformer.moe.router_replay import RouterReplay
    from megatron.core.transformer.transformer_config import TransformerConfig
    data = batch.write("skyrl")
    attention = torch.from_numpy(np.arange(max(batch.lengths)) >= max(batch.lengths) - np.array(batch.lengths)[:, None])
    routes = tensors.PackedTensor(torch.from_numpy(data.ids), torch.from_numpy(data.cu_seqlens))
    mask = torch.from_numpy(data.router_padding_mask)
    for mesh in MESHES:
        tensor, context = mesh
        for stage in (0, 1):
            own = [layer for layer in batch.layer_ids if layer // 3 == stage]
            for as_packed in (True, False):
                if not as_packed and context[1] > 1:
                    continue
                RouterReplay.clear_global_router_replay_instances()
                for layer in own:
                    RouterReplay().layer_number = layer + 1
                config = TransformerConfig(num_layers=batch.num_layers, hidden_size=8, num_attention_heads=2,
                                           pipeline_model_parallel_size=2, pipeline_dtype=torch.float32)
                with megatron_rank(*mesh, pipeline=(stage, 2)):
                    layout = metadata.build_token_metadata_layout(attention, torch.device("cpu"), packed=as_packed, fp8_enabled=False)
                    given = utils.setup_per_microbatch_replay_forward(
                        routes, mask, attention, None, config, layout, remove_microbatch_padding=as_packed)
                name = "skyrl_ranks_packed" if as_packed else "skyrl_ranks_padded"
                cut = packed(mesh) if as_packed else Layout(order="batch-major", tensor=tensor, sequence_parallel=True,
                                                            sequence_multiple=tensor[1])
                filled = batch.fill(cut, layer_ids=own)
                for replay, wanted in zip(RouterReplay.global_router_replay_instances, filled.ids):
                    cases.rows(name, replay.target_topk_idx, wanted, filled.mask)
                whole = batch.fill(Layout(**{**vars(cut), "tensor": (0, 1)}), layer_ids=own)
                cases.rows(name + "_mask", given["padding_mask"].flatten(), ~whole.mask)
    RouterReplay.clear_global_router_replay_instances()


# --- AReaL --------------------------------------------------------------------------------------------------------------


def areal_generated(cases, batch):
    """What AReaL keeps of SGLang's answer; and of an answer that was interrupted, which has the rows of both calls."""
    engine = trainers.module("areal", "areal.infra.remote_inf_engine")
    infra = sys.modules["areal.infra"]
    infra.RemoteInfEngine, infra.RolloutController, infra.WorkflowExecutor = engine.RemoteInfEngine, object, object
    remote = trainers.module("areal", "areal.engine.sglang_remote")
    data = batch.write("areal")
    for i, (p, n) in enumerate(zip(batch.prompts, batch.lengths)):
        array = batch.engine()[i]

        def answer(prompt, total, reason):
            return {"meta_info": {
                "prompt_tokens": prompt, "completion_tokens": total - prompt, "finish_reason": {"type": reason},
                "output_token_logprobs": [(0.0, t) for t in range(prompt, total)],
                "routed_experts": base64.b64encode(array[: total - 1].tobytes()).decode()}}

        middle = p + (n - p) // 2
        for name, answers in (("areal", [answer(p, n, "stop")]),
                              ("areal_interrupted", [answer(p, middle, "abort"), answer(middle, n, "stop")])):
            if name == "areal_interrupted" and not p < middle < n:
                continue
            made = asyncio.run(areal_response(remote, engine, list(range(p)), n - p, answers))
            if name == "areal":
                cases.same(name, made, data.ids[i])
                continue
            # The rows before the interruption are there twice: it is not the array of the sequence.
            cases.true(name, len(made) > n - 1, f"{len(made)} rows of {n} tokens")
            cases.rows(name, made[-(n - 1):], data.ids[i])


async def areal_response(remote, engine, prompt, most, answers):
    request = types.SimpleNamespace(rid="r", input_ids=list(prompt), metadata={}, image_data=[], tokenizer=None, processor=None,
                                    vision_msg_vllm=None, gconfig=mock.MagicMock(n_samples=1, max_tokens=1 << 20, max_new_tokens=most,
                                                                                 use_beam_search=False))
    request.copy = lambda: request
    self = types.SimpleNamespace(
        config=types.SimpleNamespace(return_routed_experts=True, use_lora=False, request_retries=1, request_timeout=1),
        rid_to_address={}, rid_queue=[], choose_server=lambda: "server", backend=remote.SGLangBackend(), get_version=lambda: 0,
        workflow_executor=types.SimpleNamespace(is_paused=lambda: False))
    calls = iter(answers)

    async def call(**more):
        return next(calls)

    with mock.patch.object(engine, "arequest_with_retry", call), \
            mock.patch.object(engine.workflow_context, "get_aiohttp_session", nothing, create=True):
        return (await remote.RemoteInfEngine.agenerate(self, request)).routed_experts


# --- trainers that are not on PyPI --------------------------------------------------------------------------------------


def slime_ranks(cases, batch):
    cut = trainers.module("slime", "slime.backends.megatron_utils.cp_utils")
    arrays = [torch.from_numpy(a) for a in batch.write("slime").ids]
    tokens = [torch.zeros(n) for n in batch.lengths]
    for mesh in MESHES:
        (tensor, context), multiplier = mesh, 3
        for stream in (False, True):
            with megatron_rank(*mesh):
                made = cut.prepare_routed_experts_for_routing_replay(
                    arrays, tokens, num_experts=batch.experts, data_pad_size_multiplier=multiplier, sequence_parallel=True,
                    allgather_cp=stream)
            check_cut(cases, "slime_ranks", batch, mesh, multiplier, stream, made)
    for array, wanted in zip(arrays, batch.engine()):
        cases.same("slime", array, wanted)


def check_cut(cases, name, batch, mesh, multiplier, stream, made):
    """[local rows, layers, K] as slime and miles pack and cut them."""
    tensor, context = mesh
    size = context[1]
    if stream:
        cut = Layout(context=context, context_cut="stream", tensor=tensor, sequence_parallel=True,
                     total_multiple=size * tensor[1] * multiplier)
    else:
        cut = Layout(context=context, tensor=tensor, sequence_parallel=True, sequence_multiple=2 * size if size > 1 else 1,
                     local_multiple=tensor[1] * multiplier)
    filled = batch.fill(cut)
    for layer, wanted in zip(batch.layer_ids, filled.ids):
        cases.rows(name, made[:, layer], wanted, filled.mask)


def miles_ranks(cases, batch):
    data = trainers.module("miles", "miles.backends.training_utils.replay_data")
    parallel = trainers.module("miles", "miles.backends.training_utils.parallel")
    base = trainers.module("miles", "miles.utils.replay_base")
    keep = [batch.rng.random(len(ids)) < 0.8 for ids in batch.ids]
    some = [Rows.from_array(ids, num_experts=batch.experts, layer_ids=batch.layer_ids, valid=valid)
            for ids, valid in zip(batch.ids, keep)]
    whole, holes = batch.write("miles"), batch.write("miles", sources=some, missing="fill")
    for array, wanted in zip(whole.ids, batch.engine()):
        cases.same("miles", array, wanted)
    for mesh in MESHES:
        (tensor, context), multiplier = mesh, 3
        state = types.SimpleNamespace(tp=Rank(*tensor), cp=Rank(*context))
        for stream in (False, True):
            for name, written in (("miles_ranks", whole), ("miles_missing", holes)):
                parallel.set_parallel_state(state)
                held, kept = {"rollout_routed_experts": True}, []
                item = {"rollout_routed_experts": [torch.from_numpy(a) for a in written.ids],
                        "tokens": [torch.zeros(n) for n in batch.lengths], "max_seq_lens": None}
                iterator = types.SimpleNamespace(reset=lambda: None, get_next=lambda keys: item)
                data.fill_replay_data(
                    args=types.SimpleNamespace(qkv_format="thd", data_pad_size_multiplier=multiplier, allgather_cp=stream,
                                               sequence_parallel=True),
                    models=None, data_iterator=[iterator], num_microbatches=[1], rollout_data=held,
                    data_key="rollout_routed_experts", replay_list=[],
                    register_replay_list_func=lambda replays, made, models: kept.append(made))
                if name == "miles_ranks":
                    check_cut(cases, name, batch, mesh, multiplier, stream, kept[0])
                    continue
                # Its router takes what is filled in.
                manager = base.RoutingReplayManager()
                manager.enabled, manager.stage, manager.enable_check_replay_result = True, "replay_forward", False
                scores = torch.zeros(len(kept[0]), batch.experts)
                manager.set_current(types.SimpleNamespace(pop_forward=lambda: kept[0][:, batch.layer_ids[0]].long()))
                _, ids = manager.get_topk_fn(None, True)(scores, K)
                size = context[1]
                cut = (Layout(context=context, context_cut="stream", tensor=tensor, sequence_parallel=True,
                              total_multiple=size * tensor[1] * multiplier) if stream else
                       Layout(context=context, tensor=tensor, sequence_parallel=True, local_multiple=tensor[1] * multiplier,
                              sequence_multiple=2 * size if size > 1 else 1))
                wanted = cut.plan(batch.lengths).fill(some, batch.layer_ids[:1])
                cases.rows(name, ids, wanted.ids[0], wanted.mask)


class Rank:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def prime_rl_batch(cases, batch):
    """An orchestrator's samples, packed to a micro-batch and made a tensor."""
    types_of = trainers.module("prime-rl", "prime_rl.transports.rollouts").types
    packer = trainers.module("prime-rl", "prime_rl.trainer.batch")
    loader = trainers.module("prime-rl", "prime_rl.trainer.rl.data")
    trajectories = trainers.module("prime-rl", "prime_rl.orchestrator.trajectories")
    data = batch.write("prime-rl")
    samples = []
    for part, mask, array, n in zip(data.ids, data.mask, batch.engine(np.uint8 if batch.experts <= 256 else np.uint16), batch.lengths):
        theirs = trajectories._encode_routed_experts(array, n)
        cases.same("prime-rl", np.frombuffer(theirs.data, theirs.dtype).reshape(theirs.shape),
                   np.frombuffer(part["data"], part["dtype"]).reshape(part["shape"]), mask)
        sample = types_of.TrainingSample(token_ids=[0] * n, mask=[True] * n, logprobs=[0.0] * n, temperatures=[1.0] * n, env_name="e",
                                         advantages=[0.0] * n, routed_experts=types_of.RoutedExperts(**part))
        samples.append(packer.prepare_sample(sample, 1 << 20))
    whole = samples[0]
    for sample in samples[1:]:  # as the packer joins them
        assert whole.routed_experts.dtype == sample.routed_experts.dtype
        whole.routed_experts.data += sample.routed_experts.data
        whole.routed_experts.shape[0] += sample.routed_experts.shape[0]
    packer._pad_routed_experts(whole, 5)
    tensor = loader.DataLoader._micro_batch_to_tensor(None, whole)["routed_experts"]
    filled = batch.fill(Layout(total_multiple=sum(batch.lengths) + 5))
    for layer, wanted in zip(batch.layer_ids, filled.ids):
        cases.rows("prime-rl_tensor", tensor[0, :, layer], wanted, filled.mask)
    # Its context ranks: equal parts of the line of all sequences, and of a sequence alone.
    shard = prime_rl_shard()
    alone, length = batch.rows[0], batch.lengths[0]
    for size in (1, 2, 4):
        total, longest = (-(-n // size) * size for n in (tensor.shape[1], length))
        padded = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, total - tensor.shape[1]))
        for rank in range(size):
            mine = shard(padded, rank, size)[0]
            filled = batch.fill(Layout(context=(rank, size), context_cut="stream", total_multiple=total))
            whole = Layout(order="batch-major", context=(rank, size), context_cut="contiguous", sequence_multiple=size)
            of_one = whole.plan([length]).fill([alone], batch.layer_ids)
            one = shard(padded[:, :longest], rank, size)[0]
            for layer, wanted, wanted_of_one in zip(batch.layer_ids, filled.ids, of_one.ids):
                cases.rows("prime-rl_context", mine[:, layer], wanted, filled.mask)
                cases.rows("prime-rl_context_of_one", one[:, layer], wanted_of_one, of_one.mask)


def prime_rl_shard():
    """shard_for_cp of prime_rl.utils, whose other functions want packages that are not here."""
    names = ("prime_rl._compat", "prime_rl.utils.sequence", "ring_flash_attn")
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in names}):
        file = trainers.root() / trainers.FOLDERS["prime-rl"] / "prime_rl" / "utils" / "cp.py"
        spec = importlib.util.spec_from_file_location("prime_rl_cp", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.shard_for_cp


def roll_batch(cases, batch):
    """ROLL's padded batch, and its cut for tensor ranks and stages; all layers have experts."""
    functionals = trainers.module("roll", "roll.utils.functionals")
    utils = trainers.module("roll", "roll.third_party.megatron.router_replay_utils")
    from megatron.core.transformer.transformer_config import TransformerConfig
    longest = max(batch.prompts)
    total = 2 * (longest // 2) + 24  # even, for two tensor ranks
    prompts = {"input_ids": torch.zeros(len(batch.lengths), longest, dtype=torch.int64),
               "attention_mask": torch.zeros(len(batch.lengths), longest, dtype=torch.int64)}
    output = torch.zeros(len(batch.lengths), longest + max(n - p for n, p in zip(batch.lengths, batch.prompts)), dtype=torch.int64)
    for i, (p, n) in enumerate(zip(batch.prompts, batch.lengths)):
        prompts["attention_mask"][i, -p:] = 1
        output[i, longest - p : longest - p + n] = 7
    prompts["position_ids"] = prompts["attention_mask"]
    arrays = [torch.from_numpy(a) for a in batch.engine()]
    held = {}
    with mock.patch.object(functionals, "TensorDict", lambda fields, **more: held), \
            mock.patch.dict(sys.modules, {"roll.distributed.scheduler.protocol": mock.MagicMock()}):
        functionals.postprocess_generate(types.SimpleNamespace(batch=prompts), output, 1, total, 1, 0, routed_experts=arrays)
    data = batch.write("roll", length=total)
    for got, wanted, mask in zip(held["routed_experts"], data.ids, data.mask):
        cases.same("roll", got, wanted, mask)
    utils.get_device_name = lambda: "cpu"
    for size in (1, 2):
        for rank in range(size):
            for stage in (0, 1):
                own = [layer for layer in batch.layer_ids if layer // 3 == stage]
                config = TransformerConfig(num_layers=batch.num_layers, hidden_size=8, num_attention_heads=2,
                                           pipeline_model_parallel_size=2, pipeline_dtype=torch.float32)
                replays = [mock.MagicMock() for _ in own]
                with megatron_rank((rank, size), pipeline=(stage, 2)), \
                        mock.patch.object(utils.RouterReplayHelper, "get_micro_batch_router_list", lambda *args: replays):
                    utils.set_router_replay_data(torch.from_numpy(data.ids), None, config)
                cut = Layout(order="sequence-major", tensor=(rank, size), sequence_parallel=True)
                filled = batch.fill(cut, [total] * len(batch.lengths), own)
                for replay, wanted in zip(replays, filled.ids):
                    cases.rows("roll_ranks", replay.set_target_indices.call_args[0][0], wanted, filled.mask)


def nemo_rl_rows(cases, batch):
    """NeMo-RL's rows of a sample, with fewer rows than tokens, and what its routers are given."""
    utils = trainers.module("nemo-rl", "nemo_rl.models.generation.vllm.utils")
    replay = trainers.module("nemo-rl", "nemo_rl.models.megatron.router_replay")
    interfaces = trainers.module("nemo-rl", "nemo_rl.models.generation.interfaces")
    keep = [int(batch.rng.integers(1, n)) for n in batch.lengths]
    for name, kept in (("nemo-rl", None), ("nemo-rl_fewer_rows", keep)):
        sources = batch.rows if kept is None else [rows[:n] for rows, n in zip(batch.rows, kept)]
        data = batch.write("nemo-rl", sources=sources, partial=kept is not None)
        for i, array in enumerate(batch.engine(keep=kept)):
            n = batch.lengths[i]
            utils.R3_MISSING_ROUTE_SENTINEL = interfaces.ROUTED_EXPERTS_MISSING_ROUTE_SENTINEL
            made = utils.pad_and_align_routed_expert_indices(
                types.SimpleNamespace(), types.SimpleNamespace(routed_experts=array), valid_length=n, padded_length=n,
                device=torch.device("cpu"), routed_experts_dtype=interfaces.resolve_routed_experts_dtype(batch.experts))
            cases.same(name, made, data.ids[i], np.arange(n) < n - 1)  # the last token's has its own filler
    length = max(batch.lengths) + 3
    padded = batch.write("nemo-rl", form="batch", length=length)
    made = replay._normalize_routed_experts_for_mcore(torch.from_numpy(padded.ids))
    index = replay._payload_indices_for_moe_layers(global_moe_layers=[layer + 1 for layer in batch.layer_ids],
                                                   num_payload_layers=made.shape[1], total_num_layers=batch.num_layers)
    filled = batch.fill(Layout(order="sequence-major"), [length] * len(batch.lengths))
    with mock.patch.dict("os.environ", {replay._ROUTER_REPLAY_VALIDATE_ENV: "1"}):
        for layer, wanted in zip(batch.layer_ids, filled.ids):
            column = made[:, index[layer + 1]]
            replay._validate_replay_tensor(column, types.SimpleNamespace(num_moe_experts=batch.experts), layer_number=layer + 1,
                                           payload_idx=index[layer + 1])
            cases.rows("nemo-rl_order", column, wanted, filled.mask)


PARTS = {"verl": (verl_agent_loop, verl_ranks, verl_recorded), "skyrl": (skyrl_collated, skyrl_ranks), "areal": (areal_generated,),
         "slime": (slime_ranks,), "miles": (miles_ranks,), "prime-rl": (prime_rl_batch,), "roll": (roll_batch,),
         "nemo-rl": (nemo_rl_rows,)}
ON_PYPI = ("verl", "skyrl", "areal")


def run(seed, fault, only):
    cases = Cases()
    Cases.fault = fault
    for name, parts in PARTS.items():
        if only and name != only:
            continue
        if not trainers.is_here(name):
            cases.left_out.append(name)
            continue
        for part in parts:
            for turn in range(3):
                every = name == "roll"
                batch = Batch([seed, turn], experts=EXPERTS if turn < 2 else 300,
                              layer_ids=tuple(range(NUM_LAYERS)) if every else LAYER_IDS)
                try:
                    part(cases, batch)
                except ImportError as error:  # of a checkout without all that it imports
                    cases.left_out.append(f"{name} ({part.__name__} is not run: {error})")
                    break
                except Exception as error:  # a trainer that refuses the array
                    cases.true(part.__name__, False, f"{type(error).__name__}: {str(error)[:300]}")
                    if fault is None:
                        traceback.print_exc()
    return cases


def main(part="doors", run=run, parts=PARTS, faults=FAULTS, doc=__doc__):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--fault", choices=[name for name in faults if name])
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--only", choices=parts)
    args = parser.parse_args()
    if away := [name for name in ON_PYPI if not trainers.is_here(name)]:
        print(f"SKIPPED: no {', '.join(away)} in {trainers.root()}; doors_setup gets them", file=sys.stderr)
        return 77
    seed = int(np.random.SeedSequence().entropy % (1 << 32)) if args.seed is None else args.seed
    if args.faults:
        blind, unseen = None, []
        for fault in [name for name in faults if name]:
            with contextlib.redirect_stdout(sys.stderr):
                found = {c["name"]: c["rows_wrong"] for c in run(seed, fault, args.only).cases.values()}
            seen = {name for name, wrong in found.items() if wrong}
            blind = {name for name in found if name not in seen} & (set(found) if blind is None else blind)
            unseen += [] if seen else [fault]
            print(f"{fault:12} seen by {len(seen)} of {len(found)} cases", flush=True)
        print(f"faults that no case sees: {unseen or 'none'}; cases that see no fault: {sorted(blind) or 'none'}")
        return int(bool(unseen or blind))
    with contextlib.redirect_stdout(sys.stderr):  # trainers print
        cases = run(seed, args.fault, args.only)
    listed = list(cases.cases.values())
    if args.json:
        print(json.dumps({"part": part, "seed": seed, "cases": listed, "left_out": cases.left_out, "stubs": trainers.stubbed()}))
    else:
        for case in listed:
            print(f"{case['name']:24} {case['rows_compared']:>8,} rows, {case['rows_wrong']} wrong {case.get('wrong', '')}")
        print(f"seed {seed}; left out: {', '.join(cases.left_out) or 'nothing'}")
    return int(any(case["rows_wrong"] for case in listed) or not listed)


if __name__ == "__main__":
    sys.exit(main())
