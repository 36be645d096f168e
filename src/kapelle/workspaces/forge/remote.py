"""The remote that a repository is pushed to, reached with the person's own credentials.

Only the URL is taken from the repository's configuration. git runs in a repository of Kapelle that
borrows the objects, with the person's own configuration: credential helpers, ssh, proxies and
rewritten URLs work, while hooks, helpers and commands of the repository are never read.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from kapelle.domain.errors import ForgeError, GitError, KapelleError, Unavailable
from kapelle.domain.text import make_title
from kapelle.runner.command import Command
from kapelle.settings.models import ForgeHost
from kapelle.settings.models import ForgeSettings as ForgeSettings
from kapelle.workspaces.forge.base import Forge, Login, Site, certificate_problem, login_hint
from kapelle.workspaces.forge.github import Gitea, GitHub
from kapelle.workspaces.forge.gitlab import GitLab
from kapelle.workspaces.git import HARDENING, Git, GitLocation
from kapelle.workspaces.refs import BRANCHES, make_branch_ref
from kapelle.workspaces.shadow import Objects

_PUSH_TIMEOUT_S = 900.0
_ASK_TIMEOUT_S = 60.0
_MAX_MESSAGE = 1000
_KINDS: dict[str, type[Forge]] = {"github": GitHub, "gitlab": GitLab, "gitea": Gitea}
_KNOWN = {"github.com": "github", "gitlab.com": "gitlab", "codeberg.org": "gitea"}
_APIS = {"github": "api/v3", "gitlab": "api/v4", "gitea": "api/v1"}
# For these hosts only: such a variable was not meant for another host.
_VARIABLES = {"github.com": "GITHUB_TOKEN", "gitlab.com": "GITLAB_TOKEN"}
_SCHEMES = {"https", "ssh", "http"}
_LOCAL = {"localhost", "127.0.0.1", "::1"}
_SHORT = re.compile(r"(?:[^@/:]+@)?[^@/:]+:[^:/][^:]*")
# Hardening that would disable a person's own credentials and transports.
_PERSONAL = ("credential.helper", "core.sshCommand", "core.askPass", "protocol.allow")
_NETWORK = (
    "protocol.allow=never", "protocol.https.allow=always", "protocol.http.allow=always",
    "protocol.ssh.allow=always", "push.gpgSign=false", "push.recurseSubmodules=no",
    "push.followTags=false", "push.pushOption=", "transfer.credentialsInUrl=allow",
)  # fmt: skip
# The person's variables for git that say how to reach a remote.
_OWN_VARIABLES = re.compile(r"GIT_(SSH|SSH_COMMAND|CONFIG_GLOBAL|CONFIG_SYSTEM|SSL_.*|HTTP_.*)")
_TOKEN = "KAPELLE_FORGE_TOKEN"
_HELPER = f"!f() {{ test $1 = get && echo username=oauth2 && echo password=${_TOKEN}; }}; f"
_NO_LOGIN = re.compile(
    r"Authentication failed|could not read (Username|Password)|Permission denied|access denied"
    r"|HTTP 40[13]|error: 40[13]|Host key verification failed|Permission to \S+ denied"
    r"|Too many authentication failures|marked as read.only|not allowed to|unauthorized",
    re.IGNORECASE,
)
_CERTIFICATE = re.compile(
    r"certificate verif|SSL certificate problem|certificate is not trusted|CAfile", re.IGNORECASE
)
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOT_THERE = re.compile(r"not (be )?found|does not exist|does not appear to be a git|error: 404")
_AWAY = re.compile(
    r"Could not resolve|Failed to connect|Couldn't connect|Connection (refused|timed out|reset)"
    r"|error: 5\d\d|timed out|unable to access .*: Recv failure|Empty reply|hung up"
    r"|Could not read from remote|unexpected disconnect|\bTLS\b|gnutls|SSL_ERROR_SYSCALL"
    r"|kex_exchange",
    re.IGNORECASE,
)
# The remote hangs up after a refusal as well, but a retry would be refused again.
_REFUSED = re.compile(r"(HTTP|error:) 4(?!08|29)\d\d|exceeds maximum")
_ADVICE = re.compile(r"Please make sure you have the correct access rights\s+and the .* exists\.")


@dataclass(frozen=True)
class Remote(GitLocation):
    """A remote of a repository, reached with the person's own configuration."""

    environ: Mapping[str, str] = field(default_factory=dict)
    name: str = "origin"
    url: str = ""
    scheme: str = ""
    # The host as named in the settings, and the project there.
    host: str = ""
    project: str = ""
    # What a person types to try again.
    retry: str = "kapelle pr"

    def at(self, url: str, settings: ForgeSettings | None = None) -> "Remote | None":
        """Return the remote with this URL; None if Kapelle cannot push there.

        It cannot for unknown schemes, and without TLS unless the settings of the host allow it.
        """
        try:
            parts = urlsplit(f"ssh://{url.replace(':', '/', 1)}" if _SHORT.fullmatch(url) else url)
            number = parts.port
        except ValueError:
            return None
        if url.startswith("-") or parts.scheme not in _SCHEMES or not parts.hostname:
            return None
        # The port of ssh is not the port of the API.
        if number and parts.scheme != "ssh":
            port = f":{number}"
        else:
            port = ""
        project = parts.path.strip("/").removesuffix(".git")
        host = f"{parts.hostname}{port}"
        if settings:
            host_settings = settings.hosts.get(host)
        else:
            host_settings = None
        if parts.scheme == "http" and not _is_plain_allowed(parts.hostname, host_settings):
            return None
        return replace(self, url=url, scheme=parts.scheme, host=host, project=project)

    @property
    def environment(self) -> dict[str, str]:
        """Return the person's variables, without those that would redirect git or ask."""
        own = {
            name: value
            for name, value in self.environ.items()
            if not name.startswith(("GIT_", "KAPELLE_")) or _OWN_VARIABLES.fullmatch(name)
        }
        quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "false", "SSH_ASKPASS": "false"}
        return {**own, **quiet, "LC_ALL": "C.UTF-8", "GIT_NO_LAZY_FETCH": "1"}

    @property
    def hardening(self) -> tuple[str, ...]:
        """Return the hardening, without what would disable the person's credentials."""
        return tuple(one for one in HARDENING if not one.startswith(_PERSONAL)) + _NETWORK

    async def forge(self, settings: ForgeSettings) -> Forge:
        """Return the forge of the remote, with the person's token for it.

        Raises ForgeError without a token, for an unknown forge, or if the token would be sent
        without TLS.
        """
        host = self.host
        host_settings = settings.hosts.get(host) or ForgeHost(kind=_KNOWN.get(host))
        if host_settings.kind is None:
            hint = f'Configure it in your config.toml: [forge.hosts."{host}"] with '
            hint += 'kind = "github", "gitlab" or "gitea" (Forgejo too).'
            raise ForgeError(f"{host} is not a known forge.", hint=hint)
        if self.scheme == "http":
            scheme = "http"
        else:
            scheme = "https"
        api = f"{scheme}://{host}/{_APIS[host_settings.kind]}"
        url = host_settings.url or ("https://api.github.com" if host == "github.com" else api)
        parts = urlsplit(url)
        if parts.scheme != "https" and not _is_plain_allowed(parts.hostname, host_settings):
            text = f"{url} must be reached over https: a token is sent to it."
            raise ForgeError(text, hint=_plain_hint(host))
        project = self.project
        if self.scheme != "ssh":
            # A path prefix of the whole server is not part of a project's name.
            project = project.removeprefix(parts.path.partition("/api/")[0].strip("/") + "/")
        login = await self._find_login(host_settings, parts.scheme)
        if parts.scheme == "https":
            ca_file = await self._find_authorities(url)
        else:
            ca_file = None
        shown_url = _without_login(self.url)
        site = Site(host, project, url, login, self.name, shown_url, ca_file, self.retry)
        return _KINDS[host_settings.kind](site)

    async def find_login(self, settings: ForgeSettings) -> Login:
        """Return the login for a push: the person's token, else git's own helpers."""
        if self.host in settings.hosts or self.host in _KNOWN:
            with suppress(ForgeError):
                return (await self.forge(settings)).login
        return Login("", is_from_helper=True)

    async def _find_authorities(self, url: str) -> str | None:
        """Return the file with certificate authorities that the person's git uses for a URL."""
        if path := self.environ.get("GIT_SSL_CAINFO"):
            return path
        arguments = ("config", "--type=path", "--get-urlmatch", "http.sslCAInfo", url)
        return (await self.run(*arguments, ok=(0, 1))).line or None

    async def _find_login(self, host_settings: ForgeHost, protocol: str) -> Login:
        """Return the person's token for the forge.

        It comes from the variable in the settings, from gh, from a usual variable, or from git's
        helpers.
        """
        host = self.host
        kind = host_settings.kind or ""
        if variable := host_settings.token_variable:
            if not (value := self.environ.get(variable)):
                raise ForgeError(
                    f"The daemon has no variable {variable} with a token for {host}.",
                    hint=f"`kapelle stop`, then `{self.retry}` again from a shell with {variable}.",
                )
            return Login(value, variable=variable)
        gh = shutil.which("gh", path=self.environ.get("PATH"))
        if kind == "github" and gh:
            argv = [gh, "auth", "token", "--hostname", host]
            command = Command(argv, self.environment, self.cwd, _ASK_TIMEOUT_S, max_output=10_000)
            result = await self.git.execute(command)
            if result.code == 0 and (token := result.stdout.decode().strip()):
                return Login(token)
        usual_variable = _VARIABLES.get(host, "")
        if value := self.environ.get(usual_variable):
            return Login(value, variable=usual_variable)
        request = f"protocol={protocol}\nhost={host}\npath={self.project}\n\n"
        answer = await self.run("credential", "fill", stdin=request.encode(), ok=(0, 1, 128))
        fields = dict(line.split("=", 1) for line in answer.line.splitlines() if "=" in line)
        if password := fields.get("password"):
            return Login(password, fields.get("username", ""), is_from_helper=True)
        raise ForgeError(f"There is no token for {host}.", hint=login_hint(kind, host, self.retry))

    async def branches(self, *names: str, login: Login) -> dict[str, str]:
        """Return the commits that these branches have at the remote now."""
        refs = [f"{BRANCHES}{name}" for name in names]
        output = await self._run_remote(login, "ls-remote", "--", self.url, *refs)
        pairs = (line.split("\t") for line in output.splitlines())
        return {ref.removeprefix(BRANCHES): commit for commit, ref in pairs if ref in refs}

    async def push(
        self,
        objects: Objects,
        commit: str,
        login: Login,
        *,
        branch: str,
        ours: Sequence[str],
        remote_commit: str | None,
        worktree: str,
    ) -> None:
        """Push a commit to a branch.

        The commit on the branch is replaced only if Kapelle pushed it or the new one contains it,
        and only if the branch has not moved meanwhile. Raises ForgeError otherwise.
        """
        if make_branch_ref(branch) is None:
            raise ForgeError(f"{branch!r} is not a valid branch name.")
        if (
            remote_commit is not None
            and remote_commit not in ours
            and not await contains(objects, commit, remote_commit)
        ):
            text = f"{branch} at {self.host} holds {remote_commit[:12]}, which Kapelle did not push"
            pull = f"git -C {quote(worktree)} pull --no-rebase {self.name} {branch}"
            hint = f"`{pull}` merges it, then `{self.retry}` again."
            raise ForgeError(f"{text}; it is not overwritten.", hint=hint)
        # The server compares and swaps: a commit pushed meanwhile is never lost.
        lease = f"--force-with-lease={BRANCHES}{branch}:{remote_commit or ''}"
        what = ("--porcelain", "--no-verify", lease, "--", self.url, f"{commit}:{BRANCHES}{branch}")
        try:
            await self._run_remote(login, "push", *what, variables=objects.variables)
        except ForgeError:
            await self._require_room(branch, login)
            raise

    async def _require_room(self, branch: str, login: Login) -> None:
        """Raise ForgeError if a branch at the remote blocks the name of this one.

        A branch `a` blocks `a/b`.
        """
        parts = branch.split("/")
        above = ["/".join(parts[:length]) for length in range(1, len(parts))]
        blocking_branches: dict[str, str] = {}
        with suppress(KapelleError):
            if above:
                blocking_branches = await self.branches(*above, login=login)
            else:
                blocking_branches = {}
        for name in blocking_branches:
            hint = f"Rename it there, or `git push {self.name} --delete {name}`."
            text = f"The branch {name} at {self.host} blocks the name {branch}."
            raise ForgeError(text, hint=f"{hint} Then `{self.retry}` again.")

    async def _run_remote(
        self, login: Login, *args: str, variables: Mapping[str, str] | None = None
    ) -> str:
        """Run a git command against the remote and return its output.

        Raises an error that says what a person can do about the failure.
        """
        settings: tuple[str, ...] = ()
        environment = {**self.variables, **(variables or {})}
        if self.scheme != "ssh" and not login.is_from_helper:
            # Replaces the person's helpers, because git would have each of them store the token.
            helper = f"credential.{self.scheme}://{self.host}.helper={_HELPER}"
            settings = ("credential.helper=", helper)
            environment[_TOKEN] = login.password
        place = replace(self, variables=environment, settings=settings)
        try:
            output = await place.run(*args, ok=(0, 1, 128), timeout_s=_PUSH_TIMEOUT_S)
        except GitError as error:
            raise self._make_error(error.message, login) from None
        if output.code:
            lines = output.line.splitlines()
        else:
            lines = []
        refusals = [one for one in lines if one.startswith("!") and "[remote failure]" not in one]
        if output.code and not refusals:
            raise self._make_error(output.stderr, login)
        if refusals:
            # Each line: a flag, the names of the references, and the result.
            reasons = "; ".join(one.split("\t")[-1] for one in refusals)
            text = f"{self.host} refused the push: {_without_login(reasons)}."
            if words := _remote_words(output.stderr):
                raise ForgeError(
                    f"{text} Its message: {words}", hint=f"Run `{self.retry}` again after."
                )
            hint = f"`git ls-remote {_without_login(self.url)}` shows what is there."
            raise ForgeError(text, hint=hint)
        return output.line

    def _make_error(self, stderr: str, login: Login) -> KapelleError:
        """Return the error for git's messages; the last line of ssh is not informative."""
        host = self.host
        message = _without_login(" ".join(_ADVICE.sub("", stderr).split()))[-_MAX_MESSAGE:]
        if _CERTIFICATE.search(message):
            return certificate_problem(host, message, self.retry)
        if _NO_LOGIN.search(message):
            works = f"`git ls-remote {_without_login(self.url)}` works without a prompt"
            hint = f"Make sure that {works}, then run `{self.retry}` again."
            if login.variable:
                hint = login_hint("", host, self.retry, login.variable)
            return ForgeError(f"{host} denied access: {message}.", hint=hint)
        if _NOT_THERE.search(message):
            hint = f"`git remote set-url {self.name} URL` sets its new URL."
            return ForgeError(f"The remote {self.name} does not exist: {message}.", hint=hint)
        if _AWAY.search(message) and not _REFUSED.search(message):
            return Unavailable(f"{host} cannot be reached: {message}. Kapelle retries it.")
        return ForgeError(message)


