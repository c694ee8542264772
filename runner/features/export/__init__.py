"""Copy runs to MLflow, TensorBoard and OTLP endpoints, and serve metrics to Prometheus.

Each tool but Prometheus needs the extra of its name. Start in `verbs.py`; each other module is one
tool.
"""

VERBS = {
    "tensorboard": ("verbs", "tensorboard", "dev"),
    "export": ("verbs", "export", "tensorboard"),
    "monitor": ("verbs", "monitor", "skus"),
}
