"""A real DynamicInferenceEngine, with its context, allocator, controller and scheduler, around the model of hash_model.py."""
import asyncio
import types
import warnings

warnings.filterwarnings("ignore")
from no_cuda import DEVICE, host  # first
import numpy as np
import torch

from hash_model import END, VOCABULARY, PagedHashes, extend, mix, next_token, routes


def _start_megatron():
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel()


_start_megatron()
from megatron.core.inference.config import InferenceConfig, KVCacheManagementMode, PrefixCachingEvictionPolicy
from megatron.core.inference.contexts.dynamic_context import DynamicInferenceContext
from megatron.core.inference.engines.dynamic_engine import DynamicInferenceEngine
from megatron.core.inference.model_inference_wrappers.abstract_model_inference_wrapper import AbstractModelInferenceWrapper
from megatron.core.inference.text_generation_controllers import mtp_utils_pytorch, text_generation_controller
from megatron.core.inference.text_generation_controllers.text_generation_controller import TextGenerationController
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from megatron.core.transformer.transformer_config import TransformerConfig

# Of Megatron's Triton kernels there are the same functions in PyTorch.
for _name in ("verify_speculative_tokens", "prepare_next_forward_pass") if DEVICE.type == "cpu" else ():
    setattr(text_generation_controller, _name, getattr(mtp_utils_pytorch, _name))


class Router(TopKRouter):
    """What is left of it without a gate."""

    def __init__(self, layer_number, config):
        torch.nn.Module.__init__(self)
        self.layer_number, self.config = layer_number, config
        self.weight = torch.nn.Parameter(torch.zeros(config.num_moe_experts, 1, device=DEVICE))
        self.router_replay = RouterReplay()
        self.router_replay.layer_number = layer_number
        self.graphs = {}  # rows of a CUDA graph -> where it writes them, for ever

    def route(self, ids, context=None):
        """A CUDA graph does again what it did when it was captured, and runs no Python."""
        graph = context is not None and context.using_cuda_graph_this_step()
        if graph and not context.is_creating_cuda_graphs and len(ids) in self.graphs:
            self.graphs[len(ids)].copy_(ids)
            return
        self.record(ids)
        if graph and context.is_creating_cuda_graphs:
            self.graphs[len(ids)] = self.router_replay.recorded_topk_idx

    def record(self, ids):
        if self.router_replay.router_replay_action == RouterReplayAction.RECORD:
            self.router_replay.record_indices(ids)


class HashModel(torch.nn.Module):
    """Its layers 1, 3, 4, ... (Megatron counts from 1) are mixtures of experts, the second is dense."""

    def __init__(self, config, spec):
        super().__init__()
        self.config, self.spec, self.vocab_size = config, spec, VOCABULARY
        numbers = [1, *range(3, spec.layers + 2)]
        if spec.mtp_first:  # built before the decoder, as in no model of Megatron's: nothing may depend on the order
            self.mtp = self._mtp()
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(Router(number, config) for number in numbers)
        if not spec.mtp_first:
            self.mtp = self._mtp()
        self.weights = 0
        self.hashes = []  # what the hidden states of the last forward stand for
        self._decoder_hidden_states_cache = None  # 0.18

    @property
    def weights(self):
        return self._weights

    @weights.setter
    def weights(self, version):
        self._weights = version
        for router in self.decoder.layers:
            router.weight.data.fill_(version)

    def _mtp(self):
        mtp = torch.nn.Module()
        mtp.mtp_use_repeated_layer = False
        if self.spec.mtp_router:
            mtp.layers = torch.nn.ModuleList([Router(1, self.config)])  # counts from 1 again
        return mtp

    def compute_mtp_single_step(self, hidden_states, next_token_ids, position_ids, **ignored):
        """One draft for each request: right in two of three cases."""
        ids, tokens = hidden_states[:, 0, 0].long().tolist(), next_token_ids[0].tolist()
        logits = torch.zeros(len(ids), 1, VOCABULARY, device=DEVICE)
        hidden = torch.zeros_like(hidden_states)
        for row, (index, token) in enumerate(zip(ids, tokens)):
            running = extend(self.hashes[index], token)
            draft = next_token(running, self.spec.ends)
            if mix(running ^ 0x77) % 3 == 0:
                draft = 1 + draft % (VOCABULARY - 1)
            logits[row, 0, draft] = 1
            hidden[row, 0, 0] = len(self.hashes)
            self.hashes.append(running)
        if self.spec.mtp_router:
            self.mtp.layers[0].route(torch.zeros(len(ids), self.spec.top_k, dtype=torch.int64, device=DEVICE))
        return hidden, logits


