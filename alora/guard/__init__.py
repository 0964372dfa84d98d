"""The guard: one conversation in, every policy's verdict out, within a deadline, whatever fails.

In the order of a request's life:

1. ``routes`` takes it over HTTP (its own wire format, OpenAI's moderations and decisions, LiteLLM's guardrail) as a
   ``wire`` request.
2. ``admission`` has a place for it, or refuses it at once. ``core`` renders the conversation, asks a ``reader`` for all
   policies together, and turns each reading into one of the ``verdicts`` as it arrives. What does not answer in time,
   or at all, counts as flagged unless the caller says otherwise.
3. ``packed`` reads in this process, ``engine`` in vLLM's; both behind one seam, :class:`reader.Reader`.

``standalone`` is an application of its own; ``endpoint`` mounts the same routes in stock vLLM's server
(``vllm.endpoint_plugins``). Inside alora only the command line imports this package; vLLM loads ``endpoint`` by that
entry point.
"""
