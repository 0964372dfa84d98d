"""Labelled conversations: opened (``sources``), parsed (``formats``), read (``conversation``, ``labelled``)."""
