"""The version; nothing else states it."""

__version__ = "0.1.0"
