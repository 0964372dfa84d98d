"""Whoever asks for verdicts: of a guard, of vLLM as alora starts it, of a battery in this process.

:mod:`~alora.client.guard` asks a guard server, or the next one; :mod:`~alora.client.guard_scorer` scores a log by it.
:mod:`~alora.client.in_process` loads bundles and their base here.
:mod:`~alora.client.launch` makes the command line of vLLM's server, once :mod:`~alora.client.plugin` has said that it
will be active there. :mod:`~alora.client.engine` starts vLLM in this process with the plugin required, and scores with
it; :mod:`~alora.client.certify_in_vllm` certifies that a prefix in vLLM's own cache is the base's;
:mod:`~alora.client.parity` compares a bundle's golden rows.
"""
