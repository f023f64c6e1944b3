"""The command line. One file a command; parsing imports neither torch nor timm."""

from skipbench.cli.app import app, main

__all__ = ["app", "main"]
