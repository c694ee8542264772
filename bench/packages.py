"""A wheel made on the spot, so that an environment with packages needs no network."""

from __future__ import annotations

import zipfile
from pathlib import Path

# With their bytecode as many files and folders as the environment of `runner train mnist`
# (Keras, JAX, NumPy, SciPy: 8,695 files in 1,055 folders).
FOLDERS = 520
MODULES_EACH = 8
MODULE = "import math\n\ndef area(radius):\n    return math.pi * radius ** 2\n"


def write_wheel(folder: Path) -> str:
    """A wheel of many small modules in `folder`; its file name."""
    name, tag = "bench_many-1.0", "py3-none-any"
    about = f"{name}.dist-info"
    files = {
        f"bench_many/part{part}/{module}.py": MODULE
        for part in range(FOLDERS)
        for module in ("__init__", *(f"module{number}" for number in range(1, MODULES_EACH)))
    }
    files["bench_many/__init__.py"] = ""
    files[f"{about}/METADATA"] = "Metadata-Version: 2.1\nName: bench-many\nVersion: 1.0\n"
    files[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{about}/RECORD"))
    wheel = folder / f"{name}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return wheel.name
