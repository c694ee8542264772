"""A fake Ubuntu machine, on which the real scripts of the image run, in a temporary root.

A stub on PATH replaces every command that would change the machine. It keeps the machine's state
in a folder, and logs its calls.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "custom_image"
KERNEL = "6.17.0-1012-azure"
COMMANDS = (
    *("apt-get", "apt-mark", "dpkg-query", "systemctl", "curl", "gpg", "modprobe", "uname"),
    *("python3", "docker", "nvidia-smi", "nvcc", "ldd", "nvidia-ctk", "uv", "blobfuse2", "dmesg"),
)
KEYS = {
    "3bf863cc.pub": "EB693B3035CD5710E231E123A4B469963BF863CC",
    "gpgkey": "C95B321B61E88C1809C4F759DDCAE044F796ECB0",
    "microsoft.asc": "BC528686B50D79E339D3721CEB3E94ADBE1229CF",
}
# Commands that change nothing.
QUESTIONS = ("dpkg-query", "apt-mark showhold", "systemctl is-enabled", "gpg --batch --show-keys")

_STUB = r"""#!/usr/bin/env bash
name=${0##*/}; line="$name $*"; line=${line//$'\n'/ }
[[ $name == uname || $name == python3 || $name == ldd ]] || echo "$line" >>"$STUB/log"
if [[ -n ${STUB_FAIL:-} && $line == $STUB_FAIL ]]; then echo "stub: told to fail" >&2; exit 100; fi
last=${*: -1}
case $name in
  uname) echo "${STUB_KERNEL}" ;;
  dpkg-query)
    format=$3; shift 3; (($#)) || set -- '*'; found=1
    for pattern; do
      for file in "$STUB"/packages/$pattern; do
        [[ -f $file ]] || continue
        found=0; text=${format//'${db:Status-Status}'/installed}
        text=${text//'${Version}'/$(<"$file")}; printf "${text//'${Package}'/${file##*/}}"
      done
    done
    exit $found ;;
  apt-get)
    [[ $1 == install ]] || exit 0
    for word; do
      [[ $word == install || $word == -* ]] && continue
      [[ $word == *=* ]] && version=${word#*=} || version=1.0
      [[ ${STUB_LIES:-} == "${word%%=*}" ]] || printf %s "$version" >"$STUB/packages/${word%%=*}"
    done ;;
  apt-mark)
    touch "$STUB/held"
    if [[ $1 == showhold ]]; then sort "$STUB/held"
    else shift; printf '%s\n' "$@" >>"$STUB/held"; fi ;;
  systemctl)
    case $1 in
      is-enabled) cat "$STUB/units/$2" 2>/dev/null || { echo disabled; exit 1; } ;;
      mask) echo masked >"$STUB/units/$last" ;;
      enable) echo enabled >"$STUB/units/$last" ;;
    esac ;;
  curl)
    while (($# > 1)); do [[ $1 == --output ]] && target=$2; shift; done
    cp "$STUB/keys/${1##*/}" "$target" ;;
  gpg)
    if [[ $* == *--dearmor* ]]; then
      while (($# > 1)); do [[ $1 == --output ]] && target=$2; shift; done; cp "$1" "$target"
    else
      while read -r fingerprint; do
        printf 'pub:-:4096:1:X:1::::\nfpr:::::::::%s:\n' "$fingerprint"
        printf 'sub:-:1:\nfpr:::::::::SUBKEY:\n'
      done <"$last"
    fi ;;
  modprobe)
    mkdir -p "$IMAGE_ROOT/proc/driver/nvidia"; echo 580 >"$IMAGE_ROOT/proc/driver/nvidia/version" ;;
  python3)
    if [[ $* == "-m venv "* ]]; then
      mkdir -p "$3/bin"
      cat >"$3/bin/python" <<'PIP'
#!/usr/bin/env bash
echo "pip $*" >>"$STUB/log"
[[ "pip $*" != ${STUB_FAIL:-nothing} ]] || exit 1
printf '#!/bin/sh\necho "uv %s"\n' "$STUB_UV" >"${0%/*}/uv"; chmod +x "${0%/*}/uv"
PIP
      chmod +x "$3/bin/python"
    else exec "$STUB_PYTHON" "$@"; fi ;;
  nvidia-smi)
    case ${STUB_GPU:-good} in
      none) echo "NVIDIA-SMI couldn't communicate with the driver" >&2; exit 9 ;;
      gone) exit 0 ;;
    esac
    case $* in
      *driver_version*) echo "Tesla T4, ${STUB_DRIVER:-580.173.02}" ;;
      *ecc.errors*) printf '%s\n' "${STUB_ECC:-0, 0}" ;;
      *) echo "GPU 0: Tesla T4 (UUID: GPU-0)" ;;
    esac ;;
  nvcc)
    if [[ $1 == --version ]]; then
      echo "Cuda compilation tools, release ${STUB_CUDA:-12.8}, V12.8.93"; exit 0
    fi
    [[ ${STUB_KERNEL_BUILD:-good} == good ]] || { echo "square.cu(5): error" >&2; exit 2; }
    target=; while (($# > 1)); do [[ $1 == -o ]] && target=$2; shift; done
    [[ -f $1 ]] || exit 3
    printf '#!/bin/sh\n%s\n' "${STUB_KERNEL_RUN:-echo squared 65536}" >"$target"
    chmod +x "$target" ;;
  ldd) echo "/bin/sh:"; echo "libc.so.6 => /etc/hostname (0x1)" ;;
  docker)
    case $1 in
      import)
        cat >"$STUB/container.tar"
        [[ ${STUB_DOCKER:-good} != down ]] || { echo "Cannot connect"; exit 1; } ;;
      run)
        if [[ ${STUB_DOCKER:-good} != good ]]; then
          echo "could not select device driver" >&2; exit 125
        fi
        echo "${STUB_CONTAINER-GPU 0: Tesla T4 (UUID: GPU-0)}" ;;
    esac ;;
  nvidia-ctk) echo "NVIDIA Container Toolkit CLI version ${STUB_TOOLKIT:-1.18.2}" ;;
  uv) echo "uv $STUB_UV" ;;
  blobfuse2) echo "blobfuse2 version ${STUB_BLOBFUSE:-2.5.0}" ;;
  dmesg) printf '%s\n' "${STUB_DMESG:-[1.0] all is well}" ;;
