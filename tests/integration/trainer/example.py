#!/usr/bin/env python3
"""Runs docs/examples/replay_training.py on each of its engines, and looks at what it measures.

  example.py [--json] [--seed N] [--steps N] [--engine NAME,...] [--fault unhooked|float32|kl]

A row is a (token, layer) pair. In every step, whichever run trains on it: none may be rerouted with replay, and some must be
without it; and the mean KL(engine | trainer) must be less with replay. Of these steps the engine's rows are all there, and the
replay audit raises no alarm, or the program ends.
--fault unhooked replays nothing, float32 gives the engine the trainer's own arithmetic (transformers alone), kl exchanges the KL of
with and without replay: each must fail.
Prints {"part": "example", "cases": [...], "left_out"} with --json. transformers runs in this interpreter, vLLM in that of
WAYMARK_VLLM_VENV (../vllm/setup); `waymark` is taken from PYTHONPATH.
Exit status: 0 all right; 1 otherwise; 77 there is no torch or no transformers here, and no vLLM.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import types

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve()
TRAINING = HERE.parents[3] / "docs" / "examples" / "replay_training.py"
sys.path.insert(0, str(HERE.parents[1] / "vllm"))
from place import SKIPPED, Place  # noqa: E402

ENGINES = ("transformers", "vllm")
FAULTS = ("unhooked", "float32", "kl")
WITHOUT, WITH = "without replay", "with replay"


def plant(fault):
    """In the process of the program."""
    if fault == "unhooked":
        from waymark.hf import _replay
        _replay.Replaying._routed = lambda self, n, router, out, again: self._own.__setitem__(n, out[2][:0]) or None
        _replay.Replaying.audit = lambda self, **more: types.SimpleNamespace(alarms=[], agreement=1)
    if fault == "float32":
        import torch
        torch.nn.Module.bfloat16 = lambda self: self


def missing(engine):
    """Why it cannot run here, or nothing."""
    if engine == "vllm":
        return Place("0.32.0").missing()
    return next((f"no {name}" for name in ("torch", "transformers") if importlib.util.find_spec(name) is None), "")


def measure(engine, args, file):
    """(exit status, what it printed) of the program, whose figures are in `file`."""
    options = ["--engine", engine, "--steps", str(args.steps), "--seed", str(args.seed), "--json", str(file)]
    if engine == "vllm":
        place = Place("0.32.0")
        status, out, err = place.call(HERE, ["--inside", args.fault, *options], place.environment({}, "waymark"), args.timeout)
        return status, out + err
    done = subprocess.run([sys.executable, HERE, "--inside", args.fault, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=args.timeout, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout


def case(engine, args):
    found = {"name": engine, "rows_compared": 0, "rows_wrong": 0}
    why = []
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "measured.json"
        status, printed = measure(engine, args, file)
        if status:
            why.append(f"exit status {status}: {printed[-1500:]}")
        if not file.exists():
            return found | {"why_not": why or ["it measured nothing"]}
        runs = json.loads(file.read_text())["runs"]
    steps = [step for run in runs.values() for step in run]
    if args.fault == "kl":
        for step in steps:
            step[WITHOUT]["kl"], step[WITH]["kl"] = step[WITH]["kl"], step[WITHOUT]["kl"]
    rerouted = {name: [round(step[name]["rerouted"] * step[name]["pairs"]) for step in steps] for name in (WITHOUT, WITH)}
    found |= {"steps": len(steps), "rows_compared": sum(step[WITH]["pairs"] for step in steps), "rows_wrong": sum(rerouted[WITH]),
              "rows_rerouted_without_replay": sum(rerouted[WITHOUT])}
    for name, key in ((WITHOUT, "kl_native"), (WITH, "kl_replay")):
        found[key] = {trained: sum(step[name]["kl"] for step in run) / len(run) for trained, run in runs.items()}
    if sorted(runs) != [WITH, WITHOUT] or len(steps) != 2 * args.steps:
        why.append(f"runs {sorted(runs)} of {len(steps)} steps, wanted both, of {args.steps} each")
    if found["rows_wrong"]:
        why.append(f"{found['rows_wrong']} pairs are rerouted with replay")
    if not all(rerouted[WITHOUT]):
        why.append("in a step nothing is rerouted without replay: it shows nothing")
    why += [f"trained {trained}: KL is not less with replay, {found['kl_replay'][trained]:.2e} and {found['kl_native'][trained]:.2e}"
            for trained in runs if not found["kl_replay"][trained] < found["kl_native"][trained]]
    return found | {"why_not": why}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--engine", default=",".join(ENGINES), help="names with commas between them")
    parser.add_argument("--fault", choices=FAULTS, default="")
    parser.add_argument("--timeout", type=int, default=1200, help="seconds for one engine")
    args = parser.parse_args()
    if unknown := [name for name in args.engine.split(",") if name not in ENGINES]:
        parser.error(f"no engine {unknown[0]!r}; there are {', '.join(ENGINES)}")
    cases, left_out = [], {}
    for engine in args.engine.split(",") if args.fault != "float32" else ENGINES[:1]:
        if why := missing(engine):
            left_out[engine] = why
            continue
        cases.append(case(engine, args))
        print(json.dumps(cases[-1]), file=sys.stderr if args.json else sys.stdout, flush=True)
    for engine, why in left_out.items():
        print(f"left out: {engine}: {why}", file=sys.stderr)
    if args.json:
        print(json.dumps({"part": "example", "seed": args.seed, "cases": cases, "left_out": left_out}))
    if not cases:
        return SKIPPED
    return int(any(one["why_not"] for one in cases))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        plant(sys.argv[2])
        sys.argv = [str(TRAINING), *sys.argv[3:]]
        runpy.run_path(str(TRAINING), run_name="__main__")
    sys.exit(main())
