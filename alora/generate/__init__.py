"""From a policy's text to labelled conversations, by one OpenAI-compatible endpoint.

:mod:`~alora.generate.prompts` writes the model's prompts and reads its answers.
:mod:`~alora.generate.calls` keeps every answer in a file, so that none costs twice, and stops at the budget.
:mod:`~alora.generate.cases` writes conversations for each cell of the policy's dimensions and has them judged.
:mod:`~alora.generate.filters` drops what would teach nothing or give the answer away.
:mod:`~alora.generate.report` says how good the rows are.
"""
