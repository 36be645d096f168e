"""What agents may look up elsewhere, against servers on loopback and a real PostgreSQL."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.support.instance import ApiError, Instance

KEY = "lin_do_not_show_this"


class Elsewhere(BaseHTTPRequestHandler):
    """Linear, OpenSearch, GitHub's Actions and the storage that keeps their logs."""

    server: "Elsewheres"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, self.headers.get("Authorization"), body))
        if self.path == "/graphql":
            self._reply({"data": {"issue": {"title": "A race"}}})
        elif self.path == "/logs-*/_search":
            lines = [{"_source": {"message": f"line {n}"}} for n in range(body["size"])]
            self._reply({"hits": {"hits": lines}})
        else:
            self._reply({"message": "Bad credentials"}, 401)

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization"), None))
        actions = "/repos/acme/app/actions"
        run = {"id": 7, "status": "completed", "conclusion": "failure", "head_branch": "main"}
        jobs = [
            {"id": 1, "name": "lint", "conclusion": "success"},
            {"id": 2, "name": "tests", "conclusion": "failure"},
        ]
        found = {
            f"{actions}/runs?per_page=1&branch=main": {"workflow_runs": [run]},
            f"{actions}/runs?per_page=1&branch=new": {"workflow_runs": []},
            "/repos/acme/app/pulls/12": {"head": {"ref": "main", "sha": "c0ffee"}},
            f"{actions}/runs?per_page=1&head_sha=c0ffee": {"workflow_runs": [run]},
            f"{actions}/runs/7": run,
            f"{actions}/runs/7/jobs?per_page=100": {"jobs": jobs},
        }
        if self.path == f"{actions}/jobs/2/logs":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/storage")
            self.end_headers()
        elif self.path == "/storage":
            self._reply("x" * 30_000 + "assert 1 == 2")
        else:
            self._reply(
                found.get(self.path, {"message": "Not Found"}), 200 if self.path in found else 404
            )

    def _reply(self, body: object, status: int = 200) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Elsewheres(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Elsewhere)
        self.seen: list[tuple[str, str | None, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def elsewhere() -> Iterator[Elsewheres]:
    with Elsewheres() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def configure(kapelle: Instance, tmp_path: Path) -> Iterator[Any]:
    def set_up(integration: str, key: str | None = KEY, **fields: str) -> None:
        if key is not None:
            file = tmp_path / f"{integration}.key"
            file.write_text(f"{key}\n")
            fields["key_file"] = str(file)
        for field, value in fields.items():
            kapelle.cli("config", "set", f"integrations.{integration}.{field}", value, check=True)

    yield set_up
    kapelle.home.config.unlink(missing_ok=True)


def asked(kapelle: Instance, name: str, **body: Any) -> Any:
    return kapelle.post(f"/integrations/{name}", body)


def refused(kapelle: Instance, name: str, **body: Any) -> str:
    with pytest.raises(ApiError) as error:
        asked(kapelle, name, **body)
    return str(error.value.body)


def test_all_are_off_until_configured(kapelle: Instance) -> None:
    assert kapelle.get("/integrations") == []
    for name in ("linear", "logs", "database", "ci"):
        body = {} if name == "ci" else {"query": "x"}
        first = "url URL" if name == "logs" else "key_variable NAME"
        assert f"kapelle config set integrations.{name}.{first}" in refused(kapelle, name, **body)


def test_linear_is_asked_and_never_told(
    kapelle: Instance, elsewhere: Elsewheres, configure: Any
) -> None:
    configure("linear", url=f"{elsewhere.url}/graphql")
    assert kapelle.get("/integrations") == ["linear"]
    query = 'query { issue(id: "mutation }") { title } } # mutation'
    found = asked(kapelle, "linear", query=query, variables={"a": 1})
    assert found["answer"]["data"]["issue"]["title"] == "A race"
    assert elsewhere.seen == [("/graphql", KEY, {"query": query, "variables": {"a": 1}})]
    for write in (
        "mutation { a }",
        "query A { a } mutation B { b }",
        "# x\nmutation{a}",
        "#\rmutation{a}",
    ):
        assert "Only queries" in refused(kapelle, "linear", query=write)
    assert len(elsewhere.seen) == 1
    configure("linear", url=f"{elsewhere.url}/gone")
    assert "answered 401: " in refused(kapelle, "linear", query="{ a }")
    configure("linear", url="http://linear.example")
    assert "must begin with https:" in refused(kapelle, "linear", query="{ a }")
    configure("linear", url="http://127.0.0.1:1")
    assert "cannot be reached" in refused(kapelle, "linear", query="{ a }")


def test_logs_are_searched(kapelle: Instance, elsewhere: Elsewheres, configure: Any) -> None:
    configure("logs", key=None, url=elsewhere.url, name="logs-*")
    found = asked(kapelle, "logs", query="level:error", limit=2)
    assert found["answer"] == [{"message": "line 0"}, {"message": "line 1"}]
    _, key, body = elsewhere.seen[0]
    assert (key, body["query"]["query_string"]["query"]) == (None, "level:error")


def test_ci_shows_what_failed_and_keeps_its_key(
    kapelle: Instance, elsewhere: Elsewheres, configure: Any
) -> None:
    configure("ci", url=elsewhere.url)
    assert "integrations.ci.name OWNER/REPOSITORY" in refused(kapelle, "ci")
    configure("ci", url=elsewhere.url, name="acme/app")
    for body in ({"branch": "main"}, {"run": 7}, {"pr": 12}):
        found = asked(kapelle, "ci", **body)["answer"]
        assert (found["run"]["conclusion"], found["failed"]) == ("failure", 1)
        (job,) = found["jobs"]
        assert (job["name"], len(job["log"])) == ("tests", 20_000)
        assert job["log"].endswith("assert 1 == 2")
    keys = {path: key for path, key, _ in elsewhere.seen}
    assert keys["/repos/acme/app/actions/runs/7"] == f"Bearer {KEY}"
    assert keys["/storage"] is None
    assert asked(kapelle, "ci", branch="new")["answer"]["run"] is None
    assert "answered 404" in refused(kapelle, "ci", run=8)
    assert "exclude each other" in refused(kapelle, "ci", run=7, pr=12)


def test_a_database_is_read_and_never_written(
    kapelle: Instance, new_postgres_url: str, configure: Any
) -> None:
    with psycopg.connect(new_postgres_url) as connection:
        connection.execute("CREATE TABLE sales (day date, amount numeric)")
        connection.execute("INSERT INTO sales SELECT '2026-01-01', n FROM generate_series(1, 50) n")
    configure("database", key=new_postgres_url)
    found = asked(
        kapelle, "database", query="SELECT day, amount FROM sales ORDER BY amount", limit=2
    )
    first = {"day": "2026-01-01", "amount": "1"}
    assert (found["answer"][0], len(found["answer"]), found["truncated"]) == (first, 2, True)
    for write in (
        "DELETE FROM sales",
        "SELECT 1; DELETE FROM sales",
        "COMMIT; DELETE FROM sales",
        "WITH gone AS (DELETE FROM sales RETURNING 1) SELECT * FROM gone",
        "SELECT nothing FROM nowhere",
    ):
        assert "The database refused" in refused(kapelle, "database", query=write), write
    with psycopg.connect(new_postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM sales").fetchone() == (50,)
