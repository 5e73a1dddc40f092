"""Stage `register`: put a student into the registry, and promote it if asked and if it passes the gates.

No stage of `dvc.yaml`: its effect lies outside the study, and a hit of the run cache would skip it. It is
idempotent instead.
"""

from kdcore import config
from kdcore.champions import CHAMPION
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.registry import Registered, register, register_best


def run(study: config.Study, layout: Layout, dataset: str, method: str | None = None, seed: int | None = None,
        promote: bool = False) -> Registered:
    """Register the student of a method and seed, or without them the best of the study.

    Raises:
        UserError: the student cannot be registered, or `promote` is asked for and a gate refuses.
    """
    if (method is None) != (seed is None):
        raise UserError("a student is named by its method and its seed; give both, or neither for the best one")
    if method is None or seed is None:
        registered, reason = register_best(study, layout, dataset)
        print(reason)
    else:
        registered = register(study, layout, dataset, method, seed)
    state = "registered" if registered.new else "was registered before"
    print(f"{registered.name} version {registered.version} {state}, {registered.uri}")
    if promote and CHAMPION not in registered.aliases:
        promote_version(f"{registered.name}/{registered.version}")
    return registered


def promote_version(model: str) -> None:
    """Make a registered version champion if it passes all gates; a name alone means its challenger.

    Raises:
        UserError: no such model, or a gate refuses.
    """
    from kdcore import promotion

    name, version = promotion.version_of(model)
    version, gates = promotion.promote(name, version)
    for gate in gates:
        print(gate)
    refused = [gate for gate in gates if not gate.passed]
    if refused:
        raise UserError(f"{name} version {version} does not become {CHAMPION}: {refused[0].name} refused "
                        f"({refused[0].reason})")
    print(f"{name} version {version} is now {CHAMPION}")
