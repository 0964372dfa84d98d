"""Training behind a shared prefix, in the order things happen.

:mod:`~alora.training.run_folder` claims the run's folder, which :mod:`~alora.training.layout` lays out, and
:mod:`~alora.training.training_run` is what the stages of ``alora train`` share. :mod:`~alora.training.examples` renders
labelled rows and :mod:`~alora.training.schedule` settles learning rate, epochs and batch. :mod:`~alora.training.loop`
trains: it resumes at the last whole checkpoint and runs :mod:`~alora.training.trainer`, a ``transformers.Trainer`` of
:mod:`~alora.training.model`, with :mod:`~alora.training.loss`. :mod:`~alora.training.standings` keeps each policy's
best weights and what the run keeps of its training; :mod:`~alora.training.processes` spreads it over processes, and
:mod:`~alora.training.tracking` shows it elsewhere.
"""
