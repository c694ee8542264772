"""Twenty ways in which scripts that do not know us write their results."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runner.hooks.written_paths import MAX_OF_FOLDER, MAX_PATHS
from runner.node.script import written as written_module
from runner.node.script.workspace import HOOKS_FOLDER, python_path, written_paths_file
from runner.node.script.written import MAX_LISTED, Collected, WrittenFiles
from runner.protocol.paths import stored_path
from runner.protocol.results import LeftOut, check_output_path
from runner.protocol.run_spec import KeepRule, RunSpec


class Folders:
    """The folders of a task, whose home folder is its working directory."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.code, self.output = work / "code", work / "output"
        self.checkpoints, self.logs = work / "checkpoints", work / "logs"
        for folder in (self.code, self.output, self.checkpoints, self.logs):
            folder.mkdir(parents=True)
        self.others = work.parent / "node" / "job" / "task"  # another task of the node
        self.elsewhere, self.temp = work.parent / "elsewhere", work.parent / "temp"
        self.elsewhere.mkdir()
        self.temp.mkdir()

    def run(
        self, script: str, *arguments: str, python: str = sys.executable, **spec: Any
    ) -> Collected:
        """Run a script in its folder as the agent does, and collect what it wrote."""
        (self.code / "train.py").write_text(script)
        command = ("python", "train.py", *arguments)
        ours = (self.checkpoints, self.logs, self.work / HOOKS_FOLDER)
        described = RunSpec(run_id="r", command=command, **spec)
        places = {"home": self.work, "temp": self.temp}
        written = WrittenFiles(
            self.code, self.output, places, ours, described,
            shared=[self.work.parent / "node"], recorded=written_paths_file(self.work),
        )  # fmt: skip
        environment = {
            **os.environ,
            **written.named_outputs(),
            "HOME": str(self.work),
            "TMPDIR": str(self.temp),
            "ELSEWHERE": str(self.elsewhere),
            "PYTHONPATH": python_path(None, self.work),
            "RUNNER_OUTPUT_DIR": str(self.output),
            "RUNNER_CHECKPOINT_DIR": str(self.checkpoints),
        }
        self.collected = Collected()
        written.begin(command)
        subprocess.run([python, "train.py", *arguments], cwd=self.code, env=environment, check=True)
        self.collected = written.collect()
        return self.collected

    def outputs(self) -> dict[str, str]:
        """Return the text of each output by its path."""
        own = [path for path in self.output.rglob("*") if path.is_file()]
        files = {path.relative_to(self.output).as_posix(): path for path in own}
        files |= {name: Path(path) for name, path in self.collected.files.items()}
        assert len(files) == len(own) + len(self.collected.files)
        return {name: path.read_text() for name, path in files.items()}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "wd")


