"""Page sources of `cost`, which run in a process of their own (python:tier_sources:NAME)."""
import time


class Memory:
    def __init__(self):
        self.objects = {}

    def get(self, digests, timeout):
        return [self.objects.get(digest) for digest in digests]

    def put(self, objects, timeout):
        self.objects.update(objects)

    def holds(self, digests, timeout):
        return [digest in self.objects for digest in digests]


class Slow(Memory):
    """Takes 50 ms a call."""

    def __getattribute__(self, name):
        if name in ("get", "put", "holds"):
            time.sleep(0.05)
        return super().__getattribute__(name)


class Stopped(Memory):
    """Never answers."""

    def __getattribute__(self, name):
        if name in ("get", "put", "holds"):
            time.sleep(3600)
        return super().__getattribute__(name)
