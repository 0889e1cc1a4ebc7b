"""Rollouts of several engines, and trainers that replay their routing, as actors of Ray.

    pip install '.[ray]' && python docs/examples/ray_rollouts.py [--plot FILE]

Groups of samples share a prompt and take several turns. An engine returns what it publishes in a
turn as one array, a bundle (ray_pages.py); handles, which name the rows, go to a named actor, the
catalog; trainers fetch by handle what they have not got. In the middle the weights change, and an
engine is killed and replaced. The engines are those of ray_engine.py, whose rows can be computed
again: each row is compared. Exits with 1 unless all are right. docs/training.md shows what it
prints.
"""
from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import numpy as np
import ray
import waymark
from ray_engine import LAYERS, TOP_K, VOCABULARY, HashEngine, prefix_of, route
from ray_pages import CATALOG, Bundle, Catalog, Index, RaySource
from waymark import trainer


class Turn(NamedTuple):
    """A request of a sample: tokens [0, prompt) were given, tokens [prompt, end) sampled."""

    prompt: int
    end: int
    version: int
    handle: waymark.Handle


@dataclass
class Sample:
    """A conversation: its tokens so far, and the turns that sampled them."""

    tokens: np.ndarray
    turns: list[Turn] = field(default_factory=list)


class Reply(NamedTuple):
    """What an engine returns beside a bundle."""

    tokens: list[np.ndarray]
    turns: list[Turn]
    places: Index


class Engine:
    """An actor: an engine that publishes what it captures."""

    def __init__(self, number: int) -> None:
        self.engine, self.bundle = HashEngine(number), Bundle()
        shape = self.engine.capture.shape
        self.publisher = waymark.Publisher(self.bundle, shape, store=f"engine {number}")
        self.published: dict[str, int] = {}  # rows, by sequence

    def rollout(self, group: int, prompts: list[np.ndarray], new: int,
                version: int) -> tuple[Any, Reply]:
        """A turn of a group: (bundle, Reply). version: of the weights that are to be used."""
        if version != self.engine.version:
            self.engine.load(version)
        names = [f"group {group}, sample {n}" for n in range(len(prompts))]
        # Only rows that no earlier turn has published. They are those in force when the tokens were
        # sampled; newer weights, or an engine that starts, compute the others again.
        first = [self.published.get(name, 0) for name in names]
        sampled = self.engine.sample(prompts, new, first)
        tickets = [self.publisher.publish(rows, name) for name, (_, rows) in zip(names, sampled)]
        self.published |= {name: rows.last for name, (_, rows) in zip(names, sampled)}
        turns = [Turn(len(prompt), len(tokens), version, ticket.wait(10))
                 for prompt, (tokens, _), ticket in zip(prompts, sampled, tickets)]
        array, places = self.bundle.take()
        return array, Reply([tokens for tokens, _ in sampled], turns, places)


class Trainer:
    """An actor: fetches the routing of whole groups, and checks it."""

    def __init__(self) -> None:
        self.source = RaySource()
        self.fetcher = waymark.Fetcher(self.source)

    def learn(self, group: int) -> Counter[str]:
        """Counts the rows of a group. To train, `trainer.Layout().plan(lengths).fill(trajectories,
        layer_ids)` makes the tensors of the routers on this rank."""
        counts: Counter[str] = Counter()
        samples: list[Sample] = ray.get(self.source.catalog.ask.remote(group))
        for sample in samples:
            parts = [trainer.Part((self.fetcher, turn.handle), sample.tokens[:turn.end],
                                  turn.prompt) for turn in sample.turns]
            rows = trainer.Trajectory(sample.tokens, parts).rows(timeout=20)
            # A row is of the turn that sampled the next token, or was given it.
            ends = [turn.end - 1 for turn in sample.turns]
            wanted = np.repeat([turn.version for turn in sample.turns], np.diff([0, *ends]))
            version = rows.infos["version"]
            same = (rows.ids == route(prefix_of(sample.tokens)[:-1], version)).all(axis=(1, 2))
            counts["right"] += int((rows.valid & same & (version == wanted)).sum())
            counts["of other weights"] += int((rows.valid & same & (version != wanted)).sum())
            counts["wrong"] += int((rows.valid & ~same).sum())
            for run in rows.coverage():
                kind = f"weights {run.version}" if run.valid else f"missing ({run.why})"
                counts[kind] += run.end - run.begin
        self.source.bundles.clear()
        return counts

    def fetched(self) -> tuple[Counter[str], dict[bytes, int]]:
        """Bytes by engine; the different objects and their bytes."""
        return self.source.fetched, self.source.objects


