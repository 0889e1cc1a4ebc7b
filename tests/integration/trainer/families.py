"""Replay in real models of Hugging Face transformers: five families, tiny, with random weights.

  families.py [--json] [--seed N] [--family NAME,...] [--fault NAME]

The engine is in bfloat16: prefill in chunks and decode on a KV cache, its rows through a capture session (the engine of
docs/examples/replay_training.py). The trainer is in float32, of equal weights, and takes one forward of a batch of three sequences
of different lengths. What counts is what the experts of each layer are given, which is watched behind waymark.hf. Cases of each family:

  right, left   the batch padded on that side, of which some rows are missing besides: every row that has routing is replayed, every
                other one is routed as without Waymark; the divergence is less than without replay; gradients reach each gate; the
                audit raises no alarm
  packed        one line of all sequences, without an attention mask
  own           the trainer's own choices, recorded (R2) and replayed: the logits and all gradients are those without Waymark
  checkpoint    the same gradients with gradient checkpointing; its second forward replays, too; two forwards of one context wait
                for a backward each
  audit         planted errors are named by an audit before replay, and raise an alarm while replaying; nothing else does
  compiled      (Qwen3Moe) by torch.compile of the model, model.compile() and of each layer, before or after a native forward: replayed, recorded
                and native forwards, in turns, are those of a model that is not compiled
  unlikely      experts that a sharp router would never choose: logits and gradients are finite
  restored      afterwards the modules have their own classes and no hook, and the logits are those of before

and one case "routers": the scores of each known router's own choices, of all experts, and of the least likely ones.
--fault plants an error in this test or in waymark.hf, at which it must exit with 1: one of FAULTS.
Exit status: 0 all is right; 1 something is wrong; 77 skipped, and why.
"""
import argparse
import contextlib
import copy
import importlib
import json
import pathlib
import sys
import types
import warnings

sys.dont_write_bytecode = True
warnings.filterwarnings("ignore")
try:
    import torch
    import transformers
    import waymark.hf
    from waymark import trainer
    from waymark import Mistake
except ImportError as error:
    print(f"SKIPPED: {error}", file=sys.stderr)
    sys.exit(77)
if tuple(int(number) for number in transformers.__version__.split(".")[:2]) < (5, 6):
    print(f"SKIPPED: transformers 5.6 is needed, this is {transformers.__version__}", file=sys.stderr)
    sys.exit(77)
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "docs" / "examples"))
from replay_training import TransformersEngine
from waymark.hf import _families, _place, _replay

EXPERTS, TOP_K, LAYERS, VOCABULARY = 32, 4, 4, 256
PROMPTS, NEW = (45, 30, 17), 30
STALE = 0.1  # standard deviations of each weight
COMMON = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=256, initializer_range=0.15, num_experts_per_tok=TOP_K, tie_word_embeddings=False, pad_token_id=0,
)
FAMILIES = {
    "Qwen3Moe": dict(num_experts=EXPERTS, moe_intermediate_size=48, head_dim=16, norm_topk_prob=True),
    "Mixtral": dict(num_local_experts=EXPERTS),
    "DeepseekV3": dict(num_key_value_heads=4, n_routed_experts=EXPERTS, num_local_experts=EXPERTS, moe_intermediate_size=48, first_k_dense_replace=1, n_group=4,
                       topk_group=2, n_shared_experts=1, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
                       v_head_dim=16),
    "Olmoe": dict(num_key_value_heads=4, num_experts=EXPERTS, norm_topk_prob=False),
    "GptOss": dict(num_local_experts=EXPERTS, head_dim=16, sliding_window=128),
}


def model_of(family, seed):
    torch.manual_seed(seed)
    config = getattr(transformers, family + "Config")(**{**COMMON, **FAMILIES[family]})
    config._attn_implementation = "eager"
    model = getattr(transformers, family + "ForCausalLM")(config).float().eval()
    for name, weight in model.named_parameters():  # some are zero in a model that is not loaded
        if name.endswith(("gate.weight", "router.weight")):
            torch.nn.init.normal_(weight, std=0.3)
        elif weight.dim() > 1 and float(weight.detach().std()) == 0:
            torch.nn.init.normal_(weight, std=0.15)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.1)
    return model


