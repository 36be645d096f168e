"""Use cases of templates: guidelines for work of one kind, with its agent and its directory."""

from kapelle.domain.template import Template, TemplateSpec
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.submit import require_abilities, require_directory
from kapelle.store import templates


class TemplateService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def all(self) -> list[Template]:
        """List your templates: guidelines that a task or run uses by name.

        Each has, by model, the results and the usage of the tasks that used it.
        """
        return await self._parts.db.read(templates.list_templates)

    async def get(self, template: str) -> Template:
        """Get a template with the results of the tasks that used it."""
        return await self._parts.db.read(templates.get, template)

    async def create(self, spec: TemplateSpec) -> Template:
        """Create a template: guidelines for work of one kind, with its agent and directory."""
        return await self._put(spec, None)

    async def edit(self, template: str, spec: TemplateSpec) -> Template:
        """Replace a template; a new name renames it, for past tasks, too."""
        return await self._put(spec, template)

    async def _put(self, spec: TemplateSpec, name: str | None) -> Template:
        """Store a template in place of the one with the name, if any.

        Raises an error if tasks could not use it: the directory is missing, or the agent cannot
        run the model.
        """
        directory = None
        if spec.directory:
            directory = require_directory(spec.directory)
        settings = self._parts.settings(directory)
        if spec.agent is not None:
            require_abilities(spec.agent, settings, model=spec.model)
        return await self._parts.db.write(templates.store, spec, name)

    async def delete(self, template: str) -> Template:
        """Delete a template; tasks that used it keep its guidelines."""
        return await self._parts.db.write(templates.delete, template)
