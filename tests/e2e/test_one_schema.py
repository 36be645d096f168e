"""A field stands in its spec alone, a pattern in its file alone, and both are then everywhere."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kapelle as api
from kapelle.domain.errors import InvalidInput
from tests.e2e.support.ensembles import play, rest
from tests.e2e.support.instance import ApiError, Instance

ROOT = Path(__file__).parents[2]

# Kapelle with one more field in three of its specs, and with no other change.
LOUDER = """
import json
import sys
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

from kapelle.domain.options import option
from kapelle.domain.schedule import ScheduleSpec
from kapelle.domain.specs import TaskSpec
from kapelle.patterns.loop import LoopSpec

about = {"description": "how loud", "json_schema_extra": option("-l", metavar="DECIBEL")}
for spec in (TaskSpec, LoopSpec, ScheduleSpec):
    spec.__pydantic_fields__["volume"] = FieldInfo.from_annotated_attribute(
        str | None, Field(default=None, **about)
    )
    spec.model_rebuild(force=True)

from kapelle.cli import schema

known = {
    **schema.schemas(),
    **{"task": TaskSpec.model_json_schema(), "loop": LoopSpec.model_json_schema()},
    "schedule": ScheduleSpec.model_json_schema(),
}
schema.schemas = lambda: known

role, sys.argv[1:] = sys.argv[1], sys.argv[2:]
if role == "daemon":
    from kapelle.daemon import main

    main()
elif role == "command":
    from kapelle.cli.main import main

    main()
else:
    from docs import generate

    written = {**generate.documents(), "schemas.json": generate.schemas()}
    sys.stdout.write(json.dumps(written))
