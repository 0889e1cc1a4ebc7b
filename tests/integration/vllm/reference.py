"""Recomputes sequences in an engine of their own and compares what another engine returned for them.

  reference.py JOB    JOB: JSON {model, lora, spoil, results: {name: file that engine.py wrote}}

No prefix cache, one sequence in one forward, ids and scores straight from the routers: nothing of
Waymark is imported, and nothing is shared with the engine under test but the checkpoint. Prints a line for
each result, "COMPARED " and JSON [name, figures]: the comparison's and the engine's.
"""
import functools
import json
import pickle
import sys

import compare
import numpy as np
import recorder
from scenarios import LORA
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter


def options(lora):
    return dict(skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=1024, seed=0,
                enable_prefix_caching=False, block_size=32, max_num_batched_tokens=1024, max_num_seqs=1,
                num_gpu_blocks_override=128) | (LORA if lora else {})


class Reference:
    def __init__(self, model, lora):
        self.llm = LLM(model=model, **options(lora))
        self.lora = lora and LoRARequest("adapter", 1, lora)
        runner = self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        self.model_layers = runner.model_config.hf_config.num_hidden_layers
        self.known = {}
        self.ids, self.scores = {}, {}
        for module in runner.get_model().modules():
            if isinstance(getattr(module, "router", None), BaseRouter):
                recorder.watch(module.router, functools.partial(self.take, module.layer_id))

    def take(self, layer, ids, scores):
        self.ids[layer], self.scores[layer] = ids, scores

    def expected(self, tokens, lora):
        """The rows of a sequence: of all its tokens but the last, which was never an input."""
        key = tuple(tokens[:-1]), lora
        if key not in self.known:
            self.ids.clear()
            self.scores.clear()
            self.llm.generate([{"prompt_token_ids": list(key[0])}], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False),
                              use_tqdm=False, lora_request=self.lora if lora else None)
            layers = sorted(self.ids)
            ids, scores = (np.stack([part[layer] for layer in layers], 1) for part in (self.ids, self.scores))
            expected = compare.Expected(ids, scores, layers, self.model_layers)
            if len(expected.ids) != len(key[0]):
                raise ValueError(f"{len(expected.ids)} rows recomputed for {len(key[0])} tokens: not in one forward")
            compare.check_recompute(expected)
            self.known[key] = expected
        return self.known[key]


def compared(reference, records, spoil):
    total = compare.Result()
    for record in records:
        expected = record.get("recorded") or reference.expected(record["tokens"], record["lora"])
        if spoil and record["rows"] is not None:
            record["rows"] = np.roll(record["rows"], 1, 0)
        if record["versions"] and record["rows"] is not None:
            total.add(compare.compare_versions(record["name"], record["rows"], expected, None,
                                               record["sampled_versions"]))
        else:
            total.add(compare.compare(record["name"], record["rows"], expected, record["first"], record["reasons"]))
    return total.as_dict()


def main():
    with open(sys.argv[1]) as file:
        job = json.load(file)
    reference = Reference(job["model"], job["lora"])
    for name, path in job["results"].items():
        with open(path, "rb") as file:
            result = pickle.load(file)
        found = compared(reference, result["records"], job["spoil"])
        print("COMPARED " + json.dumps([name, found | result["counts"]]), flush=True)


if __name__ == "__main__":
    main()
