"""Several servers as one: one that dies costs its requests a try, and comes back."""

import functools
import threading
from types import SimpleNamespace

import pytest

from mempo_jax.models import hf
from mempo_jax.rollout import http_client, http_servers
from mempo_jax.rollout.http_client import (
    Reply,
    ServerError,
    ServerFaultError,
    read_call,
)
from mempo_jax.rollout.http_engine import MOST_FAULTS
from mempo_jax.rollout.http_servers import (
    AGAIN_S,
    FAULTS_IN_A_ROW,
    DirectoryPublisher,
    Servers,
)
from mempo_jax.rollout.sampler import Generation
from tests.rollout import http_server, tiny
from tests.rollout.http_case import (
    Publication,
    make_client,
    make_http_engine,
    requests,
)

PATH = "/v1/completions"
BODY = {"model": "m", "seed": 7}
ASIDE = "ignore:http.* gets no requests for now"


class Fake:
    """Servers without a network, on a clock of their own: url -> a reply or an error.

    now: seconds. pauses: what was slept. asked: (url, path, body) in order.
    """

    def __init__(self, monkeypatch, *names):
        self.now, self.pauses, self.asked = 100.0, [], []
        self.lock = threading.Lock()
        self.answers = {f"http://{name}": b"{}" for name in names}
        clock = {"monotonic": lambda: self.now, "sleep": self.sleep}
        for module in (http_client, http_servers):
            monkeypatch.setattr(module, "time", SimpleNamespace(**clock))
        monkeypatch.setattr(http_client, "exchange", self.exchange)
        # What goes on in the background ends before the request that began it goes on.
        monkeypatch.setattr(http_servers.threading, "Thread", AtOnce)

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds

    def exchange(self, method, url, headers, body, timeout_s):
        name, path = url[: url.index("/", 7)], url[url.index("/", 7) :]
        self.asked.append((name, path))
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        if path == "/v1/models":
            return Reply(200, b'{"data": [{"id": "m"}]}')
        if path == PATH and isinstance(answer, Reply):
            return answer
        return Reply(200, b"{}")

    def servers(self, publisher=None, retries=1):
        clients = [
            make_client(url, retries=retries, pause_s=1.0) for url in self.answers
        ]
        return Servers(clients, "m", publisher)

    def turns(self):
        """The servers that turns were asked of, since the last call."""
        turns = [name[-1] for name, path in self.asked if path == PATH]
        self.asked.clear()
        return "".join(turns)


class AtOnce:
    def __init__(self, target, args=(), daemon=True):
        self.start = functools.partial(target, *args)


DEAD = ConnectionRefusedError("refused")


def test_the_least_busy_is_asked_and_equals_take_turns(monkeypatch):
    fake = Fake(monkeypatch, "a", "b", "c")
    servers = fake.servers()
    for _ in range(5):
        servers.post(PATH, BODY)
    assert fake.turns() == "abcab"
    inner = []
    plain = fake.exchange

    def while_one_is_under_way(method, url, *rest):
        if len(inner) < 3:
            inner.append(url[7])
            servers.post(PATH, BODY)
        return plain(method, url, *rest)

    monkeypatch.setattr(http_client, "exchange", while_one_is_under_way)
    servers.post(PATH, BODY)
    assert inner == ["c", "a", "b"], "each has one under way already"


@pytest.mark.filterwarnings(ASIDE)
def test_a_dead_server_is_set_aside_and_comes_back_with_the_weights(monkeypatch):
    fake = Fake(monkeypatch, "a", "b")
    sent = []
    servers = fake.servers(Publication(print, lambda client: sent.append(client.url)))
    fake.answers["http://a"] = DEAD
    for _ in range(3):
        servers.post(PATH, BODY)
    assert fake.turns() == "abbb", "only the first request met it, and lost nothing"
    assert (fake.pauses, servers.set_aside) == ([], ["http://a"])
    fake.now += AGAIN_S  # still dead
    servers.post(PATH, BODY)
    assert fake.asked == [("http://a", "/v1/models"), ("http://b", PATH)]
    fake.turns()
    fake.answers["http://a"] = b"{}"
    servers.post(PATH, BODY)
    assert fake.asked == [("http://b", PATH)], "not before it is due again"
    assert sent == []
    fake.now += AGAIN_S
    servers.post(PATH, BODY)
    assert (sent, servers.set_aside) == (["http://a"], [])
    assert servers.counters.server_faults == 1
    assert servers.counters.servers_set_aside == 1


