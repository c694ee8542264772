"""Find modules that the code of a recipe imports, and that none of its packages provides."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.core.packages.requirements import normalize_name
from runner.core.packages.script_file import find_script
from runner.core.packages.sources import find_in_groups, is_lock_file
from runner.core.recipe.local_code import Imported, LocalCode
from runner.core.recipe.notebook import SERVICE, SUFFIX, check_kernel, shell_lines
from runner.core.recipe.recipe import Recipe
from runner.protocol.commands import find_notebook
from runner.protocol.errors import RunnerError

CONDA_PROGRAM = "micromamba"
_MOST_NAMED = 20  # packages of a message
_MOST_ENTRIES = 20_000  # of the folder, that are searched for a module
_SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__"})
_INSTALLS = re.compile(r"\b(pip3?|uv|conda|mamba|micromamba)\s+(pip\s+)?install\b")
# A text of the code that is such a command, and not a message which advises one.
_INSTALL_COMMAND = re.compile(rf"(?:^|[;&|({{]|\s-m|\b(?:sudo|python\S*|uv))\s*{_INSTALLS.pattern}")
_SAID = re.compile(r"(print|warn\w*|info|error|debug|critical|exception|log|exit|echo|write)")
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
        "accelerate catboost chainer dask datasets diffusers evaluate flax gluonts gym gymnasium "
        "h5py jax jaxlib keras lightgbm matplotlib ml-dtypes numba onnx onnxruntime optax "
        "opencv-python opencv-python-headless pandas peft pytorch-lightning "
        "scikit-image scikit-learn scipy seaborn sentence-transformers shap skorch "
        "stable-baselines3 statsmodels tensorboard tensorflow tensorflow-cpu torch-geometric "
        "torchmetrics torchvision transformers ultralytics xarray xgboost"
    ),
    "scipy": (
        "catboost jax lightgbm scikit-image scikit-learn sentence-transformers skorch "
        "statsmodels ultralytics xgboost"
    ),
    "pandas": (
        "catboost datasets evaluate gluonts seaborn shap stable-baselines3 statsmodels xarray"
    ),
    "scikit-learn": "imbalanced-learn sentence-transformers shap skorch umap-learn",
    "matplotlib": "catboost seaborn stable-baselines3 ultralytics",
    "gymnasium": "stable-baselines3",
    "pillow": (
        "imageio keras-cv matplotlib scikit-image sentence-transformers tensorboard "
        "torchvision ultralytics"
    ),
    "pyyaml": (
        "accelerate datasets huggingface-hub hydra-core lightning omegaconf peft "
        "pytorch-lightning timm transformers ultralytics wandb"
    ),
    "tqdm": (
        "datasets evaluate gluonts huggingface-hub lightning nltk optuna pytorch-lightning "
        "sentence-transformers shap skorch torch-geometric transformers ultralytics"
    ),
    "requests": (
        "datasets diffusers evaluate huggingface-hub mlflow tensorflow torchtext "
        "transformers ultralytics wandb"
    ),
    "torch": (
        "accelerate lightning peft pytorch-ignite pytorch-lightning sentence-transformers "
        "stable-baselines3 timm torchaudio torchmetrics torchtext torchvision ultralytics"
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
    "jax": "chex dm-haiku equinox flax optax",
    "jaxlib": "chex dm-haiku equinox flax jax optax",
    "optax": "flax",
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

# Modules of a package that import another package.
_NEEDED = {"torch.utils.tensorboard": "tensorboard", "optuna.visualization": "plotly"}

_FURTHER = ("catboost", "dgl", "equinox", "fastai", "flax", "monai", "mxnet", "optax", "ray")


def package_warnings(recipe: Recipe) -> tuple[str, ...]:
    """Return what the files of a recipe show about its packages, as warnings.

    `runner recipe check`, a dry run and a submission print them. What cannot work is an error, most
    of it when the recipe is loaded.

    Raises:
        RunnerError: the code imports a well-known package, and nothing is installed; or nothing
            installs the kernel of a notebook.
    """
    found = (
        _kernel_warning(recipe),
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


def _kernel_warning(recipe: Recipe) -> str | None:
    notebook, listed = find_notebook(recipe.command), recipe.package_source.listed
    if notebook is None or recipe.image is not None or listed.is_open:
        return None
    installs = "\n".join((recipe.prepare or "", *recipe.packages, *listed.names))
    return check_kernel(recipe.folder / notebook, installs)


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
    found = _find_imports(LocalCode.of_command(recipe.folder, recipe.command))
    if found is None:
        return None
    imported = found.modules
    if "keras" in imported and not (found.chooses_backend or "KERAS_BACKEND" in recipe.env):
        imported.setdefault("tensorflow", imported["keras"])
    asked = (re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in recipe.packages)
    listed = {*source.listed.names, *map(normalize_name, asked)}
    is_complete = source.origin is not None and is_lock_file(source.origin)
    missing = {
        name: file
        for name, file in imported.items()
        if not _is_provided(name, listed, is_complete=is_complete)
    }
    if "PYTHONPATH" not in recipe.env:
        for name, file in found.beyond.items():
            if not _is_provided(name, listed, is_complete=is_complete):
                raise _beyond(name, file)
    return _describe(missing, recipe) if missing else None


def _beyond(module: str, where: str) -> RunnerError:
    return RunnerError(
        "R-IMPORTS",
        f"{where} imports {module}, which Python will not find",
        why=f"{module} is in the folder of the recipe, but Python searches only that of the script",
        fix="add --env PYTHONPATH=. (`env` in train.yaml), or the line -e . in requirements.txt if "
        "the project can be installed",
    )


def _describe(missing: dict[str, str], recipe: Recipe) -> str:
    where = next(iter(missing.values()))
    here = [name for name, file in missing.items() if file == where]
    needed = list(dict.fromkeys(map(package_of, here)))
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


def package_of(module: str) -> str:
    """Return the package on an index that provides a module."""
    return _PACKAGES.get(module) or module.replace("_", "-")


def _is_provided(module: str, listed: Iterable[str], *, is_complete: bool) -> bool:
    """Return True if one of the packages provides a module, or may install one that does."""
    package = package_of(module)
    own = normalize_name(module)
    known = {normalize_name(package), own, *_ALSO.get(module, ())}
    brought = () if is_complete else _BROUGHT.get(package, "").split()
    return any(
        name in known or name in brought or name.startswith((f"{own}-", f"{own}cu"))
        for name in listed
    )


@dataclass(frozen=True, slots=True)
class _Imports:
    """What the code of a program imports. Modules are top-level names.

    Attributes:
        modules: Those in no folder of the code, with the file that imports them.
        beyond: Those of the code that Python finds only with a PYTHONPATH, with the file.
        chooses_backend: True if the code sets the back end of Keras; the default is TensorFlow.
    """

    modules: dict[str, str]
    beyond: dict[str, str]
    chooses_backend: bool


def _find_imports(code: LocalCode) -> _Imports | None:
    """Return what the code imports, or None if it installs packages itself."""
    found, beyond = dict[str, str](), dict[str, str]()
    names: frozenset[str] | None = None
    chooses_backend = changes_path = False
    for source in code.sources(only_certain=True):
        is_notebook = source.path.suffix == SUFFIX
        if is_notebook and any(map(_INSTALLS.search, shell_lines(source.path))):
            return None
        with suppress(RecursionError):  # an expression with hundreds of parts
            if b"install" in source.data and _has_install(source.tree):
                return None
        chooses_backend = chooses_backend or b"KERAS_BACKEND" in source.data
        changes_path = changes_path or is_notebook or b"sys.path" in source.data
        where = source.path.relative_to(code.folder).as_posix()
        for each in source.imports:
            if not (each.top and code.is_certain(each, source)):
                continue
            if code.is_beyond(each):
                beyond.setdefault(each.top, where)
            if code.files_of(each, source.path):
                continue
            for top in (each.top, *_needed_by(each)):
                if top not in found and top not in _PROVIDED:
                    names = _module_names(code.folder) if names is None else names
                    if top not in names:
                        found[top] = where
    return _Imports(found, {} if changes_path else beyond, chooses_backend)


def _needed_by(imported: Imported) -> list[str]:
    """Return the packages that modules of another package import, see `_NEEDED`."""
    dotted = (imported.module, *(f"{imported.module}.{name}" for name in imported.names))
    return [_NEEDED[each] for each in dotted if each in _NEEDED]


def _has_install(tree: ast.AST) -> bool:
    """Return True if code runs a command that installs packages, or calls pip."""
    pending = [tree]
    while pending:
        node = pending.pop()
        text = ""
        match node:
            case ast.Raise() | ast.Assert() | ast.Expr(value=ast.Constant()):
                continue
            case ast.If(test=test) | ast.Try(body=[test, *_]) if SERVICE.search(ast.unparse(test)):
                continue
            case ast.Call(func=called) if _SAID.fullmatch(ast.unparse(called).rpartition(".")[2]):
                continue
            case ast.Call(func=called) if ast.unparse(called).startswith(
                ("pip.", "pip_main", "pipmain")
            ):
                return True
            case ast.Constant(value=str(text)):
                pass
            case ast.JoinedStr(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
                between = "" if isinstance(node, ast.JoinedStr) else " "
                words = (e.value if isinstance(e, ast.Constant) else "python" for e in parts)
                text = between.join(map(str, words))
            case ast.Call(args=parts):
                words = (e.value if isinstance(e, ast.Constant) else "python" for e in parts)
                text = " ".join(map(str, words))
            case _:
                pass
        if _INSTALL_COMMAND.search(text):
            return True
        pending.extend(ast.iter_child_nodes(node))
    return False


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
