"""Find modules that the code of a recipe imports, and that none of its packages provides."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.core.packages.requirements import normalize_name
from runner.core.packages.sources import find_in_groups, find_script, is_lock_file
from runner.core.recipe.local_code import LocalCode
from runner.core.recipe.notebook import SUFFIX
from runner.core.recipe.recipe import Recipe
from runner.protocol.errors import RunnerError

CONDA_PROGRAM = "micromamba"
_MOST_NAMED = 20  # packages of a message
_MOST_ENTRIES = 20_000  # of the folder, that are searched for a module
_SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__"})
_INSTALLS = re.compile(r"""\b(pip|uv|conda|mamba|micromamba)['",\s]+(pip['",\s]+)?install\b""")
_SYSTEM_INSTALL = re.compile(
    r"(?m)(?:^|[;&|(]|\bthen\b)\s*((?:sudo|doas)\b"
    r"|(?:apt|apt-get|aptitude|yum|dnf|microdnf|apk|pacman|zypper)\s)"
)
# Modules of some versions of Python.
_REMOVED = frozenset(
    [
        "aifc",
        "asynchat",
        "asyncore",
        "audioop",
        "cgi",
        "cgitb",
        "chunk",
        "crypt",
        "distutils",
        "imghdr",
        "imp",
        "lib2to3",
        "mailcap",
        "msilib",
        "nis",
        "nntplib",
        "ossaudiodev",
        "pipes",
        "smtpd",
        "sndhdr",
        "spwd",
        "sunau",
        "telnetlib",
        "uu",
        "xdrlib",
    ]
)
_PROVIDED = frozenset({"runner", "pip", "__main__", *sys.stdlib_module_names, *_REMOVED})
# Names that people write for packages with another name; most are stubs on the index.
_MEANT = {
    "beautifulsoup": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "opencv": "opencv-python-headless",
    "pil": "pillow",
    "pytorch": "torch",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorflow-gpu": "tensorflow, which includes GPUs since version 2.1",
    "yaml": "pyyaml",
}
# Packages with another name than their module.
_PACKAGES = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "IPython": "ipython",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "absl": "absl-py",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "clip": "git+https://github.com/openai/CLIP",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "detectron2": "git+https://github.com/facebookresearch/detectron2",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "hydra": "hydra-core",
    "haiku": "dm-haiku",
    "igraph": "python-igraph",
    "ignite": "pytorch-ignite",
    "jwt": "pyjwt",
    "ml_collections": "ml-collections",
    "pkg_resources": "setuptools<82",
    "mpl_toolkits": "matplotlib",
    "open_clip": "open-clip-torch",
    "osgeo": "gdal",
    "psycopg2": "psycopg2-binary",
    "pycocotools": "pycocotools",
    "pylab": "matplotlib",
    "pyro": "pyro-ppl",
    "pytorch_lightning": "pytorch-lightning",
    "ruamel": "ruamel.yaml",
    "segment_anything": "segment-anything",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "slugify": "python-slugify",
    "tensorboardX": "tensorboardx",
    "tf_keras": "tf-keras",
    "tlz": "toolz",
    "torch_geometric": "torch-geometric",
    "umap": "umap-learn",
    "usb": "pyusb",
    "win32api": "pywin32",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
