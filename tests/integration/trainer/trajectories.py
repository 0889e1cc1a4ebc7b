#!/usr/bin/env python3
"""Assembles conversations of a real vLLM, whose weights change from turn to turn, and checks every row.

  trajectories.py [--json] [--seed N] [--requests N] [--fault tokens|newest]

A conversation has four turns. Between them its end is cut, tokenised anew or goes on with tokens of a tool, a turn is
repeated, a rollout goes on as it is; blocks are too few for all, so that prompts are computed again by newer
weights. What vLLM returned of each request is a trainer.Part, and each conversation a trainer.Trajectory. Its rows are
compared with a recompute of the whole sequence in another engine, by the weights that sampled the next token
(../vllm/compare.py, compare_versions).

--fault tokens uses the rows without a look at their tokens, --fault newest those of the newest weights: both must fail.
Prints {"part": "trajectories", "cases": [...]} with --json. Takes vLLM from WAYMARK_VLLM_VENV (../vllm/setup), and `waymark`
from PYTHONPATH. Exit status: 0 all right; 1 rows are wrong; 77 there is no vLLM here.
"""
import argparse
import json
import pathlib
import pickle
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
VLLM = pathlib.Path(__file__).resolve().parents[1] / "vllm"
sys.path.insert(0, str(VLLM))
TURNS = 4
EXPERTS = 16  # of make_model.py


def engine(spec_path, result_path):
    """Runs in vLLM's environment: the conversations, and their records for the recompute."""
    import random

    import numpy as np
    import vllm
    import waymark
    from waymark import trainer
    from workloads import VOCABULARY, roll_last_router

    spec = json.loads(pathlib.Path(spec_path).read_text())
    rng = random.Random(spec["seed"])
    llm = vllm.LLM(model=spec["model"], skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=1024,
                   seed=spec["seed"], enable_prefix_caching=True, block_size=32, max_num_batched_tokens=128, max_num_seqs=16,
                   num_gpu_blocks_override=64)

    def tokens(count):
        return [rng.choice(VOCABULARY) for _ in range(count)]

    def sample(prompts):
        params = vllm.SamplingParams(temperature=1.0, max_tokens=rng.randrange(10, 40), ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        for prompt, output in zip(prompts, outputs):
            completion = output.outputs[0]
            ids = completion.routed_experts
            rows = waymark.Rows.from_array(ids, num_experts=EXPERTS, layer_ids=range(ids.shape[1]), valid=(ids >= 0).all((1, 2)))
            own = [*prompt, *completion.token_ids]
            yield own, trainer.Part(rows, None if spec["fault"] == "tokens" else own, len(prompt))

    counts = {"given_up": 0, "cut_or_changed": 0, "rows_of_parts": 0}
    # A conversation: its tokens, the weights that sampled each (None: it was given), its parts.
    talks = [(prompt, [None] * len(prompt), []) for prompt in (tokens(rng.randrange(20, 90)) for _ in range(spec["requests"]))]
    for turn in range(TURNS):
        if turn:
            llm.apply_model(roll_last_router)
            llm.llm_engine.set_weight_version(f"weights-{turn}")
        again = [talk for talk in talks if rng.random() < 0.3]  # attempts that are given up
        for talk, (_, part) in zip(again, sample([talk[0] for talk in again])):
            talk[2].append(part)
            counts["given_up"] += 1
        for talk, (own, part) in zip(talks, sample([talk[0] for talk in talks])):
            own_sampled = talk[1] + [turn] * (len(own) - len(talk[0]))
            kind = rng.randrange(4) if turn + 1 < TURNS else 0  # 0: it goes on as it is
            keep = len(own) - (rng.randrange(1, 8) if kind > 1 else 0)
            counts["cut_or_changed"] += kind > 1
            new = tokens(rng.randrange(1, 20)) if kind else []
            talk[2].append(part)
            talk[0][:], talk[1][:] = own[:keep] + new, own_sampled[:keep] + [None] * len(new)
    records = []
    for i, (own, sampled, parts) in enumerate(talks):
        trajectory = trainer.Trajectory(own, parts, choose="newest" if spec["fault"] == "newest" else "sampled")
        rows = trajectory.rows(last=len(own) - 1)
        ids = rows.astype(np.int64)
        counts["rows_of_parts"] += sum(part.last for part in parts)
        records.append({"name": f"conversation {i}", "tokens": own, "lora": False, "rows": ids, "first": 0, "reasons": None,
                        "versions": True, "sampled_versions": sampled[1:]})
    with open(result_path, "wb") as file:
        pickle.dump({"records": records, "counts": counts}, file)


def main():
    from place import SKIPPED, Place

    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--fault", choices=("tokens", "newest"), default="")
    args = parser.parse_args()
    place = Place("0.32.0")
    if why := place.missing():
        print(why, file=sys.stderr)
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        call = "import make_model as m; m.write_model('qwen3_moe', 'model')"
        subprocess.run([place.python, "-c", call], check=True, cwd=folder, env=place.environment({}, "none"))
        spec, result, job = folder / "spec.json", folder / "result.pickle", folder / "job.json"
        spec.write_text(json.dumps({**vars(args), "model": str(folder / "model")}))
        here = pathlib.Path(__file__).resolve()
        status, out, err = place.call(here, ["--engine", spec, result], place.environment({}, "waymark"), 1200)
        if status:
            sys.exit(out + err)
        job.write_text(json.dumps({"model": str(folder / "model"), "lora": None, "spoil": False, "results": {"trajectories": str(result)}}))
        status, out, err = place.call("reference.py", [job], place.environment({}, "none"), 1200)
        if status:
            sys.exit(out + err)
    found = json.loads(next(line[9:] for line in out.splitlines() if line.startswith("COMPARED ")))[1]
    found["rows_compared"] = found["rows_checked"]
    wrong = found["rows_wrong"] + sum(found["rows_missing"].values())
    answer = {"part": "trajectories", "cases": [{"name": "vllm", **found}]}
    print(json.dumps(answer) if args.json else f"{found['rows_checked']} rows, {found['rows_wrong']} wrong")
    return int(wrong > 0 or found["rows_checked"] == 0)


if __name__ == "__main__":
    sys.exit(engine(*sys.argv[2:]) if sys.argv[1:2] == ["--engine"] else main())