"""


class Louder(Instance):
    """A daemon and a command line whose specs have a field more."""

    def __init__(self, home: Path, script: Path) -> None:
        super().__init__(home, KAPELLE_DEFAULT_AGENT="rehearsal")
        self._script = script
        self.env["PYTHONPATH"] = str(ROOT)

    def start(self, **extra: str) -> None:
        self.home.root.mkdir(parents=True)
        with self.home.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(self._script), "daemon"],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        self.await_ready()

    def typed(self, *arguments: str, cwd: Path, role: str = "command") -> str:
        """What a command prints, which must succeed."""
        done = subprocess.run(
            [sys.executable, str(self._script), role, *arguments],
            env=self.env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def louder(tmp_path: Path) -> Iterator[Louder]:
    script = tmp_path / "louder.py"
    script.write_text(LOUDER, encoding="utf-8")
    instance = Louder(tmp_path / "home", script)
    try:
        instance.start()
        yield instance
    finally:
        instance.destroy()


@pytest.mark.timeout(400)
def test_a_field_that_a_spec_gets_is_found_everywhere(louder: Louder, repository: Path) -> None:
    _in_the_command_line(louder, repository)
    _in_rest(louder, repository)
    _in_the_client(louder, repository)
    _in_the_documents(louder, repository)


def _in_the_command_line(louder: Louder, repository: Path) -> None:
    for command in (["run"], ["loop"], ["schedule", "create"]):
        shown = louder.typed(*command, "--help", cwd=repository)
        assert "-l, --volume DECIBEL" in shown
        assert "How loud." in shown
    assert "-l, --volume DECIBEL" in louder.typed("start", "loop", "--help", cwd=repository)
    said = [play({"result": "x"}), "--volume", "90"]
    task = louder.typed("run", *said, cwd=repository)
    assert louder.wait(task)["status"] == "completed"
    run = louder.typed("loop", *said, "--until", "true", cwd=repository)
    assert louder.get(f"/runs/{run}")["spec"]["volume"] == "90"
    words = ["schedule", "create", "--at", "2h", "-l", "10", "loop", "x", "--until", "true"]
    schedule = louder.typed(*words, "-l", "20", cwd=repository)
    assert louder.get(f"/schedules/{schedule}")["spec"]["volume"] == "20"


def _in_rest(louder: Louder, repository: Path) -> None:
    assert louder.submit("x", repository, volume="90")
    with pytest.raises(ApiError, match=r"volume must be text"):
        louder.submit("x", repository, volume=90)
    (loop,) = (item for item in louder.get("/patterns") if item["name"] == "loop")
    assert loop["spec_schema"]["properties"]["volume"]["description"] == "how loud"
    spec = {"directory": str(repository), "prompt": "x", "until": ["true"], "volume": 90}
    with pytest.raises(ApiError, match=r"volume must be text"):
        louder.post("/runs", {"pattern": "loop", "spec": spec})
    with pytest.raises(ApiError, match=r"volume must be text"):
        louder.post("/schedules", {"kind": "loop", "spec": spec, "every_s": 60})


def _in_the_client(louder: Louder, repository: Path) -> None:
    with api.connect(home=louder.home.root, start=False) as client:
        assert client.tasks.run("x", directory=repository, volume="90").id
        given: dict[str, Any] = {"prompt": "x", "until": ["true"], "directory": repository}
        run = client.runs.start("loop", **given, volume="80")
        assert client.runs.get(run.id).spec["volume"] == "80"
        schedule = client.schedules.create("loop", {**given, "volume": "70"}, every_s=3600)
        assert schedule.spec["volume"] == "70"


def _in_the_documents(louder: Louder, repository: Path) -> None:
    made = json.loads(louder.typed(cwd=repository, role="documents"))
    models = json.loads(made["openapi.json"])["components"]["schemas"]
    for model in ("TaskSpec", "ScheduleSpec"):
        assert models[model]["properties"]["volume"]["description"] == "how loud"
    assert made["cli.md"].count("-l, --volume DECIBEL") == 3
    assert "| `-l`, `--volume` | `volume` |  | how loud |" in made["loop.md"]
    assert "volume" in json.loads(made["schemas.json"])["loop"]["properties"]


# A pattern as a person brings one: a single file, of which nothing else in Kapelle knows.
ECHO = '''
from pydantic import BaseModel, Field

from kapelle.domain.options import option
from kapelle.patterns import Context, Failed, PatternSpec, pattern


class EchoSpec(PatternSpec):
    words: list[str] = Field(description="what is said", json_schema_extra=option("-w"))
    loud: bool = Field(False, description="in capitals")


class Echo(BaseModel):
    said: list[str]
    reason: str = ""


@pattern("echo", spec=EchoSpec)
async def echo(ctx: Context, spec: EchoSpec) -> Echo:
    """Have an agent say words, one after the other."""
    result = ctx.keep(Echo(said=[]))
    for word in spec.words:
        said = word.upper() if spec.loud else word
        part = f"[[do]]\\nresult = {said!r}\\n"
        task = await ctx.task(f"Say it.\\n```rehearsal\\n{part}```\\n", agent="rehearsal")
        if not task.ok:
            raise Failed(f"{word} was not said: {task.reason}")
        result.said.append(task.text)
    result.reason = f"said {len(result.said)}"
    return result
'''


def test_a_pattern_in_one_file_is_used_through_every_door(
    kapelle: Instance, repository: Path
) -> None:
    file = repository / ".kapelle" / "patterns" / "echo.py"
    file.parent.mkdir(parents=True)
    file.write_text(ECHO, encoding="utf-8")
    # The command line: its list, its help, a run of it, a mistake.
    assert "Have an agent say words" in kapelle.cli("start", cwd=repository).stdout
    shown = kapelle.cli("start", "echo", "--help", cwd=repository).stdout
    assert "-w, --words TEXT" in shown
    done = kapelle.cli("start", "echo", "-w", "a", "-w", "b", "--loud", "-f", cwd=repository)
    assert done.returncode == 0, done.stderr
    assert _said(kapelle, done.stdout.splitlines()[0]) == ["A", "B"]
    refused = kapelle.cli("start", "echo", "--word", "a", cwd=repository)
    assert (refused.returncode, "Did you mean --words" in refused.stderr) == (2, True)
    # REST: its schema, a run of it, a mistake.
    spec: dict[str, Any] = {"directory": str(repository), "words": ["c"]}
    known = kapelle.get(f"/patterns?directory={repository}")
    assert next(item for item in known if item["name"] == "echo")["spec_schema"]["properties"][
        "loud"
    ]
    assert _said(kapelle, kapelle.post("/runs", {"pattern": "echo", "spec": spec})["id"]) == ["c"]
    with pytest.raises(ApiError, match="words is missing"):
        kapelle.post("/runs", {"pattern": "echo", "spec": {"directory": str(repository)}})
    with api.connect(home=kapelle.home.root, start=False) as client:
        with pytest.raises(InvalidInput) as caught:
            client.runs.start("echo", directory=repository)
        assert [one.path for one in caught.value.fields] == [("words",)]
        # The client, by keywords.
        run = client.runs.start("echo", words=["d"], loud=True, directory=repository)
        assert client.runs.result(client.runs.wait(run.id).id)["said"] == ["D"]
        # Schedules: by the client and by the command that would start it now.
        mine = client.schedules.create("echo", spec, cron="0 3 1 1 *")
        typed = ["schedule", "create", "--cron", "0 3 1 1 *", "start", "echo", "-w", "e"]
        theirs = kapelle.cli(*typed, cwd=repository, check=True).stdout.strip()
        for schedule, said in ((mine.id, "c"), (theirs, "e")):
            subject = client.schedules.run(schedule).subject
            assert subject is not None
            assert _said(kapelle, subject) == [said]


def _said(kapelle: Instance, run_id: str) -> Any:
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    return run["result"]["said"]
