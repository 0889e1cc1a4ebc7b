"""Pages of routing through Ray's object store, for ray_rollouts.py: what engines publish, which
bundle has it, and how a trainer reads it.

Ray's objects are to be large: one for each page costs more than the page. So all that an engine
publishes in a call is one array, a bundle, which the call returns. Its owner is then the caller,
and it outlives the engine; what the engine itself puts (ray.put) dies with the engine.
"""
from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import ray

CATALOG = "waymark"
Digest = bytes
Index = dict[Digest, tuple[int, int]]
"""Where each object is in its bundle: [begin, end)."""
Place = tuple[int, int, int]
"""(bundle, begin, end)"""
Found = tuple[list[Place | None], dict[int, tuple[str, list[ray.ObjectRef]]]]
"""Places of objects; (engine, [bundle]) by number."""


class Bundle:
    """The page source of an engine: keeps what its publisher puts until the call returns it."""

    def __init__(self) -> None:
        self.returned: set[Digest] = set()
        self.objects: dict[Digest, bytes] = {}

    def holds(self, digests: list[Digest], timeout: float) -> list[bool]:
        return [digest in self.returned or digest in self.objects for digest in digests]

    def get(self, digests: list[Digest], timeout: float) -> list[bytes | None]:
        return [self.objects.get(digest) for digest in digests]

    def put(self, objects: list[tuple[Digest, bytes]], timeout: float) -> None:
        self.objects.update(objects)

    def take(self) -> tuple[np.ndarray, Index]:
        """All objects as one array, which Ray's readers map and do not copy; where each is."""
        ends = np.cumsum([len(data) for data in self.objects.values()]).tolist()
        index = dict(zip(self.objects, zip([0, *ends], ends)))
        array = np.frombuffer(b"".join(self.objects.values()), np.uint8)
        self.returned |= index.keys()
        self.objects = {}
        return array, index


class Catalog:
    """A named actor: knows which bundle has an object. Bundles live as long as it refers to them,
    which here is to the end."""

    def __init__(self) -> None:
        self.bundles: list[tuple[str, list[ray.ObjectRef]]] = []  # engine, [bundle]
        self.places: dict[Digest, Place] = {}
        self.samples: dict[int, Any] = {}  # by group

    def add(self, engine: str, boxed: list[ray.ObjectRef], index: Index) -> None:
        """A bundle, in a list, because Ray would replace it by its value."""
        self.places |= {digest: (len(self.bundles), *place) for digest, place in index.items()}
        self.bundles.append((engine, boxed))

    def find(self, digests: list[Digest], known: set[int]) -> Found:
        """Where the objects are, and those of their bundles that are not known."""
        places = [self.places.get(digest) for digest in digests]
        numbers = {place[0] for place in places if place} - known
        return places, {number: self.bundles[number] for number in numbers}

    def tell(self, group: int, samples: Any) -> None:
        """What the samples of a group are: their tokens, and the handles of their turns."""
        self.samples[group] = samples

    def ask(self, group: int) -> Any:
        """What was told last."""
        return self.samples.get(group, [])


class RaySource:
    """The page source of a trainer: objects out of bundles, each of which it gets once."""

    def __init__(self) -> None:
        self.catalog = ray.get_actor(CATALOG)
        self.bundles: dict[int, tuple[str, np.ndarray | None]] = {}
        self.fetched: Counter[str] = Counter()  # bytes, by engine
        self.objects: dict[Digest, int] = {}  # different ones, and their bytes

    def put(self, objects: list[tuple[Digest, bytes]], timeout: float) -> None:
        raise NotImplementedError("a trainer publishes nothing")

    def get(self, digests: list[Digest], timeout: float) -> list[np.ndarray | None]:
        found: Any = ray.get(self.catalog.find.remote(digests, {*self.bundles}), timeout=timeout)
        places, new = found
        for number, (engine, (ref,)) in new.items():
            try:
                self.bundles[number] = engine, ray.get(ref, timeout=timeout)
            except ray.exceptions.ObjectLostError:  # with its owner, or with the node it lay on
                self.bundles[number] = engine, None
        return [self.cut(*pair) for pair in zip(digests, places)]

    def cut(self, digest: Digest, place: Place | None) -> np.ndarray | None:
        """An object; None: it is absent."""
        number, begin, end = place or (-1, 0, 0)
        engine, bundle = self.bundles.get(number, ("", None))
        if bundle is None:
            return None
        self.fetched[engine] += end - begin
        self.objects[digest] = end - begin
        return bundle[begin:end]
