"""Logs of conversations, scored into Parquet shards.

:mod:`~alora.batch.log_rows` reads the log; :mod:`~alora.batch.log_job` has :mod:`~alora.batch.shards` score it, here or
on a cluster (:mod:`~alora.batch.on_ray`); :mod:`~alora.batch.verdict_folder` writes the shards and
:mod:`~alora.batch.stored_verdicts` reads them; :mod:`~alora.batch.verdict_report` reports on them, and
:mod:`~alora.batch.sample` takes the rows worth a label.
"""
