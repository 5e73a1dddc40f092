"""What `kdflow ...` can do, one file per kind of work; `kdcore.cli` lists the commands."""
