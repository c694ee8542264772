"""Every built-in recipe on a part of its data: once plainly, and once with its node evicted.

Real MNIST and CIFAR-10 are taken from beside the checkout; nothing is downloaded but packages. The
records become docs/recipes.md: `make recipes`, which also trains the recipes that the slow suite
leaves out: PyTorch's only wheel for Linux brings 5 GB of CUDA, and convolutions on CIFAR-10 take
minutes of CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.core.recipe.file import load_recipe
from runner.core.recipe.recipe import Recipe
from runner.flows.local.azurite import find_uv
from tests.e2e.conftest import ROOT, Cli, new_home, show_ended, until
from tools.recipe_table import record_file, small_refs

DATA = ROOT.parent / "shared" / "data"
PLANNED = [ref for ref in small_refs() if load_recipe(ref, cwd=ROOT).image]
TRAINED = [ref for ref in small_refs() if ref not in PLANNED]
ON_DEMAND = ("torch", "caffe2", "vgg", "cifar10:tensorflow")
# Threads of OpenBLAS spin while they wait, and are of no use to networks as small as these.
ENV = ("--env", "OPENBLAS_NUM_THREADS=1")
# Time of a script that an eviction interrupts: its first metric, the notice, and a margin.
EVICTABLE_S = 20
TRAINS_ALL = os.environ.get("ALL_RECIPES") == "1"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cli]:
    """Yield local services with one node, which the recipe uses alone."""
    folder = tmp_path_factory.mktemp("recipes")
    cli = Cli(new_home(folder / "home"), folder)
    cli.ok("local", "up", "--nodes", "1")
    yield cli
    cli.ok("local", "down")


def data_for(ref: str) -> Path:
    folder = DATA / str(load_recipe(ref, cwd=ROOT).dataset)
    if not folder.is_dir():
        _skip(ref, f"no {folder.name} beside the checkout")
    return folder


def _skip(ref: str, why: str) -> None:
    _record(ref, {"skipped": why})
    pytest.skip(why)


def _record(ref: str, document: dict[str, Any]) -> None:
    path = record_file(ref)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")


def _need_python(ref: str, version: str | None) -> None:
    """Skip unless uv finds the Python that the recipe asks for."""
    if version is None:
        return
    find = [str(find_uv()), "python", "find", "--system", "--no-project", version]
    if subprocess.run(find, capture_output=True, check=False).returncode:
        _skip(ref, f"no Python {version} on this machine")


def _train(cli: Cli, ref: str) -> tuple[dict[str, Any], float]:
    """Return the result and the seconds of CPU that the script used."""
    words = ("train", ref, "--data", data_for(ref), *ENV, "--no-download", "-o", "json")
    used: dict[int, float] = {}
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(cli.run, *words)
        while not training.done():
            with suppress(TimeoutError):
                training.result(timeout=0.5)
            used |= _cpu_of_scripts(cli)
    done = training.result()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout), sum(used.values())


def _cpu_of_scripts(cli: Cli) -> dict[int, float]:
    """Return the seconds of CPU that each process of a script has used so far, by process ID."""
    used: dict[int, float] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("RUNNER_OUTPUT_DIR", "").startswith(str(cli.home)):
                times = process.cpu_times()
                used[process.pid] = times.user + times.system
    return used


def _train_evicted(cli: Cli, ref: str, *, epochs: int) -> dict[str, Any]:
    """Train, and evict the node once the first metric is recorded."""
    words = ("--data", data_for(ref), *ENV, "--set", f"epochs={epochs}", "--detach")
    run_id = cli.json("train", ref, *words)["run_id"]
    until(lambda: cli.json("show", run_id)["metrics"])
    cli.ok("local", "evict", "--notice", "2")
    return show_ended(cli, run_id)


@pytest.mark.feature(13)
@pytest.mark.feature(23)
@pytest.mark.slow
@pytest.mark.parametrize("ref", TRAINED)
def test_recipe_reaches_its_expected_range_even_after_an_eviction(trainer: Cli, ref: str) -> None:
    if not TRAINS_ALL and any(part in ref for part in ON_DEMAND):
        pytest.skip("`make recipes` trains it")
    recipe = load_recipe(ref, cwd=ROOT)
    (expected,) = recipe.expect
    (epochs,) = (param.default for param in recipe.params if param.name == "epochs")
    _need_python(ref, recipe.python)
    # Convolutions on CIFAR-10 take a minute of CPU. The slow suite trains them once, in the two
    # attempts of an evicted run, which has to reach the same range with the same outputs. They
    # take twice the epochs: on a fast machine, a run ended within its notice.
    once = "cifar10" in ref and not TRAINS_ALL
    plain, longer = None, 2
    if not once:
        plain, cpu_s = _train(trainer, ref)
        assert expected.problem(plain["metrics"]) == ""
        _assert_outputs(recipe, plain["outputs"])
        assert 0 < cpu_s < 90, "60 s on a quiet machine; a busy one needs more for the same work"
        longer = ceil(EVICTABLE_S / plain["stages_s"]["command"])
    for times in (longer, 4 * longer):  # a run that ends before its eviction shows nothing
        shown = _train_evicted(trainer, ref, epochs=int(str(epochs)) * times)
        if len(shown["attempts"]) > 1:
            break
    assert [each["why"] == "succeeded" for each in shown["attempts"]] == [False, True]
    metrics = {each["name"]: each["last"] for each in shown["metrics"]}
    assert expected.problem(metrics) == ""
    _assert_outputs(recipe, shown["result"]["outputs"])
    if plain is None:
        return
    resumed = shown["attempts"][1]["resumed"]
    _record(
        ref,
        {
            "plain": plain["metrics"][expected.metric],
            "command_s": plain["stages_s"]["command"],
            "evicted": metrics[expected.metric],
            "resumed": resumed and resumed["checkpoint"],
        },
    )


def _assert_outputs(recipe: Recipe, outputs: list[dict[str, Any]]) -> None:
    names = {path.split("/")[-1] for path in recipe.outputs}
    assert names <= {file["path"].split("/")[-1] for file in outputs}


@pytest.mark.parametrize("ref", PLANNED)
def test_recipe_of_a_legacy_container_is_a_valid_plan(ref: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", tmp_path)
    recipe = load_recipe(ref, cwd=ROOT)
    framework = str(recipe.image).split("/")[-1].split(":")[0]
    build = [str(ROOT / "images" / "build.sh"), "--tag", framework]
    named = subprocess.run(build, capture_output=True, text=True, check=True).stdout.strip()
    assert recipe.image == named, "`images/build.sh --tag` names the image of the checkout"
    plan = cli.json("train", ref, "--data", data_for(ref), "--dry-run")
    assert plan["image"]["name"] == named
    assert (ROOT / "images" / framework / "smoke_test.py").is_file()
