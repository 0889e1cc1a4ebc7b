"""Recomputes what engines did, with transformers, and compares: reference.py JOBS, a JSON list of {folder, model, spoil}.

One forward over all tokens of a request: nothing of SGLang and of Waymark runs here. Prints a line for each seed, "COMPARED " and JSON [folder,
seed, figures]: of the rows that were returned, under "own" of those in SGLang's own table, and under "each" of each request [name, rows,
wrong in SGLang's own table, wrong, missing].
"""
import json
import pathlib
import pickle
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "vllm"))

import compare
import numpy as np
import torch
from make_model import LAYERS, TOP_K
from transformers import AutoModelForCausalLM


class Reference:
    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.known, self.logits = {}, {}
        self.layers = []
        for layer in range(LAYERS):
            gate = getattr(self.model.model.layers[layer].mlp, "gate", None)
            if gate is not None:
                self.layers.append(layer)
                gate.register_forward_hook(lambda module, given, out, layer=layer: self.logits.__setitem__(layer, self.scores(module, given[0])))

    @staticmethod
    def scores(gate, hidden):
        """By which the experts are chosen."""
        logits = torch.nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]).float(), gate.weight.float())
        bias = getattr(gate, "e_score_correction_bias", None)
        return (logits.sigmoid() + bias if bias is not None else logits.softmax(-1)).detach()

    def expected(self, tokens):
        key = tuple(tokens)
        if key not in self.known:
            with torch.no_grad():
                self.model(input_ids=torch.tensor([tokens]))
            scores = torch.stack([self.logits[layer] for layer in self.layers], 1)[:-1]
            self.known[key] = compare.Expected(scores.topk(TOP_K, -1).indices.numpy(), scores.numpy(), self.layers, LAYERS)
        return self.known[key]


def reasons_of(record):
    """Of each row, as `waymark` in its meta_info says; None: valid."""
    told, rows = record["told"], record["rows"]
    found = [None] * len(rows)
    for begin, end, why in told["missing"] if told else ():
        found[begin - record["first"]:end - record["first"]] = [why] * (end - begin)
    return found


def versions_of(record):
    """Of each row, as Waymark says; -1: it is missing."""
    found = np.full(len(record["rows"]), -1)
    for begin, end, name in record["told"]["weights"]:
        found[begin - record["first"]:end - record["first"]] = int(name.split(":")[1])
    return found


def compared(reference, record, which):
    rows, expected = record[which], reference.expected(record["tokens"])
    if which == "own" or rows is None:
        return compare.compare(record["name"], rows, expected, record["first"])
    if record["versions"]:
        behind = compare.Expected(expected.ids[record["first"]:], expected.scores[record["first"]:], expected.layers, LAYERS)
        return compare.compare_versions(record["name"], rows, behind, versions_of(record) if record["told"] else None)
    result = compare.compare(record["name"], rows, expected, record["first"], reasons_of(record))
    if record["told"] is not None and record["told"]["rows"] != len(rows):
        result.rows_wrong += 1
        result.examples.append(f"{record['name']}: it says {record['told']['rows']} rows")
    return result


def main():
    for job in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        reference = Reference(job["model"])
        for seed, result in pickle.loads(pathlib.Path(job["folder"], "result.pickle").read_bytes()).items():
            print("COMPARED " + json.dumps([job["folder"], seed, figures(reference, result, job["spoil"])]), flush=True)


def figures(reference, result, spoil):
    total, own, unmarked, each = compare.Result(), compare.Result(), 0, []
    for record in result["records"]:
        if spoil and record["rows"] is not None:
            record["rows"] = np.roll(record["rows"], 1, 0)
        ours, theirs = compared(reference, record, "rows"), compare.Result()
        unmarked += record["told"] is None
        if record["own"] is not None and not record["versions"]:
            theirs = compared(reference, record, "own")
        each.append([record["name"], ours.rows_checked, theirs.rows_wrong, ours.rows_wrong, sum(ours.rows_missing.values())])
        total.add(ours)
        own.add(theirs)
    return total.as_dict() | result["counts"] | {"unmarked": unmarked, "own": own.as_dict(), "each": each}


if __name__ == "__main__":
    main()
