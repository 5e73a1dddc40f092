"""Stage `method`: say which method file an entry of `methods` is, as a link to that file.

DVC looks up settings by name, but not paths: what depends on `artifacts/method/NAME.py` depends on the one method file
that NAME is, whatever it is called. The link is an out that DVC neither keeps in its cache nor deletes. So a file that
was edited shows as a changed out, and the run cache, which knows what this stage was told but not what lies behind the
link, has no say.
"""

import os
from pathlib import Path

from kdcore import config, methods
from kdcore.layout import Layout


def run(study: config.Study, layout: Layout, name: str) -> None:
    """Make the link of an entry, in place of any older one.

    Raises:
        UserError: there is no such entry, or it names no method.
    """
    entry = study.method(name)
    methods.check_name(entry)
    file = layout.study / study.code / "kdcore" / "methods" / f"{entry.file}.py"
    link = layout.method(name)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(Path(os.path.relpath(file.resolve(), link.parent.resolve())))
    print(f"{name} is {entry.file}" if entry.is_variant else f"{name} is a method of this name")
