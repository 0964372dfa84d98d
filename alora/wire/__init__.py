"""What travels between a guard and whoever asks it: requests and answers as pydantic models.

FastAPI validates by them on the server, and the client reads answers by the same ones. :mod:`~alora.wire.native` is the
guard's own format; :mod:`~alora.wire.openai_api` and :mod:`~alora.wire.litellm_api` are those of apps that exist.
:mod:`~alora.wire.weights` names the weights that may answer.
"""
