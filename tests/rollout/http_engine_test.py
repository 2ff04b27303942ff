"""Turns from a server are those of the local engine, and faults cost what they must."""

import math
import threading

import numpy as np
import pytest

from mempo_jax.rollout.http_client import ServerError
from mempo_jax.rollout.http_engine import MOST_FAULTS, seed_of
from mempo_jax.rollout.sampler import Request, SamplingFault
from tests.rollout import http_server, tiny
from tests.rollout.http_case import make_client, make_http_engine, requests


@pytest.fixture(scope="module")
def running(local):
    with http_server.serve(local) as server:
        yield server


@pytest.fixture
def server(running):
    yield running
    running.restore()


def choice(answer, **fields):
    """The answer with its choice changed; a field of None is left out."""
    changed = {**answer["choices"][0], **fields}
    changed = {name: value for name, value in changed.items() if value is not None}
    return answer | {"choices": [changed]}


def log_probs(answer, change):
    entries = answer["choices"][0]["logprobs"]
    values = change(entries["token_logprobs"])
    return choice(answer, logprobs=entries | {"token_logprobs": values})


@pytest.mark.parametrize("ids", ["ids", "names"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_generations_are_those_of_the_local_engine(local, server, ids, temperature):
    server.ids = ids
    expected = local.generate(requests(), temperature=temperature)
    got = make_http_engine(server.url).generate(requests(), temperature=temperature)
    if temperature:
        assert len({made.finish for made in expected}) > 1, "the case must show ends"
    for here, there in zip(expected, got, strict=True):
        assert (there.tokens, there.finish, there.text) == (
            *(here.tokens, here.finish, here.text),
        )
        np.testing.assert_allclose(there.log_probs, here.log_probs, atol=1e-4)
        assert there.log_probs.dtype == np.float32


def test_what_a_server_samples_behind_an_end_is_dropped(local, server):
    [asked] = requests(1)
    end = tiny.TOKENIZER.stop_ids[0]
    tag = tiny.TOKENIZER.encode("</mem_recall>")
    for ids, kept, finish in (
        ([9, 10, *tag, 11, 12], 2 + len(tag), "tag"),
        ([9, end, 10, *tag], 2, "stop"),
    ):
        entries = {"token_logprobs": [-float(i) for i in range(len(ids))]}
        server.change = lambda answer, ids=ids, entries=entries: choice(
            answer, token_ids=ids, logprobs=entries
        )
        [made] = make_http_engine(server.url).generate([asked], temperature=1.0)
        assert (made.tokens, made.finish) == (ids[:kept], finish)
        assert made.log_probs.tolist() == entries["token_logprobs"][:kept]


def test_requests_run_at_the_same_time_and_come_back_one_by_one(server):
    server.slow_s = 0.1
    engine = make_http_engine(server.url, max_concurrent=3)
    engine.submit(requests(6), temperature=1.0)
    seen = []
    while ended := engine.wait():
        assert ended
        seen += [request.slot for request, _ in ended]
    assert sorted(seen) == list(range(6))
    assert server.most_live == 3
    assert engine.counters.tokens_fed == sum(len(r.tokens) for r in requests(6))
    assert engine.counters.tokens_generated > 0


def test_what_is_asked_says_all_that_shapes_the_distribution(server):
    [asked] = requests(1)
    plain = server.completion
    server.completion = lambda body: plain(body | {"top_p": 1.0})
    make_http_engine(server.url).generate([asked], temperature=0.7, top_p=0.9)
    server.completion = plain
    [(path, _, body)] = server.asked
    assert path == "/v1/completions"
    assert body["prompt"] == asked.tokens
    wanted = {"temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0.0}
    wanted |= {"repetition_penalty": 1.0, "max_tokens": 24, "seed": 7 << 32}
    wanted |= {"stop_token_ids": list(tiny.TOKENIZER.stop_ids)}
    assert wanted.items() <= body.items()


def test_every_key_has_its_own_seed():
    keys = np.random.default_rng(0).integers(0, 2**32, (2000, 2), np.uint32)
    seeds = {seed_of(key) for key in keys}
    assert len(seeds) == len(keys)
    assert max(seeds) < 2**63


def test_a_full_context_asks_nothing(server):
    asked = Request(0, [5] * tiny.LONGEST, np.zeros(2, np.uint32), 8)
    [made] = make_http_engine(server.url).generate([asked], temperature=1.0)
    assert (made.tokens, made.finish, server.asked) == ([], "length", [])


def wrong_length(answer):
    return log_probs(answer, lambda values: [*values, -1.0])


MISFITS = {
    "no ids": (lambda a: a, "return-tokens-as-token-ids"),
    "null log-probs": (lambda a: choice(a, logprobs=None), "no log-prob"),
    "a null log-prob": (
        lambda a: log_probs(a, lambda v: [None, *v[1:]]),
        "no log-prob",
    ),
    "nan": (lambda a: log_probs(a, lambda v: [math.nan, *v[1:]]), "at most 0"),
    "positive": (lambda a: log_probs(a, lambda v: [0.5, *v[1:]]), "at most 0"),
    "other counts": (wrong_length, "no_stop_trim"),
    "no choice": (lambda a: a | {"choices": []}, "got 0"),
    "two choices": (lambda a: a | {"choices": a["choices"] * 2}, "got 2"),
    "a list": (lambda a: [a], "OpenAI-compatible"),
    "another vocabulary": (
        lambda a: choice(a, token_ids=[10**6], logprobs={"token_logprobs": [-1.0]}),
        "another vocabulary",
    ),
    "no tokens": (
        lambda a: choice(a, token_ids=[], logprobs={"token_logprobs": []}),
        "got 0",
    ),
    "an end of its own": (
        lambda a: choice(a, token_ids=[9], logprobs={"token_logprobs": [-1.0]}),
        "stop tokens of its own",
    ),
    "a cut prompt": (lambda a: choice(a, prompt_token_ids=[1]), "cuts prompts off"),
    "a counted prompt": (lambda a: a | {"usage": {"prompt_tokens": 1}}, "counts 1"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_an_answer_that_cannot_be_used_ends_it_at_once(server, name):
    server.change, words = MISFITS[name]
    server.ids = "none" if name == "no ids" else "ids"
    with pytest.raises(ServerError, match=words) as caught:
        make_http_engine(server.url).generate(requests(1), temperature=1.0)
    assert not isinstance(caught.value, SamplingFault)
    assert len(server.asked) == 1, "nothing is asked twice"


def test_an_unknown_model_names_the_field(server):
    engine = make_http_engine(server.url, model="other")
    with pytest.raises(ServerError, match=r"engine\.http\.model.*|does not exist"):
        engine.generate(requests(1), temperature=1.0)
    with pytest.raises(ServerError, match=r"serves \['tiny'\], not 'other'"):
        engine.servers.check()
    make_http_engine(server.url).servers.check()


def test_a_lost_request_is_a_fault_and_the_others_are_served(server):
    server.refusals = [500, 500, 500]
    engine = make_http_engine(server.url, max_concurrent=1)
    engine.submit(requests(3), temperature=1.0)
    results = {}
    while ended := engine.wait():
        results |= {request.slot: result for request, result in ended}
    assert [isinstance(results[slot], SamplingFault) for slot in range(3)] == [
        *(True, False, False),
    ]
    assert "status 500: as told (3 tries" in str(results[0])


def test_many_faults_in_a_row_mean_that_the_server_is_gone(server):
    server.refusals = [503] * 100
    client = make_client(server.url, retries=0)
    engine = make_http_engine(server.url, client, slots=20)
    asked = [r._replace(slot=i) for i, r in enumerate(requests(6) * 3)]
    engine.submit(asked, temperature=1.0)
    with pytest.raises(ServerError, match=f"{MOST_FAULTS} requests in a row"):
        list(iter(engine.wait, []))
    assert engine.wait() == []


def test_what_was_cancelled_is_not_given_back(server):
    engine = make_http_engine(server.url)
    [expected] = engine.generate(requests(1, most=2), temperature=1.0)
    assert len(expected.tokens) == 2
    server.slow_s = 0.2
    engine.submit(requests(3, most=1), temperature=1.0)
    engine.cancel()
    assert engine.wait() == []
    engine.set_params({"new": 1})
    [made] = engine.generate(requests(1, most=2), temperature=1.0)
    assert made.tokens == expected.tokens


def test_what_does_not_fit_is_refused_and_nothing_is_taken(server):
    engine = make_http_engine(server.url)
    one = requests(1)
    for bad, words in (
        ([*one, *one], "one request a slot"),
        ([one[0]._replace(slot=8)], "a slot in 0 ... 7"),
        ([one[0]._replace(tokens=[])], "a context of 1 to"),
        ([one[0]._replace(tokens=[1] * 161)], "a context of 1 to"),
    ):
        with pytest.raises(ValueError, match=words):
            engine.submit(bad, temperature=1.0)
        assert engine.wait() == []
    server.slow_s = 0.1
    engine.submit(one, temperature=1.0)
    with pytest.raises(ValueError, match="one request a slot"):
        engine.submit(one, temperature=1.0)
    with pytest.raises(ValueError, match="of the requests under way"):
        engine.submit([one[0]._replace(slot=1)], temperature=0.5)
    with pytest.raises(RuntimeError, match="under way"):
        engine.set_params({})
    with pytest.raises(RuntimeError, match="under way"):
        engine.generate(one, temperature=1.0)
    assert len(engine.wait()) == 1


def test_parameters_go_to_the_server_once_and_to_the_subscribers(server):
    published, followed = [], []

    class Subscriber:
        def set_params(self, params):
            followed.append(params)

        def warm_up(self):
            followed.append("warm")

    array = np.zeros(2)
    first, second = {"a": array}, {"a": array.copy()}
    engine = make_http_engine(server.url, publish=published.append)
    engine.subscribe(Subscriber())
    for params in (first, {"a": array}, second):
        engine.set_params(params)
    engine.warm_up()
    assert [id(p) for p in published] == [id(first), id(second)]
    assert [f if f == "warm" else id(f["a"]) for f in followed] == [
        *(id(array), id(array), id(second["a"]), "warm"),
    ]


def test_parameters_that_did_not_arrive_are_sent_again():
    tries = []

    def publish(params):
        tries.append(params)
        if len(tries) == 2:
            raise ServerError("no")

    engine = make_http_engine("http://127.0.0.1:9", publish=publish)
    first, second = {"a": np.zeros(1)}, {"a": np.ones(1)}
    engine.set_params(first)
    with pytest.raises(ServerError):
        engine.set_params(second)
    engine.set_params(first)  # who knows what the server holds
    assert [id(each) for each in tries] == [id(first), id(second), id(first)]


def test_what_has_ended_comes_in_the_order_of_submission(server):
    done = [threading.Event() for _ in range(3)]

    def change(answer):
        slot = answer["usage"]["prompt_tokens"] - 2
        if slot < 2:
            done[slot + 1].wait(10)  # the last request is answered first
        done[slot].set()
        return answer

    server.change = change
    engine = make_http_engine(server.url)
    engine.submit(requests(3), temperature=1.0)
    while engine._done.qsize() < 3:
        threading.Event().wait(0.01)
    assert [request.slot for request, _ in engine.wait()] == [0, 1, 2]


def test_no_thread_is_left_when_all_is_done(server):
    before = threading.active_count()
    engine = make_http_engine(server.url)
    engine.generate(requests(4, most=1), temperature=1.0)
    for _ in range(100):
        if threading.active_count() <= before:
            break
        threading.Event().wait(0.05)
    assert threading.active_count() <= before
