"""Adapters: one PEFT folder (new, save, load), and the bank that runs P of them in one pass."""

CONFIG_FILE = "adapter_config.json"  # PEFT's own names
WEIGHTS_FILE = "adapter_model.safetensors"
