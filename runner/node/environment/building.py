"""What an environment needs while it is built: a new folder, and the programs pip and uv."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.protocol.host import remove_tree

# `python -m pip` and `import pip` run it until the real pip has replaced it.
_PIP = '''\
# Unpack the pip that comes with this Python, and become it.
import fcntl, glob, importlib, os, shutil, sys, sysconfig, tempfile, zipfile

packages = sysconfig.get_path("purelib")  # of the layer; this file may be elsewhere
# An environment of one run has no other packages of a user; scripts for other systems ask for them.
WITHOUT_USER = """\
import os, sys
os.environ.pop("PIP_USER", None)
if "install" in sys.argv and "--user" in sys.argv:
    sys.argv.remove("--user")
"""


def unpack():
    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR")]
    try:
        import ensurepip

        folders.append(os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"))
    except ImportError:
        pass
    wheels = (glob.glob(os.path.join(each, "pip-*.whl")) for each in folders if each)
    found = [wheel for each in wheels for wheel in each]
    if not found:
        raise ImportError("this Python comes without pip: add pip to the requirements")
    beside = tempfile.mkdtemp(dir=packages)
    try:
        with zipfile.ZipFile(found[0]) as archive:
            archive.extractall(beside)
        main = os.path.join(beside, "pip", "__main__.py")
        with open(main) as file:
            text = file.read()
        with open(main, "w") as file:
            file.write(WITHOUT_USER + text)
        for name in sorted(os.listdir(beside), reverse=True):  # `pip` last: then it is complete
            if not os.path.exists(os.path.join(packages, name)):
                os.rename(os.path.join(beside, name), os.path.join(packages, name))
    finally:
        shutil.rmtree(beside, ignore_errors=True)


with open(os.path.join(packages, ".pip.lock"), "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not os.path.isdir(os.path.join(packages, "pip")):
        unpack()
del sys.modules["pip"]
importlib.invalidate_caches()
sys.path.insert(0, packages)
try:
    importlib.import_module("pip")
finally:
    sys.path.remove(packages)
'''
# Runs uv of the node, or another one on PATH. `--system` would be the Python of the node, which no
# run may change.
_UV_COMMAND = """\
#!/bin/sh
uv=$AZ_BATCH_NODE_SHARED_DIR/runner/bin/uv
if [ ! -x "$uv" ]; then
    uv=$(PATH=${PATH#"${0%/*}":} command -v uv)
    case $uv in "" | "$0") echo "uv is not installed on this node" >&2; exit 127 ;; esac
fi
if [ "$1" = pip ]; then
    count=$#
    for word; do
        [ "$word" = --system ] || set -- "$@" "$word"
    done
    shift $count
fi
unset UV_SYSTEM_PYTHON
exec "$uv" "$@"
"""
_PIP_COMMAND = '#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n'


def remove_environment(path: Path) -> None:
    """Delete a folder. It is renamed first, so that no task uses it while it is deleted."""
    with suppress(OSError):
        renamed = path.with_name(f"{path.name}.old-{secrets.token_hex(16)}")
        path.rename(renamed)
        remove_tree(renamed)


@contextmanager
def new_environment(target: Path) -> Generator[Path]:
    """Yield a new folder for building an environment, which the block renames to `target`.

    The caller holds the lock of `target`, so existing build folders are of killed tasks. Their uv
    may still be writing, so the new folder has a new name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{target.name}.building*"):
        remove_tree(left)
    building = target.with_name(f"{target.name}.building-{secrets.token_hex(16)}")
    try:
        yield building
    finally:
        remove_tree(building)


def add_pip(environment: Path) -> None:
    """Add a pip that installs itself in the layer that uses it, unless the packages include pip."""
    names = ["pip", "pip3"]
    for packages in environment.glob("lib/python*/site-packages"):
        # Else `pip3.12` would be that of the node.
        names.append(packages.parent.name.replace("python", "pip"))
        if (packages / "pip").exists():
            return
        (packages / "pip").mkdir()
        (packages / "pip" / "__init__.py").write_text(_PIP, encoding="utf-8")
    for name in names:
        program = environment / "bin" / name
        program.write_text(_PIP_COMMAND, encoding="utf-8")
        program.chmod(0o755)


def add_uv(environment: Path) -> None:
    """Add a program `uv` that installs in the layer that uses it, unless the packages have one."""
    program = environment / "bin" / "uv"
    if not program.exists():
        program.write_text(_UV_COMMAND, encoding="utf-8")
        program.chmod(0o755)
