"""Where a repository is pushed to, with a person's own credentials and nothing of its own.

The address is all that is taken from the repository's configuration. Git runs in a repository of
ours that borrows the objects, with the person's own configuration: credential helpers, ssh, proxies
and rewritten addresses work, while hooks, helpers and commands of the repository are never read.
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
from kapelle.domain.text import titled
from kapelle.runner.command import Command
from kapelle.settings.models import ForgeHost
from kapelle.settings.models import ForgeSettings as ForgeSettings
from kapelle.workspaces.forge.base import Forge, Login, Site, certificate_problem, login_hint
from kapelle.workspaces.forge.github import Gitea, GitHub
from kapelle.workspaces.forge.gitlab import GitLab
from kapelle.workspaces.git import HARDENING, Git, GitLocation
from kapelle.workspaces.refs import BRANCHES, branch_ref
from kapelle.workspaces.shadow import Objects

_PUSH_TIMEOUT_S = 900.0
_ASK_TIMEOUT_S = 60.0
_MOST_SAID = 1000
_KINDS: dict[str, type[Forge]] = {"github": GitHub, "gitlab": GitLab, "gitea": Gitea}
_KNOWN = {"github.com": "github", "gitlab.com": "gitlab", "codeberg.org": "gitea"}
_APIS = {"github": "api/v3", "gitlab": "api/v4", "gitea": "api/v1"}
# Of these hosts alone: whoever has such a variable did not mean another one.
_VARIABLES = {"github.com": "GITHUB_TOKEN", "gitlab.com": "GITLAB_TOKEN"}
_SCHEMES = {"https", "ssh", "http"}
_LOCAL = {"localhost", "127.0.0.1", "::1"}
_SHORT = re.compile(r"(?:[^@/:]+@)?[^@/:]+:[^:/][^:]*")
# What of hardening would keep a person's own credentials and transports away.
_PERSONAL = ("credential.helper", "core.sshCommand", "core.askPass", "protocol.allow")
_NETWORK = (
    "protocol.allow=never", "protocol.https.allow=always", "protocol.http.allow=always",
    "protocol.ssh.allow=always", "push.gpgSign=false", "push.recurseSubmodules=no",
    "push.followTags=false", "push.pushOption=", "transfer.credentialsInUrl=allow",
)  # fmt: skip
# Of a person's variables for git, those that say how to reach others.
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
# After it the remote hangs up as well, but the same would be refused again.
_REFUSED = re.compile(r"(HTTP|error:) 4(?!08|29)\d\d|exceeds maximum")
_ADVICE = re.compile(r"Please make sure you have the correct access rights\s+and the .* exists\.")


@dataclass(frozen=True)
class Remote(GitLocation):
    """A remote of a repository, reached as its person would."""

    environ: Mapping[str, str] = field(default_factory=dict)
    name: str = "origin"
    url: str = ""
    scheme: str = ""
    # As settings name it, and the project there.
    host: str = ""
    project: str = ""

    def at(self, url: str, settings: ForgeSettings | None = None) -> "Remote | None":
        """The remote with this address; None if that is no forge's, or without TLS where the
        settings of its host do not allow that."""
        try:
            parts = urlsplit(f"ssh://{url.replace(':', '/', 1)}" if _SHORT.fullmatch(url) else url)
            number = parts.port
        except ValueError:
            return None
        if url.startswith("-") or parts.scheme not in _SCHEMES or not parts.hostname:
            return None
        # The port of ssh says nothing about where the API is.
        if number and parts.scheme != "ssh":
            port = f":{number}"
        else:
            port = ""
        project = parts.path.strip("/").removesuffix(".git")
        host = f"{parts.hostname}{port}"
        if settings:
            known = settings.hosts.get(host)
        else:
            known = None
        if parts.scheme == "http" and not _is_plain_allowed(parts.hostname, known):
            return None
        return replace(self, url=url, scheme=parts.scheme, host=host, project=project)

    @property
    def environment(self) -> dict[str, str]:
        own = {
            name: value
            for name, value in self.environ.items()
            if not name.startswith(("GIT_", "KAPELLE_")) or _OWN_VARIABLES.fullmatch(name)
        }
        quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "false", "SSH_ASKPASS": "false"}
        return {**own, **quiet, "LC_ALL": "C.UTF-8", "GIT_NO_LAZY_FETCH": "1"}

    @property
    def hardening(self) -> tuple[str, ...]:
        return tuple(one for one in HARDENING if not one.startswith(_PERSONAL)) + _NETWORK

    async def forge(self, settings: ForgeSettings) -> Forge:
        """The forge that the remote is at, with the person's token for it."""
        host = self.host
        known = settings.hosts.get(host) or ForgeHost(kind=_KNOWN.get(host))
        if known.kind is None:
            hint = f'Say what it is in your config.toml: [forge.hosts."{host}"] with '
            hint += 'kind = "github", "gitlab" or "gitea" (Forgejo too).'
            raise ForgeError(f"{host} is no forge that Kapelle knows.", hint=hint)
        if self.scheme == "http":
            scheme = "http"
        else:
            scheme = "https"
        api = f"{scheme}://{host}/{_APIS[known.kind]}"
        url = known.url or ("https://api.github.com" if host == "github.com" else api)
        parts = urlsplit(url)
        if parts.scheme != "https" and not _is_plain_allowed(parts.hostname, known):
            text = f"{url} must be reached over https: a token is sent to it."
            raise ForgeError(text, hint=_plain_hint(host))
        project = self.project
        if self.scheme != "ssh":
            # What the whole server is below is no part of a project's name.
            project = project.removeprefix(parts.path.partition("/api/")[0].strip("/") + "/")
        login = await self._find_login(known, parts.scheme)
        if parts.scheme == "https":
            ca_file = await self._find_authorities(url)
        else:
            ca_file = None
        shown = _without_login(self.url)
        return _KINDS[known.kind](Site(host, project, url, login, self.name, shown, ca_file))

    async def find_login(self, settings: ForgeSettings) -> Login:
        """Return what the remote is pushed to with: the person's token for a known forge, else
        what git's own helpers and ssh have."""
        if self.host in settings.hosts or self.host in _KNOWN:
            with suppress(ForgeError):
                return (await self.forge(settings)).login
        return Login("", is_from_helper=True)

    async def _find_authorities(self, url: str) -> str | None:
        """Return the file of authorities that the person's git believes for an address."""
        if named := self.environ.get("GIT_SSL_CAINFO"):
            return named
        asking = ("config", "--type=path", "--get-urlmatch", "http.sslCAInfo", url)
        return (await self.run(*asking, ok=(0, 1))).line or None

    async def _find_login(self, known: ForgeHost, protocol: str) -> Login:
        """Return the person's token for the forge: named in the settings, of gh, or what git's
        helpers have."""
        host = self.host
        kind = known.kind or ""
        if named := known.token_variable:
            if not (value := self.environ.get(named)):
                raise ForgeError(
                    f"The daemon has no variable {named} with the token for {host}.",
                    hint=f"`kapelle stop`, then `kapelle pr` again from a shell that has {named}.",
                )
            return Login(value, variable=named)
        gh = shutil.which("gh", path=self.environ.get("PATH"))
        if kind == "github" and gh:
            argv = [gh, "auth", "token", "--hostname", host]
            asked = Command(argv, self.environment, self.cwd, _ASK_TIMEOUT_S, max_output=10_000)
            done = await self.git.execute(asked)
            if done.code == 0 and (token := done.stdout.decode().strip()):
                return Login(token)
        variable = _VARIABLES.get(host, "")
        if value := self.environ.get(variable):
            return Login(value, variable=variable)
        asking = f"protocol={protocol}\nhost={host}\npath={self.project}\n\n"
        answer = await self.run("credential", "fill", stdin=asking.encode(), ok=(0, 1, 128))
        fields = dict(line.split("=", 1) for line in answer.line.splitlines() if "=" in line)
        if password := fields.get("password"):
            return Login(password, fields.get("username", ""), is_from_helper=True)
        raise ForgeError(f"There is no token for {host}.", hint=login_hint(kind, host))

    async def branches(self, *names: str, login: Login) -> dict[str, str]:
        """The commits that these branches have there now."""
        refs = [f"{BRANCHES}{name}" for name in names]
        output = await self._reach(login, "ls-remote", "--", self.url, *refs)
        found = (line.split("\t") for line in output.splitlines())
        return {ref.removeprefix(BRANCHES): commit for commit, ref in found if ref in refs}

    async def push(
        self,
        objects: Objects,
        commit: str,
        login: Login,
        *,
        branch: str,
        ours: Sequence[str],
        held: str | None,
        worktree: str,
    ) -> None:
        """Have a branch there hold the commit. What it held may be replaced only if we pushed it,
        and only while it is just that."""
        if branch_ref(branch) is None:
            raise ForgeError(f"{branch!r} can be no branch.")
        if held is not None and held not in ours and not await contains(objects, commit, held):
            text = f"{branch} at {self.host} holds a commit that Kapelle did not push, {held[:12]}"
            pull = f"git -C {quote(worktree)} pull --no-rebase {self.name} {branch}"
            hint = f"`{pull}` merges it, then `kapelle pr` again."
            raise ForgeError(f"{text}; it is not overwritten.", hint=hint)
        lease = f"--force-with-lease={BRANCHES}{branch}:{held or ''}"
        what = ("--porcelain", "--no-verify", lease, "--", self.url, f"{commit}:{BRANCHES}{branch}")
        try:
            await self._reach(login, "push", *what, variables=objects.variables)
        except ForgeError:
            await self._require_room(branch, login)
            raise

    async def _require_room(self, branch: str, login: Login) -> None:
        """Raise ForgeError where a branch there is called as a folder of this one's name is."""
        parts = branch.split("/")
        above = ["/".join(parts[:length]) for length in range(1, len(parts))]
        held: dict[str, str] = {}
        with suppress(KapelleError):
            if above:
                held = await self.branches(*above, login=login)
            else:
                held = {}
        for name in held:
            hint = f"Rename it there, or `git push {self.name} --delete {name}`."
            text = f"The branch {name} at {self.host} leaves no room for {branch}."
            raise ForgeError(text, hint=f"{hint} Then `kapelle pr` again.")

    async def _reach(
        self, login: Login, *args: str, variables: Mapping[str, str] | None = None
    ) -> str:
        """What git says; a failure is told as what a person can do about it."""
        settings: tuple[str, ...] = ()
        given = {**self.variables, **(variables or {})}
        if self.scheme != "ssh" and not login.is_from_helper:
            # Instead of the person's helpers: git would have each of them store the token.
            helper = f"credential.{self.scheme}://{self.host}.helper={_HELPER}"
            settings = ("credential.helper=", helper)
            given[_TOKEN] = login.password
        place = replace(self, variables=given, settings=settings)
        try:
            output = await place.run(*args, ok=(0, 1, 128), timeout_s=_PUSH_TIMEOUT_S)
        except GitError as error:
            raise self._problem(error.message, login) from None
        if output.code:
            lines = output.line.splitlines()
        else:
            lines = []
        refused = [one for one in lines if one.startswith("!") and "[remote failure]" not in one]
        if output.code and not refused:
            raise self._problem(output.stderr, login)
        if refused:
            # A flag, the names of the references, and what became of them.
            said = "; ".join(one.split("\t")[-1] for one in refused)
            text = f"{self.host} refused the push: {_without_login(said)}."
            if words := _remote_words(output.stderr):
                raise ForgeError(f"{text} It says: {words}", hint="Then `kapelle pr` again.")
            hint = f"`git ls-remote {_without_login(self.url)}` shows what is there."
            raise ForgeError(text, hint=hint)
        return output.line

    def _problem(self, stderr: str, login: Login) -> KapelleError:
        """What all that git says means: of ssh, the last line tells nothing."""
        host = self.host
        said = _without_login(" ".join(_ADVICE.sub("", stderr).split()))[-_MOST_SAID:]
        if _CERTIFICATE.search(said):
            return certificate_problem(host, said)
        if _NO_LOGIN.search(said):
            works = f"`git ls-remote {_without_login(self.url)}` works without a question"
            hint = f"See that {works}, then `kapelle pr` again."
            if login.variable:
                hint = login_hint("", host, login.variable)
            return ForgeError(f"{host} does not let you in: {said}.", hint=hint)
        if _NOT_THERE.search(said):
            hint = f"`git remote set-url {self.name} URL` says where it is now."
            return ForgeError(f"The remote {self.name} is not there: {said}.", hint=hint)
        if _AWAY.search(said) and not _REFUSED.search(said):
            return Unavailable(f"{host} cannot be reached: {said}. It is tried again.")
        return ForgeError(said)


