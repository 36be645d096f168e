"""Every setting, its type and its default; the docstrings make docs/configuration.md."""

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, model_validator

from kapelle.domain.specs import (
    CheckSpec,
    EnvName,
    McpServer,
    Money,
    Name,
    Prove,
    Seconds,
    ServerName,
    Text,
    Turns,
)

ConfiguredAgentName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)
]
VariablePattern = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$", max_length=200)
]
FilterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Count = Annotated[int, Field(ge=0)]
HttpUrl = Annotated[Text, StringConstraints(pattern=r"^https?://[^\s/]+\S*$", max_length=4000)]

REPOSITORY_KEYS = frozenset(
    {
        "default_agent", "fallback_agents", "project", "agents", "checks", "workspace", "tasks",
        "browser", "environment", "mcp", "health", "difficulty", "failures", "roles",
    }
)  # fmt: skip


class SettingsSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, validate_by_name=True)


class LimitsSettings(SettingsSection):
    max_attempts: Annotated[int, Field(ge=1)] | None = None
    """Attempts that run at once; when not set, chosen from cores and memory."""
    max_runs: Annotated[int, Field(ge=1)] = 100
    """Runs that are under way at once, runs inside runs not counted."""
    min_free_memory_mb: Count = 256
    """No attempt starts while less memory than this is free."""
    min_free_disk_mb: Count = 500
    """No attempt starts while less disk than this is free."""
    max_load_per_core: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 8.0
    """No attempt starts above this load average per core; 0 ignores the load."""


class TasksSettings(SettingsSection):
    timeout_s: Seconds | None = 86_400
    """Seconds an attempt may run: the cap on one that is to run until its agent is done."""
    max_turns: Turns | None = 1000
    """Answers of the model in one attempt: the same cap for agents that never stop."""
    budget_usd: Money | None = None
    """US dollars that all attempts of a task may cost together; when not set, any amount."""
    prove: Prove = "once"
    """When a passed check is made again on garbled files: never, once, always or required."""
    grace_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 10
    """Seconds between asking a process to end and killing it."""


class ChildrenSettings(SettingsSection):
    max_depth: Annotated[int, Field(ge=1, le=10)] = 5
    """How many levels of tasks may be below one that a person or a pattern asked for."""
    max_live: Annotated[int, Field(ge=1, le=1000)] = 20
    """How many tasks below one may be open at once; a run that has none counts as one."""
    budget_usd: Money | None = None
    """US dollars that one and all below it may cost, where it has no budget of its own."""


class DockerSettings(SettingsSection):
    engine: Annotated[Text, Field(min_length=1)] = "docker"
    """Program that runs containers: docker, podman, or a path."""
    image: Text | None = None
    """Image of a container for each worktree, in which set-up, checks and tests run."""
    service: Text | None = None
    """Instead of an image: the service of a compose file, such as laravel.test."""
    compose: list[Text] = []
    """Compose files; when empty, those that the engine finds in the worktree."""
    workdir: Annotated[Text, Field(pattern="^/")] | None = None
    """Where the worktree is in the container; for an image /workspace, when not set."""
    options: list[Text] = []
    """Further arguments of `run` with an image, such as --network=host."""

    @property
    def wanted(self) -> bool:
        return bool(self.image or self.service)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.image and self.service:
            raise ValueError("either image or service: leave one of them out")
        for name in ("engine", "image", "service"):
            if (getattr(self, name) or "").startswith("-"):
                raise ValueError(f"{name} begins with a dash, and would be taken for an option")
        return self


class WorkspaceSettings(SettingsSection):
    default: Literal["auto", "worktree", "in_place"] = "auto"
    """worktree, in_place, or auto: a worktree inside a git repository, else in place."""
    copy_: list[Text] = Field([], alias="copy")
    """Untracked files or directories copied into a new worktree."""
    link: list[Text] = []
    """Untracked files or directories linked into a new worktree."""
    checkout_paths: Literal["replace", "keep"] = "replace"
    """What leads from a worktree into your checkout: replace it by its own, or keep it."""
    setup: Text | None = None
    """Shell command run in a new worktree before the agent."""
    setup_timeout_s: Seconds = 600
    """Seconds the setup command may take."""
    docker: DockerSettings = DockerSettings()


