"""``python -m alora.vllm_plugin``: would vLLM started from this environment serve aLoRA? Exit code 0 if so."""

import dataclasses
import json
import sys

from alora.vllm_plugin.install import register, status


def main() -> int:
    register()
    found = status()
    sys.stdout.write(json.dumps(dataclasses.asdict(found), indent=2) + "\n")
    return 0 if found.active and found.entry_point else 1


if __name__ == "__main__":
    sys.exit(main())
