"""Use cases of templates: keep, look at, change and delete them."""

from kapelle.agents import registry
from kapelle.domain.template import Template, TemplateSpec
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.submit import require_directory
from kapelle.store import templates


class Templates:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def all(self) -> list[Template]:
        return await self._parts.db.read(templates.some)

    async def get(self, name: str) -> Template:
        return await self._parts.db.read(templates.get, name)

    async def put(self, spec: TemplateSpec, before: str | None = None) -> Template:
        """Keep a new one, or another in place of the one that is called so; raises what would keep
        work from being done by it."""
        settings = self._parts.settings(spec.directory and require_directory(spec.directory))
        if spec.agent is not None:
            registry.get(spec.agent, settings)
        return await self._parts.db.write(templates.put, spec, before)

    async def delete(self, name: str) -> Template:
        return await self._parts.db.write(templates.delete, name)