class Driver:
    """Sends turns of groups to engines, and groups that are done to trainers. It calls the engines,
    so it owns what they return."""

    engine_class = Engine

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.version, self.began = args, 1, time.monotonic()
        self.random = np.random.default_rng(0)
        self.catalog = actor(Catalog).options(name=CATALOG).remote()
        self.trainers = [actor(Trainer).remote() for _ in range(args.trainers)]
        self.published: dict[str, list[int]] = {}  # bytes of each bundle, by engine
        self.engines = [self.start() for _ in range(args.engines)]
        prompts = self.random.integers(VOCABULARY, size=(args.groups, args.prompt))
        self.groups = [[Sample(prompt) for _ in range(args.samples)] for prompt in prompts]
        self.running: dict[ray.ObjectRef, tuple[int, str, ray.ObjectRef]] = {}
        self.learning: list[ray.ObjectRef] = []
        self.rows: Counter[str] = Counter()
        self.returned = self.cut_off = self.in_replies = 0
        self.said, self.killed = 0.0, ""

    def start(self) -> tuple[str, Any]:
        """An engine: (name, actor)."""
        number = len(self.published)
        self.published[f"engine {number}"] = []
        return f"engine {number}", actor(self.engine_class).remote(number)

    def run(self) -> None:
        """Until every group has taken its turns, and was trained on."""
        calls = self.args.groups * self.args.turns
        for group in range(self.args.groups):
            self.send(group)
        while self.running or self.learning:
            (ref,), _ = ray.wait([*self.running, *self.learning])
            if ref in self.learning:
                self.learning.remove(ref)
                self.rows += ray.get(ref)
            elif self.receive(ref, *self.running.pop(ref)):
                if self.returned == calls * 3 // 8:
                    self.version = 2
                    self.say("the weights change")
                if self.returned == calls * 5 // 8:
                    self.kill()
            self.say()
        self.say("done")

    def send(self, group: int) -> None:
        """The next turn of a group, to the engine that has its prefix."""
        name, engine = self.engines[group % len(self.engines)]
        prompts = [sample.tokens for sample in self.groups[group]]
        bundle, reply = engine.rollout.options(num_returns=2).remote(
            group, prompts, self.args.new, self.version)
        self.running[reply] = group, name, bundle

    def receive(self, ref: ray.ObjectRef, group: int, name: str, bundle: ray.ObjectRef) -> bool:
        """What an engine returned; False: it was killed before."""
        try:
            reply: Reply = ray.get(ref)
        except ray.exceptions.RayActorError:
            if name != self.killed:
                raise
            self.cut_off += 1
            place = group % len(self.engines)
            if self.engines[place][0] == name:
                self.engines[place] = self.start()
            self.send(group)  # nobody has its tokens: only time is lost
            return False
        self.returned += 1
        self.published[name].append(max(end for _, end in reply.places.values()))
        self.in_replies += sum(turn.end - 1 for turn in reply.turns) * LAYERS * TOP_K
        self.tell(group, name, bundle, reply)
        if len(self.groups[group][0].turns) == self.args.turns:
            self.learn(group)
        else:
            for sample in self.groups[group]:  # what a tool answers
                answer = self.random.integers(VOCABULARY, size=self.args.tool)
                sample.tokens = np.append(sample.tokens, answer)
            self.send(group)
        return True

    def tell(self, group: int, engine: str, bundle: ray.ObjectRef, reply: Reply) -> None:
        """Tells the catalog of a turn."""
        for sample, tokens, turn in zip(self.groups[group], reply.tokens, reply.turns):
            sample.tokens = tokens
            sample.turns.append(turn)
        ray.get([self.catalog.add.remote(engine, [bundle], reply.places),
                 self.catalog.tell.remote(group, self.groups[group])])

    def kill(self) -> None:
        """Kills the engine that was sent a turn last."""
        *_, (_, self.killed, _) = self.running.values()
        ray.kill(dict(self.engines)[self.killed])
        self.say(f"{self.killed} is killed")

    def learn(self, group: int) -> None:
        """A group goes to one trainer, so that what its samples share is fetched once."""
        one = self.trainers[group // len(self.engines) % len(self.trainers)]
        self.learning.append(one.learn.remote(group))

    def say(self, event: str = "") -> None:
        """Progress: a line that the next one overwrites on a terminal; elsewhere, one a second."""
        terminal, now = sys.stdout.isatty(), time.monotonic()
        if not event and not terminal and now < self.said + 1:
            return
        self.said, calls = now, self.args.groups * self.args.turns
        size = sum(map(sum, self.published.values())) / 1e6
        checked = sum(n for kind, n in self.rows.items() if kind.startswith("weights"))
        bar = "#" * (24 * self.returned // calls)
        print(f"{now - self.began:5.1f} s [{bar:.<24}] {self.returned:3d} of {calls} turns, "
              f"{size:5.1f} MB, {checked:7,d} rows checked  {event}".rstrip(),
              end="\r" if terminal and not event else "\n", flush=True)

    def report(self) -> bool:
        """Prints the tables; whether every row is right."""
        args, rows = self.args, self.rows
        told = [ray.get(one.fetched.remote()) for one in self.trainers]
        unique = {digest: size for _, objects in told for digest, size in objects.items()}
        table = {"published": {name: sum(sizes) for name, sizes in self.published.items()}}
        table |= {f"fetched by trainer {n}": by for n, (by, _) in enumerate(told)}
        print(f"\n{'MB':20s}" + "".join(f"{name:>10s}" for name in [*self.published, "all"]))
        for line, by in table.items():
            sizes = [*(by[name] for name in self.published), sum(by.values())]
            print(f"{line:20s}" + "".join(f"{size / 1e6:10.2f}" for size in sizes))
        last = 10 * len(sizes)
        print(f"{'unique of these':20s}{sum(unique.values()) / 1e6:{last}.2f}")
        print(f"{'arrays in replies':20s}{self.in_replies / 1e6:{last}.2f}")
        each = [size / 1e6 for sizes in self.published.values() for size in sizes]
        print(f"{len(each)} bundles of {min(each):.2f} to {max(each):.2f} MB; {self.cut_off} turns "
              "were cut off when an engine was killed")
        tokens = args.prompt + args.turns * args.new + (args.turns - 1) * args.tool
        wanted = args.groups * args.samples * (tokens - 1)
        weights = {kind: rows.pop(kind) for kind in sorted(rows) if kind.startswith("weights")}
        rows["missing (never returned)"] = wanted - sum(rows.values())
        kinds = {"right": 0, "wrong": 0} | rows
        print(f"{wanted:,} rows: " + ", ".join(f"{n:,} {kind}" for kind, n in kinds.items()))
        print("of them " + ", ".join(f"{n:,} of {kind}" for kind, n in weights.items()))
        if args.plot:
            draw(table, args.plot)
        return rows["right"] == wanted


def actor(of: type) -> Any:
    """A class of actors. Of a real engine, num_gpus=8, say."""
    return ray.remote(num_cpus=0)(of)


def draw(table: dict[str, dict[str, int]], file: str) -> None:
    """Who fetched what, as an SVG: bands from engines (left) to trainers, as wide as the bytes."""
    published, *fetched = table.values()
    scale, shapes = 240 / sum(published.values()), []
    colours = ["#b3452c", "#1f6f8b", "#c08a2b", "#5b7f3a", "#6d4c86", "#4d4d4d"] * len(published)

    def bar(x: int, anchor: str, top: float, size: int, colour: str, text: str) -> float:
        text_x = x - 8 if anchor == "end" else x + 20
        shapes.append(f'<rect x="{x}" y="{top:.1f}" width="12" height="{size * scale:.1f}" '
                      f'fill="{colour}"/><text x="{text_x}" y="{top + size * scale / 2 + 4:.1f}" '
                      f'text-anchor="{anchor}">{text}: {size / 1e6:.1f} MB</text>')
        return top + size * scale + 16

    left, top = {}, 20.0  # where the next band of each engine begins
    for (engine, size), colour in zip(published.items(), colours):
        left[engine] = top
        top = bar(120, "end", top, size, colour, f"published by {engine}")
    height, top = top, (top + 4 - scale * sum(sum(by.values()) for by in fetched)) / 2
    top -= 8 * len(fetched)
    for n, by in enumerate(fetched):
        b, after = top, bar(400, "start", top, sum(by.values()), "#333", f"fetched by trainer {n}")
        for engine, colour in zip(left, colours):
            a, high = left[engine], by[engine] * scale
            left[engine], b = c, d = a + high, b + high
            shapes.append(f'<path d="M132 {a:.1f}C266 {a:.1f} 266 {d - high:.1f} 400 {d - high:.1f}'
                          f'v{high:.1f}C266 {d:.1f} 266 {c:.1f} 132 {c:.1f}z" fill="{colour}" '
                          'opacity="0.45"/>')
        top = after
    with open(file, "w") as out:
        out.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-90 0 700 {height:.0f}" '
                  'font-family="sans-serif" font-size="12"><rect x="-90" width="700" height="100%" '
                  'fill="#fff"/>' + "\n".join(shapes) + "</svg>\n")


def main(driver_class: type[Driver] = Driver) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"engines": 2, "trainers": 2, "groups": 8, "samples": 8, "turns": 4,
                          "prompt": 1024, "new": 256, "tool": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--address", help="of a cluster that runs; default: Ray is started here")
    parser.add_argument("--plot", help="an SVG file: who fetched what")
    args = parser.parse_args()
    here: dict[str, Any] = {} if args.address else {
        "num_cpus": 2, "include_dashboard": False, "object_store_memory": 512 << 20}
    ray.init(args.address or "local", log_to_driver=False, logging_level=logging.ERROR, **here)
    driver = driver_class(args)
    driver.run()
    right = driver.report()
    ray.shutdown()
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
