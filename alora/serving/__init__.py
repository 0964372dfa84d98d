"""Bundles on real vLLM, in the order things happen.

:mod:`~alora.serving.engine` starts vLLM in this process with the plugin required, and scores with it.
:mod:`~alora.serving.prove` reads KV out of vLLM's own cache, and certifies that a prefix is the base's there too.
"""