@pytest.mark.filterwarnings(ASIDE)
def test_a_server_that_fails_in_a_row_is_set_aside_but_not_a_busy_one(monkeypatch):
    for reply, aside in (
        (Reply(500, b""), ["http://a"]),
        (TimeoutError(), ["http://a"]),
        (Reply(429, b""), []),
        (Reply(503, b"", "5"), []),
    ):
        fake = Fake(monkeypatch, "a", "b")
        servers = fake.servers()
        fake.answers["http://a"] = reply
        for _ in range(FAULTS_IN_A_ROW):
            assert servers.set_aside == []
            servers.post(PATH, BODY)
            fake.now += 10  # what it asked for is over
        assert fake.turns() == "ab" * FAULTS_IN_A_ROW
        assert servers.set_aside == aside


def test_one_good_answer_makes_up_for_failures(monkeypatch):
    fake = Fake(monkeypatch, "a", "b")
    servers = fake.servers()
    for _ in range(FAULTS_IN_A_ROW + 2):
        fake.answers["http://a"] = Reply(500, b"")
        servers.post(PATH, BODY)
        servers.post(PATH, BODY)
        fake.answers["http://a"] = b"{}"
        servers.post(PATH, BODY)
        servers.post(PATH, BODY)
    assert servers.set_aside == []


def test_a_server_that_asks_for_a_pause_gets_one_and_others_the_requests(monkeypatch):
    fake = Fake(monkeypatch, "a", "b")
    servers = fake.servers()
    fake.answers["http://a"] = Reply(429, b"", "20")
    for _ in range(4):
        servers.post(PATH, BODY)
    assert (fake.turns(), fake.pauses) == ("abbbb", [])
    # Nobody else is left: what both asked for is waited out.
    fake.answers["http://b"] = Reply(503, b"", "5")
    fake.now += 1
    with pytest.raises(ServerFaultError, match=r"status 503.*3 tries"):
        servers.post(PATH, BODY)
    assert fake.turns()[:2] == "ba"
    assert fake.pauses[0] == 19


@pytest.mark.filterwarnings(ASIDE)
def test_when_all_are_dead_the_error_is_the_known_one(monkeypatch):
    fake = Fake(monkeypatch, "a", "b", "c")
    servers = fake.servers()
    for url in fake.answers:
        fake.answers[url] = DEAD
    for _ in range(2):
        with pytest.raises(
            ServerFaultError, match=r"POST http://.*no answer: refused.*4 tries"
        ):
            servers.post(PATH, BODY)
    assert len(servers.set_aside) == 3
    fake.answers["http://b"] = b"{}"
    fake.now += 1
    servers.post(PATH, BODY)
    assert servers.set_aside == ["http://a", "http://c"], "asked even before it is due"


def test_a_server_that_is_alone_is_tried_as_it_is(monkeypatch):
    fake = Fake(monkeypatch, "a")
    sent = []
    servers = fake.servers(Publication(print, sent.append), retries=2)
    fake.answers["http://a"] = DEAD
    with pytest.raises(ServerFaultError, match="3 tries"):
        servers.post(PATH, BODY)
    assert (fake.turns(), fake.pauses, servers.set_aside) == ("aaa", [1, 2], [])
    fake.answers["http://a"] = b"{}"
    servers.post(PATH, BODY)
    assert sent == []


@pytest.mark.filterwarnings(ASIDE)
def test_weights_go_to_all_and_who_refuses_is_set_aside(monkeypatch):
    fake = Fake(monkeypatch, "a", "b", "c")
    refuses, sent, wrote = {"http://b"}, [], []

    def send(client):
        if client.url in refuses:
            raise ServerError(f"{client.url} has no room")
        sent.append(client.url[-1])

    servers = fake.servers(Publication(wrote.append, send))
    servers.publish("first")
    assert (wrote, sent, servers.set_aside) == (["first"], ["a", "c"], ["http://b"])
    for _ in range(3):
        servers.post(PATH, BODY)
    assert fake.turns() == "aca"
    refuses.clear()
    servers.publish("second")
    assert sent == ["a", "c", "a", "c"], "not before it is due"
    fake.now += AGAIN_S
    servers.publish("third")
    assert "".join(sent[4:]) == "abc"
    assert servers.set_aside == []
    refuses |= {"http://c"}
    with pytest.raises(ServerError, match="c has no room"):
        servers.publish("all", all_must=True)
    refuses |= {"http://a", "http://b"}
    with pytest.raises(ServerError, match="has no room"):
        servers.publish("none")


