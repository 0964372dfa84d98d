"""Measurements that a sceptic can run again: every arm in one run, on equal work, or no ratio at all.

In the order in which things happen:

1. :mod:`alora.bench.shapes` makes a base of random weights, since speed does not depend on the values;
   :mod:`alora.bench.workload` draws the prompts.
2. :mod:`alora.bench.arms` (ours) and :mod:`alora.bench.baselines` (PEFT, ``transformers.Trainer``, TRL) run them.
3. :mod:`alora.bench.guards` compares what the arms did (prompts, loss, gradients) before a clock is looked at.
4. :mod:`alora.bench.measure` interleaves the arms in shuffled order and keeps every sample;
   :mod:`alora.bench.flops` says what the ratio could be, :mod:`alora.bench.memory` what each arm needs.
5. :mod:`alora.bench.report` writes it all down.

:mod:`alora.bench.cell` and :mod:`alora.bench.scoring` tell the two stories, training and scoring;
:mod:`alora.bench.training` runs them.
"""