# Other packages that provide a module.
_ALSO = {
    "cv2": ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless"),
    "faiss": ("faiss-gpu", "faiss-gpu-cu12"),
    "keras": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"),
    "lightning": ("lightning",),
    "psycopg2": ("psycopg2",),
    "pkg_resources": ("setuptools",),
    "tensorflow": ("tf-nightly", "intel-tensorflow"),
    "PIL": ("pillow-simd",),
    "IPython": ("ipykernel", "jupyter", "notebook", "jupyterlab"),
    "tensorboard": ("tensorflow", "tensorflow-cpu"),
    "pytorch_lightning": ("lightning",),
    "xgboost": ("xgboost-cpu",),
}
# What popular packages install themselves, so that many projects do not list it.
_BROUGHT = {
    "numpy": (
        "accelerate chainer dask datasets diffusers evaluate gym gymnasium h5py jax "
        "jaxlib keras lightgbm matplotlib ml-dtypes numba onnx onnxruntime "
        "opencv-python opencv-python-headless pandas peft pytorch-lightning "
        "scikit-image scikit-learn scipy seaborn sentence-transformers shap statsmodels "
        "tensorboard tensorflow tensorflow-cpu torchmetrics torchvision transformers "
        "ultralytics xarray xgboost"
    ),
    "scipy": (
        "jax lightgbm scikit-image scikit-learn sentence-transformers statsmodels "
        "ultralytics xgboost"
    ),
    "pandas": "datasets evaluate seaborn shap statsmodels xarray",
    "scikit-learn": "imbalanced-learn sentence-transformers shap umap-learn",
    "matplotlib": "seaborn ultralytics",
    "pillow": (
        "imageio keras-cv matplotlib scikit-image sentence-transformers tensorboard "
        "torchvision ultralytics"
    ),
    "pyyaml": (
        "accelerate datasets huggingface-hub hydra-core lightning omegaconf peft "
        "pytorch-lightning timm transformers ultralytics wandb"
    ),
    "tqdm": (
        "datasets evaluate huggingface-hub lightning nltk optuna pytorch-lightning "
        "sentence-transformers shap transformers ultralytics"
    ),
    "requests": (
        "datasets diffusers evaluate huggingface-hub mlflow tensorflow torchtext "
        "transformers ultralytics wandb"
    ),
    "torch": (
        "accelerate lightning peft pytorch-lightning sentence-transformers timm "
        "torchaudio torchmetrics torchtext torchvision ultralytics"
    ),
    "torchvision": "timm ultralytics",
    "torchmetrics": "lightning pytorch-lightning",
    "lightning-utilities": "lightning pytorch-lightning torchmetrics",
    "pytorch-lightning": "lightning",
    "transformers": "peft sentence-transformers trl",
    "datasets": "evaluate trl",
    "huggingface-hub": (
        "accelerate datasets diffusers evaluate peft sentence-transformers timm "
        "tokenizers transformers"
    ),
    "tokenizers": "sentence-transformers transformers",
    "safetensors": "accelerate diffusers peft timm transformers",
    "accelerate": "peft trl",
    "omegaconf": "hydra-core",
    "packaging": (
        "accelerate datasets hydra-core lightning matplotlib pytest tensorflow transformers wandb"
    ),
    "h5py": "keras tensorflow tensorflow-cpu",
    "jaxlib": "jax",
    "absl-py": "keras tensorboard tensorflow tensorflow-cpu",
    "six": "chainer pandas python-dateutil tensorflow",
    "python-dateutil": "matplotlib pandas",
    "tensorboard": "tensorflow tensorflow-cpu",
    "joblib": "scikit-learn",
    "setuptools<82": "setuptools",
    "click": "flask mlflow nltk typer wandb",
    "rich": "keras typer",
    "psutil": "accelerate ipykernel peft ultralytics wandb",
    "ipython": "ipykernel papermill",
    "traitlets": "ipykernel papermill",
    "nbformat": "papermill",
}

_FURTHER = ("catboost", "dgl", "equinox", "fastai", "flax", "monai", "mxnet", "optax", "ray")


def package_warnings(recipe: Recipe) -> tuple[str, ...]:
    """Return what the files of a recipe show about its packages, as warnings.

    `runner recipe check`, a dry run and a submission print them. What cannot work is an error, most
    of it when the recipe is loaded.

    Raises:
        RunnerError: the code imports a well-known package, and nothing is installed.
    """
    found = (
        _conda_warning(recipe),
        _system_warning(recipe),
        *_name_warnings(recipe),
        _import_warning(recipe),
    )
    return (*recipe.package_source.warnings, *(text for text in found if text))


def _name_warnings(recipe: Recipe) -> Iterator[str]:
    """Yield a warning for each listed package that probably has another name."""
    source = recipe.package_source
    if recipe.is_conda or source.origin is None or is_lock_file(source.origin):
        return
    for name in sorted(source.listed.names & {*_MEANT, "python"}):
        if name == "python":
            yield f"{source.origin} lists python, which is no package: write `python` in train.yaml"
        else:
            yield f"{source.origin} lists {name}: the package is probably {_MEANT[name]}"


def _conda_warning(recipe: Recipe) -> str | None:
    if not recipe.is_conda or shutil.which(CONDA_PROGRAM) is not None:
        return None
    where = "in the image" if recipe.image else "on the nodes"
    return f"{recipe.requirements_file} has packages of conda: {CONDA_PROGRAM} has to be {where}"


def _system_warning(recipe: Recipe) -> str | None:
    """Return a warning about a `prepare` that needs the rights of an administrator."""
    found = _SYSTEM_INSTALL.search(recipe.prepare or "")
    if found is None:
        return None
    return (
        f"`prepare` runs {found[1]}, but without the rights of an administrator: install system "
        "packages in the `start_script` of the pool, or use an `image` that has them"
    )


def refuse_conda_here(recipe: Recipe) -> None:
    """Raise RunnerError if a recipe needs micromamba, and nodes of this machine have none."""
    if recipe.is_conda and recipe.image is None and shutil.which(CONDA_PROGRAM) is None:
        raise RunnerError(
            "R-PACKAGES",
            f"{recipe.requirements_file} has packages of conda, which {CONDA_PROGRAM} installs",
            why=f"no program {CONDA_PROGRAM} is on the PATH of this machine",
            fix=f"install {CONDA_PROGRAM}, or list the packages in requirements.txt, which is used "
            "instead",
        )