async def contains(objects: Objects, commit: str, older: str) -> bool:
    """Tell whether a commit contains an older one; False where one of them is not here."""
    if commit == older:
        return True
    for one in (commit, older):
        known = await objects.run("cat-file", "-e", f"{one}^{{commit}}", ok=(0, 1, 128))
        if known.code != 0:
            return False
    return await objects.is_ancestor(older, commit)


def _remote_words(stderr: str) -> str:
    """Return what the server itself says about a push, such as a hook that refuses it, in one
    line."""
    lines = (_COLOR.sub("", line) for line in stderr.splitlines())
    words = [line.removeprefix("remote:").strip() for line in lines if line.startswith("remote:")]
    return titled(" ".join(words), _MOST_SAID)


def _is_plain_allowed(hostname: str | None, known: ForgeHost | None) -> bool:
    """Tell whether a host may be reached without TLS: one on this machine, and one whose settings
    allow that."""
    return hostname in _LOCAL or (known is not None and known.insecure_http)


def _plain_hint(host: str) -> str:
    return (
        f'Where nobody can listen, insecure_http = true of [forge.hosts."{host}"] in config.toml '
        "allows http."
    )


def _without_login(text: str) -> str:
    return re.sub(r"(\w+://)[^/\s]*@", r"\1", text).strip().rstrip(".")


