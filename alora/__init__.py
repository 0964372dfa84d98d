"""alora: guardrail policies as activated LoRA adapters that share one base model's prefix KV."""

__version__ = "0.1.0"
