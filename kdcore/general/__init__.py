"""General, that is task-agnostic, distillation from a corpus without labels, before any dataset is known.

One file each; the file's name is the method's name. As in `kdcore/methods` a file holds `class Config(MethodConfig)`
and `phases(config, setting)`, and nothing is registered. No objective here reads labels or `logits`. Student and
teacher have a masked-language-model head where the objective asks for `mlm_logits` or `masked_logits`, else none.
"""

from pathlib import Path

from kdcore.method_files import MethodFiles, naming

__all__ = ["configure", "load", "names", "naming"]

_FILES = MethodFiles(__name__, Path(__file__).parent)
names, load, configure = _FILES.names, _FILES.load, _FILES.configure
