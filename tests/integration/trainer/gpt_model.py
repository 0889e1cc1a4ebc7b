#!/usr/bin/env python3
"""waymark.megatron.replay in real GPTModels of megatron-core on the CPU, with gloo between ranks.

  gpt_model.py [--case NAME;...] [--version 0.18.2,0.19.2] [--seed N] [--fault shift|layers|order] [--json]

`one` is the reference: one process records the routing of 4 micro-batches of 3 padded sequences (8 layers, the first two
dense, K = 4 of 16) and hands it to the other cases, whose ranks have their part of the same weights. Every rank

  - routes as usual, and what its routers choose is compared, row by row, with the reference as `Plan.fill` lays it out
    for this rank: Megatron's own cut and order against ours;
  - replays the reference with weights that are off, and what its routers choose (their routing maps, taken by a hook) is
    compared, row by row, with the reference.

Other cases plant the errors that Megatron takes without a word; a case says how many were refused, or named by the audit.
--fault plants one in all rows that are given to `fill`: the run must fail.

Takes the environment as `run` does: WAYMARK_MEGATRON, and `waymark` from PYTHONPATH.
Exit status: 0 no row is wrong, and every planted error was noticed; 1 otherwise; 2 usage; 77 there is no megatron-core here.
"""
import argparse
import json
import pathlib
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

from place import HERE, SKIPPED, environment, missing, python

RELEASED = "0.18.2,0.19.2"
FAULTS = ("shift", "layers", "order")
# Name of a case: function of gpt_rank.py, ranks, options of the parallel state.
CASES = {
    "one": ("one", 1, {}),
    "recompute": ("recompute", 1, {}),
    "groups, sigmoid, bias": ("groups", 1, {}),
    "audit": ("audit", 1, {}),
    "silent errors": ("silent_errors", 1, {}),
    "draft layers": ("draft_layers", 1, {}),
    "layers of stages": ("stages", 1, {}),
    "tensor 2, sequence parallel": ("cut", 2, {"tensor": 2, "sequence_parallel": True}),
    "tensor 2": ("cut", 2, {"tensor": 2}),
    "expert 2": ("cut", 2, {"expert": 2}),
    "load of experts, expert 4": ("load_of_experts", 4, {"expert": 4}),
    "pipeline 2": ("pipeline", 2, {"pipeline": 2}),
    "pipeline 2, recompute": ("pipeline", 2, {"pipeline": 2, "recompute": True}),
    "pipeline 2, virtual 2": ("pipeline", 2, {"pipeline": 2, "virtual": 2}),
    "pipeline 2, virtual 2, made in reverse": ("pipeline", 2, {"pipeline": 2, "virtual": 2, "reverse": True}),
    "pipeline 2, virtual 2, recompute": ("pipeline", 2, {"pipeline": 2, "virtual": 2, "recompute": True}),
    "tensor 2, pipeline 2, recompute": ("pipeline", 4, {"tensor": 2, "sequence_parallel": True, "pipeline": 2, "recompute": True}),
    "context 2, MoE layers": ("context", 2, {"context": 2}),
    "context 2, tensor 2, MoE layers": ("context", 4, {"context": 2, "tensor": 2, "sequence_parallel": True}),
    "packed, context 2, MoE layers": ("packed", 2, {"context": 2}),
    "packed, context 2, tensor 2, MoE layers": ("packed", 4, {"context": 2, "tensor": 2, "sequence_parallel": True}),
}


def start(version, job, ranks, timeout):
    """What the ranks found, or {"error"}."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        job = job | {"port": free.getsockname()[1], "ranks": ranks}
    processes = [subprocess.Popen([python(), HERE / "gpt_rank.py", json.dumps(job | {"rank": rank})], env=environment(version),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
    found, errors = [], []
    for process in processes:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for one in processes:
                one.kill()
            out, err = process.communicate()
            err += f"it did not end in {timeout} s"
        answers = [json.loads(line[6:]) for line in out.splitlines() if line.startswith("FOUND ")]
        found += answers
        if not answers:
            errors.append(err[-3000:])
    return {"error": errors[0]} if errors else found


def case(name, version, args, folder):
    """{"name", "version", "rows_compared", "rows_wrong", ...}: the sums of the ranks; what is a list, of the first."""
    function, ranks, options = CASES[name]
    job = {"case": function, "seed": args.seed, "fault": args.fault, "folder": str(folder), **options}
    found = start(version, job, ranks, args.timeout)
    result = {"name": f"{name} ({version})", "rows_compared": 0, "rows_wrong": 0}
    if isinstance(found, dict):
        return result | {"why_not": [found["error"]]}
    for key, value in found[0].items():
        number = isinstance(value, int) and not isinstance(value, bool)
        result[key] = sum(one[key] for one in found) if number else value
    result["why_not"] = sorted({why for one in found for why in one["why_not"]})
    if result["rows_wrong"]:
        result["why_not"].append(f"{result['rows_wrong']} rows are wrong")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="", help="names of cases, or parts of names, with ; between them")
    parser.add_argument("--version", default=RELEASED, help="with commas between them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS, default="")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one case")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    parts = [part.strip() for part in args.case.split(";")]
    names = [name for name in CASES if any(part == name or (part not in CASES and part in name) for part in parts)]
    if not names:
        parser.error(f"no case {args.case!r}; there are {'; '.join(CASES)}")
    cases = []
    for version in args.version.split(","):
        if why := missing(version):
            print(f"SKIPPED: {why}", file=sys.stderr)
            return SKIPPED
        with tempfile.TemporaryDirectory(prefix="waymark_trainer_") as folder:
            for name in dict.fromkeys(["one", *names]):
                cases.append(case(name, version, args, pathlib.Path(folder)))
                shown = {key: value for key, value in cases[-1].items() if key not in ("name", "why_not")}
                print(f"{cases[-1]['name']}: {'; '.join(cases[-1]['why_not']) or 'right'} {json.dumps(shown)}",
                      file=sys.stderr if args.json else sys.stdout, flush=True)
                if name == "one" and cases[-1]["why_not"] and not args.fault:
                    break  # there is no reference
    if args.json:
        print(json.dumps({"part": "gpt_model", "seed": args.seed, "cases": cases}, indent=1))
    return int(any(one["why_not"] for one in cases))


if __name__ == "__main__":
    sys.exit(main())