class BrowserSettings(SettingsSection):
    enabled: bool = False
    """Whether the agents of patterns that verify have a browser, if they can use MCP."""
    package: Text = "chrome-devtools-mcp@latest"
    """The npm package of the MCP server that drives it."""
    args: list[Text] = [
        "--headless", "--isolated", "--no-performance-crux", "--no-usage-statistics",
    ]  # fmt: skip
    """Its arguments; as root Chrome also wants --chromeArg=--no-sandbox."""
    server: ServerName = "chrome-devtools"
    """What agents know the MCP server by."""
    serve: Text | None = None
    """Shell command that serves the application on 127.0.0.1 and the port that PORT names."""
    ready_s: Seconds = 120
    """Seconds until the application must answer."""


class EnvironmentSettings(SettingsSection):
    pass_: list[VariablePattern] = Field([], alias="pass")
    """Variables passed on to agents besides the built-in ones; NAME or PREFIX*."""
    set: dict[EnvName, Text] = {}
    """Variables set for every agent."""


class DifficultySettings(SettingsSection):
    classify: bool = False
    """Whether a task that names no model is given one by its difficulty (agents.NAME.models)."""
    agent: ConfiguredAgentName | None = None
    """Agent that judges the difficulty; when not set, the task's own."""


class RolesSettings(SettingsSection):
    judge: ConfiguredAgentName | None = None
    """Agent that reads a failed attempt for the retry policy analyze; when not set, its own."""


class HealthSettings(SettingsSection):
    stall_s: Seconds = 900
    """Seconds without output and without CPU time after which an agent counts as stalled."""
    on_stall: Literal["nudge", "end", "warn"] = "nudge"
    """nudge (end it once and let it go on), end (as a failure), or warn only."""
    long_s: Seconds = 7200
    """Seconds after which a running attempt is warned about."""
    answer_s: Seconds | None = None
    """Seconds after which a question gets its default for an answer; when not set, none does."""
    warn_at: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.8
    """Share of a limit (turns, budget, time) at which there is a warning."""


class FailuresSettings(SettingsSection):
    environment: list[Text] = []
    """Texts, * for anything in a line, that make a failure one of the environment."""
    patience_s: Seconds = 120
    """Seconds that an agent may go on asking a provider that refuses, before Kapelle takes over."""
    breaker: Annotated[int, Field(ge=1)] = 3
    """Failures of the environment in a row after which an agent is paused."""
    breaker_s: Seconds = 300
    """Seconds of that pause."""


class Price(SettingsSection):
    """US dollars per million tokens."""

    input: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Input tokens."""
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Output tokens."""
    cached: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Input tokens read from a cache; when not set, as other input."""


class ReadJson(SettingsSection):
    text: Text | None = None
    """Path of what the agent says, such as message.content.0.text."""
    result: Text | None = None
    """Path of the final answer."""
    session: Text | None = None
    """Path of the session's id, for {session} in the command."""
    error: Text | None = None
    """Path of an error's message; where there is one, the attempt failed."""
    model: Text | None = None
    """Path of the model's name."""
    input_tokens: Text | None = None
    """Path of the number of input tokens."""
    output_tokens: Text | None = None
    """Path of the number of output tokens."""
    cached_tokens: Text | None = None
    """Path of the number of input tokens read from a cache."""
    cost_usd: Text | None = None
    """Path of the cost in US dollars."""


class AgentSettings(SettingsSection):
    type: ConfiguredAgentName | None = None
    """The adapter: "command" for a template, or the name of another agent."""
    command: list[Text] = []
    """Template with {prompt} {system} {combined} {model} {workspace} {prompt_file} {session}."""
    model: Name | None = None
    """Model used when a task names none."""
    env: dict[EnvName, Text] = {}
    """Variables set for this agent."""
    extra_args: list[Text] = []
    """Arguments added at the end of the command."""
    playbook: Text | None = None
    """Playbook file of a rehearsal agent."""
    output: Literal["text", "events", "json"] = "text"
    """What a command template prints: text, Kapelle's events, or JSON read by read."""
    read: ReadJson = ReadJson()
    """Where a command template's JSON output has what."""
    program: Text | None = None
    """Path of the agent's program, when it is not on PATH."""
    base_url: HttpUrl | None = None
    """Address of the provider's API, for a proxy or a server of your own."""
    models: dict[Literal["simple", "medium", "complex"], Name] = {}
    """Model by difficulty, where no model is named and difficulty.classify is on."""
    permissions: Literal["allow", "deny", "ask"] = "allow"
    """What an acp agent's requests for permission are answered with; ask passes them to you."""
    mode: Name | None = None
    """Session mode of an acp agent."""
    mcp: dict[ServerName, McpServer] = {}
    """MCP servers of this agent."""


