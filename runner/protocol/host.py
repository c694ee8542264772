"""What client and agent do in the same way on the machine that they run on.

Variables for the processes that they start, and the deletion of folders that scripts wrote to. The
emulator, which imports nothing of ours, has its own copies in `proxies.py` and `folders.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def exclude_loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that exclude this machine from the proxies of an environment.

    A proxy on another machine cannot reach local services. Empty if there is no proxy.
    """
    # `::1` is left out: nothing of ours listens on it, and some clients cannot parse it.
    proxies = {name for name in environment if name.lower().endswith("_proxy")}
    if not proxies - {"no_proxy", "NO_PROXY"}:
        return {}
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    excluded = "*" if "*" in hosts else ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))
    return {"no_proxy": excluded, "NO_PROXY": excluded}


def remove_tree(folder: Path) -> None:
    """Delete a folder that a script could write to, as far as possible; it may be absent.

    The script may have taken the permissions of folders in it, or nested them deeply.
    """
    with suppress(RecursionError):  # before Python 3.13, from a thousand levels on
        shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir() and not folder.is_symlink():
        import subprocess  # noqa: PLC0415  rarely needed

        for command in ("chmod", "-R", "u+rwx"), ("rm", "-rf"):  # neither follows links
            with suppress(OSError):  # an image or Windows may lack them
                subprocess.run([*command, "--", str(folder)], check=False, capture_output=True)
