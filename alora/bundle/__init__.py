"""The exported folder, in the order things happen.

:mod:`~alora.bundle.manifest` is ``alora.json``: all that PEFT's own files do not say.
:mod:`~alora.bundle.golden` has conversations of alora's own with the adapter's label logits.
:mod:`~alora.bundle.card` is the model card.
:mod:`~alora.bundle.write` puts them together next to the target, reads them back from disk, and only then renames.
:mod:`~alora.bundle.light` opens a bundle without torch, refuses a damaged one, and refuses another base;
:mod:`~alora.bundle.read` adds the weights. :mod:`~alora.bundle.battery` opens several that share a base;
:mod:`~alora.bundle.hub` publishes one. :mod:`~alora.bundle.artifact` says what kind of folder a user named;
:mod:`~alora.bundle.run_rows` reads labelled rows as its run read its own.

PEFT reads the folder as it is: ``adapter_config.json`` and ``adapter_model.safetensors`` are plain PEFT. Public tools
are known to delete ``alora_invocation_tokens`` from the former, which silently turns an aLoRA into a wrong LoRA;
``"activated": true`` in the manifest is the second marker, and the two are compared both ways.
"""
