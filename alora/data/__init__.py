"""Labelled conversations: found (``sources``), read into typed rows (``conversation``), split (``splits``), checked."""
