"""A fake blobfuse2, which checks its arguments like the real one, and mounts by linking a folder.

The containers are folders next to it, and so is the log of its calls.
"""

import json
import stat
import sys
import time
from pathlib import Path

_KEY = "a2V5IG9mIHRoZSBhY2NvdW50"


def main() -> int:
    here = Path(sys.argv[0]).parent
    command, point = sys.argv[1], Path(sys.argv[2])
    with (here / "log").open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    if command == "unmount":
        return _unmount(point)
    assert command == "mount"
    flags = dict(
        flag.split("=", 1) for flag in sys.argv[3:] if flag.startswith("--") and "=" in flag
    )
    config = Path(flags["--config-file"])
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert not list(Path(flags["--tmp-path"]).iterdir())
    azure = json.loads("\n".join(config.read_text().splitlines()[1:]))["azstorage"]
    assert azure["account-name"] == "account"
    assert azure["type"] == "block"
    secret = azure["account-key"] if azure["mode"] == "key" else azure["sas"]
    container = here / "containers" / azure["container"]
    if secret not in (_KEY, "sig=right"):
        sys.stderr.write(f"Error: failed to mount with {secret}: AuthenticationFailed\n")
        return 1
    if not container.is_dir():
        sys.stderr.write("Error: failed to mount: ContainerNotFound\n")
        return 1
    if any(point.iterdir()):
        sys.stderr.write("Error: mount directory is not empty\n")
        return 1
    if (here / "hangs").exists():
        time.sleep(600)
    point.rmdir()
    point.symlink_to(container)
    return 0


def _unmount(point: Path) -> int:
    if not point.is_symlink():
        sys.stderr.write("Error: not mounted\n")
        return 1
    point.unlink()
    point.mkdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
