"""Teachers and students: load, initialise, read their features."""
