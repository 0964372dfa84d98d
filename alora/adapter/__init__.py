"""Adapters: one PEFT folder (new, save, load), and the bank that runs P of them in one pass."""
