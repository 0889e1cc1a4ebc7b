"""A real GPTModel with MoE layers in the real engine, on the CPU or a CUDA device: attention is a plain paged one, written here.

  real_model.py JOB    JOB: JSON {scenario, spec: {seed, requests, cache, chunked, suspend, blocks}, spoil}

The rows that the engine returns are compared with those of a second forward: each finished sequence at once, without a KV
cache, with the routers' scores, so that near ties are told apart. Prints FOUND and a JSON object.
"""
import json
import sys
import types

import megatron_engine  # noqa: F401  first: no CUDA
import numpy as np
import torch
from megatron.core.inference.config import InferenceConfig, KVCacheManagementMode, PrefixCachingEvictionPolicy
from megatron.core.inference.contexts import dynamic_context
from megatron.core.inference.contexts.dynamic_context import DynamicInferenceContext
from megatron.core.inference.engines.dynamic_engine import DynamicInferenceEngine
from megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper import GPTInferenceWrapper
from megatron.core.inference.sampling_params import SamplingParams
from megatron.core.inference.text_generation_controllers.text_generation_controller import TextGenerationController
from megatron.core.inference.utils import InferenceMode
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel import random as parallel_random
from megatron.core.transformer import attention
from megatron.core.transformer.transformer_config import TransformerConfig
from no_cuda import DEVICE, NoStates, host

LAYERS, EXPERTS, TOP_K, VOCABULARY, LONGEST = [0, 1, 1, 1], 8, 2, 128, 512  # the first layer is dense
NEAR_TIE = 1e-4


