"""Commands: `python -m smallinit --help`."""

import argparse
import sys

from smallinit.config import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; an expected error is one message and exit code 1, never a traceback."""
    parser = argparse.ArgumentParser(prog="smallinit", description=sys.modules["smallinit"].__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("plan", help="resolve params.yaml and fingerprint the code (the stage `plan`)")
    run = commands.add_parser("run", help="execute one notebook as a stage")
    run.add_argument("notebook", help="for instance 04_train")
    run.add_argument("key", nargs="?", help="the run, for instance m-1.0-both")
    repro = commands.add_parser("repro", help="bring stages up to date, independent ones side by side")
    repro.add_argument("targets", nargs="*", help="stages; default: all")
    repro.add_argument("--jobs", type=int, default=1, help="how many runs at a time")
    repro.add_argument("--profile", help="work on profiles/PROFILE.yaml in a folder of its own")
    repro.add_argument("--dry", action="store_true", help="write the plan, then only say what would run")
    commands.add_parser("figures", help="redraw figures, tables and summary from what git holds")
    commands.add_parser("lab", help="open the notebooks in JupyterLab")
    commands.add_parser("readme", help="refresh the generated parts of README.md")
    return dispatch(parser.parse_args(arguments))


def dispatch(options: argparse.Namespace) -> int:
    """Do what the options ask for; returns the exit code."""
    from smallinit import notebook, pipeline, plan, readme

    try:
        if options.command == "plan":
            print(f"planned {len(plan.write())} runs")
        elif options.command == "run":
            print(notebook.run(options.notebook, options.key))
        elif options.command == "repro":
            pipeline.repro(options.targets, options.jobs, options.profile, options.dry)
        elif options.command == "figures":
            pipeline.figures()
        elif options.command == "lab":
            notebook.lab()
        else:
            readme.refresh()
    except (ConfigError, notebook.StageFailed, plan.StalePlan, pipeline.PipelineFailed, readme.OutOfDate) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
