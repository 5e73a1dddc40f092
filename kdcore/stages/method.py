"""Stage `method`: say which method file an entry of `methods` is, as a link to that file.

DVC looks up settings by name, but not paths: what depends on `artifacts/method/NAME` depends on the one method file
that NAME is, whatever it is called, and on those whose objectives it borrows. The links are an out that DVC neither
keeps in its cache nor deletes. So a file that was edited shows as a changed out, and the run cache, which knows what
this stage was told but not what lies behind the links, has no say.
"""

import os
from pathlib import Path

from kdcore import config, methods
from kdcore.layout import Layout


def run(study: config.Study, layout: Layout, name: str) -> None:
    """Make the links of an entry, in place of any older ones.

    Raises:
        UserError: there is no such entry, or it names no method.
    """
    entries = study.entries(name)
    for entry in entries:
        for named in (entry, *entry.borrowed):
            methods.check_name(named)
    folder, files = layout.method(name), layout.study / study.code / "kdcore" / "methods"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for file in sorted({file for entry in entries for file in entry.files}):
        target = (files / f"{file}.py").resolve()
        (folder / f"{file}.py").symlink_to(Path(os.path.relpath(target, folder.resolve())))
    print(f"{name} is {entries[0].file}" if entries[0].is_variant else f"{name} is a method of this name")
