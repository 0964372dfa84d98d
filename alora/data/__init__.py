"""Labelled conversations: found (``sources``), read (``formats``), made rows (``messages``, ``conversation``)."""
