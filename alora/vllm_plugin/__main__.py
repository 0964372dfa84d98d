"""``python -P -m alora.vllm_plugin``: would vLLM started from this environment serve aLoRA? Exit code 0 if so.

The plugin is loaded by vLLM's own loader, so that whatever keeps it out of a server (``VLLM_PLUGINS``, an installation
without the entry point, an import that fails) keeps it out here as well.
"""

import dataclasses
import json
import sys

from alora.vllm_plugin import compat
from alora.vllm_plugin.install import register
from alora.vllm_plugin.state import status


def main() -> int:
    if compat.vllm_version() is None:
        register()  # notes that there is no vLLM
    else:
        compat.load_plugins()
    found = status()
    sys.stdout.write(json.dumps(dataclasses.asdict(found), indent=2) + "\n")
    return 0 if found.active and found.entry_point else 1


if __name__ == "__main__":
    sys.exit(main())