async def contains(objects: Objects, commit: str, older: str) -> bool:
    """Tell whether a commit contains an older one; False if either is not here."""
    if commit == older:
        return True
    for one in (commit, older):
        result = await objects.run("cat-file", "-e", f"{one}^{{commit}}", ok=(0, 1, 128))
        if result.code != 0:
            return False
    return await objects.is_ancestor(older, commit)


def _remote_words(stderr: str) -> str:
    """Return the server's own message about a push, such as a hook's, in one line."""
    lines = (_COLOR.sub("", line) for line in stderr.splitlines())
    words = [line.removeprefix("remote:").strip() for line in lines if line.startswith("remote:")]
    return make_title(" ".join(words), _MAX_MESSAGE)


def _is_plain_allowed(hostname: str | None, host_settings: ForgeHost | None) -> bool:
    """Tell whether a host may be reached without TLS: this machine, or by its settings."""
    return hostname in _LOCAL or (host_settings is not None and host_settings.insecure_http)


def _plain_hint(host: str) -> str:
    return (
        f'In a trusted network, insecure_http = true of [forge.hosts."{host}"] in config.toml '
        "allows http."
    )


def _without_login(text: str) -> str:
    return re.sub(r"(\w+://)[^/\s]*@", r"\1", text).strip().rstrip(".")


