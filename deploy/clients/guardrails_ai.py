"""A validator of guardrails-ai (run with 0.11, which needs an openai below 3) that asks a guard."""

import httpx
from guardrails import Guard
from guardrails.validators import FailResult, PassResult, Validator, register_validator


@register_validator(name="alora", data_type="string")
class Alora(Validator):
    def validate(self, value, metadata):
        chat = [*metadata.get("chat", []), {"role": "assistant", "content": value}]
        answer = httpx.post("http://127.0.0.1:8767/v1/guard", json={"messages": chat}, timeout=10)
        answer = answer.raise_for_status().json()
        flagged = [verdict["policy"] for verdict in answer["verdicts"] if verdict["flagged"]]
        return FailResult(error_message=", ".join(flagged)) if answer["action"] == "block" else PassResult()


guard = Guard().use(Alora(on_fail="exception"))
guard.validate("Hello.", metadata={"chat": [{"role": "user", "content": "I want my money back."}]})
