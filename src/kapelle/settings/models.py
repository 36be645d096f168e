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

# The settings that a repository may have; all others are a person's own.
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
    """Maximum number of concurrent attempts; default: chosen from cores and memory."""
    max_runs: Annotated[int, Field(ge=1)] = 100
    """Maximum number of concurrent runs; nested runs do not count."""
    min_free_memory_mb: Count = 256
    """No attempt starts while less memory than this is free."""
    min_free_disk_mb: Count = 500
    """No attempt starts while less disk than this is free."""
    max_load_per_core: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 8.0
    """No attempt starts above this load average per core; 0 ignores the load."""


class TasksSettings(SettingsSection):
    timeout_s: Seconds | None = 86_400
    """Maximum seconds of an attempt, unless the task sets its own timeout."""
    max_turns: Turns | None = 1000
    """Maximum number of turns per attempt, for agents that do not stop by themselves."""
    budget_usd: Money | None = None
    """Maximum cost in USD of all attempts of a task; default: no limit."""
    prove: Prove = "once"
    """When a passed check is repeated on garbled files: never, once, always or required."""
    grace_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 10
    """Seconds between asking a process to end and killing it."""


class ChildrenSettings(SettingsSection):
    max_depth: Annotated[int, Field(ge=1, le=10)] = 5
    """Maximum depth of child tasks below a task of a person or a pattern."""
    max_live: Annotated[int, Field(ge=1, le=1000)] = 20
    """Maximum number of open tasks below a task; a run without tasks counts as one."""
    budget_usd: Money | None = None
    """Maximum cost in USD of a task and all its child tasks, unless it has its own budget."""


class DockerSettings(SettingsSection):
    engine: Annotated[Text, Field(min_length=1)] = "docker"
    """Container engine: docker, podman, or a path."""
    image: Text | None = None
    """Image for the container of each worktree, which runs set-up, checks and tests."""
    service: Text | None = None
    """Service of a compose file to use instead of an image, such as laravel.test."""
    compose: list[Text] = []
    """Compose files; default: those that the engine finds in the worktree."""
    workdir: Annotated[Text, Field(pattern="^/")] | None = None
    """Path of the worktree in the container; default for an image: /workspace."""
    options: list[Text] = []
    """Additional arguments of `run` for an image, such as --network=host."""

    @property
    def is_configured(self) -> bool:
        """Tell whether commands run in a container."""
        return bool(self.image or self.service)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.image and self.service:
            raise ValueError("image and service exclude each other")
        for name in ("engine", "image", "service"):
            if (getattr(self, name) or "").startswith("-"):
                raise ValueError(f"{name} begins with a dash, so it would be read as an option")
        return self


class WorkspaceSettings(SettingsSection):
    default: Literal["auto", "worktree", "in_place"] = "auto"
    """worktree, in_place, or auto: a worktree inside a git repository, otherwise in place."""
    copy_: list[Text] = Field([], alias="copy")
    """Untracked files or directories copied into a new worktree."""
    link: list[Text] = []
    """Untracked files or directories linked into a new worktree."""
    share: list[Text] | None = None
    """Ignored directories of the checkout that confined processes see, each with changes of its
    own; default without a setup command: .venv, venv, node_modules, vendor and target."""
    checkout_paths: Literal["replace", "keep"] = "replace"
    """Paths from a worktree into your checkout: replace them by its own, or keep them."""
    setup: Text | None = None
    """Shell command to run in a new worktree before the agent."""
    setup_timeout_s: Seconds = 600
    """Maximum seconds of the setup command."""
    docker: DockerSettings = DockerSettings()


class ConfineSettings(SettingsSection):
    level: Literal["auto", "namespaces", "bubblewrap", "landlock", "off"] = "off"
    """Confinement of agents, checks and set-up commands; auto: the strongest that works here."""
    network: Literal["open", "off"] = "open"
    """Network of confined processes; off leaves the loopback device of their own."""
    write: list[Text] = []
    """Additional paths that confined processes may write."""
    read: list[Text] = []
    """Paths that are hidden by default, but that confined processes may read."""
    hide: list[Text] = []
    """Additional paths to hide from confined processes."""
    allow: list[Literal["docker", "gh", "aws", "kube", "gpg"]] = []
    """Presets of what confined processes may reach besides; see docs/sandbox.md."""


