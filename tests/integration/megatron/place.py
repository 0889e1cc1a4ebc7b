"""Where the versions of megatron-core are, and how its processes are started."""
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
VERSIONS = {"0.18.2": "v018", "0.19.2": "v019", "main": "main"}


def folder():
    return pathlib.Path(os.environ.get("WAYMARK_MEGATRON", HERE / "environment"))


def environment(version):
    path = [str(folder() / VERSIONS[version]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def missing(version):
    """Why nothing runs, or nothing."""
    python = folder() / "venv/bin/python"
    if not python.exists() or not (folder() / VERSIONS[version]).is_dir():
        return f"there is no megatron-core {version} in {folder()}: run setup, or set WAYMARK_MEGATRON"
    tried = subprocess.run([python, "-c", "import waymark.megatron"], env=environment(version), capture_output=True, text=True)
    return "" if tried.returncode == 0 else "waymark is not on PYTHONPATH: " + tried.stderr.strip().splitlines()[-1]
