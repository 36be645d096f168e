"""Use cases of agents: which there are, whether they work, and the keys stored for them."""

import asyncio
import logging
from datetime import UTC, datetime

from kapelle.agents import registry
from kapelle.agents.registry import AgentInfo
from kapelle.domain.errors import AgentMisconfigured, InvalidInput, KapelleError
from kapelle.domain.views import AgentView
from kapelle.engine.accounts import Credential, account_of, credential
from kapelle.engine.parts import Stage
from kapelle.service.agent_trial import Trial
from kapelle.service.agent_views import CheckView, KeyRemovedView, agent_view
from kapelle.settings import Settings
from kapelle.store import accounts

_log = logging.getLogger("kapelle.agents")
# Shorter ones would be found, and masked, everywhere in the output of agents.
_SHORTEST_KEY = 8
_LONGEST_KEY = 10_000


class Agents:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._writing = asyncio.Lock()  # two keys stored at once must not lose one another

    async def known(self, directory: str | None) -> list[AgentView]:
        """The agents that a task in a directory may use."""
        settings = self._stage.settings(directory)
        found = await asyncio.to_thread(registry.available, settings)
        return await self._views(found, settings)

    async def get(self, name: str, directory: str | None) -> AgentView:
        settings = self._stage.settings(directory)
        info = await asyncio.to_thread(registry.describe, name, settings)
        return (await self._views([info], settings))[0]

    async def check(self, name: str, live: bool, directory: str | None) -> CheckView:
        """Try an agent out; a real call is made only if live, and lifts a pause if it succeeds."""
        settings = self._stage.settings(directory)
        info = await asyncio.to_thread(registry.describe, name, settings)
        trial = await Trial(self._stage, info, settings).hold(live)
        return CheckView(agent=await self.get(name, directory), **trial)

    async def store_key(self, name: str, key: str, directory: str | None) -> AgentView:
        """Keep an API key for an agent, in place of the one before."""
        agent = registry.get(name, self._stage.settings(directory))
        if not agent.access.variables:
            raise AgentMisconfigured(
                f"The agent {name} takes no key from Kapelle.",
                hint=f"Give it one as a variable: kapelle agents config set {name} env.NAME VALUE",
            )
        _require_key(key)
        try:
            async with self._writing:
                await asyncio.to_thread(self._stage.vault.put, name, key)
        except (KapelleError, OSError):
            raise
        except Exception as error:
            # A keyring's own errors are of any class, and may quote what they were given.
            raise KapelleError(
                f"The system's keyring did not take the key: {type(error).__name__}.",
                hint="Unlock the keyring and try again.",
            ) from None
        _log.info("a key was stored for %s in the %s", name, self._stage.vault.place)
        return await self.get(name, directory)

    async def forget_key(self, name: str, directory: str | None) -> KeyRemovedView:
        """Remove the stored key of an agent, even of one that is no longer known."""
        async with self._writing:
            removed = await asyncio.to_thread(self._stage.vault.forget, name)
        if removed:
            _log.info("the stored key of %s was removed", name)
        else:
            registry.type_of(name, self._stage.settings(directory))
        return KeyRemovedView(removed=removed)

    async def _views(self, infos: list[AgentInfo], settings: Settings) -> list[AgentView]:
        # In a thread, for a keyring may take its time to answer.
        found = await asyncio.to_thread(
            lambda: [_standing(self._stage, info, settings) for info in infos]
        )
        ids = [account for _, account in found]
        rows = await self._stage.db.read(accounts.of_ids, ids)
        now = datetime.now(UTC)
        return [
            agent_view(info, credential, rows.get(account), now)
            for info, (credential, account) in zip(infos, found, strict=True)
        ]


def _standing(stage: Stage, info: AgentInfo, settings: Settings) -> tuple[Credential, str]:
    """An agent's credential, and the account whose limits it works under."""
    if info.agent is None:
        return Credential(None), info.name
    found = credential(stage, info.agent, settings, {})
    return found, account_of(stage, info.agent, settings, {})


def _require_key(key: str) -> None:
    """Refuse what cannot be a key, without showing it."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidInput("A key is one word of printable ASCII characters, and this is not.")
    if not _SHORTEST_KEY <= len(key) <= _LONGEST_KEY:
        raise InvalidInput(
            f"A key has {_SHORTEST_KEY} to {_LONGEST_KEY:,} characters, and this has {len(key):,}.",
            hint="What a server of your own takes instead of a key can be given as a variable:"
            " kapelle agents config set NAME env.VARIABLE VALUE",
        )
