"""Trajectories: the rows of a sequence from the requests that it was made of.

The oracle is a simulator of conversations. Its engines route by a hash of what routing depends on,
all tokens up to the row's own and the version of the weights; it knows who sampled each token.
"""

from __future__ import annotations

import hashlib
import pathlib
import random
import re
import struct
from typing import Any, cast

import numpy as np
import pytest
import waymark
from conftest import DictSource, refused
from waymark import Reason, Rows, trainer
from waymark._coverage import Coverage
from waymark.trainer import Part, Trajectory

LAYERS = (1, 2, 5, 6)
EXPERTS, K, PAGE = 200, 2, 4
SHAPE = waymark.Shape(len(LAYERS), K, EXPERTS, PAGE, 0, 0, LAYERS)
LOST = [Reason.NEVER_WRITTEN, Reason.NOT_CAPTURED, Reason.CAPACITY, Reason.EXTERNAL_KV]


def routing(tokens: list[int], version: int) -> Any:
    """[tokens, L, K]: of a pass over these tokens by one version."""
    prefix, rows = b"", []
    for token in tokens:
        prefix = hashlib.blake2b(prefix + struct.pack("<q", token), digest_size=16).digest()
        of_row = hashlib.blake2b(prefix + struct.pack("<q", version), digest_size=8 * len(LAYERS))
        words = np.frombuffer(of_row.digest(), np.uint32).reshape(-1, 2)
        first = words[:, 0] % EXPERTS
        rows.append(np.stack([first, (first + 1 + words[:, 1] % (EXPERTS - 1)) % EXPERTS], 1))
    return np.array(rows, np.uint8).reshape(-1, len(LAYERS), K)


class Request:
    """One request of an engine: what the trainer gets of it."""

    def __init__(
        self, rng: random.Random, tokens: list[int], prompt: int, versions: list[int], *,
        first: int = 0, last: int | None = None, lost: float = 0.0,
    ) -> None:  # fmt: skip
        self.tokens, self.prompt, self.first = tokens, prompt, first
        self.last = len(tokens) - 1 if last is None else last
        self.versions = versions  # of each row
        self.reasons = [Reason.NONE] * self.last
        while rng.random() < lost and self.last > first:  # runs, as rows are lost
            begin = rng.randrange(first, self.last)
            for row in range(begin, min(self.last, begin + rng.randrange(1, 6))):
                self.reasons[row] = rng.choice(LOST)

    def rows(self) -> Rows:
        ids = np.zeros((self.last, len(LAYERS), K), np.uint8)
        infos = np.zeros(self.last, waymark.row_info_dtype)
        for version in set(self.versions[: self.last]):
            of_version = routing(self.tokens[: self.last], version)
            rows = [i for i in range(self.last) if self.versions[i] == version]
            ids[rows] = of_version[rows]
        infos["reason"] = self.reasons
        valid = infos["reason"] == 0  # the ids of others are none, but these are not zeros
        infos["version"] = np.where(valid, self.versions[: self.last], 0)
        return Rows(SHAPE, self.first, ids[self.first :], infos[self.first :])

    def has(self, row: int) -> bool:
        return self.first <= row < self.last


class Branch:
    """A conversation: its tokens, who sampled each (None: nobody), the requests, and those that
    were given up."""

    def __init__(self, prompt: list[int]) -> None:
        self.tokens = prompt
        self.sampled: list[Request | None] = [None] * len(prompt)
        self.requests: list[Request] = []
        self.given_up: list[Request] = []

    def copy(self) -> Branch:
        other = Branch([*self.tokens])
        other.sampled, other.requests = [*self.sampled], [*self.requests]
        other.given_up = [*self.given_up]
        return other


