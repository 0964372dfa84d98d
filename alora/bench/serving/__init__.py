"""The serving benchmark: aLoRA against standard LoRA on one engine, in one run, on equal work or without a ratio.

In the order in which things happen:

1. :mod:`material` makes a base of random weights and distinct adapters, or takes real bundles; every adapter also as
   a standard LoRA of the same weights. :mod:`draws` makes conversations, arrivals and popularity from a seed.
2. :mod:`reference` asks PEFT and transformers what each arm should answer.
3. :mod:`engine` starts vLLM once; :mod:`arms` are the ways to answer a battery: standard LoRA, aLoRA, the base with
   the policy text, the packed scorer.
4. :mod:`rounds` runs all arms interleaved in shuffled order and keeps every sample. :mod:`grid`,
   :mod:`conversation` and :mod:`pipeline` are the workloads that it drives; :mod:`open_loop` searches a rate, each of
   which :mod:`offer` offers. :mod:`context` holds what they share, and ends a run whose time is up.
5. :mod:`guards` refuse what must not be compared, :mod:`statistics` puts intervals around the rest, :mod:`floor` says
   what the machine could do at best.
6. :mod:`report`, :mod:`plots` and :mod:`page` write it down; :mod:`compare` lays two runs side by side.

:mod:`run` tells the whole story.
"""
