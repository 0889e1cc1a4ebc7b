"""Where a real vLLM is, and how its processes are started."""
import contextlib
import fcntl
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
ENGINE_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_CI_ENV": "0",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


class Place:
    """The virtual environment and what else an engine process needs."""

    def __init__(self, version):
        self.venv = pathlib.Path(os.environ.get("WAYMARK_VLLM_VENV", HERE / "environment" / "venv"))
        self.python = self.venv / "bin" / "python"
        folder = self.venv.parent / ("v" + "".join(version.split(".")[:2]).rjust(3, "0"))  # 0.33.0: v033
        self.other = folder if (folder / "vllm").is_dir() else None
        self.version = version

    def missing(self):
        if not self.python.exists():
            return f"no vLLM: {self.python} is not there (run tests/integration/vllm/setup, or set WAYMARK_VLLM_VENV)"
        found = subprocess.run([self.python, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"],
                               env=self.environment({}, "none"), capture_output=True, text=True).stdout.strip()
        return "" if found == self.version else f"no vLLM {self.version}: {self.venv} has {found or 'none'}"

    def environment(self, more, capture, fault="", fault_file="", runner="v1"):
        """Of a process; runner: vLLM's model runner, which is V2 on the CPU where Triton has a backend for it."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "WAYMARK_VLLM", "WAYMARK_TEST"))}
        paths = [str(HERE)]
        environment["VLLM_USE_V2_MODEL_RUNNER"] = str(int(runner == "v2"))
        if runner == "v2":
            paths.append(str(HERE / "triton_on_cpu"))
        if self.other:
            paths.append(str(self.other))
        if capture == "waymark":
            paths += [str(HERE / "entry_point"), os.environ.get("PYTHONPATH", "")]
            environment["WAYMARK_VLLM"] = "1"
            environment["WAYMARK_TEST_OPTIONS"] = '{"reasons": true}'  # additional_config["waymark"]
            if fault:
                environment |= {"WAYMARK_TEST_FAULT": fault, "WAYMARK_TEST_FAULT_FILE": str(fault_file)}
        return environment | ENGINE_ENVIRONMENT | {"PYTHONPATH": ":".join(filter(None, paths))} | more

    def call(self, script, arguments, environment, seconds):
        """Runs a script of ours in the environment: (exit status, output, errors)."""
        with contextlib.ExitStack() as stack:
            if path := os.environ.get("WAYMARK_VLLM_LOCK"):
                fcntl.flock(stack.enter_context(open(path, "a")), fcntl.LOCK_EX)
            # A session of its own: an engine's workers end with it, also when time is up.
            process = subprocess.Popen([self.python, HERE / script, *arguments], env=environment, start_new_session=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                out, err = process.communicate(timeout=seconds)
                return process.returncode, out, err
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                out, err = process.communicate()
                return 124, out, err + f"\nno end after {seconds} s"