class World:
    """Engines and their weights, and the tree of conversations that they were used for. Sampled
    tokens are of three kinds, so that attempts often begin with the same ones; given tokens are
    others."""

    def __init__(self, rng: random.Random, lost: float) -> None:
        self.rng, self.lost = rng, lost
        self.version = 1
        self.leaves = [Branch(self.given(rng.randrange(1, 14)))]
        self.everything: list[Request] = []
        for _ in range(rng.randrange(1, 8)):
            branch = rng.choice(self.leaves)
            if rng.random() < 0.4:
                self.leaves.append(branch := branch.copy())
            self.turn(branch)
            if rng.random() < 0.4:
                self.version += 1

    def given(self, count: int) -> list[int]:
        return [self.rng.randrange(100, 103) for _ in range(count)]

    def request(self, prompt: list[int]) -> list[Request]:
        """Runs a request; two, if one engine prefills and another decodes."""
        rng = self.rng
        tokens = [*prompt, *(rng.randrange(3) for _ in range(rng.randrange(1, 14)))]
        versions = [self.version] * len(tokens)
        if rng.random() < 0.3:  # a hit on KV of older weights
            hit = rng.randrange(len(prompt) + 1)
            versions[:hit] = [max(1, self.version - rng.randrange(3))] * hit
        if rng.random() < 0.3:  # new weights on the way
            self.version += 1
            at = rng.randrange(len(prompt), len(tokens) + 1)
            versions[at:] = [self.version] * (len(tokens) - at)
        n, kind = len(prompt), rng.randrange(6)
        if kind == 0:  # the first token was sampled by the engine that prefilled
            made = [
                Request(rng, tokens[: n + 1], n, versions, last=n, lost=self.lost),
                Request(rng, tokens, n + 1, versions, first=n, lost=self.lost),
            ]
        elif kind == 1:  # it was not: the last token of the prompt ran again
            again = [v + 1 if i == n - 1 else v for i, v in enumerate(versions)]
            made = [
                Request(rng, tokens[:n], n, versions, last=n, lost=self.lost),
                Request(rng, tokens, n, again, first=n - 1, lost=self.lost),
            ]
        else:  # now and then the engine returns a row of the last token, too
            last = len(tokens) - (rng.random() < 0.9)
            made = [Request(rng, tokens, n, versions, last=last, lost=self.lost)]
        self.everything += made
        return made

    def turn(self, branch: Branch) -> None:
        rng = self.rng
        while rng.random() < 0.25:  # an attempt that is given up: the next one counts
            attempt = self.request(branch.tokens)
            (branch.requests if rng.random() < 0.5 else branch.given_up).extend(attempt)
        made = self.request(branch.tokens)
        prompt = len(branch.tokens)
        branch.requests += made
        if rng.random() < 0.15:  # named, though it is not the last: later ones are `others`
            branch.given_up += self.request(branch.tokens)
        branch.tokens = [*made[-1].tokens]
        sampled = [*(made[0] for _ in range(made[-1].prompt - prompt)),
                   *(made[-1] for _ in range(len(branch.tokens) - made[-1].prompt))]  # fmt: skip
        branch.sampled += sampled
        kind = rng.randrange(4)  # 0: aborted here; the next request resumes it
        if kind in (1, 2):
            cut = rng.randrange(len(sampled) + 1) if kind == 1 else 0  # trimmed, or tokenised anew
            keep = len(branch.tokens) - cut
            new = self.given(rng.randrange(0 if cut == 0 else 1, 6))
            branch.tokens = branch.tokens[:keep] + new
            branch.sampled = branch.sampled[:keep] + [None] * len(new)


def owners(branch: Branch, length: int) -> list[Request | None]:
    """For each row the request that the next sampled token behind it is of."""
    found: list[Request | None] = []
    owner: Request | None = None
    for row in reversed(range(length)):
        if row + 1 < length and branch.sampled[row + 1] is not None:
            owner = branch.sampled[row + 1]
        found.append(owner)
    return found[::-1]


def expected(
    tokens: list[int], owner: Request | None, parts: list[Request], others: list[Request],
    row: int, choose: str,
) -> tuple[Reason, int, Request | None]:  # fmt: skip
    """(reason, version, part) of a row, by the words of Trajectory, one prefix compared after the
    other."""
    if choose == "newest":
        order = [*parts[::-1], *others]
    elif owner is None:
        order = [*parts, *others]
    else:
        at = parts.index(owner)
        order = [*parts[: at + 1][::-1], *parts[at + 1 :], *others]
    reason = Reason.NEVER_WRITTEN
    for part in order:
        if part.has(row) and part.tokens[: row + 1] == tokens[: row + 1]:
            if part.reasons[row] == Reason.NONE:
                return Reason.NONE, part.versions[row], part
            if reason == Reason.NEVER_WRITTEN:
                reason = part.reasons[row]
    return reason, 0, None


