"""What methods there are, and what each is."""

from typing import Annotated

import typer


def explain(
    method: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="A file of kdcore/methods or "
                                                 "kdcore/general.")] = None,
) -> None:
    """List all methods, or tell all about one: what it is, where it deviates from its paper, its keys.

    Example: kdflow explain rail_kd_l
    """
    from kdcore import method_page

    typer.echo(method_page.overview() if method is None else method_page.pages(method))