class Watch:
    """What the experts of each layer are given, call by call: [(ids, scores)]."""

    def __init__(self, model):
        self.given = []
        self.handles = [module.register_forward_pre_hook(lambda module, args: self.given.append((args[1].detach().clone(), args[2].detach())))
                        for name, module in model.named_modules() if name.endswith(".experts") and "shared" not in name]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()

    def sets(self):
        """int64 [calls, rows, K], ascending."""
        return torch.stack([ids for ids, scores in self.given]).sort(-1)[0]


class Batch:
    """Sequences padded to the longest, on one side."""

    def __init__(self, sequences, side):
        self.lengths = [len(sequence) for sequence in sequences]
        longest = max(self.lengths)
        self.tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
        self.mask = torch.zeros(len(sequences), longest, dtype=torch.int64)
        for b, sequence in enumerate(sequences):
            at = slice(longest - len(sequence), None) if side == "left" else slice(0, len(sequence))
            self.tokens[b, at], self.mask[b, at] = sequence, 1
        self.positions = (self.mask.cumsum(1) - 1).clip(0)
        self.at = [torch.nonzero(line)[:, 0] for line in self.mask]  # of the tokens of each sequence

    def logp(self, model):
        logits = model(self.tokens, attention_mask=self.mask, position_ids=self.positions, use_cache=False).logits
        return [logits[b, at].float().log_softmax(-1) for b, at in enumerate(self.at)]

    def rows_of(self, flat, b):
        """The rows of sequence b in [calls, B * S, ...]."""
        return flat.unflatten(1, self.mask.shape)[:, b, self.at[b]]


def sets_of(rows):
    """int64 [layers, rows, K], ascending."""
    return torch.from_numpy(rows.astype(np.int64, layout="LTK")).sort(-1)[0]


