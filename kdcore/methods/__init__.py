"""Distillation methods, one file each; the file's name is the method's name.

A method file holds `class Config(MethodConfig)` and `phases(config, setting)`. Nothing is registered:
a file in this folder is a method. Listing the names imports neither torch nor a method. Studies may give methods names
of their own, see `kdcore.method_config.MethodEntry`.
"""

from pathlib import Path

from kdcore.method_files import MethodFiles, naming

__all__ = ["check_name", "configure", "load", "names", "naming", "of_entry", "trains_selectors"]

_FILES = MethodFiles(__name__, Path(__file__).parent)
names, load, configure = _FILES.names, _FILES.load, _FILES.configure
check_name, of_entry, trains_selectors = _FILES.check_name, _FILES.of_entry, _FILES.trains_selectors
