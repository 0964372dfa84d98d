"""Labelled conversations: opened (``sources``), parsed (``formats``), made rows (``messages``, ``conversation``)."""
