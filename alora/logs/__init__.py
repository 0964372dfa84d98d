"""Logs of conversations: scored into Parquet shards (``verdicts``), reported on (``report``), sampled (``sample``)."""
