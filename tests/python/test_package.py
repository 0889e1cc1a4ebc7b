"""The installed wheel: what is in it, and what it leans on."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys

import waymark

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(waymark.__file__).resolve().parent


def project_version():
    text = (REPOSITORY / "CMakeLists.txt").read_text()
    return re.search(r"project\(waymark\s+VERSION ([0-9.]+)", text).group(1)


def test_one_version():
    assert waymark.__version__ == project_version()
    assert importlib.metadata.version("waymark-moe") == project_version()


def test_requires_numpy_only():
    requires = importlib.metadata.requires("waymark-moe") or []
    assert [one for one in requires if "extra ==" not in one] == ["numpy"]


def test_holds_the_module_the_headers_of_c_and_nothing_of_the_cpp_library():
    files = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyi", ".pyc")
    }
    modules = {name for name in files if re.fullmatch(r"_core\.[a-z0-9_.-]+\.so", name)}
    assert len(modules) == 1
    assert files - modules == {
        "include/waymark.h",
        "include/waymark_graph.h",
        "include/waymark_wire.h",
        "py.typed",
    }


def test_loads_its_own_library_and_no_other():
    program = "import waymark; print(open('/proc/self/maps').read())"
    maps = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    loaded = {line.split(maxsplit=5)[5] for line in maps.splitlines() if ".so" in line}
    assert waymark.library_path() in loaded
    assert not [name for name in loaded if re.search(r"absl|libcuda|libnv", name)]


def test_the_tool_runs():
    tool = pathlib.Path(sys.executable).parent / "waymark"
    answer = subprocess.run([tool, "--version"], check=True, capture_output=True, text=True)
    assert project_version() in answer.stdout
    subprocess.run([tool, "demo", "--groups", "1", "--samples", "2", "--turns", "2"], check=True, capture_output=True)
