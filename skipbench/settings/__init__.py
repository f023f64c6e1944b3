"""What a user can set, declared once: command line, Python, suites and records are made from it.

declaration.py   what a setting is; how a group of them is made and checked
parsers.py       text, TOML or Python values → values
groups.py        what evaluations share: checkpoint, data, features, output
"""

from skipbench.settings.declaration import Option, Settings, flag_of, same_as, setting

__all__ = ["Option", "Settings", "flag_of", "same_as", "setting"]
