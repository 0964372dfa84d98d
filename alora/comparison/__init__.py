"""Methods side by side on the same rows, in the order things happen.

:mod:`~alora.comparison.task` fixes what is equal for all: policies, rows, base, settings.
:mod:`~alora.comparison.methods` runs one method: aLoRA, LoRA, the rule in the prompt, a bag of words,
:mod:`~alora.comparison.probe` (the base's hidden state), or :mod:`~alora.comparison.judge` (a model at an endpoint).
:mod:`~alora.comparison.scores` holds one raw score per row and method, from which every figure can be computed again.
:mod:`~alora.comparison.folder` keeps them, so that an interrupted comparison can go on.
:mod:`~alora.comparison.figures` and :mod:`~alora.comparison.report` turn scores into figures, tests and tables.
"""
