"""Commands: `python -m smallinit --help`."""

import argparse
import importlib
import sys

from smallinit.config import ConfigError
from smallinit.errors import Refused

# Commands beside the pipeline: name -> (module, help). A module offers add_arguments(parser) and main(options) -> str,
# and is imported only when its command is asked for. What a user can mend is a ConfigError.
TOOLS = {
    "advise": ("smallinit.adviser", "what a width, an eps and a gamma mean together; reads a Hugging Face config.json"),
    "bench": ("smallinit.bench.command", "training speed: ours beside other trainers, and how it scales"),
    "estimate": ("smallinit.planner", "parameters, FLOPs, memory and days of runs on a machine that you describe"),
    "export": ("smallinit.export", "a trained run as a Hugging Face folder"),
    "harness": ("smallinit.harness.command", "any task of EleutherAI's lm-eval on a trained run"),
}


def parser(arguments: list[str]) -> argparse.ArgumentParser:
    """The parser of all commands; the arguments of a tool are known only where it is the one asked for."""
    whole = argparse.ArgumentParser(prog="smallinit", description=sys.modules["smallinit"].__doc__)
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("plan", help="resolve params.yaml and fingerprint the code (the stage `plan`)")
    run = commands.add_parser("run", help="execute one notebook as a stage")
    run.add_argument("notebook", help="for instance 04_train")
    run.add_argument("key", nargs="?", help="the run, for instance m-1.0-both")
    repro = commands.add_parser("repro", help="bring stages up to date, independent ones side by side")
    repro.add_argument("targets", nargs="*", help="stages; default: all")
    repro.add_argument("--jobs", type=int, default=1, help="how many runs at a time")
    repro.add_argument("--profile", help="work on profiles/PROFILE.yaml in a folder of its own")
    repro.add_argument("--dry", action="store_true", help="write the plan, then only say what would run")
    figures = commands.add_parser("figures", help="redraw figures, tables and summary from what git holds")
    figures.add_argument("--jobs", type=int, default=1, help="how many stages at a time")
    commands.add_parser("lab", help="open the notebooks in JupyterLab")
    commands.add_parser("readme", help="refresh the generated parts of README.md")
    for name, (module, text) in TOOLS.items():
        tool = commands.add_parser(name, help=text)
        if name in arguments[:1]:
            importlib.import_module(module).add_arguments(tool)
    return whole


def main(arguments: list[str] | None = None) -> int:
    """Run one command; an expected error is one message and exit code 1, never a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # jsonschema checks URIs by a grammar, if it finds one, that takes two seconds to build. No schema of ours needs it.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    try:
        perform(parser(arguments).parse_args(arguments))
    except (ConfigError, Refused) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def perform(options: argparse.Namespace) -> None:
    """Run one command. Each imports only what it needs: a pipeline starts one for every stage."""
    if options.command in TOOLS:
        print(importlib.import_module(TOOLS[options.command][0]).main(options))
    elif options.command == "plan":
        from smallinit import plan

        print(f"planned {len(plan.write())} runs")
    elif options.command == "run":
        from smallinit import notebook

        print(notebook.run(options.notebook, options.key))
    elif options.command == "repro":
        from smallinit import pipeline

        pipeline.repro(options.targets, options.jobs, options.profile, options.dry)
    elif options.command == "figures":
        from smallinit import redraw

        redraw.figures(options.jobs)
    elif options.command == "lab":
        from smallinit import notebook

        notebook.lab()
    else:
        from smallinit import readme

        readme.refresh()


if __name__ == "__main__":
    sys.exit(main())
