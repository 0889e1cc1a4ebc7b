#!/usr/bin/env python3
"""What rows cost on their way to a trainer: Waymark's formats and those in use today, in one run.

Prints the tables of the wire in docs/measurements.md:

  1. 32,767 rows (L = 58, K = 8, E = 256, random ids) from rows to bytes and back to an array, as
     Waymark documents and as what trainers are sent today. Every answer is compared with the input.
  2. 100 turns of a conversation, and a GRPO group of 16 over a prompt of 8192 rows.
  3. The set code for the (E, K) of known models.
  4. Real routing: megatron_16b_routing in the folder that WAYMARK_DATA names, if it is there.
  5. The budgets.
  6. A trainer's rank of 4 pipeline stages and 4 context ranks, of 64 sequences of 32,767 rows: the
     bytes that it fetches by handle, and filling its tensors from rows in memory. L = 60, where
     stages are equal, and a rank has a sixteenth of the ids; L = 58, where they are not, with the
     default crc_layers, with 1, and with 1 and pages of 32 rows. Takes 4 GB. It fails if a rank
     gets another id than was published, or fetches more than its own ids + 5 % (L = 58 with pages
     of 16 rows and crc_layers = 1: + 8 %; with the default: anything).
  7. crc_layers: what it costs the writer and the readers of a document of 32,767 rows, L = 58.

1, 4, 6 and 7 are measured here through the Python module waymark, the rest by waymark_bench. Times of
what runs on one thread are that thread's processor time, lower deciles: on a quiet machine this is
the time on the clock, on another it leaves out what others took. Turns and groups have threads:
theirs is the time on the clock.

  wire.py BENCH      BENCH: the program waymark_bench of a release build
  wire.py --rank     6 and 7 alone
"""
import argparse
import base64
import functools
import io
import json
import lzma
import math
import os
import pathlib
import platform
import subprocess
import sys
import time
import zlib

import numpy as np
import waymark
from waymark import trainer

try:
    import msgpack
except ImportError:
    msgpack = None

LAYERS, TOP_K, EXPERTS, PAGE = 58, 8, 256, 16
LONG = 32767
TURNS, SAMPLES, PROMPT, OWN = 100, 16, 8192, 512
CODES = ("E128_K8_l3_ranked", "E256_K8_l4_ranked", "E384_K8_l4_ranked", "E512_K10_l4_ranked",
         "E512_K22_l4_unary")
BACKENDS = ("avx2", "scalar")


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
    return waymark.read(data, words, num_experts=EXPERTS, **said).ids


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


# ---- turns and groups

def resend(requests):
    """(MB, ms) of whole arrays as int32 in base64 in JSON; requests: numbers of rows."""
    ids = make_ids(max(requests), LAYERS, TOP_K, EXPERTS, 2)
    moved = took = 0
    for rows in requests:
        data, writing = cpu_ms(lambda: int32_to_json(ids[:rows]))
        back, reading = cpu_ms(lambda: int32_from_json(data, (rows, LAYERS, TOP_K)))
        if not np.array_equal(back, ids[:rows]):
            sys.exit("wire.py: int32 gave back other ids than it was given")
        moved += len(data)
        took += writing + reading
    return moved / 1e6, took