def gradients_of(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def farthest(ours, theirs):
    """By what share of its greatest element a gradient differs most."""
    return max(float((ours[name] - grad).abs().max() / (grad.abs().max() + 1e-30)) for name, grad in theirs.items())


class Case:
    def __init__(self, name):
        self.found = {"name": name, "rows_compared": 0, "rows_wrong": 0}
        self.why = []

    def rows(self, ours, theirs):
        """Compares rows of all layers; [layers, rows, K]."""
        self.found["rows_compared"] += ours.shape[0] * ours.shape[1]
        self.found["rows_wrong"] += int((ours != theirs).any(-1).sum())

    def require(self, what, holds):
        if not holds:
            self.why.append(what)

    @contextlib.contextmanager
    def refused(self, what, text=""):
        """What has to raise."""
        try:
            yield
        except waymark.FailedPreconditionError as error:
            self.require(f"{what}: another error: {error}", text in str(error))
        else:
            self.require(f"{what}, and nothing was said", False)

    def end(self):
        self.require(f"{self.found['rows_wrong']} rows are wrong", not self.found["rows_wrong"])
        return {**self.found, "why_not": self.why}


class Family:
    """A family's engine has run; the cases compare its rows with what the trainer does."""

    def __init__(self, name, seed, fault):
        self.name, self.fault = name, fault
        self.model = model_of(name, seed)
        engine_model = model_of(name, seed).to(torch.bfloat16)
        engine_model.load_state_dict(self.model.state_dict())
        generator = torch.Generator().manual_seed(seed)
        self.sequences, self.rows, self.engine_logp = [], [], []
        for prompt in PROMPTS:
            engine = TransformersEngine(engine_model, 1, prompt + NEW)
            prompts = torch.randint(1, VOCABULARY, (1, prompt), generator=generator)
            tokens, logp, rows = engine.rollout(prompts, NEW, generator)
            self.sequences.append(tokens[0])
            self.engine_logp.append(logp[0])
            self.rows += rows
        self.layers = waymark.hf.layer_ids(self.model)
        self.lengths = [len(sequence) for sequence in self.sequences]
        self.plan = trainer.Layout(order="batch-major").plan(self.lengths)
        self.filled = self.plan.fill(self.rows, self.layers)

    def replay(self, filled=None):
        return waymark.hf.replay(self.model, self.plan, filled or self.filled)

    def divergence(self, logps):
        """(KL(engine | trainer) of a token, mean |dlogp| of the sampled ones)."""
        kl, dlogp = [], []
        for tokens, prompt, theirs, ours in zip(self.sequences, PROMPTS, self.engine_logp, logps):
            ours = ours[prompt - 1:-1].detach()
            kl.append((theirs.exp() * (theirs - ours)).sum(-1))
            at = tokens[prompt:, None]
            dlogp.append((theirs.gather(1, at) - ours.gather(1, at)).abs()[:, 0])
        return float(torch.cat(kl).mean()), float(torch.cat(dlogp).mean())

    def loss(self, logps):
        return -torch.cat([logp[:-1].gather(1, tokens[1:, None]) for logp, tokens in zip(logps, self.sequences)]).mean()

    def gates(self):
        return [0.0 if weight.grad is None else float(weight.grad.norm()) for name, weight in self.model.named_parameters() if name.endswith(("gate.weight", "router.weight"))]

    def with_missing(self):
        """The rows, of which every seventh of the second sequence is missing."""
        rows = list(self.rows)
        valid = np.arange(len(rows[1])) % 7 != 3
        rows[1] = waymark.Rows.from_array(rows[1].ids, num_experts=EXPERTS, layer_ids=self.layers, valid=valid)
        return rows

    def padded(self, side):
        case = Case(f"{self.name} {side}")
        batch = Batch(self.sequences, side)
        with torch.no_grad(), Watch(self.model) as native:
            native_logp = batch.logp(self.model)
        complete = self.filled
        case.require("rows of the engine are missing", int(complete.mask.sum()) == sum(self.lengths) - len(self.lengths))
        if self.fault == "shifted":
            complete = complete._replace(ids=np.roll(complete.ids, 1, axis=1))
        with self.replay(complete) as replaying, Watch(self.model) as replayed:
            logp = batch.logp(self.model)
            self.model.zero_grad()
            self.loss(logp).backward()
        alarms = [alarm.text for alarm in replaying.audit().alarms]
        case.require(f"false alarm: {alarms}", not alarms)
        rerouted = 0
        for b, rows in enumerate(self.rows):
            case.rows(batch.rows_of(replayed.sets(), b)[:, :-1], sets_of(rows))
            rerouted += int((batch.rows_of(native.sets(), b)[:, :-1] != sets_of(rows)).any(-1).sum())
        (kl, dlogp), (kl_replay, dlogp_replay) = self.divergence(native_logp), self.divergence(logp)
        pairs = len(self.layers) * (sum(self.lengths) - len(self.lengths))
        case.found |= dict(
            layer_ids=self.layers, pairs=pairs, rerouted=rerouted, rerouted_share=round(rerouted / pairs, 4), kl_native=kl, kl_replay=kl_replay,
            dlogp_native=dlogp, dlogp_replay=dlogp_replay, agreement=round(replaying.audit().agreement, 4), least_gate_gradient=min(self.gates()))
        case.require("nothing was rerouted without replay: the case shows nothing", rerouted > 0)
        case.require("KL is not less with replay", kl_replay < kl)
        case.require("a gate has no gradient", min(self.gates()) > 0)
        self.missing_rows(case, batch)
        return case.end()

    def missing_rows(self, case, batch):
        """Rows that are not replayed are routed as usual: the first router sees the same with or without replay."""
        filled = self.plan.fill(self.with_missing(), self.layers)
        if self.fault == "mask":
            filled = filled._replace(mask=self.filled.mask)
        case.require(f"other rows are missing: {filled.report}", sum(filled.report.missing.values()) == sum(np.arange(len(self.rows[1])) % 7 == 3))
        with torch.no_grad(), Watch(self.model) as native:
            batch.logp(self.model)
        with torch.no_grad(), self.replay(filled), Watch(self.model) as replayed:
            batch.logp(self.model)
        for b, rows in enumerate(self.with_missing()):
            valid = torch.from_numpy(np.append(rows.valid, False))  # the last token has no row
            ids = sets_of(rows)
            ours, usual = batch.rows_of(replayed.sets(), b), batch.rows_of(native.sets(), b)
            case.rows(ours[:, valid], ids[:, valid[:-1]])
            case.rows(ours[:1, ~valid], usual[:1, ~valid])
        padding = batch.mask.flatten() == 0
        case.rows(replayed.sets()[:1, padding], native.sets()[:1, padding])

    def packed(self):
        case = Case(f"{self.name} packed")
        plan = trainer.Layout().plan(self.lengths)
        filled = plan.fill(self.rows, self.layers)
        positions = torch.cat([torch.arange(length) for length in self.lengths])[None]
        with torch.no_grad(), waymark.hf.replay(self.model, plan, filled), Watch(self.model) as replayed:
            self.model(torch.cat(self.sequences)[None], position_ids=positions, use_cache=False)
        begin = 0
        for rows, length in zip(self.rows, self.lengths):
            case.rows(replayed.sets()[:, begin:begin + length - 1], sets_of(rows))
            begin += length
        return case.end()

    def own(self):
        case = Case(f"{self.name} own")
        batch = Batch(self.sequences, "left")
        self.model.zero_grad()
        with waymark.hf.record(self.model) as recorded, Watch(self.model) as native:
            logp = batch.logp(self.model)
            self.loss(logp).backward()
        gradients, own = gradients_of(self.model), recorded.rows(self.plan, version=7)
        for b, rows in enumerate(own):
            case.require("recorded rows are missing", len(rows) == self.lengths[b] and rows.valid.all() and rows.coverage()[0].version == 7)
            ids = torch.from_numpy(rows.astype(np.int64, layout="LTK"))
            case.rows(ids.sort(-1)[0], batch.rows_of(native.sets(), b))
        filled = self.plan.fill(own, self.layers)
        self.model.zero_grad()
        with self.replay(filled) as replaying:
            again = batch.logp(self.model)
            self.loss(again).backward()
        case.require("logits differ", all(torch.equal(a, b) for a, b in zip(logp, again)))
        far = farthest(gradients_of(self.model), gradients)
        case.found |= dict(gradients=len(gradients), gradients_differ_by=far, agreement=replaying.audit().agreement)
        case.require(f"gradients differ by {far}", far < 1e-5)
        case.require("own choices do not agree", replaying.audit().agreement == 1)
        return case.end()

    def checkpoint(self):
        case = Case(f"{self.name} checkpoint")
        batch = Batch(self.sequences, "left")
        ids = torch.from_numpy(self.filled.ids).sort(-1)[0]
        self.model.train()
        try:
            self.model.zero_grad()
            with self.replay():
                self.loss(batch.logp(self.model)).backward()
            gradients = gradients_of(self.model)
            for reentrant in (False, True):
                self.model.gradient_checkpointing_enable(dict(use_reentrant=reentrant))
                self.model.enable_input_require_grads()
                self.model.zero_grad()
                with self.replay() as replaying, Watch(self.model) as watched:
                    loss = self.loss(batch.logp(self.model))
                    forward = len(watched.given)
                    case.require("the routers ran twice in the forward", forward == len(self.layers))
                    if self.fault == "second":
                        replaying._filled = self.filled._replace(ids=np.roll(self.filled.ids, 1, axis=1))
                    loss.backward()
                case.require("nothing ran again", len(watched.given) == 2 * forward)
                again = watched.sets()[forward:].flip(0)  # the last layer first
                for b in range(len(self.lengths)):
                    at = slice(b * max(self.lengths), b * max(self.lengths) + self.lengths[b] - 1)
                    case.rows(batch.rows_of(again, b)[:, :-1], ids[:, at])
                far = farthest(gradients_of(self.model), gradients)
                case.require(f"gradients differ by {far}", far < 1e-4)
                case.found["gradients_differ_by"] = max(far, case.found.get("gradients_differ_by", 0))
                with case.refused("left before the backward", "backward()"), self.replay():
                    self.loss(batch.logp(self.model))
                for backwards in (1, 2):
                    refused = case.refused("left with one of two backwards", "got 1 forwards that wait")
                    with refused if backwards == 1 else contextlib.nullcontext(), self.replay():
                        losses = [self.loss(batch.logp(self.model)) for _ in range(2)]
                        for loss in losses[:backwards]:
                            self.model.zero_grad()
                            loss.backward()
                    far = farthest(gradients_of(self.model), gradients)
                    case.require(f"of two forwards, gradients differ by {far}", far < 1e-4)
                with torch.no_grad(), self.replay():
                    batch.logp(self.model)  # no backward will follow
        finally:
            self.model.gradient_checkpointing_disable()
            self.model.disable_input_require_grads()
            self.model.eval()
        return case.end()

    def audit(self):
        case = Case(f"{self.name} audit")
        batch = Batch(self.sequences, "left")
        swapped = self.filled.ids.copy()
        swapped[[0, 1]] = swapped[[1, 0]]
        others = self.plan.fill([self.rows[0], waymark.join(self.rows[2], self.rows[1][len(self.rows[2]):]), self.rows[1][:len(self.rows[2])]], self.layers)
        longest = max(self.lengths)
        major = self.filled.ids.reshape(len(self.layers), len(self.lengths), longest, TOP_K).transpose(0, 2, 1, 3).reshape(self.filled.ids.shape)
        planted = {
            Mistake.SHIFTED: np.roll(self.filled.ids, 1, axis=1), Mistake.LAYERS: swapped, Mistake.OTHER_SEQUENCE: others.ids,
            Mistake.SEQUENCE_MAJOR: np.ascontiguousarray(major),
        }
        clean = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        shares = case.found["agreement"] = {}
        for error, ids in [(None, self.filled.ids), *planted.items(), (Mistake.STALE_WEIGHTS, self.filled.ids)]:
            name = "clean" if error is None else error.name
            if error is Mistake.STALE_WEIGHTS:
                generator = torch.Generator().manual_seed(5)
                with torch.no_grad():
                    for weight in self.model.parameters():
                        if weight.dim() > 1:
                            weight += STALE * weight.std() * torch.randn(weight.shape, generator=generator)
            if self.fault == "unplanted":
                ids = self.filled.ids
            given = self.filled._replace(ids=ids)
            with torch.no_grad(), self.replay(given) as replaying:
                batch.logp(self.model)
            with torch.no_grad(), waymark.hf.record(self.model) as recorded:
                batch.logp(self.model)
            live, before = replaying.audit(), recorded.audit(self.plan, given)
            shares[name] = [round(before.agreement, 3), round(live.agreement, 3)]
            # Wrong experts change what later layers see, so that the error may get another name.
            case.require(f"{name} while replaying: {[alarm.text for alarm in live.alarms]}", bool(live.alarms) == (error is not None))
            named = [alarm.error for alarm in before.alarms]
            right = error in named if error is not None else not named
            case.require(f"{name}: {[alarm.text for alarm in before.alarms]} at {before.agreement:.3f}", right)
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(clean[name])
        return case.end()

    def compiled(self):
        case = Case(f"{self.name} compiled")
        batch = Batch(self.sequences, "right")

        def step(model, run, context):
            model.zero_grad()
            with context(model) as within:
                logp = batch.logp(run)
                self.loss(logp).backward()
            ids = torch.stack(within.ids) if context is waymark.hf.record else None
            return torch.cat(logp).detach(), gradients_of(model), ids

        contexts = {"replay": lambda model: waymark.hf.replay(model, self.plan, self.filled), "native": contextlib.nullcontext, "record": waymark.hf.record}
        expected = {name: step(self.model, self.model, context) for name, context in contexts.items()}
        case.require("replay changes nothing: the case shows nothing", not torch.equal(expected["replay"][0], expected["native"][0]))
        ways = {
            "torch.compile": lambda model: torch.compile(model, backend="eager"), "model.compile()": lambda model: model.compile(backend="eager"),
            "layers": lambda model: [layer.compile(backend="eager") for layer in model.model.layers] and None,
            "decoder": lambda model: model.model.compile(backend="eager")}
        for how, compiled in ways.items():
            for order in ("native replay replay record native", *(["replay native record"] if how == "torch.compile" else [])):
                torch._dynamo.reset()
                model = copy.deepcopy(self.model)
                run = compiled(model)
                run = model if run is None else run
                for turn, name in enumerate(order.split()):
                    logp, gradients, ids = step(model, run, contexts[name])
                    case.rows((logp - expected[name][0]).abs()[None] > 1e-3, torch.zeros(1, *logp.shape, dtype=torch.bool))
                    far = farthest(gradients, expected[name][1])
                    case.require(f"{how}, {order}, turn {turn}: gradients differ by {far}", far < 1e-3)
                    case.require(f"{how}, {order}, turn {turn}: other ids", ids is None or torch.equal(ids, expected[name][2]))
        torch._dynamo.reset()
        return case.end()

    def unlikely(self):
        case = Case(f"{self.name} unlikely")
        batch = Batch(self.sequences, "right")
        rng = np.random.default_rng(len(self.name))
        for scale in (20, 200):
            model = copy.deepcopy(self.model)
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight.mul_(scale if name.endswith(("gate.weight", "router.weight")) else 1)
            ids = [rng.random((length - 1, len(self.layers), EXPERTS)).argsort(-1)[..., :TOP_K] for length in self.lengths]
            rows = [waymark.Rows.from_array(one, num_experts=EXPERTS, layer_ids=self.layers) for one in ids]
            with waymark.hf.replay(model, self.plan, self.plan.fill(rows, self.layers)), Watch(model) as watched:
                logp = batch.logp(model)
                self.loss(logp).backward()
            for b, one in enumerate(ids):
                case.rows(batch.rows_of(watched.sets(), b)[:, :-1], torch.from_numpy(one).transpose(0, 1).sort(-1)[0])
            case.require(f"gate x {scale}: logits are not finite", bool(torch.cat(logp).isfinite().all()))
            case.require(f"gate x {scale}: gradients are not finite", all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None))
        return case.end()

    def restored(self):
        case = Case(f"{self.name} restored")
        batch = Batch(self.sequences, "right")
        hooks = lambda: [(type(module), len(module._forward_hooks) + len(module._forward_pre_hooks)) for module in self.model.modules()]
        with torch.no_grad():
            before, count = batch.logp(self.model), hooks()
            with self.replay():
                replayed = batch.logp(self.model)
                for second in (self.replay(), waymark.hf.record(self.model)):
                    with case.refused("two at once"), second:
                        pass
                still = batch.logp(self.model)
            after = batch.logp(self.model)
        case.require("replay changes nothing: the case shows nothing", not torch.equal(before[0], replayed[0]))
        case.require("a second context has ended the first", all(torch.equal(a, b) for a, b in zip(replayed, still)))
        case.require("logits are not those of before", all(torch.equal(a, b) for a, b in zip(before, after)))
        case.require("modules have another class or hooks", hooks() == count)
        return case.end()


