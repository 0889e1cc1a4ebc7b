"""Small random checkpoints without a tokenizer, fp32, of MoE families: make_model.py FAMILY FOLDER."""
import sys

import torch
import transformers

VOCABULARY, LAYERS, EXPERTS, TOP_K = 512, 4, 16, 4
COMMON = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
              num_experts_per_tok=TOP_K, max_position_embeddings=2048, tie_word_embeddings=False,
              bos_token_id=1, eos_token_id=2, pad_token_id=0)
GROUPED = dict(num_key_value_heads=2, head_dim=16)
FAMILIES = {
    "qwen3_moe": ("Qwen3Moe", GROUPED | dict(moe_intermediate_size=32, num_experts=EXPERTS, norm_topk_prob=True)),
    "dense_layers": ("Qwen3Moe", GROUPED | dict(moe_intermediate_size=32, num_experts=EXPERTS, norm_topk_prob=True, mlp_only_layers=[0, 2])),
    "mixtral": ("Mixtral", GROUPED | dict(num_local_experts=EXPERTS)),
    "deepseek_v3": ("DeepseekV3", dict(num_key_value_heads=4, moe_intermediate_size=32, n_routed_experts=EXPERTS, n_shared_experts=1,
                                       first_k_dense_replace=1, n_group=1, topk_group=1, q_lora_rank=None, kv_lora_rank=32, norm_topk_prob=True,
                                       qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16, routed_scaling_factor=1.0)),
}


def write_model(family, folder, seed=7):
    name, more = FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, name + "Config")(**COMMON, **more)
    model = getattr(transformers, name + "ForCausalLM")(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * (1.0 if "gate.weight" in name or "embed" in name else 0.15))
    model.save_pretrained(folder)


if __name__ == "__main__":
    write_model(*sys.argv[1:])
