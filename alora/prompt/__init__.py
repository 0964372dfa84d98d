"""From a conversation to token ids and an activation index.

``template`` applies the base's chat template to placeholders, ``tokens`` encodes each text with special tokens off,
``truncate`` cuts what is too long, and ``render`` joins the parts: the index is the length of the prefix.
``check`` counts them, and prints them token by token.
"""
