"""A program that mypy --strict must accept, with the types that it says. Never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import waymark


class Group:
    rank = 0
    size = 1

    def all_gather(self, data: bytes, /) -> Sequence[bytes]:
        return [data]


class OwnSource:
    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}

    def get(self, digests: list[bytes], timeout: float) -> list[bytes | None]:
        return [self.objects.get(digest) for digest in digests]

    def put(self, objects: list[tuple[bytes, bytes]], timeout: float) -> None:
        self.objects.update(objects)


def engine(blocks: npt.NDArray[np.int32], tokens: int) -> npt.NDArray[Any]:
    cap = waymark.Capture(
        num_layers=58, top_k=8, num_experts=256, num_blocks=4096, layer_names=["model.layers.1.mlp"],
        recorder=waymark.RecorderOptions(ids=True), row_gather=Group(), ids_layout="LNK",
        ids_timeout=None, audit=False, audit_threshold=0.5, spare_pages=7,
    )  # fmt: skip
    cap.schedule(1, 1)
    cap.bind(blocks, [b"key"])
    cap.seal([1, 2], np.zeros(2, np.uint64))
    cap.seal([1, 2], np.zeros(2, np.uint64), step=1)
    slots = waymark.slots_of(blocks, 16, 0, tokens)
    assert_type(slots, npt.NDArray[np.int64])
    assert_type(waymark.NOT_ASKED(3), int)
    ids = np.zeros((58, tokens, 8), np.int16)
    events = np.zeros(3, waymark.event_dtype)
    ones = np.ones(1, np.int32)
    with cap.step(1, 1, slots) as step:
        assert_type(step, waymark.Step)
        step.ids = ids
    assert_type(cap.step(None, None, slots, ids, count=1, layout="LNK").dropped, bool)
    cap.step(None, None, (ones, ones), None, asked=ones, block_tokens=8, events=events).lost()
    slot_buffer, id_buffer = cap.buffer(slots), cap.buffer(ids)
    assert_type(id_buffer, waymark.Buffer)
    assert_type(cap.step(None, None, slot_buffer, id_buffer), waymark.Step)
    assert_type(id_buffer.free, bool)
    cap.lose_rows()
    assert_type(cap.stats(), waymark.StoreStats)
    assert_type(cap.stats().steps_begun, int)
    assert_type(cap.stats().as_dict(), dict[str, int])
    assert_type(cap.stats().missing, dict[waymark.Reason, int])
    assert_type(cap.layer_stats()[0].rows_silent, int)
    assert_type(cap.gather_stats(), tuple[int, int, int])
    assert_type(cap.take_findings()[0].agreement, float)
    cap.dump_flight("flight")
    taken = cap.take(blocks, tokens, first=2)
    assert_type(taken, waymark.Taken)
    taken.add_done_callback(lambda done: print(done.exception()))
    rows = taken.result(timeout=1.0)
    assert_type(rows, waymark.Rows)
    assert_type(rows.valid, npt.NDArray[np.bool_])
    assert_type(rows.infos, npt.NDArray[np.void])
    array = rows.astype(np.int32, layout="LTK", fill="zeros")
    assert_type(array, npt.NDArray[Any])
    document = waymark.from_bytes(rows.to_bytes(codec="set", nodes=True))
    assert_type(document.rows(layers=(0, 1)), waymark.Rows)
    assert_type(document.check().damaged_chunks, int)
    assert_type(waymark.join(rows, document), waymark.Rows)
    publisher = waymark.Publisher(waymark.MemorySource(), rows.shape, crc_layers=1, store="engine")
    assert_type(waymark.from_bytes(rows.to_bytes(crc_layers=2)).crc_layers, int)
    handle = publisher.publish(rows, sequence="request").wait(timeout=1.0)
    assert_type(handle, waymark.Handle)
    fetched, report = waymark.Fetcher(waymark.MemorySource()).fetch_with_report(handle)
    assert_type(fetched, waymark.Rows)
    assert_type(report.absent, int)
    redis = waymark.RedisSource("localhost", 6379, password="word", time_to_live=3600)
    folder = waymark.FolderSource("/tmp/objects", max_bytes=1 << 30, time_to_live=60)
    for source in (folder, waymark.source_of("redis://localhost/1")):
        waymark.Fetcher(source).counts()
    fetched = waymark.Fetcher(redis).fetch(waymark.Handle(bytes(handle)), timeout=1.0)
    assert_type(waymark.Publisher(redis, fetched.shape).stats().puts_failed, int)
    own = OwnSource()
    assert_type(waymark.Publisher(own, rows.shape).publish(rows).wait(1.0), waymark.Handle)
    assert_type(waymark.Fetcher(own).fetch(handle), waymark.Rows)
    proof = waymark.verify({"request": rows}, lambda name: array)
    assert_type(proof.alarms[0].text, str)
    assert_type(proof.missing[waymark.Reason.CAPACITY], int)
    notes: list[str] = []
    data = rows.to_format("vllm", layers="all", num_layers=61, dtype=np.uint16, notes=notes)
    read = waymark.read(data, num_experts=256, moe_layers=range(3, 61), notes=notes)
    assert_type(read, waymark.Rows)
    for run in rows.coverage():
        assert_type(run.reason, waymark.Reason)
    try:
        cap.step(1, 1, [])
    except waymark.InvalidArgumentError as error:
        assert_type(error.rule, int)
    return array