def routers(seed):
    """Each router that is known, alone. With K = E all experts are chosen, so that the scores of given ones can be computed from those of
    all: their ratios are the router's."""
    case = Case("routers")
    config = types.SimpleNamespace(
        num_experts=EXPERTS, num_local_experts=EXPERTS, n_routed_experts=EXPERTS, num_experts_per_tok=TOP_K, hidden_size=48, norm_topk_prob=True,
        routed_scaling_factor=2.5, n_group=1, topk_group=1)
    where = {}
    models = pathlib.Path(transformers.__file__).parent / "models"
    for file in sorted(models.glob("*/modeling_*.py")):
        text = file.read_text()
        where |= {name: f"transformers.models.{file.parent.name}.{file.stem}" for name in _families.FAMILIES if f"class {name}(" in text}
    for name, weigh in _families.FAMILIES.items():
        if name not in where:
            case.found.setdefault("absent", []).append(name)
            continue
        for norm in (True, False):
            torch.manual_seed(seed)
            router = getattr(importlib.import_module(where[name]), name)(types.SimpleNamespace(**{**vars(config), "norm_topk_prob": norm}))
            for weight in [*router.parameters(), *router.buffers()]:
                torch.nn.init.normal_(weight.data, std=0.3)
            states = torch.randn(64, 48)
            with torch.no_grad():
                out = router(states)
                if not isinstance(out, tuple):  # waymark.hf refuses it; DeepseekV3's before transformers 5.13
                    case.found.setdefault("choose_elsewhere", []).append(name)
                    break
                logits, scores, ids = out
                ours = weigh(router, logits, ids)
                case.require(f"{name}: scores of its own choices", torch.allclose(ours, scores, 1e-5, 1e-7))
                router.top_k = EXPERTS
                logits, scores, everything = router(states)
                given = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in states])
                of_all = torch.zeros_like(scores).scatter_(1, everything, scores).gather(1, given)
                ours = weigh(router, logits, given)
                ratios = torch.allclose(ours / ours.sum(1, keepdim=True), of_all / of_all.sum(1, keepdim=True), 1e-4, 1e-6)
                case.require(f"{name}: scores of given experts", ratios)
                case.found["rows_compared"] += len(states)
                for scale in (1, 20, 200):  # the experts that it would choose last
                    far = (logits * scale).requires_grad_()
                    given = far.detach().argsort(-1)[:, :TOP_K]
                    exact = in_double(weigh, router, far.detach().double(), given)
                    with torch.enable_grad():
                        ours = weigh(router, far, given)
                        ours.pow(2).sum().backward()
                    close = torch.allclose(ours.detach().double(), exact, 1e-3, 1e-6)
                    case.require(f"{name} x {scale}: scores of the least likely experts", close and bool(far.grad.isfinite().all()))
    case.require("none of the routers is there", case.found["rows_compared"] > 0)
    return case.end()


