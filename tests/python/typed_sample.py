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
    store = waymark.Store(
        num_layers=58, top_k=8, num_experts=256, num_blocks=4096,
        recorder=waymark.RecorderOptions(ids=True),
    )  # fmt: skip
    session = waymark.CaptureSession(
        store,
        512,
        row_gather=Group(),
        layers=[(0, "model.layers.1.mlp", "hands_over"), (1, "m", waymark.LayerCapture.HANDS_OVER)],
    )
    store.schedule(1, 1)
    store.bind(blocks, [b"key"])
    store.seal([1, 2], np.zeros(2, np.uint64))
    store.seal([1, 2], np.zeros(2, np.uint64), step=1)
    slots = waymark.slots_of(blocks, 16, 0, tokens)
    assert_type(slots, npt.NDArray[np.int64])
    assert_type(waymark.NOT_ASKED(3), int)
    assert_type(session.begin_step(1, 1, slots), bool)
    events = np.zeros(3, waymark.event_dtype)
    ones = np.ones(1, np.int32)
    assert_type(session.begin_step(2, 1, pairs=(ones, ones), events=events), bool)
    assert_type(
        session.begin_ids_step(3, 1, pairs=(ones, ones)), bool
    )
    view = session.view(1)
    assert_type(view, waymark.View)
    assert_type(view.array, npt.NDArray[np.int16])
    assert_type(view.layer(3), npt.NDArray[np.int16])
    session.hand_over(view, 0, view.layer(0))
    logits = np.zeros((tokens, 256), np.float32)
    assert_type(waymark.route(logits, top_k=8, method="sigmoid"), waymark.Routing)
    routed = session.route(1, 2, logits, top_k=8, method=waymark.RoutingMethod.DEEPSEEK_V3)
    assert_type(routed, waymark.Routing)
    session.submit(1)
    writer = waymark.ScheduleWriter(4096)
    writer.begin(4, version=1)
    writer.bind(blocks)
    writer.snapshot(7, blocks, 0, tokens)
    assert_type(writer.finish(), bytes)
    store.report_message(writer.finish())
    assert_type(store.take_tagged(7), waymark.Snapshot)

    def forward(view: waymark.View, rows: int) -> None:
        view.array[:, :rows] = 0

    assert_type(session.self_test(8, forward).findings[0].fault, waymark.Fault)
    assert_type(store.stats().missing, dict[waymark.Reason, int])
    for line in store.take_log():
        assert_type(line.level, int)
    if store.recorder is not None:
        store.recorder.dump("flight")
    with waymark.Cursor(store).snapshot(blocks, tokens) as snapshot:
        assert_type(snapshot, waymark.Snapshot)
        snapshot.wait(timeout=1.0)
        ids, infos = snapshot.read_with_info(layout="LTK", dtype=np.int32, fill="arange")
        rows = snapshot.rows().gather_layers(Group())
        assert_type(rows.join_ranks(Group()), waymark.Rows)
        assert_type(rows, waymark.Rows)
        assert_type(rows.valid, npt.NDArray[np.bool_])
        assert_type(infos, npt.NDArray[np.void])
        document = waymark.from_bytes(rows.to_bytes(codec="set", nodes=True))
        assert_type(document.rows(layers=(0, 1)), waymark.Rows)
        assert_type(document.check().damaged_chunks, int)
        publisher = waymark.Publisher(
            waymark.MemorySource(), rows.shape, crc_layers=1, store="engine"
        )
        assert_type(waymark.from_bytes(rows.to_bytes(crc_layers=2)).crc_layers, int)
        handle = publisher.publish(rows, sequence="request").wait(timeout=1.0)
        assert_type(handle, waymark.Handle)
        fetched, report = waymark.Fetcher(waymark.MemorySource()).fetch_with_report(handle)
        assert_type(fetched, waymark.Rows)
        assert_type(report.absent, int)
        redis = waymark.RedisSource("localhost", 6379, password="word", time_to_live=3600)
        fetched = waymark.Fetcher(redis).fetch(waymark.Handle(bytes(handle)), timeout=1.0)
        assert_type(waymark.Publisher(redis, fetched.shape).stats().puts_failed, int)
        own = OwnSource()
        assert_type(waymark.Publisher(own, rows.shape).publish(rows).wait(1.0), waymark.Handle)
        assert_type(waymark.Fetcher(own).fetch(handle), waymark.Rows)
        notes: list[str] = []
        array = rows.to_format("vllm", layers="all", num_layers=61, dtype=np.uint16, notes=notes)
        read = waymark.read(array, num_experts=256, moe_layers=range(3, 61), notes=notes)
        assert_type(read, waymark.Rows)
        for run in snapshot.coverage():
            assert_type(run.reason, waymark.Reason)
    try:
        session.submit(1)
    except waymark.NotFoundError as error:
        assert_type(error.rule, int)
    return ids
