"""Where the environment of these tests is: that of tests/integration/megatron, whose `setup` makes it."""
import importlib.util
import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
MEGATRON = HERE.parent / "megatron"

_spec = importlib.util.spec_from_file_location("megatron_place", MEGATRON / "place.py")
megatron_place = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(megatron_place)

SKIPPED, VERSIONS, folder, missing = (
    getattr(megatron_place, name) for name in ("SKIPPED", "VERSIONS", "folder", "missing"))


def python():
    """The interpreter that has torch and transformers."""
    return folder() / "venv/bin/python"


def environment(version):
    """Of a process with this version of megatron-core; it may import no_cuda."""
    whole = megatron_place.environment(version)
    return whole | {"PYTHONPATH": os.pathsep.join([whole["PYTHONPATH"], str(MEGATRON)])}
