"""What an attempt needs around it: the parts of the daemon, wired once."""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput, Tampered
from kapelle.domain.ids import attempt_token
from kapelle.domain.task import RunningCheck
from kapelle.domain.views import Standing
from kapelle.engine.locks import LockManager
from kapelle.engine.tasks.activity import Activities
from kapelle.home import Home
from kapelle.runner.process_dir import Launch, Process, ProcessEnd
from kapelle.runner.redaction import redact, spell_secrets
from kapelle.runner.runner import Runner
from kapelle.secrets.detection import collect_server_values, find_secrets
from kapelle.secrets.specs import SpecSecrets
from kapelle.secrets.vault import Vault
from kapelle.settings import Settings
from kapelle.settings.config import combine_layers
from kapelle.settings.files import stamp
from kapelle.settings.trust import Executable, determine_standing, find_executable, require
from kapelle.store import processes, tasks
from kapelle.store.database import Connection, Database
from kapelle.store.query import Row
from kapelle.workspaces import Workspaces, repository_of

_MOST_SETTINGS = 100
_SHOWN_COMMAND = 500

# The event of a process whose end was forged.
TAMPERED = "process.tampered"
CHECK_STARTED = "check.started"

StopRequest = Callable[[Connection], str | None]
Tell = Callable[..., Awaitable[object]]


