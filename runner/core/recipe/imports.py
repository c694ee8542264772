"""Find modules that the code of a recipe imports, and that none of its packages provides."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from runner.core.packages.requirements import normalize_name
from runner.core.packages.sources import find_script, is_lock_file
from runner.core.recipe.notebook import SUFFIX, parse_code
from runner.core.recipe.recipe import Recipe
from runner.protocol.errors import RunnerError

CONDA_PROGRAM = "micromamba"
_MOST_FILES = 60  # of the code, that are read: up to 0.3 s
_MOST_ENTRIES = 20_000  # of the folder, that are searched for a module
_SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__"})
_INSTALLS = re.compile(r"""\b(pip|uv|conda|mamba|micromamba)['",\s]+(pip['",\s]+)?install\b""")
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
    found = (_conda_warning(recipe), *_name_warnings(recipe), _import_warning(recipe))
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
    if not is_known or script is None or _INSTALLS.search(recipe.prepare or ""):
        return None
    if not script.endswith((".py", SUFFIX)):
        return None
    code = _Code(recipe.folder, script)
    imported = code.find_imports()
    if code.installs:
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
    names = [_package_of(name) for name in here]
    shown = ", ".join(here[:5]) + (f" and {len(here) - 5} more" if len(here) > 5 else "")
    packages = ", ".join(dict.fromkeys(names))
    origin = recipe.package_source.origin
    if origin is None:
        options = " ".join(f"--package {name}" for name in dict.fromkeys(names))
        if not any(map(_is_well_known, names)):
            return (
                f"{where} imports {shown}, but no file lists packages: add {options}, or write a "
                "requirements.txt"
            )
        raise RunnerError(
            "R-IMPORTS",
            f"{where} imports {shown}, which nothing installs",
            why="no file lists the packages of the code, and the environment of a run is empty",
            fix=f"add {options}, or write a requirements.txt with {packages}",
        )
    if is_lock_file(origin):
        return f"{where} imports {shown}, which is not in {origin}: add {packages} to the project"
    return (
        f"{where} imports {shown}, which nothing in {origin} is known to provide: add {packages}, "
        "unless another package installs it"
    )


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


class _Code:
    """The Python code that a script reaches; `installs` is True if it installs packages itself."""

    def __init__(self, folder: Path, script: str) -> None:
        self._folder = folder
        self._script = folder / script
        self._roots = dict.fromkeys((self._script.parent, folder, folder / "src"))
        self._stems: frozenset[str] | None = None
        self.installs = False

    def find_imports(self) -> dict[str, str]:
        """Return the top-level modules that are in no folder, with the file that imports them."""
        found: dict[str, str] = {}
        pending = deque([self._script])
        seen = {self._script}
        for _ in range(_MOST_FILES):
            if not pending:
                break
            path = pending.popleft()
            tree = self._parse(path)
            for module, level in _imported(tree, all_functions=path == self._script):
                files = list(self._local_files(module, level, path))
                pending.extend(each for each in files if each not in seen)
                seen.update(files)
                top = module.partition(".")[0]
                if files or level or top in found or self._is_local(top):
                    continue
                found[top] = path.relative_to(self._folder).as_posix()
        return found

    def _parse(self, path: Path) -> ast.AST:
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            data = path.read_bytes()
            self.installs = (
                self.installs or _INSTALLS.search(data.decode(errors="replace")) is not None
            )
            return parse_code(path) if path.suffix == SUFFIX else ast.parse(data)
        return ast.Module([], [])

    def _local_files(self, module: str, level: int, importer: Path) -> Iterator[Path]:
        """Yield the files of the folder that an import of `module` executes."""
        parts = [part for part in module.split(".") if part]
        roots: Iterable[Path] = self._roots
        if level:
            roots = [Path(os.path.normpath(importer.parent.joinpath(*[".."] * (level - 1))))]
        for root in roots:
            found = False
            for end in range(len(parts), 0, -1):
                path = root.joinpath(*parts[:end])
                for each in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
                    if each.is_file() and each.is_relative_to(self._folder):
                        found = True
                        yield each
            if found or (parts and (root / parts[0]).is_dir()):
                return

    def _is_local(self, name: str) -> bool:
        """Return True for a module of Python, of the runner, or of any folder of the code."""
        if name in sys.stdlib_module_names or name in {"runner", "__main__", *_REMOVED}:
            return True
        if any((root / name).is_dir() for root in self._roots):
            return True
        if self._stems is None:
            self._stems = frozenset(self._find_stems())
        return name in self._stems

    def _find_stems(self) -> Iterator[str]:
        """Yield the names that some file or folder could have as a module."""
        entries = 0
        for _, folders, files in os.walk(self._folder):
            folders[:] = [each for each in folders if each not in _SKIPPED]
            entries += len(folders) + len(files)
            yield from folders
            yield from (each.partition(".")[0] for each in files if each.endswith((".py", ".so")))
            if entries > _MOST_ENTRIES:
                return


def _imported(tree: ast.AST, *, all_functions: bool) -> Iterator[tuple[str, int]]:
    """Yield the imports that are certain to be executed, as (dotted name, level).

    Those within `try`, `if` and `with suppress(...)` may be optional, and those of functions in
    other modules may never run.
    """
    pending = deque([tree])
    while pending:
        node = pending.popleft()
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            yield (node.module or "", node.level)
            if node.level or node.module:
                yield from ((f"{base}{alias.name}", node.level) for alias in node.names)
        elif isinstance(node, ast.Try | ast.TryStar) or _is_optional(node):
            continue
        elif all_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending.extend(ast.iter_child_nodes(node))


def _is_optional(node: ast.AST) -> bool:
    if isinstance(node, ast.With):
        return any("suppress" in ast.unparse(item.context_expr) for item in node.items)
    return isinstance(node, ast.If) and "__name__" not in ast.unparse(node.test)