@pytest.mark.filterwarnings(ASIDE)
def test_a_server_without_the_adapters_gets_them_again(monkeypatch):
    fake = Fake(monkeypatch, "a")
    sent = []

    def send(client):
        sent.append(client.url)
        fake.answers["http://a"] = b"{}"

    publisher = Publication(print, send)
    servers = fake.servers(publisher, retries=0)
    unknown = Reply(404, b'{"error": {"message": "does not exist"}}')
    fake.answers["http://a"] = unknown
    with pytest.raises(ServerError, match="does not exist"):
        servers.post(PATH, BODY)  # the model itself is unknown: nothing helps
    publisher.served_as = "m-adapters"
    servers.post(PATH, BODY | {"model": servers.model})
    assert (sent, servers.set_aside) == (["http://a"], [])
    fake.answers["http://a"] = unknown
    with pytest.raises(ServerError, match="does not exist"):
        servers.post(PATH, BODY | {"model": "m-older"})  # of a cancelled round
    assert sent == ["http://a"]


def test_servers_are_checked_one_by_one(monkeypatch):
    fake = Fake(monkeypatch, "a", "b", "c")
    servers = fake.servers(retries=0)
    seen = ""
    with servers.one_by_one() as urls:
        for url in urls:
            servers.post(PATH, BODY)
            servers.post(PATH, BODY)
            seen += url[-1]
    assert (seen, fake.turns()) == ("abc", "aabbcc")
    fake.answers["http://c"] = DEAD
    with pytest.raises(ServerError, match="http://c"):
        servers.check()


def save(directory, params):
    hf.save(directory, tiny.CONFIG, params, tiny.TOKENIZER)


@pytest.mark.filterwarnings(ASIDE)
def test_one_of_three_is_killed_in_mid_step_and_nothing_is_lost(
    local, tmp_path, monkeypatch
):
    """Then it starts again with other weights, and is given those of the run."""
    monkeypatch.setattr(http_servers, "AGAIN_S", 0.0)  # looked at again at once
    asked = requests(8)
    local.set_params(tiny.make_params(seed=1))
    expected = local.generate(asked, temperature=0.9)
    local.set_params(tiny.make_params())
    reload = [read_call(http_server.RELOAD)]
    publisher = DirectoryPublisher(tmp_path / "w", save, reload, 20.0)
    serve = functools.partial(http_server.serve, local, hf.load_params)
    with serve() as one, serve() as two, serve() as three:
        three.lock = two.lock = one.lock  # they share an engine
        urls = [two.url, three.url]
        remote = make_http_engine(
            one.url, None, *urls, publish=publisher, max_concurrent=6
        )
        remote.set_params(tiny.make_params(seed=1))
        two.dies_with = 2  # as soon as it has two requests under way
        got = remote.generate(asked, temperature=0.9)
        assert two.dead.is_set()
        assert all(isinstance(made, Generation) for made in got)
        assert [made.tokens for made in got] == [made.tokens for made in expected]
        lost = [body["seed"] for path, _, body in two.asked if path == PATH]
        again = [
            body["seed"]
            for each in (one, three)
            for path, _, body in each.asked
            if path == PATH
        ]
        assert len(lost) == 2
        assert len(again) == len(set(again)) == 8, "only those two were asked again"
        assert set(lost) <= set(again)
        counters = remote.counters
        assert (counters.server_faults, counters.servers_set_aside) == (2, 1)
        local.set_params(tiny.make_params())
        with serve(two.server_port) as back:
            back.lock = one.lock
            while remote.servers.set_aside:
                remote.generate(requests(1, most=1), temperature=0.9)
            # The engine that they share has been given the weights by ``back`` alone.
            assert back.asked[0][0] == "/reload"
            got = remote.generate(asked, temperature=0.9)
    assert [made.tokens for made in got] == [made.tokens for made in expected]


@pytest.mark.filterwarnings(ASIDE)
def test_all_servers_die(local):
    with http_server.serve(local) as one, http_server.serve(local) as two:
        client = make_client(one.url, retries=0)
        remote = make_http_engine(one.url, client, two.url, slots=20)
        one.die()
        two.die()
        asked = [r._replace(slot=n) for n, r in enumerate(requests(6) * 3)]
        remote.submit(asked, temperature=1.0)
        with pytest.raises(ServerError, match=f"{MOST_FAULTS} requests in a row.*see"):
            list(iter(remote.wait, []))
