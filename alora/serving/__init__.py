"""Bundles on real vLLM, in the order things happen.

:mod:`~alora.serving.engine` starts vLLM in this process with the plugin required, and scores with it.
:mod:`~alora.serving.certify` reads KV out of vLLM's own cache, and certifies that a prefix is the base's there too;
:mod:`~alora.serving.parity` compares a bundle's golden rows. :mod:`~alora.serving.launch` starts vLLM's OpenAI server,
once :mod:`~alora.serving.plugin` has said that it will be active there, and :mod:`~alora.serving.client` scores with
one that it has verified to run the plugin.
"""