class BrowserSettings(SettingsSection):
    enabled: bool = False
    """Give a browser to agents that verify work in patterns, if they support MCP."""
    package: Text = "chrome-devtools-mcp@latest"
    """npm package of the MCP server that controls the browser."""
    args: list[Text] = [
        "--headless", "--isolated", "--no-performance-crux", "--no-usage-statistics",
    ]  # fmt: skip
    """Arguments of that MCP server; as root, Chrome also needs --chromeArg=--no-sandbox."""
    server: ServerName = "chrome-devtools"
    """Name of the MCP server for agents."""
    serve: Text | None = None
    """Shell command that serves the application on 127.0.0.1, at the port in PORT."""
    ready_s: Seconds = 120
    """Maximum seconds until the application responds."""


class EnvironmentSettings(SettingsSection):
    pass_: list[VariablePattern] = Field([], alias="pass")
    """Additional variables to pass to agents; NAME or PREFIX*."""
    set: dict[EnvName, Text] = {}
    """Variables to set for every agent."""


class DifficultySettings(SettingsSection):
    classify: bool = False
    """Select the model of a task without one by its difficulty (agents.NAME.models)."""
    agent: ConfiguredAgentName | None = None
    """Agent that classifies the difficulty; default: the task's agent."""


class RolesSettings(SettingsSection):
    judge: ConfiguredAgentName | None = None
    """Agent that analyzes failed attempts (retry policy analyze); default: the task's agent."""


class HealthSettings(SettingsSection):
    stall_s: Seconds = 900
    """Seconds without output and CPU time after which an agent counts as stalled."""
    on_stall: Literal["nudge", "end", "warn"] = "nudge"
    """Stalled agents: nudge (restart once and continue), end (as a failure), or warn only."""
    long_s: Seconds = 7200
    """Seconds after which a running attempt causes a warning."""
    answer_s: Seconds | None = None
    """Seconds after which a question is answered by its default; default: never."""
    warn_at: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.8
    """Share of a limit (turns, budget, time) at which a warning is given."""


class FailuresSettings(SettingsSection):
    environment: list[Text] = []
    """Output texts that mark a failure as one of the environment; * matches within a line."""
    patience_s: Seconds = 120
    """Seconds for which an agent may retry a refusing provider before Kapelle takes over."""
    breaker: Annotated[int, Field(ge=1)] = 3
    """Consecutive failures of the environment after which an agent is paused."""
    breaker_s: Seconds = 300
    """Duration of that pause in seconds."""


class Price(SettingsSection):
    """Prices in USD per million tokens."""

    input: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Price of input tokens."""
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Price of output tokens."""
    cached: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Input tokens read from a cache; default: the price of input tokens."""


class ReadJson(SettingsSection):
    text: Text | None = None
    """Path of the agent's text, such as message.content.0.text."""
    result: Text | None = None
    """Path of the final answer."""
    session: Text | None = None
    """Path of the session id, for {session} in the command."""
    error: Text | None = None
    """Path of an error message; if present, the attempt failed."""
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
    """Adapter: "command" for a template, or the name of another agent."""
    command: list[Text] = []
    """Template with {prompt} {system} {combined} {model} {workspace} {prompt_file} {session}."""
    model: Name | None = None
    """Default model."""
    env: dict[EnvName, Text] = {}
    """Variables to set for this agent."""
    extra_args: list[Text] = []
    """Arguments to append to the command."""
    playbook: Text | None = None
    """Playbook file of a rehearsal agent."""
    output: Literal["text", "events", "json"] = "text"
    """Output format of a command template: text, Kapelle's events, or json (see read)."""
    read: ReadJson = ReadJson()
    """Paths of values in the JSON output of a command template."""
    program: Text | None = None
    """Path of the agent's program, if it is not on PATH."""
    base_url: HttpUrl | None = None
    """URL of the provider's API, for a proxy or your own server."""
    models: dict[Literal["simple", "medium", "complex"], Name] = {}
    """Model by difficulty, for tasks without a model when difficulty.classify is on."""
    permissions: Literal["allow", "deny", "ask"] = "allow"
    """Answer to permission requests of an acp agent; ask forwards them to you."""
    mode: Name | None = None
    """Session mode of an acp agent."""
    mcp: dict[ServerName, McpServer] = {}
    """MCP servers of this agent."""


