"""The parts of a daemon that every attempt and run needs, wired once."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput, Tampered
from kapelle.domain.ids import make_attempt_token
from kapelle.domain.task import RunningCheck
from kapelle.domain.views import Standing
from kapelle.engine.locks import LockManager
from kapelle.engine.processes.confinement import Confiner
from kapelle.engine.processes.shares import remove_layers
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

# The event of a process whose record of its end was forged.
TAMPERED = "process.tampered"
CHECK_STARTED = "check.started"

StopRequest = Callable[[Connection], str | None]
Tell = Callable[..., Awaitable[object]]


@dataclass
class Parts:
    """Everything that a daemon shares between its attempts, runs and merges.

    Wiring: home, database, runner, workspaces, secrets, locks. State of this daemon's life: the
    processes and checks that it executes now, and caches of settings and projects. A new daemon
    starts with this state empty; whatever must survive a crash is in the database or on disk.
    """

    home: Home
    db: Database
    runner: Runner
    workspaces: Workspaces
    environ: Mapping[str, str]
    secret: str
    vault: Vault
    url: str = ""
    # This daemon's name in the rows of the attempts that it performs.
    performer: str = "here"
    # By attempt or run: the directories and names of the processes that this daemon executes.
    live: dict[str, dict[Path, str]] = field(default_factory=dict)
    # By attempt or run: the checks that this daemon executes.
    checking: dict[str, list[RunningCheck]] = field(default_factory=dict)
    # The current activity of this daemon's agents.
    activities: Activities = field(default_factory=Activities)
    # Whether there may be learnings; None until the first look.
    has_learnings: bool | None = None
    # The current project of each repository, where a person has switched.
    projects: dict[str, str] = field(default_factory=dict)
    settings_cache: dict[object, Settings] = field(default_factory=dict)
    secrets: SpecSecrets = field(init=False)
    locks: LockManager = field(init=False)
    confiner: Confiner = field(init=False)

    def __post_init__(self) -> None:
        self.secrets = SpecSecrets(self.home.secrets)
        self.locks = LockManager(self.db)
        self.confiner = Confiner(self.home)

    def settings(self, directory: str | None = None) -> Settings:
        """Return the settings of a directory; a changed file takes effect at once.

        Of a repository that is not trusted, only harmless settings apply.
        """
        if directory is None:
            return self._settings()
        return self._in(directory, self._settings(*self.standing(directory)))

    def _in(self, directory: str, settings: Settings) -> Settings:
        """Return settings with the current project of a directory."""
        if self.projects:
            name = self.projects.get(repository_of(directory))
        else:
            name = None
        if name:
            return settings.model_copy(update={"project": name})
        return settings

    def _settings(
        self, source: Executable | None = None, status: Standing = "not_needed"
    ) -> Settings:
        is_trusted = status == "trusted"
        config = source if source and source.config else None
        version = (stamp(self.home.config), config, is_trusted)
        if version not in self.settings_cache:
            # The keys hold file stamps, so every change of a file adds an entry.
            if len(self.settings_cache) > _MOST_SETTINGS:
                self.settings_cache.clear()
            combination = combine_layers(self.home, source, is_trusted, self.environ)
            self.settings_cache[version] = combination.settings
        return self.settings_cache[version]

    def work_settings(self, directory: str) -> Settings:
        """Return the settings of work in a directory. Raises NotTrusted."""
        source, status = self.standing(directory)
        require(source, status)
        return self._in(directory, self._settings(source, status))

    def require_trust(self, directory: str) -> None:
        """Raise NotTrusted if a repository could execute code that nobody has allowed."""
        require(*self.standing(directory))

    def standing(self, directory: str) -> tuple[Executable, Standing]:
        """Return what a repository could execute, and whether it is trusted."""
        source = find_executable(self.home, Path(directory))
        return source, determine_standing(self.home, source, self.environ)

    def process_directory(self, attempt_id: str) -> Path:
        return self.home.attempts / attempt_id

    def process(self, row: Row) -> Process:
        """Return a process beside the agents, as stored when it was begun."""
        return Process(self.home.processes / row["directory"], bytes.fromhex(row["secret"]))

    async def without_secrets(self, task_id: str, attempt_id: str, value: Any) -> Any:
        """Return a value from an agent without the secrets that the agent could see."""
        secrets = self.secrets_of(await self.db.glance(tasks.load_row, task_id), [attempt_id])
        return json.loads(redact(json.dumps(value).encode(), secrets))

    def secrets_of(self, work: Row, attempt_ids: Iterable[str] = ()) -> tuple[bytes, ...]:
        """Return all spellings of the secrets that a task or run could see, with any agent."""
        stored = self.secrets
        shell = self.secrets.shell(work["shell"])
        try:
            settings = self.settings(work["directory"])
        except InvalidInput:  # in the repository; the person's own settings still apply
            settings = self.settings()
        agents = settings.agents.values()
        servers = [stored.mcp(work["id"]), settings.mcp, *(agent.mcp for agent in agents)]
        return self.spell_secrets(
            attempt_ids,
            *(stored.env(work["id"]), shell.variables if shell else {}, settings.environment.set),
            *(agent.env for agent in agents),
            *collect_server_values(chain.from_iterable(group.values() for group in servers)),
        )

    def spell_secrets(
        self, attempt_ids: Iterable[str], *environments: Mapping[str, str]
    ) -> tuple[bytes, ...]:
        """Return all spellings of the secrets that these attempts could see."""
        own = [self.secret, *self.vault.all()]
        own += [make_attempt_token(self.secret, attempt_id) for attempt_id in attempt_ids]
        return spell_secrets([*own, *find_secrets(self.environ, *environments)])

    def all_secrets(self) -> tuple[bytes, ...]:
        """Return all spellings of every secret that this daemon knows."""
        settings = self.settings()
        servers = [*settings.mcp.values()]
        for agent in settings.agents.values():
            servers += agent.mcp.values()
        environments, of_work = self.secrets.everything()
        return self.spell_secrets(
            (),
            settings.environment.set,
            *(agent.env for agent in settings.agents.values()),
            *environments,
            *collect_server_values([*servers, *of_work]),
        )

    @contextmanager
    def register_performer(self, performer: str) -> Iterator[None]:
        """Register the processes of an attempt or run that this daemon performs."""
        self.live.setdefault(performer, {})
        try:
            yield
        finally:
            self.live.pop(performer, None)
            remove = partial(shutil.rmtree, ignore_errors=True)
            asyncio.get_running_loop().run_in_executor(None, remove, self.home.scratch / performer)

    @contextmanager
    def register_check(self, performer: str, name: str, command: str) -> Iterator[dict[str, str]]:
        """Register a check while it runs; yields the data of the check's start event."""
        facts = {"name": name, "command": command[:_SHOWN_COMMAND]}
        check = RunningCheck(**facts, started_at=datetime.now(UTC))
        self.checking.setdefault(performer, []).append(check)
        try:
            yield facts
        finally:
            self.checking[performer].remove(check)
            if not self.checking[performer]:
                del self.checking[performer]

    async def execute(
        self, performer: str, name: str, launch: Launch, stop: StopRequest, tell: Tell | None = None
    ) -> ProcessEnd:
        """Run a process of an attempt or run until it ends.

        A request to stop reaches the process, whether it came before or comes later. Raises
        Tampered, after reporting it, if the record of the end was not written by the supervisor.
        """
        running = self.live.setdefault(performer, {})
        running[launch.process_dir] = name
        try:
            # Look for a request only after registering the directory. stop() does both in the other
            # order, so no request can fall between them.
            if (reason := await self.db.glance(stop)) is not None:
                self.runner.stop(launch.process_dir, reason)
            end = await self.runner.execute(launch)
        finally:
            running.pop(launch.process_dir, None)
        if launch.confinement is not None and launch.confinement.overlays:
            await asyncio.to_thread(remove_layers, launch)
        if end.exit.kind == "tampered":
            if tell is not None:
                await tell(name=name, detail=end.detail)
            raise Tampered(f"tampered: {end.detail} of {name}")
        return end

    async def processes(self, owner: str) -> dict[str, Process]:
        """Return the processes beside the agent of an attempt or run, by name."""
        rows = await self.db.read(processes.load_by_name, owner)
        return {name: self.process(row) for name, row in rows.items()}

    async def end_process(self, process: Process, reason: str) -> None:
        """End a process and wait for its end."""
        self.runner.stop(process.directory, reason)
        # Waits for a process that has begun. Because of the stop order, no new one can begin.
        launch = Launch(process.directory, ["true"], self.home.root, {}, secret=process.secret)
        await self.runner.execute(launch)

    def stop(self, performer: str, reason: str) -> None:
        """End the processes of an attempt or run; the request must be stored before."""
        for process_dir in list(self.live.get(performer, ())):
            self.runner.stop(process_dir, reason)
