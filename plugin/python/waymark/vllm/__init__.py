"""Waymark for vLLM. Needs neither torch nor vLLM; importing it starts nothing."""

from .._core import VllmScheduler

__all__ = ["VllmScheduler"]