esac
"""


@dataclass
class Machine:
    """The machine: `root` is its disk, and `stub` has its commands and their state."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root, self.stub = self.folder / "root", self.folder / "stub"
        self.scripts = self.folder / "image"
        shutil.copytree(SOURCE, self.scripts)
        for path in (
            self.root,
            *(self.stub / name for name in ("bin", "packages", "keys", "units")),
        ):
            path.mkdir(parents=True)
        stub = self.stub / "stub"
        stub.write_text(_STUB, encoding="utf-8")
        stub.chmod(0o755)
        for command in COMMANDS:
            (self.stub / "bin" / command).symlink_to(stub)
        for name, fingerprint in KEYS.items():
            (self.stub / "keys" / name).write_text(f"{fingerprint}\n", encoding="utf-8")
        for package in (f"linux-image-{KERNEL}", f"linux-modules-{KERNEL}", "linux-azure"):
            (self.stub / "packages" / package).write_text("6.17.0", encoding="utf-8")

    def run(self, script: str, *arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.stub / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "IMAGE_ROOT": str(self.root),
            "STUB": str(self.stub),
            "STUB_PYTHON": shutil.which("python3") or "",
            "STUB_UV": versions()["UV_VERSION"],
            "STUB_KERNEL": KERNEL,
            **self.variables,
            **changed,
        }
        return subprocess.run(
            ["bash", str(self.scripts / script), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=200,
            check=False,
        )

    def calls(self) -> list[str]:
        """Return the calls of commands since the last `calls`, one line each."""
        log = self.stub / "log"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        log.write_text("", encoding="utf-8")
        return lines

    def tree(self) -> Mapping[str, str]:
        """Return every file and link of the disk, with its content, mode and time."""
        return {
            str(path.relative_to(self.root)): _described(path)
            for path in sorted(self.root.rglob("*"))
            if path.is_symlink() or path.is_file()
        }

    def packages(self) -> dict[str, str]:
        return {p.name: p.read_text(encoding="utf-8") for p in (self.stub / "packages").iterdir()}

    def held(self) -> set[str]:
        return set((self.stub / "held").read_text(encoding="utf-8").split())


def versions() -> dict[str, str]:
    """Return the variables of versions.env, as bash reads them."""
    text = subprocess.run(
        ["env", "-i", "bash", "-c", 'set -a; . "$0"; env -0', str(SOURCE / "versions.env")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return dict(line.split("=", 1) for line in text.split("\0") if line)


def changes(calls: list[str]) -> list[str]:
    """Return the calls that change the machine."""
    return [call for call in calls if not call.startswith(QUESTIONS)]


def _described(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    about = path.stat()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{about.st_mode:o} {about.st_mtime_ns} {digest}"
