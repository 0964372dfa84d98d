"""Measurements that a sceptic can run again: every system in one run, on equal work, or no ratio at all.

1. :mod:`shapes` makes a base of random weights, since speed does not depend on the values; :mod:`material` draws
   adapters and prompts, or takes real bundles.
2. The systems: :mod:`trainers` train; :mod:`systems` serve.
3. :mod:`training` and :mod:`serving` are the benchmarks, :mod:`open_loop` the arrivals; :mod:`run` runs one of them.
4. :mod:`harness` times all systems interleaved in shuffled rounds, with an A/A run among them.
5. :mod:`reference` says what PEFT answers, :mod:`objections` what must not be compared, :mod:`roofline` what
   the machine could do at best.
6. :mod:`record` keeps every sample; :mod:`bench_report` shows it.
"""