class ServerSettings(SettingsSection):
    host: Name = "127.0.0.1"
    """Address on which the API listens."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port to listen on; 0 selects a free port."""
    hosts: list[Name] = []
    """Additional host names accepted by the API, for `kapelle serve --expose`."""


class LogSettings(SettingsSection):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum severity of lines in daemon.log."""
    sentry_dsn: HttpUrl | None = None
    """Sentry DSN for internal errors (needs `kapelle[sentry]`); default: SENTRY_DSN."""


class BackupSettings(SettingsSection):
    every_s: Seconds = 3600
    """Seconds between backups of the database."""
    hours: Count = 24
    """Number of newest backups to keep, at least one."""
    days: Count = 7
    """Number of days of which to keep the last backup."""
    weeks: Count = 4
    """Number of weeks of which to keep the last backup."""

    @property
    def grades(self) -> tuple[int, int, int]:
        """Return the numbers of hours, days and weeks."""
        return self.hours, self.days, self.weeks


class UpkeepSettings(SettingsSection):
    archive_days: Count = 7
    """Days after which merged and cancelled work is archived; 0 disables this."""
    archive_failed_days: Count = 30
    """Days after which failed work is archived; 0 disables this."""
    output_days: Count = 90
    """Retention of the output of ended attempts in days; 0 is unlimited."""
    retention_days: Count = 0
    """Retention of ended tasks, runs, schedules and events in days; 0 is unlimited."""


class KnowledgeSettings(SettingsSection):
    prompt_tokens: Count = 1000
    """Maximum tokens of learnings in a prompt, under ## Memory; 0 leaves them out."""
    agent: ConfiguredAgentName | None = None
    """Agent that reviews reported learnings; a cheap one suffices; default: a simple rule."""
    review_days: Count = 30
    """Days after which reported learnings are reviewed again; 0 disables this."""


class GitSettings(SettingsSection):
    author_name: Name = "Kapelle"
    """Author of Kapelle's commits."""
    author_email: Name = "kapelle@localhost"
    """Email address of that author."""
    sign: Literal["auto", "never"] = "auto"
    """Sign merges as configured in your git configuration (commit.gpgsign), or never."""
    filters: list[FilterName] = []
    """Filters of .gitattributes that Kapelle's git may run, such as lfs."""


class ForgeHost(SettingsSection):
    kind: Literal["github", "gitlab", "gitea"] | None = None
    """Type of the forge; for Forgejo, gitea."""
    url: HttpUrl | None = None
    """URL of the API; default: the usual path on that host."""
    token_variable: EnvName | None = None
    """Environment variable with the token; default: gh or git's credential helpers."""
    insecure_http: bool = False
    """Allow token and code to be sent without TLS, in a trusted network."""


class ForgeSettings(SettingsSection):
    remote: Name = "origin"
    """Remote to push to."""
    hosts: dict[Name, ForgeHost] = {}
    """Forges other than github.com, gitlab.com and codeberg.org, by host name."""
    refresh_s: Seconds = 300
    """Seconds between refreshes of an open pull request."""
    poll_s: Seconds = 20
    """Seconds between polls of CI while a check waits for it."""


class KeyedSettings(SettingsSection):
    url: HttpUrl | None = None
    """URL; default: the service's public address."""
    key_variable: EnvName | None = None
    """Environment variable with the key."""
    key_file: Text | None = None
    """File with the key, for a daemon that the system starts."""


class NotifySettings(KeyedSettings):
    command: list[Text] = []
    """Program and arguments that receive notifications as JSON on standard input."""
    on: list[Literal["question", "failed", "finished", "budget"]] = [
        "question", "failed", "finished", "budget"
    ]  # fmt: skip
    """Events to notify about: questions, failures, finished runs, spent budgets."""


class Integration(KeyedSettings):
    name: Name | None = None
    """Index pattern of logs (default: *), or OWNER/REPOSITORY of ci."""


