#!/usr/bin/env python3
"""What rows cost on their way to a trainer: Waymark's formats and those in use today, in one run.

Prints two tables of docs/evidence/measurements.md:

  1. 32,767 rows (L = 58, K = 8, E = 256, random ids) from rows to bytes and back to an array, as
     Waymark documents and as what trainers are sent today. Every answer is compared with the input.
  2. A trainer's rank of 4 pipeline stages and 4 context ranks, of 64 sequences of 32,767 rows: the
     bytes that it fetches by handle, and filling its tensors from rows in memory. L = 60, where
     stages are equal, and a rank has a sixteenth of the ids; L = 58, where they are not, with the
     default crc_layers, with 1, and with 1 and pages of 32 rows. Takes 4 GB. It fails if a rank
     gets another id than was published, or fetches more than its own ids + 5 % (L = 58 with pages
     of 16 rows and crc_layers = 1: + 8 %; with the default: anything).

Times are the thread's processor time, lower deciles: on a quiet machine this is the time on the
clock, on another it leaves out what others took. `waymark bench` measures documents, the set code
and the turns of a conversation.

  wire.py [--rank]     --rank: 2 alone
"""
import argparse
import base64
import functools
import io
import json
import math
import os
import pathlib
import platform
import sys
import time

import numpy as np
import waymark
from waymark import trainer

try:
    import msgpack
except ImportError:
    msgpack = None

LAYERS, TOP_K, EXPERTS, PAGE = 58, 8, 256, 16
LONG = 32767


def make_ids(rows, layers, top_k, experts, seed):
    """[rows, layers, K] uint8 of K distinct experts, ascending."""
    random = np.random.default_rng(seed)
    keys = random.random((rows * layers, experts), np.float32)
    ids = np.argpartition(keys, top_k, axis=1)[:, :top_k]
    return np.sort(ids, axis=1).astype(np.uint8).reshape(rows, layers, top_k)


def make_rows(ids, experts, page=PAGE):
    infos = np.zeros(len(ids), waymark.row_info_dtype)
    infos["step"] = np.arange(1, len(ids) + 1)
    infos["version"] = 1
    _, layers, top_k = ids.shape
    return waymark.Rows(
        waymark.Shape(layers, top_k, experts, page, 0, 0, tuple(range(layers))), 0, ids, infos)


# ---- formats: (name, rows -> bytes, bytes -> array, least number of runs)

def to_npy(ids):
    file = io.BytesIO()
    np.save(file, ids)
    return file.getvalue()


def in_json(data):
    return json.dumps({"routed_experts": base64.b64encode(data).decode()}).encode()


def out_of_json(data):
    return base64.b64decode(json.loads(data)["routed_experts"])


def int32_to_json(ids):
    return in_json(ids.astype(np.int32).tobytes())


def int32_from_json(data, shape):
    return np.frombuffer(out_of_json(data), np.int32).reshape(shape)


def waymark_ids(data):
    return waymark.from_bytes(data).read(dtype=np.uint8, fill="zeros")


def waymark_array(words, said, data):
    return waymark.read(data, words, num_experts=EXPERTS, **{"moe_layers": "all", **said}).ids


def formats(rows, ids):
    yield "Waymark raw", rows.to_bytes, waymark_ids, 40
    yield "Waymark set code", lambda: rows.to_bytes(codec="set"), waymark_ids, 40
    yield ("Waymark raw, base64 in JSON", lambda: in_json(rows.to_bytes()),
           lambda data: waymark_ids(out_of_json(data)), 10)
    yield ("Waymark set code, base64 in JSON", lambda: in_json(rows.to_bytes(codec="set")),
           lambda data: waymark_ids(out_of_json(data)), 10)
    yield (".npy of uint8, base64 in JSON", lambda: in_json(to_npy(ids)),
           lambda data: np.load(io.BytesIO(out_of_json(data))), 10)
    yield ("int32, base64 in JSON", lambda: int32_to_json(ids),
           lambda data: int32_from_json(data, ids.shape), 10)
    if msgpack is not None:
        yield ("nested lists, msgpack", lambda: msgpack.packb(ids.tolist()),
               lambda data: np.array(msgpack.unpackb(data), np.int32), 3)
    yield ("nested lists, JSON", lambda: json.dumps(ids.tolist()).encode(),
           lambda data: np.array(json.loads(data), np.int32), 3)
    for name, words, said in (
            (".npy of uint8, base64 in JSON", "vllm", {"layers": "moe"}),
            ("int32, base64 in JSON", "sglang", {"layers": "moe", "num_layers": LAYERS,
                                                 "top_k": TOP_K}),
            ("nested lists, JSON", "megatron", {})):
        yield ("%s, by Waymark" % name,
               functools.partial(rows.to_format, words, layers="moe", notes=[]),
               functools.partial(waymark_array, words, said), 5)