async def find_upstream(git: Git, common_dir: Path, branch: str) -> tuple[str | None, str]:
    """Return the remote of a branch and the branch's name there, as the repository's own
    configuration has them; without one, None and the branch's own name."""
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
    """Return the remote of a repository that settings name, with its address as the person's own
    configuration rewrites it; raises ForgeError where there is none that could be pushed to."""
    name = settings.remote
    own = GitLocation(git, common_dir, {"GIT_DIR": str(common_dir)})
    file = ("--file", str(common_dir / "config"), "--no-includes")
    wanted = rf"^remote\.{re.escape(name)}\.(url|pushurl)$"
    output = await own.run("config", *file, "-z", "--get-regexp", wanted, ok=(0, 1))
    # The first of each counts, and the one to push to first.
    told = [one.decode("utf-8", "replace").partition("\n") for one in output.fields]
    told.sort(key=lambda one: not one[0].endswith(".pushurl"))
    url = next((value for _, _, value in told if value), None)
    if not url:
        hint = f"`git remote add {name} URL`, or `kapelle config set forge.remote NAME`."
        raise ForgeError(f"The repository has no remote {name}.", hint=hint)
    remote = Remote(git, shadow, {"GIT_DIR": str(shadow)}, environ=environ, name=name)
    if not url.startswith("-"):
        url = (await remote.run("ls-remote", "--get-url", url)).line
    if (found := remote.at(url, settings)) is None:
        text = f"The remote {name} ({_without_login(url)}) is not at GitHub, GitLab or Gitea."
        hint = f"Kapelle pushes over https or ssh: git remote set-url {name} URL"
        if url.startswith("http://"):
            hint += f". {_plain_hint(urlsplit(url).netloc.rpartition('@')[2])}"
        raise ForgeError(text, hint=hint)
    return found