def in_double(weigh, router, logits, ids):
    """What a router gives to the experts, by the formula of its family."""
    if weigh is _families._sigmoid:
        scores = logits.sigmoid().gather(1, ids)
        return (scores / (scores.sum(1, keepdim=True) + 1e-20) if router.norm_topk_prob else scores) * router.routed_scaling_factor
    if weigh is _families._softmax and not router.norm_topk_prob:
        return logits.softmax(1).gather(1, ids)
    return logits.gather(1, ids).softmax(1)


def detached(scores):
    return lambda router, logits, ids: scores(router, logits.detach(), ids)


def plant(fault):
    """The faults that are in waymark.hf; the others are in the cases."""
    if fault == "unhooked":  # nothing is replayed
        _replay.Replaying._routed = lambda self, n, router, out, again: self._own.__setitem__(n, out[2][:0]) or None
        _replay.Replaying.audit = lambda self, **more: types.SimpleNamespace(alarms=[], agreement=1)
    if fault == "side":  # left-padded batches as right-padded ones
        _replay.place_of = lambda plan, mask: None
    if fault == "detached":  # gates learn nothing
        for name, scores in _families.FAMILIES.items():
            _families.FAMILIES[name] = detached(scores)
    if fault == "bias":  # the choice's bias in the scores as well
        sigmoid = _families._sigmoid
        _families.FAMILIES["DeepseekV3TopkRouter"] = lambda router, logits, ids: sigmoid(router, logits + router.e_score_correction_bias, ids)
    if fault == "class":  # one stays
        leave = _replay._Hooked.__exit__
        _replay._Hooked.__exit__ = lambda self, *error: self._ends._exit_callbacks.popleft() and leave(self, *error)
    if fault == "underflow":
        _families.FAMILIES["Qwen3MoeTopKRouter"] = lambda router, logits, ids: (lambda p: p / p.sum(-1, keepdim=True))(logits.softmax(-1).gather(1, ids))


