"""A bundle in memory, without weights, certificate or files."""

from pathlib import Path
from typing import Any

from alora.base.fingerprint import Fingerprint
from alora.bundle.light import Bundle
from alora.bundle.manifest import BaseRecord, Manifest
from alora.config.schema import PromptSettings
from alora.evaluation.records import FIGURES, Estimate, Evaluation, Metrics
from alora.policy import Policy
from alora.prompt.parts import Suffix
from alora.verdict import OperatingPoint

BASE = BaseRecord("toys/qwen3", Fingerprint("w", "t", "c"), "float32")


def manifest(policy: str = "advice", **changes: Any) -> Manifest:
    facts: dict[str, Any] = {
        "activated": True,
        "policy": Policy(policy, "Unauthorized advice", "No medical advice."),
        "prompt": PromptSettings(),
        "template_kwargs": {},
        "suffix": Suffix((5, 6, 7), (5,), (11, 12)),
        "base": BASE,
        "adapter_digest": "0123456789abcdef",
        "operating_point": OperatingPoint(),
        "files": {},
        "certificate": None,
        "versions": {},
        "created": "2026-01-01T00:00:00+00:00",
    }
    return Manifest(**facts | changes)


def bundle(folder: Path, policy: str = "advice", **changes: Any) -> Bundle:
    return Bundle(folder, manifest(policy, **changes), ())


def with_weights(bundle: Bundle, weights: Any) -> Bundle:
    """``bundle``, which takes ``weights`` for its own."""
    vars(bundle)["weights"] = weights
    return bundle


def evaluation(split: str = "test", **figures: float) -> Evaluation:
    metrics = Metrics(5, 2, 0.5, {name: Estimate(figures.get(name, 0.5)) for name in FIGURES})
    return Evaluation("advice", "alora", split, metrics, OperatingPoint(), adapter_digest="0" * 64)
