"""Writes tiny mixture-of-experts checkpoints with random weights that a real engine can load.

  make_model.py MODEL FOLDER [--layers 4] [--experts 16] [--top-k 4] [--seed 7]

MODEL is one of MODELS below: qwen3_moe, qwen3_moe_sparse (every second layer dense), mixtral,
deepseek_v3 (MLA, first layer dense), gpt_oss (every second layer with a sliding window), lfm2_moe
(every second layer a short convolution with a state, first layer dense). The folder gets config.json,
model.safetensors (float32), and a tokenizer, which few scenarios need.

`write_lora` writes a LoRA adapter for the attention of a Qwen3-MoE.

Weights are normal with variance 1 / fan-in, so router logits are about N(0, 1): the gap between the
last chosen expert and the first that is not is far above the noise of float32. (An engine's own
dummy weights are within 1e-3 of zero: there every choice is a near tie.)
"""
import argparse
import json
import os

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

VOCABULARY = 512
HIDDEN = 64
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
EXPERT_HIDDEN = 32
DENSE_HIDDEN = 128


class Weights:
    """The tensors of one checkpoint, drawn in the order of the calls."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)
        self.tensors = {}

    def random(self, name, *shape, scale=None):
        scale = scale or shape[-1] ** -0.5
        self.tensors[name] = (self.generator.standard_normal(shape) * scale).astype(np.float32)

    def ones(self, name, *shape):
        self.tensors[name] = np.ones(shape, np.float32)

    def frame(self, layers):
        """What every model has: embedding, norms and head."""
        self.random("model.embed_tokens.weight", VOCABULARY, HIDDEN, scale=1.0)
        self.ones("model.norm.weight", HIDDEN)
        self.random("lm_head.weight", VOCABULARY, HIDDEN)
        for layer in range(layers):
            self.ones(f"model.layers.{layer}.input_layernorm.weight", HIDDEN)
            self.ones(f"model.layers.{layer}.post_attention_layernorm.weight", HIDDEN)

    def attention(self, prefix, bias=False):
        for name, size in (("q_proj", HEADS * HEAD_DIM), ("k_proj", KV_HEADS * HEAD_DIM), ("v_proj", KV_HEADS * HEAD_DIM)):
            self.random(f"{prefix}{name}.weight", size, HIDDEN)
            if bias:
                self.random(f"{prefix}{name}.bias", size, scale=0.1)
        self.random(f"{prefix}o_proj.weight", HIDDEN, HEADS * HEAD_DIM)
        if bias:
            self.random(f"{prefix}o_proj.bias", HIDDEN, scale=0.1)

    def mlp(self, prefix, size, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = names
        self.random(f"{prefix}{gate}.weight", size, HIDDEN)
        self.random(f"{prefix}{up}.weight", size, HIDDEN)
        self.random(f"{prefix}{down}.weight", HIDDEN, size)


def common(architecture, model_type, layers):
    return {
        "architectures": [architecture], "model_type": model_type, "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}


def qwen3_moe(weights, layers, experts, top_k, dense=()):
    weights.frame(layers)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights.attention(prefix + "self_attn.")
        weights.ones(prefix + "self_attn.q_norm.weight", HEAD_DIM)
        weights.ones(prefix + "self_attn.k_norm.weight", HEAD_DIM)
        if layer in dense:
            weights.mlp(prefix + "mlp.", DENSE_HIDDEN)
            continue
        weights.random(prefix + "mlp.gate.weight", experts, HIDDEN)
        for expert in range(experts):
            weights.mlp(f"{prefix}mlp.experts.{expert}.", EXPERT_HIDDEN)
    return common("Qwen3MoeForCausalLM", "qwen3_moe", layers) | {
        "intermediate_size": DENSE_HIDDEN, "moe_intermediate_size": EXPERT_HIDDEN, "num_experts": experts,
        "num_experts_per_tok": top_k, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": list(dense),
        "rope_theta": 10000.0, "attention_bias": False}


def qwen3_moe_sparse(weights, layers, experts, top_k):
    return qwen3_moe(weights, layers, experts, top_k, dense=range(0, layers, 2))


def mixtral(weights, layers, experts, top_k):
    weights.frame(layers)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights.attention(prefix + "self_attn.")
        weights.random(prefix + "block_sparse_moe.gate.weight", experts, HIDDEN)
        for expert in range(experts):
            weights.mlp(f"{prefix}block_sparse_moe.experts.{expert}.", EXPERT_HIDDEN, ("w1", "w3", "w2"))
    return common("MixtralForCausalLM", "mixtral", layers) | {
        "intermediate_size": EXPERT_HIDDEN, "num_local_experts": experts, "num_experts_per_tok": top_k,
        "sliding_window": None, "rope_theta": 10000.0}


def deepseek_v3(weights, layers, experts, top_k):
    # The CPU's MLA kernel is compiled for a latent of 512 + 64.
    rank, rope, nope, value = 512, 64, 32, 32
    weights.frame(layers)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights.random(prefix + "self_attn.q_proj.weight", HEADS * (nope + rope), HIDDEN)
        weights.random(prefix + "self_attn.kv_a_proj_with_mqa.weight", rank + rope, HIDDEN)
        weights.ones(prefix + "self_attn.kv_a_layernorm.weight", rank)
        weights.random(prefix + "self_attn.kv_b_proj.weight", HEADS * (nope + value), rank)
        weights.random(prefix + "self_attn.o_proj.weight", HIDDEN, HEADS * value)
        if layer == 0:
            weights.mlp(prefix + "mlp.", DENSE_HIDDEN)
            continue
        weights.random(prefix + "mlp.gate.weight", experts, HIDDEN)
        weights.random(prefix + "mlp.gate.e_score_correction_bias", experts, scale=0.05)
        weights.mlp(prefix + "mlp.shared_experts.", EXPERT_HIDDEN)
        for expert in range(experts):
            weights.mlp(f"{prefix}mlp.experts.{expert}.", EXPERT_HIDDEN)
    config = common("DeepseekV3ForCausalLM", "deepseek_v3", layers)
    del config["head_dim"]
    return config | {
        "num_key_value_heads": HEADS, "intermediate_size": DENSE_HIDDEN, "moe_intermediate_size": EXPERT_HIDDEN,
        "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": top_k, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "norm_topk_prob": True, "routed_scaling_factor": 1.0, "q_lora_rank": None, "kv_lora_rank": rank,
        "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": value, "num_nextn_predict_layers": 0,
        "attention_bias": False, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def gpt_oss(weights, layers, experts, top_k):
    weights.frame(layers)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights.attention(prefix + "self_attn.", bias=True)
        weights.random(prefix + "self_attn.sinks", HEADS, scale=1.0)
        weights.random(prefix + "mlp.router.weight", experts, HIDDEN)
        weights.random(prefix + "mlp.router.bias", experts, scale=0.05)
        # Here the matrices are [input, output].
        weights.random(prefix + "mlp.experts.gate_up_proj", experts, HIDDEN, 2 * EXPERT_HIDDEN, scale=HIDDEN ** -0.5)
        weights.random(prefix + "mlp.experts.gate_up_proj_bias", experts, 2 * EXPERT_HIDDEN, scale=0.1)
        weights.random(prefix + "mlp.experts.down_proj", experts, EXPERT_HIDDEN, HIDDEN, scale=EXPERT_HIDDEN ** -0.5)
        weights.random(prefix + "mlp.experts.down_proj_bias", experts, HIDDEN, scale=0.1)
    return common("GptOssForCausalLM", "gpt_oss", layers) | {
        "intermediate_size": EXPERT_HIDDEN, "num_local_experts": experts, "num_experts_per_tok": top_k,
        "attention_bias": True, "sliding_window": 64, "swiglu_limit": 7.0, "swiglu_alpha": 1.702,
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 2048,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}


def lfm2_moe(weights, layers, experts, top_k):
    heads, kv_heads, kernel = HIDDEN // HEAD_DIM, 1, 3
    weights.random("model.embed_tokens.weight", VOCABULARY, HIDDEN, scale=1.0)  # the head, too
    weights.ones("model.embedding_norm.weight", HIDDEN)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights.ones(prefix + "operator_norm.weight", HIDDEN)
        weights.ones(prefix + "ffn_norm.weight", HIDDEN)
        if layer % 2:
            for name, size in (("q_proj", heads * HEAD_DIM), ("k_proj", kv_heads * HEAD_DIM), ("v_proj", kv_heads * HEAD_DIM)):
                weights.random(f"{prefix}self_attn.{name}.weight", size, HIDDEN)
            weights.random(prefix + "self_attn.out_proj.weight", HIDDEN, heads * HEAD_DIM)
            weights.ones(prefix + "self_attn.q_layernorm.weight", HEAD_DIM)
            weights.ones(prefix + "self_attn.k_layernorm.weight", HEAD_DIM)
        else:
            weights.random(prefix + "conv.in_proj.weight", 3 * HIDDEN, HIDDEN)
            weights.random(prefix + "conv.conv.weight", HIDDEN, 1, kernel)
            weights.random(prefix + "conv.out_proj.weight", HIDDEN, HIDDEN)
        if layer == 0:
            weights.mlp(prefix + "feed_forward.", DENSE_HIDDEN, ("w1", "w3", "w2"))
            continue
        weights.random(prefix + "feed_forward.gate.weight", experts, HIDDEN)
        for expert in range(experts):
            weights.mlp(f"{prefix}feed_forward.experts.{expert}.", EXPERT_HIDDEN, ("w1", "w3", "w2"))
    config = common("Lfm2MoeForCausalLM", "lfm2_moe", layers)
    del config["head_dim"]
    return config | {
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "tie_word_embeddings": True, "norm_eps": 1e-6,
        "intermediate_size": DENSE_HIDDEN, "moe_intermediate_size": EXPERT_HIDDEN, "num_experts": experts,
        "num_experts_per_tok": top_k, "num_dense_layers": 1, "use_expert_bias": False, "norm_topk_prob": True,
        "routed_scaling_factor": 1.0, "conv_L_cache": kernel, "conv_bias": False,
        "layer_types": ["full_attention" if layer % 2 else "conv" for layer in range(layers)],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


MODELS = {function.__name__: function for function in (qwen3_moe, qwen3_moe_sparse, mixtral, deepseek_v3, gpt_oss, lfm2_moe)}


def write_model(model, folder, layers=4, experts=16, top_k=4, seed=7):
    """Writes the files of MODEL into the folder, which is made."""
    os.makedirs(folder, exist_ok=True)
    weights = Weights(seed)
    config = MODELS[model](weights, layers, experts, top_k)
    save_file(weights.tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    write_tokenizer(folder)


def write_tokenizer(folder):
    """Token i is the word "w<i>"; words have spaces between them."""
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0",
                   "chat_template": "{{ messages[0]['content'] }}"}, file)


def write_lora(folder, layers=4, rank=8, seed=8):
    """Writes a LoRA adapter of the attention's q, k, v and o projections of a model of HIDDEN, HEADS, ..."""
    os.makedirs(folder, exist_ok=True)
    weights = Weights(seed)
    sizes = {"q_proj": (HEADS * HEAD_DIM, HIDDEN), "k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
             "v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "o_proj": (HIDDEN, HEADS * HEAD_DIM)}
    for layer in range(layers):
        for name, (rows, columns) in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}."
            weights.random(prefix + "lora_A.weight", rank, columns)
            weights.random(prefix + "lora_B.weight", rows, rank)
    save_file(weights.tensors, os.path.join(folder, "adapter_model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(sizes),
                   "bias": "none", "task_type": "CAUSAL_LM"}, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("folder")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    write_model(args.model, args.folder, args.layers, args.experts, args.top_k, args.seed)


if __name__ == "__main__":
    main()