class HashWrapper(AbstractModelInferenceWrapper):
    def __init__(self, model, context, spec):
        super().__init__(model, context)
        self.spec = spec
        self.pages = PagedHashes(spec.blocks, spec.block)
        self.forwards = 0

    prep_inference_input = get_batch_for_context_window = None

    def run_one_forward_step(self, inference_input, recv_buffer_seq_len=None):
        context, spec, model = self.inference_context, self.spec, self.model
        padded, active = inference_input["tokens"].shape[1], context.active_token_count
        hashes = self.pages.forward(
            host(inference_input["tokens"][0, :active]), host(inference_input["position_ids"][0, :active]),
            host(context.token_to_request_idx[:active]), host(context.token_to_block_idx[:active]),
            host(context.token_to_local_position_within_kv_block[:active]), host(context.request_to_kv_block_ids),
            model.weights)
        self.forwards += 1
        ids = np.zeros((padded, spec.layers, spec.top_k), np.int64)
        ids[:active] = routes(hashes, spec.layers, spec.top_k, spec.experts, model.weights,
                              self.forwards if spec.noisy else 0)
        for index, router in enumerate(model.decoder.layers):
            router.route(torch.from_numpy(ids[:, index]).to(DEVICE), context)
        model.hashes = hashes.tolist()
        logits = torch.zeros(1, padded, VOCABULARY, device=DEVICE)
        following = [next_token(one, spec.ends) for one in model.hashes]
        logits[0, torch.arange(active, device=DEVICE), torch.tensor(following, device=DEVICE)] = 1
        hidden = torch.zeros(padded, 1, 1, device=DEVICE)
        hidden[:active, 0, 0] = torch.arange(active, device=DEVICE)
        if spec.drafts:
            context.mtp_decoder_hidden_states = model._decoder_hidden_states_cache = hidden
        return context.last_token_logits(logits).unsqueeze(0)


def make_engine(spec):
    """spec: a Spec of scenarios.py."""
    # A mixture of experts with one KV head of 8 in one layer: only the bookkeeping is needed of the KV cache.
    more = {"mtp_num_layers": spec.drafts} if spec.drafts or spec.mtp_router else {}
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, num_moe_experts=spec.experts, moe_router_topk=spec.top_k,
        params_dtype=torch.float32, use_cpu_initialization=True, moe_enable_routing_replay=True, add_bias_linear=False, **more)
    block_bytes = 4 * 2 * spec.block * 8 * (1 + (spec.drafts or 0) * 0)
    policy = PrefixCachingEvictionPolicy.LRU if spec.cache == "lru" else PrefixCachingEvictionPolicy.REF_ZERO
    context = DynamicInferenceContext(config, InferenceConfig(
        block_size_tokens=spec.block, buffer_size_gb=(spec.blocks + 0.5) * block_bytes / 2**30,
        paused_buffer_size_gb=(spec.paused + 0.5) * block_bytes / 2**30 if spec.paused else None,
        max_requests=spec.running, max_tokens=spec.tokens, max_sequence_length=1024,
        enable_chunked_prefill=spec.chunked, enable_prefix_caching=spec.cache != "off", prefix_caching_eviction_policy=policy,
        num_speculative_tokens=spec.drafts, num_cuda_graphs=4 if spec.static_buffers else None, kv_cache_management_mode=KVCacheManagementMode[spec.suspend or "PERSIST"]))
    allocator = context.kv_block_allocator
    blocks = getattr(allocator, "total_count", None) or allocator.pool_size
    assert blocks == spec.blocks, (blocks, spec.blocks)
    wrapper = HashWrapper(HashModel(config, spec), context, spec)
    if spec.static_buffers:
        metadata = context.moe_routing_metadata
        allocate = metadata._ensure_buffer_allocated

        def with_valid_ids():  # as may stand in memory that nothing has initialised
            new = metadata.routing_indices_buffer is None
            allocate()
            if new:
                metadata.routing_indices_buffer.copy_(torch.arange(metadata.moe_router_topk, device=DEVICE))

        metadata._ensure_buffer_allocated = with_valid_ids
    tokenizer = types.SimpleNamespace(
        eod=END, bos=None, tokenize=lambda text: [int(word) for word in text.split()],
        detokenize=lambda tokens, **more: " ".join(map(str, tokens)))
    return DynamicInferenceEngine(TextGenerationController(wrapper, tokenizer), context)
