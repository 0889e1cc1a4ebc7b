"""The package as a whole: what importing it does, its errors, its words."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import output_of


def test_importing_starts_nothing_and_needs_numpy_alone() -> None:
    code = """
import sys, threading, numpy
before = set(sys.modules)
count = open('/proc/self/status').read().split('Threads:')[1].split()[0]
import waymark
assert open('/proc/self/status').read().split('Threads:')[1].split()[0] == count
new = {m.partition('.')[0] for m in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names) - {'waymark', 'numpy'}))
"""
    assert output_of(code)[0].strip() == "[]"


def test_everything_works_without_torch() -> None:
    code = """
import sys
sys.modules['torch'] = None   # importing it fails
import numpy as np, waymark
cap = waymark.Capture(num_layers=2, top_k=2, num_experts=8, num_blocks=8)
cap.bind([0])
cap.step(1, 1, [0, 1], np.array([[[0, 1]] * 2, [[2, 3]] * 2]))
print(cap.take([0], 2).result(10).ids.tolist())
"""
    assert output_of(code)[0].strip() == str([[[0, 1], [0, 1]], [[2, 3], [2, 3]]])


def test_the_interpreter_may_end_with_everything_open() -> None:
    code = """
import threading, time, numpy as np, waymark
cap = waymark.Capture(num_layers=2, top_k=2, num_experts=8, num_blocks=64)
cap.bind(range(8))
first = cap.step(1, 1, [1])
second = cap.step(2, 1, [2])
ids = np.zeros((1, 2, 2), np.int16)
third = cap.step(3, 1, [3], ids)
taken = cap.take([0], 2)
buffer = cap.buffer(np.zeros((1, 2, 2), np.int16))
cap.step(4, 1, cap.buffer(np.zeros(1, np.int64)), buffer)
second.ids = ids
taken.add_done_callback(lambda taken: None)
def reader():
    while True:
        taken.done(); time.sleep(0)
def waiter():
    taken.result()
for f in (reader, waiter):
    threading.Thread(target=f, daemon=True).start()
time.sleep(0.05)
keep = [cap, first, taken]
keep.append(keep)   # a cycle
print('end')
"""
    assert output_of(code)[0].strip() == "end"


def test_a_daemon_thread_that_waits_does_not_end_the_process() -> None:
    """CPython up to 3.13 unwinds the stack of a thread that wants the GIL when it goes down: that
    was a std::terminate."""
    code = """
import threading, time, waymark
cap = waymark.Capture(num_layers=2, top_k=2, num_experts=8, num_blocks=64)
step = cap.step(1, 1, [])
taken = cap.take([0], 2)
threading.Thread(target=taken.result, daemon=True).start()
time.sleep(0.05)
class Late:   # the end takes longer than a slice of a wait
    def __del__(self, sleep=time.sleep):
        sleep(0.3)
late = Late()
print('end')
"""
    assert output_of(code)[0].strip() == "end"


def test_version_and_build_info() -> None:
    info = waymark.build_info()
    assert waymark.__version__ == info["version"]
    assert {"version", "abi", "compiler", "cuda", "archs", "host"} <= set(info)
    assert info["abi"] == "1.0"


def test_every_public_name_is_there_and_documented() -> None:
    for name in waymark.__all__:
        thing = getattr(waymark, name)
        if callable(thing):
            assert thing.__doc__, name
        if isinstance(thing, type) and thing.__module__.startswith("waymark"):
            for attribute in dir(thing):
                if not attribute.startswith("_") and not issubclass(thing, (tuple, int, Exception)):
                    member = getattr(thing, attribute)
                    assert member is None or not callable(member) or member.__doc__, (
                        f"{name}.{attribute}"
                    )


def test_one_exception_class_a_status() -> None:
    from waymark import _core
    from waymark._errors import error_of

    classes = {
        1: "Cancelled", 2: "Unknown", 3: "InvalidArgument", 4: "DeadlineExceeded", 5: "NotFound",
        6: "AlreadyExists", 8: "ResourceExhausted", 9: "FailedPrecondition", 11: "OutOfRange",
        12: "Unimplemented",
        13: "Internal", 14: "Unavailable", 15: "DataLoss",
    }  # fmt: skip
    for status, name in classes.items():
        error = error_of(status, "text", 1, 2, 3)
        assert type(error) is getattr(waymark, name + "Error")
        assert isinstance(error, waymark.WaymarkError) and error.status == status
        assert _core.status_name(status).replace("_", "").lower() == name.lower()
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == "text"
        assert (again.rule, again.index, again.value) == (1, 2, 3)
    builtin = {3: ValueError, 4: TimeoutError, 5: LookupError, 11: IndexError,
               12: NotImplementedError}  # fmt: skip
    for status, base in builtin.items():
        assert isinstance(error_of(status, ""), base)


def test_the_words_have_the_librarys_names() -> None:
    assert [str(r) for r in waymark.Reason][1:] == [
        "never written", "not captured", "external KV", "capacity", "invalid id", "audit",
        "released", "not told",
    ]  # fmt: skip
    assert [str(p) for p in waymark.Provenance] == ["here", "kept", "by key", "unknown"]


def test_slots() -> None:
    assert waymark.slots_of([4, 2], 4, 2, 7).tolist() == [18, 19, 8, 9, 10]
    assert waymark.slots_of(np.array([4, -1, 2]), 2, 0, 6).tolist() == [8, 9, -1, -1, 4, 5]
    assert waymark.slots_of([], 4, 0, 0).tolist() == []
    assert waymark.NOT_ASKED(5) == -7 and waymark.NOT_ASKED(-1) == -1
    assert waymark.NOT_ASKED(np.array([0, 3, -1])).tolist() == [-2, -5, -1]
    assert waymark.NOT_ASKED(np.array([], np.int64)).tolist() == []
    for wrong in ((0, 9), (-1, 2), (3, 2)):
        with pytest.raises(waymark.InvalidArgumentError):
            waymark.slots_of([4, 2], 4, *wrong)


# The product wrapped to another block's slot, a part of a block was dropped, and a row of a request
# that did not ask had asked.
@pytest.mark.parametrize(
    "blocks, text",
    [([2**60], str(2**60)), ([0, 2**31], str(2**31)), ([2**70], "2^31"), ([0.9], "0.9"),
     (np.array([2**63], np.uint64), str(2**63)), ([True], "bool"), ([[1]], "one dimension")],
)  # fmt: skip
def test_slots_of_what_is_no_block(blocks: Any, text: str) -> None:
    with pytest.raises(waymark.InvalidArgumentError, match="blocks: ") as caught:
        waymark.slots_of(blocks, 16, 0, 1)
    assert text in str(caught.value)


def test_not_asked_of_what_is_no_slot() -> None:
    for slot in (waymark.NOT_ASKED(5), np.int64(-7), np.array([3, -7, 4])):
        with pytest.raises(waymark.InvalidArgumentError, match="slot: at least -1, got -7"):
            waymark.NOT_ASKED(slot)


def test_what_the_package_brings_is_there_or_says_so() -> None:
    for find in (waymark.include_dir, waymark.library_path):
        try:
            assert os.path.exists(find())
        except waymark.NotFoundError as error:
            assert "not part of this installation" in str(error)
