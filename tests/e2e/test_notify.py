"""Who is elsewhere is told: signed, again until it arrives, over a daemon that was killed."""

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import rest, start
from tests.e2e.support.instance import Instance

KEY = b"do_not_show_this_key"


class Hook(BaseHTTPRequestHandler):
    """A webhook that believes what is signed, unless it is to fail."""

    server: "Hooks"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        signed = self.headers["X-Kapelle-Timestamp"].encode() + b"." + body
        expected = f"sha256={hmac.new(KEY, signed, hashlib.sha256).hexdigest()}"
        assert abs(time.time() - int(self.headers["X-Kapelle-Timestamp"])) < 600
        told = json.loads(body)
        assert self.headers["X-Kapelle-Id"] == told["id"]
        self.server.tried.append(told["id"])
        good = expected == self.headers["X-Kapelle-Signature"] and not self.server.failing
        self.server.failing = max(0, self.server.failing - 1)
        if self.server.failing:
            self.wfile.write(b"this is not HTTP\r\n")
            return
        self.send_response(204 if good else 503)
        self.end_headers()
        if good:
            self.server.told.append(told)
            self.server.changed.set()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Hooks(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.failing = 0
        self.tried: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.changed = threading.Event()

    def await_told(self, work: str, kind: str) -> dict[str, Any]:
        """What is told of some work, once it is."""
        while True:
            self.changed.clear()
            for one in self.told:
                if (one.get("work"), one["kind"]) == (work, kind):
                    return one
            assert self.changed.wait(120), (self.told, self.tried)


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with Hooks() as made:
        serving = threading.Thread(target=made.serve_forever)
        serving.start()
        yield made
        made.shutdown()
        serving.join()


@pytest.fixture(params=["sqlite", "postgres"])
def told(request: pytest.FixtureRequest, tmp_path: Path, hooks: Hooks) -> Iterator[Instance]:
    """A daemon that tells a webhook and a command."""
    settings = {}
    if request.param == "postgres":
        settings["KAPELLE_DATABASE_URL"] = request.getfixturevalue("migrated_postgres_url")
    made = Instance(tmp_path / "home", **settings)
    made.home.root.mkdir(parents=True)
    (tmp_path / "key").write_bytes(KEY)
    # What it says of its first failure is no text.
    script = (
        f"[ $KAPELLE_NOTIFY_KIND = test ] || [ -e {tmp_path}/tried ] || {{ touch {tmp_path}/tried; "
    )
    script += "printf '\\377\\303' >&2; exit 1; }; "
    script += f'cat >> {tmp_path}/said; echo " $KAPELLE_NOTIFY_KIND" >> {tmp_path}/said'
    made.home.config.write_text(
        f'[notify]\nurl = "http://127.0.0.1:{hooks.server_port}/"\nkey_file = "{tmp_path}/key"\n'
        f'command = ["sh", "-c", {json.dumps(script)}]\n'
    )
    made.start()
    yield made
    made.destroy()


def test_what_wants_a_person_is_told_signed_until_it_arrives_over_a_killed_daemon(
    told: Instance, hooks: Hooks, repository: Path, tmp_path: Path
) -> None:
    done = told.cli("notify", "test", check=True)
    assert ("webhook: delivered" in done.stderr, hooks.told[0]["kind"]) == (True, "test")
    hooks.failing = 2
    failed = told.play('[[do]]\nfail = "no ideas"', repository, title="Hopeless")
    found = hooks.await_told(failed, "failed")
    assert (found["title"], found["text"]) == ("Hopeless", told.get(f"/tasks/{failed}")["reason"])
    assert found["url"].endswith(f"/tasks/{failed}")
    assert hooks.tried.count(found["id"]) == 3
    asking = told.play('[[do]]\nask = "Which colour?"', repository)
    assert "Which colour?" in hooks.await_told(asking, "question")["text"]
    run = start(told, "pipeline", repository, agent="rehearsal", steps=["one", "two"])
    assert rest(told, run)["status"] == "completed"
    hooks.await_told(run, "finished")
    # Between the event and its delivery the daemon dies.
    hooks.failing = 1_000_000
    lost = told.play('[[do]]\nfail = "again"', repository)
    assert told.wait(lost)["status"] == "failed"
    told.kill()
    hooks.failing = 0
    told.start()
    hooks.await_told(lost, "failed")
    # Each was told in its order, and nothing of the past twice but what was under way.
    works = [one.get("work") for one in hooks.told if one["kind"] != "test"]
    assert [*dict.fromkeys(works)] == [failed, asking, run, lost]
    while (said := (tmp_path / "said").read_text()).count(" failed\n") < 2:
        time.sleep(0.05)
    assert '"kind": "question"' in said


def test_a_repository_cannot_have_anybody_told(kapelle: Instance, repository: Path) -> None:
    (repository / ".kapelle").mkdir()
    (repository / ".kapelle" / "config.toml").write_text('[notify]\ncommand = ["touch", "/x"]\n')
    refused = kapelle.cli("run", "x", "-a", "rehearsal", cwd=repository)
    assert (refused.returncode, "notify" in refused.stderr) == (2, True)
    refused = kapelle.cli("notify", "test")
    assert (refused.returncode, "No notifications are configured." in refused.stderr) == (2, True)
