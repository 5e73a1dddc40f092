"""Training: one loop for teachers and students, for every method, that survives interruption."""