class IntegrationsSettings(SettingsSection):
    linear: Integration = Integration()
    """Issues in Linear, by GraphQL."""
    logs: Integration = Integration()
    """Logs in OpenSearch or Elasticsearch."""
    database: Integration = Integration()
    """A read-only PostgreSQL database; the key is its URL."""
    ci: Integration = Integration()
    """Failed jobs in GitHub Actions."""


class Settings(SettingsSection):
    _search_path: str | None = PrivateAttr(None)

    @property
    def search_path(self) -> str | None:
        """Return the PATH for programs of agents; None is the PATH of this process."""
        return self._search_path

    def on_path(self, search_path: str | None) -> "Settings":
        """Return these settings with the PATH of the caller, if it is known."""
        if not search_path:
            return self
        copy = self.model_copy()
        copy._search_path = search_path
        return copy

    default_agent: ConfiguredAgentName | None = None
    """Default agent."""
    fallback_agents: list[ConfiguredAgentName] = []
    """Agents that take over, in this order, when a task's agent is limited or unavailable."""
    project: Name | None = None
    """Default project."""
    checks: list[CheckSpec] = []
    """Default checks."""
    database_url: Text | None = None
    """URL of a PostgreSQL database, only in your own config.toml; default: SQLite."""
    limits: LimitsSettings = LimitsSettings()
    """Limits on starting attempts."""
    tasks: TasksSettings = TasksSettings()
    """Defaults of tasks."""
    children: ChildrenSettings = ChildrenSettings()
    """Limits on tasks that agents start."""
    workspace: WorkspaceSettings = WorkspaceSettings()
    """Workspaces of tasks."""
    confine: ConfineSettings = ConfineSettings()
    """What agents, checks and set-up commands may reach."""
    browser: BrowserSettings = BrowserSettings()
    """Browser for agents."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """Environment variables of agents."""
    agents: dict[ConfiguredAgentName, AgentSettings] = {}
    """Agents by name."""
    mcp: dict[ServerName, McpServer] = {}
    """MCP servers of every agent that supports MCP."""
    prices: dict[Name, Price] = {}
    """Prices by model; they override the built-in table."""
    difficulty: DifficultySettings = DifficultySettings()
    """Selection of a model by difficulty."""
    roles: RolesSettings = RolesSettings()
    """Agents that assist other agents."""
    health: HealthSettings = HealthSettings()
    """Warnings, and handling of stalled agents."""
    failures: FailuresSettings = FailuresSettings()
    """Classification and handling of failures."""
    server: ServerSettings = ServerSettings()
    """The API over TCP."""
    log: LogSettings = LogSettings()
    """The daemon's log."""
    backup: BackupSettings = BackupSettings()
    """Backups of the database."""
    upkeep: UpkeepSettings = UpkeepSettings()
    """Retention of ended work."""
    knowledge: KnowledgeSettings = KnowledgeSettings()
    """Learnings from earlier work."""
    git: GitSettings = GitSettings()
    """Commits by Kapelle."""
    forge: ForgeSettings = ForgeSettings()
    """Forges for pull requests."""
    notify: NotifySettings = NotifySettings()
    """Notifications."""
    integrations: IntegrationsSettings = IntegrationsSettings()
    """External services that agents may query."""

    # The directory that contains the .kapelle with a setting, by the setting's dotted key.
    _places: dict[str, Path] = PrivateAttr(default_factory=dict)

    def with_places(self, places: dict[str, Path]) -> Self:
        """Return these settings with the directories of those from a repository."""
        copy = self.model_copy()
        copy._places = places
        return copy

    def place_of(self, key: str) -> Path | None:
        """Return the directory that contains the .kapelle with this setting, None if none does."""
        return self._places.get(key)

    def directory_of(self, key: str, directory: str, inside: str | None = None) -> str | None:
        """Return where the command of a setting runs, relative to the directory of the work.

        A command of a repository runs in the directory that contains its .kapelle, or in a
        directory inside of it. None is the directory of the work, where a person's own commands
        run.
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
    """Return how many attempts run at once: two per core, one per GiB of memory."""
    return max(1, min(2 * cores, memory_bytes // 2**30))
