"""Rows of vLLM as a trainer takes them: from outputs in Python, and from answers over HTTP.

    python docs/examples/vllm_rows.py [--http] [--blocks 32]

The model is a Qwen3-MoE with random weights, 4 layers, the first of which is dense, 16 experts and
top 4. A second request hits the first one's prefix. --http asks a server for the same and compares;
--blocks is vLLM's block_size. Needs vLLM 0.32 or 0.33 with Waymark beside it; runs on a CPU, too.
Exits with 1 if a row is missing, or if a layer of the trainer gets other ids than its own.
"""
import argparse
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np
import waymark
from waymark import trainer

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
import waymark.vllm  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

EXPERTS, LAYERS, MOE_LAYERS, PORT = 16, 4, (1, 2, 3), 8123  # of the model: arrays lack them
PROMPT = np.random.default_rng(0).integers(3, 500, 100).tolist()
PROMPTS = [PROMPT, PROMPT[:80] + [7, 8, 9]]
ENGINE = {"dtype": "float32", "max_model_len": 512, "gpu_memory_utilization": 0.2,
          "enforce_eager": True,  # starts sooner
          "additional_config": {"waymark": {"reasons": True}}}  # a missing row says why


def make_model(folder):
    import tokenizers
    import transformers

    config = transformers.Qwen3MoeConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, moe_intermediate_size=48,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        num_experts=EXPERTS, num_experts_per_tok=4, mlp_only_layers=[0], initializer_range=0.15)
    model = transformers.Qwen3MoeForCausalLM(config)
    for name, weight in model.named_parameters():
        if name.endswith("gate.weight"):  # zero in a model that is not loaded
            weight.data.normal_()
    model.save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(512)}, unk_token="w0")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words)).save_pretrained(folder)


def rows_of(array):
    """Missing rows are below 0, and keep their reasons."""
    runs = waymark.vllm.coverage(array)
    print(array.shape, array.dtype, "missing rows:", [run for run in runs if run.reason])
    return waymark.Rows.from_array(array, num_experts=EXPERTS, layer_ids=MOE_LAYERS,
                                   valid=(array >= 0).all((1, 2)))


def python_rows(model, block_size):
    """Rows and tokens of each request, from vLLM's outputs."""
    llm = LLM(model, block_size=block_size, **ENGINE)
    rows, tokens = [], []
    for prompt in PROMPTS:
        output = llm.generate({"prompt_token_ids": prompt},
                              SamplingParams(max_tokens=16, temperature=0, ignore_eos=True))[0]
        one = output.outputs[0]
        print(output.num_cached_tokens, "tokens from the prefix cache")
        rows.append(rows_of(one.routed_experts))
        tokens.append([*output.prompt_token_ids, *one.token_ids])
    return rows, tokens


def http_rows(model, block_size):
    """The same from a server's answers, whose field is a .npy file in base64."""
    url = f"http://127.0.0.1:{PORT}"
    options = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
               for name, value in ENGINE.items()]
    server = subprocess.Popen(  # vllm serve MODEL
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
         f"--port={PORT}", f"--block-size={block_size}", *options])

    def post(path, body):
        request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(url + "/health")
                break
            except OSError:
                time.sleep(1)
        rows, tokens = [], []
        for prompt in PROMPTS:
            choice = json.loads(post("/v1/completions", {
                "model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True}))["choices"][0]
            array = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))
            rows.append(rows_of(array))
            tokens.append(prompt + choice["token_ids"])
        return rows, tokens
    finally:
        server.terminate()
        server.wait()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--http", action="store_true")
    arguments.add_argument("--blocks", type=int, default=32)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as model:
        make_model(model)
        rows, tokens = python_rows(model, given.blocks)
        lengths = [len(of) for of in tokens]
        # What a pipeline stage with the layers 2 and 3 replays, and the arrays of a trainer.
        filled = trainer.Layout(order="packed").plan(lengths).fill(rows, (2, 3))
        arrays = trainer.FORMATS["verl"].write(
            rows, lengths, layer_ids=MOE_LAYERS, num_layers=LAYERS)
        print("a stage:", filled.ids.shape, "verl:", [array.shape for array in arrays.ids])
        right = all(one.valid.all() for one in rows)
        right &= (filled.ids[0, :lengths[0] - 1] == rows[0].ids[:, 1]).all()
        if given.http:
            others, other_tokens = http_rows(model, given.blocks)
            again = trainer.Layout(order="packed").plan(lengths).fill(others, (2, 3))
            right &= other_tokens == tokens and (again.ids == filled.ids).all()
        print("right" if right else "WRONG")
        return 0 if right else 1


if __name__ == "__main__":  # vLLM starts processes, which import this file
    sys.exit(main())
