"""What ``alora serve`` says before it becomes the server."""

import pytest

from alora.commands.serve_vllm import announce, serve
from alora.config.schema import Recipe
from alora.config.secrets import KEY
from alora.errors import ConfigError
from tests.unit.config.test_secrets import SECRET


@pytest.mark.parametrize(
    ("host", "more", "environment", "remarked"),
    [
        ("127.0.0.1", [], {}, False),
        ("localhost", [], {}, False),
        ("0.0.0.0", [], {}, True),
        ("127.0.0.1", ["--host", "0.0.0.0"], {}, True),  # vLLM takes the last
        ("10.0.0.1", ["--host=127.0.0.1"], {}, False),
        ("0.0.0.0", ["--hf-token", SECRET], {}, True),
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


@pytest.mark.parametrize("option", ["--api-key", "--api_key", "--api-k", "--api_ke"])  # vLLM takes each
@pytest.mark.parametrize("between", [",", "="])
def test_a_key_in_the_command_line_is_refused_and_not_shown(option, between):
    recipe = Recipe()
    recipe.serving.arguments = ["--api-server-count", "2", *f"{option}{between}S'{SECRET}".split(",")]
    with pytest.raises(ConfigError, match=rf"serving.arguments sets the server's key.* export {KEY}") as caught:
        serve(recipe)
    assert SECRET not in str(caught.value)
