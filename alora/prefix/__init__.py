"""The shared prefix: its KV computed once by the base, and the packed pass of suffixes behind it.

Read in this order: :mod:`alora.prefix.attention` (the mathematics), :mod:`alora.prefix.packed` (the model),
:mod:`alora.prefix.scorer` (verdict logits for P policies in one pass).
"""