def _import_warning(recipe: Recipe) -> str | None:
    """Return a warning that names modules which no package of the recipe provides, or None."""
    source = recipe.package_source
    script = find_script(recipe.folder, recipe.command)
    is_known = recipe.image is None and recipe.source != "builtin" and not source.listed.is_open
    if not is_known or _INSTALLS.search(recipe.prepare or ""):
        return None
    if script is not None and not script.endswith((".py", SUFFIX)):
        return None
    imported = _find_imports(LocalCode.of_command(recipe.folder, recipe.command))
    if not imported:
        return None
    asked = (re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in recipe.packages)
    listed = {*source.listed.names, *map(normalize_name, asked)}
    is_complete = source.origin is not None and is_lock_file(source.origin)
    missing = {
        name: file
        for name, file in imported.items()
        if not _is_provided(name, listed, is_complete=is_complete)
    }
    return _describe(missing, recipe) if missing else None


def _describe(missing: dict[str, str], recipe: Recipe) -> str:
    where = next(iter(missing.values()))
    here = [name for name, file in missing.items() if file == where]
    needed = list(dict.fromkeys(map(_package_of, here)))
    names = needed[:_MOST_NAMED]
    shown = ", ".join(here[:5]) + (f" and {len(here) - 5} more" if len(here) > 5 else "")
    packages = ", ".join(names)
    origin = recipe.package_source.origin
    if origin is None:
        options = " ".join(f"--package {name}" for name in names)
        if not any(map(_is_well_known, needed)):
            return (
                f"{where} imports {shown}, but no file lists packages: add {options}, or write a "
                "requirements.txt"
            )
        raise RunnerError(
            "R-IMPORTS",
            f"{where} imports {shown}, which nothing installs",
            why=_why_not_installed(recipe, names),
            fix=f"add {options}, or write a requirements.txt with {packages}",
        )
    if is_lock_file(origin):
        return f"{where} imports {shown}, which is not in {origin}: add {packages} to the project"
    return (
        f"{where} imports {shown}, which nothing in {origin} is known to provide: add {packages}, "
        "unless another package installs it"
    )


def _why_not_installed(recipe: Recipe, packages: Iterable[str]) -> str:
    """Return why packages are not installed: no file lists them, or only in a group."""
    groups = find_in_groups(recipe.folder)
    for package in packages:
        if table := groups.get(normalize_name(package)):
            return f"{table} of pyproject.toml lists {package}, but groups are not installed"
    return "no file lists the packages of the code, and the environment of a run is empty"


def _is_well_known(package: str) -> bool:
    """Return True for a package whose module cannot be something else."""
    brings = (name for names in _BROUGHT.values() for name in names.split())
    return package in {*_PACKAGES.values(), *_BROUGHT, *brings, *_FURTHER}


def _package_of(module: str) -> str:
    """Return the package on an index that provides a module."""
    return _PACKAGES.get(module) or module.replace("_", "-")


def _is_provided(module: str, listed: Iterable[str], *, is_complete: bool) -> bool:
    """Return True if one of the packages provides a module, or may install one that does."""
    package = _package_of(module)
    own = normalize_name(module)
    known = {normalize_name(package), own, *_ALSO.get(module, ())}
    brought = () if is_complete else _BROUGHT.get(package, "").split()
    return any(
        name in known or name in brought or name.startswith((f"{own}-", f"{own}cu"))
        for name in listed
    )


def _find_imports(code: LocalCode) -> dict[str, str] | None:
    """Return the modules that are in no folder of the code, with the file that imports them.

    Return None if the code installs packages itself. Modules are top-level names.
    """
    found: dict[str, str] = {}
    names: frozenset[str] | None = None
    for source in code.sources(only_certain=True):
        if _INSTALLS.search(source.data.decode(errors="replace")):
            return None
        for each in source.imports:
            is_new = each.top and each.top not in found and each.top not in _PROVIDED
            if not (is_new and code.is_certain(each, source)):
                continue
            if not code.files_of(each, source.path):
                names = _module_names(code.folder) if names is None else names
                if each.top not in names:
                    found[each.top] = source.path.relative_to(code.folder).as_posix()
    return found


def _module_names(folder: Path) -> frozenset[str]:
    """Return the names that the files of a folder, and folders with such files, have as modules."""
    found, entries = set[str](), 0
    for parent, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each not in _SKIPPED]
        entries += len(folders) + len(files)
        modules = {each.partition(".")[0] for each in files if each.endswith((".py", ".so"))}
        if modules:
            found |= {*modules, *Path(parent).relative_to(folder).parts}
        if entries > _MOST_ENTRIES:
            break
    return frozenset(found)
