"""Watch the imports of a process, and wrap functions of frameworks.

Every Python process of the script runs this, so it imports as little as possible.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# By module of a framework: the class, its methods to wrap, and the adapter.
METHODS = {
    "keras.src.models.model": ("Model", ("fit",), "keras"),
    # Keras 2: tf_keras, Keras in TensorFlow 2.13 to 2.15, in 2.6 to 2.12, and before 2.6.
    "tf_keras.src.engine.training": ("Model", ("fit",), "keras2"),
    "keras.src.engine.training": ("Model", ("fit",), "keras2"),
    "keras.engine.training": ("Model", ("fit",), "keras2"),
    "tensorflow.python.keras.engine.training": ("Model", ("fit",), "keras2"),
    "chainer.training.trainer": ("Trainer", ("run",), "chainer"),
    "transformers.trainer": ("Trainer", ("train",), "transformers"),
    "lightning.pytorch.trainer.trainer": ("Trainer", ("fit",), "lightning"),
    "pytorch_lightning.trainer.trainer": ("Trainer", ("fit",), "lightning"),
    "tensorflow.python.checkpoint.checkpoint_management": (
        "CheckpointManager",
        ("__init__", "save"),
        "tensorflow",
    ),
}


def install() -> None:
    """Watch the imports of this process if it belongs to a run with checkpoints."""
    if os.environ.get("RUNNER_CHECKPOINT_DIR"):
        sys.meta_path.insert(0, FrameworkFinder())


class FrameworkFinder:
    """Finds the modules of METHODS by the other finders, and wraps their functions after import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module in METHODS, or None."""
        if name not in METHODS:
            return None
        for finder in sys.meta_path:
            find: Any = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                try:  # noqa: SIM105 - contextlib would have to be imported
                    _change_when_run(spec, METHODS[name])
                except Exception:  # noqa: S110, BLE001 - the loader cannot be changed
                    pass
                return spec
        return None


def _change_when_run(spec: Any, methods: tuple[Any, ...]) -> None:
    run = spec.loader.exec_module

    def run_and_change(module: Any) -> None:
        run(module)
        if module.__name__ != spec.name:
            return  # the loader is wrapped already
        try:
            from runner.hooks.automatic import calls  # noqa: PLC0415 - only if a framework is imported

            calls.change(module, *methods)
        except Exception as err:  # noqa: BLE001 - the import must succeed
            sys.stderr.write(f"runner: there are no automatic checkpoints: {err}\n")

    spec.loader.exec_module = run_and_change