@dataclass
class Parts:
    home: Home
    db: Database
    runner: Runner
    workspaces: Workspaces
    environ: Mapping[str, str]
    secret: str
    vault: Vault
    url: str = ""
    # What this daemon is called in the rows of what it performs.
    performer: str = "here"
    # The processes that each attempt or run executes in this daemon: directory and name.
    live: dict[str, dict[Path, str]] = field(default_factory=dict)
    # The checks that each of them makes in this daemon.
    checking: dict[str, list[RunningCheck]] = field(default_factory=dict)
    # What the agents at work in this daemon do right now.
    activities: Activities = field(default_factory=Activities)
    # Whether there may be learnings; None while nobody has looked.
    learned: bool | None = None
    # The projects that were switched to, by repository.
    projects: dict[str, str] = field(default_factory=dict)
    known_settings: dict[object, Settings] = field(default_factory=dict)
    secrets: SpecSecrets = field(init=False)
    locks: LockManager = field(init=False)

    def __post_init__(self) -> None:
        self.secrets = SpecSecrets(self.home.secrets)
        self.locks = LockManager(self.db)

    def settings(self, directory: str | None = None) -> Settings:
        """The settings that hold in a directory; a changed file takes effect at once. Of a
        repository that is not trusted only what is harmless holds."""
        if directory is None:
            return self._settings()
        return self._in(directory, self._settings(*self.standing(directory)))

    def _in(self, directory: str, settings: Settings) -> Settings:
        """Settings with the current project of a directory, which was switched to."""
        if self.projects:
            name = self.projects.get(repository_of(directory))
        else:
            name = None
        if name:
            return settings.model_copy(update={"project": name})
        return settings

    def _settings(
        self, found: Executable | None = None, status: Standing = "not_needed"
    ) -> Settings:
        trusted = status == "trusted"
        version = (stamp(self.home.config), found if found and found.config else None, trusted)
        if version not in self.known_settings:
            if len(self.known_settings) > _MOST_SETTINGS:
                self.known_settings.clear()
            made = combine_layers(self.home, found, trusted, self.environ)
            self.known_settings[version] = made.settings
        return self.known_settings[version]

    def work_settings(self, directory: str) -> Settings:
        """The settings of work in a directory; raises NotTrusted where there may be none."""
        found, status = self.standing(directory)
        require(found, status)
        return self._in(directory, self._settings(found, status))

    def require_trust(self, directory: str) -> None:
        """Raise NotTrusted where a repository could execute what nobody has allowed."""
        require(*self.standing(directory))

    def standing(self, directory: str) -> tuple[Executable, Standing]:
        """What a repository could execute, and whether that is trusted."""
        found = find_executable(self.home, Path(directory))
        return found, determine_standing(self.home, found, self.environ)

    def process_directory(self, attempt_id: str) -> Path:
        return self.home.attempts / attempt_id

    def process(self, row: Row) -> Process:
        """A process beside the agents', as it was stored when it was begun."""
        return Process(self.home.processes / row["directory"], bytes.fromhex(row["secret"]))

    async def without_secrets(self, task_id: str, attempt_id: str, told: Any) -> Any:
        """What an agent tells, with the secrets that it could see taken out."""
        known = self.secrets_of(await self.db.glance(tasks.row, task_id), [attempt_id])
        return json.loads(redact(json.dumps(told).encode(), known))

    def secrets_of(self, work: Row, attempt_ids: Iterable[str] = ()) -> tuple[bytes, ...]:
        """The spellings of the secrets that a task or run could see, with whichever agent."""
        kept = self.secrets
        shell = self.secrets.shell(work["shell"])
        try:
            settings = self.settings(work["directory"])
        except InvalidInput:  # of the repository; what a person has set still holds
            settings = self.settings()
        agents = settings.agents.values()
        servers = [kept.mcp(work["id"]), settings.mcp, *(agent.mcp for agent in agents)]
        return self.known_secrets(
            attempt_ids,
            *(kept.env(work["id"]), shell.variables if shell else {}, settings.environment.set),
            *(agent.env for agent in agents),
            *collect_server_values(server for group in servers for server in group.values()),
        )

    def known_secrets(
        self, attempt_ids: Iterable[str], *environments: Mapping[str, str]
    ) -> tuple[bytes, ...]:
        """How the secrets that these attempts could see may be spelled."""
        own = [self.secret, *self.vault.all()]
        own += [attempt_token(self.secret, attempt_id) for attempt_id in attempt_ids]
        return spell_secrets([*own, *find_secrets(self.environ, *environments)])

    def all_secrets(self) -> tuple[bytes, ...]:
        """Return how any secret that this daemon knows may be spelled, of whichever work."""
        settings = self.settings()
        servers = [*settings.mcp.values()]
        for agent in settings.agents.values():
            servers += agent.mcp.values()
        environments, brought = self.secrets.everything()
        return self.known_secrets(
            (),
            settings.environment.set,
            *(agent.env for agent in settings.agents.values()),
            *environments,
            *collect_server_values([*servers, *brought]),
        )

    @contextmanager
    def performing(self, performer: str) -> Iterator[None]:
        """While an attempt or a run is performed in this daemon."""
        self.live.setdefault(performer, {})
        try:
            yield
        finally:
            self.live.pop(performer, None)

    @contextmanager
    def making(self, performer: str, name: str, command: str) -> Iterator[dict[str, str]]:
        """While an attempt or a run makes a check; what its start tells of it."""
        facts = {"name": name, "command": command[:_SHOWN_COMMAND]}
        made = RunningCheck(**facts, started_at=datetime.now(UTC))
        self.checking.setdefault(performer, []).append(made)
        try:
            yield facts
        finally:
            self.checking[performer].remove(made)
            if not self.checking[performer]:
                del self.checking[performer]

    async def execute(
        self, performer: str, name: str, launch: Launch, stop: StopRequest, tell: Tell | None = None
    ) -> ProcessEnd:
        """Run a process of an attempt or run; a request to stop, whenever it came, reaches it.

        Tampered, which is told before, if somebody else than its supervisor says how it ended.
        """
        running = self.live.setdefault(performer, {})
        running[launch.process_dir] = name
        try:
            # Looked up after the directory is registered: stop() does these in the other order.
            if (reason := await self.db.glance(stop)) is not None:
                self.runner.stop(launch.process_dir, reason)
            ended = await self.runner.execute(launch)
        finally:
            running.pop(launch.process_dir, None)
        if ended.exit.kind == "tampered":
            if tell is not None:
                await tell(name=name, detail=ended.detail)
            raise Tampered(f"tampered: {ended.detail} of {name}")
        return ended

    async def processes(self, owner: str) -> dict[str, Process]:
        """The processes beside an agent that an attempt or run has begun, by their names."""
        rows = await self.db.read(processes.of_owner, owner)
        return {name: self.process(row) for name, row in rows.items()}

    async def end_process(self, process: Process, reason: str) -> None:
        """End a process, and wait until it has."""
        self.runner.stop(process.directory, reason)
        # What was begun is waited for; with the order to stop nothing begins any more.
        launch = Launch(process.directory, ["true"], self.home.root, {}, secret=process.secret)
        await self.runner.execute(launch)

    def stop(self, performer: str, reason: str) -> None:
        """End the processes of an attempt or run; the request must be stored before."""
        for process_dir in list(self.live.get(performer, ())):
            self.runner.stop(process_dir, reason)
