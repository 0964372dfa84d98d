"""A server is believed when it runs the plugin and gives every bundle's answers, and named when it does not."""

from dataclasses import replace

import pytest

from alora.data.conversation import Conversation, Message
from alora.errors import CheckFailed, ConfigError
from alora.http import Full, Unreachable
from alora.prefix.scorer import Scorer
from alora.serving.engine import ServedAdapter
from tests.integration.serving.server import verify

PLACES = pytest.mark.parametrize("place", [0, 1])


def names_of(bundles):
    return [ServedAdapter.of(bundle).name for bundle in bundles]


def test_a_right_server_is_believed_and_gives_the_scorers_answers(server, bundles, renderer, base):
    prefix = renderer.prefix(Conversation("c", (Message("user", "Is it dangerous?"),)))
    suffixes = [bundle.suffix for bundle in bundles]
    assert [list(suffix.label_token_ids) == sorted(suffix.label_token_ids) for suffix in suffixes] in (
        [True, False],
        [False, True],
    )
    with Scorer(base, [bundle.weights for bundle in bundles]) as scorer:
        wanted = [logits_L.log_softmax(0) for logits_L in scorer.label_logits(prefix, suffixes)]
    found = verify(server.url + "/v1/", bundles, renderer, prefix)
    for found_L, wanted_L in zip(found, wanted, strict=True):
        assert found_L == pytest.approx(wanted_L.tolist(), abs=1e-5)


def test_the_name_that_is_asked_for_holds_the_weights(bundles):
    assert names_of(bundles) == [f"{bundle.policy.id}@{bundle.weights.digest[:12]}" for bundle in bundles]
    assert ServedAdapter.of(bundles[0]).rank == bundles[0].weights.spec.rank


@PLACES
def test_a_bundle_that_is_not_served_is_named(server, bundles, renderer, place):
    missing = names_of(bundles)[place]
    del server.bundles[missing]
    with pytest.raises(ConfigError, match=f"serves .*, not {missing}; start it with alora serve"):
        verify(server.url, bundles, renderer)


@PLACES
def test_a_server_without_the_plugin_is_refused(server, bundles, renderer, place):
    server.unplugged.add(names_of(bundles)[place])
    with pytest.raises(CheckFailed, match=f"200 to a request that {names_of(bundles)[place]} cannot answer"):
        verify(server.url, bundles, renderer)


@pytest.mark.parametrize(("status", "kind"), [(429, Full), (503, Unreachable)])
def test_a_server_that_is_full_or_down_is_not_called_one_without_the_plugin(server, bundles, renderer, status, kind):
    right = server.answer
    server.answer = lambda path, body: right(path, body) if path == "/v1/models" else (status, {})
    with pytest.raises(kind, match=f"answered {status}"):
        verify(server.url, bundles, renderer)


def test_a_refusal_for_another_reason_proves_no_plugin(server, bundles, renderer):
    server.refusal = "the prompt is too short"
    with pytest.raises(CheckFailed, match=r"answered 400 to a request .* plugin is not active"):
        verify(server.url, bundles, renderer)


def test_a_front_end_that_gives_no_reason_is_held_against_the_same_prompt_with_an_invocation(server, bundles, renderer):
    """A front end that loads no plugin passes on that the engine refused, and nothing more."""
    right, asked = server.answer, []

    def answer(path, body):
        if path == "/v1/models" or "logprobs" in body:
            return right(path, body)
        asked.append(len(body["prompt"]))
        return (200, {}) if len(body["prompt"]) > 1 else (500, {"error": "Internal server error"})

    server.answer = answer
    verify(server.url, bundles, renderer)
    assert sorted(asked)[: 2 * len(bundles)] == [1] * 2 * len(bundles)
    assert len(asked) == 3 * len(bundles)
    server.answer = lambda path, body: right(path, body) if path == "/v1/models" else (500, {})
    with pytest.raises(ConfigError, match="answered 500"):
        verify(server.url, bundles, renderer)


def test_a_server_that_refuses_a_golden_row_fails_the_check(server, bundles, renderer, monkeypatch):
    """Its own prompt is no user's: one that is refused would be asked of no other server."""
    answer, refused = server.answer, (400, {"error": "too long; and it lacks the adapter's invocation tokens"})
    monkeypatch.setattr(server, "answer", lambda path, body: refused if body else answer(path, body))
    with pytest.raises(CheckFailed, match=r"refuses a golden row of .*too long"):
        verify(server.url, bundles, renderer)


@PLACES
def test_another_adapter_under_the_name_is_found_by_its_answers(server, bundles, renderer, place):
    name, other = names_of(bundles)[place], bundles[1 - place]
    server.bundles[name] = replace(bundles[place], weights=other.weights)
    with pytest.raises(CheckFailed, match=f"{name} answers a golden row of .* differently"):
        verify(server.url, bundles, renderer)


def test_every_golden_row_is_asked_for(server, bundles, renderer):
    """A base that is near answers some within the tolerance."""
    *rows, last = bundles[0].golden
    assert rows
    other = replace(last, label_logits=tuple(logit + at for at, logit in enumerate(last.label_logits)))
    with pytest.raises(CheckFailed, match=r"answers a golden row of .* differently"):
        verify(server.url, [replace(bundles[0], golden=(*rows, other))], renderer)


def test_a_bundle_without_golden_rows_cannot_be_told_from_another(server, bundles, renderer):
    bare = [bundles[0], replace(bundles[1], golden=())]
    with pytest.raises(CheckFailed, match=r"stores no golden rows.*export it again with export\.golden_rows=8"):
        verify(server.url, bare, renderer)


def test_log_probabilities_of_other_tokens_are_no_answer(server, bundles, renderer):
    server.raw_logprobs = True
    with pytest.raises(CheckFailed, match=r"not with those of the label tokens .*; start it with --logprobs-mode"):
        verify(server.url, bundles, renderer)


def test_the_key_comes_from_the_environment(server, bundles, renderer, monkeypatch):
    server.key = "secret"
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="answered 401"):
        verify(server.url, bundles, renderer)
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    verify(server.url, bundles, renderer)