def paged_attention(self, q, k, v, max_seqlen_q, max_seqlen_k, cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table, *more, **ignored):
    """Of each request its tokens of this forward (q: [rows, 1, heads, size]) with its pages (k, v: [blocks, block tokens,
    heads, size])."""
    output = torch.zeros_like(q)
    firsts, lengths, block_tokens = cu_seqlens_q.tolist(), seqlens_k.tolist(), k.shape[1]
    for request, (begin, end, length) in enumerate(zip(firsts, firsts[1:], lengths)):
        if end == begin or not length:
            continue
        blocks = block_table[request, : -(-length // block_tokens)].long()
        keys, values = (cache[blocks].flatten(0, 1)[:length].transpose(0, 1) for cache in (k, v))
        mine = q[begin:end, 0].transpose(0, 1)
        positions = torch.arange(length, device=q.device)
        later = positions[None] > positions[length - (end - begin):, None]
        scores = (mine @ keys.transpose(1, 2)) / q.shape[-1] ** 0.5
        output[begin:end, 0] = (scores.masked_fill(later, -torch.inf).softmax(-1) @ values).transpose(0, 1)
    return output


def make(job):
    if DEVICE.type == "cpu":
        parallel_random._CUDA_RNG_STATE_TRACKER, parallel_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = NoStates(), True
        dynamic_context.triton_append_key_value_cache = None
    else:
        parallel_random.model_parallel_cuda_manual_seed(job["seed"])
    attention.is_fa_min_version = lambda version: True
    attention.Attention.flash_decode_and_prefill = paged_attention
    torch.manual_seed(job["seed"])
    config = TransformerConfig(
        num_layers=len(LAYERS), hidden_size=32, num_attention_heads=4, ffn_hidden_size=48, num_moe_experts=EXPERTS,
        moe_router_topk=TOP_K, moe_layer_freq=LAYERS, moe_ffn_hidden_size=24, moe_router_score_function="softmax",
        moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather", moe_enable_routing_replay=True,
        moe_grouped_gemm=False, add_bias_linear=False, use_cpu_initialization=True, params_dtype=torch.float32,
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False,
        attention_dropout=0.0, hidden_dropout=0.0, normalization="LayerNorm")
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=VOCABULARY, max_sequence_length=LONGEST,
                     position_embedding_type="learned_absolute", parallel_output=False, share_embeddings_and_output_weights=False)
    for layer in model.decoder.layers[1:]:
        torch.nn.init.normal_(layer.mlp.router.weight, std=0.3)
    model.eval().to(DEVICE)
    block, blocks = 16, job["blocks"]
    block_bytes = 4 * 2 * len(LAYERS) * block * 32
    context = DynamicInferenceContext(config, InferenceConfig(
        block_size_tokens=block, buffer_size_gb=(blocks + 0.5) * block_bytes / 2**30, max_requests=8, max_tokens=64 if job["chunked"] else 256,
        max_sequence_length=LONGEST, enable_chunked_prefill=job["chunked"], enable_prefix_caching=job["cache"] != "off",
        prefix_caching_eviction_policy=PrefixCachingEvictionPolicy.LRU if job["cache"] == "lru" else PrefixCachingEvictionPolicy.REF_ZERO,
        kv_cache_management_mode=KVCacheManagementMode[job["suspend"] or "PERSIST"]))
    wrapper = GPTInferenceWrapper(model, context)
    tokenizer = types.SimpleNamespace(eod=0, bos=None, tokenize=str.split, detokenize=lambda tokens, **more: "")
    return DynamicInferenceEngine(TextGenerationController(wrapper, tokenizer), context), model


def recompute(model, tokens):
    """(ids, scores) of a sequence in one forward: [tokens, MoE layers, K] and [tokens, MoE layers, experts]."""
    ids, scores, hooks = [], [], []
    for layer in model.decoder.layers[1:]:
        hooks.append(layer.mlp.router.register_forward_hook(lambda router, given, result: ids.append(result[1])))
        hooks.append(layer.mlp.router.register_forward_pre_hook(
            lambda router, given: scores.append(torch.nn.functional.linear(given[0].flatten(0, 1), router.weight))))
    count = len(tokens)
    with torch.no_grad():
        later = torch.triu(torch.ones(count, count, dtype=torch.bool, device=DEVICE), 1)
        model(torch.tensor([tokens], device=DEVICE), torch.arange(count, device=DEVICE)[None], later[None, None])
    for hook in hooks:
        hook.remove()
    chosen = torch.stack([one.reshape(count, EXPERTS).bool() for one in ids], 1)
    return host(chosen), host(torch.stack(scores, 1))


def main():
    import random

    import waymark.megatron
    given = json.loads(sys.argv[1])
    job = {"seed": 2, "requests": 24, "cache": "lru", "chunked": False, "suspend": "", "blocks": 60} | given.get("spec", {})
    engine, model = make(job)
    attached = waymark.megatron.attach(engine) if given["capture"] == "waymark" else None
    numbers, added, steps, left, shared, suspends = random.Random(job["seed"]), 0, 0, 0, [], 30
    counts = dict(requests=0, requests_lost=0, rows_expected=0, rows_checked=0, rows_wrong=0, near_ties=0, suspends=0)
    examples, records, missing = [], [], 0
    while added < job["requests"] or engine.requests:
        while added < job["requests"] and len(engine.waiting_request_ids) < 8:
            if not left:
                left = numbers.randint(2, 6)
                shared = [numbers.randint(1, 126) for _ in range(numbers.randint(30, 56))]
            left -= 1
            prompt = shared + [numbers.randint(1, 126) for _ in range(3 * (numbers.random() < 0.25))]
            engine.add_request(added, prompt, SamplingParams(num_tokens_to_generate=max(2, int(numbers.expovariate(1 / 30))), termination_id=-1, top_k=20))
            added += 1
        records += engine.step_modern()["finished_request_records"]
        steps += 1
        if job["suspend"] and steps == suspends:
            suspends += numbers.randint(20, 40)
            engine.suspend()
            engine.resume()
            counts["suspends"] += 1
    InferenceMode.unset_active()
    for record in records:
        request = record.merge()
        tokens = request.prompt_tokens.tolist() + list(request.generated_tokens)
        chosen, scores = recompute(model, tokens[:-1])
        counts["requests"] += 1
        counts["rows_expected"] += len(tokens) - 1
        rows = request.routing_indices
        if rows is None or (rows < 0).any():
            counts["requests_lost"] += 1
            missing += len(tokens) - 1 if rows is None else int((rows < 0).any((1, 2)).sum())
            continue
        if given.get("spoil"):
            rows = np.roll(rows, 1, axis=0)
        counts["rows_checked"] += len(rows)
        got = np.zeros_like(chosen)
        np.put_along_axis(got, rows.astype(np.int64), True, axis=-1)
        for row in np.flatnonzero((got != chosen).any((1, 2))):
            layer = int(np.flatnonzero((got[row] != chosen[row]).any(-1))[0])
            differing = np.flatnonzero(got[row, layer] != chosen[row, layer])
            boundary = np.sort(scores[row, layer])[-TOP_K]
            if np.abs(scores[row, layer, differing] - boundary).max() <= NEAR_TIE:
                counts["near_ties"] += 1
                break  # what follows was computed from another token's hidden states
            counts["rows_wrong"] += 1
            if len(examples) < 5:
                examples.append(f"request {request.request_id}, row {row}, layer {layer}: {rows[row].tolist()}")
    counts |= dict(steps=steps, evictions=engine.evicted_request_count, hits=engine._prefix_cache_hits, examples=examples,
                   rows_missing={"unexplained": missing} if missing else {}, us={})
    if attached is not None:
        stats = attached.store.stats().as_dict()
        counts |= dict(failure=attached.failure, steps_without_ids=attached.steps_without_ids, dropped=attached.requests.dropped,
                       findings=[finding.text for finding in attached.store.take_findings()],
                       store={name: value for name, value in stats.items() if isinstance(value, int) and value})
    print("FOUND " + json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
