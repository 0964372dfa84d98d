"""The frozen language model under every adapter."""

REMEDY = "download it again, or take another base"