KERAS = "open('model.h5','w').write('h5')\nopen('model_json','w').write('{}')"
CHAINER = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument('--output_dir')
open(os.path.join(parser.parse_args().output_dir, 'model.npz'), 'w').write('npz')
"""
BATCH_AI = "import os; open(os.environ['AZ_BATCHAI_OUTPUT_MODEL'] + '/net.dnn', 'w').write('cntk')"
BATCH_AI_LOG = "import os; open(os.environ['AZ_BATCHAI_STDOUTERR_DIR'] + '/a', 'w').write('1')"
AZURE_ML = "import os; open(os.environ['AZURE_ML_OUTPUT_trained'] + '/m.pt', 'w').write('pt')"
DATED = """
import datetime, os
folder = os.path.join('runs', '2026-11-23 14:30:05')
os.makedirs(folder)
open(folder + '/model.pt', 'w').write('dated')
"""
WAYS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "beside the script": (KERAS, (), {"model.h5": "h5", "model_json": "{}"}),
    "a folder that must exist": (
        "open('outputs/model.npz', 'w').write('npz')\nopen('./logs/log.txt', 'w').write('1')",
        (),
        {"outputs/model.npz": "npz", "logs/log.txt": "1"},
    ),
    "the log folder of Batch AI": (BATCH_AI_LOG, (), {"logs/a": "1"}),
    "the folder of an argument": (
        CHAINER,
        ("--output_dir", "./results/a"),
        {"results/a/model.npz": "npz"},
    ),
    "an argument with =": (CHAINER, ("--output_dir=out",), {"out/model.npz": "npz"}),
    "the variable of Batch AI": (BATCH_AI, (), {"model/net.dnn": "cntk"}),
    "the variable of Azure ML": (AZURE_ML, (), {"trained/m.pt": "pt"}),
    "a folder by date": (DATED, (), {"runs/2026-11-23 14:30:05/model.pt": "dated"}),
    "a date with colons": (
        DATED.replace("'runs', ", "'.', "),
        (),
        {"2026-11-23 14:30:05/model.pt": "dated"},
    ),
    "makedirs of a folder that exists": (
        "import os\nos.mkdir('outputs')\nopen('outputs/m', 'w').write('x')",
        (),
        {"outputs/m": "x"},
    ),
    "the home folder": (
        "import pathlib\n(pathlib.Path.home() / 'model.h5').write_text('home')",
        (),
        {"home/model.h5": "home"},
    ),
    "after chdir": (
        "import os\nos.makedirs('work')\nos.chdir('work')\nopen('m.bin', 'w').write('cd')",
        (),
        {"work/m.bin": "cd"},
    ),
    "after chdir to the folder above": (
        "import os\nos.chdir('..')\nopen('m.bin', 'w').write('up')",
        (),
        {"home/m.bin": "up"},
    ),
    "a child process": (
        "import subprocess\nsubprocess.run(['sh', '-c', 'printf child > m.bin'], check=True)",
        (),
        {"m.bin": "child"},
    ),
    "a child that changes its folder": (
        (
            "import subprocess, os\nos.mkdir('d')\n"
            "subprocess.run(['sh', '-c', 'printf c > m.bin'], check=True, cwd='d')"
        ),
        (),
        {"d/m.bin": "c"},
    ),
    "saving in a loop": (
        "for n in range(3):\n open(f'epoch-{n}.pt', 'w').write(str(n))",
        (),
        {"epoch-0.pt": "0", "epoch-1.pt": "1", "epoch-2.pt": "2"},
    ),
    "saving over the same file": (
        (
            "import os\nfor n in range(3):\n open('m.tmp', 'w').write(str(n))\n"
            " os.replace('m.tmp', 'm.pt')"
        ),
        (),
        {"m.pt": "2"},
    ),
    "a link to the newest file": (
        "import os\nopen('m-1.pt', 'w').write('1')\nos.symlink('m-1.pt', 'latest.pt')",
        (),
        {"m-1.pt": "1", "latest.pt": "1"},
    ),
    "through a link to a folder elsewhere": (
        (
            "import os\nos.symlink(os.environ['ELSEWHERE'], 'results')\n"
            "open('results/m.pt', 'w').write('far')"
        ),
        (),
        {"results/m.pt": "far"},
    ),
    "the folder given and its own": (
        (
            "import os\nopen(os.environ['RUNNER_OUTPUT_DIR'] + '/m', 'w').write('given')\n"
            "open('m', 'w').write('own')"
        ),
        (),
        {"m": "given", "script-folder/m": "own"},
    ),
    "a temporary folder": (
        (
            "import os, tempfile\nfolder = tempfile.mkdtemp()\nos.rename(folder, folder[:-8])\n"
            "open(folder[:-8] + '/m.pt', 'w').write('temp')"
        ),
        (),
        {"temp/tmp/m.pt": "temp"},
    ),
    "at exit": (
        "import atexit\natexit.register(lambda: open('m.pt', 'w').write('exit'))",
        (),
        {"m.pt": "exit"},
    ),
    "a memory-mapped file": (
        (
            "import mmap\nwith open('m.dat', 'wb+') as file:\n file.truncate(3)\n"
            " with mmap.mmap(file.fileno(), 3) as memory: memory[:] = b'map'"
        ),
        (),
        {"m.dat": "map"},
    ),
    "a shell script beside it": (
        (
            "import subprocess\nopen('save.sh', 'w').write('printf sh > $0.out')\n"
            "subprocess.run(['sh', 'save.sh'], check=True)"
        ),
        (),
        {"save.sh": "printf sh > $0.out", "save.sh.out": "sh"},
    ),
    "a hidden file, a name without a suffix, odd folders": (
        (
            "import os\nos.makedirs('é (1)/a b')\n"
            "for name in ('.model', 'model', 'é (1)/a b/#m;n'): open(name, 'w').write('odd')"
        ),
        (),
        {".model": "odd", "model": "odd", "é (1)/a b/#m;n": "odd"},
    ),
    "a hard link": (
        "import os\nopen('m.tmp', 'w').write('hard')\nos.link('m.tmp', 'm.pt')\nos.remove('m.tmp')",
        (),
        {"m.pt": "hard"},
    ),
    "a hidden folder of Hydra": (
        "import os\nos.makedirs('outputs/.hydra')\nopen('outputs/.hydra/c.yaml', 'w').write('c')",
        (),
        {"outputs/.hydra/c.yaml": "c"},
    ),
}


@pytest.mark.feature(13)
@pytest.mark.parametrize("way", WAYS)
def test_result_written_in_any_of_these_ways_is_an_output(folders: Folders, way: str) -> None:
    script, arguments, expected = WAYS[way]
    collected = folders.run(script, *arguments)
    assert folders.outputs() == expected
    assert collected.left_out == ()


@pytest.mark.parametrize(
    "line",
    [
        "open('{}/model.bin', 'w').write('far')",
        "import os; open(os.path.join('{}', 'model.bin'), 'w').write('far')",
        "name = 'model'; open(f'{}/{{name}}.bin', 'w').write('far')",
        "import subprocess; subprocess.run('printf far > {}/model.bin', shell=True, check=True)",
        "import sys; open(sys.argv[1] + '/model.bin', 'w').write('far')",
        "import json; open(json.load(open('config.json'))['out'] + '/model.bin', 'w').write('far')",
    ],
)
def test_file_at_an_absolute_path_is_an_output(folders: Folders, line: str) -> None:
    folder = folders.elsewhere / "results"
    folder.mkdir()
    (folder / "old.bin").write_text("of another run")
    os.utime(folder / "old.bin", ns=(1, 1))
    arguments = (str(folder),) if "argv" in line else ()
    if "config" in line:
        (folders.code / "config.json").write_text(f'{{"out": "{folder}"}}')
    collected = folders.run(line.format(folder), *arguments)
    path = str(folder / "model.bin")
    assert collected.sources == {f"outside{path}": path}
    assert folders.outputs() == {f"outside{path}": "far"}


SAVE = "open(os.path.join(folder, 'm.pt'), 'w').write('x')"
CHILD = f"import os\nfolder = os.environ['ELSEWHERE']\n{SAVE}"
AT_RUN_TIME = {
    "a path built at run time": SAVE,
    "after chdir": "os.chdir(folder)\nopen('m.pt', 'w').write('x')",
    "a child": f"run([sys.executable, '-c', {CHILD!r}])",
    "a daemon": f"if os.fork() == 0:\n os.closerange(0, 9)\n {SAVE}\nelse:\n os.wait()",
    "renamed": "open('m.tmp', 'w').write('x')\nos.replace('m.tmp', folder + '/m.pt')",
    "moved": "open('m.tmp', 'w').write('x')\nshutil.move('m.tmp', folder + '/m.pt')",
    "copied": "shutil.copy('x.txt', folder + '/m.pt')",
    "another program in a folder that the script made": "os.mkdir(folder + '/new')\n"
    "run(['sh', '-c', 'printf x > \"$0\"/m.pt', folder + '/new'])",
    "at exit": f"import atexit\natexit.register(lambda: {SAVE})",
    "appended to": "open(folder + '/old.pt', 'a').write('x')",
    "bytes and a descriptor": "path = os.fsencode(folder) + b'/m.pt'\n"
    "open(os.open(path, os.O_WRONLY | os.O_CREAT), 'w').write('x')",
    "a path object": "pathlib.Path(folder, 'm.pt').write_text('x')",
    "another program": "run(['cp', 'x.txt', folder + '/m.pt'])",
    "an option of another program": "run(['dd', 'if=x.txt', 'of=' + folder + '/m.pt'])",
    "a command of the shell": "os.system('printf x > \"$ELSEWHERE\"/m.pt')",
    "another program in a folder": "run(['cp', os.path.abspath('x.txt'), 'm.pt'], cwd=folder)",
    "another program that replaces this one": "os.execvp('cp', ['cp', 'x.txt', folder + '/m.pt'])",
    "another program with a path in a folder": "run(['cp', 'x.txt', folder])\n"
    "run('mv x.txt m.pt', shell=True, cwd=folder)",
    "a folder with an odd name": "folder += '/a b\u00e4 (1)'\nos.mkdir(folder)\n" + SAVE,
}


@pytest.mark.feature(13)
@pytest.mark.parametrize("way", AT_RUN_TIME)
def test_file_at_a_computed_path_is_an_output(folders: Folders, way: str) -> None:
    (folders.elsewhere / "old.pt").touch()
    (folders.code / "x.txt").write_text("x")
    script = "import os, pathlib, shutil, sys\nfrom subprocess import run\n"
    folders.run(f"{script}folder = os.environ['ELSEWHERE']\n{AT_RUN_TIME[way]}")
    changed = [path for path in folders.elsewhere.rglob("*.pt") if path.read_text()]
    assert folders.outputs() == {f"outside{path}": "x" for path in changed}
    assert changed


LIBRARIES = {
    "torch.serialization": ("save", "{}, path"),
    "safetensors.torch": ("save_file", "{}, filename=pathlib.Path(path)"),
    "h5py._hl.files": ("File", "path, 'w'"),
    "xgboost.core": ("Booster().save_model", "path"),
    "cv2": ("imwrite", "path, None"),
}
NATIVE = """
import ctypes, os
def write(path):
    libc = ctypes.CDLL(None)
    file = libc.open(os.fsencode(path), os.O_WRONLY | os.O_CREAT, 0o644)
    libc.write(file, b"x", 1)