FAULTS = ("shifted", "mask", "second", "unplanted", "unhooked", "side", "detached", "bias", "class", "underflow")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", default=",".join(FAMILIES))
    parser.add_argument("--fault", choices=FAULTS, default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    plant(args.fault)
    print(f"seed {args.seed}, transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)
    cases = [routers(args.seed)]
    for name in args.family.split(","):
        try:
            family = Family(name, args.seed, args.fault)
        except Exception as error:
            cases.append({"name": name, "rows_compared": 0, "rows_wrong": 0, "why_not": [repr(error)]})
            continue
        jobs = dict(right=lambda: family.padded("right"), left=lambda: family.padded("left"), packed=family.packed, own=family.own,
                    checkpoint=family.checkpoint, audit=family.audit, compiled=family.compiled, unlikely=family.unlikely, restored=family.restored)
        if name != "Qwen3Moe":
            jobs.pop("compiled")
        for job, check in jobs.items():
            try:
                cases.append(check())
            except Exception as error:
                cases.append({"name": f"{name} {job}", "rows_compared": 0, "rows_wrong": 0, "why_not": [repr(error)]})
            print(json.dumps(cases[-1]), file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps({"part": "families", "transformers": transformers.__version__, "torch": torch.__version__, "cases": cases}))
    return int(any(case["why_not"] for case in cases))


if __name__ == "__main__":
    sys.exit(main())
