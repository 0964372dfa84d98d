"""Methods side by side on the same rows, in the order things happen.

:mod:`~alora.lab.compare.task` fixes what is equal for all (policies, rows, base, settings) and holds one raw score per
row and method, all figures' source. :mod:`~alora.lab.compare.methods` runs one method: aLoRA, LoRA, the rule in the
prompt, a bag of words, a model at an endpoint, or one of :mod:`~alora.lab.compare.encoder` (a small model of its own,
logistic regression on hidden states). :mod:`~alora.lab.compare.figures` turns scores into figures, and
:mod:`~alora.lab.compare.compare_report` keeps both, so that an interrupted comparison can go on.
"""
