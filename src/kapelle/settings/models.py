"""Every setting, its type and its default; the docstrings make docs/configuration.md."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from kapelle.domain.specs import CheckSpec, EnvName, Name, Seconds, Text

AgentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)]
Passed = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$", max_length=200)]
Count = Annotated[int, Field(ge=0)]

REPOSITORY_KEYS = frozenset(
    {"default_agent", "project", "agents", "checks", "workspace", "tasks", "environment"}
)


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_by_name=True
    )


class Limits(Section):
    max_attempts: Annotated[int, Field(ge=1)] | None = None
    """Attempts that run at once; when not set, chosen from cores and memory."""
    min_free_memory_mb: Count = 256
    """No attempt starts while less memory than this is free."""
    min_free_disk_mb: Count = 500
    """No attempt starts while less disk than this is free."""
    max_load_per_core: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 8.0
    """No attempt starts above this load average per core; 0 ignores the load."""


class Tasks(Section):
    timeout_s: Seconds | None = None
    """Seconds an attempt may run; when not set, as long as it likes."""
    grace_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 10
    """Seconds between asking a process to end and killing it."""
    retention_days: Count = 0
    """Days an ended task is kept; 0 keeps it for ever."""


class WorkspaceSettings(Section):
    default: Literal["auto", "worktree", "in_place"] = "auto"
    """worktree, in_place, or auto: a worktree inside a git repository, else in place."""
    copy_: list[Text] = Field([], alias="copy")
    """Untracked files or directories copied into a new worktree."""
    link: list[Text] = []
    """Untracked files or directories linked into a new worktree."""
    setup: Text | None = None
    """Shell command run in a new worktree before the agent."""
    setup_timeout_s: Seconds = 600
    """Seconds the setup command may take."""


class Environment(Section):
    pass_: list[Passed] = Field([], alias="pass")
    """Variables passed on to agents besides the built-in ones; NAME or PREFIX*."""
    set: dict[EnvName, Text] = {}
    """Variables set for every agent."""


class AgentSettings(Section):
    type: AgentName | None = None
    """The adapter: "command" for a template, or the name of another agent."""
    command: list[Text] = []
    """Command template with {prompt} {system} {combined} {model} {workspace} {prompt_file}."""
    model: Name | None = None
    """Model used when a task names none."""
    env: dict[EnvName, Text] = {}
    """Variables set for this agent."""
    extra_args: list[Text] = []
    """Arguments added at the end of the command."""
    playbook: Text | None = None
    """Playbook file of a rehearsal agent."""
    output: Literal["text", "events"] = "text"
    """What a command template prints: text, or events (one JSON object per line)."""


class Server(Section):
    host: Name = "127.0.0.1"
    """Address the web page and the API listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port to listen on; 0 takes any free one."""
    hosts: list[Name] = []
    """Further host names under which the API may be called, for `kapelle serve --expose`."""


class Backup(Section):
    every_s: Seconds = 3600
    """Seconds between backups of the database."""
    keep: Count = 5
    """Backups kept, at least one."""


class Git(Section):
    author_name: Name = "Kapelle"
    """Author of commits that Kapelle makes."""
    author_email: Name = "kapelle@localhost"
    """E-mail address of that author."""


class Settings(Section):
    default_agent: AgentName | None = None
    """Agent of a task that names none."""
    project: Name | None = None
    """Project of a task that names none."""
    checks: list[CheckSpec] = []
    """Checks of a task that names none."""
    database_url: Text | None = None
    """PostgreSQL address, only in your own config.toml; when not set, SQLite."""
    limits: Limits = Limits()
    """When attempts may start."""
    tasks: Tasks = Tasks()
    """How attempts are run and kept."""
    workspace: WorkspaceSettings = WorkspaceSettings()
    """Where tasks work."""
    environment: Environment = Environment()
    """What agents see of your environment."""
    agents: dict[AgentName, AgentSettings] = {}
    """Agents by name."""
    server: Server = Server()
    """The web page and the API."""
    backup: Backup = Backup()
    """Copies of the database."""
    git: Git = Git()
    """Commits that Kapelle makes."""


def default_max_attempts(cores: int, memory_bytes: int) -> int:
    """Attempts that run at once on such a machine: two a core, one a GiB of memory."""
    return max(1, min(2 * cores, memory_bytes // 2**30))
