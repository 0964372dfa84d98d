"""Adapters: one PEFT folder (new, save, load), and the bank that runs P of them in one pass."""

from alora.wire.weights import CONFIG, WEIGHTS

CONFIG_FILE, WEIGHTS_FILE = CONFIG, WEIGHTS  # PEFT's own names
