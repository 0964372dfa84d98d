"""Methods side by side on the same rows, in the order things happen.

:mod:`~alora.lab.compare.task` fixes what is equal for all: policies, rows, base, settings.
:mod:`~alora.lab.compare.methods` runs one method: aLoRA, LoRA, the rule in the prompt, a bag of words,
:mod:`~alora.lab.compare.probe` (logistic regression on hidden states), :mod:`~alora.lab.compare.encoder` (a small
model of its own), or :mod:`~alora.lab.compare.judged` (a model at an endpoint).
:mod:`~alora.lab.compare.scores` holds one raw score per row and method, all figures' source.
:mod:`~alora.lab.compare.compare_folder` keeps them, so that an interrupted comparison can go on.
:mod:`~alora.lab.compare.figures` and :mod:`~alora.lab.compare.compare_report` turn scores into figures and tables.
"""
