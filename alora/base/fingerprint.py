"""What a base is, in digests: a verdict from the wrong base is an error, not a number."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fingerprint:
    """sha256 digests of a base's weights, tokenizer and chat template, and its quantization ("none", "nf4")."""

    weights: str
    tokenizer: str
    template: str
    quantization: str = "none"
