"""Download CIFAR-10 in its binary format, or check a folder with it.

    python download.py fetch FOLDER    download the archive and unpack its six files
    python download.py check FOLDER    check a folder with data_batch_1.bin ... and test_batch.bin

runner runs this before it submits, and reads JSON lines from its standard output
(docs/guides/recipes.md). Standard library only.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from pathlib import Path

URLS = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/cifar-10-binary.tar.gz",
)
SIZE_BYTES = 170052171
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
RECORD_BYTES = 1 + 3 * 32 * 32  # a label, then red, green and blue
FILE_BYTES = 10000 * RECORD_BYTES
CHUNK_BYTES = 1 << 18
TIMEOUT_S = 30.0
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)


class ArchiveError(Exception):
    """The data set cannot be used; the fields are those of the error that runner prints."""

    def __init__(self, code: str, what: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.code, self.what, self.why, self.fix = code, what, why, fix


def main(verb: str, folder: Path) -> int:
    """Run the verb, and print progress and the result, or the error. Return the exit code."""
    try:
        emit(fetch(folder) if verb == "fetch" else check(folder))
    except ArchiveError as err:
        emit({"code": err.code, "what": err.what, "why": err.why, "fix": err.fix})
        return 1
    return 0


def emit(document: dict) -> None:
    """Print one JSON line."""
    print(json.dumps(document), flush=True)


def fetch(folder: Path) -> dict:
    """Download the archive from the first URL that serves it, and unpack it into `folder`."""
    archive = folder / "cifar-10-binary.tar.gz"
    problems = []
    for url in URLS:
        try:
            download(url, archive)
            break
        except (*NETWORK_ERRORS, ValueError) as err:
            problems.append(f"{url.split('/')[2]}: {err}")
    else:
        archive.unlink(missing_ok=True)
        raise ArchiveError(
            "R-DATA-DOWNLOAD",
            "cannot download CIFAR-10",
            "; ".join(problems),
            "check network and proxy, or pass the folder with its .bin files: --data FOLDER",
        )
    unpack(archive, folder)
    archive.unlink()
    return {"name": "cifar10", "files": [*TRAIN, TEST]}


def download(url: str, target: Path) -> None:
    """Download one file and report progress. Raise ValueError if it is another file."""
    done, digest = 0, hashlib.sha256()
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply, target.open("wb") as file:
        while chunk := reply.read(CHUNK_BYTES):
            done += file.write(chunk)
            digest.update(chunk)
            emit({"text": "cifar-10-binary.tar.gz", "done": done, "total": SIZE_BYTES})
            if done > SIZE_BYTES:
                break
    if done != SIZE_BYTES or digest.hexdigest() != SHA256:
        raise ValueError(f"the file is not CIFAR-10: {done} bytes, or another SHA-256")


def unpack(archive: Path, folder: Path) -> None:
    """Write the six data files of the archive to `folder`, and ignore its other files."""
    with tarfile.open(archive) as members:
        for name in (*TRAIN, TEST):
            source = members.extractfile(f"cifar-10-batches-bin/{name}")
            with source, (folder / name).open("wb") as file:
                shutil.copyfileobj(source, file)


def check(folder: Path) -> dict:
    """Return the files of a folder, and a notice if they are not all of CIFAR-10."""
    names = [find(folder, name) for name in (*TRAIN, TEST)]
    files = [name for name in names if name]
    if not names[0] or not names[-1]:
        raise ArchiveError(
            "R-DATA-PATH",
            f"{folder} has no {TRAIN[0] if not names[0] else TEST}",
            "CIFAR-10 in its binary format is data_batch_1.bin to data_batch_5.bin and "
            "test_batch.bin, each gzipped or not",
            "pass the folder that holds them: --data FOLDER",
        )
    sizes = [count_bytes(folder / name) for name in files]
    result = {"name": "cifar10", "files": files}
    if len(files) == len(names) and set(sizes) == {FILE_BYTES}:
        return result
    train, test = (size // RECORD_BYTES for size in (sum(sizes[:-1]), sizes[-1]))
    counts = f"{train:,} training and {test:,} test images"
    notice = f"not the complete CIFAR-10: {counts} from {folder}"
    return {**result, "name": "cifar10-custom", "notice": notice}


def find(folder: Path, name: str) -> str:
    """Return the name of the file or of its gzipped form in the folder, or an empty string."""
    return next((each for each in (name, f"{name}.gz") if (folder / each).is_file()), "")


def count_bytes(path: Path) -> int:
    """Return the size of the uncompressed content. Raise ArchiveError if it is not CIFAR-10."""
    try:
        if path.suffix != ".gz":
            content = path.read_bytes()
        else:
            content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as err:
        raise ArchiveError(
            "R-DATA-READ", f"cannot read {path}", str(err), "copy it again, or download it anew"
        ) from err
    labels = content[::RECORD_BYTES]
    if not content or len(content) % RECORD_BYTES or max(labels) > 9:
        raise ArchiveError(
            "R-DATA-FORMAT",
            f"{path} is not in the binary format of CIFAR-10",
            f"it has {len(content)} bytes; each image has {RECORD_BYTES}, the first a label 0 to 9",
            "pass the folder with the binary version, not the one for Python or Matlab",
        )
    return len(content)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
