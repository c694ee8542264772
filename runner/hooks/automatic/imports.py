"""Watch for the imports of frameworks, and change a function of each.

Every Python of the script runs this, so it imports next to nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Module of a framework: its class, the methods, and the adapter.
METHODS = {
    "keras.src.models.model": ("Model", ("fit",), "keras"),
    # Keras 2: the package, that of TensorFlow 2.13 to 2.15, before that, and before TensorFlow 2.6.
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
    """Watch the imports of this process, if it belongs to a run with checkpoints."""
    if os.environ.get("RUNNER_CHECKPOINT_DIR"):
        sys.meta_path.insert(0, FrameworkFinder())


class FrameworkFinder:
    """Finds the modules of METHODS as the other finders do, and changes them once they are run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of such a module, or None."""
        if name not in METHODS:
            return None
        for finder in sys.meta_path:
            find: Any = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                try:  # noqa: SIM105 - this imports next to nothing
                    _change_when_run(spec, METHODS[name])
                except Exception:  # noqa: S110, BLE001 - of a loader that cannot be changed
                    pass
                return spec
        return None


def _change_when_run(spec: Any, methods: tuple[Any, ...]) -> None:
    run = spec.loader.exec_module

    def run_and_change(module: Any) -> None:
        run(module)
        if module.__name__ != spec.name:
            return  # of the same loader
        try:
            from runner.hooks.automatic import calls  # noqa: PLC0415 - only for such a script

            calls.change(module, *methods)
        except Exception as err:  # noqa: BLE001 - the import goes on
            sys.stderr.write(f"runner: there are no automatic checkpoints: {err}\n")

    spec.loader.exec_module = run_and_change