async def find_upstream(git: Git, common_dir: Path, branch: str) -> tuple[str | None, str]:
    """Return the remote of a branch and the branch's name there.

    Both come from the repository's own configuration; without an upstream, None and the branch's
    name.
    """
    own = GitLocation(git, common_dir, {"GIT_DIR": str(common_dir)})
    file = ("--file", str(common_dir / "config"), "--no-includes")
    remote = await own.run("config", *file, "--get", f"branch.{branch}.remote", ok=(0, 1))
    merge = await own.run("config", *file, "--get", f"branch.{branch}.merge", ok=(0, 1))
    if remote.code == 0:
        name = remote.line
    else:
        name = None
    there = merge.line if merge.code == 0 else ""
    if name is None or not there.startswith(BRANCHES):
        return name, branch
    return name, there.removeprefix(BRANCHES)


async def read_branch(git: Git, common_dir: Path, branch: str) -> str:
    """Return the commit of a branch of the repository."""
    own = GitLocation(git, common_dir, {"GIT_DIR": str(common_dir)})
    return (await own.run("rev-parse", "--verify", f"{BRANCHES}{branch}^{{commit}}")).line


async def find_remote(
    git: Git, common_dir: Path, shadow: Path, settings: ForgeSettings, environ: Mapping[str, str]
) -> Remote:
    """Return the configured remote of a repository.

    Its URL is rewritten by the person's own git configuration. Raises ForgeError if there is none
    that Kapelle can push to.
    """
    name = settings.remote
    own = GitLocation(git, common_dir, {"GIT_DIR": str(common_dir)})
    file = ("--file", str(common_dir / "config"), "--no-includes")
    pattern = rf"^remote\.{re.escape(name)}\.(url|pushurl)$"
    output = await own.run("config", *file, "-z", "--get-regexp", pattern, ok=(0, 1))
    # The first value of each counts; pushurl has precedence.
    values = [one.decode("utf-8", "replace").partition("\n") for one in output.fields]
    values.sort(key=lambda one: not one[0].endswith(".pushurl"))
    url = next((value for _, _, value in values if value), None)
    if not url:
        hint = f"`git remote add {name} URL`, or `kapelle config set forge.remote NAME`."
        raise ForgeError(f"The repository has no remote {name}.", hint=hint)
    remote = Remote(git, shadow, {"GIT_DIR": str(shadow)}, environ=environ, name=name)
    if not url.startswith("-"):
        url = (await remote.run("ls-remote", "--get-url", url)).line
    if (located := remote.at(url, settings)) is None:
        text = f"The remote {name} ({_without_login(url)}) is not at GitHub, GitLab or Gitea."
        hint = f"Kapelle pushes over https or ssh: git remote set-url {name} URL"
        if url.startswith("http://"):
            hint += f". {_plain_hint(urlsplit(url).netloc.rpartition('@')[2])}"
        raise ForgeError(text, hint=hint)
    return located
