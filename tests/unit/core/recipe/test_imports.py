"""Imports that no package provides are said, with the name on the package index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.core.recipe.file import load_recipe
from runner.core.recipe.imports import package_warnings
from runner.core.recipe.options import RunOptions, with_options
from runner.protocol.errors import RunnerError
from tests.unit.core.packages.test_sources import UV_LOCK, write


def warnings(folder: Path, files: Mapping[str, str], entry: str | None = None) -> str:
    """Return the warnings about a folder with these files."""
    write(folder, files)
    return "\n".join(package_warnings(load_recipe(".", cwd=folder, entry=entry)))


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("sklearn", "scikit-learn"),
        ("cv2", "opencv-python-headless"),
        ("PIL.Image", "pillow"),
        ("yaml", "pyyaml"),
        ("skimage.io", "scikit-image"),
        ("torch", "torch"),
        ("pytorch_lightning", "pytorch-lightning"),
        ("some_module", "some-module"),
    ],
)
def test_package_of_a_missing_module_is_named(tmp_path: Path, module: str, package: str) -> None:
    text = warnings(tmp_path, {"train.py": f"import {module}\n", "requirements.txt": "tqdm\n"})
    assert text.startswith(f"train.py imports {module.partition('.')[0]}, which nothing in")
    assert f"add {package}," in text


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("import torch\n", "--package torch"),
        ("import numpy as np, sklearn.svm\nfrom PIL import Image\n",
         "--package numpy --package scikit-learn --package pillow"),
        ("import catboost\nimport my_own_thing\n", "--package catboost --package my-own-thing"),
    ],
)  # fmt: skip
def test_well_known_package_that_nothing_installs_is_an_error(
    tmp_path: Path, code: str, options: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        warnings(tmp_path, {"train.py": code})
    assert caught.value.code == "R-IMPORTS"
    assert f"add {options}, or" in caught.value.fix
    words = options.split()
    recipe = load_recipe(".", cwd=tmp_path)
    asked = RunOptions(packages=tuple(word for word in words if word != "--package"))
    assert package_warnings(with_options(recipe, asked)) == ()
    versions = RunOptions(packages=tuple(f"{word}>=1" for word in asked.packages))
    assert package_warnings(with_options(recipe, versions)) == ()


def test_unknown_module_that_nothing_installs_is_a_warning(tmp_path: Path) -> None:
    text = warnings(tmp_path, {"train.py": "import some_module\n"})
    assert text.startswith("train.py imports some_module, but no file lists packages")
    assert "--package some-module" in text
    assert "no file" not in warnings(
        tmp_path / "b", {"train.py": "import torch\n", "requirements.txt": "# none\n"}
    )


@pytest.mark.parametrize(
    "code",
    [
        "import os, sys\nfrom pathlib import Path\n",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import torch\n",
        "import argparse\nif argparse.x:\n    import wandb\n",
        "from contextlib import suppress\nwith suppress(ImportError):\n    import torch\n",
        "import helpers\nimport pkg.part\nfrom lib import thing\nimport deep_one\n",
        "from helpers import *\n",
        "import os\nos.system('pip install torch')\nimport torch\n",
        "import sys\nrun([sys.executable, '-m', 'pip', 'install', 'torch'])\nimport torch\n",
        "print(\n",
        "",
    ],
)
def test_imports_that_may_be_fine_are_not_named(tmp_path: Path, code: str) -> None:
    files = {
        "helpers.py": "def f():\n    import torch\n",
        "pkg/part.py": "",
        "src/lib/__init__.py": "",
        "other/deep/deep_one.py": "",
    }
    assert warnings(tmp_path, {**files, "train.py": code}) == ""


def test_modules_of_the_folder_are_followed(tmp_path: Path) -> None:
    files = {
        "train.py": "from pkg import data\nimport helpers\n",
        "helpers.py": "import numpy\n",
        "pkg/__init__.py": "",
        "pkg/data.py": "from .deep.er import x\n",
        "pkg/deep/__init__.py": "",
        "pkg/deep/er.py": "import cv2\n",
        "unused.py": "import jax\n",
        "requirements.txt": "numpy\n",
    }
    text = warnings(tmp_path, files)
    assert "pkg/deep/er.py imports cv2" in text
    assert "jax" not in text
    assert "numpy" not in text


@pytest.mark.parametrize(
    ("listed", "code"),
    [
        ("Scikit_Learn>=1\n", "import sklearn, numpy, scipy, joblib\n"),
        ("opencv-python\n", "import cv2, numpy\n"),
        ("tensorflow-cpu\n", "import tensorflow, keras, numpy\n"),
        ("torchvision\n", "import torch, numpy\nfrom PIL import Image\n"),
        ("-r more.txt\n", "import requests\n"),
        ("-e .\n", "import anything\n"),
        ("git+https://h.test/a.git\n", "import anything\n"),
        ("google-cloud-storage\n", "from google.cloud import storage\n"),
        ("ruamel.yaml\n", "import ruamel.yaml\n"),
    ],
)
def test_listed_packages_provide_their_modules(tmp_path: Path, listed: str, code: str) -> None:
    files = {"requirements.txt": listed, "train.py": code, "more.txt": "requests\n"}
    files["pyproject.toml"] = "[build-system]\nrequires = []\n"
    assert warnings(tmp_path, files) == ""


def test_lock_file_has_all_packages(tmp_path: Path) -> None:
    lock = {"uv.lock": UV_LOCK.replace('"numpy"', '"pandas"')}
    text = warnings(tmp_path, {**lock, "train.py": "import pandas, numpy\n"})
    assert text == "train.py imports numpy, which is not in uv.lock: add numpy to the project"


@pytest.mark.parametrize("key", ["image: a/b", "prepare: pip install torch"])
def test_packages_may_come_from_elsewhere(tmp_path: Path, key: str) -> None:
    assert warnings(tmp_path, {"train.yaml": f"{key}\n", "train.py": "import torch\n"}) == ""


def test_imports_of_a_notebook(tmp_path: Path) -> None:
    def notebook(*sources: str) -> str:
        cells = [{"cell_type": "code", "source": each, "metadata": {}} for each in sources]
        return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})

    (tmp_path / "a.ipynb").write_text(notebook("import IPython, torch\n"))
    recipe = load_recipe("./a.ipynb", cwd=tmp_path)
    with pytest.raises(RunnerError, match=r"a\.ipynb imports torch, which nothing installs"):
        package_warnings(recipe)
    (tmp_path / "a.ipynb").write_text(notebook("%load_ext autoreload\n%load_ext watermark\n"))
    [text] = package_warnings(load_recipe("./a.ipynb", cwd=tmp_path))
    assert text.startswith("a.ipynb imports watermark, but no file lists packages")
    (tmp_path / "a.ipynb").write_text(notebook("%pip install torch", "import torch\n"))
    assert package_warnings(load_recipe("./a.ipynb", cwd=tmp_path)) == ()


def test_many_modules_are_shortened(tmp_path: Path) -> None:
    names = [f"module_{number}" for number in range(8)]
    text = warnings(tmp_path, {"train.py": f"import {', '.join(names)}\n"})
    assert "module_4 and 3 more" in text


def test_usual_wrong_name_of_a_package_is_said(tmp_path: Path) -> None:
    text = warnings(tmp_path, {"requirements.txt": "sklearn\nPyTorch>=2\npython>=3.8\nnumpy\n"})
    assert text.splitlines() == [
        "requirements.txt lists python, which is no package: write `python` in train.yaml",
        "requirements.txt lists pytorch: the package is probably torch",
        "requirements.txt lists sklearn: the package is probably scikit-learn",
    ]


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        ("apt-get install -y sox", "apt-get"),
        ("pip install x && sudo pip install y", "sudo"),
        ("|\n  set -e\n  yum install sox", "yum"),
        ("if true; then apk add sox; fi", "apk"),
        ("echo apt-get is missing", None),
        ("sh apt-get.sh", None),
        ("pip install apt", None),
    ],
)
def test_prepare_that_needs_an_administrator_is_named(
    tmp_path: Path, prepare: str, named: str | None
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    text = prepare if prepare.startswith("|") else f"'{prepare}'"
    (tmp_path / "train.yaml").write_text(f"command: python train.py\nprepare: {text}\n")
    found = package_warnings(load_recipe(".", cwd=tmp_path))
    assert [each.split()[2].rstrip(",") for each in found] == ([named] if named else [])


@pytest.mark.parametrize(
    ("code", "is_command"),
    [
        ("import os\nos.system('pip install torch')", True),
        ("import subprocess as s, sys\ns.run([sys.executable, '-m', 'pip', 'install', 'a'])", True),
        ("import subprocess as s, sys\ns.run(f'{sys.executable} -m pip install torch')", True),
        ("import pip\npip.main(['install', 'torch'])", True),
        ("COMMAND = 'cd x && uv pip install torch'", True),
        ("def need(name):\n    raise ImportError(f'{name} is missing: pip install {name}')", False),
        ('"""pip install torch"""', False),
        ("# pip install torch", False),
        ("import logging\nlogging.warning('pip install torch')", False),
        ("TEXT = \"please install TensorBoard with 'pip install tensorboard'\"", False),
        ("import os\ntry:\n  import google.colab\n  os.system('pip install a')\nfinally: 1", False),
        ("import os, sys\nif 'google.colab' in sys.path:\n    os.system('pip install a')", False),
    ],
)  # fmt: skip
def test_only_commands_of_the_code_install_packages(
    tmp_path: Path, code: str, is_command: bool
) -> None:
    files = {"train.py": f"import helper\n{code}\n", "helper.py": "import torch\n"}
    if is_command:
        assert warnings(tmp_path, files) == ""
    else:
        with pytest.raises(RunnerError, match=r"helper\.py imports torch, which nothing installs"):
            warnings(tmp_path, files)


@pytest.mark.parametrize(
    ("source", "is_command"),
    [
        ("!pip install torch", True),
        ("%pip install -q torch", True),
        ('! [ ! -z "$COLAB_GPU" ] && pip install torch', False),
        ("import sys\nif 'google.colab' in sys.modules:\n    !pip install torch", False),
        ("# !pip install torch", False),
    ],
)
def test_cells_for_a_notebook_service_install_nothing(
    tmp_path: Path, source: str, is_command: bool
) -> None:
    cells = [{"cell_type": "code", "source": text} for text in (source, "import torch")]
    cells.append({"cell_type": "markdown", "source": "run `!pip install torch`"})
    notebook = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    if is_command:
        assert warnings(tmp_path, {"a.ipynb": notebook}, entry="a.ipynb") == ""
    else:
        with pytest.raises(RunnerError, match=r"a\.ipynb imports torch, which nothing installs"):
            warnings(tmp_path, {"a.ipynb": notebook}, entry="a.ipynb")


def test_module_that_imports_another_package_is_reported(tmp_path: Path) -> None:
    code = "from torch.utils.tensorboard import SummaryWriter\nimport skorch, flax, jax, numpy\n"
    text = warnings(tmp_path, {"train.py": code, "requirements.txt": "torch\nskorch\nflax\n"})
    assert text == (
        "train.py imports tensorboard, which nothing in requirements.txt is known to provide: add "
        "tensorboard, unless another package installs it"
    )


@pytest.mark.parametrize(
    ("files", "is_found"),
    [
        ({"net/__init__.py": ""}, False),
        ({"net.py": ""}, False),
        ({"fit/net.py": ""}, True),
        (
            {"fit/__init__.py": "", "net.py": "", "fit/train.py": "from fit import x\nimport net"},
            True,
        ),
        ({"net.py": "", "fit/train.py": "import sys\nsys.path.append('.')\nimport net"}, True),
        (
            {"net.py": "", "requirements.txt": "-e .", "setup.py": "from setuptools import setup"},
            True,
        ),
        ({"net.py": "", "requirements.txt": "net"}, True),
        ({"net.py": "", "train.yaml": "env: {PYTHONPATH: .}\nentry: fit/train.py"}, True),
        ({"src/net/__init__.py": ""}, True),
    ],
)
def test_module_that_is_not_beside_the_script_is_refused(
    tmp_path: Path, files: dict[str, str], is_found: bool
) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", {"fit/train.py": "import net\n", **files})
    (tmp_path / "a/train.py").unlink()
    recipe = load_recipe(".", cwd=tmp_path / "a", entry="fit/train.py")
    if is_found:
        package_warnings(recipe)
        return
    with pytest.raises(RunnerError, match=r"fit/train\.py imports net, which Python will not find"):
        package_warnings(recipe)
    options = RunOptions(env={"PYTHONPATH": "."})
    assert package_warnings(with_options(recipe, options)) == ()


@pytest.mark.parametrize(
    ("files", "is_complete"),
    [
        ({"requirements.txt": "keras\njax\n"}, False),
        ({"requirements.txt": "keras\ntensorflow-cpu\n"}, True),
        ({"requirements.txt": "tensorflow\n"}, True),
        ({"requirements.txt": "keras\njax\n", "train.yaml": "env: {KERAS_BACKEND: jax}"}, True),
        ({"requirements.txt": "keras\njax\n",
          "train.py": "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras"}, True),
    ],
)  # fmt: skip
def test_keras_needs_the_package_of_its_back_end(
    tmp_path: Path, files: dict[str, str], is_complete: bool
) -> None:
    text = warnings(tmp_path, {"train.py": "import keras\n", **files})
    assert ("imports tensorflow" in text) is not is_complete