def save(thing, f): write(f)
def save_file(tensors, filename): write(filename)
def imwrite(filename, image): write(filename)
class File:
    def __init__(self, name, mode): write(name)
class Booster:
    def save_model(self, fname): write(fname)
"""


@pytest.mark.parametrize("module", LIBRARIES)
def test_file_opened_by_a_native_library_is_an_output(folders: Folders, module: str) -> None:
    """The stand-ins write with the C library, which Python's audit events do not cover."""
    function, arguments = LIBRARIES[module]
    folder = folders.code
    *packages, name = module.split(".")
    for package in packages:
        folder /= package
        folder.mkdir()
        (folder / "__init__.py").touch()
    (folder / f"{name}.py").write_text(NATIVE)
    folders.run(
        f"import os, pathlib, {module} as library\npath = os.environ['ELSEWHERE'] + '/m.pt'\n"
        f"library.{function}({arguments})\n"
    )
    assert f"outside{folders.elsewhere}/m.pt" in folders.outputs()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "lines"),
    [
        ("TORCH_PYTHON", "import torch\ntorch.save({}, path)"),
        ("TORCH_PYTHON", "import torch\ntorch.save({}, pathlib.Path(path))"),
        ("TORCH_PYTHON", "import h5py\nh5py.File(path, 'w').close()"),
        (
            "TORCH_PYTHON",
            (
                "import torch\nfrom safetensors.torch import save_file\n"
                "save_file({'a': torch.zeros(1)}, path)"
            ),
        ),
        (
            "TORCH_PYTHON",
            "import numpy\nnumpy.memmap(path, mode='w+', shape=1)[:] = 1",
        ),
        ("KERAS2_PYTHON", "import tensorflow as tf\ntf.io.gfile.GFile(path, 'w').write('x')"),
        (
            "KERAS2_PYTHON",
            (
                "import tensorflow as tf\n"
                "tf.train.Checkpoint(a=tf.Variable(1)).write(path[:-3])\n"
                "os.rename(path[:-3] + '.index', path)"
            ),
        ),
        (
            "KERAS2_PYTHON",
            (
                "import tensorflow as tf\nmade = tf.Module()\nmade.a = tf.Variable(1)\n"
                "tf.saved_model.save(made, path)"
            ),
        ),
    ],
)
@pytest.mark.feature(13)
def test_file_written_by_an_installed_library_is_an_output(
    folders: Folders, variable: str, lines: str
) -> None:
    python = os.environ.get(variable)
    if python is None:
        pytest.skip(f"${variable} may name an interpreter with the library")
    path = "path = os.environ['ELSEWHERE'] + '/m.pt'"
    collected = folders.run(f"import os, pathlib\n{path}\n{lines}\n", python=python)
    found = {each for each in folders.elsewhere.rglob("*") if each.is_file()}
    assert {f"outside{each}" for each in found} == set(collected.files)
    assert found


def test_database_at_a_computed_path_is_an_output(folders: Folders) -> None:
    script = "import os, sqlite3\nbase = sqlite3.connect(os.environ['ELSEWHERE'] + '/results.db')\n"
    collected = folders.run(f"{script}base.execute('create table a (b)')")
    assert set(collected.files) == {f"outside{folders.elsewhere}/results.db"}


def test_library_files_elsewhere_are_not_collected(folders: Folders) -> None:
    (folders.elsewhere / "old.pt").touch()
    script = (
        "import os, pathlib\nhere = pathlib.Path(os.environ['ELSEWHERE'])\n"
        "for name in ('pymp-a', 'tmpab12cd34', 'a/__pycache__', '.cache'):\n"
        "    (here / name).mkdir(parents=True)\n    (here / name / 'm').write_text('x')\n"
        "(here / 'gone').write_text('x')\n(here / 'gone').unlink()\n"
        "open(here / 'old.pt').close()\n"
    )
    assert folders.run(script) == Collected()


@pytest.mark.parametrize(
    "path",
    [
        "env/lib/x.py", "env/pyvenv.cfg", "pip/CACHEDIR.TAG", "pip/http/a", "node_modules/a.js",
        "a.egg-info/dependency_links.txt", "a.egg-info/PKG-INFO",
        "hf/token", "hf/hub/models--a/blobs/b", "torch/hub/checkpoints/resnet.pth", "token",
        "credentials", "netrc", "id_rsa", "cookies.txt", "my-service_account.json",
        "private/deploy_key", "private/site.key", "private/api_token.json",
    ],
)  # fmt: skip
def test_cache_or_credential_elsewhere_is_no_output(folders: Folders, path: str) -> None:
    for marker in ("env/pyvenv.cfg", "pip/CACHEDIR.TAG", "a.egg-info/dependency_links.txt"):
        (folders.elsewhere / marker).parent.mkdir()
        (folders.elsewhere / marker).touch()
    (folders.elsewhere / path).parent.mkdir(parents=True, exist_ok=True)
    here = "here = pathlib.Path(os.environ['ELSEWHERE'])"
    script = f"import os, pathlib\n{here}\n(here / {path!r}).write_text('x')\n"
    script += f"if 'private' in {path!r}: (here / {path!r}).chmod(0o600)\n"
    variables = {"HF_HOME": f"{folders.elsewhere}/hf", "TORCH_HOME": f"{folders.elsewhere}/torch"}
    assert folders.run(script, env=variables) == Collected()


@pytest.mark.parametrize(
    ("name", "text"),
    [("key.txt", "-----BEGIN PRIVATE KEY-----"), ("gcp.json", '{"private_key": "x"}')],
)
def test_file_with_a_key_is_omitted_and_named(folders: Folders, name: str, text: str) -> None:
    script = f"import os; open(os.environ['ELSEWHERE'] + '/{name}', 'w').write({text!r})"
    collected = folders.run(script)
    assert not collected.files
    [left_out] = collected.left_out
    assert (left_out.path, left_out.why) == (f"outside{folders.elsewhere}/{name}", "private")


def test_private_file_of_another_program_is_omitted_unless_a_model(
    folders: Folders,
) -> None:
    shell = (
        "umask 077; mkdir -p $ELSEWHERE/keys; echo KEY > $ELSEWHERE/keys/deploy; "
        "echo KEY > $ELSEWHERE/gcp-key.json; echo KEY > $ELSEWHERE/login; "
        "echo model > $ELSEWHERE/m.pt; umask 022; echo 1 > $ELSEWHERE/result.csv; "
        "echo x > $ELSEWHERE/cookies.txt"
    )
    script = (
        f"import os, subprocess\nsubprocess.run(['sh', '-c', {shell!r}], check=True)\n"
        "os.umask(0o077)\nopen(os.environ['ELSEWHERE'] + '/own', 'w').write('1')\n"
    )
    collected = folders.run(script)
    here = f"outside{folders.elsewhere}"
    assert set(collected.files) == {f"{here}/m.pt", f"{here}/result.csv", f"{here}/own"}
    named = {one.path for one in collected.left_out if one.why == "private"}
    assert named == {f"{here}/keys/deploy", f"{here}/login"}


@pytest.mark.parametrize("name", ["tokens.json", "site.key", "tokenizer.json"])
def test_result_named_like_a_credential_is_an_output(folders: Folders, name: str) -> None:
    script = f"import os; open(os.environ['ELSEWHERE'] + '/{name}', 'w')"
    assert set(folders.run(script).files) == {f"outside{folders.elsewhere}/{name}"}


def test_downloaded_data_elsewhere_is_omitted_and_named(folders: Folders) -> None:
    script = f"import os\nos.chdir(os.environ['ELSEWHERE'])\n{BIG}open('data/m.pt', 'w')"
    collected = folders.run(script)
    data = f"outside{folders.elsewhere}/data/"
    assert set(collected.files) == {f"{data}m.pt"}
    assert collected.left_out == (LeftOut(data, 40_000_001, "data", 2),)


def test_many_files_in_an_existing_folder_are_outputs(folders: Folders) -> None:
    script = "import os\nfor n in range(1200): open(f'{os.environ[\"ELSEWHERE\"]}/{n}', 'w')"
    collected = folders.run(script)
    assert len(collected.files) == 1200
    assert collected.left_out == ()
    assert len(written_paths_file(folders.work).read_text().splitlines()) == MAX_OF_FOLDER + 1


def test_more_paths_than_are_recorded_are_reported(folders: Folders) -> None:
    for n in range(30):
        (folders.elsewhere / str(n)).mkdir()
    script = "import os\nfor n in range(1200): "
    script += "open(f'{os.environ[\"ELSEWHERE\"]}/{n % 30}/{n}', 'w')"
    collected = folders.run(script)
    assert len(collected.files) == MAX_PATHS
    assert collected.left_out == (LeftOut("outside", 0, "search"),)


def test_existing_folder_is_not_treated_as_new(folders: Folders) -> None:
    script = "import os, pathlib\nhere = os.environ['ELSEWHERE']\n"
    script += "os.makedirs(here, exist_ok=True)\npathlib.Path(here).mkdir(exist_ok=True)\n"
    script += "import ctypes; ctypes.CDLL(None).creat((here + '/of-another').encode(), 0o644)"
    assert folders.run(script) == Collected()


def test_error_of_a_signal_handler_reaches_the_script(folders: Folders) -> None:
    """The signal arrives while the path is being recorded."""
    script = """
import os, signal, sys
class Late(Exception): pass
def stop(*_): raise Late
signal.signal(signal.SIGALRM, stop)
def interrupt(event, args):
    if event == "open" and str(args[0]).endswith("written-paths"):
        signal.raise_signal(signal.SIGALRM)
sys.addaudithook(interrupt)
try:
    open(os.environ["ELSEWHERE"] + "/m", "w")
except Late:
    open("late", "w")
"""
    assert set(folders.run(script).files) == {"late"}


def test_sitecustomize_of_the_interpreter_is_still_imported(folders: Folders) -> None:
    (folders.work / "theirs").mkdir()
    (folders.work / "theirs" / "sitecustomize.py").write_text("import os\nos.environ['A'] = 'b'")
    path = python_path(None, folders.work)
    environment = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{folders.work / 'theirs'}"}
    code = "import os, sitecustomize; print(os.environ['A'], sitecustomize.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["b", str(folders.work / "theirs" / "sitecustomize.py")]
    assert done.stderr == ""


def test_secrets_and_system_files_are_not_collected(folders: Folders) -> None:
    (folders.elsewhere / ".ssh").mkdir()
    script = "import os\n"
    script += f"open('{folders.elsewhere}/.ssh/known_hosts', 'w')\nopen('/dev/null', 'w')\n"
    script += "data = '/etc'"
    assert folders.run(script) == Collected()


def test_sources_name_the_original_paths(folders: Folders) -> None:
    script = "import os\nopen('a', 'w')\nopen('../b', 'w')\n"
    script += "open(os.environ['RUNNER_OUTPUT_DIR'] + '/c', 'w')"
    assert folders.run(script).sources == {"a": "code", "home/b": "home"}


def test_file_of_the_code_is_kept_only_if_the_script_changes_it(folders: Folders) -> None:
    for name in ("config.json", "weights.bin", "log.csv"):
        (folders.code / name).write_text("before")
    script = "import os, shutil\nopen('log.csv', 'a').write('+')\n"
    script += "os.utime('weights.bin', (1, 1)); open('weights.bin', 'r+').write('AFTER!')\n"
    script += "os.utime('weights.bin', (1, 1))"
    folders.run(script)
    assert folders.outputs() == {"log.csv": "before+", "weights.bin": "AFTER!"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("m.zip", "import zipfile\nzipfile.ZipFile('m.zip', 'w').writestr('a', 'x')"),
        ("m.tar.gz", "import tarfile\ntarfile.open('m.tar.gz', 'w:gz').add('train.py')"),
        ("m.zip", "import os, shutil\nos.mkdir('outputs')\nshutil.make_archive('m', 'zip', '.')"),
        ("m.pkl", "import pickle\npickle.dump({'w': 1}, open('m.pkl', 'wb'))"),
        ("m.pt", "import os\nopen('m.pt', 'w').write('x')\nos.chmod('m.pt', 0o400)"),
        ("m.db", "import sqlite3\nsqlite3.connect('m.db').execute('create table a (b)')"),
    ],
)
def test_archives_and_databases_are_kept(folders: Folders, name: str, line: str) -> None:
    assert set(folders.run(line).sources) == {name}


def test_sparse_file_of_five_gigabytes_is_kept(folders: Folders) -> None:
    collected = folders.run("open('model.bin', 'wb').truncate(5 << 30)")
    assert collected.sources == {"model.bin": "code"}
    assert Path(collected.files["model.bin"]).stat().st_size == 5 << 30


@pytest.mark.parametrize(
    "path",
    [
        "__pycache__/a.pyc", ".cache/huggingface/x.bin", ".ipynb_checkpoints/a.ipynb",
        "env/pyvenv.cfg", "env/lib/x.py", "conda/conda-meta/history", "pip/CACHEDIR.TAG",
        ".git/objects/x", "../.keras/datasets/mnist.npz", "../.netrc", "../.cache/torch/x",
    ],
)  # fmt: skip
def test_caches_environments_and_credentials_are_no_outputs(folders: Folders, path: str) -> None:
    (folders.code / path).parent.mkdir(parents=True, exist_ok=True)
    marker = "open('env/pyvenv.cfg', 'w')\n" if path.startswith("env/") else ""
    collected = folders.run(f"{marker}open({path!r}, 'w').write('x')")
    assert (folders.outputs(), collected) == ({}, Collected())


def test_checkpoints_and_inputs_behind_links_are_no_outputs(folders: Folders) -> None:
    (folders.elsewhere / "input.bin").write_text("data")
    script = "import os\nos.symlink(os.environ['RUNNER_CHECKPOINT_DIR'], 'checkpoints')\n"
    script += "open('checkpoints/1.pt', 'w').write('1')\n"
    script += "os.symlink(os.environ['ELSEWHERE'], 'inputs')\n"
    script += "os.symlink(os.environ['ELSEWHERE'] + '/input.bin', 'input.bin')"
    folders.run(script)
    assert folders.outputs() == {}


BIG = (
    "import os\nos.makedirs('data/MNIST', exist_ok=True)\n"
    "open('data/MNIST/x', 'wb').truncate(40_000_000)\nopen('data/y.csv', 'w').write('y')\n"
)


def test_downloaded_data_is_omitted_and_named(folders: Folders) -> None:
    collected = folders.run(BIG + "open('model.pt', 'w').write('m')")
    assert folders.outputs() == {"model.pt": "m"}
    assert collected.left_out == (LeftOut("data/", 40_000_001, "data", 2),)
    assert str(collected.left_out[0]) == "data/ (2 files, 40 MB): looks like downloaded data"


def test_small_results_in_a_data_folder_are_kept(folders: Folders) -> None:
    folders.run("import os\nos.mkdir('data')\nopen('data/result.csv', 'w').write('1')")
    assert folders.outputs() == {"data/result.csv": "1"}


@pytest.mark.parametrize("named", [{"outputs": ("data/*",)}, {"keep": KeepRule(1, ("data",))}])
def test_data_named_in_the_recipe_is_kept(folders: Folders, named: dict[str, Any]) -> None:
    collected = folders.run(BIG, **named)
    assert set(collected.sources) == {"data/MNIST/x", "data/y.csv"}


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (".cache/model/best.pt", ".cache"),
        ("../.cache/best.pt", "home/.cache"),
        ("../.keras/models/best.h5", "home/.keras"),
        ("../.runs/1/best.pt", "home/.runs"),
        ("../.best.pt", "home/.best.pt"),
    ],
)
def test_model_in_a_cache_or_hidden_folder_is_omitted_and_named(
    folders: Folders, path: str, named: str
) -> None:
    script = f"import os\nos.makedirs(os.path.dirname('{path}'), exist_ok=True)\n"
    collected = folders.run(f"{script}open('{path}', 'w').write('123')\n")
    assert (dict(collected.files), collected.left_out) == ({}, (LeftOut(named, 3, "cache"),))


@pytest.mark.parametrize(
    "path", ["../.cache/hub/resnet50.pth", ".git/lfs/best.pt", "env/lib/best.pt", ".cache/a.txt"]
)
def test_download_and_package_in_a_cache_are_not_named(folders: Folders, path: str) -> None:
    folder, _, name = path.rpartition("/")
    (folders.code / "env").mkdir()
    (folders.code / "env/pyvenv.cfg").touch()
    stem, _, ending = name.partition(".")
    script = f"import os\nos.makedirs('{folder}', exist_ok=True)\n"
    script += f"open('{folder}/' + '{stem}' + '.{ending}', 'w').write('123')\n"
    assert folders.run(script).left_out == ()


def test_files_above_the_limit_are_omitted_largest_first(folders: Folders) -> None:
    script = "for n in (10, 2000, 300):\n open(f'{n}.bin', 'wb').write(bytes(n))\n"
    script += "open('outputs/named.bin', 'wb').write(bytes(5000))"
    collected = folders.run(script, keep=KeepRule(max_bytes=400))
    assert set(collected.sources) == {"10.bin", "300.bin", "outputs/named.bin"}
    assert collected.left_out == (LeftOut("2000.bin", 2000, "size"),)


def test_long_list_of_omitted_files_ends_with_a_summary(folders: Folders) -> None:
    script = f"for n in range({MAX_LISTED + 5}):\n open(f'{{n}}.bin', 'wb').write(bytes(n + 9))"
    left_out = folders.run(script, keep=KeepRule(max_bytes=1)).left_out
    assert len(left_out) == MAX_LISTED + 1
    assert left_out[-1] == LeftOut("others", 9 + 10 + 11 + 12 + 13, "size", 5)


def test_disabled_keep_collects_only_the_output_folder(folders: Folders) -> None:
    assert folders.run(KERAS, keep=None) == Collected()
    assert folders.outputs() == {}


@pytest.mark.parametrize(
    "name",
    [
        "a:1.csv", "c:/d:e/model-2026-11-22T08:34:43.bin", ": ?*<>|", "a\\b", "bell\a.bin",
        "line\nbreak", "bad-\udcff.bin", "/".join(["n" * 200] * 5), "/".join("d" * 300),
    ],
)  # fmt: skip
def test_name_invalid_on_other_systems_is_kept(folders: Folders, name: str) -> None:
    script = (
        f"import os\nname = {name!r}\nos.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n"
    )
    folders.run(f"{script}open(name, 'w').write('x')")
    assert folders.outputs() == {name: "x"}


def test_omitted_files_have_printable_names(folders: Folders) -> None:
    script = "open(b'\\x1b\\xff.bin', 'wb').write(bytes(500))"
    collected = folders.run(script, keep=KeepRule(max_bytes=400))
    assert collected.left_out == (LeftOut("%x1B%xFF.bin", 500, "size"),)


def test_task_folder_behind_a_link_exports_nothing_of_the_agent(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    folders = Folders(tmp_path / "link" / "wd")
    script = "open('../logs/environment.sh', 'w')\nopen('../checkpoints/1.pt', 'w')\n"
    script += "open('../output/own', 'w').write('o')\nopen('m', 'w').write('m')\n"
    script += "import os; os.symlink(os.path.abspath('m'), 'latest')"
    folders.run(script)
    assert folders.outputs() == {"own": "o", "m": "m", "latest": "m"}


@pytest.mark.parametrize("target", ["/proc/self", "/proc/self/environ", "/proc", "/", "/sys"])
def test_link_to_the_system_exports_nothing(folders: Folders, target: str) -> None:
    assert folders.run(f"import os; os.symlink({target!r}, 'results')") == Collected()


@pytest.mark.parametrize("link", ["task", "task/m.bin", "", ".."])
def test_link_to_files_of_other_tasks_exports_none(folders: Folders, link: str) -> None:
    folders.others.mkdir(parents=True)
    script = f"import os\nopen({str(folders.others / 'm.bin')!r}, 'w')\n"
    target = folders.others.parent / link
    assert folders.run(f"{script}os.symlink({str(target)!r}, 'results')") == Collected()


def test_hidden_files_behind_a_link_are_no_outputs(folders: Folders) -> None:
    script = "import os\nhome = os.environ['HOME']\nopen(home + '/.netrc', 'w')\n"
    script += "os.symlink(home + '/.netrc', 'a')\nos.makedirs(home + '/.secret')\n"
    script += "open(home + '/.secret/key', 'w')\nos.symlink(home + '/.secret', 'b')"
    assert folders.run(script) == Collected()


@pytest.mark.parametrize(
    "line",
    [
        "import os; os.makedirs(sys.argv[2])",
        "import os; [os.mkdir(path) for path in sys.argv[2:]]",
        "import os; list(map(os.mkdir, sys.argv[2:]))",
        "OUT = 'res'\nimport os\nos.mkdir(OUT)",
        "import subprocess; subprocess.run(['mkdir', 'res'], check=True)",
        "import os; assert os.system('mkdir res && echo') == 0",
        "import shutil; shutil.copytree('/proc/self/net/../attr', 'res')",
        "import os\nassert not os.path.exists(sys.argv[2])\nos.makedirs('res', exist_ok=True)",
        "from pathlib import Path\nOUT = Path('res')\nassert not OUT.exists()\nOUT.mkdir()",
    ],
)
def test_script_that_creates_its_folder_finds_none(folders: Folders, line: str) -> None:
    line = line.replace("/proc/self/net/../attr", str(folders.elsewhere))
    collected = folders.run(f"import sys\n{line}\nopen('res/a', 'w')", "--output_dir", "res")
    assert collected.sources == {"res/a": "code"}


@pytest.mark.parametrize(
    "line",
    [
        "os.makedirs(\n    os.path.join('a', 'b'),\n    exist_ok=True,\n)",
        "os.system('mkdir -p a')",
        "from os import makedirs, mkdir",
        "assert not os.path.exists('data.csv')",
    ],
)
def test_script_that_accepts_an_existing_folder_finds_common_ones(
    folders: Folders, line: str
) -> None:
    collected = folders.run(f"import os\n{line}\nopen('outputs/a', 'w')")
    assert collected.sources == {"outputs/a": "code"}


def test_command_that_creates_the_folder_finds_none(folders: Folders) -> None:
    spec = RunSpec(run_id="r", command=("sh", "-c", "mkdir logs && touch logs/a"))
    written = WrittenFiles(folders.code, folders.output, {}, (), spec)
    written.begin(spec.command)
    subprocess.run(spec.command, cwd=folders.code, check=True)
    assert written.collect().sources == {"logs/a": "code"}


def test_paths_in_configuration_come_after_those_in_the_code(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders.code / "data.json").write_text(f'["{folders.elsewhere}/d"]')
    (folders.elsewhere / "d").mkdir()
    monkeypatch.setattr(written_module, "MAX_ENTRIES", 3)
    path = folders.elsewhere / "zzz.pt"
    collected = folders.run(f"open('{path}', 'w')")
    assert collected.sources == {f"outside{path}": str(path)}


def test_large_folder_elsewhere_does_not_exclude_another(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_module, "MAX_ENTRIES_OF_PATH", 3)
    data, results = folders.elsewhere / "data", folders.elsewhere / "results"
    for folder in (data, results):
        folder.mkdir()
    for number in range(10):
        (data / f"{number}").touch()
    collected = folders.run(f"a = '{data}', '{results}'\nopen(a[1] + '/m', 'w')")
    assert f"outside{results}/m" in collected.sources
    assert LeftOut(f"outside{data}", 0, "search") in collected.left_out


def test_limit_of_the_search_is_reported(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_module.WrittenFiles._scan, "__defaults__", (5, False))
    collected = folders.run("for n in range(9):\n open(f'{n}.bin', 'w')")
    assert 0 < len(collected.sources) < 9
    assert LeftOut("code", 0, "search") in collected.left_out
    assert str(collected.left_out[0]).startswith("code: not searched completely")


def test_search_without_time_left_ends_and_is_reported(folders: Folders) -> None:
    spec = RunSpec(run_id="r", command=("true",))
    written = WrittenFiles(folders.code, folders.output, {}, (), spec)
    written.begin(spec.command)
    (folders.code / "m.bin").touch()
    assert written.collect(0.0).left_out[0] == LeftOut("code", 0, "search")
    assert written.collect(60.0).sources == {"m.bin": "code"}


def test_promised_file_named_by_an_alias_path_is_kept(folders: Folders) -> None:
    script = "import os\nos.mkdir('results')\nopen('results/m.bin', 'wb').write(bytes(5000))\n"
    script += "open('../far.bin', 'wb').write(bytes(5000))\nos.symlink('../far.bin', 'far.bin')\n"
    script += "os.rename('results/m.bin', 'm.bin')"
    collected = folders.run(script, outputs=("home/far.bin",), keep=KeepRule(max_bytes=1))
    assert collected.sources == {"far.bin": "code"}


def test_leftovers_of_libraries_are_no_outputs_unless_named(folders: Folders) -> None:
    script = """
import os, tempfile
for name in ('pymp-x1', 'torchinductor_me', '__pycache__'):
    os.mkdir(os.path.join(tempfile.gettempdir(), name))
    open(os.path.join(tempfile.gettempdir(), name, 'a'), 'w').write('x')
for _ in range(2): open(tempfile.mkstemp()[1], 'w').write('secret')
generated = os.path.join(tempfile.gettempdir(), '__autograph_generated_filexy12.py')
open(generated, 'w').write('of TensorFlow')
folder = os.path.join(tempfile.gettempdir(), 'tmpab12cd34')
os.mkdir(folder)
open(folder + '/' + 'named.csv', 'w').write('named')
open(folder + '/' + str(1) + '.pt', 'w').write('model')
"""
    collected = folders.run(script)
    assert folders.outputs() == {
        "temp/tmpab12cd34/1.pt": "model",
        "temp/tmpab12cd34/named.csv": "named",
    }
    assert collected.left_out == (LeftOut("temp/", 12, "temporary", 2),)


def test_scratch_files_beside_the_script_are_no_outputs(folders: Folders) -> None:
    script = """
import os
for name in ('tmp', 'a/scratch'):
    os.makedirs(name)
    open(name + '/x', 'w').write('x')
    open(name + '/m.pt', 'w').write('m')
for name in ('x.tmp', 'core.12', 'y.part', 'core.py', 'template', 'tmpx'):
    open(name, 'w').write('x')
"""
    collected = folders.run(script)
    kept = {"tmp/m.pt": "m", "a/scratch/m.pt": "m"}
    assert folders.outputs() == {**kept, "core.py": "x", "template": "x", "tmpx": "x"}
    assert [(each.why, each.files) for each in collected.left_out] == [("temporary", 5)]


def test_model_in_a_folder_of_data_is_kept(folders: Folders) -> None:
    script = BIG + "open('data/best.pt', 'wb').truncate(50_000_000)\n"
    script += "os.mkdir('output_data')\nopen('output_data/p.csv', 'wb').truncate(50_000_000)"
    collected = folders.run(script)
    assert set(collected.sources) == {"data/best.pt", "output_data/p.csv"}
    assert collected.left_out == (LeftOut("data/", 40_000_001, "data", 2),)


def test_smallest_of_too_many_files_are_kept(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_module, "MAX_FILES", 2)
    script = "import os\nos.mkdir('d')\nfor n in range(4):\n open(f'd/{n}', 'w').write('x' * n)"
    collected = folders.run(script)
    assert set(collected.sources) == {"d/0", "d/1"}
    assert collected.left_out == (LeftOut("d/", 5, "count", 2),)


def test_old_files_are_not_collected_without_a_time_mark(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = folders.elsewhere / "old.bin"
    old.touch()

    def refuse(*_: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", refuse)
    own = SimpleNamespace(time_ns=lambda: old.stat().st_ctime_ns + 1, monotonic=time.monotonic)
    monkeypatch.setattr(written_module, "time", own)
    assert folders.run(f"data = '{old}'") == Collected()


ODD = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=300)
FRAGMENTS = st.sampled_from(["/", "*", "{x}", "..", "[z-a]", "\0", "/tmp", "?", "**", "\\", "%s"])


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    strings=st.lists(st.lists(FRAGMENTS | ODD, max_size=8).map("".join), max_size=5),
    name=st.binary(min_size=1, max_size=40),
)
@example(strings=["."], name=b"a")
def test_search_fails_on_no_string_and_no_file(strings: list[str], name: bytes) -> None:
    root = Path(tempfile.mkdtemp(prefix="odd-"))
    code, output = root / "code", root / "output"
    try:
        code.mkdir()
        output.mkdir()
        words = ("true", *(f"{root}/{text}" for text in strings), *strings, "/" + "x" * 300)
        (code / "a.json").write_text("\n".join(f'"/{text}"' for text in words))
        spec = RunSpec(run_id="r", command=words, outputs=tuple(strings))
        written = WrittenFiles(code, output, {"home": root}, (), spec)
        written.named_outputs()
        written.begin(words)
        make_odd_tree(code, name.replace(b"/", b"_").replace(b"\0", b"_"))
        collected = written.collect()
        assert all(check_output_path(stored_path(path)) for path in collected.files)
        assert "code" not in [each.path for each in collected.left_out]
    finally:
        if (code / "locked").exists():
            (code / "locked").chmod(0o700)  # otherwise only root can remove it
        shutil.rmtree(root)


def make_odd_tree(folder: Path, name: bytes) -> None:
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "itself").symlink_to(".")
    os.mkfifo(folder / "fifo")
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)
    (folder / "locked").mkdir(0)
    if name not in (b".", b".."):
        (folder / os.fsdecode(name)).touch()


def test_collected_files_survive_writing_and_reading(folders: Folders) -> None:
    collected = folders.run(BIG + KERAS)
    assert collected.left_out
    assert Collected.from_json(collected.to_json()) == collected


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (("--output_dir", "a"), "a"), (("--output-dir=a/b",), "a/b"), (("--logdir", "l"), "l"),
        (("--save_dir", "s"), "s"), (("--out", "o/model.npz"), "o"), (("-o", "d/m.pt"), "d"),
        (("--save_path", "p/m.pt"), "p"), (("--model-dir", "m"), "m"), (("--ckpt_dir=c/d",), "c/d"),
        (("--checkpoint_dir", "c"), "c"), (("--tensorboard-dir", "t"), "t"),
        (("--work-dir", "w"), "w"), (("--save-path", "s/"), "s"), (("--exp_dir", "e"), "e"),
    ],
)  # fmt: skip
def test_folder_named_by_an_argument_exists_before_the_script(
    folders: Folders, arguments: tuple[str, ...], folder: str
) -> None:
    collected = folders.run(f"import os\nopen({folder + '/a'!r}, 'w')", *arguments)
    assert collected.sources == {f"{folder}/a": "code"}


@pytest.mark.parametrize(
    "arguments", [("--save_path", "m.pt"), ("--model_path", "m.pt"), ("--model_dir", "m.pt")]
)
def test_ambiguous_argument_creates_no_folder(folders: Folders, arguments: tuple[str, ...]) -> None:
    assert folders.run("open('m.pt', 'w')", *arguments).sources == {"m.pt": "code"}


def test_path_to_which_the_code_appends_a_name_is_a_folder(folders: Folders) -> None:
    code = "import os, sys\nsave_path = sys.argv[2]\nopen(os.path.join(save_path, 'a'), 'w')"
    assert folders.run(code, "--save-path", "s").sources == {"s/a": "code"}


@pytest.mark.parametrize(
    "line",
    [
        "model = AutoModel.from_pretrained(args.model_dir)",
        "torch.load(args.model_dir)",
        "if os.path.exists(args.model_dir): pass",
        "builder = SavedModelBuilder(args.model_dir)",
        "os.mkdir(args.model_dir)",
    ],
)
def test_folder_that_the_code_reads_or_creates_is_not_created(folders: Folders, line: str) -> None:
    code = f"import os\nif 0:\n  {line}\nassert not os.path.isdir('m')\nopen('a', 'w')"
    assert folders.run(code, "--model_dir", "m").sources == {"a": "code"}


@pytest.mark.parametrize(
    "line", ["os.makedirs('outputs')", "pathlib.Path('outputs').mkdir()", "os.mkdir('./outputs')"]
)
def test_folder_created_by_the_script_is_not_created_before(folders: Folders, line: str) -> None:
    collected = folders.run(f"import os, pathlib\n{line}\nopen('outputs/a', 'w')")
    assert collected.sources == {"outputs/a": "code"}


def test_removed_code_folder_has_no_outputs(folders: Folders) -> None:
    gone = "import os, shutil\nshutil.rmtree(os.getcwd())"
    assert folders.run(gone) == Collected()
