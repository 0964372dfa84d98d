"""How good a policy's verdicts are, in the order things happen.

:mod:`~alora.evaluation.predict` turns labelled rows into label logits, one prefix pass a row for all policies.
:mod:`~alora.evaluation.calibration` fits temperature and threshold on validation rows.
:mod:`~alora.evaluation.metrics` scores held-out rows at that operating point, with bootstrap intervals.
:mod:`~alora.evaluation.bag_of_words` is the baseline that needs no model, on the same rows.
:mod:`~alora.evaluation.doubts` turns figures that speak against an adapter into warnings.
:mod:`~alora.evaluation.tables` makes the table and the JSON, :mod:`~alora.evaluation.report_html` the HTML page;
:mod:`~alora.evaluation.pages` writes them all.

Every figure is about the policy's positive label against the rest. Shapes: N rows, L labels, S bootstrap samples,
K distinct probabilities.
"""
