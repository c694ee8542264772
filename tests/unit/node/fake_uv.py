"""A fake uv for tests without packages, which links this interpreter and prints like uv."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = """#!{python}
import os, sys, time
from pathlib import Path
arguments = sys.argv[1:]
log = Path(__file__).parents[2] / "uv.log"  # `runner` is read-only to builds
with log.open("a") as out:
    out.write(" ".join(arguments) + "\\n")
fail = Path(__file__).with_name("uv.fail")
if fail.exists() and arguments[0] == "pip":
    sys.stderr.write(fail.read_text())
    raise SystemExit(2)
slow = Path(__file__).with_name("uv.slow")
if slow.exists():
    time.sleep(600)
    slow.unlink()
if arguments[0] == "venv":
    bin_dir = Path(arguments[-1]) / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "python").symlink_to({python!r})
elif arguments[:2] == ["pip", "install"]:
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert os.environ["UV_CACHE_DIR"].endswith("runner/cache/uv")
    environment = Path(arguments[arguments.index("--python") + 1]).parent.parent
    listed = Path(arguments[-1]).read_text() if "-r" in arguments else ""
    (environment / "installed.txt").write_text(listed)
    for line in ("Resolved 2 packages in 1ms", " Downloaded keras", "Installed 2 packages in 1ms"):
        print(line, file=sys.stderr)
"""


def install_fake_uv(shared_dir: Path) -> Path:
    """Install the fake at the path of the start task's uv. Its `shared/uv.log` lists the calls."""
    path = shared_dir / "runner" / "bin" / "uv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT.format(python=sys.executable))
    path.chmod(0o755)
    return path
