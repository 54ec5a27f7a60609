"""The runner of notebooks apart from the pipeline: what JupyterLab is started with."""

import os
from typing import Any

import pytest
from jupyter_server.serverapp import ServerApp

from smallinit import notebook, paths


def test_lab_starts_at_the_notebooks_and_reaches_the_whole_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executed notebooks lie outside of `notebooks/`, and what they show lies in `figures/`."""
    started: list[tuple[list[str], dict[str, str]]] = []

    def become(program: str, command: list[str], environment: dict[str, str]) -> Any:
        started.append((command, environment))

    monkeypatch.setattr(os, "execve", become)
    notebook.lab()
    ((command, environment),) = started
    places = dict(option.removeprefix("--ServerApp.").split("=") for option in command if option.startswith("--"))
    assert places == {"root_dir": str(paths.ROOT), "preferred_dir": str(paths.NOTEBOOKS)}
    assert set(places) <= set(ServerApp.class_trait_names()), "a setting that the server does not know is ignored"
    assert environment.items() >= notebook.ENVIRONMENT.items()
