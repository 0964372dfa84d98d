"""The shared prefix: its KV computed once by the base, and the packed pass of suffixes behind it.

Read in this order: :mod:`~alora.prefix.attention` (the mathematics; :mod:`~alora.prefix.own_suffix` its other half,
:mod:`~alora.prefix.flash` its kernels, :mod:`~alora.prefix.side_by_side` many conversations with few suffixes),
:mod:`~alora.prefix.passes` (what a pass consists of), :mod:`~alora.prefix.packed` (the model;
:mod:`~alora.prefix.last_layer` trims it, :mod:`~alora.prefix.norms` fuses its norms, :mod:`~alora.prefix.supported`
refuses models), :mod:`~alora.prefix.scorer` (verdict logits for P policies), :mod:`~alora.prefix.store` (prefix KV kept
across epochs).
"""