class ServerSettings(SettingsSection):
    host: Name = "127.0.0.1"
    """Address the API listens on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port to listen on; 0 takes any free one."""
    hosts: list[Name] = []
    """Further host names under which the API may be called, for `kapelle serve --expose`."""


class LogSettings(SettingsSection):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe lines that the daemon writes into daemon.log."""
    sentry_dsn: HttpUrl | None = None
    """Sentry DSN for internal errors of the daemon, with `kapelle[sentry]`; else SENTRY_DSN."""


class BackupSettings(SettingsSection):
    every_s: Seconds = 3600
    """Seconds between backups of the database."""
    hours: Count = 24
    """How many of the newest backups are kept, at least one."""
    days: Count = 7
    """Of how many days the last backup is kept as well."""
    weeks: Count = 4
    """Of how many weeks the last backup is kept as well."""

    @property
    def grades(self) -> tuple[int, int, int]:
        return self.hours, self.days, self.weeks


class UpkeepSettings(SettingsSection):
    archive_days: Count = 7
    """Days after which merged and cancelled work is archived; 0 leaves it in the lists."""
    archive_failed_days: Count = 30
    """Days after which failed work is archived; 0 leaves it in the lists."""
    output_days: Count = 90
    """Days that the output of ended attempts is kept; 0 keeps it for ever."""
    retention_days: Count = 0
    """Days that ended tasks, runs and schedules are kept, and events; 0 keeps them for ever."""


class KnowledgeSettings(SettingsSection):
    prompt_tokens: Count = 1000
    """Tokens of learnings that a prompt may hold under ## Memory; 0 tells agents none."""
    agent: ConfiguredAgentName | None = None
    """Agent, a cheap one will do, that judges what is reported; when not set, a plain rule does."""
    review_days: Count = 30
    """Days after which what agents reported is judged once more beside the rest; 0 is never."""


class GitSettings(SettingsSection):
    author_name: Name = "Kapelle"
    """Author of commits that Kapelle makes."""
    author_email: Name = "kapelle@localhost"
    """E-mail address of that author."""
    sign: Literal["auto", "never"] = "auto"
    """Whether merges are signed as your own configuration of git says (commit.gpgsign)."""
    filters: list[FilterName] = []
    """Filters of .gitattributes that Kapelle's git may run as you configured them, such as lfs."""


class ForgeHost(SettingsSection):
    kind: Literal["github", "gitlab", "gitea"] | None = None
    """What it is; Forgejo is a gitea."""
    url: HttpUrl | None = None
    """Address of its API; when not set, at the usual place of that host."""
    token_variable: EnvName | None = None
    """The daemon's variable with the token; when not set, gh and git's credential helpers."""
    insecure_http: bool = False
    """Whether the token and the code may be sent without TLS, where the network is trusted."""


class ForgeSettings(SettingsSection):
    remote: Name = "origin"
    """The remote of a repository that is pushed to."""
    hosts: dict[Name, ForgeHost] = {}
    """Forges besides github.com, gitlab.com and codeberg.org, by the host in the remote's URL."""
    refresh_s: Seconds = 300
    """Seconds after which an open pull request is looked at again."""
    poll_s: Seconds = 20
    """Seconds after which CI is asked again while a check waits for it."""


class KeyedSettings(SettingsSection):
    url: HttpUrl | None = None
    """Where it is, unless it is the service's own address."""
    key_variable: EnvName | None = None
    """The variable of the daemon's environment that holds the key."""
    key_file: Text | None = None
    """The file that holds the key, for a daemon that your machine starts."""


class NotifySettings(KeyedSettings):
    command: list[Text] = []
    """A program with its arguments that is told on its standard input, as JSON."""
    on: list[Literal["question", "failed", "finished", "budget"]] = [
        "question", "failed", "finished", "budget"
    ]  # fmt: skip
    """What is told: questions, what failed, runs that finished, budgets that are spent."""


class Integration(KeyedSettings):
    name: Name | None = None
    """The index pattern of logs (by default *), or the OWNER/REPOSITORY of ci."""