def print_turns(bench):
    turns = [(LONG + 1) * (turn + 1) // TURNS - 1 for turn in range(TURNS)]
    lines = []
    for work, requests, unique in (("turns", turns, turns[-1]),
                                   ("group", [PROMPT + OWN] * SAMPLES, PROMPT + SAMPLES * OWN)):
        unique *= LAYERS * TOP_K / 1e6
        for name, way in (("Waymark by handle, all rows read", "handle"),
                          ("Waymark by handle, new rows read", "handle_new"),
                          ("by handle, new rows read, set code", "handle_new_sets"),
                          ("all rows again, Waymark raw", "all"),
                          ("new rows only, Waymark raw", "new")):
            run = bench.get("Move/%s_%s" % (work, way))
            if run is not None:
                lines.append((work, name, number(run["MB"]), "%.3gx" % (run["MB"] / unique),
                              number(run["ms"])))
        moved, took = resend(requests)
        lines.append((work, "all rows again, int32 in base64", number(moved),
                      "%.3gx" % (moved / unique), number(took)))
    print("\n### 2. %d turns that end with %d rows; %d samples of %d + %d rows" %
          (TURNS, LONG, SAMPLES, PROMPT, OWN))
    table(("work", "way", "MB", "of the unique rows", "ms"), lines)


# ---- set code, real routing, budgets

def print_codes(bench):
    lines = []
    for code in CODES:
        runs = {backend: bench.get("SetCode/%s/%s" % (code, backend)) for backend in BACKENDS}
        best = next((run for run in runs.values() if run is not None), None)
        if best is None:
            continue
        line = [code.replace("_", " "), "%.0f, %.1f" % (best["bits"], best["bound"]),
                "%s -> %s" % (number(best["raw_MB"]), number(best["MB"]))]
        for run in runs.values():
            line.append("-" if run is None else
                        "%.1f / %.1f" % (run["encode_ns"], run["decode_ns"]))
        line += ["%s / %s" % (number(best["encode_MBps"]), number(best["decode_MBps"])),
                 number(best["both_ms"]), number(best["both_memcpys"])]
        lines.append(line)
    print("\n### 3. Set code, 32,768 rows, one core; encode / decode")
    table(("code", "bits, log2 C(E, K)", "MB, ids -> codes") +
          tuple("%s, ns per code" % backend for backend in BACKENDS) +
          ("best, MB of ids per second", "both ways, ms", "memcpys"), lines)


def adaptive_bits(ids, experts):
    """Bits a set of a code that learns how often each layer chooses each expert, row by row: sets
    have the chance of independent choices, given that they are K. The best of three priors (worth
    so many rows of equal chances), known only afterwards."""
    rows, layers, top_k = ids.shape
    chosen = np.zeros((rows, layers, experts), bool)
    np.put_along_axis(chosen, ids.astype(np.int64), True, axis=2)
    before = np.cumsum(chosen, axis=0) - chosen
    seen = np.arange(rows)[:, None, None]
    answers = []
    for prior in (4, 16, 64):
        chance = (before + prior * top_k / experts) / (seen + prior)
        odds = chance / (1 - chance)
        # all_sets[k]: the sum over all sets of k experts of the product of their odds.
        all_sets = np.zeros((top_k + 1, rows, layers))
        all_sets[0] = 1
        for expert in range(experts):
            all_sets[1:] += all_sets[:-1] * odds[:, :, expert]
        bits = np.log2(all_sets[top_k]) - np.where(chosen, np.log2(odds), 0).sum(axis=2)
        answers.append(float(bits.mean()))
    return min(answers)


def real_routing(path):
    ids = np.sort(np.load(path), axis=2)
    _, layers, top_k = ids.shape
    experts = 64
    lines = []
    for name, these in ((path.stem, ids),
                        ("random ids", make_ids(len(ids), layers, top_k, experts, 3))):
        rows = make_rows(these, experts)
        if not np.array_equal(waymark_ids(rows.to_bytes(codec="set")), these):
            sys.exit("wire.py: the set code gave back other ids than it was given")
        codes = rows.to_bytes(codec="set", steps=False)
        raw = rows.to_bytes(ordered=False, steps=False)
        long_ids = np.ascontiguousarray(np.tile(these, (64, 1, 1)))
        long_rows = make_rows(long_ids, experts)
        size, writing, reading = measure(name, lambda: long_rows.to_bytes(codec="set"),
                                         waymark_ids, long_ids, 20)
        sets = len(ids) * layers
        lines.append((name, str(len(raw)), str(len(codes)), "%.1f" % (size * 8 / sets / 64),
                      "%.1f" % math.log2(math.comb(experts, top_k)),
                      "%.1f" % adaptive_bits(these, experts),
                      "%.1f" % (len(lzma.compress(raw)) * 8 / sets),
                      "%.1f" % (len(zlib.compress(codes, 9)) * 8 / sets),
                      "%.1f / %.1f" % tuple(t * 1e6 / sets / 64 for t in (writing, reading))))
    return lines


def print_real():
    print("\n### 4. Real routing")
    folder = pathlib.Path(os.environ.get("WAYMARK_DATA", "")) / "megatron_16b_routing"
    paths = sorted(folder.glob("*.npy")) if "WAYMARK_DATA" in os.environ else []
    if not paths:
        print("\nWAYMARK_DATA names no folder with megatron_16b_routing: left out.")
        return
    table(("routing (L = 27, E = 64, K = 6)", "raw document, bytes", "set code",
           "64 times the rows: bits per set", "log2 C(E, K)", "adaptive frequencies",
           "xz of the raw document", "zlib of the set code's", "write / read, ns per set"),
          [line for path in paths for line in real_routing(path)])


def print_budgets(bench):
    lines = []
    for name, of, budget_ms, budget_mb in (
            ("raw, memory used before", "raw_round_trip", 12, 15.2),
            ("raw, all memory new", "raw_round_trip_anew", 12, 15.2),
            ("raw, write alone", "raw_write_into", None, None),
            ("raw, read alone", "raw_read_into", None, None),
            ("set code, memory used before", "sets_round_trip", 30, 12.2)):
        run = bench["Document/" + of]
        lines.append(("document of 32k rows, " + name, "%s ms" % number(run["cpu_us"] / 1e3),
                      "%s ms" % number(run["p10_us"] / 1e3), "%.3f MB" % run["MB"],
                      "%s (%s ms)" % (number(run["memcpys"]), number(run["memcpy_us"] / 1e3)),
                      "%.0f" % run["faults"],
                      "-" if budget_ms is None else "%d ms, %.1f MB" % (budget_ms, budget_mb)))
    for name, of in (("memory for the ids, small pages", "small_pages"),
                     ("memory for the ids, huge pages", "huge_pages")):
        run = bench["Fresh/" + of]
        lines.append((name, "%s ms" % number(run["cpu_us"] / 1e3), "-", "-", "-",
                      "%.0f" % run["faults"], "-"))
    ms = bench["Document/raw_write_into"]["MB"] * 1e9 / bench["Crc/1048576"]["bytes_per_second"]
    lines.append(("crc of as many bytes", "%s ms" % number(ms), "-", "-", "-", "-", "-"))
    code = bench["SetCode/E256_K8_l4_ranked/avx2"]
    lines.append(("set code, chunk by chunk", "-", "%s ms" % number(code["both_ms"]),
                  "%.3f MB" % code["MB"], number(code["both_memcpys"]), "-", "30 ms, 12.2 MB"))
    run = bench["Move/turns_handle"]
    lines.append(("100 turns, by handle", "-", "%s ms" % number(run["ms"]), "%.3f MB" % run["MB"],
                  "-", "-", "1.05x the final array; it is %.3fx" % run["of_unique"]))
    print("\n### 5. Budgets")
    table(("what", "processor time", "on the clock", "bytes", "memcpys", "page faults", "budget"),
          lines)


# ---- a trainer's rank

SEQUENCES, CONTEXT = 64, 4
# (where stages are cut, crc_layers, rows of a page, the most that ranks fetch beyond their own ids)
RANKS = (
    ((0, 15, 30, 45, 60), None, 16, 0.05),
    ((0, 15, 29, 44, 58), None, 16, math.inf),
    ((0, 15, 29, 44, 58), 1, 16, 0.08),
    ((0, 15, 29, 44, 58), 1, 32, 0.05),
)
CRC_LAYERS = (1, 5, 8, 15)


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
    print("\n### 6. A rank of 4 stages and 4 context ranks; %d sequences of %d rows" %
          (SEQUENCES, LONG))
    table(("L", "crc_layers", "rows of a page", "layers", "context rank", "fetched, MB",
           "of all ids", "beyond its own", "int64 from rows, ms: memcpys", "int32"), lines)
    if too_much:
        sys.exit("wire.py: these ranks fetched too much: %s" % too_much)


# ---- crc_layers

def print_crc_layers():
    ids = make_ids(LONG, LAYERS, TOP_K, EXPERTS, 1)
    rows = make_rows(ids, EXPERTS)
    stages = list(zip((0, 15, 29, 44), (15, 29, 44, LAYERS)))
    documents = {layers: waymark.from_bytes(rows.to_bytes(crc_layers=layers))
                 for layers in CRC_LAYERS}
    calls = {}
    for layers, document in documents.items():
        calls[layers, "write"] = functools.partial(rows.to_bytes, crc_layers=layers)
        calls[layers, "read"] = functools.partial(document.read, dtype=np.uint8,
                                                  out=np.empty_like(ids))
        for stage in stages:
            calls[layers, stage] = functools.partial(document.rows, layers=stage)
    times = {call: [] for call in calls}
    for _ in range(41):  # in turns, so that what else runs slows all alike
        for call, run in calls.items():
            times[call].append(cpu_ms(run)[1])
    lines = []
    for layers, document in documents.items():
        if not np.array_equal(calls[layers, "read"](), ids):
            sys.exit("wire.py: crc_layers=%d gave back other ids" % layers)
        lines.append([str(layers), "%.3f" % (document.nbytes / 1e6)] +
                     [number(decile(times[layers, call])) for call in ["write", "read"] + stages])
    print("\n### 7. crc_layers of a document of %d rows, L = %d" % (LONG, LAYERS))
    table(("crc_layers", "MB", "write, ms", "read all layers") +
          tuple("layers %d to %d" % (begin, end - 1) for begin, end in stages), lines)


def run_bench(program):
    """{name: counters}"""
    wanted = "^(Document|Move|Fresh)/|^Crc/1048576|^SetCode/(%s)/(%s)" % ("|".join(CODES), "|".join(BACKENDS))
    answer = subprocess.run([program, "--benchmark_format=json", "--benchmark_filter=" + wanted],
                            stdout=subprocess.PIPE, check=True)
    runs = {}
    for run in json.loads(answer.stdout)["benchmarks"]:
        runs["/".join(part for part in run["name"].split("/")
                      if not part.startswith("iterations:") and part != "manual_time")] = run
    return runs


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
    parser.add_argument("bench", nargs="?", help="the program waymark_bench of a release build")
    parser.add_argument("--rank", action="store_true", help="parts 6 and 7 alone")
    args = parser.parse_args()
    if not args.rank and args.bench is None:
        parser.error("bench: the program waymark_bench, or --rank")
    bench = {} if args.rank else run_bench(args.bench)
    print("%s, %d processors, load %.1f; CPython %s, numpy %s" %
          (processor(), os.cpu_count(), os.getloadavg()[0], platform.python_version(),
           np.__version__))
    if not args.rank:
        print_formats()
        print_turns(bench)
        print_codes(bench)
        print_real()
        print_budgets(bench)
    print_rank()
    print_crc_layers()


if __name__ == "__main__":
    main()
