"""Training behind a shared prefix, in the order things happen.

:mod:`alora.training.examples` renders labelled rows, :mod:`alora.training.loss` is the objective,
:mod:`alora.training.model` the trained module, :mod:`alora.training.trainer` a ``transformers.Trainer`` of it.
:mod:`alora.training.loop` runs that from new adapters to their best checkpoints, and
:mod:`alora.training.run_folder` is where a run's files lie.
"""