class IntegrationsSettings(SettingsSection):
    linear: Integration = Integration()
    """Linear's issues, by GraphQL."""
    logs: Integration = Integration()
    """Logs in OpenSearch or Elasticsearch."""
    database: Integration = Integration()
    """A PostgreSQL database, read only; the key is its address."""
    ci: Integration = Integration()
    """What failed in GitHub Actions."""


class Settings(SettingsSection):
    _search_path: str | None = PrivateAttr(None)

    @property
    def search_path(self) -> str | None:
        """The PATH on which programs of agents are looked for; None is that of this process."""
        return self._search_path

    def on_path(self, search_path: str | None) -> "Settings":
        """Return these settings with the PATH of whoever asked for the work, if it is known."""
        if not search_path:
            return self
        copy = self.model_copy()
        copy._search_path = search_path
        return copy

    default_agent: ConfiguredAgentName | None = None
    """Agent of a task that names none."""
    fallback_agents: list[ConfiguredAgentName] = []
    """Agents that take over, in this order, when a task's own is limited or unavailable."""
    project: Name | None = None
    """Project of a task that names none."""
    checks: list[CheckSpec] = []
    """Checks of a task that names none."""
    database_url: Text | None = None
    """PostgreSQL address, only in your own config.toml; when not set, SQLite."""
    limits: LimitsSettings = LimitsSettings()
    """When attempts may start."""
    tasks: TasksSettings = TasksSettings()
    """How attempts are run and kept."""
    children: ChildrenSettings = ChildrenSettings()
    """What agents may ask other agents for."""
    workspace: WorkspaceSettings = WorkspaceSettings()
    """Where tasks work."""
    browser: BrowserSettings = BrowserSettings()
    """What agents look at web pages with."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """What agents see of your environment."""
    agents: dict[ConfiguredAgentName, AgentSettings] = {}
    """Agents by name."""
    mcp: dict[ServerName, McpServer] = {}
    """MCP servers of every agent that can use some."""
    prices: dict[Name, Price] = {}
    """Prices by model, before those of the built-in table."""
    difficulty: DifficultySettings = DifficultySettings()
    """Which model a task gets that names none."""
    roles: RolesSettings = RolesSettings()
    """Agents that help with other agents' work."""
    health: HealthSettings = HealthSettings()
    """What is warned about, and what happens to an agent that is stuck."""
    failures: FailuresSettings = FailuresSettings()
    """How failures are told apart and answered."""
    server: ServerSettings = ServerSettings()
    """The API over TCP."""
    log: LogSettings = LogSettings()
    """The daemon's log."""
    backup: BackupSettings = BackupSettings()
    """Copies of the database."""
    upkeep: UpkeepSettings = UpkeepSettings()
    """How long what has ended stays."""
    knowledge: KnowledgeSettings = KnowledgeSettings()
    """What agents are told of earlier work."""
    git: GitSettings = GitSettings()
    """Commits that Kapelle makes."""
    forge: ForgeSettings = ForgeSettings()
    """Where pull requests are opened."""
    notify: NotifySettings = NotifySettings()
    """How you are told what happens while you are elsewhere."""
    integrations: IntegrationsSettings = IntegrationsSettings()
    """What agents may look up elsewhere."""

    # The directory that contains the .kapelle of a setting, by the setting's dotted key.
    _places: dict[str, Path] = PrivateAttr(default_factory=dict)

    def with_places(self, places: dict[str, Path]) -> Self:
        """Return these settings, knowing which of them lie in a repository's configuration."""
        made = self.model_copy()
        made._places = places
        return made

    def place_of(self, key: str) -> Path | None:
        """Return the directory that contains the .kapelle with this setting, None if none does."""
        return self._places.get(key)

    def directory_of(self, key: str, directory: str, inside: str | None = None) -> str | None:
        """Return where the command of a setting runs, relative to the directory of the work.

        A command of a repository runs where its .kapelle lies, or in a directory inside of that.
        None stands for the directory of the work, where a person's own commands run.
        """
        place = self._places.get(key)
        if place is None:
            return inside
        target = os.path.join(place, inside or "")
        relative = os.path.relpath(target, os.path.realpath(directory))
        if relative == os.curdir:
            return None
        return relative


def default_max_attempts(cores: int, memory_bytes: int) -> int:
    """Attempts that run at once on such a machine: two a core, one a GiB of memory."""
    return max(1, min(2 * cores, memory_bytes // 2**30))
