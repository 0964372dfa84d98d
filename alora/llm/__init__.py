"""Another model at an OpenAI-compatible endpoint: asked for labels, and for labelled conversations.

:mod:`~alora.llm.client` asks one question at a time; :mod:`~alora.llm.calls` keeps every answer in a file, so that none
costs twice, and stops at the budget.
:mod:`~alora.llm.judge` has rows labelled; :mod:`~alora.llm.judge_prompt` is its prompt.
:mod:`~alora.llm.doubted_labels` lists rows that the judge, a run's folds or counting words would label otherwise.

For ``alora generate``, :mod:`~alora.llm.prompts` writes the model's prompts and reads its answers.
:mod:`~alora.llm.minimal_pairs` writes conversations for each cell of the policy's dimensions and has them judged.
:mod:`~alora.llm.filters` drops what would teach nothing or give the answer away.
:mod:`~alora.llm.quality` says how good the rows are; :mod:`~alora.llm.generation` keeps it all in one folder.
"""
