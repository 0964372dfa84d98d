"""What ``alora serve`` says before it becomes the server."""

import pytest

from alora.commands.serve_vllm import announce
from alora.config.secrets import KEY
from tests.unit.config.test_secrets import SECRET


@pytest.mark.parametrize(
    ("host", "more", "environment", "remarked"),
    [
        ("127.0.0.1", [], {}, False),
        ("localhost", [], {}, False),
        ("0.0.0.0", [], {}, True),
        ("127.0.0.1", ["--host", "0.0.0.0"], {}, True),  # vLLM takes the last
        ("10.0.0.1", ["--host=127.0.0.1"], {}, False),
        ("0.0.0.0", ["--api-key", SECRET], {}, False),
        ("0.0.0.0", [f"--api-key={SECRET}"], {}, False),
        ("0.0.0.0", [], {KEY: SECRET}, False),
        ("0.0.0.0", [], {KEY: ""}, True),
    ],
)
def test_a_server_that_anybody_may_ask_is_remarked_on_and_no_key_is_shown(host, more, environment, remarked, capsys):
    announce(["python", "serve", "base", "--host", host, "--port", "8000", *more], environment)
    shown = capsys.readouterr().err
    assert ("anybody may ask" in shown) is remarked
    assert "--port 8000" in shown
    assert SECRET not in shown
