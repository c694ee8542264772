"""A stand-in for nvidia-smi that prints what real ones were seen to print."""

from __future__ import annotations

import sys
from pathlib import Path

# Lines of `--format=csv,noheader,nounits`, by the fields that were asked for.
_PROGRAM = """#!{python}
import os, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
log = os.open(os.path.join(folder, "asked"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
os.write(log, (" ".join(sys.argv[1:]) + chr(10)).encode())
with open(os.path.join(folder, "mode")) as file:
    mode, _, rest = file.read().partition(" ")
fields = sys.argv[1].partition("=")[2].split(",")
if mode == "hang":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if mode == "fail":
    print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
          "sure that the latest NVIDIA driver is installed and running.\\n")
    sys.exit(9)
if mode == "lost":
    print("Unable to determine the device handle for GPU 0000:04:00.0: GPU is lost.  Reboot the "
          "system to recover this GPU")
    sys.exit(15)
old = {{"mig.mode.current", "power.draw"}}
if mode == "old" and old & set(fields):
    print('Field "%s" is not a valid field to query.' % min(old & set(fields)))
    sys.exit(2)
if mode == "busy" and rest:
    time.sleep(float(rest))
use = {{"idle": "0", "busy": "97", "na": "[N/A]", "err": "ERR!", "mig": "[N/A]", "old": "35",
       "two": "12", "half": "0"}}[mode]
known = {{
    "index": "0", "uuid": "GPU-1f2e0000-aaaa", "name": "Tesla T4", "utilization.gpu": use,
    "memory.used": "4312", "memory.total": "15360", "power.draw": "[Not Supported]",
    "temperature.gpu": "41", "mig.mode.current": "Enabled" if mode == "mig" else "[N/A]",
}}
print(", ".join(known[each] for each in fields))
if mode in ("two", "half"):
    second = {{**known, "index": "1", "uuid": "GPU-77770000-bbbb", "utilization.gpu": "88",
              "memory.used": "15001"}}
    print(", ".join(second[each] for each in fields))
"""


class NvidiaSmi:
    """The stand-in, in a folder for the PATH. `python` executes it."""

    def __init__(self, folder: Path, mode: str = "idle", python: str = sys.executable) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "nvidia-smi"
        program.write_text(_PROGRAM.format(python=python), encoding="utf-8")
        program.chmod(0o755)
        self.set(mode)

    def set(self, mode: str) -> None:
        """Choose what it prints from now on."""
        part = self.folder / "mode.part"
        part.write_text(mode, encoding="utf-8")
        part.replace(self.folder / "mode")

    @property
    def asked(self) -> list[str]:
        """The arguments of each call."""
        log = self.folder / "asked"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []
