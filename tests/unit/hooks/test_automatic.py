"""The hooks that Python starts by itself, with stand-ins of frameworks and in bare processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.hooks.automatic import ranks
from runner.hooks.timing import DeferredSigterm, SaveInterval
from runner.node.script.workspace import python_path

Run = Callable[..., subprocess.CompletedProcess[str]]

_PLACE = """
import sys
from _runner_hooks.automatic import place
for kind, settings in (("keras", 1), ("keras", 2), ("other", 1)):
    folder = place.training_folder(kind, settings)
    if folder is None:
        print(None)
        continue
    print(*folder.relative_to(sys.argv[1]).parts[1:], folder.exists())
    folder.mkdir(exist_ok=True)
"""
_MANAGER = """
import os
class CheckpointManager:
    def __init__(self, checkpoint, directory, max_to_keep):
        self.directory, self.keep, self.checkpoints = directory, max_to_keep, []
        os.makedirs(directory, exist_ok=True)
    def save(self):
        number = int(self.checkpoints[-1].split("-")[-1]) + 1 if self.checkpoints else 1
        self.checkpoints.append(os.path.join(self.directory, "ckpt-%d" % number))
        for path in self.checkpoints[-1:]:
            open(path + ".index", "w").write(path)
        for path in self.checkpoints[:-self.keep]:
            os.unlink(path + ".index")
        del self.checkpoints[:-self.keep]
        open(os.path.join(self.directory, "part"), "w").write(" ".join(self.checkpoints))
        os.replace(os.path.join(self.directory, "part"), os.path.join(self.directory, "checkpoint"))
        return self.checkpoints[-1]
"""
_USES_MANAGER = """
import os, sys
from tensorflow.python.checkpoint.checkpoint_management import CheckpointManager
manager = CheckpointManager(None, "./ckpts", max_to_keep=2)
print(sorted(os.listdir("ckpts")))
for _ in range(3):
    print(manager.save())
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run code as a script of an attempt, with the hooks as they are on a node."""
    (tmp_path / "checkpoints").mkdir()
    hooks = python_path(None, tmp_path, automatic=True)

    def start(
        code: str, *words: str, attempt: int = 1, run_id: str = "run-1", **more: str
    ) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / f"code-{attempt}"
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(code)
        given = more.pop("PYTHONPATH", "")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(filter(None, (hooks, given))),
            "RUNNER_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
            "RUNNER_RUN_ID": run_id,
            "RUNNER_ATTEMPT": str(attempt),
            **more,
        }
        return subprocess.run(
            [sys.executable, "train.py", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return start


def stand_in(folder: Path, name: str, text: str) -> str:
    """Write a module of a framework. Return the folder for PYTHONPATH."""
    *packages, module = name.split(".")
    place = folder / "packages"
    place.mkdir()
    for package in packages:
        place /= package
        place.mkdir(parents=True, exist_ok=True)
        (place / "__init__.py").touch()
    (place / f"{module}.py").write_text(text)
    return str(folder / "packages")


def places(run: Run, tmp_path: Path, *words: str, **more: Any) -> list[str]:
    done = run(_PLACE, str(tmp_path / "checkpoints"), *words, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_next_attempt_resumes_the_folders_of_equal_trainings(run: Run, tmp_path: Path) -> None:
    first = places(run, tmp_path)
    assert [line.split()[-1] for line in first] == ["False"] * 3
    assert len({line.rsplit(None, 1)[0] for line in first}) == 3
    again = places(run, tmp_path, attempt=2)
    assert again == [line.replace("False", "True") for line in first]


def test_different_trainings_never_share_a_folder(run: Run, tmp_path: Path) -> None:
    first = places(run, tmp_path, "--fold", "1")
    second = places(run, tmp_path, "--fold", "1")  # in the same attempt
    third = places(run, tmp_path, "--fold", "2")
    assert "True" not in " ".join((*first, *second, *third))
    assert len({*first, *second, *third}) == 9
    assert "True" not in " ".join(places(run, tmp_path, "--fold", "3", attempt=2))


def test_processes_at_the_same_time_never_resume(run: Run, tmp_path: Path) -> None:
    """The processes (folds) have equal command lines, and may start in another order next time."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as fold:
        first = places(run, tmp_path)
        (claim,) = (tmp_path / "checkpoints").glob("automatic/*/claim-*")
        claim.write_text(str(fold.pid))
        second = run(_PLACE, str(tmp_path / "checkpoints"))
        fold.communicate(b"\n")
    assert len(first) == 3
    assert second.stdout.split() == ["None"] * 3
    assert second.stderr.count("train at the same time") == 1
    again = run(_PLACE, str(tmp_path / "checkpoints"), attempt=2)
    assert again.stdout.split() == ["None"] * 3
    assert len(again.stderr.splitlines()) == 1
    resumed = places(run, tmp_path, "--more", run_id="run-2")
    assert resumed == ["None"] * 3


def test_processes_with_other_variables_never_share_a_folder(run: Run, tmp_path: Path) -> None:
    """An eviction may happen after the first process has saved, before the second one starts."""
    start = "subprocess.run([sys.executable, '-c', code, sys.argv[1]], env=env, check=True)"
    code = (
        f"import os, subprocess, sys\ncode = {_PLACE!r}\n"
        "for fold in sys.argv[2].split(','):\n"
        "    env = {**os.environ, 'FOLD': fold, 'SHLVL': os.environ['RUNNER_ATTEMPT']}\n"
        f"    {start}\n"
    )
    folder, more = str(tmp_path / "checkpoints"), {"RUNNER_SCRIPT_OF": "wd"}
    first = run(code, folder, "1", **more).stdout.splitlines()
    again = run(code, folder, "2,1", attempt=2, **more)
    second = again.stdout.splitlines()
    assert "True" not in " ".join((*first, *second[:3]))
    assert again.stderr == "runner: not resumed: $FOLD differs from the earlier attempt\n"
    assert second[3:] == [line.replace("False", "True") for line in first]


def test_ranks_save_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        [(False, False, False, 3), (False, False, True, 1)],
        [(False, False, True, 1), (False, False, False, 1)],
        [(False, False, False, 1), (False, True, False, 1)],
        [(False, True, True, 1), (True, True, True, 1)],
    ]
    asked: list[Any] = []
    monkeypatch.setattr(ranks, "gather", lambda value: asked.append(value) or answers.pop(0))  # pyright: ignore
    saves = ranks.CommonSaves(SaveInterval(), DeferredSigterm())
    assert [saves.is_due(failed=False) for _ in range(5)] == [False, False, False, True, True]
    assert (len(asked), saves.has_failed) == (3, False)
    assert [saves.is_due(failed=False) for _ in range(3)] == [False] * 3
    assert (len(asked), saves.has_failed) == (4, True)


@pytest.mark.parametrize("claim", ["", "no number", "9" * 40])
def test_claim_without_a_process_counts_as_held(run: Run, tmp_path: Path, claim: str) -> None:
    places(run, tmp_path)
    (path,) = (tmp_path / "checkpoints").glob("automatic/*/claim-*")
    path.write_text(claim)
    assert places(run, tmp_path) == ["None"] * 3


def test_exec_of_another_program_is_no_second_process(run: Run, tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom _runner_hooks.automatic import place\n"
        "print(place.process_folder() is not None, flush=True)\n"
        "if 'AGAIN' not in os.environ:\n"
        "    os.environ['AGAIN'] = '1'\n    os.execv(sys.executable, [sys.executable, *sys.argv])\n"
    )
    done = run(code)
    assert (done.stdout.split(), done.stderr) == (["True", "True"], "")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_of_multiprocessing_is_left_alone(run: Run, tmp_path: Path, method: str) -> None:
    code = (
        "import multiprocessing\n"
        "def train(fold):\n"
        "    from _runner_hooks.automatic import place\n"
        "    return place.process_folder()\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context('{method}').Pool(2) as pool:\n"
        "        print(pool.map(train, range(2)))\n"
    )
    done = run(code)
    assert done.stdout == "[None, None]\n"
    assert "a training on several processes is not saved by itself" in done.stderr
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_run_resumed_with_other_arguments_gets_the_folder(run: Run, tmp_path: Path) -> None:
    places(run, tmp_path, "--epochs", "5")
    after = places(run, tmp_path, "--epochs", "9", run_id="run-2")
    assert [line.split()[-1] for line in after] == ["True"] * 3
    assert places(run, tmp_path, "--epochs", "9", run_id="run-2", attempt=2) == after
    assert "True" not in " ".join(places(run, tmp_path, "--epochs", "5", run_id="run-2", attempt=3))


def test_node_folders_in_arguments_are_ignored(run: Run, tmp_path: Path) -> None:
    first = places(run, tmp_path, "--data=/mnt/node-1/data", RUNNER_DATA_DIR="/mnt/node-1/data")
    elsewhere = {"attempt": 2, "RUNNER_DATA_DIR": "/mnt/node-2/data"}
    again = places(run, tmp_path, "--data=/mnt/node-2/data", **elsewhere)
    assert again == [line.replace("False", "True") for line in first]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WORLD_SIZE", "2"),
        ("RUNNER_NODES", "2"),
        ("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}'),
        ("TF_CONFIG", "no JSON"),
    ],
)
def test_training_on_several_processes_is_left_alone(
    run: Run, tmp_path: Path, variable: str, value: str
) -> None:
    done = run(_PLACE, str(tmp_path), **{variable: value})
    assert done.stdout.split() == ["None"] * 3
    assert done.stderr.count("a training on several processes is not saved by itself") == 1
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_only_worker_of_tensorflow_is_no_distributed_training(run: Run, tmp_path: Path) -> None:
    alone = run(_PLACE, str(tmp_path), TF_CONFIG='{"cluster": {"worker": ["a:1"]}}')
    assert "None" not in alone.stdout.split()


def test_script_that_saves_checkpoints_itself_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "mine.pt").touch()
    assert places(run, tmp_path) == ["None"] * 3


def test_sitecustomize_of_the_environment_still_runs(run: Run, tmp_path: Path) -> None:
    theirs = stand_in(tmp_path, "sitecustomize", "import sys; sys.theirs = __name__, __file__")
    code = "import sys, sitecustomize; print(*sys.theirs, sitecustomize.__file__)"
    done = run(code, PYTHONPATH=theirs)
    path = f"{theirs}/sitecustomize.py"
    assert (done.stdout.split(), done.stderr) == (["sitecustomize", path, path], "")


def test_script_without_a_framework_imports_no_adapters(run: Run) -> None:
    code = "import sys; print(sorted(name for name in sys.modules if '_runner_hooks' in name))"
    loaded = ["_runner_hooks", "_runner_hooks.automatic"]
    loaded += [f"{loaded[1]}.imports", f"{loaded[0]}.written_paths"]
    assert run(code).stdout == f"{loaded}\n"


@pytest.mark.parametrize(
    "loader",
    [
        "class L(M):\n    exec_module = property(lambda self: super().exec_module)\n",
        (
            "class L:\n    def __init__(self, *given): self.of = M(*given)\n"
            "    def load_module(self, name): return self.of.load_module(name)\n"
        ),
    ],
)
def test_unchangeable_loader_still_imports(run: Run, tmp_path: Path, loader: str) -> None:
    packages = stand_in(tmp_path, "keras.src.models.model", "class Model: name = 'theirs'")
    code = (
        "import sys, warnings\nfrom importlib.machinery import SourceFileLoader as M, PathFinder\n"
        "from importlib.util import spec_from_loader\nwarnings.simplefilter('ignore')\n"
        f"{loader}"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        found = PathFinder.find_spec(name, path)\n"
        "        if name == 'keras.src.models.model':\n"
        "            return spec_from_loader(name, L(name, found.origin), is_package=False)\n"
        "sys.meta_path.insert(1, Finder())\n"
        "from keras.src.models.model import Model; print(Model.name)\n"
    )
    done = run(code, PYTHONPATH=packages)
    assert (done.stdout, done.stderr) == ("theirs\n", "")


def test_namespace_package_is_imported_unchanged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "packages" / "transformers" / "trainer").mkdir(parents=True)
    code = "import transformers.trainer as found; print(list(found.__path__)[0][-7:])"
    done = run(code, PYTHONPATH=str(tmp_path / "packages"))
    assert (done.stdout, done.stderr) == ("trainer\n", "")


@pytest.mark.parametrize(
    ("module", "adapter"),
    [
        ("keras.src.models.model", "keras"),
        ("tf_keras.src.engine.training", "keras2"),
        ("keras.src.engine.training", "keras2"),
        ("keras.engine.training", "keras2"),
    ],
)
def test_error_of_an_adapter_is_one_line_and_training_continues(
    run: Run, tmp_path: Path, module: str, adapter: str
) -> None:
    """Here, another framework has this name, and it has no callbacks."""
    packages = stand_in(
        tmp_path,
        module,
        "class Model:\n    def fit(self, x, epochs=1):\n        return x * epochs\n",
    )
    code = (
        f"from {module} import Model\n"
        "print(Model().fit(2, epochs=3), Model().fit(2), Model.fit.__name__)\n"
    )
    done = run(code, PYTHONPATH=packages)
    assert done.stdout == "6 2 fit\n"
    assert len(done.stderr.splitlines()) == 1
    assert f"runner: automatic checkpoints of {adapter} are off" in done.stderr


# As Transformers 4.45 with PyTorch 2.6 and newer: by default, the types in a file are restricted.
_STRICT_TRAINER = """
import os, pathlib
class Strict:
    FULL, RESTRICTED = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    def load(self, folder):
        if not os.environ.get(self.FULL) or os.environ.get(self.RESTRICTED):
            raise TypeError("Weights only load failed")
        print("loaded", pathlib.Path(folder, "state").read_text())
class Arguments:
    output_dir, world_size, learning_rate, seed = "out", 1, 0.1, 1
    per_device_train_batch_size = gradient_accumulation_steps = 1
class State:
    global_step, best_model_checkpoint = 0, None
class Trainer:
    def __init__(self):
        self.args, self.state, self.model, self.model_wrapped = Arguments(), State(), 1, 1
        self.callbacks = []
    def add_callback(self, callback):
        self.callbacks.append(callback)
    def remove_callback(self, callback):
        self.callbacks.remove(callback)
    def _save_checkpoint(self, model, trial):
        inner = pathlib.Path(self._get_output_dir(trial), "checkpoint-1")
        inner.mkdir()
        (inner / "state").write_text(str(self.state.global_step))
    def _load_rng_state(self, folder):
        Strict().load(folder)
    def _load_optimizer_and_scheduler(self, folder):
        Strict().load(folder)
    def train(self, resume_from_checkpoint=None, trial=None):
        self._train_from(resume_from_checkpoint)
        self.state.global_step += 1
        for callback in list(self.callbacks):
            callback.on_train_begin(self.args, self.state, None)
            self.state.global_step += 1
            callback.on_train_end(self.args, self.state, None)
    def _train_from(self, folder):
        if folder is not None:
            self._load_optimizer_and_scheduler(folder)
            self._load_rng_state(folder)
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["loaded 2", "loaded 2", "None", "no load outside"]),
        ({"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}, ["loaded 2", "loaded 2", "1", "loaded 2"]),
        ({"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}, ["Weights only load failed"]),
    ],
)
def test_trainer_loads_all_types_of_its_checkpoint_and_nothing_else(
    run: Run, tmp_path: Path, variables: dict[str, str], expected: list[str]
) -> None:
    packages = stand_in(tmp_path, "transformers.trainer", _STRICT_TRAINER)
    (tmp_path / "packages" / "transformers" / "__init__.py").write_text(
        "class TrainerCallback: pass\n"
    )
    code = """
import glob, os
from transformers.trainer import Trainer
trainer = Trainer()
try:
    trainer.train()
except TypeError as err:
    raise SystemExit(print(err))
if os.environ["RUNNER_ATTEMPT"] == "2":
    print(os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"))
    state = glob.glob(os.environ["RUNNER_CHECKPOINT_DIR"] + "/**/state", recursive=True)[0]
    try:
        trainer._load_rng_state(os.path.dirname(state))
    except TypeError:
        print("no load outside")
"""
    assert run(code, PYTHONPATH=packages).stdout == ""
    second = run(code, attempt=2, PYTHONPATH=packages, **variables)
    assert second.stdout.splitlines() == expected, second.stderr
    assert "resumes from its newest checkpoint" in second.stderr


def test_error_of_the_framework_reaches_the_script(run: Run, tmp_path: Path) -> None:
    packages = stand_in(
        tmp_path, "keras.src.models.model", "class Model:\n    def fit(self, x): raise KeyError(x)"
    )
    code = (
        "from keras.src.models.model import Model\n"
        "try: Model().fit('a')\nexcept KeyError as err: print(err)\n"
        "try: Model().fit()\nexcept TypeError as err: print(err)\n"
    )
    done = run(code, PYTHONPATH=packages)
    assert done.stdout.startswith("'a'\nModel.fit() missing 1 required positional argument")


def test_folder_of_a_checkpoint_manager_is_kept(run: Run, tmp_path: Path) -> None:
    name = "tensorflow.python.checkpoint.checkpoint_management"
    packages = stand_in(tmp_path, name, _MANAGER)
    first = run(_USES_MANAGER, PYTHONPATH=packages)
    assert first.stdout.splitlines() == ["[]", *(f"./ckpts/ckpt-{n}" for n in (1, 2, 3))]
    (kept,) = (tmp_path / "checkpoints").glob("automatic/*/tensorflow-*")
    expected = ["checkpoint", "ckpt-2.index", "ckpt-3.index"]
    assert sorted(path.name for path in kept.iterdir()) == expected
    second = run(_USES_MANAGER, PYTHONPATH=packages, attempt=2)
    assert second.stdout.splitlines()[0] == str(expected)
    assert "runner: the folder ./ckpts of tf.train.CheckpointManager resumes" in second.stderr