def cpu_ms(call):
    begin = time.thread_time()
    result = call()
    return result, (time.thread_time() - begin) * 1e3


def decile(times):
    return sorted(times)[len(times) // 10]


def measure(name, write, read, ids, runs):
    """(bytes, ms to write, ms to read), after a run that does not count."""
    writing, reading = [], []
    for _ in range(runs + 1):
        data, took = cpu_ms(write)
        writing.append(took)
        back, took = cpu_ms(lambda: read(data))
        reading.append(took)
        if not np.array_equal(back, ids):
            sys.exit("wire.py: %s gave back other ids than it was given" % name)
        size = len(data)
        del data, back
    return size, decile(writing[1:]), decile(reading[1:])


def table(head, lines):
    print("\n| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print(flush=True)


def number(value):
    """Three digits."""
    if value >= 100:
        return "{:,.0f}".format(value)
    return "%.3g" % value if value >= 1e-3 or value == 0 else "%.1e" % value


def print_formats():
    ids = make_ids(LONG, LAYERS, TOP_K, EXPERTS, 1)
    rows = make_rows(ids, EXPERTS)
    lines, raw = [], None
    for name, write, read, runs in formats(rows, ids):
        size, writing, reading = measure(name, write, read, ids, runs)
        both = writing + reading
        raw = raw or both
        lines.append((name, number(size / 1e6), number(writing), number(reading), number(both),
                      "%sx" % number(both / raw)))
    out, source = np.empty_like(ids), ids.copy()
    copy = decile([cpu_ms(lambda: np.copyto(out, source))[1] for _ in range(40)])
    fresh = decile([cpu_ms(ids.copy)[1] for _ in range(40)])
    print("\n### 1. %d rows" % LONG)
    table(("format", "MB", "write, ms", "read, ms", "both", "times raw"), lines)
    print("A copy of the ids (%s MB): %s ms; to a new array: %s ms." %
          (number(ids.nbytes / 1e6), number(copy), number(fresh)))
    if msgpack is None:
        print("The package msgpack is not there: its line is left out.")


# ---- a trainer's rank

SEQUENCES, CONTEXT = 64, 4
# (where stages are cut, crc_layers, rows of a page, the most that ranks fetch beyond their own ids)
RANKS = (
    ((0, 15, 30, 45, 60), None, 16, 0.05),
    ((0, 15, 29, 44, 58), None, 16, math.inf),
    ((0, 15, 29, 44, 58), 1, 16, 0.08),
    ((0, 15, 29, 44, 58), 1, 32, 0.05),
)


def quick_ids(sequence, num_layers):
    """[LONG, L, K] uint8: distinct in a layer, because 31 is odd; other ids in every row."""
    at = np.arange(LONG * num_layers, dtype=np.uint32) * np.uint32(2654435761)
    first = (at + np.uint32(sequence * 374761393 % (1 << 32))) >> np.uint32(13)
    others = np.arange(TOP_K, dtype=np.uint32) * 31
    return (first.reshape(LONG, num_layers, 1) + others).astype(np.uint8)


def check_rank(plan, filled, layers, sequence, num_layers):
    """The rows of the last sequence, by numpy: those of others are as far as counts say."""
    ids = quick_ids(sequence, num_layers)
    for part in plan.segments:
        if part.sequence != sequence:
            continue
        count = min(part.count, LONG - part.position)  # the last token has no row
        rows = slice(part.row, part.row + count)
        wanted = ids[part.position:part.position + count, layers.start:layers.stop]
        if not np.array_equal(filled.ids[:, rows].transpose(1, 0, 2), wanted):
            sys.exit("wire.py: a trainer's rank got other ids than were published")
        if not filled.mask[rows].all():
            sys.exit("wire.py: a row of a trainer's rank is missing")


def rank_lines(cuts, crc_layers, page, slack):
    """Lines of the table of a rank of each stage, and of those that fetch too much."""
    num_layers = cuts[-1]
    source = waymark.MemorySource(2 << 30)
    shape = waymark.Shape(num_layers, TOP_K, EXPERTS, page, 0, 0, tuple(range(num_layers)))
    publisher = waymark.Publisher(source, shape, crc_layers=crc_layers)
    rows, handles = [], []
    for sequence in range(SEQUENCES):
        rows.append(make_rows(quick_ids(sequence, num_layers), EXPERTS, page))
        handles.append(publisher.publish(rows[-1]).wait())
    batch = SEQUENCES * LONG * num_layers * TOP_K
    lengths = [LONG + 1] * SEQUENCES
    lines, too_much = [], []
    for stage, (begin, end) in enumerate(zip(cuts, cuts[1:])):
        rank = (stage + 1) % CONTEXT
        plan = trainer.Layout(context=(rank, CONTEXT)).plan(lengths)
        layers = range(begin, end)
        fetcher = waymark.Fetcher(source, cache_bytes=1 << 20)
        filled = plan.fill([(fetcher, bytes(handle)) for handle in handles], layers, dtype=np.int32)
        check_rank(plan, filled, layers, SEQUENCES - 1, num_layers)
        fetched = fetcher.counts().fetched_bytes
        beyond = fetched / (batch * len(layers) / num_layers / CONTEXT) - 1
        line = [str(num_layers), str(crc_layers or "default"), str(page),
                "%d to %d" % (begin, end - 1), str(rank), number(fetched / 1e6),
                "1/%.2f" % (batch / fetched), "%.1f %%" % (100 * beyond)]
        if beyond > slack:
            too_much.append(line)
        del filled
        for dtype in (np.int64, np.int32):
            out = np.zeros((len(layers), plan.rows, TOP_K), dtype)
            copy, copied = np.ones_like(out), np.zeros_like(out)
            filling, copying = [], []
            for _ in range(5):
                filled, took = cpu_ms(lambda: plan.fill(rows, layers, out=out))
                filling.append(took)
                copying.append(cpu_ms(lambda: np.copyto(copied, copy))[1])
            check_rank(plan, filled, layers, SEQUENCES - 1, num_layers)
            line.append("%s: %.2f" % (number(min(filling)), min(filling) / min(copying)))
        lines.append(line)
    return lines, too_much


def print_rank():
    lines, too_much = [], []
    for setting in RANKS:
        of_stages, failed = rank_lines(*setting)
        lines += of_stages
        too_much += failed
    print("\n### 2. A rank of 4 stages and 4 context ranks; %d sequences of %d rows" %
          (SEQUENCES, LONG))
    table(("L", "crc_layers", "rows of a page", "layers", "context rank", "fetched, MB",
           "of all ids", "beyond its own", "int64 from rows, ms: memcpys", "int32"), lines)
    if too_much:
        sys.exit("wire.py: these ranks fetched too much: %s" % too_much)


def processor():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    except OSError:
        pass
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rank", action="store_true", help="part 2 alone")
    args = parser.parse_args()
    print("%s, %d processors, load %.1f; CPython %s, numpy %s" %
          (processor(), os.cpu_count(), os.getloadavg()[0], platform.python_version(),
           np.__version__))
    if not args.rank:
        print_formats()
    print_rank()


if __name__ == "__main__":
    main()
