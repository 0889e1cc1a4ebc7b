"""docs/examples/ray_rollouts.py with an error planted, which its table must show.

    PYTHONPATH=docs/examples python tests/python/ray_plants.py PLANT [arguments]
"""

from __future__ import annotations

import sys
from typing import Any

import ray
import ray_rollouts
from ray_rollouts import Driver, Engine, Reply

THE_TURN = 3  # in which something goes wrong, counted from 1


class Alive(Driver):
    """No engine is killed."""

    def kill(self) -> None:
        pass


class Swap(Alive):
    """Two samples get each other's handle."""

    def tell(self, group: int, engine: str, bundle: Any, reply: Reply) -> None:
        if self.returned == THE_TURN:
            one, two, *others = reply.turns
            swapped = [one._replace(handle=two.handle), two._replace(handle=one.handle)]
            reply = reply._replace(turns=[*swapped, *others])
        super().tell(group, engine, bundle, reply)


class Wrong(Alive):
    """Of one turn, the catalog gets the bundle of another."""

    last: Any = None

    def tell(self, group: int, engine: str, bundle: Any, reply: Reply) -> None:
        bundle, self.last = self.last if self.returned == THE_TURN else bundle, bundle
        super().tell(group, engine, bundle, reply)


class Drop(Alive):
    """The catalog never gets one bundle."""

    def tell(self, group: int, engine: str, bundle: Any, reply: Reply) -> None:
        reply = reply._replace(places={}) if self.returned == THE_TURN else reply
        super().tell(group, engine, bundle, reply)


class PuttingEngine(Engine):
    """Puts its bundles, and returns references to them."""

    def rollout(self, *args: Any) -> tuple[Any, Reply]:
        bundle, reply = super().rollout(*args)
        return [ray.put(bundle)], reply


class Put(Driver):
    """Engines own their bundles."""

    engine_class = PuttingEngine

    def tell(self, group: int, engine: str, bundle: Any, reply: Reply) -> None:
        super().tell(group, engine, ray.get(bundle)[0], reply)


class Kill(Driver):
    """Turns that an engine was killed in are not run again."""

    ended = 0

    def send(self, group: int) -> None:
        if self.cut_off > self.ended:
            self.ended = self.cut_off
            self.learn(group)
        else:
            super().send(group)


PLANTS = {plant.__name__.lower(): plant for plant in (Swap, Wrong, Drop, Put, Kill)}

if __name__ == "__main__":
    sys.exit(ray_rollouts.main(PLANTS[sys.argv.pop(1)]))