class CountingSource(DictSource):
    """Counts how often each object, and each range of one, is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[Any, int] = {}
        self.bytes = 0

    def count(self, key: Any, got: bytes | None) -> bytes | None:
        if got is not None:  # node lists that were never put are asked for again
            self.asked[key] = self.asked.get(key, 0) + 1
            self.bytes += len(got)
        return got

    def get(self, digests: list[bytes], timeout: float) -> list[Any]:
        return [self.count(*one) for one in zip(digests, super().get(digests, timeout))]

    def get_ranges(self, ranges: list[tuple[bytes, int, int]], timeout: float) -> list[Any]:
        return [self.count(one, self.objects[one[0]][one[1] : one[2]]) for one in ranges]


class LoggingFetcher(waymark.Fetcher):
    """Logs how many rows it was asked for."""

    rows = 0

    def fetch(self, handle: bytes, first: int = 0, last: Any = None, **more: Any) -> Rows:
        self.rows += (waymark.Handle(handle).rows if last is None else last) - first
        return super().fetch(handle, first, last, **more)


class Parts:
    """The part of each request, made once; rows that begin at 0 by handle, if asked for."""

    def __init__(self, rng: random.Random, handles: bool) -> None:
        self.rng, self.handles = rng, handles
        self.source = CountingSource()
        self.fetcher = LoggingFetcher(self.source)
        self.publisher = waymark.Publisher(self.source, SHAPE)
        self.made: dict[int, Part] = {}

    def of(self, request: Request) -> Part:
        if id(request) not in self.made:
            rows = request.rows()
            source: Any = rows
            kind = 0 if self.handles else self.rng.randrange(4)
            if kind == 0 and request.first == 0:
                source = (self.fetcher, self.publisher.publish(rows).wait(10))
            elif kind <= 1:
                source = waymark.from_bytes(rows.to_bytes())
            elif kind == 2 and len(rows):  # a view of more rows
                infos = np.concatenate([rows.infos.view(np.uint8)] * 2).view(waymark.row_info_dtype)
                ids = np.concatenate([rows.ids] * 2)
                source = Rows(SHAPE, rows.first, ids, infos)[: len(rows)]
            self.made[id(request)] = Part(source, request.tokens, request.prompt)
        return self.made[id(request)]


@pytest.fixture
def trees(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--trees"))


def check(seed: int, case: int) -> int:
    """One random tree; every row of each of its sequences. The number of rows."""
    rng = random.Random(seed * 100_003 + case)
    lost = rng.choice([0, 0, 0.3, 0.7])
    world = World(rng, lost)
    parts = Parts(rng, handles=rng.random() < 0.5)
    columns = sorted(rng.sample(range(len(LAYERS)), rng.randrange(1, len(LAYERS) + 1)))
    layer_ids = [LAYERS[c] for c in columns]
    checked = 0
    for leaf, branch in enumerate(world.leaves):
        if not branch.requests:
            continue
        tokens, others = branch.tokens, [*branch.given_up]
        if rng.random() < 0.3:  # cut short by the trainer
            tokens = tokens[: rng.randrange(1, len(tokens) + 1)]
        if rng.random() < 0.5:  # everything that there is: other branches, too
            known = {*map(id, branch.requests), *map(id, others)}
            others += [r for r in world.everything if id(r) not in known]
        choose: Any = rng.choice(["sampled", "sampled", "newest"])
        where = f"seed {seed}, case {case}, leaf {leaf}, {choose}"
        trajectory = Trajectory(
            tokens, [parts.of(r) for r in branch.requests], [parts.of(r) for r in others],
            choose=choose,
        )  # fmt: skip
        every = [*branch.requests, *others]
        assert list(trajectory.agreed) == [
            max(n for n in range(len(tokens) + 1) if tokens[:n] == r.tokens[:n]) for r in every
        ], where
        has_last = any(r.has(len(tokens) - 1) and r.tokens[: len(tokens)] == tokens for r in every)
        assert len(trajectory) == len(tokens) - (not has_last), where
        owner = owners(branch, len(tokens))
        before = parts.fetcher.rows
        rows = trajectory.rows(layer_ids=layer_ids)
        asked = parts.fetcher.rows - before
        assert rows.layer_ids == tuple(layer_ids) and len(rows) == len(trajectory), where
        truth = {v: routing(tokens, v) for v in {0, *rows.infos["version"].tolist()}}
        runs = trajectory.coverage(layer_ids=layer_ids)
        assert runs[0].begin == 0 if len(rows) else not runs
        assert all(a.end == b.begin for a, b in zip(runs, runs[1:])), where
        run_of = [run for run in runs for _ in range(run.begin, run.end)]
        for row in range(len(rows)):
            at = f"{where}, row {row}"
            reason, version, part = expected(
                tokens, owner[row], branch.requests, others, row, choose
            )
            info = rows.infos[row]
            assert (info["reason"], info["version"]) == (reason, version), at
            wanted = truth[version][row][columns] if reason == Reason.NONE else 0
            assert (rows.ids[row] == wanted).all(), at
            # What the simulator knows without any rule: the row behind the log-probability.
            sampler = branch.sampled[row + 1] if row + 1 < len(tokens) else None
            if choose == "sampled" and sampler is not None and sampler.has(row):
                if sampler.reasons[row] == Reason.NONE:
                    assert info["version"] == sampler.versions[row], at
            run = run_of[row]
            assert (run.reason, run.version, run.valid) == (reason, version, not reason), at
            assert run.part == (every.index(part) if part else -1), at
            assert run.sampled_by == (every.index(sampler) if sampler else -1), at
            checked += 1
        begin = rng.randrange(len(rows) + 1)
        end = rng.randrange(begin, len(rows) + 1)
        some = trajectory.rows(begin, end, layer_ids=layer_ids)
        assert (some.first, some.last) == (begin, end), where
        assert (some.ids == rows.ids[begin:end]).all(), where
        assert (some.infos == rows.infos[begin:end]).all(), where
        if lost == 0 and parts.handles:  # each row is asked for once, in each run of layers
            layer_runs = sum(c - 1 not in columns for c in columns)
            by_handle = sum(every[run.part].first == 0 for run in run_of if run.part >= 0)
            assert asked == by_handle * layer_runs, where
    if parts.handles:  # crcs of a chunk, which begin at 0, once for each run of layers
        asked_for = parts.source.asked.items()
        again = [key for key, n in asked_for if n > 1 and not (len(key) == 3 and key[1] == 0)]
        assert not again, f"seed {seed}, case {case}: {len(again)} objects were fetched again"
    return checked


def test_every_row_of_random_conversations(seed: int, trees: int) -> None:
    assert sum(check(seed, case) for case in range(trees)) > 10 * trees


def request(prompt: list[int], sampled: list[int], version: int = 1, **more: Any) -> Request:
    tokens = [*prompt, *sampled]
    return Request(random.Random(0), tokens, len(prompt), [version] * len(tokens), **more)


def part_of(of: Request, tokens: Any = "own") -> Part:
    return Part(of.rows(), of.tokens if tokens == "own" else tokens, of.prompt)


def test_what_is_refused() -> None:
    of, layout = request([1, 2, 3], [4, 5]), trainer.Layout()
    part = part_of(of)
    trajectory = Trajectory(of.tokens, [part])
    plan, oldest = layout.plan([5]), cast(Any, "oldest")
    refused(
        waymark.InvalidArgumentError,
        ("tokens: .*at least 4, got 3", lambda: Part(of.rows(), [1, 2, 3])),
        (r"prompt_tokens: .*\[0, 5\], got 6", lambda: Part(of.rows(), of.tokens, 6)),
        ("tokens: integers .*float64", lambda: Part(of.rows(), [0.5] * 5)),
        ("parts: at least one, got 0", lambda: Trajectory(of.tokens, [])),
        ("tokens: at least one, got 0", lambda: Trajectory([], [part])),
        ("choose: one of sampled, newest", lambda: Trajectory(of.tokens, [part], choose=oldest)),
        (r"sources\[0\].*of 6 tokens.*of 5", lambda: layout.plan([6]).fill([trajectory], LAYERS)),
        ("sources: must be one for each of 1", lambda: plan.fill([trajectory] * 2, LAYERS)),
        ("layer_ids: of the layers.*3", lambda: plan.fill([trajectory], [3])),
        ("distinct", lambda: plan.fill([trajectory], [1, 1])),
    )
    refused(
        TypeError,
        ("source: .*got ndarray", lambda: Part(cast(Any, of.rows().ids), of.tokens)),
        ("parts, others: Part, got Rows", lambda: Trajectory(of.tokens, [cast(Any, of.rows())])),
    )
    for rows in (
        of.rows().of_layers([1, 2]),
        Rows.from_array(of.rows().ids, num_experts=EXPERTS + 1, layer_ids=LAYERS),
        Rows.from_array(of.rows().ids[..., :1], num_experts=EXPERTS, layer_ids=LAYERS),
    ):
        with pytest.raises(waymark.InvalidArgumentError, match="parts: of one model.*part 1 has"):
            Trajectory(of.tokens, [part, Part(rows, of.tokens)])
    for layers in ([3], [], [2, 1], [2, 2]):
        with pytest.raises(waymark.InvalidArgumentError, match="layer_ids: of the layers"):
            trajectory.rows(layer_ids=layers)
    for first, last in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(waymark.OutOfRangeError, match="first, last: .*<= 4, got"):
            trajectory.rows(first, last)


def test_rows_of_another_sequence_are_not_used() -> None:
    of = request([1, 2, 3], [4, 5, 6])
    for place in range(6):
        tokens = [*of.tokens]
        tokens[place] += 50
        trajectory = Trajectory(tokens, [part_of(of)])
        assert trajectory.agreed == (place,)
        rows = trajectory.rows()
        assert rows.valid.tolist() == [i < place for i in range(5)]
        assert (rows.reasons[place:] == Reason.NEVER_WRITTEN).all()
        # On the caller's word.
        vouched = Trajectory(tokens, [part_of(of, None)])
        assert vouched.agreed == (6,) and vouched.rows().valid.all()
    # A sequence that is longer, and one that ends before the part does.
    longer = Trajectory([*of.tokens, 7, 8], [part_of(of)])
    assert longer.rows().valid.tolist() == [True] * 5 + [False] * 2
    cut = Trajectory(of.tokens[:3], [part_of(of)])
    assert len(cut) == 3 and cut.rows().valid.all() and cut.sampled_by.tolist() == [-1, -1, -1]
    assert len(Trajectory([9], [part_of(of)])) == 0


def test_a_partial_rollout_resumed_on_newer_weights() -> None:
    first = request([1, 2, 3], [4, 5, 6], version=1)
    then = request(first.tokens, [7, 8], version=2)
    names = waymark.WeightVersions(["a", "b"])
    sampled = Trajectory(then.tokens, [part_of(first), part_of(then)])
    assert sampled.sampled_by.tolist() == [-1, -1, 0, 0, 0, 1, 1]
    assert [tuple(run)[:2] + tuple(run)[5:8] for run in sampled.coverage(versions=names)] == [
        (0, 2, "a", 0, -1), (2, 5, "a", 0, 0), (5, 7, "b", 1, 1)
    ]  # fmt: skip
    newest = Trajectory(then.tokens, [part_of(first), part_of(then)], choose="newest")
    assert [(run.version, run.part, run.sampled_by) for run in newest.coverage()] == [
        (2, 1, -1), (2, 1, 0), (2, 1, 1)
    ]  # fmt: skip
    # The rows of the first half are lost: those of the second pass are right rows of their tokens,
    # but coverage() tells that these tokens were sampled with others.
    lost = part_of(request([1, 2, 3], [4, 5, 6], first=5, last=5))
    runs = Trajectory(then.tokens, [lost, part_of(then)]).coverage()
    assert [(r.version, r.part, r.sampled_by) for r in runs] == [(2, 1, -1), (2, 1, 0), (2, 1, 1)]


def test_a_hundred_turns_cross_once() -> None:
    """The figures of docs/training.md."""
    turns, rows, layers = 100, 1 << 15, 58
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 256, (rows - 1, layers, 1), dtype=np.uint8)
    ids = ids + np.arange(8, dtype=np.uint8) * np.uint8(31)  # distinct, because 31 is odd
    infos = np.zeros(rows - 1, waymark.row_info_dtype)
    whole = Rows(waymark.Shape(layers, 8, 256, 16, 0, 0, tuple(range(layers))), 0, ids, infos)
    tokens = rng.integers(0, 1 << 17, rows)
    source = CountingSource()
    publisher, fetcher = waymark.Publisher(source, whole.shape), waymark.Fetcher(source)
    parts = []
    for turn in range(1, turns + 1):
        begin, end = max((turn - 1) * rows // turns - 1, 0), turn * rows // turns
        handle = publisher.publish(whole[begin : end - 1], "conversation").wait(60)
        parts.append(Part((fetcher, handle), tokens[:end], end - rows // turns // 2))
    got = Trajectory(tokens, parts).rows()
    assert got.valid.all() and (got.ids == ids).all()
    calls = source.calls.count("get")
    print(f"{source.bytes / ids.nbytes:.3f} of the array's bytes, {calls} calls")
    assert source.bytes <= 1.04 * ids.nbytes and calls <= 3 * turns
    assert set(source.asked.values()) == {1}


def test_a_lost_object_is_taken_from_another_part() -> None:
    source, empty = CountingSource(), waymark.MemorySource()
    first, then = request([1] * 9, [4, 5, 6]), request([1] * 9 + [4, 5, 6], [7] * 4, version=2)
    handle = waymark.Publisher(source, SHAPE).publish(first.rows()).wait(10)
    gone = Part((waymark.Fetcher(empty), handle), first.tokens, 9)
    here = part_of(then)
    trajectory = Trajectory(then.tokens, [gone, here])
    assert {run.part for run in trajectory.coverage()} == {1}
    alone = Trajectory(first.tokens, [gone])
    assert (alone.rows().reasons == Reason.CAPACITY).all() and not alone.rows().ids.any()
    # Some layers arrive and others do not: the row is missing, and says so.
    layer = PAGE * K
    crcs = len(next(o for o in source.objects.values() if len(o) > 4 * layer)) - 4 * layer
    ranges = source.get_ranges
    for lost in LAYERS:
        begin = crcs + LAYERS.index(lost) * layer

        def without(asked: list[tuple[bytes, int, int]], timeout: float) -> list[Any]:
            got = ranges(asked, timeout)
            there = [not of[1] <= begin < of[2] for of in asked]  # noqa: B023
            return [one if here else None for one, here in zip(got, there)]

        source.get_ranges = without  # type: ignore[method-assign]
        for layer_ids in ([1, 6], [1, 5, 6], [5, 6], [1, 2], [2, 6]):
            part = Part((waymark.Fetcher(source), handle), first.tokens, 9)
            rows = Trajectory(first.tokens, [part]).rows(0, 8, layer_ids=layer_ids)
            whole = lost not in layer_ids
            assert (rows.valid == whole).all() and bool(rows.ids.any()) == whole
            assert whole or (rows.reasons == Reason.CAPACITY).all()


def test_fill_takes_trajectories(seed: int) -> None:
    rng = random.Random(seed)
    for case in range(40):
        where = f"seed {seed}, case {case}"
        source = CountingSource()
        publisher, fetcher = waymark.Publisher(source, SHAPE), waymark.Fetcher(source)
        trajectories = []
        for _ in range(rng.randrange(1, 4)):
            first = request([rng.randrange(9) for _ in range(rng.randrange(1, 30))], [1, 2, 3])
            then = request([*first.tokens, 50], [5] * rng.randrange(1, 40), version=2)
            parts = []
            for one in (first, then):
                handle = publisher.publish(one.rows()).wait(10)
                parts.append(Part((fetcher, handle), one.tokens, one.prompt))
            trajectories.append(Trajectory(then.tokens, parts))
        lengths = [len(one.tokens) for one in trajectories]
        order: Any = rng.choice(["packed", "sequence-major", "batch-major"])
        size = rng.randrange(1, 4)
        layout = trainer.Layout(order, (rng.randrange(size), size), sequence_multiple=2 * size)
        plan = layout.plan(lengths)
        layer_ids = rng.sample(LAYERS, rng.randrange(1, 5))
        got = plan.fill(trajectories, layer_ids)
        rows = [one.rows() for one in trajectories]
        wanted = plan.fill(rows, layer_ids)
        assert (got.ids == wanted.ids).all() and (got.mask == wanted.mask).all(), where
        assert got.report == wanted.report, where


def test_a_rank_fetches_its_own_rows_and_layers() -> None:
    source = CountingSource()
    first = request([1] * (8 * PAGE), [2])
    then = request(first.tokens, [3] * (8 * PAGE - 1), version=2)
    publisher, fetcher = waymark.Publisher(source, SHAPE), waymark.Fetcher(source)
    parts = []
    for one in (first, then):
        handle = publisher.publish(one.rows()).wait(10)
        parts.append(Part((fetcher, handle), one.tokens, one.prompt))
    trajectory = Trajectory(then.tokens, parts)
    # Rank 0 of 2, zigzag: pages 0 to 3 of the first request, and 12 to 15 of the second.
    plan = trainer.Layout(context=(0, 2), sequence_multiple=4).plan([16 * PAGE])
    filled = plan.fill([trajectory], [2, 5])
    pages = ((1, slice(0, 4 * PAGE)), (2, slice(12 * PAGE, 16 * PAGE)))
    truth = np.concatenate([routing(then.tokens, version)[rows] for version, rows in pages])
    assert filled.mask.tolist() == [True] * (8 * PAGE - 1) + [False]
    assert (filled.ids[:, :-1] == truth.transpose(1, 0, 2)[1:3, :-1]).all()
    asked = [key for key in source.asked if isinstance(key, tuple)]
    # Page 15 has no row of the last token: it is a tail segment, which is fetched whole. Of the
    # other chunks the crcs of all layers, each of which has one, and two layers.
    crcs = [key for key in asked if key[1] < 4 * len(LAYERS)]
    layers = [key for key in asked if key not in crcs]
    assert len(crcs) == 7 and {key[1:] for key in crcs} == {(0, 4 * len(LAYERS))}
    assert len(layers) == 7 and {key[2] - key[1] for key in layers} == {2 * PAGE * K}
    assert set(source.asked.values()) == {1}


def test_the_order_of_ids_is_known_only_if_all_parts_know_it() -> None:
    first, then = request([1, 2, 3], [4, 5, 6]), request([1, 2, 3, 4, 5, 6], [7, 8])
    sets = waymark.from_bytes(first.rows().to_bytes(codec="set"))
    trajectory = Trajectory(then.tokens, [Part(sets, first.tokens, 3), part_of(then)])
    assert not trajectory.rows().ordered and trajectory.rows(5).ordered


def test_the_example_of_the_documentation_runs() -> None:
    page = pathlib.Path(__file__).parents[3] / "docs" / "training.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    (example,) = [block for block in blocks if "trainer.Trajectory(" in block]
    names: dict[str, Any] = {}
    exec(compile(example, str(page), "exec"), names)  # noqa: S102
    coverage = names["trajectory"].coverage()
    runs = [(run.begin, run.end, run.version, run.part, run.sampled_by) for run in coverage]
    assert f"# {runs}\n" in example and names["filled"].report.replayed == 27


def test_what_an_engine_returned_is_a_part() -> None:
    """``routed_experts`` and the Coverage beside it, as the adapters of engines return them."""
    of = request([1, 2, 3], [4, 5, 6], version=3)
    of.reasons[2] = Reason.CAPACITY
    rows = of.rows()
    coverage = Coverage(tuple(rows.coverage()), LAYERS, "")
    array = rows.astype(np.int16)
    every = np.zeros((5, 8, K), np.int16)  # of all layers of the model
    every[:, list(LAYERS)] = array
    for given in (array, every, array[1:], every[3:], array[:0]):
        got = coverage.rows(given, num_experts=EXPERTS)
        wanted = rows[5 - len(given) :]
        assert (got.first, got.last, got.layer_ids) == (wanted.first, 5, LAYERS)
        assert (got.ids == wanted.ids * wanted.valid[:, None, None]).all()
        for name in ("reason", "version", "provenance"):
            assert (got.infos[name] == wanted.infos[name]).all()
        Trajectory(of.tokens, [Part(got, of.tokens, of.prompt)])
