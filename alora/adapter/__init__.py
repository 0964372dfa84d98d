"""Adapters: one PEFT folder (new, save, load), and the bank that runs P of them in one pass."""

from alora.weights import CONFIG

CONFIG_FILE = CONFIG  # PEFT's own names
WEIGHTS_FILE = "adapter_model.safetensors"
