"""Exact MoE routing of every token, for as long as its KV lives. (Placeholder.)"""

from ._core import version as _version

__version__ = _version()
