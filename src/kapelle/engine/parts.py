"""What an attempt needs around it: the parts of the daemon, wired once."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kapelle.domain.ids import attempt_token
from kapelle.home import Home, repository_config
from kapelle.runner.process_dir import Ended, Launch
from kapelle.runner.redaction import patterns
from kapelle.runner.runner import Runner
from kapelle.secrets import SpecSecrets, Vault, secrets_in
from kapelle.settings import Settings, load
from kapelle.settings.files import stamp
from kapelle.settings.trust import is_trusted, require
from kapelle.store import runs
from kapelle.store.database import Connection, Database
from kapelle.workspaces import Workspaces

_MOST_SETTINGS = 100

StopRequest = Callable[[Connection], str | None]


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
    # Process directories of the processes that each attempt or run executes in this daemon.
    live: dict[str, set[Path]] = field(default_factory=dict)
    known_settings: dict[object, Settings] = field(default_factory=dict)
    secrets: SpecSecrets = field(init=False)

    def __post_init__(self) -> None:
        self.secrets = SpecSecrets(self.home.secrets)

    def settings(self, directory: str | None = None) -> Settings:
        """The settings that hold in a directory; a changed file takes effect at once. Of a
        repository that is not trusted only what is harmless holds."""
        place = Path(directory) if directory else None
        repository = repository_config(self.home, place) if place else None
        trusted = bool(place and repository and is_trusted(self.home, place, self.environ))
        version = (stamp(self.home.config), repository, repository and stamp(repository), trusted)
        if version not in self.known_settings:
            if len(self.known_settings) > _MOST_SETTINGS:
                self.known_settings.clear()
            self.known_settings[version] = load(self.home, place, self.environ).settings
        return self.known_settings[version]

    def work_settings(self, directory: str) -> Settings:
        """The settings of work in a directory; raises NotTrusted where there may be none."""
        self.require_trust(directory)
        return self.settings(directory)

    def require_trust(self, directory: str) -> None:
        """Raise NotTrusted where a repository could execute what nobody has allowed."""
        require(self.home, Path(directory), self.environ)

    def process_directory(self, attempt_id: str) -> Path:
        return self.home.attempts / attempt_id

    def step_directory(self, run_id: str, position: str) -> Path:
        """Where the process of a run's step is run."""
        return self.home.runs / run_id / "steps" / position

    def redactions(self, attempt_id: str, *environments: Mapping[str, str]) -> tuple[bytes, ...]:
        own = [self.secret, attempt_token(self.secret, attempt_id), *self.vault.all()]
        return patterns([*own, *secrets_in(self.environ, *environments)])

    @contextmanager
    def performing(self, performer: str) -> Iterator[None]:
        """While an attempt or a run is performed in this daemon."""
        self.live.setdefault(performer, set())
        try:
            yield
        finally:
            self.live.pop(performer, None)

    async def execute(self, performer: str, launch: Launch, stop_request: StopRequest) -> Ended:
        """Run a process of an attempt or run; a request to stop, whenever it came, reaches it."""
        running = self.live.setdefault(performer, set())
        running.add(launch.process_dir)
        try:
            # Looked up after the directory is registered: stop() does these in the other order.
            stop = await self.db.glance(stop_request)
            if stop is not None:
                self.runner.stop(launch.process_dir, stop)
            return await self.runner.execute(launch)
        finally:
            running.discard(launch.process_dir)

    async def execute_step(self, run_id: str, launch: Launch) -> Ended:
        """Run a process of a run itself, such as a check."""
        return await self.execute(run_id, launch, partial(runs.end_requested, run_id=run_id))

    def stop(self, performer: str, reason: str) -> None:
        """End the processes of an attempt or run; the request must be stored before."""
        for process_dir in list(self.live.get(performer, ())):
            self.runner.stop(process_dir, reason)
