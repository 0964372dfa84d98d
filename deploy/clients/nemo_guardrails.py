"""A custom action of NeMo Guardrails (run with 0.24) that asks a guard; when it raises, NeMo answers an error."""

import httpx
from nemoguardrails import LLMRails, RailsConfig
from nemoguardrails.actions import action

COLANG = """
define flow alora
  $blocked = execute alora_blocks
  if $blocked
    bot refuse to respond
    stop
"""


@action(is_system_action=True)
async def alora_blocks(context: dict) -> bool:
    said = {"user": context.get("user_message"), "assistant": context.get("bot_message")}
    chat = [{"role": role, "content": text} for role, text in said.items() if text]
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.post("http://127.0.0.1:8767/v1/guard", json={"messages": chat})
    return answer.raise_for_status().json()["action"] == "block"


rails = LLMRails(RailsConfig.from_content(COLANG, "rails: {input: {flows: [alora]}, output: {flows: [alora]}}"))
rails.register_action(alora_blocks)
