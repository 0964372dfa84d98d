"""Logs of conversations: scored into Parquet shards (``folder``), reported on (``report``), sampled (``sample``)."""
